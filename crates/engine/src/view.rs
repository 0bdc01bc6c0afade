//! Random access to a dataset, through whatever the engine's caches hold of it.
//!
//! A sample is looked for in the tiers of jobs that run on the same dataset, then in the
//! engine's cache directories, which earlier runs and other processes have filled, and then it
//! is read from the source. Its file is compared with the listing before the first copy of it is
//! taken. Nothing is kept: what a cache holds is for policies to decide.

use std::sync::Weak;
use std::time::{Duration, Instant};

use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::SampleId;
use belady_data::source::{Begin, Source, Want};
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::disk::{DiskConfig, DiskTier, FileVersions};
use belady_data::tier::{Get, Tier};

use crate::config::{Retry, TierConfig};
use crate::metrics::{Metrics, Served, Watch};
use crate::run::Run;
use crate::{Engine, EngineError};

/// How often a cache that is not there is looked for: a job that fills it may start any time.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The jobs that run on an engine.
#[derive(Debug, Default)]
pub struct Jobs(Mutex<Vec<Weak<Run>>>);

impl Jobs {
    pub fn add(&self, run: &Arc<Run>) {
        let mut jobs = lock(&self.0);
        jobs.retain(|job| job.strong_count() > 0);
        jobs.push(Arc::downgrade(run));
    }

    /// Those that read a dataset.
    fn of(&self, fingerprint: u64) -> Vec<Arc<Run>> {
        let jobs = lock(&self.0);
        let running = jobs.iter().filter_map(Weak::upgrade);
        running.filter(|run| run.source.catalog().fingerprint() == fingerprint).collect()
    }
}

/// Random access to a dataset.
#[derive(Debug)]
pub struct View {
    source: Arc<dyn Source>,
    jobs: Arc<Jobs>,
    retry: Retry,
    metrics: Arc<Metrics>,
    disks: Mutex<Disks>,
    _watch: Watch,
}

/// Caches in directories, once they are found.
#[derive(Debug)]
struct Disks {
    wanted: Vec<DiskConfig>,
    found: Vec<Arc<DiskTier>>,
    next_look: Option<Instant>,
}

impl Engine {
    /// Random access to a dataset; `name` is for people who look at its caches.
    pub fn view(&self, source: Arc<dyn Source>, name: &str) -> View {
        source.begin(Begin::Job);
        let sizes = Arc::new(source.catalog().sizes());
        let disk = |tier: &TierConfig| match tier {
            TierConfig::Ram { .. } => None,
            TierConfig::Disk { directory, capacity } => {
                Some(disk_config(directory, *capacity, &source, name, &sizes))
            }
        };
        let wanted = self.config.tiers.iter().filter_map(disk).collect();
        View {
            _watch: self.metrics().watch(source.clone()),
            jobs: self.jobs.clone(),
            retry: self.config.retry,
            metrics: self.metrics().clone(),
            disks: Mutex::new(Disks { wanted, found: vec![], next_look: None }),
            source,
        }
    }
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
    /// The bytes of a sample.
    pub fn read(&self, sample: SampleId) -> Result<Vec<u8>, EngineError> {
        let mut bytes = vec![0; self.source.catalog().size(sample) as usize];
        if !self.read_from_caches(sample, &mut bytes) {
            self.read_from_source(sample, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn read_from_caches(&self, sample: SampleId, into: &mut [u8]) -> bool {
        // Why it cannot be had is said by a read of the source.
        if self.source.compare(sample).is_err() {
            return false;
        }
        let version = self.source.version(sample).changed;
        let fingerprint = self.source.catalog().fingerprint();
        for job in self.jobs.of(fingerprint) {
            if let Some(id) = job.cache.find(sample)
                && job.cache.believed(id, sample) == Some(version)
                && let Some(tier) = job.cache.tier(id)
                && tier.get(sample, into) == Get::Hit
            {
                self.metrics.loaded(Served::Tier(id), 1, into.len() as u64);
                return true;
            }
        }
        let disks = lock(&self.disks).look();
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

impl Disks {
    fn look(&mut self) -> Vec<Arc<DiskTier>> {
        let now = Instant::now();
        if !self.wanted.is_empty() && self.next_look.is_none_or(|at| now >= at) {
            self.next_look = Some(now + LOOK_AGAIN);
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
