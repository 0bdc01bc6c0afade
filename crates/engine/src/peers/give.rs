//! Samples that are to be kept by another node, or here once there is room.
//!
//! When a step ends, what others are to keep of it is copied to the outbox, since the consumer may
//! write to the batch. If the outbox is full the batch waits, and the ring with it: so a node that
//! is ahead of the others' room slows down. What this node is to keep itself, and has no room for yet,
//! takes the same way.

use std::collections::VecDeque;
use std::time::Duration;

use belady_data::memory::Memory;
use belady_data::sync::{Arc, lock};
use belady_peer::protocol::outbox::{Outbox, Parcel as Sealed};
use belady_peer::{NodeId, PeerError, Push, Taken, TierId};

use super::{Peers, fetch, notify};
use crate::metrics::{Moved, PeerEvent};
use crate::parcel::{Gift, Parcel};
use crate::pool::Worker;
use crate::run::Run;
use crate::{hangs, keep};

/// Sent in one call.
const CALL: u64 = 4 << 20;
/// However full the outbox is, its line is looked after as often as this.
const TICK: Duration = Duration::from_millis(100);

/// Bytes that wait to be given away.
#[derive(Debug)]
pub struct Goods {
    bytes: Memory,
    digest: u64,
}

#[derive(Debug)]
pub struct Outgoing {
    outbox: Outbox<Arc<Goods>>,
    /// Batches that wait for room in the outbox, with what is left to give of them.
    waiting: VecDeque<(Arc<Parcel>, VecDeque<Gift>)>,
    /// When somebody looks after it next.
    timer: Option<Duration>,
}

impl Outgoing {
    pub fn new(nodes: u32, limit: u64, patience: Duration) -> Self {
        let outbox = Outbox::new(nodes, limit, patience);
        Self { outbox, waiting: VecDeque::new(), timer: None }
    }

    /// Whether nothing waits that this epoch leaves.
    pub fn is_done_with(&self, epoch: u32) -> bool {
        self.outbox.is_done_with(epoch)
            && self.waiting.iter().all(|(parcel, _)| parcel.block.step().epoch > epoch)
    }

    pub fn close(&mut self) {
        self.waiting.clear();
    }
}

/// Gives away what a batch leaves for others. The batch is told when that is done or has a place in
/// the outbox ([`keep::end_piece`]).
pub fn offer(parcel: &Arc<Parcel>, gifts: Vec<Gift>) {
    let run = &parcel.run;
    let Some(peers) = &run.peers else { return keep::end_piece(parcel) };
    let mut outgoing = lock(&peers.outgoing);
    if !outgoing.waiting.is_empty() {
        outgoing.waiting.push_back((parcel.clone(), gifts.into()));
        return;
    }
    drop(outgoing);
    pack(run, peers, parcel, gifts.into());
    send_all(run);
}

/// Keeps a sample here as soon as there is room.
pub fn keep_later(parcel: &Arc<Parcel>, index: u32, tier: TierId) {
    let Some(peers) = &parcel.run.peers else { return };
    if seal(peers, parcel, index, peers.me, tier) {
        send_all(&parcel.run);
    } else {
        parcel.run.metrics.peers().count(PeerEvent::Dropped, 1);
    }
}

/// Puts gifts into the outbox as far as there is room; whether there was for all.
fn pack(run: &Arc<Run>, peers: &Peers, parcel: &Arc<Parcel>, mut gifts: VecDeque<Gift>) -> bool {
    while let Some(gift) = gifts.pop_front() {
        if parcel.is_bad(gift.item) {
            continue;
        }
        if !peers.is_up(gift.to) {
            run.metrics.peers().count(PeerEvent::Dropped, 1);
            continue;
        }
        if !seal(peers, parcel, gift.item, gift.to, gift.tier) {
            gifts.push_front(gift);
            let mut outgoing = lock(&peers.outgoing);
            let size = run.size(parcel.items[gift.item as usize].sample);
            if outgoing.outbox.has_room(size) {
                // It has come meanwhile, and whoever made it found nobody waiting.
                continue;
            }
            outgoing.waiting.push_front((parcel.clone(), gifts));
            return false;
        }
    }
    keep::end_piece(parcel);
    true
}

/// Puts a copy of an item into the outbox; whether there was room.
fn seal(peers: &Peers, parcel: &Parcel, item: u32, to: NodeId, tier: TierId) -> bool {
    let sample = parcel.items[item as usize].sample;
    let size = parcel.run.size(sample);
    if !lock(&peers.outgoing).outbox.has_room(size) {
        return false;
    }
    let goods = parcel.with_bytes(item, |bytes| Goods {
        digest: peers.digests.of(sample, bytes),
        bytes: bytes.into(),
    });
    let epoch = parcel.block.step().epoch;
    let sealed = Sealed { sample, tier, epoch, size, bytes: Arc::new(goods) };
    lock(&peers.outgoing).outbox.add(to, sealed, peers.now()).is_ok()
}

/// Sends what can be sent, lets go of what cannot, and comes again when there is something to do.
pub fn send_all(run: &Arc<Run>) {
    let Some(peers) = &run.peers else { return };
    if run.is_stopping() {
        return;
    }
    // First, since it makes room for batches that wait, and what they leave has to be sent as well.
    drop_expired(run, peers);
    let now = peers.now();
    let mut outgoing = lock(&peers.outgoing);
    let calls: Vec<(NodeId, Vec<Sealed<Arc<Goods>>>)> = (0..peers.nodes)
        .filter_map(|node| Some((node, outgoing.outbox.begin(node, now, CALL)?)))
        .collect();
    let due = outgoing.outbox.wakes_at().map(|at| at.max(now).min(now + TICK));
    let due = due.filter(|due| outgoing.timer.is_none_or(|timer| *due < timer));
    if due.is_some() {
        outgoing.timer = due;
    }
    drop(outgoing);
    if let Some(due) = due {
        let for_later = run.clone();
        let later = run.task(move |_| {
            if let Some(peers) = &for_later.peers {
                lock(&peers.outgoing).timer = None;
            }
            send_all(&for_later);
        });
        run.lane.delay(due.saturating_sub(now), later);
    }
    for (node, call) in calls {
        let for_task = run.clone();
        let task = run.task(move |worker| send(worker, &for_task, node, &call.into()));
        run.lane.submit_first(vec![task]);
    }
}

/// Lets go of what has waited too long, or is for nodes that are not there.
fn drop_expired(run: &Arc<Run>, peers: &Peers) {
    let up: Vec<bool> = (0..peers.nodes).map(|node| peers.is_up(node)).collect();
    let dropped = lock(&peers.outgoing).outbox.expire(peers.now(), |node| up[node as usize]).len();
    if dropped > 0 {
        run.metrics.peers().count(PeerEvent::Dropped, dropped as u64);
        made_room(run, peers);
    }
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
    let dropped = if let Ok(taken) = &outcome {
        outgoing.outbox.taken(to, peers.now(), taken).len()
    } else {
        outgoing.outbox.failed(to, peers.now());
        0
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
    run.metrics.peers().count(PeerEvent::Dropped, dropped as u64);
    made_room(run, peers);
    send_all(run);
}

fn put_there(
    peers: &Peers,
    to: NodeId,
    call: &[Sealed<Arc<Goods>>],
) -> Result<Vec<Taken>, PeerError> {
    let mut pushes: Vec<Push<'_>> = Vec::with_capacity(call.len());
    for Sealed { sample, tier, epoch, bytes: goods, .. } in call {
        let (sample, tier, epoch, digest) = (*sample, *tier, *epoch, goods.digest);
        pushes.push(Push { sample, tier, epoch, digest, bytes: &goods.bytes });
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
        let put = || peers.put(run, sealed.tier, sealed.sample, &sealed.bytes.bytes, sealed.epoch);
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

/// The outbox has room again: batches that wait for it go on, in order.
fn made_room(run: &Arc<Run>, peers: &Peers) {
    loop {
        let Some((parcel, gifts)) = lock(&peers.outgoing).waiting.pop_front() else { break };
        if !pack(run, peers, &parcel, gifts) {
            break;
        }
    }
    notify::epochs_done(run);
}
