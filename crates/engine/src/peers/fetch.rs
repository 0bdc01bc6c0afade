//! Filling slots of a batch from other nodes.
//!
//! Items are asked for in errands: those of one batch and one peer, about a megabyte at a time. Few
//! errands to a peer are under way at once, so that a slow one does not keep all threads waiting.

use std::collections::VecDeque;
use std::time::Duration;

use belady_control::policy::Event;
use belady_data::memory::Memory;
use belady_data::sync::{Arc, lock};
use belady_peer::protocol::seek::Next;
use belady_peer::{Answer, Ask, NodeId, Receive, Request};

use super::{Peers, again, notify, pace};
use crate::load;
use crate::metrics::{Moved, PeerEvent};
use crate::parcel::{Gift, Item, NOWHERE, Parcel};
use crate::pool::Task;
use crate::run::Run;

/// Enough that a round trip does not count beside it.
const ERRAND: u64 = 1 << 20;
const MOST_SAMPLES: usize = 512;
/// Errands under way to one peer: two hide each other's round trips, four share a connection each.
const AT_ONCE: u32 = 4;

/// Items of a batch that one peer has.
#[derive(Debug)]
pub struct Errand {
    parcel: Arc<Parcel>,
    peer: NodeId,
    items: Vec<u32>,
    /// How often they were asked for.
    asked: u32,
}

/// Errands to one peer.
#[derive(Debug, Default)]
pub struct Gate {
    under_way: u32,
    pub(super) waiting: VecDeque<Errand>,
}

impl Gate {
    /// How many there are, under way or not.
    pub fn errands(&self) -> usize {
        self.under_way as usize + self.waiting.len()
    }
}

/// Tasks that bring items which other nodes have.
pub fn tasks(parcel: &Arc<Parcel>, mut items: Vec<u32>, tasks: &mut Vec<Task>) {
    let peer = |index: &u32| parcel.items[*index as usize].peer;
    items.sort_by_key(peer);
    for of_one in items.chunk_by(|a, b| peer(a) == peer(b)) {
        let Some(peer) = of_one.first().and_then(peer) else { continue };
        let mut bytes = 0;
        let mut piece = vec![];
        for &index in of_one {
            bytes += parcel.run.size(parcel.items[index as usize].sample);
            piece.push(index);
            if bytes >= ERRAND || piece.len() >= MOST_SAMPLES {
                let items = std::mem::take(&mut piece);
                tasks.extend(task(Errand { parcel: parcel.clone(), peer, items, asked: 0 }));
                bytes = 0;
            }
        }
        if !piece.is_empty() {
            tasks.extend(task(Errand { parcel: parcel.clone(), peer, items: piece, asked: 0 }));
        }
    }
}

/// The errand as a task, or nothing if it has to wait until another one to that peer is over.
fn task(errand: Errand) -> Option<Task> {
    let run = errand.parcel.run.clone();
    let mut gate = lock(run.peers.as_ref()?.gates.get(errand.peer as usize)?);
    if gate.under_way >= AT_ONCE {
        gate.waiting.push_back(errand);
        return None;
    }
    gate.under_way += 1;
    drop(gate);
    Some(go(errand))
}

fn go(errand: Errand) -> Task {
    let run = errand.parcel.run.clone();
    run.clone().task(move |_| {
        if run.is_stopping() {
            return;
        }
        let Some(peers) = &run.peers else { return };
        let peer = errand.peer;
        ask(&run, peers, errand);
        let mut gate = lock(&peers.gates[peer as usize]);
        let next = gate.waiting.pop_front();
        gate.under_way -= u32::from(next.is_none());
        drop(gate);
        if let Some(next) = next {
            run.lane.submit_first(vec![go(next)]);
        }
    })
}

fn ask(run: &Arc<Run>, peers: &Peers, errand: Errand) {
    let Errand { parcel, peer, items, asked } = errand;
    if !peers.may_ask(peer) {
        return elsewhere(run, peers, &parcel, &items);
    }
    let want = |&index: &u32| {
        let item = &parcel.items[index as usize];
        Ask { sample: item.sample, last_use: item.last_use }
    };
    let asks: Vec<Ask> = items.iter().map(want).collect();
    let epoch = parcel.block.step().epoch;
    let request = Request { channel: peers.channel, epoch, asks: &asks };
    let mut slots = Slots { run, peers, parcel: &parcel, items: &items, own: None, came: vec![] };
    let bytes = items.iter().map(|&index| run.size(parcel.items[index as usize].sample)).sum();
    let deadline = peers.deadline_of(bytes);
    let outcome = peers.cluster.transport.get(peer, &request, deadline, &mut slots);
    let came = slots.came;
    if outcome.is_ok() || !came.is_empty() {
        heard(run, peers, peer);
    }
    if let Err(error) = &outcome {
        peers.failed(peer, error, &run.metrics);
    }
    let (mut loaded, mut bytes) = (0, 0);
    let (mut again, mut missing) = (vec![], items[came.len().min(items.len())..].to_vec());
    let starved = pace::starved(run, &parcel);
    let takes_part = peers.takes_part(peer);
    let mut pause = None;
    for (&index, came) in items.iter().zip(&came) {
        match *came {
            Came::Right => {
                loaded += 1;
                bytes += run.size(parcel.items[index as usize].sample);
                load::arrived(&parcel, index);
            }
            Came::Wrong => {
                run.metrics.peers().count(PeerEvent::Damaged, 1);
                missing.push(index);
            }
            // It holds another version of the file than this node knows: which is right, the file says.
            Came::OfOtherVersion => missing.push(index),
            // What it does not have, it will not have in time.
            Came::Not(_) if !takes_part => missing.push(index),
            Came::Not(answer) => {
                let item = &parcel.items[index as usize];
                match next(run, peers, &parcel, item, (answer, asked + 1), starved) {
                    Next::AskAgain(after) => {
                        pause = pause.max(Some(after));
                        again.push(index);
                    }
                    Next::Elsewhere | Next::Take => missing.push(index),
                }
            }
        }
    }
    run.metrics.peers().moved(Moved::Read, loaded, bytes);
    if let Some(pause) = pause {
        run.metrics.peers().count(PeerEvent::Retried, again.len() as u64);
        let errand = Errand { parcel: parcel.clone(), peer, items: again, asked: asked + 1 };
        let for_later = run.clone();
        let later =
            run.task(move |_| for_later.lane.submit_first(task(errand).into_iter().collect()));
        run.lane.delay(pause, later);
    }
    elsewhere(run, peers, &parcel, &missing);
    run.loaded(&parcel, loaded as u32);
}

/// What to do with an item that is not where it should be, after the `asked`th time.
fn next(
    run: &Run,
    peers: &Peers,
    parcel: &Parcel,
    item: &Item,
    (answer, asked): (Answer, u32),
    starved: Duration,
) -> Next {
    let after = |answer, asked| peers.patience().after(answer, asked, starved);
    if answer != Answer::NotHere {
        return after(answer, asked);
    }
    match again::may_come(run, parcel, item, asked) {
        Some(pause) => after(Answer::NotYet, pause),
        None => Next::Elsewhere,
    }
}

/// A peer has spoken. If it was down, it has missed what it was told.
pub fn heard(run: &Arc<Run>, peers: &Peers, peer: NodeId) {
    if peers.is_there(peer, &run.metrics) {
        lock(&peers.notices).forget(peer);
        notify::all(run);
    }
}

/// Items that a peer did not give: from a tier that has them all the same, else from the source.
fn elsewhere(run: &Arc<Run>, peers: &Peers, parcel: &Arc<Parcel>, items: &[u32]) {
    if items.is_empty() {
        return;
    }
    run.metrics.peers().count(PeerEvent::Missed, items.len() as u64);
    let mut from_source = vec![];
    for &index in items {
        let item = &parcel.items[index as usize];
        let Some(peer) = item.peer else { continue };
        if item.last_use {
            peers.release(peer, parcel.block.step().epoch, item.sample);
        } else if item.peer_tier != NOWHERE && peers.in_step {
            parcel.put_back(Gift { item: index, to: peer, tier: item.peer_tier });
        }
        let missed = Event::Missed { rank: peers.me, sample: item.sample, peer };
        run.brain.tell(missed, |_| ());
        match load::came_meanwhile(parcel, index) {
            load::Came::Loaded => run.loaded(parcel, 1),
            load::Came::Underway => {}
            load::Came::No => from_source.push(index),
        }
    }
    load::submit_source_tasks(parcel, from_source);
}

/// Items that a tier of this node does not hold, but for those that another node may still put there:
/// they are looked for again.
pub fn without_those_that_may_come(parcel: &Arc<Parcel>, missing: Vec<u32>) -> Vec<u32> {
    let run = &parcel.run;
    let Some(peers) = run.peers.as_ref().filter(|_| !missing.is_empty()) else { return missing };
    let may_come = peers.may_come(parcel.block.step().epoch);
    let starved = pace::starved(run, parcel);
    let mut pause = None;
    let (mut came, mut again, mut gone) = (vec![], vec![], vec![]);
    for index in missing {
        let item = &parcel.items[index as usize];
        if run.cache.tier(item.from).is_some_and(|tier| tier.holds(item.sample)) {
            // It has come since it was looked for, and perhaps with it the word that all has. Or the
            // tier is passed over for being slow.
            if item.comes_late() { &mut came } else { &mut gone }.push(index);
            continue;
        }
        let answer = if may_come { Answer::NotYet } else { Answer::NotHere };
        match next(run, peers, parcel, item, (answer, item.look_for()), starved) {
            Next::AskAgain(after) => {
                pause = pause.max(Some(after));
                again.push(index);
            }
            Next::Elsewhere | Next::Take => gone.push(index),
        }
    }
    load::submit_tier_task(parcel, came);
    if let Some(pause) = pause {
        run.metrics.peers().count(PeerEvent::Retried, again.len() as u64);
        let for_later = parcel.clone();
        let later = run.task(move |_| load::submit_tier_task(&for_later, again));
        run.lane.delay(pause, later);
    }
    gone
}

/// What came of one item.
#[derive(Clone, Copy)]
enum Came {
    Right,
    Wrong,
    OfOtherVersion,
    Not(Answer),
}

/// The slots of an errand.
struct Slots<'a> {
    run: &'a Run,
    peers: &'a Peers,
    parcel: &'a Parcel,
    items: &'a [u32],
    /// For an item whose slot is lost.
    own: Option<Memory>,
    came: Vec<Came>,
}

impl Receive for Slots<'_> {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        let index = self.items[at];
        let item = &self.parcel.items[index as usize];
        if item.slot_is_lost() {
            return self.own.insert(Memory::zeroed(self.run.size(item.sample) as usize));
        }
        // SAFETY: each item is given to one loader at a time, its batch is not published before it is
        // loaded, and the transport does not write to it when the call has returned.
        unsafe { self.parcel.slot(index) }
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        let Answer::Here { digest, version } = answer else {
            return self.came.push(Came::Not(answer));
        };
        let index = self.items[at];
        let item = &self.parcel.items[index as usize];
        let (sample, own) = (item.sample, self.own.take());
        let known = self.run.source.version(sample);
        if known.changed != version {
            return self.came.push(Came::OfOtherVersion);
        }
        item.set_version(version);
        let bytes = match &own {
            Some(bytes) => bytes,
            // SAFETY: as above; the transport has written all of it.
            None => unsafe { self.parcel.block.bytes(index as usize) },
        };
        let right = self.peers.digests.check(sample, known, bytes, digest);
        if right && let Some(bytes) = own {
            self.parcel.own(index, Arc::new(bytes));
        }
        self.came.push(if right { Came::Right } else { Came::Wrong });
    }
}
