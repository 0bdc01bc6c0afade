//! Samples that are to be kept by another node, or here once there is room.
//!
//! When a step ends, what others are to keep of it is copied to the outbox, since the consumer may
//! write to the batch. If the outbox is full the batch waits, and the ring with it: so a node that
//! is ahead of the others' room slows down. What this node is to keep itself, and has no room for yet,
//! takes the same way.

use std::collections::VecDeque;
use std::time::Duration;

use belady_data::memory::Memory;
use belady_data::source::Version;
use belady_data::sync::{Arc, lock};
use belady_peer::protocol::outbox::{Admitted, Due, Outbox, Parcel as Sealed};
use belady_peer::{NodeId, PeerError, Push, Taken, TierId};

use super::{Peers, fetch, notify, pace};
use crate::metrics::{Moved, PeerEvent};
use crate::parcel::{Gift, Parcel};
use crate::pool::Worker;
use crate::run::Run;
use crate::{hangs, keep};

/// Sent in one call.
const CALL: u64 = 4 << 20;

/// Bytes that wait to be given away.
#[derive(Debug)]
pub struct Goods {
    bytes: Memory,
    digest: u64,
    version: i64,
}

/// What is sent to one node at once.
type Call = (NodeId, Vec<Sealed<Arc<Goods>>>);

/// A batch, and what is left to give of it.
#[derive(Debug)]
struct Offered {
    parcel: Arc<Parcel>,
    gifts: VecDeque<Gift>,
}

#[derive(Debug)]
pub struct Outgoing {
    outbox: Outbox<Arc<Goods>, Offered>,
    /// When [`look_after`] is called next, if nothing happens before.
    timer: Option<Duration>,
}

impl Outgoing {
    pub fn new(nodes: u32, limit: u64, patience: Duration) -> Self {
        Self { outbox: Outbox::new(nodes, limit, patience), timer: None }
    }

    /// Whether nothing is left in the outbox of what this epoch leaves. A batch that waits for room there
    /// has not ended, and neither has its epoch.
    pub fn is_done_with(&self, epoch: u32) -> bool {
        self.outbox.is_done_with(epoch)
    }

    pub fn close(&mut self) {
        self.outbox.clear_waiting();
    }

    /// The calls to make now, and when a timer is to be set for, if it is.
    fn next(&mut self, now: Duration) -> (Vec<Call>, Option<Duration>) {
        let Due { calls, again } = self.outbox.due(now, CALL);
        let sooner = again.filter(|again| self.timer.is_none_or(|timer| *again < timer));
        self.timer = sooner.or(self.timer);
        (calls, sooner)
    }

    /// A timer that was set for then has gone off; false if one that was set for earlier has taken its
    /// place.
    fn is_time(&mut self, at: Duration) -> bool {
        self.timer.take_if(|timer| *timer == at).is_some()
    }
}

/// Gives away what a batch leaves for others. The batch is told when that is done or has a place in
/// the outbox ([`keep::end_piece`]).
pub fn offer(parcel: &Arc<Parcel>, gifts: Vec<Gift>) {
    let run = &parcel.run;
    let Some(peers) = &run.peers else { return keep::end_piece(parcel) };
    let batch = Offered { parcel: parcel.clone(), gifts: gifts.into() };
    lock(&peers.outgoing).outbox.offer(batch);
    look_after(run);
}

/// Keeps a sample here as soon as there is room. The batch does not wait for that: policies that do not
/// go in step may have no room for it ever.
pub fn keep_later(parcel: &Arc<Parcel>, index: u32, tier: TierId) {
    let Some(peers) = &parcel.run.peers else { return };
    if seal(peers, parcel, index, peers.me, tier) {
        look_after(&parcel.run);
    } else {
        parcel.run.metrics.peers().count(PeerEvent::Dropped, 1);
    }
}

/// Puts gifts of a batch into the outbox as far as there is room; the batch ends if there was for all.
fn pack(run: &Run, peers: &Peers, mut batch: Offered) {
    while let Some(gift) = batch.gifts.pop_front() {
        if batch.parcel.is_bad(gift.item) {
            continue;
        }
        if !peers.takes_part(gift.to) || lock(&peers.outgoing).outbox.is_late(gift.to) {
            run.metrics.peers().count(PeerEvent::Dropped, 1);
            continue;
        }
        if !seal(peers, &batch.parcel, gift.item, gift.to, gift.tier) {
            batch.gifts.push_front(gift);
            let size = run.size(batch.parcel.items[gift.item as usize].sample);
            return lock(&peers.outgoing).outbox.lacks_room(batch, size);
        }
    }
    keep::end_piece(&batch.parcel);
}

/// Puts a copy of an item into the outbox; whether there was room.
fn seal(peers: &Peers, parcel: &Parcel, item: u32, to: NodeId, tier: TierId) -> bool {
    let sample = parcel.items[item as usize].sample;
    let size = parcel.run.size(sample);
    if !lock(&peers.outgoing).outbox.has_room(size) {
        return false;
    }
    let version = parcel.items[item as usize].version();
    let of = Version { changed: version, ..parcel.run.source.version(sample) };
    let goods = parcel.with_bytes(item, |bytes| Goods {
        digest: peers.digests.of(sample, of, bytes),
        bytes: bytes.into(),
        version,
    });
    let epoch = parcel.block.step().epoch;
    let sealed = Sealed { sample, tier, epoch, size, bytes: Arc::new(goods) };
    lock(&peers.outgoing).outbox.add(to, sealed, peers.now()).is_ok()
}

/// Lets go of what cannot be sent, packs the batches that there is room for, sends what can be sent, and
/// comes again when there is something to do. Called after everything that changes the outbox: an offer,
/// the end of a call, its own timer. When the lock is let go of for the last time, what waits has a call
/// under way or the timer ([`belady_peer::protocol::outbox`]).
pub fn look_after(run: &Arc<Run>) {
    let Some(peers) = &run.peers else { return };
    if run.is_stopping() {
        return;
    }
    let mut dropped = 0;
    let (calls, timer) = loop {
        let takes_part: Vec<bool> = (0..peers.nodes).map(|node| peers.takes_part(node)).collect();
        let now = peers.now();
        let mut outgoing = lock(&peers.outgoing);
        dropped += outgoing.outbox.expire(now, |node| takes_part[node as usize]).len();
        match outgoing.outbox.admit(|batch| pace::starved(run, &batch.parcel)) {
            Some(admitted) => {
                drop(outgoing);
                match admitted {
                    Admitted::HasRoom(batch) => pack(run, peers, batch),
                    Admitted::Starves(batch) => {
                        dropped += batch.gifts.len();
                        keep::end_piece(&batch.parcel);
                    }
                }
            }
            None => break outgoing.next(now),
        }
    };
    if let Some(at) = timer {
        let for_later = run.clone();
        let later = run.task(move |_| {
            let is_time = |peers: &Peers| lock(&peers.outgoing).is_time(at);
            if for_later.peers.as_ref().is_some_and(is_time) {
                look_after(&for_later);
            }
        });
        run.lane.delay(at.saturating_sub(peers.now()), later);
    }
    run.metrics.peers().count(PeerEvent::Dropped, dropped as u64);
    for (node, call) in calls {
        let for_task = run.clone();
        let task = run.task(move |worker| send(worker, &for_task, node, &call.into()));
        run.lane.submit_first(vec![task]);
    }
    notify::epochs_done(run);
}

fn send(worker: &Worker, run: &Arc<Run>, to: NodeId, call: &Arc<[Sealed<Arc<Goods>>]>) {
    let Some(peers) = &run.peers else { return };
    if to == peers.me {
        put_here(worker, run, call, vec![]);
    } else {
        ended(run, to, call, put_there(peers, to, call));
    }
}

/// What came of a call.
fn ended(
    run: &Arc<Run>,
    to: NodeId,
    call: &[Sealed<Arc<Goods>>],
    outcome: Result<Vec<Taken>, PeerError>,
) {
    let Some(peers) = &run.peers else { return };
    let mut outgoing = lock(&peers.outgoing);
    let dropped = match &outcome {
        Ok(taken) => outgoing.outbox.taken(to, peers.now(), taken),
        Err(_) => outgoing.outbox.failed(to, peers.now()),
    };
    drop(outgoing);
    match outcome {
        Ok(taken) => {
            let stored = || call.iter().zip(&taken).filter(|(_, taken)| **taken == Taken::Stored);
            let bytes = stored().map(|(sealed, _)| sealed.size).sum();
            if to != peers.me {
                run.metrics.peers().moved(Moved::Pushed, stored().count() as u64, bytes);
                fetch::heard(run, peers, to);
            }
        }
        Err(error) => peers.failed(to, &error, &run.metrics),
    }
    run.metrics.peers().count(PeerEvent::Dropped, dropped.len() as u64);
    look_after(run);
}

fn put_there(
    peers: &Peers,
    to: NodeId,
    call: &[Sealed<Arc<Goods>>],
) -> Result<Vec<Taken>, PeerError> {
    let mut pushes: Vec<Push<'_>> = Vec::with_capacity(call.len());
    for Sealed { sample, tier, epoch, bytes: goods, .. } in call {
        let (sample, tier, epoch, digest) = (*sample, *tier, *epoch, goods.digest);
        let Goods { ref bytes, version, .. } = **goods;
        pushes.push(Push { sample, tier, epoch, digest, version, bytes });
    }
    let deadline = peers.deadline_of(call.iter().map(|sealed| sealed.size).sum());
    peers.cluster.transport.put(to, peers.channel, &pushes, deadline)
}

/// Puts what is left of a call into this node's own tiers. If one of them hangs, its sample is let go
/// and somebody else goes on.
fn put_here(
    worker: &Worker,
    run: &Arc<Run>,
    call: &Arc<[Sealed<Arc<Goods>>]>,
    mut taken: Vec<Taken>,
) {
    let Some(peers) = &run.peers else { return };
    while let Some(sealed) = call.get(taken.len()) {
        let put = || {
            let Goods { ref bytes, version, .. } = *sealed.bytes;
            peers.put(run, sealed.tier, (sealed.sample, version), bytes, sealed.epoch)
        };
        if !run.cache.may_hang(sealed.tier) {
            taken.push(put());
            continue;
        }
        let instead = {
            let (run, call, mut taken) = (run.clone(), call.clone(), taken.clone());
            taken.push(Taken::Refused);
            move || {
                let for_task = run.clone();
                let task = run.task(move |worker| put_here(worker, &for_task, &call, taken));
                run.lane.submit_first(vec![task]);
            }
        };
        match hangs::watch(worker, run, sealed.tier, instead, put) {
            Some(outcome) => taken.push(outcome),
            None => return,
        }
    }
    ended(run, peers.me, call, Ok(taken));
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn sealed(sample: u32) -> Sealed<Arc<Goods>> {
        let goods = Goods { bytes: Memory::zeroed(1), digest: 0, version: 0 };
        Sealed { sample, tier: 1, epoch: 0, size: 1, bytes: Arc::new(goods) }
    }

    #[test]
    fn a_timer_is_set_when_none_is_or_one_that_is_set_for_later() {
        let mut outgoing = Outgoing::new(3, 100, Duration::from_mins(1));
        for node in [1, 2] {
            outgoing.outbox.add(node, sealed(node), ms(0)).unwrap();
        }
        let next = |outgoing: &mut Outgoing, now| {
            let (calls, timer) = outgoing.next(now);
            (calls.len(), timer)
        };
        assert_eq!(next(&mut outgoing, ms(0)), (2, None), "the ends of the calls come first");
        outgoing.outbox.taken(1, ms(0), &[Taken::NoRoom]);
        assert_eq!(next(&mut outgoing, ms(0)), (0, Some(ms(1))));
        assert_eq!(next(&mut outgoing, ms(0)), (0, None), "it is set");
        assert!(outgoing.is_time(ms(1)) && !outgoing.is_time(ms(1)));
        assert_eq!(next(&mut outgoing, ms(10)), (1, None));
        // A node without room is left alone longer the second time.
        outgoing.outbox.taken(1, ms(10), &[Taken::NoRoom]);
        assert_eq!(next(&mut outgoing, ms(10)), (0, Some(ms(12))));
        outgoing.outbox.taken(2, ms(10), &[Taken::NoRoom]);
        assert_eq!(next(&mut outgoing, ms(10)), (0, Some(ms(11))), "instead of the later one");
        assert!(!outgoing.is_time(ms(12)) && outgoing.is_time(ms(11)));
    }
}
