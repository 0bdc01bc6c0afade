//! One rank's part of a list that every rank computes for itself.

use super::super::torch::pad_or_truncate;
use super::super::{SampleId, SamplerError};
use super::{Cut, EpochList, RankPlace};

/// Which part of a global list a rank takes: every `ranks`-th entry from `rank` on, as
/// `DistributedSampler` does. Step t of all ranks together is then the t-th stretch of
/// `ranks × batch` entries of the list, whatever the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankShare {
    pub rank: u32,
    pub ranks: u32,
    /// Samples in a batch of this rank.
    pub batch: u32,
    /// Drop the tail of the list that cannot be dealt evenly instead of padding it.
    pub sampler_drop_last: bool,
    /// Drop an incomplete last batch.
    pub drop_last: bool,
}

impl RankShare {
    /// The whole list, for a world of one.
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

    /// The most samples in a batch, of a global list of `length`.
    pub(super) fn largest_batch(self, length: u32) -> u32 {
        self.batch.min(length.div_ceil(self.ranks))
    }

    pub(super) fn place(self) -> RankPlace {
        RankPlace { rank: self.rank, ranks: self.ranks }
    }

    /// The parts of all ranks.
    pub(super) fn everybody(self, order: &[SampleId]) -> Vec<EpochList> {
        let of = |rank| Self { rank, ..self }.of(order.to_vec());
        (0..self.ranks).map(of).collect()
    }

    pub(super) fn of(self, mut order: Vec<SampleId>) -> EpochList {
        if self.ranks > 1 {
            pad_or_truncate(&mut order, self.ranks, self.sampler_drop_last);
            let (first, step) = (self.rank as usize, self.ranks as usize);
            order = order.into_iter().skip(first).step_by(step).collect();
        }
        let batches = Cut::Every { batch: self.batch, drop_last: self.drop_last };
        EpochList { samples: order, batches }
    }
}
