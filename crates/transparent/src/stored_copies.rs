//! Lists, verifies and removes the copies in a directory, for `belady cache`.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::files::{self, count_below};
use crate::level::{self, DATASET, FILES, PARTIAL, USED, dataset_fingerprint};
use crate::metadata::CopyMetadata;
use crate::quota::QuotaUsage;
use crate::scan::checksum;

/// The copies of one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredInfo {
    /// The last component of the dataset's path.
    pub name: String,
    /// A hash of the dataset's path.
    pub fingerprint: u64,
    /// The dataset's path.
    pub dataset: PathBuf,
    /// The number of copies.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When a run last used them.
    pub last_used: SystemTime,
    /// Whether a run uses them now.
    pub in_use: bool,
}

/// The result of verifying the copies of one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVerified {
    /// See [`StoredInfo::name`].
    pub name: String,
    /// See [`StoredInfo::fingerprint`].
    pub fingerprint: u64,
    /// Intact copies.
    pub good: u64,
    /// Damaged copies, which were removed.
    pub damaged: u64,
}

/// The progress of [`verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredProgress {
    /// Copies verified so far.
    pub checked: u64,
    /// All copies.
    pub files: u64,
}

/// Returns whether runs have used this directory, even if no copy is left.
pub fn is_level(directory: &Path) -> bool {
    directory.join(USED).is_file()
}

/// Lists the datasets that have copies in a directory.
///
/// # Errors
/// If the directory cannot be read.
pub fn list(directory: &Path) -> io::Result<Vec<StoredInfo>> {
    let mut found: Vec<StoredInfo> =
        level::homes(directory)?.iter().map(|home| info(home)).collect::<io::Result<_>>()?;
    found.sort_by(|a, b| a.dataset.cmp(&b.dataset));
    Ok(found)
}

/// Reads every copy and removes damaged ones, also while a run uses them; the run then reads the
/// source.
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
        files::walk(&home.join(FILES), &mut |path, metadata| {
            if is_good(path, &mut buffer)? {
                good += 1;
            } else {
                damaged += 1;
                remove(directory, path, metadata)?;
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

/// Removes the copies of all datasets, or of one. Removes nothing if any of them is in use.
///
/// # Errors
/// If a dataset is in use (`ResourceBusy`), copies cannot be removed, or no dataset has this
/// fingerprint (`NotFound`).
pub fn clear(directory: &Path, only: Option<u64>) -> io::Result<Vec<StoredInfo>> {
    if level::homes(directory)?.is_empty() && only.is_none() {
        return Ok(vec![]);
    }
    // No run can begin meanwhile.
    let _lock = level::lock(directory)?;
    let mut chosen = vec![];
    for home in level::homes(directory)? {
        let info = info(&home)?;
        if only.is_none_or(|only| only == info.fingerprint) {
            chosen.push((home, info));
        }
    }
    if let Some((home, _)) = chosen.iter().find(|(_, info)| info.in_use) {
        let message = format!("a run is using {}; nothing was removed", home.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
    }
    if let Some(only) = only
        && chosen.is_empty()
    {
        let message =
            format!("{} holds no copies with the fingerprint {only:016x}", directory.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    let used = QuotaUsage::open(&directory.join(USED), u64::MAX)?;
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
    let (files, bytes) = count_below(&home.join(FILES))?;
    let partials = files::entries(&home.join(PARTIAL))?;
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
    let Some(meta) = CopyMetadata::read(&file) else { return Ok(false) };
    Ok(checksum(&file, buffer, &|| false)? == Some(meta.checksum))
}

fn remove(directory: &Path, path: &Path, metadata: &std::fs::Metadata) -> io::Result<()> {
    std::fs::remove_file(path)?;
    if metadata.nlink() == 1 {
        QuotaUsage::open(&directory.join(USED), u64::MAX)?.release(metadata.size())?;
    }
    Ok(())
}
