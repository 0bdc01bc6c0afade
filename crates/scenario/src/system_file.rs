//! System files: the description of the machine that the engine runs on.
//!
//! They have the `[cluster]` tables of a scenario, so that what was simulated can be run: a whole
//! scenario is a system file too. Rates that a file does not give are unbounded. Two keys are for
//! a real machine only, and the simulator checks and ignores them: `snapshot`, `serving_threads` and a
//! tier's `path`.

use std::path::{Path, PathBuf};

use belady_control::model::{Bytes, System};

use super::cluster::{self, check_local};
use super::raw::{Quantity, RawCapacity, RawCluster, RawPreprocess, RawSnapshot, RawTier, Whole};
use super::{ScenarioError, read_raw, read_text};

/// The contents of a system file.
#[derive(Clone, Debug, PartialEq)]
pub struct SystemFile {
    /// The `[cluster]` tables.
    pub system: System,
    /// The directory of each of the system's tiers; a tier without one is in RAM.
    pub tier_paths: Vec<Option<PathBuf>>,
    /// Whether the listing of a dataset is cached, if given.
    pub snapshot: Option<Snapshot>,
    /// Threads that look up samples for other nodes, if given.
    pub serving_threads: Option<u32>,
}

/// Whether the listing of a dataset is cached, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// Not cached.
    Off,
    /// Cached in the user's cache directory.
    On,
    /// Cached in this directory.
    In(PathBuf),
}

/// Reads a system file. Relative directories are resolved from the file's folder.
///
/// # Errors
/// If the file cannot be read or is invalid.
pub fn system_file(path: &Path) -> Result<SystemFile, ScenarioError> {
    let text = read_text(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    read(&text, folder)
        .map_err(|error| ScenarioError::InFile { path: path.to_owned(), error: Box::new(error) })
}

fn read(text: &str, folder: &Path) -> Result<SystemFile, ScenarioError> {
    let mut raw = read_raw(text, &[])?.cluster;
    check_local(&raw)?;
    let serving_threads = cluster::serving_threads(&raw)?;
    let snapshot = raw.snapshot.take().map(|snapshot| match snapshot {
        RawSnapshot::Kept(false) => Snapshot::Off,
        RawSnapshot::Kept(true) => Snapshot::On,
        RawSnapshot::In(directory) => Snapshot::In(folder.join(directory)),
    });
    // `cluster::system` leaves out later tiers without capacity, and so does this list.
    let stays = |&(index, tier): &(usize, &RawTier)| index == 0 || !is_empty(tier);
    let kept = raw.tier.iter().enumerate().filter(stays);
    let tier_paths = kept.map(|(_, tier)| tier.path.as_ref().map(|path| folder.join(path)));
    let tier_paths = tier_paths.collect();
    let system = cluster::system(with_defaults(raw))?;
    Ok(SystemFile { system, tier_paths, snapshot, serving_threads })
}

fn is_empty(tier: &RawTier) -> bool {
    match &tier.capacity {
        Some(RawCapacity::Every(capacity)) => *capacity == Bytes::ZERO,
        Some(RawCapacity::ByNode(capacities)) => capacities.iter().all(|&one| one == Bytes::ZERO),
        None => false,
    }
}

/// Fills in missing keys: one node, unbounded rates.
fn with_defaults(mut raw: RawCluster) -> RawCluster {
    raw.nodes.get_or_insert(Whole(1));
    raw.preprocess.get_or_insert(RawPreprocess::PerThread(Quantity(cluster::UNBOUNDED)));
    for rate in [&mut raw.network, &mut raw.source.link] {
        rate.get_or_insert(Quantity(cluster::UNBOUNDED));
    }
    if raw.compute_per_sample.is_none() {
        raw.compute.get_or_insert(Quantity(cluster::UNBOUNDED));
    }
    raw
}
