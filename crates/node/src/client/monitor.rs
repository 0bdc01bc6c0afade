//! Observes a job of a node engine from any thread.

use belady_base::sync::Arc;
use belady_control::model::Bytes;
use belady_data::tier::TierStatus;
use belady_engine::metrics::MetricsSnapshot;

use super::job::NodeJob;
use crate::message::{FromRank, Query, Reply};

/// Observes a job.
#[derive(Clone, Debug)]
pub struct NodeMonitor(pub(super) Arc<NodeJob>);

impl NodeMonitor {
    /// Tells the job that its consumer begins an epoch.
    pub fn begin_epoch(&self, epoch: u32) {
        self.0.send(&FromRank::BeginEpoch(epoch));
    }

    /// Tells the job that its consumer is done with its epoch.
    pub fn end_epoch(&self) {
        self.0.send(&FromRank::EndEpoch);
    }

    /// Returns what the job waits for, as words that follow "waits for".
    pub fn waiting_for(&self) -> String {
        match self.0.query(Query::WaitingFor) {
            Some(Reply::WaitingFor(text)) => text,
            _ => "the engine of this node's ranks, which does not answer".to_owned(),
        }
    }

    /// Returns the engine's metrics, which count all ranks of the node, and the status of each
    /// tier. They are empty if the engine has ended.
    pub fn figures(&self) -> (MetricsSnapshot, Vec<TierStatus>) {
        match self.0.query(Query::Metrics) {
            Some(Reply::Metrics(metrics, tiers)) => {
                let tier = |tier: crate::message::TierFigures| TierStatus {
                    capacity: Bytes(tier.capacity),
                    used: Bytes(tier.used),
                    samples: tier.samples,
                    degraded: tier.degraded,
                };
                (*metrics, tiers.into_iter().map(tier).collect())
            }
            _ => (MetricsSnapshot::default(), vec![]),
        }
    }
}
