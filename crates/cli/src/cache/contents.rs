//! Lists, verifies and clears the caches of a directory, of both kinds together: samples that the
//! loader stores ([`disk`]), and whole files that `belady run` has copied ([`stored_copies`]).

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use belady_data::tier::disk::{self, CacheInfo, ManageError, Verified, VerifyProgress, Which};
use belady_transparent::stored_copies::{self, StoredInfo, StoredProgress, StoredVerified};

/// What a cache consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    Samples,
    Files,
}

impl CacheKind {
    /// Returns the kind's name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Files => "files",
        }
    }
}

/// One dataset's cache.
#[derive(Clone, Debug)]
pub struct CachedDataset {
    pub kind: CacheKind,
    /// Empty if it cannot be read.
    pub name: String,
    pub fingerprint: u64,
    /// The number of samples or files.
    pub count: u64,
    pub bytes: u64,
    pub on_disk: u64,
    pub last_used: SystemTime,
    pub in_use: bool,
    /// Whether this version of Belady can read it.
    pub version_ok: bool,
    /// The path of the dataset, if it is known.
    pub dataset: Option<PathBuf>,
}

impl From<CacheInfo> for CachedDataset {
    fn from(cache: CacheInfo) -> Self {
        Self {
            kind: CacheKind::Samples,
            name: cache.name,
            fingerprint: cache.fingerprint,
            count: cache.samples,
            bytes: cache.bytes.0,
            on_disk: cache.on_disk.0,
            last_used: cache.last_used,
            in_use: cache.in_use,
            version_ok: cache.version_ok,
            dataset: None,
        }
    }
}

impl From<StoredInfo> for CachedDataset {
    fn from(copies: StoredInfo) -> Self {
        Self {
            kind: CacheKind::Files,
            name: copies.name,
            fingerprint: copies.fingerprint,
            count: copies.files,
            bytes: copies.bytes,
            on_disk: copies.bytes,
            last_used: copies.last_used,
            in_use: copies.in_use,
            version_ok: true,
            dataset: Some(copies.dataset),
        }
    }
}

/// The result of verifying one cache.
#[derive(Clone, Debug)]
pub struct CheckedCache {
    pub kind: CacheKind,
    pub name: String,
    pub fingerprint: u64,
    pub good: u64,
    pub damaged: u64,
    /// Whether the damaged ones were removed.
    pub dropped: bool,
    /// Why it could not be verified.
    pub problem: Option<String>,
}

impl From<Verified> for CheckedCache {
    fn from(cache: Verified) -> Self {
        let Verified { fingerprint, name, good, damaged, dropped, problem } = cache;
        Self { kind: CacheKind::Samples, name, fingerprint, good, damaged, dropped, problem }
    }
}

impl From<StoredVerified> for CheckedCache {
    fn from(copies: StoredVerified) -> Self {
        let StoredVerified { name, fingerprint, good, damaged } = copies;
        let (dropped, problem) = (true, None);
        Self { kind: CacheKind::Files, name, fingerprint, good, damaged, dropped, problem }
    }
}

/// Returns all caches of a directory.
pub fn list(directory: &Path) -> Result<Vec<CachedDataset>, ManageError> {
    let samples = some(disk::list(directory))?;
    let files = stored_copies::list(directory).map_err(at(directory))?;
    if samples.is_none() && files.is_empty() && !stored_copies::is_level(directory) {
        return Err(ManageError::NoCache(directory.to_owned()));
    }
    let samples = samples.into_iter().flatten().map(CachedDataset::from);
    Ok(samples.chain(files.into_iter().map(CachedDataset::from)).collect())
}

/// Reads all caches of a directory and removes what is damaged. It calls `progress` with the number
/// of samples or files that are checked, and of all.
pub fn verify(
    directory: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<CheckedCache>, ManageError> {
    let step = &mut |VerifyProgress { checked, samples, .. }| progress(checked, samples);
    let samples = some(disk::verify(directory, step))?;
    let step = &mut |StoredProgress { checked, files, .. }| progress(checked, files);
    let files = stored_copies::verify(directory, step).map_err(at(directory))?;
    if samples.is_none() && files.is_empty() && !stored_copies::is_level(directory) {
        return Err(ManageError::NoCache(directory.to_owned()));
    }
    let samples = samples.into_iter().flatten().map(CheckedCache::from);
    Ok(samples.chain(files.into_iter().map(CheckedCache::from)).collect())
}

/// Removes all caches, or the one with this fingerprint. If one of them is in use, it removes none.
pub fn clear(directory: &Path, only: Option<u64>) -> Result<Vec<CachedDataset>, ManageError> {
    let mut chosen = list(directory)?;
    if let Some(fingerprint) = only {
        chosen.retain(|cache| cache.fingerprint == fingerprint);
        if chosen.is_empty() {
            return Err(ManageError::Unknown { directory: directory.to_owned(), fingerprint });
        }
    }
    if let Some(cache) = chosen.iter().find(|cache| cache.in_use) {
        return Err(ManageError::InUse(directory.join(&cache.name)));
    }
    let has = |kind| chosen.iter().any(|cache| cache.kind == kind);
    let mut removed = vec![];
    if has(CacheKind::Samples) {
        let which = only.map_or(Which::All, Which::One);
        removed.extend(disk::clear(directory, which)?.into_iter().map(CachedDataset::from));
    }
    if has(CacheKind::Files) {
        let files = stored_copies::clear(directory, only).map_err(at(directory))?;
        removed.extend(files.into_iter().map(CachedDataset::from));
    }
    Ok(removed)
}

/// Returns `None` if a directory has no cache of a kind.
fn some<T>(result: Result<T, ManageError>) -> Result<Option<T>, ManageError> {
    match result {
        Err(ManageError::NoCache(_)) => Ok(None),
        other => other.map(Some),
    }
}

fn at(directory: &Path) -> impl FnOnce(std::io::Error) -> ManageError {
    let path = directory.to_owned();
    move |error| ManageError::Io { path, error }
}
