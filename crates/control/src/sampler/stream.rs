//! The access stream: an order for every epoch, split over ranks.

use std::sync::Arc;

use rayon::prelude::*;

use super::SampleId;
use super::checkpoints::GeneratorCheckpoints;
use super::epoch_order::EpochOrder;
use super::orders::{OrderError, OrderProvider};
use super::permutation::Permutation;
use super::scheme::{BatchLayout, BatchSlot, Scheme};
use super::torch::{self, Draws, RandomSampler};

/// Positions of one parallel task: some 100 microseconds of permutation.
const PARALLEL: usize = 1 << 13;

/// How an epoch's samples are ordered.
#[derive(Clone, Debug)]
pub enum Order {
    /// Bit for bit torch's order. The uniform, parts and contiguous schemes follow
    /// `DistributedSampler`, which seeds a generator with seed + epoch. The whole and imbalanced
    /// schemes split the batches of one `RandomSampler`, whose generator is seeded once and
    /// continues from epoch to epoch.
    Torch,
    /// The keyed permutation that needs no memory.
    Permutation,
    /// 0, 1, 2, ...
    Sequential,
    /// The user's lists, one per epoch, repeated when epochs outnumber lists.
    Given(Arc<Vec<Vec<SampleId>>>),
    /// Lists that a provider gives epoch by epoch, for one rank or for all. The provider also
    /// decides the batches: of a [`StreamConfig`] only `samples` and `ranks` count.
    Provided(Arc<dyn OrderProvider>),
}

/// What an access stream is a function of.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// F.
    pub samples: u32,
    /// Ranks that share each global batch.
    pub ranks: u32,
    /// B, over all ranks.
    pub batch: u32,
    /// How an epoch's samples are ordered.
    pub order: Order,
    /// How a global batch is split over ranks.
    pub scheme: Scheme,
    /// The seed of all epochs.
    pub seed: u64,
    /// `DistributedSampler(drop_last=...)`: drop the tail instead of padding it.
    pub sampler_drop_last: bool,
    /// `DataLoader(drop_last=...)`: drop an incomplete last batch.
    pub drop_last: bool,
}

/// Why there is no such order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SamplerError {
    #[error("the dataset is empty; it needs at least one sample")]
    NoSamples,
    #[error("the job has 0 ranks; give at least 1")]
    NoRanks,
    #[error("the batch size is 0; make it at least 1")]
    ZeroBatch,
    #[error(
        "a batch of {batch} cannot be split evenly over {ranks} ranks; make it a multiple of \
         {ranks}"
    )]
    UnevenBatch { batch: u32, ranks: u32 },
    #[error(
        "an epoch of {samples} samples has no complete batch of {batch}; use a smaller batch or \
         keep incomplete batches"
    )]
    NoIterations { samples: u32, batch: u32 },
    #[error("the given order has no lists; give one for each epoch, or one for all epochs")]
    NoLists,
    #[error(
        "the given order of epoch {epoch} has {length} entries and that of epoch 0 has {expected}; \
         make all epochs equally long"
    )]
    UnequalLists { epoch: usize, length: usize, expected: usize },
    #[error(
        "the given order of epoch {epoch} names sample {sample} at position {position}, \
         but the last sample is {}", samples - 1
    )]
    OutOfRange { epoch: usize, position: usize, sample: SampleId, samples: u32 },
    #[error("rank {rank} does not exist: {ranks} ranks are counted from 0")]
    NoSuchRank { rank: u32, ranks: u32 },
    #[error(
        "{ranks} batches of {batch} samples are more than 2^32 samples a step; make the batch \
         smaller"
    )]
    HugeBatch { batch: u32, ranks: u32 },
    #[error("the order is for {known} ranks, but the job has {ranks}")]
    ProvidedRanks { known: u32, ranks: u32 },
    #[error("entry {at} of the weights is {weight}; a weight must be finite and at least 0")]
    BadWeight { at: usize, weight: String },
    #[error("no weight is above 0, so no sample can be drawn")]
    NoWeight,
    #[error(
        "{length} samples cannot be drawn without replacement: only {drawable} have a weight \
         above 0; draw fewer, or with replacement"
    )]
    TooFewToDraw { length: u32, drawable: usize },
    #[error("dataset {at} of the mixture has no samples; leave it out or set its weight to 0")]
    EmptyPart { at: usize },
    #[error("the datasets of the mixture have 2^32 samples or more together; the most is 2^32 - 1")]
    HugeMixture,
}

/// The access stream of a whole job: a pure function of its configuration.
#[derive(Clone, Debug)]
pub struct AccessStream {
    config: StreamConfig,
    layout: BatchLayout,
    /// Set where one generator serves all epochs.
    checkpoints: Option<Arc<GeneratorCheckpoints>>,
}

impl AccessStream {
    /// Checks the configuration.
    ///
    /// # Errors
    /// If no epoch can be made of it.
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
        if config.scheme.is_even() && batch % ranks != 0 {
            return Err(SamplerError::UnevenBatch { batch, ranks });
        }
        let length = match &config.order {
            Order::Given(lists) => check_lists(lists, samples)?,
            Order::Provided(orders) => {
                let known = orders.place().map_or(1, |place| place.ranks);
                if ranks > 1 && ranks != known {
                    return Err(SamplerError::ProvidedRanks { known, ranks });
                }
                0
            }
            _ => u64::from(samples),
        };
        let layout = BatchLayout::new(
            config.scheme,
            ranks,
            batch,
            length,
            config.sampler_drop_last,
            config.drop_last,
        );
        if layout.iterations() == 0 && !matches!(config.order, Order::Provided(_)) {
            return Err(SamplerError::NoIterations { samples: length as u32, batch });
        }
        let one_generator = matches!(config.order, Order::Torch)
            && matches!(config.scheme, Scheme::Whole | Scheme::Imbalanced);
        let checkpoints = one_generator.then(|| {
            let sampler = RandomSampler::new(samples, config.seed, Draws::SamplerAlone);
            Arc::new(GeneratorCheckpoints::new(sampler))
        });
        Ok(Self { config, layout, checkpoints })
    }

    /// Returns what the stream is a function of.
    pub fn config(&self) -> &StreamConfig {
        &self.config
    }

    /// Returns T, the iterations of an epoch; 0 where every epoch has its own number.
    pub fn iterations(&self) -> u32 {
        self.layout.iterations()
    }

    /// Returns how orders are split into local batches; empty where every epoch has its own
    /// batches.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// Returns whether any epoch can be computed at any time.
    pub fn ahead(&self) -> bool {
        match &self.config.order {
            Order::Provided(orders) => orders.ahead(),
            _ => true,
        }
    }

    /// Returns the order of one epoch; `None` past the last that is provided.
    /// See [`OrderProvider::epoch`] for when it may be called.
    ///
    /// # Errors
    /// If the provider fails, or gives a list that cannot be read.
    pub fn ask(&self, epoch: u32) -> Result<Option<EpochOrder>, OrderError> {
        let Order::Provided(orders) = &self.config.order else {
            return Ok(Some(self.epoch(epoch)));
        };
        let StreamConfig { samples, ranks, .. } = self.config;
        if ranks > 1 {
            let Some(lists) = orders.all_ranks(epoch)? else { return Ok(None) };
            return EpochOrder::of_lists(&lists, orders.number(epoch), samples).map(Some);
        }
        let Some(list) = orders.epoch(epoch)? else { return Ok(None) };
        EpochOrder::of_list(list, orders.number(epoch), samples).map(Some)
    }

    /// Returns the order of one epoch. Use [`Self::ask`] for orders that are provided: an epoch
    /// that the provider does not have is empty here.
    pub fn epoch(&self, epoch: u32) -> EpochOrder {
        let StreamConfig { samples, seed, .. } = self.config;
        let mut order = match &self.config.order {
            Order::Torch => match &self.checkpoints {
                Some(checkpoints) => checkpoints.at(epoch).next_epoch_left_early(),
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
            Order::Provided(_) => {
                return self
                    .ask(epoch)
                    .ok()
                    .flatten()
                    .unwrap_or_else(|| EpochOrder::dealt(vec![], self.layout, samples));
            }
        };
        if self.config.scheme.is_even() {
            torch::pad_or_truncate(&mut order, self.config.ranks, self.config.sampler_drop_last);
        }
        order.truncate(self.layout.entries() as usize);
        EpochOrder::dealt(order, self.layout, samples)
    }

    /// Returns the permutation behind an epoch of [`Order::Permutation`]: position to sample and
    /// back without memory.
    pub fn permutation(&self, epoch: u32) -> Option<Permutation> {
        matches!(self.config.order, Order::Permutation).then(|| self.keyed(epoch))
    }

    /// Returns the rank and iteration that consume `sample` in an epoch; the first if it is read
    /// more than once, `None` if it is dropped. Needs no memory for [`Order::Permutation`] and
    /// [`Order::Sequential`]. Other orders are built and searched; for many samples use
    /// [`EpochOrder::positions`].
    pub fn locate(&self, epoch: u32, sample: SampleId) -> Option<BatchSlot> {
        if sample >= self.config.samples {
            return None;
        }
        let position = match &self.config.order {
            Order::Permutation => self.keyed(epoch).inverse(u64::from(sample)),
            Order::Sequential => u64::from(sample),
            Order::Torch | Order::Given(_) | Order::Provided(_) => {
                let order = self.epoch(epoch);
                let position = order.samples().iter().position(|&other| other == sample)?;
                return order.slot(position as u32);
            }
        };
        self.layout.slot(position)
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
