//! One rank's part of a list that every rank computes.

use super::super::torch::pad_or_truncate;
use super::super::{SampleId, SamplerError};
use super::{Batching, EpochList, RankPlace};

/// The part of a global list that a rank takes: every `ranks`-th entry from `rank` on, as
/// `DistributedSampler` does. Step t of all ranks together is then the t-th stretch of
/// `ranks × batch` entries of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankShare {
    /// This rank, from 0.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// Samples in a batch of this rank.
    pub batch: u32,
    /// Drop the tail of the list that cannot be split evenly instead of padding it.
    pub sampler_drop_last: bool,
    /// Drop an incomplete last batch.
    pub drop_last: bool,
}

impl RankShare {
    /// Returns the whole list, for a single rank.
    pub fn whole(batch: u32, drop_last: bool) -> Self {
        Self { rank: 0, ranks: 1, batch, sampler_drop_last: false, drop_last }
    }

    pub(super) fn check(self) -> Result<Self, SamplerError> {
        let Self { rank, ranks, batch, .. } = self;
        if ranks == 0 {
            return Err(SamplerError::NoRanks);
        }
        if rank >= ranks {
            return Err(SamplerError::NoSuchRank { rank, ranks });
        }
        if batch == 0 {
            return Err(SamplerError::ZeroBatch);
        }
        Ok(self)
    }

    /// Returns the most samples in a batch, for a global list of `length`.
    pub(super) fn largest_batch(self, length: u32) -> u32 {
        self.batch.min(length.div_ceil(self.ranks))
    }

    pub(super) fn place(self) -> RankPlace {
        RankPlace { rank: self.rank, ranks: self.ranks }
    }

    /// Returns the parts of all ranks.
    pub(super) fn all_ranks(self, order: &[SampleId]) -> Vec<EpochList> {
        let of = |rank| Self { rank, ..self }.of(order.to_vec());
        (0..self.ranks).map(of).collect()
    }

    pub(super) fn of(self, mut order: Vec<SampleId>) -> EpochList {
        if self.ranks > 1 {
            pad_or_truncate(&mut order, self.ranks, self.sampler_drop_last);
            let (first, step) = (self.rank as usize, self.ranks as usize);
            order = order.into_iter().skip(first).step_by(step).collect();
        }
        let batches = Batching::Every { batch: self.batch, drop_last: self.drop_last };
        EpochList { samples: order, batches }
    }
}
