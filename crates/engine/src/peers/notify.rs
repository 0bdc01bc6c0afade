//! What others are told: how many steps are loaded here, which epochs are done, what they need not
//! keep any more. Only the latest counts, so a peer that is slow to hear is told less often.

use belady_data::SampleId;
use belady_data::sync::{Arc, lock};
use belady_peer::{NodeId, Notice, PeerError};

use super::{Peers, fetch};
use crate::run::Run;

/// Told at most so many at a time.
const RELEASED: usize = 4096;

#[derive(Debug)]
pub struct Notices {
    /// Steps loaded here, from the first on.
    loaded: u64,
    /// Epochs done here.
    done: u32,
    /// By node.
    told: Vec<Told>,
}

#[derive(Clone, Debug, Default)]
struct Told {
    loaded: u64,
    done: u32,
    released: Vec<SampleId>,
    /// Somebody is telling.
    busy: bool,
}

impl Notices {
    pub fn new(nodes: u32) -> Self {
        Self { loaded: 0, done: 0, told: vec![Told::default(); nodes as usize] }
    }

    /// A peer that was away has missed what it was told.
    pub fn forget(&mut self, peer: NodeId) {
        let told = &mut self.told[peer as usize];
        (told.loaded, told.done) = (0, 0);
    }

    /// A peer need not keep a sample.
    pub fn release(&mut self, peer: NodeId, sample: SampleId) {
        self.told[peer as usize].released.push(sample);
    }

    fn next(&mut self, peer: NodeId) -> Option<Notice> {
        let (loaded, done) = (self.loaded, self.done);
        let told = &mut self.told[peer as usize];
        if told.loaded < loaded {
            told.loaded = loaded;
            return Some(Notice::Loaded { steps: loaded });
        }
        if told.done < done {
            told.done = done;
            return Some(Notice::EpochDone { epoch: done - 1 });
        }
        let first = told.released.len().min(RELEASED);
        let samples: Vec<SampleId> = told.released.drain(..first).collect();
        (!samples.is_empty()).then_some(Notice::Released { samples })
    }
}

/// So many steps are loaded here.
pub fn loaded(run: &Arc<Run>, steps: u64) {
    let Some(peers) = &run.peers else { return };
    let mut notices = lock(&peers.notices);
    if steps <= notices.loaded {
        return;
    }
    notices.loaded = steps;
    drop(notices);
    all(run);
}

/// Looks whether an epoch is done: all of its batches have ended, and what others keep is with them.
pub fn epochs_done(run: &Arc<Run>) {
    let Some(peers) = &run.peers else { return };
    let mut news = false;
    loop {
        let mut notices = lock(&peers.notices);
        let epoch = notices.done;
        if !run.has_ended(epoch) || !lock(&peers.outgoing).is_done_with(epoch) {
            break;
        }
        notices.done = epoch + 1;
        drop(notices);
        lock(&peers.talk).ledger.done(peers.me, epoch);
        news = true;
    }
    if news {
        all(run);
    }
}

/// Tells everybody who is there what is new.
pub fn all(run: &Arc<Run>) {
    let Some(peers) = &run.peers else { return };
    let mut tasks = vec![];
    for peer in peers.others() {
        let mut notices = lock(&peers.notices);
        let (loaded, done) = (notices.loaded, notices.done);
        let told = &mut notices.told[peer as usize];
        let news = told.loaded < loaded || told.done < done || !told.released.is_empty();
        if told.busy || !news {
            continue;
        }
        told.busy = true;
        drop(notices);
        let for_task = run.clone();
        tasks.push(run.task(move |_| tell(&for_task, peer)));
    }
    if !tasks.is_empty() {
        run.lane.submit_first(tasks);
    }
}

fn tell(run: &Arc<Run>, peer: NodeId) {
    let Some(peers) = &run.peers else { return };
    loop {
        let mut notices = lock(&peers.notices);
        // Who is down is told when it is heard of again.
        let notice =
            if run.is_stopping() || !peers.is_up(peer) { None } else { notices.next(peer) };
        let Some(notice) = notice else {
            notices.told[peer as usize].busy = false;
            return;
        };
        drop(notices);
        match say(peers, peer, &notice) {
            Ok(()) => fetch::heard(run, peers, peer),
            Err(error) => {
                let mut notices = lock(&peers.notices);
                notices.forget(peer);
                notices.told[peer as usize].busy = false;
                drop(notices);
                if !matches!(error, PeerError::Left) {
                    peers.failed(peer, &error, &run.metrics);
                }
                return;
            }
        }
    }
}

fn say(peers: &Peers, peer: NodeId, notice: &Notice) -> Result<(), PeerError> {
    peers.cluster.transport.tell(peer, peers.channel, notice, peers.deadline())
}
