//! Looking at the caches of a directory from outside: list, verify, clear.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use belady_control::model::Bytes;

use super::directory::{self, CacheDirectory, DirectoryError, Gate, Use};
use super::index::{Index, IndexError, IndexView, OpenError, check_index};
use super::segments::Segments;
use super::store::{FileVersions, Store};

/// Why caches could not be looked at or cleared.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    #[error("{} holds no cache of Belady", .0.display())]
    NoCache(PathBuf),
    #[error("{} holds no cache with the fingerprint {fingerprint:016x}", directory.display())]
    Unknown { directory: PathBuf, fingerprint: u64 },
    #[error("the cache {} is in use: stop the jobs that use it, then clear it", .0.display())]
    InUse(PathBuf),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// One dataset's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheInfo {
    pub fingerprint: u64,
    /// The dataset's name; empty if the index cannot be read.
    pub name: String,
    pub samples: u64,
    /// Payload of these samples.
    pub bytes: Bytes,
    /// What its files take.
    pub on_disk: Bytes,
    pub last_used: SystemTime,
    pub in_use: bool,
    /// Whether this version of Belady can read it.
    pub version_ok: bool,
}

/// What a check of one cache found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub fingerprint: u64,
    pub name: String,
    pub good: u64,
    pub damaged: u64,
    /// Whether the damaged ones were let go; not while others use the cache.
    pub dropped: bool,
    /// Why it could not be checked, if so.
    pub problem: Option<String>,
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    pub fingerprint: u64,
    pub checked: u64,
    pub samples: u64,
}

/// Caches to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    One(u64),
}

/// The caches of a directory.
pub fn list(directory: &Path) -> Result<Vec<CacheInfo>, ManageError> {
    let root = root(directory)?;
    // Without it, as in a read-only directory, we only may see a cache that comes or goes.
    let _gate = Gate::enter(&root);
    Ok(caches(&root)?.iter().map(info).collect())
}

/// Reads every sample of every cache and lets go of those that fail their checksum.
pub fn verify(
    directory: &Path,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<Vec<Verified>, ManageError> {
    let root = root(directory)?;
    Ok(caches(&root)?.into_iter().map(|cache| verify_one(&root, cache, progress)).collect())
}

/// Removes caches, and tells what was removed. If any of them is in use, none goes.
pub fn clear(directory: &Path, which: Which) -> Result<Vec<CacheInfo>, ManageError> {
    let root = root(directory)?;
    let _gate = Gate::enter(&root).map_err(at(&root))?;
    let mut chosen = caches(&root)?;
    if let Which::One(fingerprint) = which {
        chosen.retain(|cache| cache.fingerprint == fingerprint);
        if chosen.is_empty() {
            return Err(ManageError::Unknown { directory: directory.to_owned(), fingerprint });
        }
    }
    if let Some(cache) = chosen.iter().find(|cache| cache.usage() != Use::Idle) {
        return Err(ManageError::InUse(cache.path.clone()));
    }
    let mut removed = Vec::new();
    for cache in chosen {
        removed.push(info(&cache));
        cache.remove().map_err(at(&cache.path))?;
    }
    Ok(removed)
}

fn root(directory: &Path) -> Result<PathBuf, ManageError> {
    match directory::find(directory) {
        Err(DirectoryError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            Err(ManageError::NoCache(directory.to_owned()))
        }
        result => Ok(result?),
    }
}

fn caches(root: &Path) -> Result<Vec<CacheDirectory>, ManageError> {
    CacheDirectory::all(root).map_err(at(root))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ManageError {
    let path = path.to_owned();
    move |error| ManageError::Io { path, error }
}

fn info(cache: &CacheDirectory) -> CacheInfo {
    let bytes = fs::read(cache.index()).unwrap_or_default();
    let view = check_index(&bytes);
    let (samples, payload) = view
        .iter()
        .flat_map(IndexView::held)
        .fold((0, 0_u64), |(samples, payload), (_, _, size)| {
            (samples + 1, payload.saturating_add(size))
        });
    CacheInfo {
        fingerprint: cache.fingerprint,
        name: view.as_ref().map_or_else(|_| String::new(), |view| view.header.name.clone()),
        samples,
        bytes: Bytes(payload),
        on_disk: Bytes(cache.bytes().unwrap_or(0)),
        last_used: cache.last_used(),
        in_use: cache.usage() != Use::Idle,
        version_ok: !matches!(view, Err(IndexError::Version { .. })),
    }
}

fn verify_one(
    root: &Path,
    cache: CacheDirectory,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Verified {
    let fingerprint = cache.fingerprint;
    let mut found = Verified {
        fingerprint,
        name: String::new(),
        good: 0,
        damaged: 0,
        dropped: false,
        problem: None,
    };
    if let Err(error) = verify_samples(root, cache, &mut found, progress) {
        found.problem = Some(error.to_string());
    }
    found
}

fn verify_samples(
    root: &Path,
    cache: CacheDirectory,
    found: &mut Verified,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<(), OpenError> {
    // The writer's lock, if nobody has it, keeps samples where they are while we look.
    let gate = Gate::enter(root);
    let idle = gate.is_ok() && cache.usage() == Use::Idle;
    let lock = if idle { cache.lock()? } else { None };
    let index = Index::open(&cache.index(), lock.is_some())?;
    drop(gate);
    let bytes = fs::read(cache.index())?;
    let view = check_index(&bytes)?;
    found.name.clone_from(&view.header.name);
    found.dropped = lock.is_some();
    let segments = Segments::new(&cache.path, &index.header, false);
    let store = Store { index, segments, cache, versions: FileVersions::default(), writer: None };
    let samples = view.held().count() as u64;
    let mut payload = Vec::new();
    for (checked, (sample, entry, size)) in view.held().enumerate() {
        let step =
            VerifyProgress { fingerprint: found.fingerprint, checked: checked as u64, samples };
        progress(step);
        if store.is_right(sample, entry, size, &mut payload) {
            found.good += 1;
        } else if lock.is_some() {
            found.damaged += 1;
            store.index.clear(sample, size);
        } else if store.index.entry(sample).is_ok_and(|now| now == Some(entry)) {
            found.damaged += 1;
        }
    }
    progress(VerifyProgress { fingerprint: found.fingerprint, checked: samples, samples });
    Ok(())
}
