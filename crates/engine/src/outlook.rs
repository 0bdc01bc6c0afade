//! Looking at a job from outside, also while somebody waits for its next batch.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use belady_data::sync::{Arc, lock};
use belady_data::tier::TierStatus;

use crate::loader::Loader;
use crate::metrics::Metrics;
use crate::run::Run;

/// A view of a job that neither keeps it running nor holds on to what it holds.
#[derive(Clone, Debug)]
pub struct Outlook {
    run: Weak<Run>,
    metrics: Arc<Metrics>,
}

impl Loader {
    pub fn outlook(&self) -> Outlook {
        Outlook { run: Arc::downgrade(&self.run), metrics: self.run.metrics.clone() }
    }
}

impl Outlook {
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Says that the consumer begins an epoch: from now on it may be staged as a whole, and the start of
    /// the one after it, where [`crate::JobConfig::next_epoch`] sets a bound.
    pub fn begin_epoch(&self, epoch: u32) {
        if let Some(run) = self.run.upgrade() {
            run.horizon.begin(epoch);
        }
    }

    /// Says that the consumer is done with its epoch, so that memory which the staging buffer does not need
    /// goes back to the system, where [`crate::JobConfig::next_epoch`] sets a bound.
    pub fn rest(&self) {
        if let Some(run) = self.run.upgrade() {
            run.horizon.rest();
        }
    }

    /// What each cache tier holds; nothing once the job has ended.
    pub fn tiers(&self) -> Vec<TierStatus> {
        self.run.upgrade().map_or_else(Vec::new, |run| run.cache.status())
    }

    /// What the job waits for, in words that go after "waits for".
    pub fn waiting_for(&self) -> String {
        let Some(run) = self.run.upgrade() else { return "nothing: it has ended".to_owned() };
        let first = lock(&run.in_order).front().cloned();
        let Some(parcel) = first else {
            let ahead = run.planned.load(Ordering::Acquire) >= run.asked.count();
            return if ahead {
                "the caller: all that fits into the staging buffer is there".to_owned()
            } else {
                "its next batch to be planned: for its order, or room in the staging buffer"
                    .to_owned()
            };
        };
        let step = parcel.block.step();
        let batch = format!("batch {} of epoch {}", step.iteration, step.epoch);
        match parcel.left() {
            0 => format!("{batch}: its samples are there and being kept"),
            left => {
                let from = run.metrics.snapshot();
                format!(
                    "{left} of {} samples of {batch}; {} reads of the source were tried again \
                     and {} given up so far",
                    parcel.items.len(),
                    from.retries,
                    from.timeouts
                )
            }
        }
    }
}
