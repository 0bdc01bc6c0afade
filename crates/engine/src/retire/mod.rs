//! Retires steps: evicts what a step frees, stores what it keeps, and publishes its batch.
//!
//! Steps retire in order. Policies plan in that order too, so there is space for what a step keeps
//! once the step has evicted what it frees, and what a later batch counts on is there or on its
//! way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belady_base::sync::Arc;
use belady_control::policy::{Evict, TierId};
use belady_data::tier::Put;

use crate::job::JobContext;
use crate::peers::Peers;
use crate::pending::{PendingBatch, PendingQueue, RetireStage};
use crate::pool::{Task, Worker};

/// Samples are stored in pieces of about this size.
const PIECE: u64 = 1 << 20;
/// How often a filled batch that waits for other nodes checks whether its consumer starves.
const TICK: Duration = Duration::from_millis(50);

/// The retire stage of a job.
#[derive(Debug)]
pub struct Retirer {
    job: Arc<JobContext>,
    peers: Option<Arc<Peers>>,
    queue: Arc<PendingQueue>,
    /// A check whether the first step may retire is scheduled.
    pub check_scheduled: AtomicBool,
}

impl RetireStage for Retirer {
    fn filled(self: Arc<Self>, batch: &PendingBatch) {
        if let Some(peers) = &self.peers {
            peers.batch_filled(batch);
        }
        self.advance();
    }

    fn stored(self: Arc<Self>, batch: &PendingBatch) {
        // Before it is published: the consumer may end the job as soon as it has the last batch.
        self.job.epochs.retired(batch.epoch());
        if let Some(peers) = &self.peers {
            peers.notify_epochs_done();
        }
        batch.publish();
    }

    fn advance(self: Arc<Self>) {
        // Under the queue's lock, so that no other thread retires the next step meanwhile.
        let retire = |batch: &PendingBatch| {
            self.evict(batch);
            if let Some(peers) = &self.peers {
                peers.step_retires(batch);
            }
            self.announce(batch);
        };
        while let Some(batch) = self.queue.pop_filled(|first| self.may_retire(first), retire) {
            self.store(&batch);
        }
    }
}

impl Retirer {
    pub fn new(job: Arc<JobContext>, peers: Option<Arc<Peers>>, queue: Arc<PendingQueue>) -> Self {
        Self { job, peers, queue, check_scheduled: AtomicBool::new(false) }
    }

    /// Returns whether a filled batch may retire. If not, schedules another check, since a consumer
    /// may be waiting for the batch.
    fn may_retire(self: &Arc<Self>, batch: &PendingBatch) -> bool {
        let may = self.peers.as_ref().is_none_or(|peers| peers.may_retire(batch));
        if !may && !self.check_scheduled.swap(true, Ordering::AcqRel) {
            let this = self.clone();
            self.job.lane.delay(TICK, self.job.task(move |_| this.check()));
        }
        may
    }

    /// Checks again whether the first step may retire.
    pub fn check(self: Arc<Self>) {
        self.check_scheduled.store(false, Ordering::Release);
        self.advance();
    }

    /// Evicts what a step frees.
    fn evict(&self, batch: &PendingBatch) {
        let job = &self.job;
        let used_up = batch.items.iter().filter(|item| item.last_use);
        for (item, tier) in used_up.filter_map(|item| Some((item, item.tier()?))) {
            // It may still be on its way there.
            job.in_flight.cancel(item.sample, tier, batch.sequence - 1);
            job.tiers.evict(tier, item.sample);
        }
        for &Evict { sample, tier } in &batch.evictions {
            job.in_flight.cancel(sample, tier, batch.sequence - 1);
            match &self.peers {
                Some(peers) => peers.evict(tier, sample, batch.epoch()),
                None => job.tiers.evict(tier, sample),
            }
        }
    }

    /// Leads an in-flight read for each sample that is stored from here on, so that later batches
    /// can wait for it and a later step can cancel it, even if the sample came by another batch's
    /// read.
    fn announce(&self, batch: &PendingBatch) {
        for item in &batch.items {
            if item.keep().is_some() && !item.leads() {
                item.set_leads(self.job.in_flight.lead_arrived(item.sample, batch.sequence));
            }
        }
    }

    /// Stores what a batch keeps, here and on other nodes.
    fn store(self: &Arc<Self>, batch: &Arc<PendingBatch>) {
        let mut pieces: Vec<Vec<(u32, TierId)>> = vec![];
        let mut bytes = PIECE;
        for (index, item) in (0..).zip(&batch.items) {
            let Some(tier) = item.keep() else { continue };
            if bytes >= PIECE {
                pieces.push(vec![]);
                bytes = 0;
            }
            bytes += self.job.size(item.sample);
            if let Some(piece) = pieces.last_mut() {
                piece.push((index, tier));
            }
        }
        let pushes = batch.pushes();
        let in_memory = |&(_, tier): &(u32, TierId)| !self.job.tiers.may_hang(tier);
        batch.begin_storing(pieces.len() as u32 + u32::from(!pushes.is_empty()));
        match &pieces[..] {
            [] if pushes.is_empty() => self.clone().stored(batch),
            // A copy in memory is cheaper than another thread.
            [piece] if piece.iter().all(in_memory) => self.store_in_memory(batch, piece),
            _ => {
                let tasks = pieces.into_iter().map(|items| self.store_task(batch, items.into(), 0));
                self.job.lane.submit_first(tasks.collect::<Vec<_>>());
            }
        }
        if let Some(peers) = self.peers.as_ref().filter(|_| !pushes.is_empty()) {
            peers.offer(batch, pushes);
        }
    }

    fn store_in_memory(&self, batch: &Arc<PendingBatch>, items: &[(u32, TierId)]) {
        for &(index, tier) in items {
            let item = batch.item(index);
            self.will_put(batch, index, tier);
            let put = |bytes: &[u8]| self.job.tiers.put(tier, item.sample, bytes, item.version());
            self.was_put(batch, index, tier, batch.with_bytes(index, put));
        }
        batch.end_store_task();
    }

    /// Returns a task that stores items of a piece, from the `first` on.
    fn store_task(
        self: &Arc<Self>,
        batch: &Arc<PendingBatch>,
        items: Arc<[(u32, TierId)]>,
        first: usize,
    ) -> Task {
        let (this, batch) = (self.clone(), batch.clone());
        self.job.task(move |worker| this.store_items(worker, &batch, &items, first))
    }

    fn store_items(
        self: &Arc<Self>,
        worker: &Worker,
        batch: &Arc<PendingBatch>,
        items: &Arc<[(u32, TierId)]>,
        first: usize,
    ) {
        for at in first..items.len() {
            let (index, tier) = items[at];
            let item = batch.item(index);
            let instead = {
                let (this, batch, items) = (self.clone(), batch.clone(), items.clone());
                move || {
                    batch.leave_slot(index);
                    this.was_put(&batch, index, tier, Put::Refused);
                    this.job.lane.submit_first(vec![this.store_task(&batch, items, at + 1)]);
                }
            };
            self.will_put(batch, index, tier);
            let bytes = |put: &mut dyn FnMut(&[u8]) -> Put| batch.with_bytes(index, put);
            let sample = (item.sample, item.version());
            let put = self.job.put_watched(worker, tier, sample, bytes, instead);
            // If it hangs, another thread goes on.
            let Some(put) = put else { return };
            self.was_put(batch, index, tier, put);
        }
        batch.end_store_task();
    }

    fn will_put(&self, batch: &PendingBatch, index: u32, tier: TierId) {
        if let Some(peers) = &self.peers {
            peers.will_put(tier, batch.item(index).sample, batch.epoch());
        }
    }

    /// An item was put into its tier, or could not be.
    fn was_put(&self, batch: &Arc<PendingBatch>, index: u32, tier: TierId, put: Put) {
        let item = batch.item(index);
        self.job.metrics.put(tier, put);
        if let Some(peers) = &self.peers {
            match put {
                Put::Stored | Put::Present => peers.was_put(tier, item.sample, batch.epoch()),
                Put::Full | Put::Refused => {
                    peers.was_not_put(tier, item.sample);
                    if put == Put::Full {
                        // Another node may not have freed the space yet.
                        peers.keep_later(batch, index, tier);
                    }
                }
            }
        }
        if item.leads() && batch.end_read(index) == Some(tier) {
            self.job.tiers.evict(tier, item.sample);
        }
    }

    /// Drops everything that a stopped job still has under way: pending batches refer to the job.
    pub fn abandon(&self) {
        self.job.stop();
        self.job.lane.close();
        self.queue.clear();
        self.job.in_flight.close();
        for rank in &self.job.ranks {
            rank.extras.close();
        }
        if let Some(peers) = &self.peers {
            peers.close();
        }
    }
}
