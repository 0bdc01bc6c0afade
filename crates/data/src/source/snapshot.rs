//! Snapshots: the listing of a dataset, stored for the next start.
//!
//! A snapshot is the encoded catalog followed by its name: the dataset's canonical path, format and
//! options. It lies in a cache directory of the user, never in the dataset, under a hash of the
//! name. The name itself is compared, so two datasets never share a snapshot. It is written to a
//! temporary file and renamed, so it is whole or absent. Before it is used, the times of all listed
//! directories are compared, and the stamps of the files if they are few. When a file is found to
//! have changed later, the snapshot is removed ([`forget`]) and the next start lists again.
//!
//! It is read into memory, not mapped: a page of a mapping that cannot be loaded (a disk error, a
//! file that another node replaced or truncated) would kill the process.
//!
//! No error here fails the opening of a dataset: without a snapshot it is listed.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use belady_base::memory;
use rayon::prelude::*;
use rustix::fs::OFlags;
use xxhash_rust::xxh3::xxh3_128;

use super::catalog::{self, Catalog};
use super::counters::OperationCounters;
use super::stamp::{self, Stamp};
use super::threads::on_many_threads;
use super::versions::Freshness;

/// Up to this many files are compared one by one before a snapshot is used, which takes a few
/// milliseconds on a local disk. Packed datasets have fewer files; for others it would cost as much
/// as the listing that a snapshot saves.
const COMPARED_FILES: u32 = 4096;

/// Bytes of a snapshot that one thread reads: a millisecond.
const PIECE: usize = 4 << 20;

/// A half-written file this old was left by a killed process.
const ABANDONED: Duration = Duration::from_hours(1);

/// Where snapshots are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Snapshots {
    /// `$BELADY_SNAPSHOTS`, else `$XDG_CACHE_HOME/belady/snapshots`, else
    /// `~/.cache/belady/snapshots`.
    #[default]
    Usual,
    /// This directory.
    In(PathBuf),
    /// No snapshots.
    Off,
}

impl Snapshots {
    fn directory(&self) -> Option<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        match self {
            Self::Off => None,
            Self::In(directory) => Some(directory.clone()),
            Self::Usual => variable("BELADY_SNAPSHOTS").map(PathBuf::from).or_else(|| {
                let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
                let cache = cache.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
                Some(cache?.join("belady/snapshots"))
            }),
        }
    }

    /// Returns the path of a snapshot with this file name, if it is a valid one.
    pub(super) fn named(&self, name: &str) -> Option<PathBuf> {
        let hash = name.strip_suffix(".snapshot")?;
        let is_hash = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then_some(self.directory()?.join(name))
    }

    /// Returns the snapshot of this dataset with these listing options, which may not exist yet.
    pub(super) fn file(&self, dataset: &Path, options: &str) -> Option<SnapshotFile> {
        let directory = self.directory()?;
        let dataset = dataset.canonicalize().ok()?;
        let mut name = dataset.as_os_str().as_bytes().to_vec();
        name.push(0);
        name.extend_from_slice(options.as_bytes());
        let path = directory.join(format!("{:032x}.snapshot", xxh3_128(&name)));
        Some(SnapshotFile { directory, path, name })
    }
}

/// The path of a snapshot and the name that it must contain.
#[derive(Debug)]
pub(super) struct SnapshotFile {
    directory: PathBuf,
    path: PathBuf,
    name: Vec<u8>,
}

impl SnapshotFile {
    pub fn into_path(self) -> PathBuf {
        self.path
    }

    /// Returns the stored listing, if the dataset is still as it was.
    pub fn load(
        &self,
        root: &Path,
        freshness: Freshness,
        counters: &OperationCounters,
    ) -> Option<Catalog> {
        match self.read() {
            Ok(Some(catalog)) => {
                still_holds(root, &catalog, freshness, counters).then_some(catalog)
            }
            Ok(None) => None,
            Err(reason) => {
                let snapshot = self.path.display();
                tracing::warn!(%snapshot, %reason, "cannot use the snapshot; listing again");
                None
            }
        }
    }

    fn read(&self) -> Result<Option<Catalog>, String> {
        let mut bytes = match self.read_bytes() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let length = catalog::encoded_length(&bytes)
            .and_then(|length| usize::try_from(length).ok())
            .filter(|&length| length <= bytes.len())
            .ok_or("it is not a whole snapshot")?;
        if bytes[length..] != self.name {
            return Err("it belongs to another dataset".to_owned());
        }
        bytes.truncate(length);
        Catalog::from_bytes(bytes).map(Some).map_err(|error| error.to_string())
    }

    fn read_bytes(&self) -> io::Result<Vec<u8>> {
        let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(nofollow).open(&self.path)?;
        let metadata = file.metadata()?;
        if !is_ours(&metadata) {
            return Err(io::Error::other("it is not a regular file of this user"));
        }
        read_whole(&file, usize::try_from(metadata.len()).map_err(io::Error::other)?)
    }

    /// Stores a listing that was begun at the given time.
    pub fn store(&self, catalog: &Catalog, begun: SystemTime) {
        if !is_settled(catalog, begun) {
            tracing::debug!("the dataset has just changed; its listing is not stored");
            return;
        }
        if let Err(error) = self.write(catalog) {
            let snapshot = self.path.display();
            tracing::warn!(%snapshot, %error, "cannot store the listing for the next start");
        }
    }

    fn write(&self, catalog: &Catalog) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        self.remove_abandoned();
        let unfinished = self.path.with_extension(format!("{}.unfinished", std::process::id()));
        let written = self.write_to(&unfinished, catalog);
        let renamed = written.and_then(|()| std::fs::rename(&unfinished, &self.path));
        if renamed.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
        renamed
    }

    fn write_to(&self, path: &Path, catalog: &Catalog) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file: File =
            options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(catalog.as_bytes())?;
        file.write_all(&self.name)
    }

    /// Removes unfinished files of this snapshot that killed processes left.
    fn remove_abandoned(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        let stem = self.path.file_stem().unwrap_or_default().as_bytes();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let is_unfinished =
                name.as_bytes().starts_with(stem) && name.as_bytes().ends_with(b".unfinished");
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            if is_unfinished && age().is_some_and(|age| age > ABANDONED) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Reads a file of this length. Several threads read a large one, since faulting in new memory
/// takes longer than the copy.
fn read_whole(file: &File, length: usize) -> io::Result<Vec<u8>> {
    // The thread that first touches a page makes the system zero it.
    let mut bytes = vec![0; length];
    if length <= PIECE {
        file.read_exact_at(&mut bytes, 0)?;
        return Ok(bytes);
    }
    memory::advise_huge_pages(&mut bytes);
    on_many_threads(|| {
        let pieces = bytes.par_chunks_mut(PIECE).enumerate();
        pieces.try_for_each(|(at, piece)| file.read_exact_at(piece, (at * PIECE) as u64))
    })?;
    Ok(bytes)
}

/// Removes a snapshot that was found to be out of date.
pub(super) fn forget(snapshot: &Path) {
    if std::fs::remove_file(snapshot).is_ok() {
        let snapshot = snapshot.display();
        tracing::info!(%snapshot, "the dataset has changed; removed its snapshot");
    }
}

fn is_ours(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw()
}

/// Whether the directories, and the files if they are few, are as they were listed.
fn still_holds(
    root: &Path,
    catalog: &Catalog,
    freshness: Freshness,
    counters: &OperationCounters,
) -> bool {
    let files = Some(catalog.files()).filter(|&files| files <= COMPARED_FILES).unwrap_or(0);
    counters.stated(u64::from(catalog.directories()) + u64::from(files));
    let look = |path: &Path| stamp::look(rustix::fs::CWD, &root.join(path));
    let same_directory = |at| {
        let (path, time) = catalog.directory(at);
        look(path).is_ok_and(|stamp| stamp.modified == time)
    };
    let same_file = |file| {
        look(catalog.path(file)).is_ok_and(|Stamp { size, modified, changed, .. }| {
            (size, modified) == (catalog.file_size(file), catalog.file_modified(file))
                && (freshness == Freshness::Never || changed == catalog.file_changed(file))
        })
    };
    on_many_threads(|| {
        (0..catalog.directories()).into_par_iter().all(same_directory)
            && (0..files).into_par_iter().all(same_file)
    })
}

/// Whether the directories had not changed for a while when listing began. A change in the same
/// tick of the file system's clock as the listing would not show in their times.
fn is_settled(catalog: &Catalog, begun: SystemTime) -> bool {
    (0..catalog.directories()).all(|at| stamp::is_settled(catalog.directory(at).1, begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_any_length_is_read_whole_and_a_truncated_one_is_refused() {
        let mut file = tempfile::tempfile().unwrap();
        let written: Vec<u8> = (0..2 * PIECE + 12_345).map(|at| (at * 31 / 7) as u8).collect();
        file.write_all(&written).unwrap();
        for length in [0, 1, PIECE, PIECE + 1, 2 * PIECE, written.len()] {
            assert!(read_whole(&file, length).unwrap() == written[..length], "{length} bytes");
        }
        assert!(read_whole(&file, written.len() + 1).is_err());
    }
}
