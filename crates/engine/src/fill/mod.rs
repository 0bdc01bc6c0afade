//! Fills the slots of a batch: from tiers, from peers, from the source, or by a read that is in
//! flight for another batch.
//!
//! ```text
//! dispatch ──▶ compare ──▶ tier ──▶ siblings ──▶ source ──▶ PendingBatch::filled
//!         └──────────────▶ peer ──▶ siblings ──▶ source
//! ```
//!
//! A sample that is not where the plan says falls through to the right. A filled item is counted in
//! its batch, which goes to the retire stage when it is complete. [`prefetch`] fills tiers in the
//! background.

mod compare;
mod peer;
mod prefetch;
mod siblings;
mod source;
mod source_reads;
mod tier;

use belady_base::sync::Arc;

pub use compare::compare_ahead;
pub use prefetch::PrefetchStage;

use crate::job::{JobContext, ReadRole, Waiter};
use crate::metrics::Served;
use crate::peers::Peers;
use crate::pending::{PendingBatch, SampleOrigin};
use tier::OtherTier;

/// The fill stage of a job.
#[derive(Debug)]
pub struct FillStage {
    pub job: Arc<JobContext>,
    pub peers: Option<Arc<Peers>>,
    pub prefetcher: Arc<PrefetchStage>,
}

impl FillStage {
    /// Starts to fill items of a batch.
    pub fn dispatch(
        self: &Arc<Self>,
        batch: &Arc<PendingBatch>,
        items: impl IntoIterator<Item = u32>,
    ) {
        BatchFill { stage: self.clone(), batch: batch.clone() }.dispatch(items);
    }
}

/// A batch that is being filled.
#[derive(Clone)]
struct BatchFill {
    stage: Arc<FillStage>,
    batch: Arc<PendingBatch>,
}

impl BatchFill {
    fn dispatch(&self, items: impl IntoIterator<Item = u32>) {
        let (batch, job) = (&self.batch, &self.batch.job);
        let (mut from_tiers, mut from_source, mut arrived) = (vec![], vec![], 0);
        let (mut from_peers, mut to_compare) = (vec![], vec![]);
        for index in items {
            let item = batch.item(index);
            let waits = if item.tier().is_none() || item.keep().is_some() {
                !self.may_read(index)
            } else {
                job.in_flight.wait_if_open(item.sample, batch.sequence, || self.waiter(index))
            };
            if waits {
                continue;
            }
            match item.origin {
                SampleOrigin::Tier { .. } if job.source.is_compared(item.sample) => {
                    from_tiers.push(index);
                }
                SampleOrigin::Tier { .. } => to_compare.push(index),
                SampleOrigin::Peer { .. } => from_peers.push(index),
                SampleOrigin::Source if item.leads() && self.stage.prefetcher.has_fetched() => {
                    match tier::fill_from_other(self, index) {
                        OtherTier::Filled => arrived += 1,
                        OtherTier::UnderWay => {}
                        OtherTier::Missing => from_source.push(index),
                    }
                }
                SampleOrigin::Source => from_source.push(index),
            }
        }
        let mut tasks = vec![];
        let at_once = tier::tasks(self, from_tiers, &mut tasks);
        compare::tasks(self, &to_compare, &mut tasks);
        peer::tasks(self, from_peers, &mut tasks);
        source::tasks(self, from_source, &mut tasks);
        if !tasks.is_empty() {
            job.lane.submit_for(batch.rank, tasks);
        }
        if let Some(items) = at_once {
            tier::fill(None, self, &items);
        }
        batch.filled(arrived);
    }

    /// Returns whether a request reads an item itself: as the leader of an in-flight read or alone.
    /// Otherwise the item waits for another batch's read.
    fn may_read(&self, index: u32) -> bool {
        let (batch, item) = (&self.batch, self.batch.item(index));
        let waiter = || self.waiter(index);
        match batch.job.in_flight.lead_or_wait(item.sample, batch.sequence, waiter) {
            ReadRole::Lead => item.set_leads(true),
            ReadRole::Wait => return false,
            ReadRole::Alone => {}
        }
        true
    }

    /// Returns whether bytes of this version count for the batch: not if the file has changed
    /// since, or has to be compared again for the batch's epoch.
    fn accepts(&self, index: u32, version: i64) -> bool {
        let (source, sample) = (&self.batch.job.source, self.batch.item(index).sample);
        source.version(sample).changed == version && source.is_compared(sample)
    }

    fn waiter(&self, index: u32) -> Box<dyn Waiter> {
        Box::new(SlotWaiter { fill: self.clone(), index })
    }
}

/// An item that waits for an in-flight read of its sample.
struct SlotWaiter {
    fill: BatchFill,
    index: u32,
}

impl Waiter for SlotWaiter {
    fn arrived(self: Box<Self>, bytes: &[u8], version: i64) {
        if !self.fill.accepts(self.index, version) {
            return self.failed();
        }
        let (batch, index) = (&self.fill.batch, self.index);
        let item = batch.item(index);
        item.set_version(version);
        if item.slot_is_lost() {
            batch.own(index, Arc::new(bytes.into()));
        } else {
            // SAFETY: the item waits, so no other thread fills it.
            unsafe { batch.slot(index) }.copy_from_slice(bytes);
        }
        batch.job.metrics.loaded(Served::Shared, 1, bytes.len() as u64);
        batch.filled(1);
    }

    fn failed(self: Box<Self>) {
        self.fill.dispatch([self.index]);
    }
}
