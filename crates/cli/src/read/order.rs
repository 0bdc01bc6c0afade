//! Checks that what came is what was promised.
//!
//! While the loader runs only a hash of each batch is kept, so that the check costs next to
//! no time and memory of the run that it judges. Afterwards every epoch's order is made
//! again from the seed and compared.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use belady_control::sampler::{AccessStream, SampleId, Step};

/// What came, batch by batch.
#[derive(Debug, Default)]
pub struct OrderCheck {
    seen: VecDeque<Seen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    step: Step,
    samples: u32,
    hash: u64,
}

impl Seen {
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
    pub fn took(&mut self, step: Step, samples: impl Iterator<Item = SampleId>) {
        self.seen.push_back(Seen::new(step, samples));
    }

    /// Whether every batch of every epoch of this rank came, once, in its place, with its samples
    /// in their order. Each sample that was skipped or replaced excuses one batch.
    pub fn holds(
        mut self,
        stream: &AccessStream,
        rank: u32,
        epochs: u32,
        skipped: u64,
        replaced: u64,
    ) -> bool {
        let (mut different, mut missing) = (0, 0);
        for epoch in 0..epochs {
            let order = stream.epoch(epoch);
            for iteration in 0..stream.iterations() {
                let step = Step { epoch, iteration };
                let wanted = Seen::new(step, order.batch(rank, iteration));
                let Some(seen) = self.seen.pop_front().filter(|seen| seen.step == step) else {
                    return false;
                };
                different += u64::from(seen != wanted);
                missing += i128::from(wanted.samples) - i128::from(seen.samples);
            }
        }
        self.seen.is_empty() && different <= skipped + replaced && missing == i128::from(skipped)
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

    /// All batches of two epochs.
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
        check.holds(&stream(), 0, 2, skipped, replaced)
    }

    #[test]
    fn the_promised_order_holds() {
        assert!(holds(&batches(), 0, 0));
    }

    #[test]
    fn every_deviation_is_seen() {
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
    fn bad_samples_excuse_as_many_batches() {
        let mut batches = batches();
        batches[4].1.pop();
        assert!(holds(&batches, 1, 0));
        assert!(!holds(&batches, 0, 1) && !holds(&batches, 2, 0));
        batches[0].1[0] = batches[0].1[1];
        assert!(holds(&batches, 1, 1) && !holds(&batches, 1, 0));
    }
}
