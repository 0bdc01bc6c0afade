//! A rank's batches, from an engine of its own process or of its node.

use std::time::Duration;

use belady_data::tier::TierStatus;
use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{
    Batch, Delivery, EngineError, Loader, LoaderMonitor, OnGone, OutputBatch, SharedRegion,
    Transformed,
};

use crate::client::{NodeLoader, NodeMonitor, NodeTransformed};
use crate::spec::TransformRecipe;

/// Delivers the batches of one rank, in order.
#[derive(Debug)]
pub enum RankLoader {
    /// The engine is in this process.
    Embedded(Loader),
    /// The engine serves all ranks of this node.
    Node(NodeLoader),
}

/// Observes a rank's job from any thread.
#[derive(Clone, Debug)]
pub enum RankMonitor {
    /// As [`RankLoader::Embedded`].
    Embedded(LoaderMonitor),
    /// As [`RankLoader::Node`].
    Node(NodeMonitor),
}

/// Delivers transformed batches of one rank, in order.
#[derive(Debug)]
pub enum RankTransformed {
    /// As [`RankLoader::Embedded`].
    Embedded(Transformed),
    /// As [`RankLoader::Node`].
    Node(NodeTransformed),
}

impl RankLoader {
    /// Returns the next batch if it comes within `patience`. Repeated calls count as one wait.
    ///
    /// # Errors
    /// An error about one sample takes the place of its batch; the next call returns the batch
    /// after it. Any other error ends the job.
    pub fn next_batch_timeout(
        &mut self,
        patience: Duration,
    ) -> Result<Delivery<Batch>, EngineError> {
        match self {
            Self::Embedded(loader) => loader.next_batch_timeout(patience),
            Self::Node(loader) => loader.next_batch_timeout(patience),
        }
    }

    /// Returns the memory that worker processes map to read samples, if there is any.
    pub fn shared_memory(&self) -> Option<SharedRegion<'_>> {
        match self {
            Self::Embedded(loader) => loader.shared_memory(),
            Self::Node(loader) => Some(loader.shared_memory()),
        }
    }

    /// Returns a monitor of the job.
    pub fn monitor(&self) -> RankMonitor {
        match self {
            Self::Embedded(loader) => RankMonitor::Embedded(loader.monitor()),
            Self::Node(loader) => RankMonitor::Node(loader.monitor()),
        }
    }

    /// Starts to transform the batches, in the process of the engine.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn transformed(
        self,
        recipe: TransformRecipe,
        on_gone: Option<OnGone>,
    ) -> Result<RankTransformed, EngineError> {
        Ok(match self {
            Self::Embedded(loader) => {
                let mut config = recipe.config();
                config.on_gone = on_gone;
                RankTransformed::Embedded(Transformed::new(loader, config)?)
            }
            Self::Node(loader) => {
                RankTransformed::Node(NodeTransformed::new(loader, &recipe, on_gone)?)
            }
        })
    }
}

impl RankMonitor {
    /// Tells the job that its consumer begins an epoch.
    pub fn begin_epoch(&self, epoch: u32) {
        match self {
            Self::Embedded(monitor) => monitor.begin_epoch(epoch),
            Self::Node(monitor) => monitor.begin_epoch(epoch),
        }
    }

    /// Tells the job that its consumer is done with its epoch.
    pub fn end_epoch(&self) {
        match self {
            Self::Embedded(monitor) => monitor.end_epoch(),
            Self::Node(monitor) => monitor.end_epoch(),
        }
    }

    /// Returns what the job waits for, as words that follow "waits for".
    pub fn waiting_for(&self) -> String {
        match self {
            Self::Embedded(monitor) => monitor.waiting_for(),
            Self::Node(monitor) => monitor.waiting_for(),
        }
    }

    /// Returns the engine's metrics and the status of each tier.
    pub fn figures(&self) -> (MetricsSnapshot, Vec<TierStatus>) {
        match self {
            Self::Embedded(monitor) => (monitor.metrics().snapshot(), monitor.tiers()),
            Self::Node(monitor) => monitor.figures(),
        }
    }
}

impl RankTransformed {
    /// Returns the next batch if it comes within `patience`.
    ///
    /// # Errors
    /// After an error about a sample, the next call returns the batch after it.
    pub fn next_batch_timeout(
        &self,
        patience: Duration,
    ) -> Result<Delivery<OutputBatch>, EngineError> {
        match self {
            Self::Embedded(stage) => stage.next_batch_timeout(patience),
            Self::Node(stage) => stage.next_batch_timeout(patience),
        }
    }

    /// Returns what it waits for, as words that follow "waits for".
    pub fn waiting_for(&self) -> String {
        match self {
            Self::Embedded(stage) => stage.waiting_for(),
            Self::Node(stage) => stage.waiting_for(),
        }
    }

    /// Returns a monitor of the job behind the stage.
    pub fn monitor(&self) -> RankMonitor {
        match self {
            Self::Embedded(stage) => RankMonitor::Embedded(stage.monitor().clone()),
            Self::Node(stage) => RankMonitor::Node(stage.monitor().clone()),
        }
    }

    /// Ends its threads and the job.
    pub fn close(&self) {
        match self {
            Self::Embedded(stage) => stage.close(),
            Self::Node(stage) => stage.close(),
        }
    }
}
