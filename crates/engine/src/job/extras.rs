//! What a batch has beside its block in the ring: lent, separate and replaced samples, and
//! problems.
//!
//! The retire stage stores it when it publishes the block, and the consumer takes it with the
//! block.

use std::collections::HashMap;

use belady_base::SampleId;
use belady_base::fork::Loan;
use belady_base::memory::Memory;
use belady_base::sync::{Arc, Mutex, lock};
use belady_control::policy::TierId;
use belady_control::sampler::Step;
use belady_data::source::ReadError;
use belady_data::stage;
use belady_data::tier::Pinned;

use crate::tiers::Lender;

/// Where the bytes of a sample are.
#[derive(Debug, Default)]
pub enum HeldBytes {
    /// In the sample's slot of the ring.
    #[default]
    Slot,
    /// Lent by a tier.
    Lent(TierId, SampleId, Pinned),
    /// In memory of their own, shared with a write that may hang.
    Own(Arc<Memory>),
    /// A copy of another sample of the batch, which replaces a bad one.
    Substitute(SampleId, Memory),
}

/// A sample that could not be read.
#[derive(Debug)]
pub struct Problem {
    pub error: ReadError,
    pub attempts: u32,
}

/// The samples of a batch that were skipped or replaced, and why. They are reported when the batch
/// is delivered, so a batch that is never delivered reports nothing.
#[derive(Clone, Debug, Default)]
pub struct SkippedSamples(Vec<Arc<str>>);

impl SkippedSamples {
    /// Makes them from the texts of another process.
    pub fn from_texts(texts: impl IntoIterator<Item = String>) -> Self {
        Self(texts.into_iter().map(Arc::from).collect())
    }

    /// Returns a text for each sample.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|text| &**text)
    }

    pub(crate) fn add(&mut self, problem: &Problem, is_replaced: bool) {
        let Problem { error, attempts } = problem;
        let fate = if is_replaced { "replaced" } else { "skipped" };
        let attempts =
            if *attempts == 1 { "one attempt".into() } else { format!("{attempts} attempts") };
        self.0.push(format!("bad sample, {fate} after {attempts}: {error}").into());
    }

    /// Logs a warning for each sample.
    pub fn report(&self) {
        for what in &self.0 {
            tracing::warn!("{what}");
        }
    }
}

/// What one batch has beside its block. Dropping it returns what is lent.
#[derive(Debug, Default)]
pub struct BatchExtra {
    /// By sample of the batch; empty if all are in their slots.
    held: Vec<HeldBytes>,
    pub problem: Option<Problem>,
    pub skipped: SkippedSamples,
    /// The tiers that have lent samples.
    lenders: Vec<(TierId, Lender)>,
    /// Covers the memory that the consumer was given.
    loan: Option<Loan>,
}

impl BatchExtra {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.problem.is_none() && self.skipped.0.is_empty()
    }

    pub fn held(&self, item: usize) -> &HeldBytes {
        self.held.get(item).unwrap_or(&HeldBytes::Slot)
    }

    /// Sets where the bytes of an item are, in a batch of `of` items.
    pub fn set(&mut self, item: usize, of: usize, held: HeldBytes) {
        if self.held.is_empty() {
            self.held.resize_with(of, HeldBytes::default);
        }
        self.held[item] = held;
    }

    /// Keeps a tier alive that has lent samples to this batch.
    pub fn add_lender(&mut self, tier: TierId, lender: Lender) {
        if self.lenders.iter().all(|(other, _)| *other != tier) {
            self.lenders.push((tier, lender));
        }
    }

    /// Notes that the consumer has been given all of this, and the block: a process that it forks
    /// inherits these bytes.
    pub fn lend(&mut self, block: &stage::RingBatch) {
        let elsewhere = self.held.iter().filter_map(|held| match held {
            HeldBytes::Slot => None,
            HeldBytes::Own(bytes) => Some((bytes.as_ptr(), bytes.len())),
            HeldBytes::Substitute(_, bytes) => Some((bytes.as_ptr(), bytes.len())),
            HeldBytes::Lent(_, _, pinned) => Some((pinned.start, pinned.length)),
        });
        self.loan =
            Some(Loan::of([(block.as_ptr(), block.block_len())].into_iter().chain(elsewhere)));
    }
}

impl Drop for BatchExtra {
    fn drop(&mut self) {
        if self.lenders.is_empty() {
            return;
        }
        for held in &self.held {
            if let HeldBytes::Lent(from, sample, _) = held
                && let Some((_, lender)) = self.lenders.iter().find(|(tier, _)| tier == from)
            {
                lender.tier.unpin(*sample);
            }
        }
    }
}

/// The extras of published batches, until the consumer takes them.
#[derive(Debug)]
pub struct Extras {
    /// `None` once the job has ended.
    waiting: Mutex<Option<HashMap<Step, BatchExtra>>>,
}

impl Default for Extras {
    fn default() -> Self {
        Self { waiting: Mutex::new(Some(HashMap::new())) }
    }
}

impl Extras {
    pub fn add(&self, step: Step, extra: BatchExtra) {
        let refused = match &mut *lock(&self.waiting) {
            Some(waiting) => waiting.insert(step, extra),
            None => Some(extra),
        };
        drop(refused);
    }

    pub fn take(&self, step: Step) -> BatchExtra {
        let mut waiting = lock(&self.waiting);
        waiting.as_mut().and_then(|waiting| waiting.remove(&step)).unwrap_or_default()
    }

    /// Drops all extras, for good.
    pub fn close(&self) {
        let waiting = lock(&self.waiting).take();
        drop(waiting);
    }
}
