//! The access stream: an order for every epoch, dealt out to ranks.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::deal::{Batch, Deal, Scheme, Slot};
use super::permutation::Permutation;
use super::torch::{self, Draws, RandomSampler};
use super::{SampleId, mt19937::Mt19937};

/// Positions worth a task of their own: some 100 microseconds of permutation.
const PARALLEL: usize = 1 << 13;

/// How an epoch's samples are ordered.
#[derive(Clone, Debug)]
pub enum Order {
    /// Bit for bit what torch gives. Uniform and contiguous schemes follow
    /// `DistributedSampler`, a fresh generator of seed + epoch; whole and imbalanced
    /// ones split the batches of one `RandomSampler`, whose generator, seeded once,
    /// runs on from epoch to epoch.
    Torch,
    /// The keyed permutation that needs no memory.
    Permutation,
    /// 0, 1, 2, ...
    Sequential,
    /// The user's own: one list per epoch, repeated when epochs outnumber lists.
    Given(Arc<Vec<Vec<SampleId>>>),
}

#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// F.
    pub samples: u32,
    pub ranks: u32,
    /// B, over all ranks.
    pub batch: u32,
    pub order: Order,
    pub scheme: Scheme,
    pub seed: u64,
    /// `DistributedSampler(drop_last=...)`: drop the tail instead of padding it.
    pub sampler_drop_last: bool,
    /// `DataLoader(drop_last=...)`: drop an incomplete last batch.
    pub drop_last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    #[error("there are no samples; a dataset needs at least one")]
    NoSamples,
    #[error("there are no ranks; at least one has to read")]
    NoRanks,
    #[error("a batch of 0 samples never ends an epoch; make it at least 1")]
    ZeroBatch,
    #[error(
        "a batch of {batch} cannot be dealt evenly to {ranks} ranks; make it a multiple of {ranks}"
    )]
    UnevenBatch { batch: u32, ranks: u32 },
    #[error("an epoch has no complete batch: {samples} samples, batches of {batch}")]
    NoIterations { samples: u32, batch: u32 },
    #[error("the given order has no lists; give one for each epoch, or one for all")]
    NoLists,
    #[error(
        "the given order of epoch {epoch} has {length} entries and that of epoch 0 has {expected}; \
         make all epochs equally long"
    )]
    UnequalLists { epoch: usize, length: usize, expected: usize },
    #[error(
        "the given order of epoch {epoch} names sample {sample} at position {position}, \
         but samples end at {}", samples - 1
    )]
    OutOfRange { epoch: usize, position: usize, sample: SampleId, samples: u32 },
}

/// The access stream of a whole job: a pure function of its configuration.
#[derive(Clone, Debug)]
pub struct AccessStream {
    config: StreamConfig,
    deal: Deal,
    /// Where one generator serves all epochs, marks to start from.
    marks: Option<Arc<Marks>>,
}

impl AccessStream {
    pub fn new(config: StreamConfig) -> Result<Self, SamplerError> {
        let StreamConfig { samples, ranks, batch, .. } = config;
        if samples == 0 {
            return Err(SamplerError::NoSamples);
        }
        if ranks == 0 {
            return Err(SamplerError::NoRanks);
        }
        if batch == 0 {
            return Err(SamplerError::ZeroBatch);
        }
        if config.scheme == Scheme::Uniform && batch % ranks != 0 {
            return Err(SamplerError::UnevenBatch { batch, ranks });
        }
        let length = match &config.order {
            Order::Given(lists) => check_lists(lists, samples)?,
            _ => u64::from(samples),
        };
        let deal = Deal::new(
            config.scheme,
            ranks,
            batch,
            length,
            config.sampler_drop_last,
            config.drop_last,
        );
        if deal.iterations() == 0 {
            return Err(SamplerError::NoIterations { samples: length as u32, batch });
        }
        let one_generator = matches!(config.order, Order::Torch)
            && matches!(config.scheme, Scheme::Whole | Scheme::Imbalanced);
        let marks = one_generator.then(|| Arc::new(Marks::new(samples, config.seed)));
        Ok(Self { config, deal, marks })
    }

    pub fn config(&self) -> &StreamConfig {
        &self.config
    }

    /// T: iterations an epoch.
    pub fn iterations(&self) -> u32 {
        self.deal.iterations()
    }

    /// How orders are cut into local batches, the same in every epoch.
    pub fn deal(&self) -> &Deal {
        &self.deal
    }

    /// The order of one epoch, materialised.
    pub fn epoch(&self, epoch: u32) -> EpochOrder {
        let StreamConfig { samples, seed, .. } = self.config;
        let mut order = match &self.config.order {
            Order::Torch => match &self.marks {
                Some(marks) => marks.at(epoch).next_epoch_left_early(),
                None => torch::epoch_order(samples, seed, epoch),
            },
            Order::Permutation => {
                let permutation = self.keyed(epoch);
                (0..samples)
                    .into_par_iter()
                    .with_min_len(PARALLEL)
                    .map(|position| permutation.forward(u64::from(position)) as SampleId)
                    .collect()
            }
            Order::Sequential => (0..samples).collect(),
            Order::Given(lists) => lists[epoch as usize % lists.len()].clone(),
        };
        if self.config.scheme == Scheme::Uniform {
            torch::pad_or_truncate(&mut order, self.config.ranks, self.config.sampler_drop_last);
        }
        order.truncate(self.deal.entries() as usize);
        EpochOrder { order, deal: self.deal, samples }
    }

    /// The permutation behind an epoch of [`Order::Permutation`]: position to sample
    /// and back without memory.
    pub fn permutation(&self, epoch: u32) -> Option<Permutation> {
        matches!(self.config.order, Order::Permutation).then(|| self.keyed(epoch))
    }

    /// Who consumes `sample` in an epoch, and when; the first time if it is read
    /// more than once, `None` if it is dropped. Needs no memory for
    /// [`Order::Permutation`] and [`Order::Sequential`]; other orders are built and
    /// searched, and [`EpochOrder::positions`] is the better tool for many samples.
    pub fn locate(&self, epoch: u32, sample: SampleId) -> Option<Slot> {
        if sample >= self.config.samples {
            return None;
        }
        let position = match &self.config.order {
            Order::Permutation => self.keyed(epoch).inverse(u64::from(sample)),
            Order::Sequential => u64::from(sample),
            Order::Torch | Order::Given(_) => {
                self.epoch(epoch).order.iter().position(|&other| other == sample)? as u64
            }
        };
        self.deal.slot(position)
    }

    fn keyed(&self, epoch: u32) -> Permutation {
        Permutation::new(u64::from(self.config.samples), self.config.seed, u64::from(epoch))
    }
}

fn check_lists(lists: &[Vec<SampleId>], samples: u32) -> Result<u64, SamplerError> {
    let expected = lists.first().ok_or(SamplerError::NoLists)?.len();
    for (epoch, list) in lists.iter().enumerate() {
        if list.len() != expected {
            return Err(SamplerError::UnequalLists { epoch, length: list.len(), expected });
        }
        if let Some(position) = list.iter().position(|&sample| sample >= samples) {
            let sample = list[position];
            return Err(SamplerError::OutOfRange { epoch, position, sample, samples });
        }
    }
    Ok(expected as u64)
}

/// Generators saved along a run, so that any epoch of a `RandomSampler` can be
/// asked for in any order without drawing all before it again. They change how
/// long an answer takes, never what it is.
#[derive(Debug)]
struct Marks {
    samples: u32,
    /// Epochs between two marks: small datasets would otherwise keep more
    /// generators than samples.
    every: u32,
    saved: Mutex<Vec<Mt19937>>,
}

impl Marks {
    fn new(samples: u32, seed: u64) -> Self {
        // A million words are skipped in under a millisecond.
        const WORDS: u64 = 1 << 20;
        let every = (WORDS / (2 * torch::randperm_draws(samples)).max(1)).max(1) as u32;
        Self { samples, every, saved: Mutex::new(vec![Mt19937::new(seed)]) }
    }

    /// The sampler as it stands before an epoch.
    fn at(&self, epoch: u32) -> RandomSampler {
        let index = (epoch / self.every) as usize;
        let generator = {
            // A panic while a mark was appended cannot leave half of one.
            let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
            while saved.len() <= index {
                let last = saved.len() - 1;
                let next = self.skipped(saved[last].clone(), self.every);
                saved.push(next.state().clone());
            }
            saved[index].clone()
        };
        self.skipped(generator, epoch % self.every)
    }

    fn skipped(&self, generator: Mt19937, epochs: u32) -> RandomSampler {
        let mut sampler =
            RandomSampler::from_state(self.samples, Draws::SamplerAlone, 0, generator);
        for _ in 0..epochs {
            sampler.skip_epoch();
        }
        sampler
    }
}

/// One epoch's order and how it is cut into local batches.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    order: Vec<SampleId>,
    deal: Deal,
    samples: u32,
}

impl EpochOrder {
    pub fn iterations(&self) -> u32 {
        self.deal.iterations()
    }

    /// The samples of one rank in one iteration, in the order it consumes them.
    ///
    /// # Panics
    /// If there is no such rank or iteration.
    #[inline]
    pub fn batch(&self, rank: u32, iteration: u32) -> Batch<'_> {
        self.deal.batch(&self.order, rank, iteration)
    }

    /// The global order, exactly as far as it is consumed: padded or truncated by
    /// the sampler, without a batch the loader drops.
    pub fn samples(&self) -> &[SampleId] {
        &self.order
    }

    /// The first position of each sample in [`Self::samples`]; `u32::MAX` for
    /// samples that this epoch does not use.
    pub fn positions(&self) -> Vec<u32> {
        let mut positions = vec![u32::MAX; self.samples as usize];
        // From the back, so that the first of several positions stays.
        for (position, &sample) in self.order.iter().enumerate().rev() {
            positions[sample as usize] = position as u32;
        }
        positions
    }

    /// Who consumes the entry at `position` of [`Self::samples`], and when.
    #[inline]
    pub fn slot(&self, position: u32) -> Option<Slot> {
        self.deal.slot(u64::from(position))
    }
}
