//! System files: what the engine is told of the machine it runs on.
//!
//! The same `[cluster]` tables as in a scenario, so that what was simulated can be run: a
//! whole scenario is a system file too, and a system file lacks only what a real machine
//! shows by itself. Three keys mean something on a real machine only, and the simulator
//! checks and ignores them: `serving_threads`, `snapshot` and a tier's `path`.

use std::path::{Path, PathBuf};

use belady_control::model::{Bytes, Rate, System};

use super::raw::{Quantity, RawCapacity, RawCluster, RawSnapshot, RawTier, Whole};
use super::validate::{self, MOST_THREADS, whole};
use super::{ScenarioError, read_raw, read_text};

/// A rate that nothing reaches: what is not said to be slow is not waited for.
const UNBOUNDED: Rate = Rate(1e15);

/// A machine as its owner describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct SystemFile {
    pub system: System,
    /// The directory of each of the system's tiers; those without one are in RAM.
    pub tier_paths: Vec<Option<PathBuf>>,
    /// Threads that answer other nodes, if the file says how many.
    pub serving_threads: Option<u32>,
    /// What becomes of the list of a dataset's files, if the file says.
    pub snapshot: Option<Snapshot>,
}

/// What becomes of the list of a dataset's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// Made anew each time.
    Off,
    /// Kept where the user's caches are.
    On,
    In(PathBuf),
}

/// Reads a system file. Relative directories are taken from the file's folder.
pub fn system_file(path: &Path) -> Result<SystemFile, ScenarioError> {
    let text = read_text(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    read(&text, folder)
        .map_err(|error| ScenarioError::InFile { path: path.to_owned(), error: Box::new(error) })
}

fn read(text: &str, folder: &Path) -> Result<SystemFile, ScenarioError> {
    let mut raw = read_raw(text, &[])?.cluster;
    check_local(&raw)?;
    let serving_threads = raw.serving_threads.map(|Whole(threads)| threads as u32);
    let snapshot = raw.snapshot.take().map(|snapshot| match snapshot {
        RawSnapshot::Kept(false) => Snapshot::Off,
        RawSnapshot::Kept(true) => Snapshot::On,
        RawSnapshot::In(directory) => Snapshot::In(folder.join(directory)),
    });
    // As validation does, which leaves out later tiers without capacity.
    let stays = |&(index, tier): &(usize, &RawTier)| index == 0 || !is_empty(tier);
    let kept = raw.tier.iter().enumerate().filter(stays);
    let tier_paths = kept.map(|(_, tier)| tier.path.as_ref().map(|path| folder.join(path)));
    let tier_paths = tier_paths.collect();
    let system = validate::system(with_defaults(raw))?;
    Ok(SystemFile { system, tier_paths, serving_threads, snapshot })
}

fn is_empty(tier: &RawTier) -> bool {
    match &tier.capacity {
        Some(RawCapacity::Every(capacity)) => *capacity == Bytes::ZERO,
        Some(RawCapacity::ByNode(capacities)) => capacities.iter().all(|&one| one == Bytes::ZERO),
        None => false,
    }
}

/// One node without limits, wherever the file is silent.
fn with_defaults(mut raw: RawCluster) -> RawCluster {
    raw.nodes.get_or_insert(Whole(1));
    for rate in [&mut raw.compute, &mut raw.preprocess, &mut raw.network, &mut raw.source.link] {
        rate.get_or_insert(Quantity(UNBOUNDED));
    }
    raw
}

/// The keys that only a real machine heeds.
pub(super) fn check_local(raw: &RawCluster) -> Result<(), ScenarioError> {
    if let Some(threads) = raw.serving_threads {
        whole("cluster.serving_threads", threads, 1, MOST_THREADS)?;
    }
    let empty = |path: &str| path.trim().is_empty();
    if matches!(&raw.snapshot, Some(RawSnapshot::In(directory)) if empty(directory)) {
        return Err(ScenarioError::invalid(
            "cluster.snapshot",
            "is empty; give a directory, or true or false",
        ));
    }
    for (index, tier) in raw.tier.iter().enumerate() {
        let Some(path) = &tier.path else { continue };
        let name = tier.name.clone().unwrap_or_else(|| index.to_string());
        let key = format!("cluster.tier.{name}.path");
        if index == 0 {
            return Err(ScenarioError::invalid(
                key,
                "cannot be: the first tier is the staging buffer, which is in RAM",
            ));
        }
        if empty(path) {
            return Err(ScenarioError::invalid(key, "is empty; leave it out for a tier in RAM"));
        }
    }
    Ok(())
}
