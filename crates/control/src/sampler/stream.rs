//! The access stream: an order for every epoch, dealt out to ranks.

use std::sync::Arc;

use rayon::prelude::*;

use super::SampleId;
use super::deal::{Deal, Scheme, Slot};
use super::epoch::EpochOrder;
use super::marks::Marks;
use super::orders::{OrderError, Orders};
use super::permutation::Permutation;
use super::torch::{self, Draws, RandomSampler};

/// Positions worth a task of their own: some 100 microseconds of permutation.
const PARALLEL: usize = 1 << 13;

/// How an epoch's samples are ordered.
#[derive(Clone, Debug)]
pub enum Order {
    /// Bit for bit what torch gives. Uniform, parts and contiguous schemes
    /// follow `DistributedSampler`, a fresh generator of seed + epoch; whole and imbalanced
    /// ones split the batches of one `RandomSampler`, whose generator, seeded once,
    /// runs on from epoch to epoch.
    Torch,
    /// The keyed permutation that needs no memory.
    Permutation,
    /// 0, 1, 2, ...
    Sequential,
    /// The user's own: one list per epoch, repeated when epochs outnumber lists.
    Given(Arc<Vec<Vec<SampleId>>>),
    /// One rank's own, or that of all ranks if it knows what the others read, which comes epoch
    /// by epoch and says itself how it is cut into batches: of a [`StreamConfig`] only `samples`
    /// and `ranks` count.
    Provided(Arc<dyn Orders>),
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
    #[error("there is no rank {rank} among {ranks}; ranks are counted from 0")]
    NoSuchRank { rank: u32, ranks: u32 },
    #[error("batches of {batch} for {ranks} ranks make too many samples; make them smaller")]
    HugeBatch { batch: u32, ranks: u32 },
    #[error("the order is known of {known} ranks, and there are {ranks}")]
    ProvidedRanks { known: u32, ranks: u32 },
    #[error("entry {at} of the weights is {weight}; weights are finite and at least 0")]
    BadWeight { at: usize, weight: String },
    #[error("no weight is above 0, so nothing can be drawn")]
    NoWeight,
    #[error(
        "{length} samples cannot be drawn without replacement: only {drawable} have a weight \
         above 0; draw fewer, or with replacement"
    )]
    TooFewToDraw { length: u32, drawable: usize },
    #[error("dataset {at} of the mixture is to be drawn from and has no samples")]
    EmptyPart { at: usize },
    #[error("the datasets of the mixture have 2^32 samples or more together")]
    HugeMixture,
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
        let deal = Deal::new(
            config.scheme,
            ranks,
            batch,
            length,
            config.sampler_drop_last,
            config.drop_last,
        );
        if deal.iterations() == 0 && !matches!(config.order, Order::Provided(_)) {
            return Err(SamplerError::NoIterations { samples: length as u32, batch });
        }
        let one_generator = matches!(config.order, Order::Torch)
            && matches!(config.scheme, Scheme::Whole | Scheme::Imbalanced);
        let marks = one_generator.then(|| {
            let sampler = RandomSampler::new(samples, config.seed, Draws::SamplerAlone);
            Arc::new(Marks::new(sampler))
        });
        Ok(Self { config, deal, marks })
    }

    pub fn config(&self) -> &StreamConfig {
        &self.config
    }

    /// T: iterations an epoch; 0 where every epoch has its own number.
    pub fn iterations(&self) -> u32 {
        self.deal.iterations()
    }

    /// How orders are cut into local batches, the same in every epoch; of nothing where
    /// every epoch has its own cut.
    pub fn deal(&self) -> &Deal {
        &self.deal
    }

    /// Whether any epoch can be asked for at any time.
    pub fn ahead(&self) -> bool {
        match &self.config.order {
            Order::Provided(orders) => orders.ahead(),
            _ => true,
        }
    }

    /// The order of one epoch, or why there is none; `None` past the last that is provided.
    /// See [`Orders::epoch`] for when it may be called.
    pub fn ask(&self, epoch: u32) -> Result<Option<EpochOrder>, OrderError> {
        let Order::Provided(orders) = &self.config.order else {
            return Ok(Some(self.epoch(epoch)));
        };
        let StreamConfig { samples, ranks, .. } = self.config;
        if ranks > 1 {
            let Some(lists) = orders.everybody(epoch)? else { return Ok(None) };
            return EpochOrder::of_lists(&lists, orders.number(epoch), samples).map(Some);
        }
        let Some(list) = orders.epoch(epoch)? else { return Ok(None) };
        EpochOrder::of_list(list, orders.number(epoch), samples).map(Some)
    }

    /// The order of one epoch, materialised. For orders that are provided, [`Self::ask`]:
    /// an epoch that they do not have is empty here.
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
            Order::Provided(_) => {
                return self
                    .ask(epoch)
                    .ok()
                    .flatten()
                    .unwrap_or_else(|| EpochOrder::dealt(vec![], self.deal, samples));
            }
        };
        if self.config.scheme.is_even() {
            torch::pad_or_truncate(&mut order, self.config.ranks, self.config.sampler_drop_last);
        }
        order.truncate(self.deal.entries() as usize);
        EpochOrder::dealt(order, self.deal, samples)
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
            Order::Torch | Order::Given(_) | Order::Provided(_) => {
                let order = self.epoch(epoch);
                let position = order.samples().iter().position(|&other| other == sample)?;
                return order.slot(position as u32);
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
