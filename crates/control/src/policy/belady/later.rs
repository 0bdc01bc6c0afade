//! The future beyond the next epoch: how long a sample waits for its next use.

use crate::job::Job;
use crate::sampler::SampleId;

/// How long a sample that the next epoch does not use waits for its use: in iterations after
/// the next epoch, where those are known. [`NEVER`] if the run ends before.
pub type Wait = u32;

/// The next epoch uses it.
pub const NEXT: Wait = 0;
pub const NEVER: Wait = Wait::MAX;
/// None of the epochs that were looked at uses it.
const UNKNOWN: Wait = 1 << 30;

/// Epochs after the next that are looked at. Each costs its order; what more of them would tell
/// concerns the few samples that four epochs in a row leave out.
const EPOCHS: u32 = 4;

/// By sample; of a run whose later orders are not known, by how often it was used so far.
#[derive(Debug, Default)]
pub struct LaterUses(Vec<Wait>);

impl LaterUses {
    /// Looks beyond the epoch that follows `epoch`.
    pub fn beyond(job: &Job, epoch: u32, uses: &Uses) -> Self {
        let from = epoch + 2;
        let until = job.epochs.map_or(from + EPOCHS, |end| end.min(from + EPOCHS));
        let ends = job.epochs.is_some_and(|end| end <= from + EPOCHS);
        if from >= until {
            return Self(vec![NEVER; job.sizes.len() as usize]);
        }
        if !job.stream.ahead() {
            return Self(uses.waits(job.sizes.len()));
        }
        let rest = if ends { NEVER } else { UNKNOWN };
        let mut waits = vec![rest; job.sizes.len() as usize];
        let mut before: Wait = 1;
        for later in from..until {
            let Ok(Some(order)) = job.stream.ask(later) else { break };
            for iteration in 0..order.iterations() {
                for rank in 0..job.system.ranks() {
                    for sample in order.batch(rank, iteration) {
                        let wait = &mut waits[sample as usize];
                        *wait = (*wait).min(before + iteration);
                    }
                }
            }
            before += order.iterations();
        }
        Self(waits)
    }

    pub fn wait(&self, sample: SampleId) -> Wait {
        self.0.get(sample as usize).copied().unwrap_or(NEVER)
    }
}

/// How often each sample was used so far, where later orders are not known. A sample
/// that was drawn often is likely to be drawn soon.
#[derive(Debug, Default)]
pub struct Uses(Vec<u8>);

impl Uses {
    pub fn count(&mut self, samples: u32, used: impl IntoIterator<Item = SampleId>) {
        self.0.resize(samples as usize, 0);
        let mut full = false;
        for sample in used {
            let uses = &mut self.0[sample as usize];
            *uses = uses.saturating_add(1);
            full |= *uses == u8::MAX;
        }
        if full {
            // Shares stay what they are.
            self.0.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    fn waits(&self, samples: u32) -> Vec<Wait> {
        let wait = |sample: usize| UNKNOWN - self.0.get(sample).map_or(0, |&uses| Wait::from(uses));
        (0..samples as usize).map(wait).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::policy::testing::job;
    use crate::sampler::{AccessStream, EpochList, OrderError, OrderProvider, StreamConfig};

    /// Epoch e uses e and e + 1, and 9 in both iterations.
    #[derive(Debug)]
    struct Lists {
        ahead: bool,
    }

    impl OrderProvider for Lists {
        fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
            assert!(self.ahead || epoch < 2, "an epoch was asked for ahead of its time");
            Ok(Some(EpochList::of_batches([[epoch, 9], [epoch + 1, 9]])))
        }

        fn ahead(&self) -> bool {
            self.ahead
        }
    }

    fn run(ahead: bool, epochs: Option<u32>) -> Job {
        let mut job = job(10, 1, 1, &[40]);
        let order = crate::sampler::Order::Provided(Arc::new(Lists { ahead }));
        let config = job.stream.config().clone();
        job.stream = AccessStream::new(StreamConfig { order, ..config }).unwrap();
        job.epochs = epochs;
        job
    }

    #[test]
    fn waits_are_counted_in_iterations_after_the_next_epoch() {
        // Epochs 2, 3, 4 and 5 use (2, 3), (3, 4), (4, 5) and (5, 6), and 9 always.
        let later = LaterUses::beyond(&run(true, None), 0, &Uses::default());
        let waits = [0, 2, 3, 4, 6, 9].map(|sample| later.wait(sample));
        assert_eq!(waits, [UNKNOWN, 1, 2, 4, 8, 1]);
        let later = LaterUses::beyond(&run(true, Some(4)), 0, &Uses::default());
        assert_eq!([3, 4, 5].map(|sample| later.wait(sample)), [2, 4, NEVER]);
        let later = LaterUses::beyond(&run(true, Some(2)), 0, &Uses::default());
        assert_eq!(later.wait(9), NEVER, "no epoch comes after the next");
    }

    #[test]
    fn where_later_orders_are_not_known_what_was_used_often_waits_least() {
        let mut uses = Uses::default();
        for _ in 0..200 {
            uses.count(10, [3, 3, 5]);
        }
        let later = LaterUses::beyond(&run(false, None), 0, &uses);
        assert!(later.wait(3) < later.wait(5) && later.wait(5) < later.wait(7));
        assert!(later.wait(7) < NEVER, "it may come yet");
    }
}
