//! What torch's `DataLoader` reads in a world of one.

use super::super::SamplerError;
use super::super::marks::Marks;
use super::super::mt19937::Mt19937;
use super::super::torch::RandomSampler;
use super::{Cut, EpochList, OrderError, Orders};

/// `DataLoader(shuffle=True, generator=g)`, or one with a `RandomSampler(generator=g)` of
/// the user's ([`Draws`](super::super::torch::Draws) says who else draws from g): every
/// epoch is iterated to its end. Any epoch can be asked for; the generator's state before
/// it is what a checkpoint needs to go on from there.
#[derive(Debug)]
pub struct LoaderOrders {
    samples: u32,
    batch: u32,
    drop_last: bool,
    marks: Marks,
}

impl LoaderOrders {
    /// From the sampler as it stands before the first epoch:
    /// [`RandomSampler::new`] for a seed, [`RandomSampler::from_state`] for a generator's
    /// state.
    pub fn new(sampler: RandomSampler, batch: u32, drop_last: bool) -> Result<Self, SamplerError> {
        if sampler.samples() == 0 {
            return Err(SamplerError::NoSamples);
        }
        if batch == 0 {
            return Err(SamplerError::ZeroBatch);
        }
        Ok(Self { batch, drop_last, samples: sampler.samples(), marks: Marks::new(sampler) })
    }

    /// The sampler before an epoch of this order: with its generator's state and the epochs
    /// begun by then, the run can go on from there and nothing is drawn again.
    pub fn before(&self, epoch: u32) -> RandomSampler {
        self.marks.at(epoch)
    }

    /// The generator if an epoch is begun and then left before its end: torch has not drawn
    /// then what it draws when a sampler is exhausted, and the next epoch is another one.
    pub fn left_early(&self, epoch: u32) -> Mt19937 {
        let mut sampler = self.marks.at(epoch);
        sampler.skip_epoch_left_early();
        sampler.state().clone()
    }
}

impl Orders for LoaderOrders {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        let samples = self.marks.at(epoch).next_epoch_left_early();
        let batches = Cut::Every { batch: self.batch, drop_last: self.drop_last };
        Ok(Some(EpochList { samples, batches }))
    }

    fn ahead(&self) -> bool {
        true
    }

    fn largest_batch(&self) -> Option<u32> {
        Some(self.batch.min(self.samples))
    }

    fn number(&self, epoch: u32) -> u32 {
        self.marks.first_epoch() as u32 + epoch
    }
}
