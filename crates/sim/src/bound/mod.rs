//! The least time any policy could take: the yardstick of every run.
//!
//! Computed from the job alone, by code that knows neither policies nor the world.
//! Per epoch the largest of what compute, preprocessing, the source, its links and
//! the tiers need at the least; summed over epochs.
//!
//! [`least`] says how many bytes the source must have given by the end of each epoch. An epoch
//! cannot end before the source had the time for them, nor read less than what it uses beyond
//! Σ D_n. The staging ring is transit, not cache.

mod least;

use belady_control::Job;
use belady_control::model::{Readers, Seconds};
use belady_control::sampler::SampleId;

use least::{Least, usable};

/// The bound of a whole job.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Compute alone: the sum over iterations of the slowest rank.
    pub perfect: Seconds,
    pub seconds: Seconds,
    /// What the run would be shorter at the least if the ranks' batches were equal in bytes.
    pub straggling: Seconds,
    pub epochs: Vec<EpochBound>,
}

/// What one epoch needs at the least.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochBound {
    pub compute: Seconds,
    pub preprocess: Seconds,
    /// What the source needs from the epoch's beginning on, for all that it must have given by
    /// the epoch's end.
    pub source: Seconds,
    pub link: Seconds,
    /// By tier, the staging buffer left out.
    pub tiers: Vec<Seconds>,
    /// S_e.
    pub distinct_bytes: u64,
    /// Of samples that no earlier epoch used.
    pub first_bytes: u64,
    /// What comes from the source in the run that reads the least.
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
    let mut least = Least::new(job);
    let ranks = u64::from(job.system.ranks());
    let (mut ended, mut ended_if_even) = (Seconds::ZERO, Seconds::ZERO);
    let mut given = 0;
    let epochs: Vec<EpochBound> = (0..epochs)
        .map(|epoch| {
            let bytes = EpochBytes::count(job, epoch, &mut least);
            given += bytes.source;
            let epoch = bytes.bound(job, ended, given);
            ended += epoch.seconds();
            let even = EpochBytes { slowest: bytes.all.div_ceil(ranks), ..bytes };
            ended_if_even += even.bound(job, ended_if_even, given).seconds();
            epoch
        })
        .collect();
    Bound {
        perfect: epochs.iter().map(|epoch| epoch.compute).sum(),
        seconds: ended,
        straggling: Seconds((ended.0 - ended_if_even.0).max(0.0)),
        epochs,
    }
}

/// What an epoch moves.
#[derive(Debug, Default)]
struct EpochBytes {
    /// Each sample once.
    distinct: u64,
    /// Each sample once in each step that uses it.
    asked: u64,
    first: u64,
    source: u64,
    /// Of the slowest rank of each iteration.
    slowest: u64,
    /// Over all ranks.
    all: u64,
    busiest_node: u64,
}

impl EpochBytes {
    fn count(job: &Job, epoch: u32, least: &mut Least) -> Self {
        let system = &job.system;
        let order = job.stream.epoch(epoch);
        let began = least.step();
        let mut bytes = Self::default();
        let mut by_node = vec![0u64; system.nodes as usize];
        for iteration in 0..order.iterations() {
            let mut slowest = 0;
            for rank in 0..system.ranks() {
                let mut batch = 0;
                for sample in order.batch(rank, iteration) {
                    let size = job.sizes.get(sample);
                    batch += size;
                    bytes.use_sample(least, began, sample, size);
                }
                by_node[system.node_of(rank) as usize] += batch;
                slowest = slowest.max(batch);
                bytes.all += batch;
            }
            bytes.slowest += slowest;
            least.end_step();
        }
        bytes.busiest_node = by_node.into_iter().max().unwrap_or(0);
        bytes
    }

    #[inline]
    fn use_sample(&mut self, least: &mut Least, began: u32, sample: SampleId, size: u64) {
        let now = least.step();
        let used = least.use_sample(sample, size);
        self.source += used.read;
        match used.before {
            Some(before) if before == now => return,
            Some(before) if before >= began => {}
            Some(_) => self.distinct += size,
            None => {
                self.distinct += size;
                self.first += size;
            }
        }
        self.asked += size;
    }

    /// The bound of an epoch that begins at `began`, and by whose end the source must have given
    /// so many bytes since the run's beginning.
    fn bound(&self, job: &Job, began: Seconds, given: u64) -> EpochBound {
        let system = &job.system;
        let nodes = f64::from(system.nodes);
        let threads: u32 = system.tiers.iter().map(|tier| tier.threads).sum();
        let most_readers = match system.source.readers {
            Readers::Nodes => system.nodes,
            Readers::Threads => system.nodes * threads,
        };
        let held: Vec<u64> = (1..system.tiers.len()).map(|tier| usable(job, tier)).collect();
        let cache: u64 = held.iter().sum();
        // At most the cache's content is there before the epoch begins.
        let within = self.distinct.saturating_sub(cache) as f64;
        let source = |rate: f64| Seconds((given as f64 / rate - began.0).max(within / rate));
        let staging_rate = f64::from(system.staging_threads()) * system.preprocess.0;
        EpochBound {
            compute: Seconds(self.slowest as f64 / system.compute.0),
            preprocess: Seconds(self.busiest_node as f64 / staging_rate),
            source: source(system.source.throughput.best_up_to(most_readers).0),
            link: source(nodes * system.source.link.0),
            tiers: held
                .iter()
                .zip(&system.tiers[1..])
                .map(|(held, tier)| {
                    let must = self.cached().saturating_sub(cache - held) as f64;
                    Seconds(must / (nodes * tier.read_rate().0))
                })
                .collect(),
            distinct_bytes: self.distinct,
            first_bytes: self.first,
            source_bytes: self.source,
        }
    }

    /// What tiers must serve at the least, each sample from where it lies when the epoch begins.
    /// Where a sample comes twice in the epoch, room that a hit made free may serve again, and
    /// nothing can be said.
    fn cached(&self) -> u64 {
        if self.asked > self.distinct { 0 } else { self.distinct - self.source }
    }
}
