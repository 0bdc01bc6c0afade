//! One rank's part of an access stream.

use super::super::EpochOrder;
use super::super::{AccessStream, SamplerError, Scheme, StreamConfig};
use super::{Batching, EpochList, OrderError, OrderProvider, RankPlace};

/// What one rank of several reads: torch's `DistributedSampler` in a `DataLoader`, or any other
/// order and scheme. It has no end; a job sets the number of epochs.
#[derive(Clone, Debug)]
pub struct RankOrders {
    stream: AccessStream,
    rank: u32,
}

impl RankOrders {
    /// `batch` is one rank's, like a `DataLoader`'s. It replaces the `batch` of `config`, which is
    /// that of all ranks together (the same where every rank gets the whole batch).
    ///
    /// # Errors
    /// If there is no such rank, or no such stream.
    pub fn new(rank: u32, batch: u32, config: StreamConfig) -> Result<Self, SamplerError> {
        let ranks = config.ranks;
        if rank >= ranks.max(1) {
            return Err(SamplerError::NoSuchRank { rank, ranks });
        }
        let together = if config.scheme == Scheme::Whole { 1 } else { ranks };
        let too_large = SamplerError::HugeBatch { batch, ranks };
        let batch = batch.checked_mul(together).ok_or(too_large)?;
        Ok(Self { stream: AccessStream::new(StreamConfig { batch, ..config })?, rank })
    }

    /// Returns the stream of all ranks.
    pub fn stream(&self) -> &AccessStream {
        &self.stream
    }
}

impl OrderProvider for RankOrders {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        Ok(self.stream.ask(epoch)?.map(|order| list_of(&order, self.rank)))
    }

    fn place(&self) -> Option<RankPlace> {
        Some(RankPlace { rank: self.rank, ranks: self.stream.config().ranks })
    }

    fn all_ranks(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, OrderError> {
        let ranks = self.stream.config().ranks;
        let all = |order| (0..ranks).map(|rank| list_of(&order, rank)).collect();
        Ok(self.stream.ask(epoch)?.map(all))
    }

    fn ahead(&self) -> bool {
        self.stream.ahead()
    }

    fn largest_batch(&self) -> Option<u32> {
        // All iterations but the last are alike, and that is not longer.
        (self.stream.iterations() > 0).then(|| self.stream.layout().batch_len(self.rank, 0))
    }
}

fn list_of(order: &EpochOrder, rank: u32) -> EpochList {
    let (mut samples, mut ends) = (vec![], vec![]);
    for iteration in 0..order.iterations() {
        samples.extend(order.batch(rank, iteration));
        ends.push(samples.len() as u32);
    }
    EpochList { samples, batches: Batching::Ends(ends) }
}
