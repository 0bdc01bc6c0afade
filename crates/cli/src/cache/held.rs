//! What a directory holds for later: samples that the loader keeps in its own files
//! ([`disk`]), and whole files that `belady run` has copied ([`stored`]). Both are shown, checked
//! and removed together.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use belady_data::tier::disk::{self, CacheInfo, ManageError, Verified, VerifyProgress, Which};
use belady_transparent::stored::{self, StoredInfo, StoredProgress, StoredVerified};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Samples,
    Files,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Files => "files",
        }
    }
}

/// One dataset's cache.
#[derive(Clone, Debug)]
pub struct Held {
    pub kind: Kind,
    /// Empty if it cannot be read.
    pub name: String,
    pub fingerprint: u64,
    /// Samples or files.
    pub count: u64,
    pub bytes: u64,
    pub on_disk: u64,
    pub last_used: SystemTime,
    pub in_use: bool,
    /// Whether this version of Belady can read it.
    pub version_ok: bool,
    /// Where the dataset rests, as far as that is known.
    pub dataset: Option<PathBuf>,
}

impl From<CacheInfo> for Held {
    fn from(cache: CacheInfo) -> Self {
        Self {
            kind: Kind::Samples,
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

impl From<StoredInfo> for Held {
    fn from(copies: StoredInfo) -> Self {
        Self {
            kind: Kind::Files,
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

/// What a check of one cache found.
#[derive(Clone, Debug)]
pub struct Checked {
    pub kind: Kind,
    pub name: String,
    pub fingerprint: u64,
    pub good: u64,
    pub damaged: u64,
    /// Whether the damaged ones were let go.
    pub dropped: bool,
    /// Why it could not be checked, if so.
    pub problem: Option<String>,
}

impl From<Verified> for Checked {
    fn from(cache: Verified) -> Self {
        let Verified { fingerprint, name, good, damaged, dropped, problem } = cache;
        Self { kind: Kind::Samples, name, fingerprint, good, damaged, dropped, problem }
    }
}

impl From<StoredVerified> for Checked {
    fn from(copies: StoredVerified) -> Self {
        let StoredVerified { name, fingerprint, good, damaged } = copies;
        let (dropped, problem) = (true, None);
        Self { kind: Kind::Files, name, fingerprint, good, damaged, dropped, problem }
    }
}

pub fn list(directory: &Path) -> Result<Vec<Held>, ManageError> {
    let samples = some(disk::list(directory))?;
    let files = stored::list(directory).map_err(at(directory))?;
    if samples.is_none() && files.is_empty() && !stored::is_level(directory) {
        return Err(ManageError::NoCache(directory.to_owned()));
    }
    let samples = samples.into_iter().flatten().map(Held::from);
    Ok(samples.chain(files.into_iter().map(Held::from)).collect())
}

/// Progress is told as what was checked, and of how many.
pub fn verify(
    directory: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Checked>, ManageError> {
    let step = &mut |VerifyProgress { checked, samples, .. }| progress(checked, samples);
    let samples = some(disk::verify(directory, step))?;
    let step = &mut |StoredProgress { checked, files, .. }| progress(checked, files);
    let files = stored::verify(directory, step).map_err(at(directory))?;
    if samples.is_none() && files.is_empty() && !stored::is_level(directory) {
        return Err(ManageError::NoCache(directory.to_owned()));
    }
    let samples = samples.into_iter().flatten().map(Checked::from);
    Ok(samples.chain(files.into_iter().map(Checked::from)).collect())
}

/// Removes all, or the one with this fingerprint. If any of them is in use, none goes.
pub fn clear(directory: &Path, only: Option<u64>) -> Result<Vec<Held>, ManageError> {
    let mut chosen = list(directory)?;
    if let Some(fingerprint) = only {
        chosen.retain(|held| held.fingerprint == fingerprint);
        if chosen.is_empty() {
            return Err(ManageError::Unknown { directory: directory.to_owned(), fingerprint });
        }
    }
    if let Some(held) = chosen.iter().find(|held| held.in_use) {
        return Err(ManageError::InUse(directory.join(&held.name)));
    }
    let has = |kind| chosen.iter().any(|held| held.kind == kind);
    let mut removed = vec![];
    if has(Kind::Samples) {
        let which = only.map_or(Which::All, Which::One);
        removed.extend(disk::clear(directory, which)?.into_iter().map(Held::from));
    }
    if has(Kind::Files) {
        let files = stored::clear(directory, only).map_err(at(directory))?;
        removed.extend(files.into_iter().map(Held::from));
    }
    Ok(removed)
}

/// A directory may hold the one kind without the other.
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
