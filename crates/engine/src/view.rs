//! Random access to a dataset through the engine's caches.
//!
//! A view looks for a sample in the tiers of jobs that run on the same dataset, then in the
//! engine's cache directories, which earlier runs and other processes have filled, and then reads
//! the source. It compares a file with the listing before it takes the first copy of it. It keeps
//! nothing: policies decide what a cache holds.

use std::time::{Duration, Instant};

use belady_base::SampleId;
use belady_base::sync::{Arc, Mutex, lock};
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::source::{Begin, Source, Want};
use belady_data::tier::disk::{DiskConfig, DiskTier, FileVersions};
use belady_data::tier::{Get, Tier};

use crate::EngineError;
use crate::config::{Retry, TierConfig};
use crate::job::RunningJobs;
use crate::metrics::{Metrics, Served, SourceWatch};

/// How often a missing cache is looked for, since a job that fills it may start any time.
const LOOKUP_EVERY: Duration = Duration::from_secs(5);

/// Random access to a dataset.
#[derive(Debug)]
pub struct View {
    source: Arc<dyn Source>,
    jobs: Arc<RunningJobs>,
    retry: Retry,
    metrics: Arc<Metrics>,
    disks: Mutex<DiskCaches>,
    _watch: SourceWatch,
}

/// The engine's cache directories.
#[derive(Debug)]
struct DiskCaches {
    wanted: Vec<DiskConfig>,
    found: Vec<Arc<DiskTier>>,
    next_lookup: Option<Instant>,
}

fn disk_config(
    directory: &std::path::Path,
    quota: Bytes,
    source: &Arc<dyn Source>,
    name: &str,
    sizes: &Arc<Sizes>,
) -> DiskConfig {
    DiskConfig {
        directory: directory.to_owned(),
        quota,
        share: quota,
        fingerprint: source.catalog().fingerprint(),
        name: name.to_owned(),
        sizes: sizes.clone(),
        segment: None,
        versions: FileVersions(Some(source.clone())),
    }
}

impl View {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        name: &str,
        tiers: &[TierConfig],
        retry: Retry,
        metrics: Arc<Metrics>,
        jobs: Arc<RunningJobs>,
    ) -> Self {
        source.begin(Begin::Job);
        let sizes = Arc::new(source.catalog().sizes());
        let disk = |tier: &TierConfig| match tier {
            TierConfig::Ram { .. } => None,
            TierConfig::Disk { directory, capacity } => {
                Some(disk_config(directory, *capacity, &source, name, &sizes))
            }
        };
        let wanted = tiers.iter().filter_map(disk).collect();
        Self {
            _watch: metrics.watch(source.clone()),
            jobs,
            retry,
            metrics,
            disks: Mutex::new(DiskCaches { wanted, found: vec![], next_lookup: None }),
            source,
        }
    }

    /// Reads a sample.
    ///
    /// # Errors
    /// Fails if the source cannot be read, after the engine's retries.
    pub fn read(&self, sample: SampleId) -> Result<Vec<u8>, EngineError> {
        let mut bytes = vec![0; self.source.catalog().size(sample) as usize];
        if !self.read_from_caches(sample, &mut bytes) {
            self.read_from_source(sample, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn read_from_caches(&self, sample: SampleId, into: &mut [u8]) -> bool {
        // A read of the source reports the error.
        if self.source.compare(sample).is_err() {
            return false;
        }
        let version = self.source.version(sample).changed;
        let fingerprint = self.source.catalog().fingerprint();
        for job in self.jobs.reading(fingerprint) {
            if let Some(id) = job.tiers.find(sample)
                && job.tiers.current_version(id, sample) == Some(version)
                && let Some(tier) = job.tiers.get(id)
                && tier.get(sample, into) == Get::Hit
            {
                self.metrics.loaded(Served::Tier(id), 1, into.len() as u64);
                return true;
            }
        }
        let disks = lock(&self.disks).found();
        disks.iter().any(|disk| disk.get(sample, into) == Get::Hit)
    }

    fn read_from_source(&self, sample: SampleId, into: &mut [u8]) -> Result<(), EngineError> {
        let mut pause = self.retry.backoff;
        let mut attempt = 1;
        loop {
            let began = Instant::now();
            match self.source.read(&mut [Want::new(sample, &mut *into)]) {
                Ok(()) => {
                    self.metrics.source_read(began.elapsed());
                    self.metrics.loaded(Served::Source, 1, into.len() as u64);
                    return Ok(());
                }
                Err(error) if error.is_shortage() => {
                    self.metrics.retry();
                    std::thread::sleep(self.retry.backoff);
                }
                Err(error) if attempt < self.retry.attempts && error.is_transient() => {
                    self.metrics.retry();
                    std::thread::sleep(pause);
                    pause *= 2;
                    attempt += 1;
                }
                Err(error) => return Err(EngineError::BadSample { error, attempts: attempt }),
            }
        }
    }
}

impl DiskCaches {
    /// Opens caches that have appeared, and returns all that are open.
    fn found(&mut self) -> Vec<Arc<DiskTier>> {
        let now = Instant::now();
        if !self.wanted.is_empty() && self.next_lookup.is_none_or(|at| now >= at) {
            self.next_lookup = Some(now + LOOKUP_EVERY);
            let found = &mut self.found;
            self.wanted.retain(|config| match DiskTier::open_to_read(config.clone()) {
                Some(tier) => {
                    found.push(Arc::new(tier));
                    false
                }
                None => true,
            });
        }
        self.found.clone()
    }
}
