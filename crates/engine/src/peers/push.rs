//! Pushes samples to the nodes that are to keep them, or into this node's tiers once there is
//! space.
//!
//! When a step retires, the samples that other nodes keep are copied to the push queue
//! ([`belady_peer::protocol::push_queue`]), since the consumer may write to the batch. If the queue
//! is full, the batch waits, and the ring with it: this back-pressure slows a node that is ahead of
//! the others' space. A sample that this node keeps itself, and has no space for yet, takes the
//! same way.

use std::collections::VecDeque;
use std::time::Duration;

use belady_base::memory::Memory;
use belady_base::sync::{Arc, lock};
use belady_data::source::Version;
use belady_peer::protocol::push_queue::{Admitted, Due, PushQueue, QueuedPush};
use belady_peer::{NodeId, PeerError, Push, PushOutcome, TierId};

use super::Peers;
use crate::metrics::{Moved, PeerEvent};
use crate::pending::{PendingBatch, PlannedPush};
use crate::pool::Worker;

/// Bytes that one call sends.
const CALL: u64 = 4 << 20;

/// The bytes of a queued push.
#[derive(Debug)]
pub struct PushBytes {
    bytes: Memory,
    digest: u64,
    version: i64,
}

/// The pushes that one call sends to a node.
type Pushes = Vec<QueuedPush<Arc<PushBytes>>>;

/// A batch that waits for space in the push queue, and the pushes that are left of it.
#[derive(Debug)]
struct WaitingBatch {
    batch: Arc<PendingBatch>,
    pushes: VecDeque<PlannedPush>,
}

/// The push queue of a job and its timer.
#[derive(Debug)]
pub struct PushState {
    queue: PushQueue<Arc<PushBytes>, WaitingBatch>,
    /// When [`Peers::process_pushes`] runs next, if nothing happens before.
    timer: Option<Duration>,
}

impl PushState {
    pub fn new(nodes: u32, limit: u64, patience: Duration) -> Self {
        Self { queue: PushQueue::new(nodes, limit, patience), timer: None }
    }

    /// Returns whether the queue holds nothing that this epoch leaves. A batch that waits for space
    /// in the queue has not retired, and neither has its epoch.
    pub fn is_done_with(&self, epoch: u32) -> bool {
        self.queue.is_done_with(epoch)
    }

    pub fn close(&mut self) {
        self.queue.clear_waiting();
    }

    /// Returns the calls to make now, and the time to set a timer for, if one is needed.
    fn next(&mut self, now: Duration) -> (Vec<(NodeId, Pushes)>, Option<Duration>) {
        let Due { calls, again } = self.queue.due(now, CALL);
        let sooner = again.filter(|again| self.timer.is_none_or(|timer| *again < timer));
        self.timer = sooner.or(self.timer);
        (calls, sooner)
    }

    /// Resets a timer that was set for this time; returns false if an earlier one has replaced it.
    fn timer_expired(&mut self, at: Duration) -> bool {
        self.timer.take_if(|timer| *timer == at).is_some()
    }
}

impl Peers {
    /// Pushes what a batch leaves for other nodes. When all of it is in the queue, one of the
    /// batch's store tasks ends ([`PendingBatch::end_store_task`]).
    pub fn offer(self: &Arc<Self>, batch: &Arc<PendingBatch>, pushes: Vec<PlannedPush>) {
        let waiting = WaitingBatch { batch: batch.clone(), pushes: pushes.into() };
        lock(&self.push).queue.offer(waiting);
        self.process_pushes();
    }

    /// Keeps a sample here as soon as there is space. The batch does not wait for that: a policy
    /// whose nodes do not retire in step may never have space for it.
    pub fn keep_later(self: &Arc<Self>, batch: &Arc<PendingBatch>, index: u32, tier: TierId) {
        if self.enqueue(batch, PlannedPush { item: index, to: self.me, tier }) {
            self.process_pushes();
        } else {
            self.job.metrics.peers().count(PeerEvent::Dropped, 1);
        }
    }

    /// Moves pushes of a batch to the queue while there is space. The store task ends if all fit.
    fn enqueue_all(&self, mut waiting: WaitingBatch) {
        while let Some(push) = waiting.pushes.pop_front() {
            if waiting.batch.is_bad(push.item) {
                continue;
            }
            if !self.takes_part(push.to) || lock(&self.push).queue.is_late(push.to) {
                self.job.metrics.peers().count(PeerEvent::Dropped, 1);
                continue;
            }
            if !self.enqueue(&waiting.batch, push) {
                waiting.pushes.push_front(push);
                let size = waiting.batch.size(push.item);
                return lock(&self.push).queue.lacks_space(waiting, size);
            }
        }
        waiting.batch.end_store_task();
    }

    /// Copies an item to the queue; returns whether there was space.
    fn enqueue(&self, batch: &PendingBatch, push: PlannedPush) -> bool {
        let PlannedPush { item, to, tier } = push;
        let (sample, version) = (batch.item(item).sample, batch.item(item).version());
        let size = self.job.size(sample);
        if !lock(&self.push).queue.has_space(size) {
            return false;
        }
        let of = Version { changed: version, ..self.job.source.version(sample) };
        let bytes = batch.with_bytes(item, |bytes| PushBytes {
            digest: self.digests.of(sample, of, bytes),
            bytes: bytes.into(),
            version,
        });
        let queued =
            QueuedPush { sample, tier, epoch: batch.epoch(), size, bytes: Arc::new(bytes) };
        lock(&self.push).queue.add(to, queued, self.now()).is_ok()
    }

    /// Drops pushes that cannot be sent, admits batches that there is space for, and sends what can
    /// be sent. Runs after everything that changes the queue: an offer, the end of a call, its own
    /// timer. When it releases the lock for the last time, every push in the queue has a call under
    /// way or the timer ([`belady_peer::protocol::push_queue`]).
    fn process_pushes(self: &Arc<Self>) {
        if self.job.is_stopping() {
            return;
        }
        let mut dropped = 0;
        let (calls, timer) = loop {
            let takes_part: Vec<bool> = (0..self.nodes).map(|node| self.takes_part(node)).collect();
            let now = self.now();
            let mut push = lock(&self.push);
            dropped += push.queue.expire(now, |node| takes_part[node as usize]).len();
            match push.queue.admit(|waiting| waiting.batch.starved()) {
                Some(admitted) => {
                    drop(push);
                    match admitted {
                        Admitted::HasSpace(waiting) => self.enqueue_all(waiting),
                        Admitted::Starves(waiting) => {
                            dropped += waiting.pushes.len();
                            waiting.batch.end_store_task();
                        }
                    }
                }
                None => break push.next(now),
            }
        };
        if let Some(at) = timer {
            let peers = self.clone();
            let later = self.job.task(move |_| {
                let expired = lock(&peers.push).timer_expired(at);
                if expired {
                    peers.process_pushes();
                }
            });
            self.job.lane.delay(at.saturating_sub(self.now()), later);
        }
        self.job.metrics.peers().count(PeerEvent::Dropped, dropped as u64);
        for (node, call) in calls {
            let peers = self.clone();
            let task = self.job.task(move |worker| peers.send(worker, node, &call.into()));
            self.job.lane.submit_first(vec![task]);
        }
        self.notify_epochs_done();
    }

    fn send(
        self: &Arc<Self>,
        worker: &Worker,
        to: NodeId,
        call: &Arc<[QueuedPush<Arc<PushBytes>>]>,
    ) {
        if to == self.me {
            self.put_here(worker, call, vec![]);
        } else {
            self.end_call(to, call, self.put_there(to, call));
        }
    }

    fn end_call(
        self: &Arc<Self>,
        to: NodeId,
        call: &[QueuedPush<Arc<PushBytes>>],
        outcome: Result<Vec<PushOutcome>, PeerError>,
    ) {
        let mut push = lock(&self.push);
        let dropped = match &outcome {
            Ok(taken) => push.queue.taken(to, self.now(), taken),
            Err(_) => push.queue.failed(to, self.now()),
        };
        drop(push);
        match outcome {
            Ok(taken) => {
                let stored =
                    || call.iter().zip(&taken).filter(|(_, taken)| **taken == PushOutcome::Stored);
                let bytes = stored().map(|(queued, _)| queued.size).sum();
                if to != self.me {
                    let samples = stored().count() as u64;
                    self.job.metrics.peers().moved(Moved::Pushed, samples, bytes);
                    self.heard_from(to);
                }
            }
            Err(error) => self.failed(to, &error),
        }
        self.job.metrics.peers().count(PeerEvent::Dropped, dropped.len() as u64);
        self.process_pushes();
    }

    fn put_there(
        &self,
        to: NodeId,
        call: &[QueuedPush<Arc<PushBytes>>],
    ) -> Result<Vec<PushOutcome>, PeerError> {
        let mut pushes: Vec<Push<'_>> = Vec::with_capacity(call.len());
        for &QueuedPush { sample, tier, epoch, bytes: ref pushed, .. } in call {
            let PushBytes { ref bytes, digest, version } = **pushed;
            pushes.push(Push { sample, tier, epoch, digest, version, bytes });
        }
        let deadline = self.deadline_of(call.iter().map(|queued| queued.size).sum());
        self.cluster.transport.put(to, self.channel, &pushes, deadline)
    }

    /// Puts the rest of a call into this node's own tiers. If a tier hangs, its sample is dropped
    /// and another thread goes on.
    fn put_here(
        self: &Arc<Self>,
        worker: &Worker,
        call: &Arc<[QueuedPush<Arc<PushBytes>>]>,
        mut taken: Vec<PushOutcome>,
    ) {
        while let Some(queued) = call.get(taken.len()) {
            let put = || {
                let PushBytes { ref bytes, version, .. } = *queued.bytes;
                self.put(queued.tier, (queued.sample, version), bytes, queued.epoch)
            };
            if !self.job.tiers.may_hang(queued.tier) {
                taken.push(put());
                continue;
            }
            let instead = {
                let (peers, call, mut taken) = (self.clone(), call.clone(), taken.clone());
                taken.push(PushOutcome::Refused);
                move || {
                    let job = peers.job.clone();
                    let rest = job.task(move |worker| peers.put_here(worker, &call, taken));
                    job.lane.submit_first(vec![rest]);
                }
            };
            match self.job.call_tier(worker, queued.tier, instead, put) {
                Some(outcome) => taken.push(outcome),
                None => return,
            }
        }
        self.end_call(self.me, call, Ok(taken));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn queued(sample: u32) -> QueuedPush<Arc<PushBytes>> {
        let bytes = PushBytes { bytes: Memory::zeroed(1), digest: 0, version: 0 };
        QueuedPush { sample, tier: 1, epoch: 0, size: 1, bytes: Arc::new(bytes) }
    }

    #[test]
    fn a_timer_is_set_when_none_is_or_one_that_is_set_for_later() {
        let mut state = PushState::new(3, 100, Duration::from_mins(1));
        for node in [1, 2] {
            state.queue.add(node, queued(node), ms(0)).unwrap();
        }
        let next = |state: &mut PushState, now| {
            let (calls, timer) = state.next(now);
            (calls.len(), timer)
        };
        assert_eq!(next(&mut state, ms(0)), (2, None), "the ends of the calls come first");
        state.queue.taken(1, ms(0), &[PushOutcome::NoSpace]);
        assert_eq!(next(&mut state, ms(0)), (0, Some(ms(1))));
        assert_eq!(next(&mut state, ms(0)), (0, None), "it is set");
        assert!(state.timer_expired(ms(1)) && !state.timer_expired(ms(1)));
        assert_eq!(next(&mut state, ms(10)), (1, None));
        // A node without room is left alone longer the second time.
        state.queue.taken(1, ms(10), &[PushOutcome::NoSpace]);
        assert_eq!(next(&mut state, ms(10)), (0, Some(ms(12))));
        state.queue.taken(2, ms(10), &[PushOutcome::NoSpace]);
        assert_eq!(next(&mut state, ms(10)), (0, Some(ms(11))), "instead of the later one");
        assert!(!state.timer_expired(ms(12)) && state.timer_expired(ms(11)));
    }
}
