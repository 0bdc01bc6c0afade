//! The least time that any policy could take.
//!
//! It is computed from the job alone, by code that knows neither policies nor the world: per epoch
//! the largest of the times that compute, preprocessing, the source, its links and the tiers need,
//! and of its steps one after the other, summed over epochs.
//!
//! `least_reads` says how many bytes the source must have given by the end of each epoch. An
//! epoch cannot end before the source had the time for them, nor read less than what it uses beyond
//! Σ D_n. The staging ring is transit, not cache.

mod least_reads;

use belady_control::Job;
use belady_control::model::{PreprocessWork, Readers, Seconds};
use belady_control::sampler::SampleId;

use least_reads::{LeastReads, usable};

/// The bound of a whole job.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Compute alone: the sum over iterations of the slowest rank.
    pub perfect: Seconds,
    /// The sum over epochs.
    pub seconds: Seconds,
    /// By how much the bound would fall if the ranks' batches took equally long to compute.
    pub straggling: Seconds,
    /// By epoch.
    pub epochs: Vec<EpochBound>,
}

/// What one epoch needs at the least.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochBound {
    /// Of the slowest rank of each iteration.
    pub compute: Seconds,
    /// Of the node that needs the longest.
    pub preprocess: Seconds,
    /// From the epoch's beginning, for all that the source must have delivered by its end.
    pub source: Seconds,
    /// The same for the nodes' links to the source.
    pub link: Seconds,
    /// The steps one after the other, the last rank of each after the source has given what it
    /// must have given by then.
    pub steps: Seconds,
    /// By tier, the staging buffer left out.
    pub tiers: Vec<Seconds>,
    /// S_e.
    pub distinct_bytes: u64,
    /// Of samples that no earlier epoch used.
    pub first_bytes: u64,
    /// What the run that reads the least reads from the source.
    pub source_bytes: u64,
}

impl EpochBound {
    /// Returns the largest of the times.
    pub fn seconds(&self) -> Seconds {
        self.longest_part().max(self.steps)
    }

    fn longest_part(&self) -> Seconds {
        self.parts().map(|(_, seconds)| seconds).fold(Seconds::ZERO, Seconds::max)
    }

    /// Returns the name of the resource that takes longest.
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

/// Computes the bound of a job.
pub fn bound(job: &Job, epochs: u32) -> Bound {
    let mut least = LeastReads::new(job);
    let ranks = f64::from(job.system.ranks());
    let mut ended = Seconds::ZERO;
    // By what compute and the source take alone, as the batches are and if they were equal.
    let (mut apart, mut apart_if_even) = (Seconds::ZERO, Seconds::ZERO);
    let mut given = 0;
    let epochs: Vec<EpochBound> = (0..epochs)
        .map(|epoch| {
            let mut bytes = EpochBytes::count(job, epoch, &mut least);
            let epoch = bytes.bound(job, ended, given);
            ended += epoch.seconds();
            apart += bytes.bound(job, apart, given).longest_part();
            bytes.steps.iter_mut().for_each(|step| step.slowest = step.all / ranks);
            apart_if_even += bytes.bound(job, apart_if_even, given).longest_part();
            given += bytes.source;
            epoch
        })
        .collect();
    Bound {
        perfect: epochs.iter().map(|epoch| epoch.compute).sum(),
        seconds: ended,
        straggling: Seconds((apart.0 - apart_if_even.0).max(0.0)),
        epochs,
    }
}

/// What an epoch computes and moves.
#[derive(Debug, Default)]
struct EpochBytes {
    /// Each sample once.
    distinct: u64,
    /// Each sample once in each step that uses it.
    asked: u64,
    first: u64,
    source: u64,
    /// In seconds, on the node that needs the longest.
    preprocess: f64,
    steps: Vec<StepBytes>,
}

/// What one iteration computes and moves.
#[derive(Clone, Copy, Debug)]
struct StepBytes {
    /// Seconds that the slowest rank computes, and the quickest.
    slowest: f64,
    quickest: f64,
    /// Over all ranks.
    all: f64,
    /// Bytes from the source, in the run that reads the least.
    source: u64,
}

impl EpochBytes {
    fn count(job: &Job, epoch: u32, least: &mut LeastReads) -> Self {
        let system = &job.system;
        let order = job.stream.epoch(epoch);
        let began = least.step();
        let mut bytes = Self::default();
        let mut by_node = vec![PreprocessWork::default(); system.nodes as usize];
        for iteration in 0..order.iterations() {
            let (mut slowest, mut quickest, mut all) = (0.0f64, f64::INFINITY, 0.0);
            let before = bytes.source;
            for rank in 0..system.ranks() {
                let work = &mut by_node[system.node_of(rank) as usize];
                let (mut batch, mut samples) = (0, 0);
                for sample in order.batch(rank, iteration) {
                    let size = job.sizes.get(sample);
                    batch += size;
                    samples += 1;
                    system.preprocess.add(work, size);
                    bytes.use_sample(least, began, sample, size);
                }
                let compute = system.compute.time(samples, batch as f64).0;
                slowest = slowest.max(compute);
                quickest = quickest.min(compute);
                all += compute;
            }
            bytes.steps.push(StepBytes { slowest, quickest, all, source: bytes.source - before });
            least.end_step();
        }
        let preprocess = by_node
            .iter()
            .map(|work| system.preprocess.least_time(work, system.staging_threads()).0);
        bytes.preprocess = preprocess.fold(0.0, f64::max);
        bytes
    }

    #[inline]
    fn use_sample(&mut self, least: &mut LeastReads, began: u32, sample: SampleId, size: u64) {
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

    /// The bound of an epoch that begins at `began`, and by whose beginning the source must have
    /// given so many bytes.
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
        // At most the cache's content is held before the epoch begins.
        let within = self.distinct.saturating_sub(cache) as f64;
        let by_end = (given + self.source) as f64;
        let source = |rate: f64| Seconds((by_end / rate - began.0).max(within / rate));
        let source_rate = system.source.throughput.best_up_to(most_readers).0;
        let link_rate = nodes * system.source.link.0;
        EpochBound {
            compute: Seconds(self.steps.iter().map(|step| step.slowest).sum()),
            preprocess: Seconds(self.preprocess),
            source: source(source_rate),
            link: source(link_rate),
            steps: self.steps(began, given, source_rate.min(link_rate)),
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

    /// Returns the least time of the steps. Each computes after the one before it. When the last
    /// rank of a step begins, the source, at `rate`, has given all that it must have given by
    /// then; that rank may be the one with the least to compute.
    fn steps(&self, began: Seconds, given: u64, rate: f64) -> Seconds {
        let (mut now, mut given) = (began.0, given);
        for step in &self.steps {
            given += step.source;
            let last_begins = given as f64 / rate;
            let last_ends = last_begins + step.quickest;
            now = last_ends.max(now + step.slowest);
        }
        Seconds(now - began.0)
    }

    /// Returns the least bytes that tiers serve, each sample from where it is when the epoch
    /// begins. Returns 0 where the epoch uses a sample twice: space that a hit freed may then serve
    /// again.
    fn cached(&self) -> u64 {
        if self.asked > self.distinct { 0 } else { self.distinct - self.source }
    }
}
