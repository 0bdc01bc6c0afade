//! `lru`: what a page cache does.
//!
//! Knows nothing of the future and nothing of other nodes. What was read stays until
//! room is needed; then what was used longest ago goes. All cache tiers together are
//! one such cache: a sample takes the fastest tier with room and stays where it is
//! until it is evicted, since in a stream that touches everything once an epoch
//! nothing is hot enough to be worth moving. Costs nearly S source bytes an epoch
//! when the node's tiers are much smaller than what the node reads.
//!
//! Recency is a queue of accesses. A sample's older entries are skipped when they
//! come up, so every access is O(1) (amortised) and the queue is bounded by what the
//! node holds, with one byte a sample beside it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::holdings::Holdings;
use super::{Actions, Event, Evict, Keep, Load, LoadFrom, NodeId, Policy, PolicyPlan};
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::SampleId;

#[derive(Debug)]
pub struct Lru {
    job: Arc<Job>,
}

impl Lru {
    pub fn new(job: &Arc<Job>) -> Self {
        Self { job: job.clone() }
    }
}

impl PolicyPlan for Lru {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(PageCache {
            node,
            held: Holdings::new(&self.job, node),
            recency: Recency::default(),
            job: self.job.clone(),
        })
    }
}

#[derive(Debug)]
struct PageCache {
    node: NodeId,
    held: Holdings,
    recency: Recency,
    job: Arc<Job>,
}

impl PageCache {
    /// Keeps what was just consumed, and evicts for it.
    fn keep(&mut self, samples: &[SampleId], actions: &mut Actions) {
        let before = actions.keeps.len();
        for &sample in samples {
            let bytes = self.job.sizes.get(sample);
            if self.held.tier_of(sample).is_some() || !self.held.could_hold(bytes) {
                continue;
            }
            // What is kept now enters the queue afterwards, so that this event cannot evict it.
            let tier = loop {
                if let Some(tier) = self.held.room_for(bytes) {
                    break Some(tier);
                }
                let Some(oldest) = self.recency.pop_oldest() else { break None };
                if let Some(tier) = self.held.tier_of(oldest) {
                    self.held.remove(tier, oldest, self.job.sizes.get(oldest));
                    actions.evictions.push(Evict { sample: oldest, tier });
                }
            };
            if let Some(tier) = tier {
                self.held.put(tier, sample, bytes);
                actions.keeps.push(Keep { sample, node: self.node, tier });
            }
        }
        for keep in &actions.keeps[before..] {
            self.recency.touch(keep.sample, self.job.sizes.len());
        }
    }
}

impl Policy for PageCache {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                for &sample in samples {
                    let from = match self.held.tier_of(sample) {
                        Some(tier) => {
                            self.recency.touch(sample, self.job.sizes.len());
                            LoadFrom::Local(tier)
                        }
                        None => LoadFrom::Source,
                    };
                    actions.loads.push(Load::from(sample, from));
                }
            }
            Event::Consumed { samples, .. } => self.keep(samples, actions),
            Event::Missed { sample, .. } => actions.loads.push(Load::from_source(sample)),
            Event::Idle { .. } | Event::Fetched { .. } | Event::Measured(_) => {}
        }
    }
}

/// Samples by when they were last used.
#[derive(Debug, Default)]
struct Recency {
    /// Accesses, oldest first.
    queue: VecDeque<SampleId>,
    /// How many entries of the queue are a sample's; the last one counts.
    entries: Vec<u8>,
    /// Samples with an entry.
    members: usize,
}

impl Recency {
    fn touch(&mut self, sample: SampleId, samples: u32) {
        if self.entries.is_empty() {
            self.entries = vec![0; samples as usize];
        }
        if self.entries[sample as usize] == u8::MAX || self.queue.len() > 2 * self.members + 64 {
            self.forget_older_entries();
        }
        let entries = &mut self.entries[sample as usize];
        self.members += usize::from(*entries == 0);
        *entries += 1;
        self.queue.push_back(sample);
    }

    fn pop_oldest(&mut self) -> Option<SampleId> {
        while let Some(sample) = self.queue.pop_front() {
            let entries = &mut self.entries[sample as usize];
            *entries -= 1;
            if *entries == 0 {
                self.members -= 1;
                return Some(sample);
            }
        }
        None
    }

    fn forget_older_entries(&mut self) {
        let entries = &mut self.entries;
        self.queue.retain(|&sample| {
            let last = entries[sample as usize] == 1;
            if !last {
                entries[sample as usize] -= 1;
            }
            last
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{Driver, job};
    use proptest::prelude::*;

    #[test]
    fn evicts_what_was_used_longest_ago() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(Lru::new(&Arc::new(job(8, 1, 1, &[20, 10]))));
        let mut node = Driver::new(&plan, 0);
        let kept = node.consumed(0, (0, 0), &[0, 1, 2]).keeps.clone();
        assert_eq!(kept.iter().map(|keep| keep.tier).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!(node.stage(0, (0, 1), &[0, 5])[0].from, LoadFrom::Local(1));
        let actions = node.consumed(0, (0, 1), &[0, 5]);
        assert_eq!(actions.evictions, [Evict { sample: 1, tier: 1 }]);
        assert_eq!(actions.keeps, [Keep { sample: 5, node: 0, tier: 1 }]);
        assert_eq!(node.stage(0, (0, 2), &[1])[0].from, LoadFrom::Source);
    }

    #[test]
    fn never_evicts_what_the_same_event_keeps() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(Lru::new(&Arc::new(job(8, 1, 1, &[20]))));
        let mut node = Driver::new(&plan, 0);
        let actions = node.consumed(0, (0, 0), &[0, 1, 2, 3]);
        assert_eq!((actions.keeps.len(), actions.evictions.len()), (2, 0));
    }

    /// What a cache of `room` samples reads again, by a plain list of what it holds.
    fn naive_lru(epochs: &[Vec<SampleId>], room: usize) -> Vec<usize> {
        let mut held: Vec<SampleId> = vec![];
        let mut read = |epoch: &Vec<SampleId>| {
            let missed = |&sample: &SampleId| {
                let at = held.iter().position(|&other| other == sample);
                at.map(|at| held.remove(at));
                held.push(sample);
                held.drain(..held.len().saturating_sub(room));
                usize::from(at.is_none())
            };
            epoch.iter().map(missed).sum()
        };
        epochs.iter().map(&mut read).collect()
    }

    /// The same by the policy, in batches of one.
    fn policy_reads(epochs: &[Vec<SampleId>], room: usize) -> Vec<usize> {
        let job = job(epochs[0].len() as u32, 1, 1, &[10 * room as u64]);
        let plan: Arc<dyn PolicyPlan> = Arc::new(Lru::new(&Arc::new(job)));
        let mut node = Driver::new(&plan, 0);
        let mut read = |epoch: &Vec<SampleId>| {
            let missed = |&sample: &SampleId| {
                let from = node.stage(0, (0, 0), &[sample])[0].from;
                node.consumed(0, (0, 0), &[sample]);
                usize::from(from == LoadFrom::Source)
            };
            epoch.iter().map(missed).sum()
        };
        epochs.iter().map(&mut read).collect()
    }

    fn shuffled(samples: u32, seed: u64) -> Vec<Vec<SampleId>> {
        let order = |epoch: u64| {
            let mut samples: Vec<SampleId> = (0..samples).collect();
            samples.sort_by_key(|&k| {
                let drawn = (seed ^ epoch << 32 ^ u64::from(k)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (drawn ^ drawn >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
            });
            samples
        };
        (0..4).map(order).collect()
    }

    #[test]
    fn a_cache_of_the_whole_dataset_reads_nothing_again() {
        assert_eq!(policy_reads(&shuffled(500, 3), 500), [500, 0, 0, 0]);
    }

    /// Each sample comes once an epoch in another order, so LRU drops what comes soonest. Of a
    /// cache that lacks a share x of the dataset, x·(1 - ln x) is read again: five times the
    /// share where a hundredth is lacking.
    #[test]
    fn what_a_cache_lacks_is_read_again_several_times_over() {
        let (samples, lacking) = (2000, 40);
        let read = policy_reads(&shuffled(samples, 9), (samples - lacking) as usize);
        let x = f64::from(lacking) / f64::from(samples);
        let expected = f64::from(samples) * x * (1.0 - x.ln());
        for epoch in &read[1..] {
            assert!((*epoch as f64 / expected - 1.0).abs() < 0.15, "{read:?}, {expected}");
        }
    }

    #[test]
    fn the_queue_is_bounded_by_what_is_held_and_forgets_only_older_entries() {
        let mut recency = Recency::default();
        for at in 0..10_000u32 {
            recency.touch(at % 3, 8);
            assert!(recency.queue.len() <= 2 * recency.members + 65, "{}", recency.queue.len());
        }
        // One sample alone: as many entries as a byte counts.
        for _ in 0..300 {
            recency.touch(7, 8);
        }
        // The last of the three was touched last before that.
        assert_eq!([(); 4].map(|()| recency.pop_oldest()), [Some(1), Some(2), Some(0), Some(7)]);
        assert_eq!((recency.pop_oldest(), recency.members), (None, 0));
    }

    proptest! {
        #[test]
        fn reads_what_a_naive_lru_reads(
            samples in 1u32..60, room in 0usize..70, seed: u64,
        ) {
            let epochs = shuffled(samples, seed);
            prop_assert_eq!(policy_reads(&epochs, room), naive_lru(&epochs, room));
        }

        #[test]
        fn agrees_with_a_list(touches in prop::collection::vec(0u32..12, 1..600)) {
            let mut fast = Recency::default();
            let mut list: Vec<SampleId> = vec![];
            for (at, &sample) in touches.iter().enumerate() {
                fast.touch(sample, 12);
                list.retain(|&other| other != sample);
                list.push(sample);
                if at % 5 == 4 {
                    prop_assert_eq!(fast.pop_oldest(), Some(list.remove(0)));
                }
                prop_assert!(fast.queue.len() <= 2 * 12 + 66);
            }
            for sample in list {
                prop_assert_eq!(fast.pop_oldest(), Some(sample));
            }
            prop_assert_eq!(fast.pop_oldest(), None);
        }
    }
}
