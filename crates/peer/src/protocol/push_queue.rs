//! The push queue: samples that other nodes should keep and have not accepted yet.
//!
//! A push is added when the step that used the sample ends. It waits in the queue of its peer, is
//! in flight with its neighbours in one call, and is stored, refused, or lacks space. In the last
//! case the peer's queue pauses and then starts again with the same push, since earlier steps come
//! first. A push that has waited too long is dropped, and the sample's next user reads it from the
//! source.
//!
//! The bytes of all peers' queues together are limited. A batch that lacks space for its pushes
//! waits here, in order. It is *admitted* when there is space, or when its consumer has starved for
//! longer than the patience; in that case the rest of its pushes is dropped.
//!
//! A peer that does not answer must not block the others. A call is *late* when it takes longer
//! than half of the patience, and longer than its bytes take on a slow network: its pushes no
//! longer count and are sent only once, those queued after it are dropped, and none is added until
//! it has ended.
//!
//! The owner services the queue when a batch is offered, when a call ends, and at the time that
//! [`PushQueue::due`] returns: it drops what has expired, packs admitted batches until none is
//! left, and makes the calls that are due. The invariant, which
//! `everything_that_waits_is_serviced_again` tests: *after that, every waiting push or batch has a
//! call in flight or a time at which it is serviced*. So a batch waits no longer than calls take to
//! end and pushes to expire.

use std::collections::VecDeque;
use std::time::Duration;

use crate::message::PushOutcome;
use crate::{NodeId, SampleId, TierId};

/// The first pause of a queue whose peer has no space; it doubles.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(50);
/// The longest time between two services while something waits: a consumer may have begun to
/// starve.
const TICK: Duration = Duration::from_millis(100);

/// A call may take one more second for each of these bytes.
const SLOW: u64 = 16 << 20;

/// The queue takes at most this fraction of the staging buffer's size, or one batch.
const PART: u64 = 4;

/// Returns how many bytes the queue may hold for a staging buffer of `staging` bytes. One batch
/// always fits, however many ranks share a machine's staging memory. A sample that this node should
/// keep itself is dropped if it does not fit.
pub fn capacity(staging: u64, largest_batch: u64) -> u64 {
    (staging / PART).max(largest_batch)
}

/// A sample for another node. `T` holds its bytes and must be cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPush<T> {
    /// The sample.
    pub sample: SampleId,
    /// The tier that the receiver should put it into.
    pub tier: TierId,
    /// The epoch that leaves it.
    pub epoch: u32,
    /// Its size in bytes.
    pub size: u64,
    /// Its bytes.
    pub bytes: T,
}

#[derive(Clone, Debug)]
struct PeerQueue<T> {
    pushes: VecDeque<(Duration, QueuedPush<T>)>,
    /// How many at the front are in a call.
    under_way: usize,
    /// When that call began.
    called: Duration,
    /// The call takes too long.
    is_late: bool,
    rests_until: Duration,
    pause: Duration,
}

impl<T> Default for PeerQueue<T> {
    fn default() -> Self {
        let rests_until = Duration::ZERO;
        let (called, is_late) = (Duration::ZERO, false);
        Self { pushes: VecDeque::new(), under_way: 0, called, is_late, rests_until, pause: FIRST }
    }
}

impl<T> PeerQueue<T> {
    /// Returns the bytes of the call in flight.
    fn called_bytes(&self) -> u64 {
        self.pushes.iter().take(self.under_way).map(|(_, push)| push.size).sum()
    }

    fn rest(&mut self, now: Duration) {
        self.rests_until = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST);
    }
}

/// What the owner of a push queue has to do next.
#[derive(Clone, Debug)]
pub struct Due<T> {
    /// Calls to make, each with its peer. [`PushQueue::taken`] or [`PushQueue::failed`] records the
    /// end of each.
    pub calls: Vec<(NodeId, Vec<QueuedPush<T>>)>,
    /// When to service the queue again, if nothing happens before; `None` if nothing waits.
    pub again: Option<Duration>,
}

/// A batch that need not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted<B> {
    /// There is space for what lacked space.
    HasSpace(B),
    /// Its consumer has starved for it: the rest of its pushes is dropped.
    Starves(B),
}

/// Samples that wait to be pushed. `T` holds a sample's bytes, `B` is a batch that waits for space.
#[derive(Clone, Debug)]
pub struct PushQueue<T, B> {
    queues: Vec<PeerQueue<T>>,
    limit: u64,
    bytes: u64,
    patience: Duration,
    /// Batches that wait, with the bytes for which they lack space.
    waiting: VecDeque<(u64, B)>,
}

impl<T: Clone, B> PushQueue<T, B> {
    /// Creates a queue for a number of nodes. It holds at most `limit` bytes, but always fits one
    /// push; a push that is not stored within `patience` is dropped.
    pub fn new(nodes: u32, limit: u64, patience: Duration) -> Self {
        let queues = (0..nodes).map(|_| PeerQueue::default()).collect();
        Self { queues, limit, bytes: 0, patience, waiting: VecDeque::new() }
    }

    /// Adds a batch with something to push, behind those that were offered before.
    pub fn offer(&mut self, batch: B) {
        self.waiting.push_back((0, batch));
    }

    /// Puts back an admitted batch that lacks space for `bytes`.
    pub fn lacks_space(&mut self, batch: B, bytes: u64) {
        self.waiting.push_front((bytes, batch));
    }

    /// Returns the first waiting batch, if it need not wait any longer. `starved` says how long a
    /// batch's consumer has been idle.
    pub fn admit(&mut self, starved: impl FnOnce(&B) -> Duration) -> Option<Admitted<B>> {
        let (bytes, batch) = self.waiting.front()?;
        if self.has_space(*bytes) {
            return self.waiting.pop_front().map(|(_, batch)| Admitted::HasSpace(batch));
        }
        if starved(batch) >= self.patience {
            return self.waiting.pop_front().map(|(_, batch)| Admitted::Starves(batch));
        }
        None
    }

    /// Returns the batches that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &B> {
        self.waiting.iter().map(|(_, batch)| batch)
    }

    /// Forgets the batches that wait.
    pub fn clear_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Returns whether a push of that size would be accepted.
    pub fn has_space(&self, size: u64) -> bool {
        self.bytes == 0 || self.bytes.saturating_add(size) <= self.limit
    }

    /// Adds a push to its peer's queue, or returns it if there is no space.
    pub fn add(
        &mut self,
        peer: NodeId,
        push: QueuedPush<T>,
        now: Duration,
    ) -> Result<(), QueuedPush<T>> {
        if !self.has_space(push.size) || self.is_late(peer) {
            return Err(push);
        }
        self.bytes += push.size;
        self.queues[peer as usize].pushes.push_back((now, push));
        Ok(())
    }

    /// Returns whether a peer does not answer, and gets no pushes until it does.
    pub fn is_late(&self, peer: NodeId) -> bool {
        self.queues[peer as usize].is_late
    }

    /// Returns the calls to make now, of about `most` bytes each, and when to service the queue
    /// again.
    pub fn due(&mut self, now: Duration, most: u64) -> Due<T> {
        let nodes = 0..self.queues.len() as NodeId;
        let calls = nodes.filter_map(|node| Some((node, self.begin(node, now, most)?))).collect();
        let rested = self.wakes_at().map(|at| at.max(now).min(now + TICK));
        let tick = (!self.waiting.is_empty()).then_some(now + TICK);
        Due { calls, again: rested.into_iter().chain(tick).min() }
    }

    /// Returns whether there is something to send to a peer now.
    fn is_due(&self, peer: NodeId, now: Duration) -> bool {
        let queue = &self.queues[peer as usize];
        queue.under_way == 0 && !queue.pushes.is_empty() && now >= queue.rests_until
    }

    /// Returns the pushes of the next call to a peer, about `most` bytes and at least one, if there
    /// is something to send. Until [`Self::taken`] or [`Self::failed`] records its end there is no
    /// other call.
    fn begin(&mut self, peer: NodeId, now: Duration, most: u64) -> Option<Vec<QueuedPush<T>>> {
        if !self.is_due(peer, now) {
            return None;
        }
        let queue = &mut self.queues[peer as usize];
        let mut bytes = 0;
        let mut call = vec![];
        for (_, push) in &queue.pushes {
            bytes += push.size;
            if !call.is_empty() && bytes > most {
                break;
            }
            call.push(push.clone());
        }
        queue.under_way = call.len();
        queue.called = now;
        Some(call)
    }

    /// Records the answer to a call; returns the pushes that are dropped.
    pub fn taken(
        &mut self,
        peer: NodeId,
        now: Duration,
        outcomes: &[PushOutcome],
    ) -> Vec<QueuedPush<T>> {
        let patience = self.patience;
        let queue = &mut self.queues[peer as usize];
        let was_late = std::mem::take(&mut queue.is_late);
        let called = queue.pushes.drain(..queue.under_way).collect::<Vec<_>>();
        queue.under_way = 0;
        let (mut dropped, mut again) = (vec![], vec![]);
        let (mut stored, mut gone) = (false, 0);
        // Missing outcomes count as no space.
        let outcomes = outcomes.iter().copied().chain(std::iter::repeat(PushOutcome::NoSpace));
        for ((since, push), outcome) in called.into_iter().zip(outcomes) {
            let size = push.size;
            match outcome {
                PushOutcome::NoSpace if now.saturating_sub(since) < patience && !was_late => {
                    again.push((since, push));
                    continue;
                }
                PushOutcome::NoSpace | PushOutcome::Refused => dropped.push(push),
                PushOutcome::Stored => stored = true,
            }
            gone += if was_late { 0 } else { size };
        }
        if stored {
            queue.pause = FIRST;
        }
        if !again.is_empty() {
            queue.rest(now);
        }
        for entry in again.into_iter().rev() {
            queue.pushes.push_front(entry);
        }
        self.bytes -= gone;
        dropped
    }

    /// Records a failed call. It is unknown what the peer has received, so everything is sent again
    /// unless the call was late. Returns the pushes that are dropped.
    pub fn failed(&mut self, peer: NodeId, now: Duration) -> Vec<QueuedPush<T>> {
        let queue = &mut self.queues[peer as usize];
        let called = std::mem::take(&mut queue.under_way);
        queue.rest(now);
        let again = if std::mem::take(&mut queue.is_late) { 0 } else { called };
        queue.pushes.drain(again..called).map(|(_, push)| push).collect()
    }

    /// Drops pushes that have waited too long, and all pushes to peers that do not participate or
    /// do not answer.
    pub fn expire(
        &mut self,
        now: Duration,
        takes_part: impl Fn(NodeId) -> bool,
    ) -> Vec<QueuedPush<T>> {
        let mut dropped = vec![];
        for (peer, queue) in (0..).zip(&mut self.queues) {
            let bytes = queue.called_bytes();
            let in_time = self.patience / 2 + Duration::from_secs(bytes / SLOW);
            if bytes > 0 && !queue.is_late && now.saturating_sub(queue.called) >= in_time {
                queue.is_late = true;
                self.bytes -= bytes;
            }
            let up = takes_part(peer) && !queue.is_late;
            let mut at = queue.under_way;
            while at < queue.pushes.len() {
                if up && now.saturating_sub(queue.pushes[at].0) < self.patience {
                    at += 1;
                } else if let Some((_, push)) = queue.pushes.remove(at) {
                    self.bytes -= push.size;
                    dropped.push(push);
                }
            }
        }
        dropped
    }

    /// Returns when there is something to send or drop next, if nothing happens before.
    fn wakes_at(&self) -> Option<Duration> {
        let waiting = self.queues.iter().filter(|queue| queue.under_way == 0);
        let due = |queue: &PeerQueue<T>| queue.pushes.front().map(|_| queue.rests_until);
        waiting.filter_map(due).min()
    }

    /// Returns whether no push of this epoch or an earlier one waits.
    pub fn is_done_with(&self, epoch: u32) -> bool {
        self.queues.iter().all(|queue| queue.pushes.iter().all(|(_, push)| push.epoch > epoch))
    }

    /// Returns the bytes of all queued pushes, apart from late calls.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether no push is queued.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.pushes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn push(sample: SampleId, size: u64) -> QueuedPush<()> {
        QueuedPush { sample, tier: 1, epoch: sample / 100, size, bytes: () }
    }

    fn push_queue(nodes: u32, limit: u64, patience: Duration) -> PushQueue<(), u32> {
        PushQueue::new(nodes, limit, patience)
    }

    fn samples(pushes: &[QueuedPush<()>]) -> Vec<SampleId> {
        pushes.iter().map(|push| push.sample).collect()
    }

    #[test]
    fn a_push_without_space_is_sent_again_first_after_a_pause() {
        let mut push_queue = push_queue(2, 100, ms(1000));
        for sample in 0..4 {
            push_queue.add(1, push(sample, 10), ms(0)).unwrap();
        }
        assert_eq!(samples(&push_queue.begin(1, ms(0), 30).unwrap()), [0, 1, 2]);
        assert!(push_queue.begin(1, ms(0), 30).is_none(), "one call at a time");
        assert!(push_queue.begin(0, ms(0), 30).is_none());
        let taken = [PushOutcome::NoSpace, PushOutcome::Stored, PushOutcome::NoSpace];
        assert!(push_queue.taken(1, ms(5), &taken).is_empty());
        assert!(push_queue.begin(1, ms(5), 30).is_none() && push_queue.wakes_at() == Some(ms(6)));
        assert_eq!(samples(&push_queue.begin(1, ms(6), 30).unwrap()), [0, 2, 3]);
        push_queue.failed(1, ms(7));
        assert_eq!(samples(&push_queue.begin(1, ms(9), 30).unwrap()), [0, 2, 3]);
        let dropped = push_queue.taken(
            1,
            ms(1000),
            &[PushOutcome::NoSpace, PushOutcome::Refused, PushOutcome::Stored],
        );
        assert_eq!(samples(&dropped), [0, 2]);
        assert!(
            push_queue.is_empty() && push_queue.bytes() == 0 && push_queue.wakes_at().is_none()
        );
    }

    #[test]
    fn a_push_larger_than_the_queue_is_still_sent() {
        let mut push_queue = push_queue(2, 5, ms(1));
        push_queue.add(1, push(7, 10), ms(0)).unwrap();
        assert_eq!(push_queue.add(1, push(8, 1), ms(0)), Err(push(8, 1)));
        assert_eq!(samples(&push_queue.begin(1, ms(0), 1).unwrap()), [7]);
    }

    #[test]
    fn pushes_to_a_peer_that_is_gone_are_dropped_unless_in_flight() {
        let mut push_queue = push_queue(3, 100, ms(50));
        for (peer, sample) in [(1, 1), (1, 2), (2, 103)] {
            push_queue.add(peer, push(sample, 10), ms(0)).unwrap();
        }
        push_queue.begin(1, ms(0), 10);
        assert!(!push_queue.is_done_with(0));
        assert_eq!(samples(&push_queue.expire(ms(1), |peer| peer != 1)), [2]);
        assert_eq!(samples(&push_queue.expire(ms(50), |_| true)), [103]);
        push_queue.taken(1, ms(51), &[PushOutcome::Stored]);
        assert!(push_queue.is_done_with(0) && push_queue.is_empty());
    }

    #[test]
    fn a_peer_that_does_not_answer_takes_no_space_from_others() {
        let mut push_queue = push_queue(3, 50, ms(100));
        for sample in 0..5 {
            push_queue.add(1, push(sample, 10), ms(0)).unwrap();
        }
        assert_eq!(push_queue.begin(1, ms(0), 40).unwrap().len(), 4);
        push_queue.lacks_space(7, 10);
        assert!(push_queue.expire(ms(49), |_| true).is_empty());
        assert_eq!(push_queue.admit(|_| ms(0)), None);
        assert_eq!(samples(&push_queue.expire(ms(50), |_| true)), [4], "those behind the call");
        assert_eq!(push_queue.admit(|_| ms(0)), Some(Admitted::HasSpace(7)));
        assert!(push_queue.is_late(1) && !push_queue.is_late(2));
        assert_eq!(push_queue.add(1, push(8, 1), ms(50)), Err(push(8, 1)));
        push_queue.add(2, push(9, 50), ms(50)).unwrap();
        // The answer arrives after all.
        assert_eq!(
            samples(&push_queue.taken(1, ms(60), &[PushOutcome::Stored, PushOutcome::NoSpace])),
            [1, 2, 3]
        );
        assert!(!push_queue.is_late(1) && push_queue.bytes() == 50);
        push_queue.begin(2, ms(60), 50);
        push_queue.expire(ms(110), |_| true);
        assert_eq!(samples(&push_queue.failed(2, ms(120))), [9]);
        assert!(push_queue.is_empty() && push_queue.bytes() == 0);
    }

    #[test]
    fn an_epoch_is_done_with_when_nothing_of_it_or_before_it_waits() {
        let mut push_queue = push_queue(2, 100, ms(50));
        assert!(push_queue.is_empty() && push_queue.is_done_with(0));
        push_queue.add(1, push(203, 10), ms(0)).unwrap();
        assert!(!push_queue.is_empty());
        assert_eq!(
            [0, 1, 2, 3].map(|epoch| push_queue.is_done_with(epoch)),
            [true, true, false, false]
        );
    }

    #[test]
    fn batches_that_wait_are_forgotten_when_a_job_is_closed() {
        let mut push_queue = push_queue(2, 25, ms(50));
        push_queue.offer(7);
        push_queue.clear_waiting();
        assert_eq!(push_queue.waiting().next(), None);
        assert_eq!(push_queue.admit(|_| LONGEST), None);
    }

    #[test]
    fn a_batch_is_admitted_when_there_is_space_or_its_consumer_starves() {
        let mut push_queue = push_queue(2, 25, ms(50));
        push_queue.add(1, push(0, 20), ms(0)).unwrap();
        push_queue.lacks_space(7, 10);
        push_queue.offer(8);
        assert_eq!(push_queue.admit(|_| ms(49)), None);
        assert_eq!(push_queue.due(ms(0), 100).again, Some(TICK), "a consumer may begin to starve");
        assert_eq!(push_queue.admit(|_| ms(50)), Some(Admitted::Starves(7)));
        assert_eq!(push_queue.admit(|_| ms(0)), Some(Admitted::HasSpace(8)));
        assert_eq!(push_queue.admit(|_| ms(50)), None);
        push_queue.lacks_space(8, 10);
        push_queue.taken(1, ms(1), &[PushOutcome::Stored]);
        assert_eq!(push_queue.admit(|_| ms(0)), Some(Admitted::HasSpace(8)));
        assert_eq!(push_queue.due(ms(1), 100).again, None);
    }

    /// A naive owner of a push queue: what the engine does with threads.
    struct Owner {
        push_queue: PushQueue<(), u32>,
        /// By batch: peers and sizes of the remaining pushes.
        batches: Vec<VecDeque<(NodeId, u64)>>,
        up: [bool; 3],
        calls: [usize; 3],
        again: Option<Duration>,
    }

    impl Owner {
        fn look_after(&mut self, now: Duration) {
            let up = self.up;
            self.push_queue.expire(now, |peer| up[peer as usize]);
            while let Some(admitted) = self.push_queue.admit(|_| Duration::ZERO) {
                let Admitted::HasSpace(batch) = admitted else { continue };
                while let Some((peer, size)) = self.batches[batch as usize].pop_front() {
                    let given = up[peer as usize] && !self.push_queue.is_late(peer);
                    if given && self.push_queue.add(peer, push(0, size), now).is_err() {
                        self.batches[batch as usize].push_front((peer, size));
                        self.push_queue.lacks_space(batch, size);
                        break;
                    }
                }
            }
            let Due { calls, again } = self.push_queue.due(now, 50);
            for (peer, call) in calls {
                self.calls[peer as usize] = call.len();
            }
            self.again = again;
        }

        fn is_looked_after(&self) -> bool {
            self.push_queue.is_empty() && self.push_queue.waiting.is_empty()
                || self.again.is_some()
                || self.calls.iter().any(|&call| call > 0)
        }

        fn call_ends(&mut self, peer: usize, now: Duration, taken: Option<PushOutcome>) -> bool {
            let call = std::mem::take(&mut self.calls[peer]);
            match taken {
                _ if call == 0 => return false,
                Some(taken) => drop(self.push_queue.taken(peer as NodeId, now, &vec![taken; call])),
                None => drop(self.push_queue.failed(peer as NodeId, now)),
            }
            true
        }
    }

    proptest! {
        /// Peers disappear and return; the owner services the queue only when a batch is offered, a
        /// call ends, or it is time.
        #[test]
        fn everything_that_waits_is_serviced_again(
            events in prop::collection::vec((0u8..6, 0u32..3, 1u64..60), 1..120)
        ) {
            let push_queue = push_queue(3, 100, ms(60));
            let (batches, up, calls, again) = (vec![], [true; 3], [0; 3], None);
            let mut owner = Owner { push_queue, batches, up, calls, again };
            let mut now = ms(0);
            for (event, peer, number) in events {
                now += ms(3);
                let at = peer as usize;
                let looks = match event {
                    0 | 1 => {
                        let gifts = (0..number % 6).map(|more| ((peer + more as u32) % 3, number));
                        owner.batches.push(gifts.collect());
                        owner.push_queue.offer(owner.batches.len() as u32 - 1);
                        true
                    }
                    2 => owner.call_ends(at, now, Some(PushOutcome::Stored)),
                    3 => owner.call_ends(at, now, Some(PushOutcome::NoSpace)),
                    4 => {
                        owner.up[at] = false;
                        owner.call_ends(at, now, None)
                    }
                    _ => {
                        owner.up[at] = true;
                        false
                    }
                };
                if looks || owner.again.is_some_and(|again| again <= now) {
                    owner.look_after(now);
                }
                prop_assert!(owner.is_looked_after());
            }
            // From here on no peer has space: pushes expire, and all batches are admitted.
            for _ in 0..10_000 {
                let Some(next) = owner.again.or((owner.calls != [0; 3]).then_some(now)) else { break };
                now = now.max(next);
                for peer in 0..3 {
                    owner.call_ends(peer, now, Some(PushOutcome::NoSpace));
                }
                owner.look_after(now);
            }
            prop_assert!(owner.push_queue.is_empty() && owner.push_queue.waiting.is_empty());
        }

        /// Whatever happens, every push that was added is stored, dropped or queued, once; bytes
        /// add up and stay within the limit.
        #[test]
        fn no_push_is_lost_or_duplicated(
            events in prop::collection::vec((0u8..5, 0u32..3, 1u64..40), 1..200)
        ) {
            let mut push_queue = push_queue(3, 100, ms(300));
            let (mut added, mut ended) = (0u32, 0u32);
            let mut calls: Vec<Option<usize>> = vec![None; 3];
            for (at, (event, peer, number)) in events.into_iter().enumerate() {
                let now = ms(at as u64 * 7);
                match event {
                    0 => added += u32::from(push_queue.add(peer, push(added, number), now).is_ok()),
                    1 => if let Some(call) = push_queue.begin(peer, now, number) {
                        prop_assert!(calls[peer as usize].replace(call.len()).is_none());
                    }
                    2 => if let Some(called) = calls[peer as usize].take() {
                        let outcome = |at: usize| match (number as usize + at) % 3 {
                            0 => PushOutcome::Stored,
                            1 => PushOutcome::NoSpace,
                            _ => PushOutcome::Refused,
                        };
                        let outcomes: Vec<_> = (0..called).map(outcome).collect();
                        let stored = outcomes.iter().filter(|&&taken| taken == PushOutcome::Stored);
                        ended += stored.count() as u32;
                        ended += push_queue.taken(peer, now, &outcomes).len() as u32;
                    }
                    3 => if calls[peer as usize].take().is_some() {
                        ended += push_queue.failed(peer, now).len() as u32;
                    },
                    _ => ended += push_queue.expire(now, |other| other != peer).len() as u32,
                }
                let there = push_queue.queues.iter().flat_map(|queue| &queue.pushes);
                prop_assert_eq!(there.count() as u32, added - ended);
                let in_time = push_queue.queues.iter().filter(|queue| !queue.is_late);
                let there = in_time.flat_map(|queue| &queue.pushes);
                let bytes: u64 = there.map(|(_, push)| push.size).sum();
                prop_assert_eq!(bytes, push_queue.bytes());
                prop_assert!(bytes <= 100);
            }
        }
    }
}
