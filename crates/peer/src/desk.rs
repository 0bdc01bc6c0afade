//! Where requests of other nodes arrive: each job of this process serves on a channel of its own.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

use belady_data::sync::{Arc, Mutex, lock};

use crate::transport::{Notice, Push, Reply, Request, Taken};
use crate::{NodeId, SampleId};

/// One job of the process, the same number on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(pub u32);

/// A job that serves others.
pub trait Serve: Send + Sync {
    /// Appends replies to a request, in its order: at least one, and no more once they have more
    /// than `limit` bytes together. The caller comes again with the rest.
    fn get(&self, from: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>);

    /// Whether a push may be of such a sample, of so many bytes: memory is taken only for one that may.
    fn wants(&self, _sample: SampleId, _length: u64) -> bool {
        true
    }

    /// Takes samples in.
    fn put(&self, from: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>);

    fn told(&self, from: NodeId, notice: &Notice);

    /// Something was heard of a peer: it is there. A process that was started later has a greater
    /// `incarnation`.
    fn heard_of(&self, _peer: NodeId, _incarnation: u64) {}
}

/// The jobs of this process that serve.
#[derive(Default)]
pub struct Desk {
    jobs: Mutex<HashMap<Channel, Weak<dyn Serve>>>,
    /// Jobs up to this one have begun.
    begun: AtomicU32,
}

/// A job serves as long as this is there.
#[derive(Debug)]
pub struct Serving {
    desk: Arc<Desk>,
    channel: Channel,
}

impl Drop for Serving {
    fn drop(&mut self) {
        lock(&self.desk.jobs).remove(&self.channel);
    }
}

impl Desk {
    pub fn open(self: &Arc<Self>, channel: Channel, job: Weak<dyn Serve>) -> Serving {
        lock(&self.jobs).insert(channel, job);
        self.begun.fetch_max(channel.0 + 1, Ordering::AcqRel);
        Serving { desk: self.clone(), channel }
    }

    fn job(&self, channel: Channel) -> Option<Arc<dyn Serve>> {
        lock(&self.jobs).get(&channel)?.upgrade()
    }

    /// Whether a job that is not there may still begin.
    fn may_begin(&self, channel: Channel) -> bool {
        channel.0 >= self.begun.load(Ordering::Acquire)
    }

    /// As [`Serve::get`]. A job that is not there may be about to begin.
    pub fn get(&self, from: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
        if let Some(job) = self.job(request.channel) {
            return job.get(from, request, limit, replies);
        }
        let may_begin = self.may_begin(request.channel);
        let reply = || if may_begin { Reply::NotYet } else { Reply::NotHere };
        replies.extend(request.asks.iter().map(|_| reply()));
    }

    /// What a push of such a sample, of so many bytes, is told before memory is taken for it; `None`
    /// if the job may want it ([`Serve::wants`]).
    pub fn declines(&self, channel: Channel, sample: SampleId, length: u64) -> Option<Taken> {
        match self.job(channel) {
            Some(job) => (!job.wants(sample, length)).then_some(Taken::Refused),
            None => Some(self.without_job(channel)),
        }
    }

    pub fn put(&self, from: NodeId, channel: Channel, pushes: &[Push<'_>]) -> Vec<Taken> {
        let mut taken = Vec::with_capacity(pushes.len());
        if let Some(job) = self.job(channel) {
            job.put(from, pushes, &mut taken);
        } else {
            taken.resize(pushes.len(), self.without_job(channel));
        }
        taken
    }

    /// What a push to a job that is not there is told.
    fn without_job(&self, channel: Channel) -> Taken {
        if self.may_begin(channel) { Taken::NoRoom } else { Taken::Refused }
    }

    pub fn told(&self, from: NodeId, channel: Channel, notice: &Notice) {
        if let Some(job) = self.job(channel) {
            job.told(from, notice);
        }
    }

    /// A peer has connected, or connected anew: tells all jobs.
    pub fn heard_of(&self, peer: NodeId, incarnation: u64) {
        let jobs: Vec<_> = lock(&self.jobs).values().filter_map(Weak::upgrade).collect();
        for job in jobs {
            job.heard_of(peer, incarnation);
        }
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("jobs", &lock(&self.jobs).len()).finish_non_exhaustive()
    }
}
