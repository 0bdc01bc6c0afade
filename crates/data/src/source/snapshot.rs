//! Snapshots: the listing of a dataset, kept for the next time.
//!
//! A snapshot is the catalog's block followed by the name of what was listed: the dataset's
//! canonical path, its format and options. It lies in a cache directory of the user, never
//! in the dataset, under a hash of that name; the name itself is compared, so two datasets
//! never share one. It is written under another name and renamed, so it is whole or not
//! there. Before it is used, the times of all listed directories are compared, and where
//! files are few, their stamps as well. A file that is found changed later, when it is
//! read or compared, makes the snapshot go ([`forget`]), and the next start lists again.
//!
//! It is read into memory, not mapped: a page of a mapping that cannot be had (an error of the
//! disk, a file that another node replaced or cut off) would end the process.
//!
//! Nothing here fails the opening of a dataset: without a snapshot it is listed.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rayon::prelude::*;
use rustix::fs::OFlags;
use xxhash_rust::xxh3::xxh3_128;

use super::counters::Counters;
use super::listing::on_many_threads;
use super::stamp::{self, Stamp};
use super::versions::Freshness;
use super::{Catalog, block};
use crate::memory;

/// Up to this many files are compared one by one before a snapshot is used: a few
/// milliseconds on a local disk. Packed datasets have fewer; for others it would be the
/// listing that a snapshot is to save.
const COMPARED_FILES: u32 = 4096;

/// Bytes of a snapshot that one thread reads: a millisecond.
const PIECE: usize = 4 << 20;

/// A half-written file this old belongs to nobody any more.
const ABANDONED: Duration = Duration::from_hours(1);

/// Where listings are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Snapshots {
    /// `$BELADY_SNAPSHOTS`, else `$XDG_CACHE_HOME/belady/snapshots`, else
    /// `~/.cache/belady/snapshots`.
    #[default]
    Usual,
    In(PathBuf),
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

    /// Where a snapshot of this name would lie, if it is the name of one.
    pub(super) fn named(&self, name: &str) -> Option<PathBuf> {
        let hash = name.strip_suffix(".snapshot")?;
        let is_hash = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then_some(self.directory()?.join(name))
    }

    /// Where the snapshot of this dataset, listed this way, belongs.
    pub(super) fn place(&self, dataset: &Path, options: &str) -> Option<Place> {
        let directory = self.directory()?;
        let dataset = dataset.canonicalize().ok()?;
        let mut name = dataset.as_os_str().as_bytes().to_vec();
        name.push(0);
        name.extend_from_slice(options.as_bytes());
        let path = directory.join(format!("{:032x}.snapshot", xxh3_128(&name)));
        Some(Place { directory, path, name })
    }
}

/// Where one snapshot lies, and the name it must bear.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    path: PathBuf,
    name: Vec<u8>,
}

impl Place {
    pub fn into_path(self) -> PathBuf {
        self.path
    }

    /// The listing kept here, if the dataset is still as it was.
    pub fn load(&self, root: &Path, freshness: Freshness, counters: &Counters) -> Option<Catalog> {
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
        let length = block::length_of(&bytes)
            .and_then(|length| usize::try_from(length).ok())
            .filter(|&length| length <= bytes.len())
            .ok_or("it is no whole snapshot")?;
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
            return Err(io::Error::other("it is no file of ours"));
        }
        read_whole(&file, usize::try_from(metadata.len()).map_err(io::Error::other)?)
    }

    /// Keeps a listing that was begun at the given time.
    pub fn keep(&self, catalog: &Catalog, begun: SystemTime) {
        if !is_settled(catalog, begun) {
            tracing::debug!("the dataset changed just now; its listing is not kept");
            return;
        }
        if let Err(error) = self.write(catalog) {
            let snapshot = self.path.display();
            tracing::warn!(%snapshot, %error, "cannot keep the listing; the next start lists again");
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

    /// Removes what killed processes left unfinished of this snapshot.
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

/// A file of this length. A large one is read by several threads, since making new memory takes longer than
/// the copy.
fn read_whole(file: &File, length: usize) -> io::Result<Vec<u8>> {
    // Zeros that the system makes when they are first touched, by the thread that does.
    let mut bytes = vec![0; length];
    if length <= PIECE {
        file.read_exact_at(&mut bytes, 0)?;
        return Ok(bytes);
    }
    memory::wish_for_huge_pages(&mut bytes);
    on_many_threads(|| {
        let pieces = bytes.par_chunks_mut(PIECE).enumerate();
        pieces.try_for_each(|(at, piece)| file.read_exact_at(piece, (at * PIECE) as u64))
    })?;
    Ok(bytes)
}

/// Removes a snapshot that was found to be out of date.
pub(super) fn forget(snapshot: &Path) {
    if std::fs::remove_file(snapshot).is_ok() {
        tracing::info!(snapshot = %snapshot.display(), "the dataset has changed; removed");
    }
}

fn is_ours(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw()
}

/// Whether directories, and files where they are few, are as they were.
fn still_holds(root: &Path, catalog: &Catalog, freshness: Freshness, counters: &Counters) -> bool {
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

/// Whether the directories had been left alone for a while when listing began. A change in
/// the same tick of the file system's clock as the listing would not show in their times.
fn is_settled(catalog: &Catalog, begun: SystemTime) -> bool {
    (0..catalog.directories()).all(|at| stamp::is_settled(catalog.directory(at).1, begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_any_length_is_read_whole_and_one_that_was_cut_off_is_refused() {
        let mut file = tempfile::tempfile().unwrap();
        let written: Vec<u8> = (0..2 * PIECE + 12_345).map(|at| (at * 31 / 7) as u8).collect();
        file.write_all(&written).unwrap();
        for length in [0, 1, PIECE, PIECE + 1, 2 * PIECE, written.len()] {
            assert!(read_whole(&file, length).unwrap() == written[..length], "{length} bytes");
        }
        assert!(read_whole(&file, written.len() + 1).is_err());
    }
}
