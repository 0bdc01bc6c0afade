//! How far the epochs of a job are: begun, retired, compared with the source.

use std::sync::atomic::{AtomicU32, Ordering};

use belady_base::sync::{Mutex, lock};
use belady_data::source::{Begin, Source};

/// The progress of each epoch on this node.
#[derive(Debug)]
pub struct DeliveredEpochs {
    /// The ranks of this node, each of which has the same number of batches.
    ranks: u32,
    /// By epoch that has begun to be staged.
    epochs: Mutex<Vec<EpochBatches>>,
    /// The number of batches of the latest epoch.
    latest: AtomicU32,
    /// The last epoch for which a round of file comparisons has begun.
    compared: AtomicU32,
}

#[derive(Debug, Default)]
struct EpochBatches {
    /// Of each rank.
    all: u32,
    /// Of all ranks.
    retired: u32,
}

impl DeliveredEpochs {
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks,
            epochs: Mutex::default(),
            latest: AtomicU32::new(0),
            compared: AtomicU32::new(0),
        }
    }

    /// Begins the next epoch, of so many batches a rank.
    pub fn begin(&self, batches: u32) {
        lock(&self.epochs).push(EpochBatches { all: batches, retired: 0 });
        self.latest.store(batches, Ordering::Relaxed);
    }

    /// Returns how many epochs have begun to be staged.
    pub fn begun(&self) -> u32 {
        lock(&self.epochs).len() as u32
    }

    /// Returns how many batches a rank has in an epoch; `None` before it has begun to be staged.
    pub fn batches_of(&self, epoch: u32) -> Option<u32> {
        lock(&self.epochs).get(epoch as usize).map(|epoch| epoch.all)
    }

    /// Returns how many batches a rank has in the latest epoch.
    pub fn latest_batches(&self) -> u32 {
        self.latest.load(Ordering::Relaxed)
    }

    /// A batch of one rank has retired.
    pub fn retired(&self, epoch: u32) {
        if let Some(epoch) = lock(&self.epochs).get_mut(epoch as usize) {
            epoch.retired += 1;
        }
    }

    /// Returns whether all batches of an epoch have retired.
    pub fn is_retired(&self, epoch: u32) -> bool {
        let ranks = self.ranks;
        let is_retired = |epoch: &EpochBatches| epoch.retired >= epoch.all.saturating_mul(ranks);
        lock(&self.epochs).get(epoch as usize).is_some_and(is_retired)
    }

    /// Begins a round of comparisons with the source, if an epoch is the first of its number: it
    /// begins to be staged here, or at a node that is a little ahead and asks for samples.
    pub fn begin_comparing(&self, epoch: u32, source: &dyn Source) {
        if self.compared.fetch_max(epoch, Ordering::AcqRel) < epoch {
            source.begin(Begin::Epoch);
        }
    }
}
