//! Dispatches requests of other nodes to the jobs of this process. Each job has a channel.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

use belady_base::sync::{Arc, Mutex, lock};

use crate::message::{Channel, GetReply, GetRequest, Notice, Push, PushOutcome};
use crate::serving_limit::ServingLimit;
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
    serving: ServingLimit,
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

    /// Sets how many requests for samples are handled at once; `None` for as many as come. Replies
    /// are sent outside of that, since a peer that reads slowly must not hold up others.
    pub fn set_serving_threads(&self, threads: Option<u32>) {
        self.serving.set(threads);
    }

    /// Returns how many requests for samples are handled at once, if that is limited.
    pub fn serving_threads(&self) -> Option<u32> {
        self.serving.get()
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
            let _turn = self.serving.begin();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::message::Ask;

    /// Counts the requests that it handles at once.
    #[derive(Default)]
    struct Counting {
        now: AtomicU32,
        most: AtomicU32,
        go_on: AtomicBool,
    }

    impl Handler for Counting {
        fn get(&self, _: NodeId, _: &GetRequest<'_>, _: usize, replies: &mut Vec<GetReply>) {
            let now = self.now.fetch_add(1, Ordering::AcqRel) + 1;
            self.most.fetch_max(now, Ordering::AcqRel);
            while !self.go_on.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            self.now.fetch_sub(1, Ordering::AcqRel);
            replies.push(GetReply::NotHere);
        }

        fn put(&self, _: NodeId, _: &[Push<'_>], _: &mut Vec<PushOutcome>) {}

        fn told(&self, _: NodeId, _: &Notice) {
            self.go_on.store(true, Ordering::Release);
        }
    }

    #[test]
    fn requests_for_samples_are_limited_and_notices_never_wait() {
        let (dispatcher, job) = (Arc::new(Dispatcher::default()), Arc::new(Counting::default()));
        let handler: Arc<dyn Handler> = job.clone();
        let _registered = dispatcher.register(Channel(0), Arc::downgrade(&handler));
        dispatcher.set_serving_threads(Some(3));
        let asks = [Ask { sample: 1, last_use: false }];
        std::thread::scope(|scope| {
            for from in 0..8 {
                let (dispatcher, asks) = (&dispatcher, &asks);
                scope.spawn(move || {
                    let mut replies = vec![];
                    let request = GetRequest { channel: Channel(0), epoch: 0, asks };
                    dispatcher.get(from, &request, usize::MAX, &mut replies);
                    assert_eq!(replies.len(), 1);
                });
            }
            while job.now.load(Ordering::Acquire) < 3 {
                std::thread::yield_now();
            }
            dispatcher.told(0, Channel(0), &Notice::Left);
        });
        assert_eq!(job.most.load(Ordering::Acquire), 3);
    }
}
