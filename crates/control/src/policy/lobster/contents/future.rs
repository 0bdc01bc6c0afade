//! What the epochs after the current one use: as many of them as memory allows.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::access::epochs_ahead;
use crate::job::Job;
use crate::policy::NodeId;
use crate::sampler::{EpochOrder, SampleId, Scheme};

/// Memory for the epochs that are looked at. Each takes [`PER_SAMPLE`]; the next one is always
/// known.
const WINDOW_BYTES: u64 = 64 << 20;
/// An order, and the position of each sample in it.
const PER_SAMPLE: u64 = 8;
/// More would tell little about orders that use each sample once an epoch.
const MOST_EPOCHS: u64 = 16;

/// No use in the window.
pub const NEVER: u32 = u32::MAX;

/// The epochs after the current one, in order.
#[derive(Debug)]
pub struct Future {
    job: Arc<Job>,
    epochs: VecDeque<EpochUses>,
    /// Where all nodes read everything, one of them is a sample's home and uses it for all.
    all_nodes_read: bool,
}

/// Where the samples of one epoch are used.
#[derive(Debug)]
pub struct EpochUses {
    epoch: u32,
    order: Arc<EpochOrder>,
    /// First position of each sample in the order.
    positions: Vec<u32>,
    /// The epoch's first iteration, counted over all epochs.
    begins: u32,
}

/// The next use of a sample, in iterations over all epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextUse {
    /// [`NEVER`] if the window has none.
    pub at: u32,
    /// Whether it is in the epoch after the current one.
    pub soon: bool,
}

impl EpochUses {
    pub fn new(epoch: u32, order: Arc<EpochOrder>, begins: u32) -> Self {
        Self { epoch, positions: order.positions(), order, begins }
    }

    /// Returns whether the epoch's first use of a sample is at this place.
    pub fn is_first(&self, sample: SampleId, rank: u32, iteration: u32) -> bool {
        let slot = self.order.slot(self.positions[sample as usize]);
        slot.is_some_and(|slot| (slot.rank, slot.iteration) == (rank, iteration))
    }
}

impl Future {
    pub fn new(job: &Arc<Job>) -> Self {
        let all_nodes_read = job.stream.config().scheme == Scheme::Whole;
        Self { job: job.clone(), epochs: VecDeque::new(), all_nodes_read }
    }

    /// How many epochs after the current one are looked at.
    fn window(&self) -> u32 {
        let samples = u64::from(self.job.sizes.len().max(1));
        (WINDOW_BYTES / (samples * PER_SAMPLE)).clamp(1, MOST_EPOCHS) as u32
    }

    /// Moves on to an epoch that begins with that iteration; returns where its samples are used.
    /// `next` is the order of the one after it, if there is one.
    pub fn enter(
        &mut self,
        epoch: u32,
        begins: u32,
        order: &Arc<EpochOrder>,
        next: Option<&Arc<EpochOrder>>,
    ) -> EpochUses {
        let known = self.epochs.pop_front().filter(|uses| uses.epoch == epoch);
        if known.is_none() {
            self.epochs.clear();
        }
        let Some(next) = next else {
            self.epochs.clear();
            return known.unwrap_or_else(|| EpochUses::new(epoch, order.clone(), begins));
        };
        let mut ends = begins + order.iterations();
        if self.epochs.is_empty() {
            self.epochs.push_back(EpochUses::new(epoch + 1, next.clone(), ends));
        }
        if let Some(last) = self.epochs.back() {
            ends = last.begins + last.order.iterations();
        }
        for later in epochs_ahead(self.job.epochs, epoch + 1, self.window()) {
            if self.epochs.back().is_some_and(|last| later <= last.epoch) {
                continue;
            }
            let order = if self.job.stream.ahead() { self.job.stream.ask(later) } else { Ok(None) };
            let Ok(Some(order)) = order else { break };
            let uses = EpochUses::new(later, Arc::new(order), ends);
            ends += uses.order.iterations();
            self.epochs.push_back(uses);
        }
        known.unwrap_or_else(|| EpochUses::new(epoch, order.clone(), begins))
    }

    /// Returns whether the run ends with the current epoch.
    pub fn is_over(&self) -> bool {
        self.epochs.is_empty()
    }

    /// Returns the next use of a sample by a node, or by any node.
    pub fn next_use(&self, sample: SampleId, by: Option<NodeId>) -> NextUse {
        let by = by.filter(|_| !self.all_nodes_read);
        for (ahead, uses) in self.epochs.iter().enumerate() {
            let Some(slot) = uses.order.slot(uses.positions[sample as usize]) else { continue };
            if by.is_none_or(|node| self.job.system.node_of(slot.rank) == node) {
                return NextUse { at: uses.begins + slot.iteration, soon: ahead == 0 };
            }
        }
        NextUse { at: NEVER, soon: false }
    }
}
