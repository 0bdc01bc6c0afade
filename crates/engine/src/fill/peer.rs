//! Fills slots from other nodes.
//!
//! Items are asked for in requests: those of one batch and one peer, about a megabyte at a time. A
//! gate limits the requests to a peer that are under way ([`PeerRequest`]).

use belady_base::memory::Memory;
use belady_base::sync::Arc;
use belady_control::model::online::REMOTE;
use belady_control::policy::Event;
use belady_peer::protocol::retry::RetryDecision;
use belady_peer::{Answer, Ask, GetRequest, Receive};

use super::{BatchFill, FillStage, source, tier};
use crate::metrics::{Moved, PeerEvent};
use crate::peers::{PeerRequest, Peers};
use crate::pending::{PendingBatch, PlannedPush, SampleOrigin};
use crate::pool::Task;

/// Bytes of a request: enough that the round trip does not count.
const REQUEST: u64 = 1 << 20;
const MOST_SAMPLES: usize = 512;

/// Adds tasks that ask other nodes for items.
pub fn tasks(fill: &BatchFill, mut items: Vec<u32>, tasks: &mut Vec<Task>) {
    let Some(peers) = &fill.stage.peers else { return };
    let batch = &fill.batch;
    let peer = |index: &u32| batch.item(*index).peer();
    items.sort_by_key(peer);
    for of_one in items.chunk_by(|a, b| peer(a) == peer(b)) {
        let Some(peer) = of_one.first().and_then(peer) else { continue };
        let mut add = |items: Vec<u32>| {
            let request = PeerRequest { batch: batch.clone(), peer, items, asked: 0 };
            tasks.extend(task(&fill.stage, peers, request));
        };
        let mut bytes = 0;
        let mut piece = vec![];
        for &index in of_one {
            bytes += batch.size(index);
            piece.push(index);
            if bytes >= REQUEST || piece.len() >= MOST_SAMPLES {
                add(std::mem::take(&mut piece));
                bytes = 0;
            }
        }
        if !piece.is_empty() {
            add(piece);
        }
    }
}

/// Returns a request as a task, unless it waits for the end of another one to that peer.
fn task(stage: &Arc<FillStage>, peers: &Arc<Peers>, request: PeerRequest) -> Option<Task> {
    let admitted = peers.gate(request.peer)?.admit(request)?;
    Some(admitted_task(stage, peers, admitted))
}

fn admitted_task(stage: &Arc<FillStage>, peers: &Arc<Peers>, request: PeerRequest) -> Task {
    let (stage, peers) = (stage.clone(), peers.clone());
    stage.job.clone().task(move |_| {
        if stage.job.is_stopping() {
            return;
        }
        let peer = request.peer;
        send(&stage, &peers, request);
        let next = peers.gate(peer).and_then(|mut gate| gate.end());
        if let Some(next) = next {
            stage.job.lane.submit_first(vec![admitted_task(&stage, &peers, next)]);
        }
    })
}

fn send(stage: &Arc<FillStage>, peers: &Arc<Peers>, request: PeerRequest) {
    let PeerRequest { batch, peer, items, asked } = request;
    let fill = BatchFill { stage: stage.clone(), batch };
    let (batch, job) = (&fill.batch, &fill.batch.job);
    if !peers.may_ask(peer) {
        return fill_elsewhere(&fill, peers, &items);
    }
    let ask = |&index: &u32| {
        let item = batch.item(index);
        Ask { sample: item.sample, last_use: item.last_use }
    };
    let asks: Vec<Ask> = items.iter().map(ask).collect();
    let request = GetRequest { channel: peers.channel, epoch: batch.epoch(), asks: &asks };
    let mut slots = RequestSlots { peers, batch, items: &items, own: None, answers: vec![] };
    let deadline = peers.deadline_of(items.iter().map(|&index| batch.size(index)).sum());
    let timer = job.threads.meter.load(REMOTE);
    let outcome = peers.cluster.transport.get(peer, &request, deadline, &mut slots);
    let answers = slots.answers;
    if outcome.is_ok() || !answers.is_empty() {
        peers.heard_from(peer);
    }
    if let Err(error) = &outcome {
        peers.failed(peer, error);
    }
    let (mut filled, mut bytes) = (0, 0);
    let (mut again, mut missing) = (vec![], items[answers.len().min(items.len())..].to_vec());
    let starved = batch.starved();
    let takes_part = peers.takes_part(peer);
    let mut pause = None;
    for (&index, answer) in items.iter().zip(&answers) {
        match *answer {
            ItemAnswer::Right => {
                filled += 1;
                bytes += batch.size(index);
                batch.arrived(index);
            }
            ItemAnswer::Damaged => {
                job.metrics.peers().count(PeerEvent::Damaged, 1);
                missing.push(index);
            }
            // The peer knows another version of the file; the source has the right one.
            ItemAnswer::OtherVersion => missing.push(index),
            // A peer that is not in step will not have it in time.
            ItemAnswer::Not(_) if !takes_part => missing.push(index),
            ItemAnswer::Not(answer) => {
                match peers.after_miss(batch, batch.item(index), (answer, asked + 1), starved) {
                    RetryDecision::AskAgain(after) => {
                        pause = pause.max(Some(after));
                        again.push(index);
                    }
                    RetryDecision::Elsewhere | RetryDecision::Take => missing.push(index),
                }
            }
        }
    }
    if let Some(timer) = timer.filter(|_| filled > 0) {
        timer.end(bytes);
    }
    job.metrics.peers().moved(Moved::Read, filled, bytes);
    if let Some(pause) = pause {
        job.metrics.peers().count(PeerEvent::Retried, again.len() as u64);
        let request = PeerRequest { batch: batch.clone(), peer, items: again, asked: asked + 1 };
        let (stage, peers) = (stage.clone(), peers.clone());
        let retry = job.task(move |_| {
            let tasks = task(&stage, &peers, request).into_iter().collect();
            stage.job.lane.submit_first(tasks);
        });
        job.lane.delay(pause, retry);
    }
    fill_elsewhere(&fill, peers, &missing);
    batch.filled(filled as u32);
}

/// Fills items that a peer did not give: from a tier that holds them by now, else from the source.
fn fill_elsewhere(fill: &BatchFill, peers: &Peers, items: &[u32]) {
    if items.is_empty() {
        return;
    }
    let (batch, job) = (&fill.batch, &fill.batch.job);
    job.metrics.peers().count(PeerEvent::Missed, items.len() as u64);
    let mut from_source = vec![];
    for &index in items {
        let item = batch.item(index);
        let SampleOrigin::Peer { node, tier } = item.origin else { continue };
        if item.last_use {
            peers.release(node, batch.epoch(), item.sample);
        } else if let Some(tier) = tier.filter(|_| peers.in_step) {
            batch.put_back(PlannedPush { item: index, to: node, tier });
        }
        let missed = Event::Missed { rank: peers.me, sample: item.sample, peer: node };
        job.policy.send(missed, |_| ());
        match tier::fill_from_other(fill, index) {
            tier::OtherTier::Filled => batch.filled(1),
            tier::OtherTier::UnderWay => {}
            tier::OtherTier::Missing => from_source.push(index),
        }
    }
    source::submit(fill, from_source);
}

/// A peer's answer for one item.
#[derive(Clone, Copy)]
enum ItemAnswer {
    Right,
    Damaged,
    OtherVersion,
    Not(Answer),
}

/// The slots of a request.
struct RequestSlots<'a> {
    peers: &'a Peers,
    batch: &'a PendingBatch,
    items: &'a [u32],
    /// For an item whose slot is lost.
    own: Option<Memory>,
    answers: Vec<ItemAnswer>,
}

impl Receive for RequestSlots<'_> {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        let index = self.items[at];
        if self.batch.item(index).slot_is_lost() {
            return self.own.insert(Memory::zeroed(self.batch.size(index) as usize));
        }
        // SAFETY: one thread at a time fills an item, its batch is not published before, and the
        // transport does not write to the slot after the call has returned.
        unsafe { self.batch.slot(index) }
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        let Answer::Here { digest, version } = answer else {
            return self.answers.push(ItemAnswer::Not(answer));
        };
        let index = self.items[at];
        let item = self.batch.item(index);
        let (sample, own) = (item.sample, self.own.take());
        let known = self.batch.job.source.version(sample);
        if known.changed != version {
            return self.answers.push(ItemAnswer::OtherVersion);
        }
        item.set_version(version);
        let bytes = match &own {
            Some(bytes) => bytes,
            // SAFETY: as above; the transport has written all of it.
            None => unsafe { self.batch.block.bytes(index as usize) },
        };
        let right = self.peers.digests.check(sample, known, bytes, digest);
        if right && let Some(bytes) = own {
            self.batch.own(index, Arc::new(bytes));
        }
        self.answers.push(if right { ItemAnswer::Right } else { ItemAnswer::Damaged });
    }
}
