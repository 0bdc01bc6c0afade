//! What torch's `DataLoader` reads in a job of one rank.

use super::super::SamplerError;
use super::super::checkpoints::GeneratorCheckpoints;
use super::super::mt19937::Mt19937;
use super::super::torch::RandomSampler;
use super::{Batching, EpochList, OrderError, OrderProvider};

/// `DataLoader(shuffle=True, generator=g)`, or a `DataLoader` with the user's
/// `RandomSampler(generator=g)` ([`Draws`](super::super::torch::Draws) says what else draws from
/// g). Every epoch is iterated to its end. Any epoch can be computed; the generator's state before
/// it is what a checkpoint needs to resume there.
#[derive(Debug)]
pub struct LoaderOrders {
    samples: u32,
    batch: u32,
    drop_last: bool,
    checkpoints: GeneratorCheckpoints,
}

impl LoaderOrders {
    /// Takes the sampler as it is before the first epoch: [`RandomSampler::new`] for a seed,
    /// [`RandomSampler::from_state`] for a generator's state.
    ///
    /// # Errors
    /// If there are no samples, or the batch is 0.
    pub fn new(sampler: RandomSampler, batch: u32, drop_last: bool) -> Result<Self, SamplerError> {
        if sampler.samples() == 0 {
            return Err(SamplerError::NoSamples);
        }
        if batch == 0 {
            return Err(SamplerError::ZeroBatch);
        }
        Ok(Self {
            batch,
            drop_last,
            samples: sampler.samples(),
            checkpoints: GeneratorCheckpoints::new(sampler),
        })
    }

    /// Returns the sampler as it is before an epoch: a run can resume from its generator's state
    /// and the number of epochs begun.
    pub fn before(&self, epoch: u32) -> RandomSampler {
        self.checkpoints.at(epoch)
    }

    /// Returns the generator after an epoch that is left before its end. torch then has not made
    /// the draw of an exhausted sampler, and the next epoch's order is another one.
    pub fn left_early(&self, epoch: u32) -> Mt19937 {
        let mut sampler = self.checkpoints.at(epoch);
        sampler.skip_epoch_left_early();
        sampler.state().clone()
    }
}

impl OrderProvider for LoaderOrders {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        let samples = self.checkpoints.at(epoch).next_epoch_left_early();
        let batches = Batching::Every { batch: self.batch, drop_last: self.drop_last };
        Ok(Some(EpochList { samples, batches }))
    }

    fn ahead(&self) -> bool {
        true
    }

    fn largest_batch(&self) -> Option<u32> {
        Some(self.batch.min(self.samples))
    }

    fn number(&self, epoch: u32) -> u32 {
        self.checkpoints.first_epoch() as u32 + epoch
    }
}
