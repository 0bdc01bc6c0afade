//! Dispatches requests of other nodes to the jobs of this process. Each job has a channel.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

use belady_base::sync::{Arc, Mutex, lock};

use crate::message::{Channel, GetReply, GetRequest, Notice, Push, PushOutcome};
use crate::{NodeId, SampleId};

/// A job that handles requests of other nodes.
pub trait Handler: Send + Sync {
    /// Appends replies to a request, in its order: at least one, and no more once they exceed
    /// `limit` bytes. The caller asks again for the rest.
    fn get(
        &self,
        from: NodeId,
        request: &GetRequest<'_>,
        limit: usize,
        replies: &mut Vec<GetReply>,
    );

    /// Returns whether a push of this sample with this length may be accepted. Memory is allocated
    /// only if so.
    fn wants(&self, _sample: SampleId, _length: u64) -> bool {
        true
    }

    /// Stores samples, and appends one outcome for each.
    fn put(&self, from: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>);

    /// Handles a notice.
    fn told(&self, from: NodeId, notice: &Notice);

    /// Called when a peer is seen: it runs. A process that was started later has a greater
    /// `incarnation`.
    fn heard_of(&self, _peer: NodeId, _incarnation: u64) {}
}

/// The jobs of this process that handle requests.
#[derive(Default)]
pub struct Dispatcher {
    jobs: Mutex<HashMap<Channel, Weak<dyn Handler>>>,
    /// The channels below this one have been registered.
    begun: AtomicU32,
}

/// A job's registration; dropping it ends the service.
#[derive(Debug)]
pub struct Registration {
    dispatcher: Arc<Dispatcher>,
    channel: Channel,
}

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&self.dispatcher.jobs).remove(&self.channel);
    }
}

impl Dispatcher {
    /// Registers the handler of a channel.
    pub fn register(self: &Arc<Self>, channel: Channel, job: Weak<dyn Handler>) -> Registration {
        lock(&self.jobs).insert(channel, job);
        self.begun.fetch_max(channel.0 + 1, Ordering::AcqRel);
        Registration { dispatcher: self.clone(), channel }
    }

    fn job(&self, channel: Channel) -> Option<Arc<dyn Handler>> {
        lock(&self.jobs).get(&channel)?.upgrade()
    }

    /// Returns whether an unknown job may still start.
    fn may_begin(&self, channel: Channel) -> bool {
        channel.0 >= self.begun.load(Ordering::Acquire)
    }

    /// As [`Handler::get`]. An unknown job that may still start replies "not yet".
    pub fn get(
        &self,
        from: NodeId,
        request: &GetRequest<'_>,
        limit: usize,
        replies: &mut Vec<GetReply>,
    ) {
        if let Some(job) = self.job(request.channel) {
            return job.get(from, request, limit, replies);
        }
        let may_begin = self.may_begin(request.channel);
        let reply = || if may_begin { GetReply::NotYet } else { GetReply::NotHere };
        replies.extend(request.asks.iter().map(|_| reply()));
    }

    /// Returns the outcome of a push that is refused before memory is allocated for it; `None` if
    /// the job may accept it ([`Handler::wants`]).
    pub fn declines(&self, channel: Channel, sample: SampleId, length: u64) -> Option<PushOutcome> {
        match self.job(channel) {
            Some(job) => (!job.wants(sample, length)).then_some(PushOutcome::Refused),
            None => Some(self.without_job(channel)),
        }
    }

    /// As [`Handler::put`]. An unknown job has no space yet, or refuses.
    pub fn put(&self, from: NodeId, channel: Channel, pushes: &[Push<'_>]) -> Vec<PushOutcome> {
        let mut taken = Vec::with_capacity(pushes.len());
        if let Some(job) = self.job(channel) {
            job.put(from, pushes, &mut taken);
        } else {
            taken.resize(pushes.len(), self.without_job(channel));
        }
        taken
    }

    /// Returns the outcome of a push to a job that is not registered.
    fn without_job(&self, channel: Channel) -> PushOutcome {
        if self.may_begin(channel) { PushOutcome::NoSpace } else { PushOutcome::Refused }
    }

    /// As [`Handler::told`]. An unknown job ignores it.
    pub fn told(&self, from: NodeId, channel: Channel, notice: &Notice) {
        if let Some(job) = self.job(channel) {
            job.told(from, notice);
        }
    }

    /// Tells all jobs that a peer has connected, perhaps after a restart.
    pub fn heard_of(&self, peer: NodeId, incarnation: u64) {
        let jobs: Vec<_> = lock(&self.jobs).values().filter_map(Weak::upgrade).collect();
        for job in jobs {
            job.heard_of(peer, incarnation);
        }
    }
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("jobs", &lock(&self.jobs).len()).finish_non_exhaustive()
    }
}
