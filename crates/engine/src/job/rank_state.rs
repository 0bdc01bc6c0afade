//! The state of one rank of this node.

use std::sync::atomic::{AtomicBool, Ordering};

use belady_base::sync::Arc;

use super::demand::ConsumerDemand;
use super::extras::Extras;
use super::horizon::Horizon;
use crate::metrics::RankMetrics;

/// One rank that a job of this node serves: its consumer's demand, and what its published batches
/// have beside the ring.
#[derive(Debug)]
pub struct RankState {
    pub demand: ConsumerDemand,
    pub horizon: Horizon,
    pub extras: Extras,
    pub metrics: Arc<RankMetrics>,
    is_gone: AtomicBool,
}

impl RankState {
    pub fn new(horizon: Horizon, metrics: Arc<RankMetrics>) -> Self {
        let (demand, extras) = (ConsumerDemand::default(), Extras::default());
        Self { demand, horizon, extras, metrics, is_gone: AtomicBool::new(false) }
    }

    /// The consumer has ended. No more batches are staged for it, and no other rank waits for it.
    pub fn leave(&self) {
        self.is_gone.store(true, Ordering::Release);
        self.wake();
    }

    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Wakes what waits for the consumer, to check whether to stop.
    pub fn wake(&self) {
        self.demand.wake();
        self.horizon.wake();
    }
}
