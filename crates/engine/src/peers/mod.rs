//! The other nodes of a job.
//!
//! The policy says which samples of a batch another node has ([`crate::fill`] gets them) and which
//! another node keeps afterwards ([`push`]). Other nodes get samples from this node and push
//! samples to it ([`serve`]). Steps retire in the same order on all nodes, and no sooner than all
//! nodes have filled them ([`fence`]): a plan gives the space of what one node has used to what
//! another one keeps. [`notices`] tells other nodes how far this node is. [`start`] makes sure that
//! all nodes run the same job.
//!
//! Nothing here can fail a batch. A sample that a peer does not give in time is read from the
//! source, and one that no node keeps is read from there in the next epoch.

mod claims;
mod digests;
mod fence;
mod gate;
mod notices;
mod push;
mod repeats;
mod serve;
pub mod start;
#[cfg(test)]
mod tests;
mod tier_workers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belady_base::SampleId;
use belady_base::sync::{Arc, Condvar, Mutex, MutexGuard, lock};
use belady_control::bits::Bits;
use belady_peer::protocol::claims::Claims;
use belady_peer::protocol::epoch_progress::FinishedEpochs;
use belady_peer::protocol::health::Health;
use belady_peer::protocol::retry::{Patience, RetryDecision};
use belady_peer::protocol::step_fence::StepFence;
use belady_peer::{
    Answer, Bulk, Channel, Cluster, NodeId, PeerError, Registration, RendezvousError, share,
};

pub use self::gate::PeerRequest;
pub use self::serve::RequestHandler;

use self::digests::Digests;
use self::gate::RequestGate;
use self::notices::Notices;
use self::push::PushState;
use self::repeats::StagedOrders;
use self::tier_workers::TierWorkers;
use crate::EngineError;
use crate::config::PeerPatience;
use crate::job::JobContext;
use crate::metrics::PeerEvent;
use crate::pending::{BatchItem, PendingBatch, PendingQueue, RetireStage};

/// The slowest progress, in bytes a second, of a call whose progress is not observable: a network
/// of 1 Gbit/s that a hundred calls share.
const SLOWEST: f64 = 1e6;

/// The other nodes of a job, as this node sees them.
///
/// None of its locks is taken while another one is held, except `push` within `notices`.
#[derive(Debug)]
pub struct Peers {
    job: Arc<JobContext>,
    queue: Arc<PendingQueue>,
    pub cluster: Arc<Cluster>,
    pub channel: Channel,
    pub me: NodeId,
    nodes: u32,
    limits: PeerPatience,
    /// Nodes put samples into each other's tiers, and retire steps together.
    pub in_step: bool,
    /// This job is ending: peers that disappear are not reported.
    is_leaving: AtomicBool,
    started: Instant,
    status: Mutex<PeerStatus>,
    /// Signals that `status` has changed.
    changed: Condvar,
    /// By node.
    gates: Vec<Mutex<RequestGate>>,
    push: Mutex<PushState>,
    notices: Mutex<Notices>,
    /// By tier, from 1 on: the epochs until which a plan counts on what lies there.
    claims: Vec<Mutex<Claims>>,
    pub digests: Digests,
    pub orders: StagedOrders,
    /// By node, the samples in its caches when the job began; empty if all were cold.
    warm: Vec<Bits>,
    tier_workers: TierWorkers,
    /// What this node's caches held when the job began, until all others have fetched it.
    bulk: Mutex<Option<Bulk>>,
}

/// What the other nodes have reported.
#[derive(Debug)]
struct PeerStatus {
    health: Health,
    epochs: FinishedEpochs,
    fence: StepFence,
    /// By node: the latest incarnation; 0 for none.
    incarnations: Vec<u64>,
}

impl PeerStatus {
    /// Returns whether a node does its part of the plan: it is up and in step.
    fn takes_part(&self, node: NodeId) -> bool {
        self.health.is_up(node) && self.fence.is_in_step(node)
    }

    /// Notes a node's incarnation. A new one has begun with the first step.
    fn seen(&mut self, node: NodeId, incarnation: u64) {
        let known = &mut self.incarnations[node as usize];
        if *known != 0 && *known < incarnation {
            self.health.restarted(node);
            self.fence.restarted(node);
            self.epochs.restarted(node);
        }
        *known = incarnation.max(*known);
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        start::release(&self.cluster, self.channel);
    }
}

impl Peers {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn deadline(&self) -> Instant {
        self.deadline_of(0)
    }

    /// Returns the deadline of a call that moves so many bytes.
    pub fn deadline_of(&self, bytes: u64) -> Instant {
        let unseen = if self.cluster.transport.sees_progress() { 0 } else { bytes };
        let moving = Duration::from_secs_f64(unseen as f64 / SLOWEST);
        Instant::now() + self.limits.answer + moving
    }

    /// Returns how long a peer waits for a call of a disk on this node.
    fn disk_patience(&self) -> Duration {
        self.limits.answer / 2
    }

    fn patience(&self) -> Patience {
        lock(&self.status).fence.patience()
    }

    /// Serves other nodes from now on. Returns when all nodes serve, because a notice to a node
    /// that does not serve yet is lost.
    pub fn open(
        self: &Arc<Self>,
        retire: Arc<dyn RetireStage>,
    ) -> Result<(Arc<RequestHandler>, Registration), EngineError> {
        let handler = Arc::new(RequestHandler::new(self.clone(), retire));
        let weak = Arc::downgrade(&handler);
        self.job.metrics.peers().nodes(u64::from(self.nodes) - 1, 0);
        let serving = self.cluster.transport.dispatcher().register(self.channel, weak);
        match share(&*self.cluster.rendezvous, &start::serves(self.channel), Ok(&[])) {
            Ok(_) | Err(RendezvousError::Over(_)) => {}
            Err(error) => return Err(error.into()),
        }
        drop(lock(&self.bulk).take());
        Ok((handler, serving))
    }

    /// A sample was read from the source, so its digest may be another one.
    pub fn read_from_source(&self, sample: SampleId) {
        self.digests.forget(sample);
    }

    /// Drops pending batches, which refer to the job.
    pub fn close(&self) {
        lock(&self.push).close();
        for gate in &self.gates {
            lock(gate).close();
        }
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + use<> {
        let me = self.me;
        (0..self.nodes).filter(move |&node| node != me)
    }

    /// Returns the gate of the requests to a peer.
    pub fn gate(&self, peer: NodeId) -> Option<MutexGuard<'_, RequestGate>> {
        self.gates.get(peer as usize).map(lock)
    }

    pub fn may_ask(&self, peer: NodeId) -> bool {
        let now = self.now();
        lock(&self.status).health.may_ask(peer, now)
    }

    fn is_up(&self, peer: NodeId) -> bool {
        lock(&self.status).health.is_up(peer)
    }

    /// Returns whether a node does its part of the plan, so that samples are pushed to it and
    /// expected from it.
    pub fn takes_part(&self, node: NodeId) -> bool {
        lock(&self.status).takes_part(node)
    }

    /// Returns whether a sample that an epoch uses may still be pushed to its place.
    pub fn may_come(&self, epoch: u32) -> bool {
        let status = lock(&self.status);
        self.in_step && status.epochs.may_come(epoch, |node| status.takes_part(node))
    }

    /// Returns whether an epoch is over on this node.
    fn is_over(&self, epoch: u32) -> bool {
        lock(&self.status).epochs.is_over(self.me, epoch)
    }

    /// Decides what to do with an item that is not where it should be, after the `asked`th request.
    pub fn after_miss(
        &self,
        batch: &PendingBatch,
        item: &BatchItem,
        (answer, asked): (Answer, u32),
        starved: Duration,
    ) -> RetryDecision {
        let after = |answer, asked| self.patience().after(answer, asked, starved);
        if answer != Answer::NotHere {
            return after(answer, asked);
        }
        match self.may_repeat(batch, item, asked) {
            Some(pause) => after(Answer::NotYet, pause),
            None => RetryDecision::Elsewhere,
        }
    }

    /// A peer has ended its job; that is no failure.
    fn has_left(&self, peer: NodeId) {
        let mut status = lock(&self.status);
        status.health.left(peer);
        tracing::info!(peer, "a peer has ended its job");
        self.count_nodes(&status);
    }

    /// A call to a peer has failed.
    pub fn failed(&self, peer: NodeId, error: &PeerError) {
        self.job.metrics.peers().count(PeerEvent::Failed, 1);
        let now = self.now();
        let mut status = lock(&self.status);
        let is_news = status.health.failed(peer, now, !error.can_be_a_farewell());
        if self.is_leaving.load(Ordering::Relaxed) {
            return;
        }
        if is_news {
            tracing::warn!(
                peer,
                %error,
                "a peer is not used until it is back; its samples are read elsewhere"
            );
        }
        self.count_nodes(&status);
    }

    fn count_nodes(&self, status: &PeerStatus) {
        let (others, down) = (u64::from(self.nodes) - 1, status.health.down().count() as u64);
        self.job.metrics.peers().nodes(others, down);
    }

    /// Chooses one of several holders of a sample: one that takes part, is near, and has the fewest
    /// requests of this node.
    pub fn best_of(&self, holders: &[NodeId], sample: SampleId) -> Option<NodeId> {
        let others = holders.iter().copied().filter(|&peer| peer != self.me);
        others.min_by_key(|&peer| {
            let near = self.cluster.transport.is_near(peer);
            let requests = lock(&self.gates[peer as usize]).len();
            (!self.takes_part(peer), !near, requests, self.rotation(peer, sample))
        })
    }

    /// Returns a rank that differs from sample to sample, so that equal peers share the requests.
    fn rotation(&self, peer: NodeId, sample: SampleId) -> u32 {
        peer.wrapping_add(sample) % self.nodes
    }

    /// Returns a peer that had a sample in its caches when the job began, a near one if there is
    /// one.
    pub fn warm_at(&self, sample: SampleId) -> Option<NodeId> {
        if self.warm.is_empty() {
            return None;
        }
        let has = |&peer: &NodeId| self.warm[peer as usize].contains(sample) && self.is_up(peer);
        let holders = self.others().filter(has);
        let near = |peer| self.cluster.transport.is_near(peer);
        holders.min_by_key(|&peer| (!near(peer), self.rotation(peer, sample)))
    }
}
