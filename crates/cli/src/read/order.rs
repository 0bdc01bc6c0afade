//! Checks that the loader delivered the expected samples in the expected order.
//!
//! During the run it keeps only a hash of each batch, which takes little time and memory. After the
//! run it computes every epoch's order from the seed and compares.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use belady_control::sampler::{AccessStream, SampleId, Step};

/// The batches that were delivered.
#[derive(Debug, Default)]
pub struct OrderCheck {
    seen: VecDeque<DeliveredBatch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeliveredBatch {
    step: Step,
    samples: u32,
    hash: u64,
}

impl DeliveredBatch {
    fn new(step: Step, samples: impl Iterator<Item = SampleId>) -> Self {
        let mut hasher = DefaultHasher::new();
        let mut count = 0;
        for sample in samples {
            hasher.write_u32(sample);
            count += 1;
        }
        Self { step, samples: count, hash: hasher.finish() }
    }
}

impl OrderCheck {
    /// Records a batch.
    pub fn took(&mut self, step: Step, samples: impl Iterator<Item = SampleId>) {
        self.seen.push_back(DeliveredBatch::new(step, samples));
    }

    /// Returns how the batches of a rank differ from the order; `None` if a batch was not delivered
    /// once, in its turn.
    pub fn deviations(
        mut self,
        stream: &AccessStream,
        rank: u32,
        epochs: u32,
    ) -> Option<Deviations> {
        let mut deviations = Deviations::default();
        for epoch in 0..epochs {
            let order = stream.epoch(epoch);
            for iteration in 0..stream.iterations() {
                let step = Step { epoch, iteration };
                let wanted = DeliveredBatch::new(step, order.batch(rank, iteration));
                let seen = self.seen.pop_front().filter(|seen| seen.step == step)?;
                deviations += Deviations {
                    batches: u64::from(seen != wanted),
                    missing: i128::from(wanted.samples) - i128::from(seen.samples),
                };
            }
        }
        self.seen.is_empty().then_some(deviations)
    }
}

/// How delivered batches differ from the order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deviations {
    /// Batches with other samples, or in another order.
    batches: u64,
    /// Samples that were not delivered.
    missing: i128,
}

impl Deviations {
    /// Returns whether samples that were skipped or replaced explain all of this: each excuses one
    /// batch.
    pub fn are_excused_by(self, skipped: u64, replaced: u64) -> bool {
        self.batches <= skipped + replaced && self.missing == i128::from(skipped)
    }
}

impl std::ops::AddAssign for Deviations {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.missing += other.missing;
    }
}

#[cfg(test)]
mod tests {
    use belady_control::sampler::{Order, Scheme, StreamConfig};

    use super::*;

    fn stream() -> AccessStream {
        AccessStream::new(StreamConfig {
            samples: 10,
            ranks: 1,
            batch: 4,
            order: Order::Torch,
            scheme: Scheme::Uniform,
            seed: 3,
            sampler_drop_last: false,
            drop_last: false,
        })
        .expect("valid")
    }

    /// Returns all batches of two epochs.
    fn batches() -> Vec<(Step, Vec<SampleId>)> {
        let stream = stream();
        let steps = (0..2).flat_map(|epoch| (0..3).map(move |iteration| Step { epoch, iteration }));
        let batch = |step: Step| stream.epoch(step.epoch).batch(0, step.iteration).collect();
        steps.map(|step| (step, batch(step))).collect()
    }

    fn holds(batches: &[(Step, Vec<SampleId>)], skipped: u64, replaced: u64) -> bool {
        let mut check = OrderCheck::default();
        for (step, samples) in batches {
            check.took(*step, samples.iter().copied());
        }
        let deviations = check.deviations(&stream(), 0, 2);
        deviations.is_some_and(|found| found.are_excused_by(skipped, replaced))
    }

    #[test]
    fn the_expected_order_holds() {
        assert!(holds(&batches(), 0, 0));
    }

    #[test]
    fn every_deviation_is_detected() {
        let changed = |change: fn(&mut Vec<(Step, Vec<SampleId>)>)| {
            let mut batches = batches();
            change(&mut batches);
            holds(&batches, 0, 0)
        };
        assert!(!changed(|batches| batches[1].1.swap(0, 1)));
        assert!(!changed(|batches| batches[0].1[0] = batches[0].1[1]));
        assert!(!changed(|batches| batches.swap(0, 1)));
        assert!(!changed(|batches| drop(batches.pop())));
        assert!(!changed(|batches| batches.push(batches[5].clone())));
        assert!(!changed(|batches| batches[4].1.truncate(3)));
        assert!(!changed(|batches| batches[2].0.epoch = 1));
    }

    #[test]
    fn each_bad_sample_excuses_one_batch() {
        let mut batches = batches();
        batches[4].1.pop();
        assert!(holds(&batches, 1, 0));
        assert!(!holds(&batches, 0, 1) && !holds(&batches, 2, 0));
        batches[0].1[0] = batches[0].1[1];
        assert!(holds(&batches, 1, 1) && !holds(&batches, 1, 0));
    }
}
