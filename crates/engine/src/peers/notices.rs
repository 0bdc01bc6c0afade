//! Notices to other nodes: how many steps are filled here, which epochs are done, and which samples
//! they need not keep any more. Only the latest counts, so a slow peer gets fewer notices.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_base::SampleId;
use belady_base::sync::{Arc, lock};
use belady_peer::protocol::progress_notifier::ProgressNotifier;
use belady_peer::{NodeId, Notice};

use super::Peers;

/// Samples in one notice.
const RELEASED: usize = 4096;
/// A notice that failed is sent again after this long, if the peer may be asked then.
const RETRY: Duration = Duration::from_millis(250);
/// The time for the notices that this node leaves, enough unless something is wrong.
const GOODBYE: Duration = Duration::from_secs(1);

/// The notices that other nodes have not received.
#[derive(Debug)]
pub struct Notices {
    progress: ProgressNotifier,
    /// The number of epochs that are done here.
    done: u32,
    /// By node: the samples that it need not keep, and the epoch for which it did.
    released: Vec<Vec<(u32, SampleId)>>,
    /// By node: a thread is sending notices to it.
    busy: Vec<bool>,
    /// By node: a retry is scheduled.
    scheduled: Vec<bool>,
}

impl Notices {
    pub fn new(nodes: u32) -> Self {
        let (released, busy) = (vec![vec![]; nodes as usize], vec![false; nodes as usize]);
        Self {
            progress: ProgressNotifier::new(nodes),
            done: 0,
            released,
            scheduled: busy.clone(),
            busy,
        }
    }

    /// A peer need not keep a sample that this epoch uses.
    fn release(&mut self, peer: NodeId, epoch: u32, sample: SampleId) {
        let released = &mut self.released[peer as usize];
        // A peer that is down for long evicts samples of older epochs without a notice.
        if released.first().is_some_and(|(first, _)| first.saturating_add(1) < epoch) {
            released.retain(|(other, _)| other.saturating_add(1) >= epoch);
        }
        released.push((epoch, sample));
    }

    fn has_news(&self, peer: NodeId) -> bool {
        self.progress.has_news(peer) || !self.released[peer as usize].is_empty()
    }

    /// Returns whether a node that is up has not received all notices.
    pub fn are_due(&self, is_up: impl Fn(NodeId) -> bool) -> bool {
        let nodes = 0..self.busy.len() as NodeId;
        nodes
            .filter(|&node| is_up(node))
            .any(|node| self.busy[node as usize] || self.has_news(node))
    }

    fn next(&mut self, peer: NodeId) -> Option<Notice> {
        let news = self.progress.next(peer);
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

impl Peers {
    /// A peer need not keep a sample for this node any more.
    pub fn release(&self, peer: NodeId, epoch: u32, sample: SampleId) {
        lock(&self.notices).release(peer, epoch, sample);
    }

    /// Tells other nodes how many steps are filled here.
    pub(super) fn notify_filled(self: &Arc<Self>, steps: u64) {
        lock(&self.notices).progress.loaded(steps);
        self.notify_all();
    }

    /// Tells other nodes which epochs are done: all batches have retired, and the samples that
    /// other nodes keep are there.
    pub fn notify_epochs_done(self: &Arc<Self>) {
        let mut news = false;
        loop {
            let mut notices = lock(&self.notices);
            let epoch = notices.done;
            if !self.job.epochs.is_retired(epoch) || !lock(&self.push).is_done_with(epoch) {
                break;
            }
            notices.done = epoch + 1;
            notices.progress.done(epoch);
            drop(notices);
            lock(&self.status).epochs.done(self.me, epoch);
            news = true;
        }
        if news {
            self.notify_all();
        }
    }

    /// Sends what is new to all nodes, on threads of the pool.
    pub(super) fn notify_all(self: &Arc<Self>) {
        let mut tasks = vec![];
        for peer in self.others() {
            let mut notices = lock(&self.notices);
            if notices.busy[peer as usize] || !notices.has_news(peer) {
                continue;
            }
            notices.busy[peer as usize] = true;
            drop(notices);
            let peers = self.clone();
            tasks.push(self.job.task(move |_| peers.notify(peer)));
        }
        if !tasks.is_empty() {
            self.job.lane.submit_first(tasks);
        }
    }

    fn notify(self: &Arc<Self>, peer: NodeId) {
        loop {
            // A peer that is down is notified when it is heard of again, or may be asked again: it
            // may be waiting for this notice, with nothing to send itself.
            let may = !self.job.is_stopping() && self.may_ask(peer);
            let mut notices = lock(&self.notices);
            let notice = if may { notices.next(peer) } else { None };
            let Some(notice) = notice else {
                notices.busy[peer as usize] = false;
                let has_news = notices.has_news(peer);
                drop(notices);
                if has_news {
                    self.schedule_retry(peer);
                }
                return;
            };
            drop(notices);
            let transport = &self.cluster.transport;
            let sent = transport.tell(peer, self.channel, &notice, self.deadline());
            let mut notices = lock(&self.notices);
            notices.progress.ended(peer, sent.is_ok());
            notices.busy[peer as usize] = sent.is_ok();
            drop(notices);
            match sent {
                Ok(()) => self.heard_from(peer),
                Err(error) => {
                    self.failed(peer, &error);
                    return self.schedule_retry(peer);
                }
            }
        }
    }

    fn schedule_retry(self: &Arc<Self>, peer: NodeId) {
        let scheduled = std::mem::replace(&mut lock(&self.notices).scheduled[peer as usize], true);
        if scheduled || self.job.is_stopping() {
            return;
        }
        let peers = self.clone();
        let retry = self.job.task(move |_| {
            lock(&peers.notices).scheduled[peer as usize] = false;
            peers.notify_all();
        });
        self.job.lane.delay(RETRY, retry);
    }

    /// A peer has answered or sent something. If it was down, it has missed notices.
    pub fn heard_from(self: &Arc<Self>, peer: NodeId) {
        let mut status = lock(&self.status);
        if !status.health.is_there(peer) {
            return;
        }
        tracing::info!(peer, "a peer is back and is used again");
        self.count_nodes(&status);
        drop(status);
        lock(&self.notices).progress.forget(peer);
        self.notify_all();
    }

    /// Tells all nodes that are up that this job has ended. Nodes that do not receive it in time
    /// notice by themselves.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        let until = Instant::now() + GOODBYE.min(self.limits.answer);
        for peer in self.others().filter(|&peer| self.is_up(peer)) {
            if Instant::now() < until {
                let _ = self.cluster.transport.tell(peer, self.channel, &Notice::Left, until);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_for_a_peer_that_is_down_do_not_grow_with_every_epoch() {
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
