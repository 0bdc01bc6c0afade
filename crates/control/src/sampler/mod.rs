//! Who reads which sample when: the order of each epoch and how its batches are
//! dealt out to ranks.

use std::sync::Arc;

/// A sample's index in the dataset.
pub type SampleId = u32;

/// One iteration of one epoch: the logical time in which plans speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    pub epoch: u32,
    pub iteration: u32,
}

/// How an epoch's samples are ordered.
#[derive(Clone, Debug)]
pub enum Order {
    /// Bit for bit what torch gives.
    Torch,
    /// The keyed permutation that needs no memory.
    Permutation,
    /// 0, 1, 2, ...
    Sequential,
    /// The user's own: one list per epoch, repeated when epochs outnumber lists.
    Given(Arc<Vec<Vec<SampleId>>>),
}

/// How a global batch becomes the ranks' local batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Equal parts, strided by rank as `DistributedSampler` does.
    Uniform,
    /// Equal contiguous parts of each batch, the last rank takes the rest (HDMLP's uniform).
    Contiguous,
    /// Every rank gets the whole batch.
    Whole,
    /// Half of the ranks get twice the share, the others half of it.
    Imbalanced,
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
    #[error(
        "a batch of {batch} cannot be dealt evenly to {ranks} ranks; make it a multiple of {ranks}"
    )]
    UnevenBatch { batch: u32, ranks: u32 },
    #[error("an epoch has no complete batch: {samples} samples, batches of {batch}")]
    NoIterations { samples: u32, batch: u32 },
}

/// The access stream of a whole job: a pure function of its configuration.
#[derive(Clone, Debug)]
pub struct AccessStream {
    config: StreamConfig,
    iterations: u32,
}

impl AccessStream {
    pub fn new(config: StreamConfig) -> Result<Self, SamplerError> {
        let iterations = config.samples / config.batch;
        Ok(Self { config, iterations })
    }

    pub fn config(&self) -> &StreamConfig {
        &self.config
    }

    /// T: iterations an epoch.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// The order of one epoch, materialised.
    pub fn epoch(&self, _epoch: u32) -> EpochOrder {
        todo!()
    }
}

/// One epoch's order and how it is cut into local batches.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    /// The global order after padding or truncation.
    order: Vec<SampleId>,
    config: StreamConfig,
    iterations: u32,
}

impl EpochOrder {
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// The samples of one rank in one iteration, in the order it consumes them.
    pub fn batch(
        &self,
        _rank: u32,
        _iteration: u32,
    ) -> impl ExactSizeIterator<Item = SampleId> + '_ {
        self.order.iter().copied()
    }

    /// The global order after padding or truncation.
    pub fn samples(&self) -> &[SampleId] {
        &self.order
    }
}
