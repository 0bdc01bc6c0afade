//! Lists a dataset's files: walks its directories on many threads.
//!
//! The order does not depend on the file system, and is that of torchvision's ImageFolder: by
//! top-level folder, then by directory, then by name, all compared as bytes. Hidden files and
//! directories, and Belady's own caches, are left out. Links to files and directories are followed, except a link to a
//! directory that contains it, so loops end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use belady_base::sync::{Mutex, lock};
use rayon::prelude::*;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::FileEntry;
use super::counters::OperationCounters;
use super::error::OpenError;
use super::extensions::{self, Extensions};
use super::progress::ListingProgress;
use super::stamp::{self, Stamp};
use super::threads::on_many_threads;

/// The names whose times and sizes one task asks for.
pub(super) const STATS_IN_A_TASK: usize = 32;

/// The folder that a disk cache makes in its directory.
pub const CACHE_FOLDER: &str = "belady-cache-v1";

/// Returns whether a file or directory of this name is no part of a dataset.
pub(super) fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".") || name == CACHE_FOLDER.as_bytes()
}

/// A directory's own files, sorted by name.
#[derive(Debug)]
pub(super) struct ListedDirectory {
    /// Relative to the dataset, whose own path is empty.
    pub path: PathBuf,
    pub modified: i64,
    pub files: Vec<FileEntry>,
}

/// Lists all directories below `root`, in order.
pub(super) fn list(
    root: &Path,
    extensions: &Extensions,
    progress: &ListingProgress<'_>,
    counters: &OperationCounters,
) -> Result<Vec<ListedDirectory>, OpenError> {
    let walk = Walk { root, extensions, progress, counters, dangling: Mutex::default() };
    let mut directories = on_many_threads(|| walk.directory(PathBuf::new(), None))?;
    walk.warn_of_dangling_links();
    directories.sort_unstable_by(|a, b| order(&a.path).cmp(&order(&b.path)));
    Ok(directories)
}

/// Keeps only the images in class folders if there are any, as torchvision's ImageFolder does, and
/// logs what is left out. Files beside the folders are no samples in any case.
pub(super) fn keep_images(root: &Path, directories: &mut [ListedDirectory]) {
    let classes = || directories.iter().filter(|directory| !directory.path.as_os_str().is_empty());
    let files = || classes().flat_map(|directory| &directory.files);
    let is_image = |file: &FileEntry| extensions::is_image(&file.path);
    let images = files().filter(|file| is_image(file)).count();
    let (others, first) = (files().count() - images, files().find(|file| !is_image(file)));
    let Some(first) = first.filter(|_| images > 0).map(|file| root.join(&file.path)) else {
        return;
    };
    tracing::warn!(
        images, others, first = %first.display(),
        "left out files whose names are not those of images, as ImageFolder does; name the \
         extensions to include others"
    );
    for directory in directories {
        directory.files.retain(is_image);
    }
}

/// Waits until any later change of a listed file has a later time ([`stamp::settle`]).
pub(super) fn settle<'a>(files: impl IntoIterator<Item = &'a FileEntry>) {
    if let Some(newest) = files.into_iter().map(|file| file.changed).max() {
        stamp::settle(newest);
    }
}

fn order(directory: &Path) -> (Option<&[u8]>, &[u8]) {
    let top = directory.components().next().map(|top| top.as_os_str().as_bytes());
    (top, directory.as_os_str().as_bytes())
}

struct Walk<'a> {
    root: &'a Path,
    extensions: &'a Extensions,
    progress: &'a ListingProgress<'a>,
    counters: &'a OperationCounters,
    /// Links to nothing.
    dangling: Mutex<Vec<PathBuf>>,
}

/// The directories above one, by device and inode.
struct Ancestors<'a> {
    identity: (u64, u64),
    parent: Option<&'a Ancestors<'a>>,
}

impl Ancestors<'_> {
    fn contain(&self, identity: (u64, u64)) -> bool {
        self.identity == identity || self.parent.is_some_and(|parent| parent.contain(identity))
    }
}

/// A name in a directory, classified.
enum DirectoryEntry {
    File(FileEntry),
    Directory(PathBuf),
}

impl Walk<'_> {
    /// Lists a directory and all below it.
    fn directory(
        &self,
        path: PathBuf,
        parent: Option<&Ancestors<'_>>,
    ) -> Result<Vec<ListedDirectory>, OpenError> {
        let full = self.root.join(&path);
        let failed = |error: Errno| OpenError::unreadable(&full, error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&full, flags, Mode::empty()).map_err(failed)?;
        // Before the names are read: a name that is added later then changes this time.
        let stat = rustix::fs::fstat(&handle).map_err(failed)?;
        let identity = (stat.st_dev as u64, stat.st_ino as u64);
        if parent.is_some_and(|parent| parent.contain(identity)) {
            return Ok(Vec::new());
        }
        self.counters.listed();
        let names = self.names(&handle).map_err(failed)?;
        let entries = self.classify_all(&handle, &path, names)?;
        let (mut files, mut below) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                DirectoryEntry::File(file) => files.push(file),
                DirectoryEntry::Directory(directory) => below.push(directory),
            }
        }
        drop(handle);
        files.sort_unstable_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
        self.progress.listed(files.len() as u64);
        let ancestors = Ancestors { identity, parent };
        let below: Result<Vec<_>, _> =
            below.into_par_iter().map(|path| self.directory(path, Some(&ancestors))).collect();
        let mut all = vec![ListedDirectory { path, modified: Stamp::from(&stat).modified, files }];
        all.extend(below?.into_iter().flatten());
        Ok(all)
    }

    fn names(&self, handle: &OwnedFd) -> Result<Vec<(OsString, FileType)>, Errno> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(handle)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let wanted = match entry.file_type() {
                FileType::RegularFile => self.extensions.allow(name),
                FileType::Directory | FileType::Symlink | FileType::Unknown => true,
                _ => false,
            };
            if wanted && !is_hidden(name) {
                names.push((OsString::from_vec(name.to_vec()), entry.file_type()));
            }
        }
        Ok(names)
    }

    fn classify_all(
        &self,
        handle: &OwnedFd,
        path: &Path,
        names: Vec<(OsString, FileType)>,
    ) -> Result<Vec<DirectoryEntry>, OpenError> {
        let each = names.into_par_iter().with_min_len(STATS_IN_A_TASK);
        let found = each.map(|(name, kind)| {
            let full = path.join(&name);
            if kind == FileType::Directory {
                return Ok(Some(DirectoryEntry::Directory(full)));
            }
            match self.stat(handle.as_fd(), &name) {
                Ok(stat) => Ok(self.classify(full, &stat)),
                Err(Errno::NOENT | Errno::LOOP) => {
                    if kind == FileType::Symlink {
                        lock(&self.dangling).push(full);
                    }
                    Ok(None)
                }
                Err(error) => Err(OpenError::unreadable(&self.root.join(full), error.into())),
            }
        });
        let found: Result<Vec<_>, _> = found.collect();
        Ok(found?.into_iter().flatten().collect())
    }

    fn warn_of_dangling_links(&self) {
        let dangling = lock(&self.dangling);
        if let Some(first) = dangling.iter().min() {
            let (links, first) = (dangling.len(), self.root.join(first));
            tracing::warn!(links, first = %first.display(), "left out dangling links");
        }
    }

    fn stat(&self, handle: impl AsFd, name: &OsStr) -> Result<Stat, Errno> {
        self.counters.stated(1);
        rustix::fs::statat(handle, name, AtFlags::empty())
    }

    fn classify(&self, path: PathBuf, stat: &Stat) -> Option<DirectoryEntry> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let wanted = self.extensions.allow(path.as_os_str().as_bytes());
        match kind {
            FileType::Directory => Some(DirectoryEntry::Directory(path)),
            FileType::RegularFile if wanted => {
                Some(DirectoryEntry::File(entry(path, &stat.into())))
            }
            _ => None,
        }
    }
}

/// Returns the entry of a dataset that is one file.
pub(super) fn single(path: &Path, counters: &OperationCounters) -> Result<FileEntry, OpenError> {
    counters.stated(1);
    let stat = rustix::fs::stat(path).map_err(|error| OpenError::unreadable(path, error.into()))?;
    let stamp = Stamp::from(&stat);
    let Some(name) = path.file_name().filter(|_| stamp.is_regular) else {
        let error = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(OpenError::unreadable(path, error));
    };
    Ok(entry(name.into(), &stamp))
}

pub(super) fn entry(path: PathBuf, stamp: &Stamp) -> FileEntry {
    let &Stamp { size, modified, changed, .. } = stamp;
    FileEntry { path, size, modified, changed }
}
