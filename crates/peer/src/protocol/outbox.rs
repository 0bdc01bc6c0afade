//! What this node is to give others to keep, and they have not taken yet.
//!
//! The way of a parcel: it is added when the step that used the sample ends, waits in the line of its
//! peer, is under way with its neighbours in one call, and is taken, refused, or told that there is no
//! room yet. Then the line pauses and begins again with the same parcel: earlier steps come first. One
//! that has waited too long is dropped; its next user reads the sample from the source.
//!
//! Room is limited by bytes over all peers. A batch that lacks room for what it leaves waits here, in
//! order, and is *admitted* when there is room, or when its consumer has starved for longer than the
//! patience: then what is left of it is let go.
//!
//! A peer that does not answer must not keep the room from the others. A call that takes longer than half of
//! the patience, and than its bytes take on a slow network, is *late*: its parcels do not count any more and
//! are sent once, those behind it are dropped, and none is added until it has ended.
//!
//! The owner of all this looks after it when a batch is offered, when a call ends, and at the time that
//! [`Outbox::due`] names: it drops what has expired, packs the batches that are admitted until none is,
//! and then makes the calls that are due. The invariant, which `whatever_waits_is_looked_after_again`
//! tests: *after that, a parcel or a batch that waits has a call under way or a time to be looked at*.
//! So a batch waits no longer than calls take to end and parcels to expire.

use std::collections::VecDeque;
use std::time::Duration;

use crate::transport::Taken;
use crate::{NodeId, SampleId, TierId};

/// First pause of a line whose peer has no room; doubled each time.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(50);
/// However full it is, what waits is looked at as often as this: a consumer may have begun to starve.
const TICK: Duration = Duration::from_millis(100);

/// A call with large samples is given a second more for each of these bytes.
const SLOW: u64 = 16 << 20;

/// What waits takes at most this part of the staging buffer's size, or a batch.
const PART: u64 = 4;

/// Bytes that an outbox may hold beside a staging buffer of so many, whose largest batch has so many:
/// all of one batch always fits, however many ranks a machine's staging is divided among. What a node
/// keeps itself is let go if it does not fit.
pub fn room(staging: u64, largest_batch: u64) -> u64 {
    (staging / PART).max(largest_batch)
}

/// A sample for another node. `T` is how its bytes are held: cloning it must be cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel<T> {
    pub sample: SampleId,
    pub tier: TierId,
    /// The epoch that leaves it.
    pub epoch: u32,
    pub size: u64,
    pub bytes: T,
}

#[derive(Clone, Debug)]
struct Line<T> {
    parcels: VecDeque<(Duration, Parcel<T>)>,
    /// So many at the front are in a call.
    under_way: usize,
    /// When that began.
    called: Duration,
    /// It takes too long.
    is_late: bool,
    rests_until: Duration,
    pause: Duration,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        let rests_until = Duration::ZERO;
        let (called, is_late) = (Duration::ZERO, false);
        Self { parcels: VecDeque::new(), under_way: 0, called, is_late, rests_until, pause: FIRST }
    }
}

impl<T> Line<T> {
    /// Bytes of the call that is under way.
    fn called_bytes(&self) -> u64 {
        self.parcels.iter().take(self.under_way).map(|(_, parcel)| parcel.size).sum()
    }

    fn rest(&mut self, now: Duration) {
        self.rests_until = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST);
    }
}

/// What an outbox needs next.
#[derive(Clone, Debug)]
pub struct Due<T> {
    /// Calls to make, each with its peer. The end of each is told by [`Outbox::taken`] or
    /// [`Outbox::failed`].
    pub calls: Vec<(NodeId, Vec<Parcel<T>>)>,
    /// When to look after it again, if nothing happens before; `None` if nothing waits.
    pub again: Option<Duration>,
}

/// A batch that need not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted<B> {
    /// There is room for what it lacked room for.
    HasRoom(B),
    /// Its consumer has starved for it: what is left of it is let go.
    Starves(B),
}

/// `T` is how a parcel's bytes are held, `B` a batch that waits for room.
#[derive(Clone, Debug)]
pub struct Outbox<T, B> {
    lines: Vec<Line<T>>,
    limit: u64,
    bytes: u64,
    patience: Duration,
    /// Batches that wait for room, with the bytes of what they have none for.
    waiting: VecDeque<(u64, B)>,
}

impl<T: Clone, B> Outbox<T, B> {
    /// For so many nodes. It holds at most `limit` bytes, but one parcel always fits; a parcel that
    /// was not taken within `patience` is dropped.
    pub fn new(nodes: u32, limit: u64, patience: Duration) -> Self {
        let lines = (0..nodes).map(|_| Line::default()).collect();
        Self { lines, limit, bytes: 0, patience, waiting: VecDeque::new() }
    }

    /// A batch has something to give. It waits behind those that were offered before.
    pub fn offer(&mut self, batch: B) {
        self.waiting.push_back((0, batch));
    }

    /// A batch that was admitted lacks room for so many bytes.
    pub fn lacks_room(&mut self, batch: B, bytes: u64) {
        self.waiting.push_front((bytes, batch));
    }

    /// The first of the batches that wait, if it need not do so any longer. `starved`: how long a
    /// batch's consumer has had nothing else to do.
    pub fn admit(&mut self, starved: impl FnOnce(&B) -> Duration) -> Option<Admitted<B>> {
        let (bytes, batch) = self.waiting.front()?;
        if self.has_room(*bytes) {
            return self.waiting.pop_front().map(|(_, batch)| Admitted::HasRoom(batch));
        }
        if starved(batch) >= self.patience {
            return self.waiting.pop_front().map(|(_, batch)| Admitted::Starves(batch));
        }
        None
    }

    /// The batches that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &B> {
        self.waiting.iter().map(|(_, batch)| batch)
    }

    /// Forgets the batches that wait.
    pub fn clear_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Whether a parcel of that size would be taken in.
    pub fn has_room(&self, size: u64) -> bool {
        self.bytes == 0 || self.bytes.saturating_add(size) <= self.limit
    }

    /// Puts a parcel into the line of its peer, or gives it back if there is no room.
    pub fn add(&mut self, peer: NodeId, parcel: Parcel<T>, now: Duration) -> Result<(), Parcel<T>> {
        if !self.has_room(parcel.size) || self.is_late(peer) {
            return Err(parcel);
        }
        self.bytes += parcel.size;
        self.lines[peer as usize].parcels.push_back((now, parcel));
        Ok(())
    }

    /// Whether a peer does not answer, and is given nothing until it does.
    pub fn is_late(&self, peer: NodeId) -> bool {
        self.lines[peer as usize].is_late
    }

    /// The calls to make now, of about `most` bytes each, and when to look again.
    pub fn due(&mut self, now: Duration, most: u64) -> Due<T> {
        let nodes = 0..self.lines.len() as NodeId;
        let calls = nodes.filter_map(|node| Some((node, self.begin(node, now, most)?))).collect();
        let rested = self.wakes_at().map(|at| at.max(now).min(now + TICK));
        let tick = (!self.waiting.is_empty()).then_some(now + TICK);
        Due { calls, again: rested.into_iter().chain(tick).min() }
    }

    /// Whether there is something to send to a peer now.
    fn is_due(&self, peer: NodeId, now: Duration) -> bool {
        let line = &self.lines[peer as usize];
        line.under_way == 0 && !line.parcels.is_empty() && now >= line.rests_until
    }

    /// The parcels of the next call to a peer, about `most` bytes and at least one, if there is
    /// something to send. The call's end is told by [`Self::taken`] or [`Self::failed`]; until then
    /// there is no other.
    fn begin(&mut self, peer: NodeId, now: Duration, most: u64) -> Option<Vec<Parcel<T>>> {
        if !self.is_due(peer, now) {
            return None;
        }
        let line = &mut self.lines[peer as usize];
        let mut bytes = 0;
        let mut call = vec![];
        for (_, parcel) in &line.parcels {
            bytes += parcel.size;
            if !call.is_empty() && bytes > most {
                break;
            }
            call.push(parcel.clone());
        }
        line.under_way = call.len();
        line.called = now;
        Some(call)
    }

    /// A peer has answered a call; gives back what is dropped.
    pub fn taken(&mut self, peer: NodeId, now: Duration, outcomes: &[Taken]) -> Vec<Parcel<T>> {
        let patience = self.patience;
        let line = &mut self.lines[peer as usize];
        let was_late = std::mem::take(&mut line.is_late);
        let called = line.parcels.drain(..line.under_way).collect::<Vec<_>>();
        line.under_way = 0;
        let (mut dropped, mut again) = (vec![], vec![]);
        let (mut stored, mut gone) = (false, 0);
        // A peer that says less than it was asked has not spoken of the rest.
        let outcomes = outcomes.iter().copied().chain(std::iter::repeat(Taken::NoRoom));
        for ((since, parcel), outcome) in called.into_iter().zip(outcomes) {
            let size = parcel.size;
            match outcome {
                Taken::NoRoom if now.saturating_sub(since) < patience && !was_late => {
                    again.push((since, parcel));
                    continue;
                }
                Taken::NoRoom | Taken::Refused => dropped.push(parcel),
                Taken::Stored => stored = true,
            }
            gone += if was_late { 0 } else { size };
        }
        if stored {
            line.pause = FIRST;
        }
        if !again.is_empty() {
            line.rest(now);
        }
        for entry in again.into_iter().rev() {
            line.parcels.push_front(entry);
        }
        self.bytes -= gone;
        dropped
    }

    /// A call has failed: what the peer has received is unknown, so all of it is sent again, unless it was
    /// late; gives back what is dropped.
    pub fn failed(&mut self, peer: NodeId, now: Duration) -> Vec<Parcel<T>> {
        let line = &mut self.lines[peer as usize];
        let called = std::mem::take(&mut line.under_way);
        line.rest(now);
        let again = if std::mem::take(&mut line.is_late) { 0 } else { called };
        line.parcels.drain(again..called).map(|(_, parcel)| parcel).collect()
    }

    /// Drops what has waited too long, and everything for peers that do not take part or do not answer.
    pub fn expire(&mut self, now: Duration, takes_part: impl Fn(NodeId) -> bool) -> Vec<Parcel<T>> {
        let mut dropped = vec![];
        for (peer, line) in (0..).zip(&mut self.lines) {
            let bytes = line.called_bytes();
            let in_time = self.patience / 2 + Duration::from_secs(bytes / SLOW);
            if bytes > 0 && !line.is_late && now.saturating_sub(line.called) >= in_time {
                line.is_late = true;
                self.bytes -= bytes;
            }
            let up = takes_part(peer) && !line.is_late;
            let mut at = line.under_way;
            while at < line.parcels.len() {
                if up && now.saturating_sub(line.parcels[at].0) < self.patience {
                    at += 1;
                } else if let Some((_, parcel)) = line.parcels.remove(at) {
                    self.bytes -= parcel.size;
                    dropped.push(parcel);
                }
            }
        }
        dropped
    }

    /// When there is something to send next, or to drop, if nothing happens before.
    fn wakes_at(&self) -> Option<Duration> {
        let waiting = self.lines.iter().filter(|line| line.under_way == 0);
        let due = |line: &Line<T>| line.parcels.front().map(|_| line.rests_until);
        waiting.filter_map(due).min()
    }

    /// Whether nothing waits that this epoch leaves, or one before it.
    pub fn is_done_with(&self, epoch: u32) -> bool {
        self.lines.iter().all(|line| line.parcels.iter().all(|(_, parcel)| parcel.epoch > epoch))
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.parcels.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn parcel(sample: SampleId, size: u64) -> Parcel<()> {
        Parcel { sample, tier: 1, epoch: sample / 100, size, bytes: () }
    }

    fn outbox(nodes: u32, limit: u64, patience: Duration) -> Outbox<(), u32> {
        Outbox::new(nodes, limit, patience)
    }

    fn samples(parcels: &[Parcel<()>]) -> Vec<SampleId> {
        parcels.iter().map(|parcel| parcel.sample).collect()
    }

    #[test]
    fn what_finds_no_room_is_sent_again_first_after_a_pause() {
        let mut outbox = outbox(2, 100, ms(1000));
        for sample in 0..4 {
            outbox.add(1, parcel(sample, 10), ms(0)).unwrap();
        }
        assert_eq!(samples(&outbox.begin(1, ms(0), 30).unwrap()), [0, 1, 2]);
        assert!(outbox.begin(1, ms(0), 30).is_none(), "one call at a time");
        assert!(outbox.begin(0, ms(0), 30).is_none());
        let taken = [Taken::NoRoom, Taken::Stored, Taken::NoRoom];
        assert!(outbox.taken(1, ms(5), &taken).is_empty());
        assert!(outbox.begin(1, ms(5), 30).is_none() && outbox.wakes_at() == Some(ms(6)));
        assert_eq!(samples(&outbox.begin(1, ms(6), 30).unwrap()), [0, 2, 3]);
        outbox.failed(1, ms(7));
        assert_eq!(samples(&outbox.begin(1, ms(9), 30).unwrap()), [0, 2, 3]);
        let dropped = outbox.taken(1, ms(1000), &[Taken::NoRoom, Taken::Refused, Taken::Stored]);
        assert_eq!(samples(&dropped), [0, 2]);
        assert!(outbox.is_empty() && outbox.bytes() == 0 && outbox.wakes_at().is_none());
    }

    #[test]
    fn a_parcel_larger_than_the_outbox_still_goes() {
        let mut outbox = outbox(2, 5, ms(1));
        outbox.add(1, parcel(7, 10), ms(0)).unwrap();
        assert_eq!(outbox.add(1, parcel(8, 1), ms(0)), Err(parcel(8, 1)));
        assert_eq!(samples(&outbox.begin(1, ms(0), 1).unwrap()), [7]);
    }

    #[test]
    fn what_is_for_a_peer_that_is_gone_is_dropped_unless_it_is_under_way() {
        let mut outbox = outbox(3, 100, ms(50));
        for (peer, sample) in [(1, 1), (1, 2), (2, 103)] {
            outbox.add(peer, parcel(sample, 10), ms(0)).unwrap();
        }
        outbox.begin(1, ms(0), 10);
        assert!(!outbox.is_done_with(0));
        assert_eq!(samples(&outbox.expire(ms(1), |peer| peer != 1)), [2]);
        assert_eq!(samples(&outbox.expire(ms(50), |_| true)), [103]);
        outbox.taken(1, ms(51), &[Taken::Stored]);
        assert!(outbox.is_done_with(0) && outbox.is_empty());
    }

    #[test]
    fn a_peer_that_does_not_answer_keeps_no_room_from_others() {
        let mut outbox = outbox(3, 50, ms(100));
        for sample in 0..5 {
            outbox.add(1, parcel(sample, 10), ms(0)).unwrap();
        }
        assert_eq!(outbox.begin(1, ms(0), 40).unwrap().len(), 4);
        outbox.lacks_room(7, 10);
        assert!(outbox.expire(ms(49), |_| true).is_empty());
        assert_eq!(outbox.admit(|_| ms(0)), None);
        assert_eq!(samples(&outbox.expire(ms(50), |_| true)), [4], "those behind the call");
        assert_eq!(outbox.admit(|_| ms(0)), Some(Admitted::HasRoom(7)));
        assert!(outbox.is_late(1) && !outbox.is_late(2));
        assert_eq!(outbox.add(1, parcel(8, 1), ms(50)), Err(parcel(8, 1)));
        outbox.add(2, parcel(9, 50), ms(50)).unwrap();
        // It has answered after all.
        assert_eq!(samples(&outbox.taken(1, ms(60), &[Taken::Stored, Taken::NoRoom])), [1, 2, 3]);
        assert!(!outbox.is_late(1) && outbox.bytes() == 50);
        outbox.begin(2, ms(60), 50);
        outbox.expire(ms(110), |_| true);
        assert_eq!(samples(&outbox.failed(2, ms(120))), [9]);
        assert!(outbox.is_empty() && outbox.bytes() == 0);
    }

    #[test]
    fn an_epoch_is_done_with_when_nothing_of_it_or_before_it_waits() {
        let mut outbox = outbox(2, 100, ms(50));
        assert!(outbox.is_empty() && outbox.is_done_with(0));
        outbox.add(1, parcel(203, 10), ms(0)).unwrap();
        assert!(!outbox.is_empty());
        assert_eq!(
            [0, 1, 2, 3].map(|epoch| outbox.is_done_with(epoch)),
            [true, true, false, false]
        );
    }

    #[test]
    fn batches_that_wait_are_forgotten_when_a_job_is_closed() {
        let mut outbox = outbox(2, 25, ms(50));
        outbox.offer(7);
        outbox.clear_waiting();
        assert_eq!(outbox.waiting().next(), None);
        assert_eq!(outbox.admit(|_| LONGEST), None);
    }

    #[test]
    fn a_batch_is_admitted_when_there_is_room_or_its_consumer_starves() {
        let mut outbox = outbox(2, 25, ms(50));
        outbox.add(1, parcel(0, 20), ms(0)).unwrap();
        outbox.lacks_room(7, 10);
        outbox.offer(8);
        assert_eq!(outbox.admit(|_| ms(49)), None);
        assert_eq!(outbox.due(ms(0), 100).again, Some(TICK), "a consumer may begin to starve");
        assert_eq!(outbox.admit(|_| ms(50)), Some(Admitted::Starves(7)));
        assert_eq!(outbox.admit(|_| ms(0)), Some(Admitted::HasRoom(8)));
        assert_eq!(outbox.admit(|_| ms(50)), None);
        outbox.lacks_room(8, 10);
        outbox.taken(1, ms(1), &[Taken::Stored]);
        assert_eq!(outbox.admit(|_| ms(0)), Some(Admitted::HasRoom(8)));
        assert_eq!(outbox.due(ms(1), 100).again, None);
    }

    /// The naive owner of an outbox: what the engine does with threads.
    struct Owner {
        outbox: Outbox<(), u32>,
        /// By batch: peers and sizes of what is left to give.
        batches: Vec<VecDeque<(NodeId, u64)>>,
        up: [bool; 3],
        calls: [usize; 3],
        again: Option<Duration>,
    }

    impl Owner {
        fn look_after(&mut self, now: Duration) {
            let up = self.up;
            self.outbox.expire(now, |peer| up[peer as usize]);
            while let Some(admitted) = self.outbox.admit(|_| Duration::ZERO) {
                let Admitted::HasRoom(batch) = admitted else { continue };
                while let Some((peer, size)) = self.batches[batch as usize].pop_front() {
                    let given = up[peer as usize] && !self.outbox.is_late(peer);
                    if given && self.outbox.add(peer, parcel(0, size), now).is_err() {
                        self.batches[batch as usize].push_front((peer, size));
                        self.outbox.lacks_room(batch, size);
                        break;
                    }
                }
            }
            let Due { calls, again } = self.outbox.due(now, 50);
            for (peer, call) in calls {
                self.calls[peer as usize] = call.len();
            }
            self.again = again;
        }

        fn is_looked_after(&self) -> bool {
            self.outbox.is_empty() && self.outbox.waiting.is_empty()
                || self.again.is_some()
                || self.calls.iter().any(|&call| call > 0)
        }

        fn call_ends(&mut self, peer: usize, now: Duration, taken: Option<Taken>) -> bool {
            let call = std::mem::take(&mut self.calls[peer]);
            match taken {
                _ if call == 0 => return false,
                Some(taken) => drop(self.outbox.taken(peer as NodeId, now, &vec![taken; call])),
                None => drop(self.outbox.failed(peer as NodeId, now)),
            }
            true
        }
    }

    proptest! {
        /// Peers disappear and return; the owner looks after the outbox only when a batch is offered, a
        /// call ends, or it is time.
        #[test]
        fn whatever_waits_is_looked_after_again(
            events in prop::collection::vec((0u8..6, 0u32..3, 1u64..60), 1..120)
        ) {
            let outbox = outbox(3, 100, ms(60));
            let (batches, up, calls, again) = (vec![], [true; 3], [0; 3], None);
            let mut owner = Owner { outbox, batches, up, calls, again };
            let mut now = ms(0);
            for (event, peer, number) in events {
                now += ms(3);
                let at = peer as usize;
                let looks = match event {
                    0 | 1 => {
                        let gifts = (0..number % 6).map(|more| ((peer + more as u32) % 3, number));
                        owner.batches.push(gifts.collect());
                        owner.outbox.offer(owner.batches.len() as u32 - 1);
                        true
                    }
                    2 => owner.call_ends(at, now, Some(Taken::Stored)),
                    3 => owner.call_ends(at, now, Some(Taken::NoRoom)),
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
            // From here on no peer has room: parcels expire, and all batches get their turn.
            for _ in 0..10_000 {
                let Some(next) = owner.again.or((owner.calls != [0; 3]).then_some(now)) else { break };
                now = now.max(next);
                for peer in 0..3 {
                    owner.call_ends(peer, now, Some(Taken::NoRoom));
                }
                owner.look_after(now);
            }
            prop_assert!(owner.outbox.is_empty() && owner.outbox.waiting.is_empty());
        }

        /// Whatever happens, every parcel that was added is stored, dropped or there, once; bytes
        /// add up and stay within the limit.
        #[test]
        fn no_parcel_is_lost_or_doubled(
            events in prop::collection::vec((0u8..5, 0u32..3, 1u64..40), 1..200)
        ) {
            let mut outbox = outbox(3, 100, ms(300));
            let (mut added, mut ended) = (0u32, 0u32);
            let mut calls: Vec<Option<usize>> = vec![None; 3];
            for (at, (event, peer, number)) in events.into_iter().enumerate() {
                let now = ms(at as u64 * 7);
                match event {
                    0 => added += u32::from(outbox.add(peer, parcel(added, number), now).is_ok()),
                    1 => if let Some(call) = outbox.begin(peer, now, number) {
                        prop_assert!(calls[peer as usize].replace(call.len()).is_none());
                    }
                    2 => if let Some(called) = calls[peer as usize].take() {
                        let outcome = |at: usize| match (number as usize + at) % 3 {
                            0 => Taken::Stored,
                            1 => Taken::NoRoom,
                            _ => Taken::Refused,
                        };
                        let outcomes: Vec<_> = (0..called).map(outcome).collect();
                        let stored = outcomes.iter().filter(|&&taken| taken == Taken::Stored);
                        ended += stored.count() as u32;
                        ended += outbox.taken(peer, now, &outcomes).len() as u32;
                    }
                    3 => if calls[peer as usize].take().is_some() {
                        ended += outbox.failed(peer, now).len() as u32;
                    },
                    _ => ended += outbox.expire(now, |other| other != peer).len() as u32,
                }
                let there = outbox.lines.iter().flat_map(|line| &line.parcels);
                prop_assert_eq!(there.count() as u32, added - ended);
                let in_time = outbox.lines.iter().filter(|line| !line.is_late);
                let there = in_time.flat_map(|line| &line.parcels);
                let bytes: u64 = there.map(|(_, parcel)| parcel.size).sum();
                prop_assert_eq!(bytes, outbox.bytes());
                prop_assert!(bytes <= 100);
            }
        }
    }
}
