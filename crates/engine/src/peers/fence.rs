//! The step fence: when a step retires and an epoch begins, see
//! [`belady_peer::protocol::step_fence`].

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, lock};
use belady_peer::NodeId;
use belady_peer::protocol::step_fence::FenceDecision;

use super::Peers;
use crate::metrics::PeerEvent;
use crate::pending::PendingBatch;

/// How often a node that has finished checks whether the others have.
const LEAVING: Duration = Duration::from_millis(5);
/// How often a planner that waits for other nodes checks whether its consumer starves.
const TICK: Duration = Duration::from_millis(50);

impl Peers {
    /// Begins an epoch of so many steps.
    pub fn begin_epoch(&self, steps: u32) {
        lock(&self.status).fence.set_epoch(steps.into());
    }

    /// Counts steps that were over before this node joined the job.
    pub fn skip_steps(&self, steps: u64) {
        lock(&self.status).fence.skip(steps);
    }

    /// Waits until the samples that caches hold for the next epoch may be asked for.
    pub fn wait_to_begin(&self) {
        if !self.in_step {
            return;
        }
        let planned = self.job.planned.load(Ordering::Acquire);
        let since = Instant::now();
        loop {
            let starved = self.job.waited_for(planned + 1).min(since.elapsed());
            let mut guard = lock(&self.status);
            let status = &mut *guard;
            let is_up = |node| status.health.is_up(node);
            if self.job.is_stopping() || status.fence.may_begin(planned, starved, is_up) {
                return;
            }
            drop(self.changed.wait_timeout(guard, TICK).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Notes how many steps a node has filled; returns whether that is new.
    pub(super) fn set_filled(&self, node: NodeId, steps: u64) -> bool {
        let new = lock(&self.status).fence.told(node, steps, self.job.asked_steps());
        if new {
            self.changed.notify_all();
        }
        new
    }

    /// A batch is filled: tells other nodes how many steps are, from the first on.
    pub fn batch_filled(self: &Arc<Self>, batch: &PendingBatch) {
        if !self.in_step {
            return;
        }
        if let Some(steps) = self.queue.filled_through(batch) {
            self.set_filled(self.me, steps);
            self.notify_filled(steps);
        }
    }

    /// Returns whether a filled batch may retire: all nodes that are up have filled that step, or
    /// the consumer has waited for too long.
    pub fn may_retire(&self, batch: &PendingBatch) -> bool {
        if !self.in_step {
            return true;
        }
        let starved = batch.starved();
        let status = &mut *lock(&self.status);
        let is_up = |node| status.health.is_up(node);
        let turn = status.fence.may_end(batch.sequence - 1, starved, is_up);
        if turn == FenceDecision::Hurry {
            self.job.metrics.peers().count(PeerEvent::Hurried, 1);
            tracing::warn!(
                "other ranks are behind for longer than the wait limit; going on without them"
            );
        }
        turn != FenceDecision::Wait
    }

    /// Goes on serving for a while if other nodes have not staged all of the run yet, and need this
    /// node's samples.
    pub fn let_others_finish(&self) {
        let until = self.deadline();
        let epochs = self.job.epochs.begun();
        let behind = || {
            let up: Vec<bool> = (0..self.nodes).map(|node| self.is_up(node)).collect();
            let is_up = |node: NodeId| up[node as usize];
            let is_behind = lock(&self.status).epochs.may_come(epochs, is_up);
            // Other nodes wait for this node's notices as well.
            is_behind || lock(&self.notices).are_due(|node| node != self.me && is_up(node))
        };
        while behind() && Instant::now() < until {
            std::thread::sleep(LEAVING);
        }
    }
}
