//! What others are told: how many steps are loaded here, which epochs are done, what they need not
//! keep any more. Only the latest counts, so a peer that is slow to hear is told less often.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_data::SampleId;
use belady_data::sync::{Arc, lock};
use belady_peer::protocol::herald::Herald;
use belady_peer::{NodeId, Notice, PeerError};

use super::{Peers, fetch};
use crate::run::Run;

/// Told at most so many at a time.
const RELEASED: usize = 4096;
/// A notice that was not heard is told again after this long, if the peer may be asked then.
const AGAIN: Duration = Duration::from_millis(250);
/// All who are there hear within this, unless something is wrong.
const GOODBYE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Notices {
    herald: Herald,
    /// Epochs done here.
    done: u32,
    /// By node: what it need not keep, and for which epoch it did.
    released: Vec<Vec<(u32, SampleId)>>,
    /// By node: somebody is telling it something.
    busy: Vec<bool>,
    /// By node: somebody is going to tell it later.
    later: Vec<bool>,
}

impl Notices {
    pub fn new(nodes: u32) -> Self {
        let (released, busy) = (vec![vec![]; nodes as usize], vec![false; nodes as usize]);
        Self { herald: Herald::new(nodes), done: 0, released, later: busy.clone(), busy }
    }

    /// A peer that was away has missed what it was told.
    pub fn forget(&mut self, peer: NodeId) {
        self.herald.forget(peer);
    }

    /// A peer need not keep a sample that this epoch uses.
    pub fn release(&mut self, peer: NodeId, epoch: u32, sample: SampleId) {
        let released = &mut self.released[peer as usize];
        // One who is away for long: what waited for an older epoch goes there without being told.
        if released.first().is_some_and(|(first, _)| first.saturating_add(1) < epoch) {
            released.retain(|(other, _)| other.saturating_add(1) >= epoch);
        }
        released.push((epoch, sample));
    }

    fn has_news(&self, peer: NodeId) -> bool {
        self.herald.has_news(peer) || !self.released[peer as usize].is_empty()
    }

    /// Whether somebody who is there has not heard all.
    pub fn are_due(&self, is_up: impl Fn(NodeId) -> bool) -> bool {
        let nodes = 0..self.busy.len() as NodeId;
        nodes
            .filter(|&node| is_up(node))
            .any(|node| self.busy[node as usize] || self.has_news(node))
    }

    fn next(&mut self, peer: NodeId) -> Option<Notice> {
        let news = self.herald.next(peer);
        if news.is_some() {
            return news;
        }
        let released = &mut self.released[peer as usize];
        let epoch = released.first()?.0;
        let same = released.iter().take(RELEASED).take_while(|(other, _)| *other == epoch).count();
        let samples = released.drain(..same).map(|(_, sample)| sample).collect();
        Some(Notice::Released { epoch, samples })
    }
}

/// So many steps are loaded here.
pub fn loaded(run: &Arc<Run>, steps: u64) {
    let Some(peers) = &run.peers else { return };
    lock(&peers.notices).herald.loaded(steps);
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
        notices.herald.done(epoch);
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
        if notices.busy[peer as usize] || !notices.has_news(peer) {
            continue;
        }
        notices.busy[peer as usize] = true;
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
        // Who is down is told when it is heard of again, or may be asked again: it may be waiting for
        // this, with nothing to say itself.
        let may = !run.is_stopping() && peers.may_ask(peer);
        let mut notices = lock(&peers.notices);
        let notice = if may { notices.next(peer) } else { None };
        let Some(notice) = notice else {
            notices.busy[peer as usize] = false;
            let has_news = notices.has_news(peer);
            drop(notices);
            if has_news {
                tell_later(run, peers, peer);
            }
            return;
        };
        drop(notices);
        let told = say(peers, peer, &notice);
        let mut notices = lock(&peers.notices);
        notices.herald.ended(peer, told.is_ok());
        notices.busy[peer as usize] = told.is_ok();
        drop(notices);
        match told {
            Ok(()) => fetch::heard(run, peers, peer),
            Err(error) => {
                peers.failed(peer, &error, &run.metrics);
                return tell_later(run, peers, peer);
            }
        }
    }
}

fn tell_later(run: &Arc<Run>, peers: &Peers, peer: NodeId) {
    let waits = std::mem::replace(&mut lock(&peers.notices).later[peer as usize], true);
    if waits || run.is_stopping() {
        return;
    }
    let for_later = run.clone();
    let later = run.task(move |_| {
        if let Some(peers) = &for_later.peers {
            lock(&peers.notices).later[peer as usize] = false;
        }
        all(&for_later);
    });
    run.lane.delay(AGAIN, later);
}

/// Tells everybody who is there that this job has ended, so that its silence is no surprise. Those who do
/// not hear it in time find out by themselves.
pub fn leave(run: &Run) {
    let Some(peers) = &run.peers else { return };
    peers.is_leaving.store(true, Ordering::Relaxed);
    let until = Instant::now() + GOODBYE.min(peers.limits.answer);
    for peer in peers.others().filter(|&peer| peers.is_up(peer)) {
        if Instant::now() < until {
            let _ = peers.cluster.transport.tell(peer, peers.channel, &Notice::Left, until);
        }
    }
}

fn say(peers: &Peers, peer: NodeId, notice: &Notice) -> Result<(), PeerError> {
    peers.cluster.transport.tell(peer, peers.channel, notice, peers.deadline())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_who_is_away_need_not_keep_did_not_grow_with_every_epoch() {
        let mut notices = Notices::new(2);
        for epoch in 0..100 {
            for sample in 0..10 {
                notices.release(1, epoch, sample);
            }
        }
        assert_eq!(notices.released[1].len(), 20);
        let samples = (0..10).collect();
        assert_eq!(notices.next(1), Some(Notice::Released { epoch: 98, samples }));
    }
}
