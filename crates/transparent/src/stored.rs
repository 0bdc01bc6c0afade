//! Looking after copies in a directory, for `belady cache`.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::catalogue::checksum;
use crate::level::{self, DATASET, FILES, PARTIAL, USED, dataset_fingerprint};
use crate::meta::Meta;
use crate::used::Used;

/// The copies of one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredInfo {
    /// The last part of the dataset's name.
    pub name: String,
    pub fingerprint: u64,
    pub dataset: PathBuf,
    pub files: u64,
    pub bytes: u64,
    pub last_used: SystemTime,
    /// A run uses them now.
    pub in_use: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVerified {
    pub name: String,
    pub fingerprint: u64,
    pub good: u64,
    /// These were removed.
    pub damaged: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredProgress {
    pub checked: u64,
    pub files: u64,
}

/// Whether runs have used this directory, even if nothing is left there.
pub fn is_level(directory: &Path) -> bool {
    directory.join(USED).is_file()
}

/// # Errors
/// If the directory cannot be read.
pub fn list(directory: &Path) -> io::Result<Vec<StoredInfo>> {
    let mut found: Vec<StoredInfo> =
        level::homes(directory)?.iter().map(|home| info(home)).collect::<io::Result<_>>()?;
    found.sort_by(|a, b| a.dataset.cmp(&b.dataset));
    Ok(found)
}

/// Reads every copy; those whose bytes are not what was copied are removed, also while they are used:
/// then the source is read.
///
/// # Errors
/// If the directory cannot be read, or a copy cannot be removed.
pub fn verify(
    directory: &Path,
    progress: &mut dyn FnMut(StoredProgress),
) -> io::Result<Vec<StoredVerified>> {
    let homes = level::homes(directory)?;
    let infos: Vec<_> = homes.iter().map(|home| info(home)).collect::<io::Result<_>>()?;
    let files = infos.iter().map(|info| info.files).sum();
    let mut checked = 0;
    let mut buffer = vec![];
    let mut verified = vec![];
    for (home, info) in homes.iter().zip(infos) {
        let (mut good, mut damaged) = (0, 0);
        level::walk(&home.join(FILES), &mut |path, facts| {
            if is_good(path, &mut buffer)? {
                good += 1;
            } else {
                damaged += 1;
                remove(directory, path, facts)?;
            }
            checked += 1;
            progress(StoredProgress { checked, files });
            Ok(())
        })?;
        verified.push(StoredVerified {
            name: info.name,
            fingerprint: info.fingerprint,
            good,
            damaged,
        });
    }
    Ok(verified)
}

/// Removes the copies of all datasets, or of one. If any of them is in use, none goes.
///
/// # Errors
/// If one is in use (`ResourceBusy`) or cannot be removed, or there is none of this fingerprint (`NotFound`).
pub fn clear(directory: &Path, only: Option<u64>) -> io::Result<Vec<StoredInfo>> {
    if level::homes(directory)?.is_empty() && only.is_none() {
        return Ok(vec![]);
    }
    // No run begins meanwhile.
    let _gate = level::gate(directory)?;
    let mut chosen = vec![];
    for home in level::homes(directory)? {
        let info = info(&home)?;
        if only.is_none_or(|only| only == info.fingerprint) {
            chosen.push((home, info));
        }
    }
    if let Some((home, _)) = chosen.iter().find(|(_, info)| info.in_use) {
        let sentence = format!("{} is in use by a run; nothing was removed", home.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, sentence));
    }
    if let Some(only) = only
        && chosen.is_empty()
    {
        let sentence =
            format!("{} holds no copies with the fingerprint {only:016x}", directory.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, sentence));
    }
    let used = Used::open(&directory.join(USED), u64::MAX)?;
    for (home, info) in &chosen {
        std::fs::remove_dir_all(home)?;
        used.release(info.bytes)?;
    }
    Ok(chosen.into_iter().map(|(_, info)| info).collect())
}

fn info(home: &Path) -> io::Result<StoredInfo> {
    let described = home.join(DATASET);
    let text = std::fs::read_to_string(&described)?;
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let dataset = PathBuf::from(value["dataset"].as_str().unwrap_or("?"));
    let (mut files, mut bytes) = (0, 0);
    let mut linked = std::collections::HashSet::new();
    level::walk(&home.join(FILES), &mut |_, facts| {
        files += 1;
        if facts.nlink() == 1 || linked.insert(facts.ino()) {
            bytes += facts.size();
        }
        Ok(())
    })?;
    let partials = level::entries(&home.join(PARTIAL))?;
    Ok(StoredInfo {
        name: dataset
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        fingerprint: dataset_fingerprint(&dataset),
        files,
        bytes,
        last_used: home.join(PARTIAL).metadata()?.modified()?,
        in_use: partials.iter().any(|partial| level::is_alive(partial)),
        dataset,
    })
}

fn is_good(path: &Path, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let Ok(file) = File::open(path) else { return Ok(false) };
    let Some(meta) = Meta::read(&file) else { return Ok(false) };
    Ok(checksum(&file, buffer, &|| false)? == Some(meta.checksum))
}

fn remove(directory: &Path, path: &Path, facts: &std::fs::Metadata) -> io::Result<()> {
    std::fs::remove_file(path)?;
    if facts.nlink() == 1 {
        Used::open(&directory.join(USED), u64::MAX)?.release(facts.size())?;
    }
    Ok(())
}
