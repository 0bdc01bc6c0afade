//! The least time any policy could take: the yardstick of every run.
//!
//! Computed from the job alone, by code that knows neither policies nor the world.
//! Per epoch the largest of what compute, preprocessing, the source, its links and
//! the tiers need at the least; summed over epochs.
//!
//! The source must give what no cache can hold: all of the first epoch, and in a later
//! one the distinct bytes beyond N·D, since every sample is used once an epoch and so
//! no more than what is held at the epoch's start can be hit. Samples that no earlier
//! epoch used cannot be held either. The staging ring is transit, not cache.

use belady_control::Job;
use belady_control::bits::Bits;
use belady_control::model::{Readers, Seconds};

/// The bound of a whole job.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Compute alone: the sum over iterations of the slowest rank.
    pub perfect: Seconds,
    pub seconds: Seconds,
    pub epochs: Vec<EpochBound>,
}

/// What one epoch needs at the least.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochBound {
    pub compute: Seconds,
    pub preprocess: Seconds,
    pub source: Seconds,
    pub link: Seconds,
    /// By tier, the staging buffer left out.
    pub tiers: Vec<Seconds>,
    /// S_e.
    pub distinct_bytes: u64,
    /// Of samples that no earlier epoch used.
    pub first_bytes: u64,
    /// What must come from the source.
    pub source_bytes: u64,
}

impl EpochBound {
    pub fn seconds(&self) -> Seconds {
        self.parts().map(|(_, seconds)| seconds).fold(Seconds::ZERO, Seconds::max)
    }

    /// What binds.
    pub fn binds(&self) -> &'static str {
        self.parts().fold(("compute", Seconds::ZERO), |a, b| if b.1 > a.1 { b } else { a }).0
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, Seconds)> + '_ {
        [
            ("compute", self.compute),
            ("preprocess", self.preprocess),
            ("source", self.source),
            ("link", self.link),
        ]
        .into_iter()
        .chain(self.tiers.iter().map(|&seconds| ("tier", seconds)))
    }
}

pub fn bound(job: &Job, epochs: u32) -> Bound {
    let mut seen = Bits::new(job.sizes.len());
    let epochs: Vec<EpochBound> =
        (0..epochs).map(|epoch| epoch_bound(job, epoch, &mut seen)).collect();
    Bound {
        perfect: epochs.iter().map(|epoch| epoch.compute).sum(),
        seconds: epochs.iter().map(EpochBound::seconds).sum(),
        epochs,
    }
}

fn epoch_bound(job: &Job, epoch: u32, seen: &mut Bits) -> EpochBound {
    let system = &job.system;
    let order = job.stream.epoch(epoch);
    let mut used = Bits::new(job.sizes.len());
    let mut node_bytes = vec![0u64; system.nodes as usize];
    let mut slowest_ranks = 0u64;
    let (mut distinct, mut first) = (0u64, 0u64);
    for iteration in 0..order.iterations() {
        let mut slowest = 0;
        for rank in 0..system.ranks() {
            let mut batch = 0;
            for sample in order.batch(rank, iteration) {
                let bytes = job.sizes.get(sample);
                batch += bytes;
                if used.insert(sample) {
                    distinct += bytes;
                    if seen.insert(sample) {
                        first += bytes;
                    }
                }
            }
            node_bytes[system.node_of(rank) as usize] += batch;
            slowest = slowest.max(batch);
        }
        slowest_ranks += slowest;
    }
    let nodes = f64::from(system.nodes);
    let threads: u32 = system.tiers.iter().map(|tier| tier.threads).sum();
    let most_readers = match system.source.readers {
        Readers::Nodes => system.nodes,
        Readers::Threads => system.nodes * threads,
    };
    let cache = u64::from(system.nodes) * system.cache_capacity().0;
    let from_source = distinct.saturating_sub(cache).max(first);
    let from_cache = distinct - from_source;
    let most = node_bytes.iter().max().copied().unwrap_or(0) as f64;
    let tiers = system.tiers[1..]
        .iter()
        .map(|tier| {
            let others = cache - u64::from(system.nodes) * tier.capacity.0;
            let must = from_cache.saturating_sub(others) as f64;
            Seconds(must / (nodes * tier.read_rate().0))
        })
        .collect();
    EpochBound {
        compute: Seconds(slowest_ranks as f64 / system.compute.0),
        preprocess: Seconds(most / (f64::from(system.staging_threads()) * system.preprocess.0)),
        source: Seconds(from_source as f64 / system.source.throughput.best_up_to(most_readers).0),
        link: Seconds(from_source as f64 / (nodes * system.source.link.0)),
        tiers,
        distinct_bytes: distinct,
        first_bytes: first,
        source_bytes: from_source,
    }
}
