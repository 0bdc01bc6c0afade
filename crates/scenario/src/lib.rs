//! Scenario files: what to simulate.
//!
//! A file becomes a job in five steps:
//!
//! 1. the TOML text becomes a table, and every `--set` or swept value is written
//!    into that table ([`Set`], [`Sweep`]), so that the command line and files
//!    have the same keys;
//! 2. keys that no section knows are refused, with the nearest one that exists
//!    (`schema`);
//! 3. the table becomes options as typed (`raw`), where everything may be
//!    missing;
//! 4. options as typed become a [`Scenario`], where nothing is missing and
//!    nothing contradicts (`validate`, with `cluster`, `policies` and [`sampling`]);
//! 5. [`Scenario::job`] draws the sizes ([`dataset`]), builds the access stream
//!    and checks what only the drawn sizes can tell.
//!
//! A [`system_file`] is the `[cluster]` part alone, for the engine on a real machine; a
//! whole scenario serves as one too.
//!
//! Every mistake is a [`ScenarioError`]: one sentence that names the key. The allowed numbers are
//! bounded here, so that sums of bytes and products of counts cannot overflow in the simulator.
#![forbid(unsafe_code)]

mod checks;
mod cluster;
pub mod dataset;
mod directory;
mod error;
mod policies;
mod raw;
pub mod sampling;
mod schema;
mod sweep;
mod system_file;
mod validate;

use std::path::Path;
use std::sync::Arc;

use belady_control::job::Packing;
use belady_control::model::{Bytes, System};
use belady_control::policy::PolicyKind;
use belady_control::sampler::{AccessStream, Scheme, StreamConfig};
use belady_control::{Job, Sizes};

pub use dataset::ScenarioDataset;
pub use error::ScenarioError;
pub use sampling::Sampling;
pub use sweep::{Set, Sweep};
pub use system_file::{Snapshot, SystemFile, system_file};

/// The most bytes that a run reads, and that its tiers hold: leaves two bits of a `u64` for sums.
const MOST_BYTES: u128 = 1 << 62;

/// A policy to run, and its label in tables.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySpec {
    /// The policy and its options.
    pub kind: PolicyKind,
    /// The policy's name unless the scenario gives another; unique in a scenario.
    pub label: String,
}

impl From<PolicyKind> for PolicySpec {
    fn from(kind: PolicyKind) -> Self {
        Self { kind, label: kind.name().to_owned() }
    }
}

/// The `[training]` table: how the job reads its dataset.
#[derive(Clone, Debug)]
pub struct Training {
    /// E. The simulator has no open-ended runs.
    pub epochs: u32,
    /// B, over all ranks.
    pub batch: u32,
    /// The loader drops an incomplete last batch.
    pub drop_last: bool,
    /// The sampler drops the tail instead of padding it.
    pub sampler_drop_last: bool,
    /// How a global batch is split over ranks.
    pub scheme: Scheme,
    /// How an epoch's samples are chosen and ordered.
    pub sampling: Sampling,
    /// Of orders, draws and sizes.
    pub seed: u64,
}

/// A validated scenario: one job on one system, and the policies to compare.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// As the file says, or the file's stem.
    pub name: String,
    /// The samples' sizes.
    pub dataset: ScenarioDataset,
    /// How the job reads them.
    pub training: Training,
    /// The cluster.
    pub system: System,
    /// The policies to compare.
    pub policies: Vec<PolicySpec>,
}

impl Scenario {
    /// Reads a scenario file, with `sets` overriding what it says. A relative
    /// `dataset.path` is taken from the file's folder.
    pub fn load(path: &Path, sets: &[Set]) -> Result<Self, ScenarioError> {
        let text = read_text(path)?;
        let stem = path
            .file_stem()
            .map_or_else(|| "scenario".to_owned(), |stem| stem.to_string_lossy().into_owned());
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::read(&text, sets, &stem, folder).map_err(|error| ScenarioError::InFile {
            path: path.to_owned(),
            error: Box::new(error),
        })
    }

    /// As [`Scenario::load`], from text. A relative `dataset.path` is taken from
    /// the working directory.
    pub fn from_str(text: &str, sets: &[Set]) -> Result<Self, ScenarioError> {
        Self::read(text, sets, "scenario", Path::new(""))
    }

    fn read(text: &str, sets: &[Set], name: &str, folder: &Path) -> Result<Self, ScenarioError> {
        validate::scenario(read_raw(text, sets)?, name, folder)
    }

    /// Runs only the named policies, in the order given: those of the scenario by label or name, any
    /// other with its default options, or with those that follow its name
    /// (`lobster,tau=5ms,threads=false`).
    ///
    /// # Errors
    /// If there is no such policy or option.
    pub fn select(&mut self, names: &[impl AsRef<str>]) -> Result<(), ScenarioError> {
        let mut chosen: Vec<PolicySpec> = Vec::new();
        for name in names {
            let name = name.as_ref();
            let by = |matches: fn(&PolicySpec, &str) -> bool| -> Vec<PolicySpec> {
                self.policies.iter().filter(|spec| matches(spec, name)).cloned().collect()
            };
            let mut found = by(|spec, name| spec.label == name);
            if found.is_empty() {
                found = by(|spec, name| spec.kind.name() == name);
            }
            if found.is_empty() && name.contains(',') {
                found.push(policies::with_options(name, &self.system)?);
            } else if found.is_empty() {
                found.push(policies::policy_by_name("--policy", name)?.into());
            }
            for spec in found {
                if !chosen.iter().any(|other| other.label == spec.label) {
                    chosen.push(spec);
                }
            }
        }
        self.policies = chosen;
        Ok(())
    }

    /// Draws the sizes and builds the access stream. Takes a fraction of a second
    /// for ten million samples; every policy of the scenario shares the result.
    pub fn job(&self) -> Result<Arc<Job>, ScenarioError> {
        let sizes = self.dataset.sizes(self.training.seed)?;
        validate::sample_count(sizes.len(), &self.dataset, &self.training)?;
        self.check_bytes(&sizes)?;
        let ranks = self.system.ranks();
        let order = self.training.sampling.order(&self.training, sizes.len(), ranks)?;
        let stream = AccessStream::new(StreamConfig {
            samples: sizes.len(),
            ranks,
            batch: self.training.batch,
            order,
            scheme: self.training.scheme,
            seed: self.training.seed,
            sampler_drop_last: self.training.sampler_drop_last,
            drop_last: self.training.drop_last,
        })
        .map_err(|error| {
            ScenarioError::invalid("training.batch", format!("cannot be used: {error}"))
        })?;
        let packing = Packing {
            files: self.dataset.files.unwrap_or(sizes.len()),
            read_size: self.dataset.read_size,
        };
        Ok(Arc::new(Job {
            system: self.system.clone(),
            stream,
            sizes,
            epochs: Some(self.training.epochs),
            packing,
        }))
    }

    /// Checks what depends on the drawn sizes: whether samples and batches fit.
    fn check_bytes(&self, sizes: &Sizes) -> Result<(), ScenarioError> {
        let staging = &self.system.tiers[0];
        let key = || format!("cluster.tier.{}.capacity", staging.name);
        let largest = sizes.largest();
        if largest > staging.capacity {
            return Err(ScenarioError::invalid(
                key(),
                format!(
                    "is {}, but the largest sample has {largest}: every sample passes through the \
                     staging buffer, so it must fit there",
                    staging.capacity
                ),
            ));
        }
        // Twice, so that one batch can be filled while the other is consumed. At the mean size: a
        // batch of large samples may use the space of small ones.
        let batch = self.training.largest_rank_batch(self.system.ranks());
        let mean = sizes.total().as_f64() / f64::from(sizes.len());
        let need = 2.0 * f64::from(batch) * f64::from(self.system.ranks_per_node) * mean;
        if need > staging.capacity.as_f64() {
            return Err(ScenarioError::invalid(
                key(),
                format!(
                    "is {}, but two batches of a node's ranks take {} (2 x {} ranks x {batch} \
                     samples of {} on average)",
                    staging.capacity,
                    Bytes(need as u64),
                    self.system.ranks_per_node,
                    Bytes(mean as u64)
                ),
            ));
        }
        let copies = match self.training.scheme {
            Scheme::Whole => u128::from(self.system.ranks()),
            Scheme::Imbalanced => 2,
            Scheme::Uniform | Scheme::Parts | Scheme::Contiguous => 1,
        };
        let epoch = match self.training.sampling {
            Sampling::All(_) => u128::from(sizes.total().0),
            // The largest may be drawn again and again.
            Sampling::Drawn { .. } => {
                u128::from(largest.0) * u128::from(self.training.sampling.length(sizes.len()))
            }
        };
        let read = epoch * u128::from(self.training.epochs) * copies;
        if read > MOST_BYTES {
            return Err(ScenarioError::invalid(
                "training.epochs",
                format!("is {}: the run would read more than 4 EiB", self.training.epochs),
            ));
        }
        Ok(())
    }
}

fn read_text(path: &Path) -> Result<String, ScenarioError> {
    std::fs::read_to_string(path)
        .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })
}

/// Steps 1 to 3: from text to options as typed.
fn read_raw(text: &str, sets: &[Set]) -> Result<raw::RawScenario, ScenarioError> {
    let mut table: toml::Table = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        ScenarioError::Syntax {
            line: 1 + text.get(..start).unwrap_or(text).matches('\n').count(),
            message: error.message().replace('\n', ", "),
        }
    })?;
    for set in sets {
        set.apply(&mut table)?;
    }
    schema::refuse_unknown_keys(&table)?;
    raw::RawScenario::from_table(table)
}

impl Training {
    /// Returns the samples of the largest local batch.
    pub fn largest_rank_batch(&self, ranks: u32) -> u32 {
        match self.scheme {
            Scheme::Uniform | Scheme::Parts => self.batch.div_ceil(ranks),
            Scheme::Contiguous => self.batch / ranks + self.batch % ranks,
            Scheme::Whole => self.batch,
            Scheme::Imbalanced => self.batch.min(self.batch.div_ceil(ranks).saturating_mul(2)),
        }
    }
}
