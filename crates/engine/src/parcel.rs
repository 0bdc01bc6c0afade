//! A batch on its way to the consumer.
//!
//! 1. The planner reserves its block in the ring and says where each sample comes from
//!    ([`crate::planner`]).
//! 2. Loading threads fill its slots ([`crate::load`]). Some samples end up elsewhere: lent
//!    from a tier, or in memory of their own after a read that hung.
//! 3. When all of it is there, and all of the batches before it, what the step frees is let go
//!    and what it keeps is put into tiers ([`crate::keep`]): before the consumer sees it, since
//!    the consumer may write to its slots.
//! 4. It is published.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belady_control::policy::{Evict, NodeId, TierId};
use belady_data::SampleId;
use belady_data::fork::Loan;
use belady_data::memory::Memory;
use belady_data::source::ReadError;
use belady_data::stage::{self, Block, SlotState};
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::Pinned;

use crate::cache::Lender;
use crate::config::BadSamples;
use crate::metrics::Bad;
use crate::run::Run;

/// Stands for the source where a tier's number is expected.
pub const SOURCE: TierId = 0;
/// Stands for "nowhere" where a tier to keep in is expected.
pub const NOWHERE: TierId = 0;

/// One sample of a batch.
#[derive(Debug)]
pub struct Item {
    pub sample: SampleId,
    pub from: TierId,
    /// The copy at `from` goes when the step is over.
    pub last_use: bool,
    /// It lies at `from` without the policy's knowledge.
    pub guest: bool,
    /// Another node has it; `from` is then the source, where it is read if that fails.
    pub peer: Option<NodeId>,
    /// The tier of that node in which the policy believes it to be, and to stay; else nowhere.
    pub peer_tier: TierId,
    keep: AtomicU8,
    /// Of the file that its bytes are of, once they are there.
    version: AtomicI64,
    /// How often it was looked for where another node was to put it.
    looked_for: AtomicU32,
    late: AtomicBool,
    /// How often it was looked for after all steps before its own were over here.
    looked_late: AtomicU32,
    /// Others may wait for this one.
    leads: AtomicBool,
    /// A read that was given up may still write to the slot.
    slot_lost: AtomicBool,
}

impl Item {
    pub fn new(sample: SampleId, from: TierId, last_use: bool, keep: TierId) -> Self {
        Self {
            sample,
            from,
            last_use,
            guest: false,
            peer: None,
            peer_tier: NOWHERE,
            keep: AtomicU8::new(keep),
            version: AtomicI64::new(0),
            looked_for: AtomicU32::new(0),
            late: AtomicBool::new(false),
            looked_late: AtomicU32::new(0),
            leads: AtomicBool::new(false),
            slot_lost: AtomicBool::new(false),
        }
    }

    /// From a tier that has it without the policy's knowledge.
    pub fn guest(sample: SampleId, from: TierId, keep: TierId) -> Self {
        Self { guest: true, ..Self::new(sample, from, false, keep) }
    }

    /// From another node.
    pub fn remote(
        sample: SampleId,
        (peer, peer_tier): (NodeId, TierId),
        last_use: bool,
        keep: TierId,
    ) -> Self {
        Self { peer: Some(peer), peer_tier, ..Self::new(sample, SOURCE, last_use, keep) }
    }

    pub fn keep(&self) -> TierId {
        self.keep.load(Ordering::Acquire)
    }

    pub fn set_keep(&self, tier: TierId) {
        self.keep.store(tier, Ordering::Release);
    }

    pub fn version(&self) -> i64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn set_version(&self, version: i64) {
        self.version.store(version, Ordering::Release);
    }

    /// How often it was looked for, this time included.
    pub fn look_for(&self) -> u32 {
        self.looked_for.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The same once all steps before its own are over here.
    pub fn look_late(&self) -> u32 {
        self.looked_late.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// It was found where it was not a moment ago; whether for the first time.
    pub fn comes_late(&self) -> bool {
        !self.late.swap(true, Ordering::Relaxed)
    }

    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    pub fn set_leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Release);
    }

    pub fn slot_is_lost(&self) -> bool {
        self.slot_lost.load(Ordering::Acquire)
    }

    pub fn lose_slot(&self) {
        self.slot_lost.store(true, Ordering::Release);
    }
}

/// Where the bytes of a sample are.
#[derive(Debug, Default)]
pub enum Held {
    /// In its slot.
    #[default]
    Slot,
    /// Lent by a tier.
    Lent(TierId, SampleId, Pinned),
    /// Shared with a write that may hang.
    Own(Arc<Memory>),
    /// A copy of another sample of the batch, in the place of a bad one.
    Substitute(SampleId, Memory),
}

/// A sample that could not be had.
#[derive(Debug)]
pub struct Problem {
    pub error: ReadError,
    pub attempts: u32,
}

/// Samples of a batch that were skipped or replaced, and why. A failure is reported when its batch is
/// given to the consumer: one that was staged in vain is not reported.
#[derive(Clone, Debug, Default)]
pub struct Missing(Vec<Arc<str>>);

impl Missing {
    fn add(&mut self, problem: &Problem, is_replaced: bool) {
        let Problem { error, attempts } = problem;
        let fate = if is_replaced { "replaced" } else { "skipped" };
        let attempts =
            if *attempts == 1 { "one attempt".into() } else { format!("{attempts} attempts") };
        self.0.push(format!("bad sample, {fate} after {attempts}: {error}").into());
    }

    pub fn report(&self) {
        for what in &self.0 {
            tracing::warn!("{what}");
        }
    }
}

/// What a batch has beside its block. What is lent goes back when it is dropped.
#[derive(Debug, Default)]
pub struct Extra {
    /// By sample of the batch; empty if all are in their slots.
    pub held: Vec<Held>,
    pub problem: Option<Problem>,
    pub missing: Missing,
    /// The tiers that have lent something.
    lenders: Vec<(TierId, Lender)>,
    /// For what the consumer has been given.
    loan: Option<Loan>,
}

impl Extra {
    pub fn held(&self, item: usize) -> &Held {
        self.held.get(item).unwrap_or(&Held::Slot)
    }

    /// Notes that the consumer has been given all of this, and the block: a process that it forks
    /// inherits these bytes.
    pub fn lend(&mut self, block: &stage::Batch) {
        let elsewhere = self.held.iter().filter_map(|held| match held {
            Held::Slot => None,
            Held::Own(bytes) => Some((bytes.as_ptr(), bytes.len())),
            Held::Substitute(_, bytes) => Some((bytes.as_ptr(), bytes.len())),
            Held::Lent(_, _, pinned) => Some((pinned.start, pinned.length)),
        });
        self.loan =
            Some(Loan::of([(block.as_ptr(), block.block_len())].into_iter().chain(elsewhere)));
    }

    fn put(&mut self, item: usize, of: usize, held: Held) {
        if self.held.is_empty() {
            self.held.resize_with(of, Held::default);
        }
        self.held[item] = held;
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        if self.lenders.is_empty() {
            return;
        }
        for held in &self.held {
            if let Held::Lent(from, sample, _) = held
                && let Some((_, lender)) = self.lenders.iter().find(|(tier, _)| tier == from)
            {
                lender.tier.unpin(*sample);
            }
        }
    }
}

/// An item that another node is to keep.
#[derive(Clone, Copy, Debug)]
pub struct Gift {
    pub item: u32,
    pub to: NodeId,
    pub tier: TierId,
}

#[derive(Debug)]
pub struct Parcel {
    pub run: Arc<Run>,
    pub block: Block,
    pub items: Box<[Item]>,
    pub evictions: Vec<Evict>,
    gifts: Vec<Gift>,
    /// Place in the sequence of the job's batches, from 1.
    pub sequence: u64,
    planned: Instant,
    /// When all of it was there.
    loaded: OnceLock<Instant>,
    loading: AtomicU32,
    keeping: AtomicU32,
    extra: Mutex<Extra>,
    bad: Mutex<Vec<(u32, Problem)>>,
    /// Items that are not where the policy believes them to stay, and are put back.
    lost: Mutex<Vec<Gift>>,
}

impl Parcel {
    pub fn new(
        run: &Arc<Run>,
        block: Block,
        items: Vec<Item>,
        evictions: Vec<Evict>,
        gifts: Vec<Gift>,
        sequence: u64,
    ) -> Arc<Self> {
        let loading = AtomicU32::new(items.len() as u32);
        Arc::new(Self {
            run: run.clone(),
            block,
            items: items.into_boxed_slice(),
            evictions,
            gifts,
            sequence,
            planned: Instant::now(),
            loaded: OnceLock::new(),
            loading,
            keeping: AtomicU32::new(0),
            extra: Mutex::default(),
            bad: Mutex::default(),
            lost: Mutex::default(),
        })
    }

    /// The slot of an item, to be filled.
    ///
    /// # Safety
    /// The caller is the only one that loads this item, which is not loaded yet, and no read that was
    /// given up has its slot.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot(&self, item: u32) -> &mut [u8] {
        // SAFETY: passed on to the caller.
        unsafe { self.block.slot(item as usize) }
    }

    /// Looks at the bytes of an item that is loaded, before the batch is published.
    pub fn with_bytes<T>(&self, item: u32, look: impl FnOnce(&[u8]) -> T) -> T {
        let extra = lock(&self.extra);
        match extra.held(item as usize) {
            Held::Slot => {
                drop(extra);
                // SAFETY: it is loaded and not published, so nothing writes to it. Others may look at
                // it too: a put that hangs, loads that wait for the sample, peers.
                look(unsafe { self.block.bytes(item as usize) })
            }
            Held::Own(bytes) => {
                let bytes = bytes.clone();
                drop(extra);
                look(&bytes)
            }
            Held::Substitute(_, bytes) => look(bytes),
            Held::Lent(_, _, pinned) => {
                // SAFETY: it stays pinned as long as `extra` has it.
                look(unsafe { std::slice::from_raw_parts(pinned.start, pinned.length) })
            }
        }
    }

    /// Items that a tier has pinned for this batch.
    pub fn lend(&self, tier: TierId, lent: &[(u32, Pinned)]) {
        let Some(lender) = self.run.cache.lender(tier) else { return };
        let mut extra = lock(&self.extra);
        for &(item, pinned) in lent {
            let sample = self.items[item as usize].sample;
            extra.put(item as usize, self.items.len(), Held::Lent(tier, sample, pinned));
            self.block.mark(item as usize, SlotState::Elsewhere);
        }
        if extra.lenders.iter().all(|(other, _)| *other != tier) {
            extra.lenders.push((tier, lender));
        }
    }

    pub fn own(&self, item: u32, bytes: Arc<Memory>) {
        lock(&self.extra).put(item as usize, self.items.len(), Held::Own(bytes));
        self.block.mark(item as usize, SlotState::Elsewhere);
    }

    /// Leaves the slot of an item that is loaded to somebody who may still read it; the consumer
    /// gets a copy.
    pub fn leave_slot(&self, item: u32) {
        let copy = self.with_bytes(item, |bytes| Memory::from(bytes));
        self.own(item, Arc::new(copy));
    }

    /// A sample that cannot be had.
    pub fn bad(&self, item: u32, problem: Problem) {
        self.items[item as usize].set_keep(NOWHERE);
        lock(&self.bad).push((item, problem));
    }

    /// Another node has lost an item which the policy believes to stay there.
    pub fn put_back(&self, gift: Gift) {
        lock(&self.lost).push(gift);
    }

    /// All that other nodes are to keep, once the batch is loaded.
    pub fn gifts(&self) -> Vec<Gift> {
        let mut gifts = self.gifts.clone();
        gifts.append(&mut lock(&self.lost));
        gifts
    }

    pub fn is_bad(&self, item: u32) -> bool {
        lock(&self.bad).iter().any(|(bad, _)| *bad == item)
    }

    /// So many items are there; whether these were the last.
    pub fn loaded(&self, items: u32) -> bool {
        let all = items > 0 && self.loading.fetch_sub(items, Ordering::AcqRel) == items;
        if all {
            self.loaded.get_or_init(Instant::now);
        }
        all
    }

    /// Since when it is what it is: loaded, or on its way.
    pub fn since(&self) -> Duration {
        self.loaded.get().unwrap_or(&self.planned).elapsed()
    }

    pub fn is_loaded(&self) -> bool {
        self.loading.load(Ordering::Acquire) == 0
    }

    /// Items that are not there yet.
    pub fn left(&self) -> u32 {
        self.loading.load(Ordering::Acquire)
    }

    pub fn begin_keeping(&self, tasks: u32) {
        self.keeping.store(tasks, Ordering::Release);
    }

    /// Whether this was the last.
    pub fn kept(&self) -> bool {
        self.keeping.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Hands the batch to the consumer.
    pub fn publish(&self) {
        let mut bad = std::mem::take(&mut *lock(&self.bad));
        // What is said of the batch does not depend on who was quicker.
        bad.sort_by_key(|(item, _)| *item);
        let which: Vec<u32> = bad.iter().map(|(item, _)| *item).collect();
        for (item, problem) in bad {
            self.settle(item, problem, &which);
        }
        let extra = std::mem::take(&mut *lock(&self.extra));
        if !extra.held.is_empty() || extra.problem.is_some() || !extra.missing.0.is_empty() {
            self.run.extras.add(self.block.step(), extra);
        }
        self.block.publish();
    }

    fn settle(&self, item: u32, problem: Problem, bad: &[u32]) {
        let substitute = match self.run.bad_samples {
            BadSamples::Raise => {
                self.run.metrics.bad_sample(Bad::Raised);
                lock(&self.extra).problem.get_or_insert(problem);
                return;
            }
            BadSamples::Skip => None,
            BadSamples::Replace => self.substitute(item, bad),
        };
        lock(&self.extra).missing.add(&problem, substitute.is_some());
        if let Some(substitute) = substitute {
            self.run.metrics.bad_sample(Bad::Replaced);
            lock(&self.extra).put(item as usize, self.items.len(), substitute);
            self.block.mark(item as usize, SlotState::Replaced);
        } else {
            self.run.metrics.bad_sample(Bad::Skipped);
            self.block.mark(item as usize, SlotState::Skipped);
        }
    }

    /// A copy of the next good sample of the batch.
    fn substitute(&self, item: u32, bad: &[u32]) -> Option<Held> {
        let all = self.items.len() as u32;
        let good = (item + 1..all).chain(0..item).find(|other| !bad.contains(other))?;
        let bytes = self.with_bytes(good, |bytes| bytes.into());
        Some(Held::Substitute(self.items[good as usize].sample, bytes))
    }
}
