//! Lists, verifies and clears the caches of a directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use belady_control::model::Bytes;

use super::directory::{self, CacheDirectory, CacheUse, DirectoryError, DirectoryLock};
use super::index::{CacheIndex, CacheIndexError, IndexView, OpenIndexError, check_index};
use super::segments::Segments;
use super::store::{CacheStore, FileVersions};

/// Why caches cannot be listed, verified or cleared.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum ManageError {
    /// The directory holds no cache.
    #[error("{} holds no cache of Belady", .0.display())]
    NoCache(PathBuf),
    /// No cache has this fingerprint.
    #[error("{} holds no cache with the fingerprint {fingerprint:016x}", directory.display())]
    Unknown { directory: PathBuf, fingerprint: u64 },
    /// A job uses the cache.
    #[error("the cache {} is in use: stop the jobs that use it, then clear it", .0.display())]
    InUse(PathBuf),
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The operating system reported an error.
    #[error("cannot access {}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// One dataset's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheInfo {
    /// The dataset's fingerprint.
    pub fingerprint: u64,
    /// The dataset's name; empty if the index cannot be read.
    pub name: String,
    /// The number of samples held.
    pub samples: u64,
    /// The payload of these samples.
    pub bytes: Bytes,
    /// The size of its files.
    pub on_disk: Bytes,
    /// When it was last used.
    pub last_used: SystemTime,
    /// Whether a process has it open.
    pub in_use: bool,
    /// Whether this version of Belady can read it.
    pub version_ok: bool,
}

/// The result of verifying one cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The dataset's fingerprint.
    pub fingerprint: u64,
    /// The dataset's name.
    pub name: String,
    /// Samples with a right checksum.
    pub good: u64,
    /// Damaged samples.
    pub damaged: u64,
    /// Whether damaged samples were evicted; not while another process uses the cache.
    pub dropped: bool,
    /// Why it could not be verified, if so.
    pub problem: Option<String>,
}

/// The progress of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// The cache being verified.
    pub fingerprint: u64,
    /// Samples verified so far.
    pub checked: u64,
    /// Samples in the cache.
    pub samples: u64,
}

/// Which caches to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// The one with this fingerprint.
    One(u64),
}

/// Lists the caches of a directory.
///
/// # Errors
///
/// If the directory holds no cache or cannot be read.
pub fn list(directory: &Path) -> Result<Vec<CacheInfo>, ManageError> {
    let root = root(directory)?;
    // Without the lock, as in a read-only directory, a cache may be created or removed meanwhile.
    let _lock = DirectoryLock::acquire(&root);
    Ok(caches(&root)?.iter().map(info).collect())
}

/// Reads every sample of every cache and evicts those that fail their checksum.
///
/// # Errors
///
/// If the directory holds no cache or cannot be read.
pub fn verify(
    directory: &Path,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<Vec<Verified>, ManageError> {
    let root = root(directory)?;
    Ok(caches(&root)?.into_iter().map(|cache| verify_one(&root, cache, progress)).collect())
}

/// Removes caches and returns what was removed. If any of them is in use, none is removed.
///
/// # Errors
///
/// If a cache is in use, unknown or cannot be removed.
pub fn clear(directory: &Path, which: Which) -> Result<Vec<CacheInfo>, ManageError> {
    let root = root(directory)?;
    let _lock = DirectoryLock::acquire(&root).map_err(at(&root))?;
    let mut chosen = caches(&root)?;
    if let Which::One(fingerprint) = which {
        chosen.retain(|cache| cache.fingerprint == fingerprint);
        if chosen.is_empty() {
            return Err(ManageError::Unknown { directory: directory.to_owned(), fingerprint });
        }
    }
    if let Some(cache) = chosen.iter().find(|cache| cache.usage() != CacheUse::Idle) {
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
        in_use: cache.usage() != CacheUse::Idle,
        version_ok: !matches!(view, Err(CacheIndexError::Version { .. })),
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
) -> Result<(), OpenIndexError> {
    // Holding the writer lock, if it is free, keeps samples in place meanwhile.
    let directory_lock = DirectoryLock::acquire(root);
    let idle = directory_lock.is_ok() && cache.usage() == CacheUse::Idle;
    let lock = if idle { cache.lock()? } else { None };
    let index = CacheIndex::open(&cache.index(), lock.is_some())?;
    drop(directory_lock);
    let bytes = fs::read(cache.index())?;
    let view = check_index(&bytes)?;
    found.name.clone_from(&view.header.name);
    found.dropped = lock.is_some();
    let segments = Segments::new(&cache.path, &index.header, false);
    let store =
        CacheStore { index, segments, cache, versions: FileVersions::default(), writer: None };
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
