//! A batch between its plan and its delivery.
//!
//! 1. The planner reserves its block in the ring and sets each sample's origin ([`crate::plan`]).
//! 2. Threads fill its slots ([`crate::fill`]). Some samples end up elsewhere: lent from a tier, or
//!    in memory of their own after a read that hung.
//! 3. When the batch and all before it are filled, it retires ([`crate::retire`]): what the step
//!    frees is evicted, and what it keeps is put into tiers. This happens before the consumer sees
//!    the batch, since the consumer may write to its slots.
//! 4. It is published.
//!
//! A pending batch knows the next stage only as a [`RetireStage`], which it tells when it is
//! complete.

mod item;
mod queue;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belady_base::memory::Memory;
use belady_base::sync::{Arc, Mutex, lock};
use belady_control::model::online::{LOCAL, REMOTE, RankPending, SOURCE};
use belady_control::policy::{Evict, NodeId, TierId};
use belady_data::stage::{RingBlock, SlotState};
use belady_data::tier::Pinned;

pub use item::{BatchItem, SampleOrigin};
pub use queue::PendingQueue;

use crate::config::BadSamples;
use crate::job::{BatchExtra, HeldBytes, JobContext, LeadingBatch, Problem, Waiter};
use crate::metrics::Bad;

/// The stage after filling, as a pending batch and the peers know it.
pub trait RetireStage: Send + Sync + std::fmt::Debug {
    /// All samples of a batch have arrived.
    fn filled(self: Arc<Self>, batch: &PendingBatch);

    /// All samples of a batch that are kept are in their tiers or in the push queue.
    fn stored(self: Arc<Self>, batch: &PendingBatch);

    /// Retires the steps that may retire now.
    fn advance(self: Arc<Self>);
}

/// An item that another node is to keep.
#[derive(Clone, Copy, Debug)]
pub struct PlannedPush {
    pub item: u32,
    pub to: NodeId,
    pub tier: TierId,
}

/// A batch between its plan and its delivery.
#[derive(Debug)]
pub struct PendingBatch {
    pub job: Arc<JobContext>,
    pub block: RingBlock,
    pub items: Box<[BatchItem]>,
    pub evictions: Vec<Evict>,
    /// The local rank that the batch is for.
    pub rank: usize,
    /// Position of its step in the sequence of the job's steps, from 1.
    pub sequence: u64,
    pushes: Vec<PlannedPush>,
    next: Arc<dyn RetireStage>,
    planned: Instant,
    /// When the last sample arrived.
    filled: OnceLock<Instant>,
    /// Items that have not arrived.
    missing: AtomicU32,
    /// Tasks that put items into tiers and have not ended.
    storing: AtomicU32,
    extra: Mutex<BatchExtra>,
    bad: Mutex<Vec<(u32, Problem)>>,
    /// Items that a peer has lost although the policy believes them to stay there.
    lost: Mutex<Vec<PlannedPush>>,
    /// Items and bytes by class of places, once they have been asked for.
    origins: OnceLock<[(u32, u64); 3]>,
}

/// The policy's decisions about a batch.
#[derive(Debug, Default)]
pub struct BatchPlan {
    pub items: Vec<BatchItem>,
    pub evictions: Vec<Evict>,
    pub pushes: Vec<PlannedPush>,
}

impl PendingBatch {
    pub fn new(
        job: &Arc<JobContext>,
        next: Arc<dyn RetireStage>,
        block: RingBlock,
        plan: BatchPlan,
        rank: usize,
        sequence: u64,
    ) -> Arc<Self> {
        let BatchPlan { items, evictions, pushes } = plan;
        Arc::new(Self {
            job: job.clone(),
            block,
            missing: AtomicU32::new(items.len() as u32),
            items: items.into_boxed_slice(),
            evictions,
            pushes,
            rank,
            sequence,
            next,
            planned: Instant::now(),
            filled: OnceLock::new(),
            storing: AtomicU32::new(0),
            extra: Mutex::default(),
            bad: Mutex::default(),
            lost: Mutex::default(),
            origins: OnceLock::new(),
        })
    }

    pub fn item(&self, index: u32) -> &BatchItem {
        &self.items[index as usize]
    }

    /// Returns the size of an item's sample.
    pub fn size(&self, index: u32) -> u64 {
        self.job.size(self.item(index).sample)
    }

    pub fn epoch(&self) -> u32 {
        self.block.step().epoch
    }

    /// Returns the slot of an item, to be filled.
    ///
    /// # Safety
    /// The caller is the only one that fills this item, the item has not arrived yet, and no read
    /// that was given up has its slot.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot(&self, item: u32) -> &mut [u8] {
        // SAFETY: passed on to the caller.
        unsafe { self.block.slot(item as usize) }
    }

    /// Passes the bytes of an item that has arrived to `read`, before the batch is published.
    pub fn with_bytes<T>(&self, item: u32, read: impl FnOnce(&[u8]) -> T) -> T {
        let extra = lock(&self.extra);
        match extra.held(item as usize) {
            HeldBytes::Slot => {
                drop(extra);
                // SAFETY: it has arrived and is not published, so nothing writes to it. Others may
                // read it too: a put that hangs, waiters for the sample, peers.
                read(unsafe { self.block.bytes(item as usize) })
            }
            HeldBytes::Own(bytes) => {
                let bytes = bytes.clone();
                drop(extra);
                read(&bytes)
            }
            HeldBytes::Substitute(_, bytes) => read(bytes),
            HeldBytes::Lent(_, _, pinned) => {
                // SAFETY: it stays pinned as long as `extra` has it.
                read(unsafe { std::slice::from_raw_parts(pinned.start, pinned.length) })
            }
        }
    }

    /// Borrows items that a tier has pinned for this batch.
    pub fn lend(&self, tier: TierId, lent: &[(u32, Pinned)]) {
        let Some(lender) = self.job.tiers.lender(tier) else { return };
        let mut extra = lock(&self.extra);
        for &(item, pinned) in lent {
            let held = HeldBytes::Lent(tier, self.item(item).sample, pinned);
            extra.set(item as usize, self.items.len(), held);
            self.block.mark(item as usize, SlotState::Elsewhere);
        }
        extra.add_lender(tier, lender);
    }

    /// Sets the bytes of an item whose slot cannot be used.
    pub fn own(&self, item: u32, bytes: Arc<Memory>) {
        lock(&self.extra).set(item as usize, self.items.len(), HeldBytes::Own(bytes));
        self.block.mark(item as usize, SlotState::Elsewhere);
    }

    /// Leaves the slot of an item that has arrived to a thread that may still read it; the consumer
    /// gets a copy.
    pub fn leave_slot(&self, item: u32) {
        let copy = self.with_bytes(item, |bytes| Memory::from(bytes));
        self.own(item, Arc::new(copy));
    }

    /// Ends a read that other jobs may use, if an item leads one.
    fn end_shared_read(&self, item: &BatchItem) {
        if item.leads_shared()
            && let Some(reads) = &self.job.dataset.reads
        {
            item.set_leads_shared(false);
            reads.end(item.sample);
        }
    }

    /// Leaves to other jobs what this one has read or used for the last time: offers reads to their
    /// tiers, and keeps for a while what no job holds in memory any more. Ends the reads that others
    /// may use.
    fn share_samples(&self) {
        let Some(reads) = &self.job.dataset.reads else { return };
        let is_shared = |item: &BatchItem| item.leads_shared() || item.last_use;
        if !self.items.iter().any(is_shared) {
            return;
        }
        let others = self.job.dataset.others(&self.job);
        for (index, item) in (0..).zip(&self.items).filter(|(_, item)| is_shared(item)) {
            if !others.is_empty() && !self.is_bad(index) {
                let offered = others.iter().filter(|_| item.leads_shared());
                for other in offered {
                    self.with_bytes(index, |bytes| {
                        other.tiers.offer(item.sample, bytes, item.version());
                    });
                }
                let mut jobs = others.iter().chain([&self.job]);
                if !jobs.any(|job| job.tiers.find_in_memory(item.sample).is_some()) {
                    let keep = |bytes: &[u8]| reads.recent.keep(item.sample, bytes, item.version());
                    self.with_bytes(index, keep);
                }
            }
            self.end_shared_read(item);
        }
    }

    /// Records a sample that cannot be read.
    pub fn bad(&self, item: u32, problem: Problem) {
        self.end_shared_read(self.item(item));
        self.item(item).set_keep(None);
        lock(&self.bad).push((item, problem));
    }

    pub fn is_bad(&self, item: u32) -> bool {
        lock(&self.bad).iter().any(|(bad, _)| *bad == item)
    }

    /// Pushes an item back to a node that has lost it although the policy believes it to stay
    /// there.
    pub fn put_back(&self, push: PlannedPush) {
        lock(&self.lost).push(push);
    }

    /// Returns all items that other nodes are to keep, once the batch is filled.
    pub fn pushes(&self) -> Vec<PlannedPush> {
        let mut pushes = self.pushes.clone();
        pushes.append(&mut lock(&self.lost));
        pushes
    }

    /// Ends the in-flight read that an item leads, if any, and serves its waiters. The read of an
    /// item that is kept goes on until it is in its tier.
    pub fn arrived(&self, index: u32) {
        let item = self.item(index);
        if item.leads_shared()
            && let Some(reads) = &self.job.dataset.reads
        {
            self.serve(index, reads.arrive(item.sample));
        }
        if !item.leads() {
            return;
        }
        if item.keep().is_none() {
            self.end_read(index);
        } else {
            self.serve(index, self.job.in_flight.arrive(item.sample));
        }
    }

    /// Ends the in-flight read that an item leads. Returns the tier that must not keep the sample
    /// any more.
    pub fn end_read(&self, index: u32) -> Option<TierId> {
        let item = self.item(index);
        item.set_leads(false);
        let ended = self.job.in_flight.end(item.sample);
        self.serve(index, ended.waiters);
        ended.cancelled
    }

    fn serve(&self, index: u32, waiters: Vec<Box<dyn Waiter>>) {
        let version = self.item(index).version();
        for waiter in waiters {
            self.with_bytes(index, |bytes| waiter.arrived(bytes, version));
        }
    }

    /// Counts items that have arrived. After the last one, the batch goes to the next stage.
    pub fn filled(&self, items: u32) {
        if items > 0 && self.missing.fetch_sub(items, Ordering::AcqRel) == items {
            self.is_complete();
        }
    }

    /// Passes a batch of which all items have arrived to the next stage.
    pub fn is_complete(&self) {
        self.filled.get_or_init(Instant::now);
        self.next.clone().filled(self);
    }

    pub fn is_filled(&self) -> bool {
        self.missing() == 0
    }

    /// Returns how many items have not arrived.
    pub fn missing(&self) -> u32 {
        self.missing.load(Ordering::Acquire)
    }

    /// Adds what the batch consists of, and what of it has not arrived: of the slowest places,
    /// which are mostly the last.
    pub fn add_loads(&self, loads: &mut RankPending) {
        let origins = self.origins.get_or_init(|| {
            let mut origins = [(0, 0); 3];
            for (index, item) in (0..).zip(&self.items) {
                let origin = &mut origins[item.class()];
                *origin = (origin.0 + 1, origin.1 + self.size(index));
            }
            origins
        });
        let mut missing = self.missing();
        for class in [SOURCE, REMOTE, LOCAL] {
            let (items, bytes) = origins[class];
            let left = missing.min(items);
            missing -= left;
            loads.samples += u64::from(items);
            loads.bytes[class] += bytes;
            loads.left[class] += bytes * u64::from(left) / u64::from(items.max(1));
        }
    }

    /// Returns how long a consumer of this node has waited for this step since the batch was
    /// filled, or planned if it is not filled; zero while no consumer has asked for it.
    pub fn starved(&self) -> Duration {
        let since = self.filled.get().unwrap_or(&self.planned).elapsed();
        self.job.waited_for(self.sequence).min(since)
    }

    /// Begins to store what is kept, in so many tasks.
    pub fn begin_storing(&self, tasks: u32) {
        self.storing.store(tasks, Ordering::Release);
    }

    /// Ends one of the tasks that store. After the last one, the batch is published.
    pub fn end_store_task(&self) {
        if self.storing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.next.clone().stored(self);
        }
    }

    /// Delivers the batch to the consumer.
    pub fn publish(&self) {
        self.share_samples();
        let mut bad = std::mem::take(&mut *lock(&self.bad));
        // The report does not depend on which thread was faster.
        bad.sort_by_key(|(item, _)| *item);
        let which: Vec<u32> = bad.iter().map(|(item, _)| *item).collect();
        for (item, problem) in bad {
            self.settle(item, problem, &which);
        }
        // Which rank's batch pooled threads fill first is no rank's gain or loss.
        if !self.job.threads.are_pooled() {
            let held = self.filled.get().map(Instant::elapsed).unwrap_or_default();
            self.job.step_waits.held(self.sequence, self.rank, held);
        }
        let extra = std::mem::take(&mut *lock(&self.extra));
        if !extra.is_empty() {
            self.job.ranks[self.rank].extras.add(self.block.step(), extra);
        }
        self.block.publish();
    }

    fn settle(&self, item: u32, problem: Problem, bad: &[u32]) {
        let substitute = match self.job.bad_samples {
            BadSamples::Raise => {
                self.job.metrics.bad_sample(Bad::Raised);
                lock(&self.extra).problem.get_or_insert(problem);
                return;
            }
            BadSamples::Skip => None,
            BadSamples::Replace => self.substitute(item, bad),
        };
        lock(&self.extra).skipped.add(&problem, substitute.is_some());
        if let Some(substitute) = substitute {
            self.job.metrics.bad_sample(Bad::Replaced);
            lock(&self.extra).set(item as usize, self.items.len(), substitute);
            self.block.mark(item as usize, SlotState::Replaced);
        } else {
            self.job.metrics.bad_sample(Bad::Skipped);
            self.block.mark(item as usize, SlotState::Skipped);
        }
    }

    /// Copies the next good sample of the batch.
    fn substitute(&self, item: u32, bad: &[u32]) -> Option<HeldBytes> {
        let all = self.items.len() as u32;
        let good = (item + 1..all).chain(0..item).find(|other| !bad.contains(other))?;
        let bytes = self.with_bytes(good, |bytes| bytes.into());
        Some(HeldBytes::Substitute(self.item(good).sample, bytes))
    }
}

impl Drop for PendingBatch {
    /// Other jobs read themselves what the batch does not read any more.
    fn drop(&mut self) {
        self.items.iter().for_each(|item| self.end_shared_read(item));
    }
}

impl LeadingBatch for PendingBatch {
    fn copy_item(&self, item: u32, into: &mut [u8]) -> i64 {
        self.with_bytes(item, |bytes| into.copy_from_slice(bytes));
        self.item(item).version()
    }
}
