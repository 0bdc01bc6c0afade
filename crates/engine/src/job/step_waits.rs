//! What the ranks of this node wait for each other.
//!
//! A step is published when the batches of all ranks are filled, so a rank whose own batch was
//! there may wait for the slowest rank. For each step, a rank's *own* wait is what its consumer
//! would have waited for its own batch alone: its wait less the time from when its batch was filled
//! until that was published. The step is judged when the last rank has taken its batch
//! ([`StepVerdict`]).
//!
//! Pooled threads fill the batches of a step one after another for all ranks together, so no batch
//! counts as held: a rank would be slowest only because it is last in the order of the ranks.
//!
//! Each rank writes its own cells, so nothing here locks or allocates. Figures of a step are lost
//! if a rank leaves in mid-step, or if ranks are more steps apart than there are slots.

use std::time::{Duration, Instant};

use belady_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use belady_control::sampler::Step;

/// A rank is imbalanced if it waits for more than this part of its compute time, as in the
/// simulator.
const WAIT_THRESHOLD: f64 = 0.05;
/// The steps by which a consumer may be behind its ring: batches that were published, returned and
/// not yet counted as taken, since they are transformed or on their way to another process.
const BEHIND: usize = 64;

/// The waits of the ranks of this node in the steps that are staged.
#[derive(Debug)]
pub struct StepWaits {
    began: Instant,
    /// The sequence number of the first step that is staged; 0 before.
    first: AtomicU64,
    /// By local rank.
    ranks: Box<[RankProgress]>,
    /// A power of two; empty for one rank, which waits for no other.
    slots: Box<[StepSlot]>,
    /// By slot and local rank, in nanoseconds: how long the batch was held after it was filled, and
    /// then the rank's own wait.
    cells: Box<[AtomicU64]>,
}

/// How far a rank is.
#[derive(Debug, Default)]
struct RankProgress {
    /// The sequence number of the step that it took last.
    taken: AtomicU64,
    /// When it took that, in nanoseconds.
    at: AtomicU64,
}

/// A step that is staged.
#[derive(Debug, Default)]
struct StepSlot {
    sequence: AtomicU64,
    step: AtomicU64,
    /// The ranks that have not taken their batch.
    missing: AtomicU32,
    /// The longest compute time before it, in nanoseconds.
    compute: AtomicU64,
}

/// What a step lost to its slowest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepVerdict {
    /// The local rank with the longest own wait.
    pub slowest: usize,
    /// Its own wait less the mean of all ranks: what the step lost.
    pub lost: Duration,
    /// It waited for more than a twentieth of the compute time while another rank did not.
    pub is_imbalanced: bool,
}

impl StepWaits {
    /// Makes room for the steps that the ranks' rings hold, of so many batches each.
    pub fn new(ranks: usize, batches: u32) -> Self {
        let slots = match ranks {
            0 | 1 => 0,
            _ => (batches as usize + BEHIND).next_power_of_two(),
        };
        Self {
            began: Instant::now(),
            first: AtomicU64::new(0),
            ranks: (0..ranks).map(|_| RankProgress::default()).collect(),
            slots: (0..slots).map(|_| StepSlot::default()).collect(),
            cells: (0..slots * ranks).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Prepares for a step that so many ranks will take.
    pub fn begin(&self, sequence: u64, step: Step, ranks: u32) {
        let Some(slot) = self.slot(sequence) else { return };
        slot.sequence.store(0, Ordering::Relaxed);
        for rank in 0..self.ranks.len() {
            self.cell(sequence, rank).store(0, Ordering::Relaxed);
        }
        slot.step.store(packed(step), Ordering::Relaxed);
        slot.missing.store(ranks, Ordering::Relaxed);
        slot.compute.store(0, Ordering::Relaxed);
        if self.first.load(Ordering::Relaxed) == 0 {
            self.first.store(sequence, Ordering::Relaxed);
        }
        slot.sequence.store(sequence, Ordering::Release);
    }

    /// Records how long the batch of a rank was held since it was filled, before it is published.
    pub fn held(&self, sequence: u64, rank: usize, held: Duration) {
        if !self.slots.is_empty() {
            self.cell(sequence, rank).store(held.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Records that a rank has taken its batch after a wait. Returns the verdict when all have.
    pub fn taken(&self, rank: usize, step: Step, waited: Duration) -> Option<StepVerdict> {
        self.taken_at(rank, step, waited, self.began.elapsed())
    }

    /// As [`Self::taken`], at a time since the start.
    fn taken_at(
        &self,
        rank: usize,
        step: Step,
        waited: Duration,
        now: Duration,
    ) -> Option<StepVerdict> {
        let sequence = self.find(rank, step)?;
        let (slot, progress) = (self.slot(sequence)?, &self.ranks[rank]);
        let (now, waited) = (now.as_nanos() as u64, waited.as_nanos() as u64);
        progress.taken.store(sequence, Ordering::Relaxed);
        let before = progress.at.swap(now, Ordering::Relaxed);
        if before > 0 {
            let compute = now.saturating_sub(waited).saturating_sub(before);
            slot.compute.fetch_max(compute, Ordering::Relaxed);
        }
        let cell = self.cell(sequence, rank);
        let own = waited.saturating_sub(cell.load(Ordering::Relaxed));
        // With 1 more, so that 0 means a rank that does not take part.
        cell.store(own + 1, Ordering::Relaxed);
        (slot.missing.fetch_sub(1, Ordering::AcqRel) == 1).then(|| self.verdict(sequence, slot))
    }

    fn verdict(&self, sequence: u64, slot: &StepSlot) -> StepVerdict {
        let own = |rank: usize| self.cell(sequence, rank).load(Ordering::Relaxed);
        let (mut count, mut sum, mut least, mut most, mut slowest) = (0u64, 0, u64::MAX, 0, 0);
        for (rank, own) in (0..self.ranks.len()).map(|rank| (rank, own(rank))) {
            let Some(own) = own.checked_sub(1) else { continue };
            (count, sum, least) = (count + 1, sum + own, least.min(own));
            if own > most {
                (most, slowest) = (own, rank);
            }
        }
        let lost = Duration::from_nanos(most - sum / count.max(1));
        let compute = slot.compute.load(Ordering::Relaxed);
        let limit = (compute as f64 * WAIT_THRESHOLD) as u64;
        // The compute time before the first step is not known.
        let is_imbalanced = compute > 0 && most > limit && least <= limit;
        StepVerdict { slowest, lost, is_imbalanced }
    }

    /// Returns the sequence number of a step that a rank takes: the one after the last, except
    /// after steps that it got an error for.
    fn find(&self, rank: usize, step: Step) -> Option<u64> {
        let before_first = self.first.load(Ordering::Relaxed).saturating_sub(1);
        let last = self.ranks[rank].taken.load(Ordering::Relaxed).max(before_first);
        let is_it = |sequence: u64| {
            let slot = self.slot(sequence)?;
            let known = slot.sequence.load(Ordering::Acquire) == sequence;
            Some(known && slot.step.load(Ordering::Relaxed) == packed(step))
        };
        (last + 1..=last + self.slots.len() as u64).find(|&sequence| is_it(sequence) == Some(true))
    }

    fn slot(&self, sequence: u64) -> Option<&StepSlot> {
        self.slots.get(self.index(sequence))
    }

    fn cell(&self, sequence: u64, rank: usize) -> &AtomicU64 {
        &self.cells[self.index(sequence) * self.ranks.len() + rank]
    }

    fn index(&self, sequence: u64) -> usize {
        sequence as usize & self.slots.len().wrapping_sub(1)
    }
}

fn packed(Step { epoch, iteration }: Step) -> u64 {
    u64::from(epoch) << 32 | u64::from(iteration)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn step(iteration: u32) -> Step {
        Step { epoch: 0, iteration }
    }

    /// Two ranks that compute for 100 ms before each step but the first.
    fn two_ranks(steps: &[[(u64, u64); 2]]) -> Vec<Option<StepVerdict>> {
        let waits = StepWaits::new(2, 4);
        let mut clock = Duration::ZERO;
        let verdicts = (1..).zip(steps).map(|(sequence, ranks)| {
            let at = step(sequence as u32);
            waits.begin(sequence, at, 2);
            clock += ms(100);
            let begins = clock;
            let mut verdict = None;
            for (rank, &(waited, held)) in ranks.iter().enumerate() {
                waits.held(sequence, rank, ms(held));
                let now = begins + ms(waited);
                verdict = waits.taken_at(rank, at, ms(waited), now);
                clock = clock.max(now);
            }
            verdict
        });
        verdicts.collect()
    }

    #[test]
    fn a_rank_whose_batch_was_there_waits_for_the_slowest() {
        let verdicts = two_ranks(&[
            [(0, 50), (0, 0)],
            // Both wait for 40 ms; rank 0 had its batch before it asked.
            [(40, 90), (40, 0)],
            // Both had to wait for their own batches, one for longer.
            [(40, 10), (40, 0)],
            // Both wait alike.
            [(40, 0), (40, 0)],
            // No rank waits for long.
            [(4, 4), (4, 0)],
        ]);
        let verdict = |slowest, lost, is_imbalanced| {
            Some(StepVerdict { slowest, lost: ms(lost), is_imbalanced })
        };
        assert_eq!(verdicts[0], verdict(0, 0, false));
        assert_eq!(verdicts[1], verdict(1, 20, true));
        assert_eq!(verdicts[2], verdict(1, 5, false), "both wait for more than 5 ms");
        assert_eq!(verdicts[3], verdict(0, 0, false));
        assert_eq!(verdicts[4], verdict(1, 2, false), "less than 5 % of the compute time");
    }

    #[test]
    fn a_step_that_a_rank_gets_an_error_for_is_passed_over() {
        let waits = StepWaits::new(2, 4);
        for sequence in 1..=3 {
            waits.begin(sequence, step(sequence as u32), 2);
        }
        for at in [1, 2, 3] {
            assert_eq!(waits.taken(0, step(at), ms(1)), None);
        }
        assert!(waits.taken(1, step(1), ms(1)).is_some());
        assert!(waits.taken(1, step(3), ms(1)).is_some(), "without step 2");
    }

    #[test]
    fn a_job_that_is_resumed_is_judged_from_its_first_step_on() {
        let waits = StepWaits::new(2, 4);
        waits.begin(50_000, step(7), 2);
        assert_eq!(waits.taken(0, step(7), ms(1)), None);
        assert!(waits.taken(1, step(7), ms(1)).is_some());
    }

    #[test]
    fn ranks_that_are_gone_take_no_part() {
        let waits = StepWaits::new(3, 4);
        waits.begin(1, step(0), 2);
        waits.held(1, 2, ms(3));
        assert_eq!(waits.taken(1, step(0), ms(4)), None);
        let verdict = waits.taken(2, step(0), ms(5)).unwrap();
        assert_eq!((verdict.slowest, verdict.lost), (1, ms(1)), "4 ms beside 2 ms");
    }

    #[test]
    fn one_rank_waits_for_no_other() {
        let waits = StepWaits::new(1, 1024);
        waits.begin(1, step(0), 1);
        waits.held(1, 0, ms(3));
        assert_eq!(waits.taken(0, step(0), ms(5)), None);
    }

    proptest! {
        /// Whatever the order in which ranks take their batches, a step is judged once.
        #[test]
        fn every_step_is_judged_once_as_the_naive_definition_says(
            ranks in 2usize..5,
            waits in prop::collection::vec(prop::collection::vec((0u64..50, 0u64..50), 4), 1..40),
            order in prop::collection::vec(0usize..4, 0..400),
        ) {
            let seen = StepWaits::new(ranks, 40);
            for (sequence, of_ranks) in (1..).zip(&waits) {
                seen.begin(sequence, step(sequence as u32), ranks as u32);
                for (rank, &(_, held)) in of_ranks.iter().enumerate().take(ranks) {
                    seen.held(sequence, rank, ms(held));
                }
            }
            let mut next = vec![0; ranks];
            let mut verdicts = vec![None; waits.len()];
            let all = order.into_iter().chain((0..ranks).flat_map(|rank| vec![rank; waits.len()]));
            for rank in all.filter(|&rank| rank < ranks) {
                let at = next[rank];
                let Some(of_ranks) = waits.get(at) else { continue };
                next[rank] += 1;
                let verdict = seen.taken(rank, step(at as u32 + 1), ms(of_ranks[rank].0));
                if let Some(verdict) = verdict {
                    prop_assert!(verdicts[at].replace(verdict).is_none(), "judged twice");
                }
            }
            for (of_ranks, verdict) in waits.iter().zip(verdicts) {
                let own = |&(waited, held): &(u64, u64)| ms(waited.saturating_sub(held));
                let own: Vec<Duration> = of_ranks[..ranks].iter().map(own).collect();
                let mean = own.iter().sum::<Duration>() / ranks as u32;
                let lost = own.iter().max().unwrap().saturating_sub(mean);
                let verdict = verdict.expect("all ranks have taken it");
                let difference = verdict.lost.abs_diff(lost);
                prop_assert!(difference < Duration::from_micros(1), "{verdict:?}, not {lost:?}");
                prop_assert_eq!(own[verdict.slowest], *own.iter().max().unwrap());
            }
        }
    }
}
