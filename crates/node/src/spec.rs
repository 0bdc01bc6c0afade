//! What a rank asks of a node engine, as plain data: the dataset, the job, the transforms.

use std::ffi::OsString;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::{Order, Step};
use belady_data::source::{
    Catalog, Freshness, Joined, OpenOptions, SharedListing, Snapshots, Source, Subset, Throttled,
    open_shared_listing,
};
use belady_engine::{
    BadSamples, EngineConfig, FieldSpec, JobConfig, Lend, Retry, RingKind, TierConfig, Transform,
    TransformConfig,
};
use belady_transform::{Chain, TransformStep};
use serde::{Deserialize, Serialize};

/// A path of any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RawPath(Vec<u8>);

impl From<&Path> for RawPath {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl RawPath {
    /// Returns a path that does not depend on the process's directory.
    pub fn absolute(path: &Path) -> Self {
        // It fails for the empty path alone.
        std::path::absolute(path).as_deref().unwrap_or(path).into()
    }
}

impl From<RawPath> for PathBuf {
    fn from(path: RawPath) -> Self {
        OsString::from_vec(path.0).into()
    }
}

/// The configuration of an engine: the quotas are those of the whole node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// Directories, or `None` for RAM, with quotas.
    pub tiers: Vec<(Option<RawPath>, u64)>,
    /// Threads that load; `None` for the default.
    pub threads: Option<u32>,
    /// The file that describes the machine.
    pub system: Option<RawPath>,
    /// Attempts of a read, the first included.
    pub attempts: u32,
    /// The pause before the second attempt, in nanoseconds.
    pub backoff_ns: u64,
    /// When a read is given up, in nanoseconds.
    pub timeout_ns: u64,
}

/// How a dataset came to be, so that another process can open it.
#[derive(Clone, Debug)]
pub enum DatasetRecipe {
    /// Listed by this process, or received from one that listed it.
    Listed {
        /// What was opened.
        source: Arc<dyn Source>,
        /// Its path.
        path: PathBuf,
        /// How it was opened.
        options: OpenOptions,
        /// How it was listed.
        listed: SharedListing,
        /// How slow it is made, in the form of `ThrottleSpec`.
        throttle: Option<String>,
    },
    /// Several datasets as one, with the prefixes of their paths.
    Joined(Vec<(PathBuf, Arc<Self>)>),
    /// Some samples of a dataset.
    Subset(Arc<Self>, Arc<[u32]>),
}

/// The same as a message.
#[derive(Debug, Serialize, Deserialize)]
pub enum DatasetSpec {
    Listed {
        path: RawPath,
        format: String,
        is_file: bool,
        is_local: bool,
        snapshot: Option<String>,
        snapshots: SnapshotPlace,
        direct: Option<bool>,
        verify_times: bool,
        freshness: String,
        throttle: Option<String>,
    },
    Joined(Vec<(RawPath, DatasetSpec)>),
    Subset(Box<DatasetSpec>, Vec<u32>),
}

#[derive(Debug, Serialize, Deserialize)]
pub enum SnapshotPlace {
    Usual,
    In(RawPath),
    Off,
}

impl DatasetRecipe {
    /// Returns the message, and files with the catalogs of its listed parts, in their order.
    pub(crate) fn spec(&self, catalogs: &mut Vec<OwnedFd>) -> io::Result<DatasetSpec> {
        Ok(match self {
            Self::Listed { source, path, options, listed, throttle } => {
                catalogs.push(file_of(source.catalog().as_bytes())?);
                DatasetSpec::Listed {
                    path: RawPath::absolute(path),
                    format: listed.format.to_string(),
                    is_file: listed.is_file,
                    is_local: listed.is_local,
                    snapshot: listed.snapshot.clone(),
                    snapshots: (&options.snapshots).into(),
                    direct: options.direct,
                    verify_times: options.verify_times,
                    freshness: options.freshness.name().to_owned(),
                    throttle: throttle.clone(),
                }
            }
            Self::Joined(parts) => {
                let part = |(prefix, part): &(PathBuf, Arc<Self>)| {
                    Ok((prefix.as_path().into(), part.spec(catalogs)?))
                };
                DatasetSpec::Joined(parts.iter().map(part).collect::<io::Result<_>>()?)
            }
            Self::Subset(of, samples) => {
                DatasetSpec::Subset(Box::new(of.spec(catalogs)?), samples.to_vec())
            }
        })
    }
}

impl DatasetSpec {
    /// Opens the dataset, with the catalogs of its listed parts.
    pub fn open(
        self,
        catalogs: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Arc<dyn Source>, String> {
        Ok(match self {
            Self::Listed {
                path,
                format,
                is_file,
                is_local,
                snapshot,
                snapshots,
                direct,
                verify_times,
                freshness,
                throttle,
            } => {
                let file = catalogs.next().ok_or("its listing is missing")?;
                let bytes = bytes_of(file).map_err(text)?;
                let catalog = Catalog::from_bytes(bytes).map_err(text)?;
                let options = OpenOptions {
                    snapshots: snapshots.into(),
                    direct,
                    verify_times,
                    freshness: freshness.parse::<Freshness>()?,
                    ..OpenOptions::default()
                };
                let format = format.parse().map_err(text)?;
                let listed = SharedListing { format, is_file, is_local, snapshot };
                let path = PathBuf::from(path);
                let source = open_shared_listing(&path, &options, &listed, catalog);
                let source: Arc<dyn Source> = source.map_err(text)?.into();
                match throttle {
                    None => source,
                    Some(spec) => Arc::new(Throttled::new(source, spec.parse().map_err(text)?, 0)),
                }
            }
            Self::Joined(parts) => {
                let mut sources = vec![];
                for (prefix, part) in parts {
                    sources.push((prefix.into(), part.open(catalogs)?));
                }
                Arc::new(Joined::new(sources).map_err(text)?)
            }
            Self::Subset(of, samples) => {
                Arc::new(Subset::new(of.open(catalogs)?, samples).map_err(text)?)
            }
        })
    }
}

impl From<&Snapshots> for SnapshotPlace {
    fn from(snapshots: &Snapshots) -> Self {
        match snapshots {
            Snapshots::Usual => Self::Usual,
            Snapshots::In(directory) => Self::In(RawPath::absolute(directory)),
            Snapshots::Off => Self::Off,
        }
    }
}

impl From<SnapshotPlace> for Snapshots {
    fn from(place: SnapshotPlace) -> Self {
        match place {
            SnapshotPlace::Usual => Self::Usual,
            SnapshotPlace::In(directory) => Self::In(directory.into()),
            SnapshotPlace::Off => Self::Off,
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn file_of(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("belady-listing", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes)?;
    Ok(file.into())
}

fn bytes_of(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::from(file);
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl EngineSpec {
    /// Returns the configuration of the engine.
    pub(crate) fn config(&self) -> Result<EngineConfig, String> {
        let system = self.system.clone().map(PathBuf::from);
        let system = system.map(|path| belady_scenario::system_file(&path));
        let system = system.transpose().map_err(text)?;
        let serving_threads = system.as_ref().and_then(|file| file.serving_threads);
        let tier = |(place, quota): &(Option<RawPath>, u64)| {
            let capacity = Bytes(*quota);
            match place.clone() {
                None => TierConfig::Ram { capacity },
                Some(directory) => TierConfig::Disk { directory: directory.into(), capacity },
            }
        };
        Ok(EngineConfig {
            threads: self.threads,
            tiers: self.tiers.iter().map(tier).collect(),
            system: system.map(|file| file.system),
            serving_threads,
            retry: Retry {
                attempts: self.attempts,
                backoff: Duration::from_nanos(self.backoff_ns),
                timeout: Duration::from_nanos(self.timeout_ns),
            },
            shared_tiers: true,
            ..EngineConfig::default()
        })
    }
}

/// A [`JobConfig`] without its source and its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    name: String,
    epochs: Option<u32>,
    staging: u64,
    next_epoch: Option<u64>,
    staging_grows: bool,
    /// With its options, in the form in which users write it.
    policy: String,
    bad_samples: WireBadSamples,
    cache_share: f64,
    /// Samples in shared tiers may be lent.
    lends: bool,
    trace: Option<RawPath>,
}

/// [`BadSamples`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireBadSamples {
    Raise,
    Skip,
    Replace,
}

impl From<BadSamples> for WireBadSamples {
    fn from(given: BadSamples) -> Self {
        match given {
            BadSamples::Raise => Self::Raise,
            BadSamples::Skip => Self::Skip,
            BadSamples::Replace => Self::Replace,
        }
    }
}

impl From<WireBadSamples> for BadSamples {
    fn from(given: WireBadSamples) -> Self {
        match given {
            WireBadSamples::Raise => Self::Raise,
            WireBadSamples::Skip => Self::Skip,
            WireBadSamples::Replace => Self::Replace,
        }
    }
}

impl JobSpec {
    pub fn of(config: &JobConfig) -> Self {
        Self {
            name: config.name.clone(),
            epochs: config.epochs,
            staging: config.staging.0,
            next_epoch: config.next_epoch.map(|bytes| bytes.0),
            staging_grows: config.staging_grows,
            policy: config.policy.to_string(),
            bad_samples: config.bad_samples.into(),
            cache_share: config.cache_share,
            // Worker processes map the ring alone.
            lends: config.lend == Lend::ReadOnly && config.ring == RingKind::Private,
            trace: config.trace.as_deref().map(RawPath::absolute),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether another rank asks for the same job. One trace is written, the first rank's.
    pub fn is_same(&self, other: &Self) -> bool {
        let without_trace = |spec: &Self| Self { trace: None, ..spec.clone() };
        without_trace(self) == without_trace(other)
    }

    /// Returns the job's configuration.
    pub fn config(&self, source: Arc<dyn Source>, order: Order) -> Result<JobConfig, String> {
        Ok(JobConfig {
            name: self.name.clone(),
            order,
            epochs: self.epochs,
            staging: Bytes(self.staging),
            next_epoch: self.next_epoch.map(Bytes),
            staging_grows: self.staging_grows,
            policy: belady_engine::policy(&self.policy).map_err(text)?,
            bad_samples: self.bad_samples.into(),
            lend: if self.lends { Lend::ReadOnly } else { Lend::Slots },
            ring: RingKind::Writable,
            cache_share: self.cache_share,
            trace: self.trace.clone().map(PathBuf::from),
            ..JobConfig::new(source)
        })
    }
}

/// A transform stage: what every batch is made into. The same for an engine of this process and for
/// a node engine.
#[derive(Clone, Debug)]
pub struct TransformRecipe {
    /// Part of the sample and chain of each field.
    pub fields: Vec<(Option<String>, Option<Arc<Chain>>)>,
    /// As in [`TransformConfig`].
    pub seed: u64,
    /// As in [`TransformConfig`].
    pub first: Step,
    /// As in [`TransformConfig`].
    pub repeats: bool,
    /// As in [`TransformConfig`].
    pub threads: usize,
    /// As in [`TransformConfig`].
    pub depth: usize,
    /// As in [`TransformConfig`].
    pub on_error: BadSamples,
}

/// The same as a message.
#[derive(Debug, Serialize, Deserialize)]
pub struct TransformSpec {
    /// The steps of a chain are JSON.
    fields: Vec<(Option<String>, Option<String>)>,
    seed: u64,
    first: (u32, u32),
    repeats: bool,
    threads: usize,
    depth: usize,
    on_error: WireBadSamples,
}

impl TransformRecipe {
    /// Returns the configuration of the stage.
    pub fn config(self) -> TransformConfig {
        let field = |(part, chain): (Option<String>, Option<Arc<Chain>>)| FieldSpec {
            part,
            transform: chain.map(|chain| chain as Arc<dyn Transform>),
        };
        TransformConfig {
            fields: self.fields.into_iter().map(field).collect(),
            seed: self.seed,
            first: self.first,
            repeats: self.repeats,
            threads: self.threads,
            depth: self.depth,
            on_error: self.on_error,
            ..TransformConfig::default()
        }
    }

    pub(crate) fn spec(&self) -> Result<TransformSpec, serde_json::Error> {
        let field = |(part, chain): &(Option<String>, Option<Arc<Chain>>)| {
            let steps = chain.as_ref().map(|chain| serde_json::to_string(chain.steps()));
            Ok((part.clone(), steps.transpose()?))
        };
        Ok(TransformSpec {
            fields: self.fields.iter().map(field).collect::<Result<_, _>>()?,
            seed: self.seed,
            first: (self.first.epoch, self.first.iteration),
            repeats: self.repeats,
            threads: self.threads,
            depth: self.depth,
            on_error: self.on_error.into(),
        })
    }
}

impl TransformSpec {
    pub fn recipe(self) -> Result<TransformRecipe, String> {
        let field = |(part, steps): (Option<String>, Option<String>)| {
            let chain = |steps: String| {
                let steps = TransformStep::list(&steps).map_err(text)?;
                Chain::new(steps).map(Arc::new).map_err(text)
            };
            Ok((part, steps.map(chain).transpose()?))
        };
        Ok(TransformRecipe {
            fields: self.fields.into_iter().map(field).collect::<Result<_, String>>()?,
            seed: self.seed,
            first: Step { epoch: self.first.0, iteration: self.first.1 },
            repeats: self.repeats,
            threads: self.threads,
            depth: self.depth,
            on_error: self.on_error.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use belady_data::source::Synthetic;

    use super::*;

    #[test]
    fn a_job_keeps_the_options_of_its_policy_on_its_way_to_the_engine() {
        let source: Arc<dyn Source> = Arc::new(Synthetic::of_sizes([1, 2, 3], 1));
        let with = |policy: &str| JobConfig {
            policy: belady_engine::policy(policy).unwrap(),
            ..JobConfig::new(source.clone())
        };
        let given = with("lobster,tau=5ms,threads=false");
        let sent = postcard::to_allocvec(&JobSpec::of(&given)).unwrap();
        let spec: JobSpec = postcard::from_bytes(&sent).unwrap();
        let arrived = spec.config(source.clone(), Order::Torch).unwrap();
        assert_eq!(arrived.policy, given.policy);
        assert!(spec.is_same(&JobSpec::of(&with("lobster,threads=false,tau=0.005"))));
        assert!(!spec.is_same(&JobSpec::of(&with("lobster"))), "ranks of a job have one policy");
    }
}
