//! One rank's part of an access stream.

use super::super::{AccessStream, SamplerError, Scheme, StreamConfig};
use super::{Cut, EpochList, OrderError, Orders};

/// What one rank of several reads: torch's `DistributedSampler` in a `DataLoader`, or any
/// other order and scheme. Without an end of its own; a job says how many epochs it has.
#[derive(Clone, Debug)]
pub struct RankOrders {
    stream: AccessStream,
    rank: u32,
}

impl RankOrders {
    /// `batch` is of one rank, as a `DataLoader`'s is; the `batch` of `config` is replaced
    /// by that of all ranks together (which is the same where every rank gets the whole).
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

    /// The stream of all ranks.
    pub fn stream(&self) -> &AccessStream {
        &self.stream
    }
}

impl Orders for RankOrders {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        let Some(order) = self.stream.ask(epoch)? else { return Ok(None) };
        let (mut samples, mut ends) = (vec![], vec![]);
        for iteration in 0..order.iterations() {
            samples.extend(order.batch(self.rank, iteration));
            ends.push(samples.len() as u32);
        }
        Ok(Some(EpochList { samples, batches: Cut::Ends(ends) }))
    }

    fn ahead(&self) -> bool {
        self.stream.ahead()
    }

    fn largest_batch(&self) -> Option<u32> {
        // All iterations but the last are alike, and that is not longer.
        (self.stream.iterations() > 0).then(|| self.stream.deal().batch_len(self.rank, 0))
    }
}
