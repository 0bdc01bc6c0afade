//! Finding a dataset's files: a walk through its directories on many threads.
//!
//! The order is the same whatever order the file system lists in, and the one torchvision's
//! ImageFolder has: by top-level folder, then by directory, then by name, all compared as
//! bytes. Hidden files and directories are left out. Links are followed, to files and to
//! directories; one that leads back to a directory it lies in is not, so loops end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::FileEntry;
use super::counters::{Counters, Progress};
use super::extensions::{self, Extensions};
use super::open::OpenError;
use super::stamp::{self, Stamp};
use crate::sync::{Mutex, lock};

/// Listing waits for the storage, not for the processor: threads beyond the cores help.
const THREADS: usize = 32;

/// Names whose times and sizes one task asks for.
pub(super) const STATS_IN_A_TASK: usize = 32;

/// A directory's own files, sorted by name.
#[derive(Debug)]
pub(super) struct Directory {
    /// Relative to the dataset; the dataset itself is empty.
    pub path: PathBuf,
    pub modified: i64,
    pub files: Vec<FileEntry>,
}

/// Lists all directories below `root`, in order.
pub(super) fn list(
    root: &Path,
    extensions: &Extensions,
    progress: &Progress<'_>,
    counters: &Counters,
) -> Result<Vec<Directory>, OpenError> {
    let walk = Walk { root, extensions, progress, counters, astray: Mutex::default() };
    let mut directories = on_many_threads(|| walk.directory(PathBuf::new(), None))?;
    walk.warn_of_links_to_nowhere();
    directories.sort_unstable_by(|a, b| order(&a.path).cmp(&order(&b.path)));
    Ok(directories)
}

/// Runs work that waits for the storage, on threads that live no longer than that: a forked
/// child must never depend on its parent's.
pub(super) fn on_many_threads<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    match rayon::ThreadPoolBuilder::new().num_threads(THREADS).build() {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}

/// Keeps the images of class folders, if there are any, as torchvision's ImageFolder does; and says what
/// was left out. Files beside the folders are no samples anyhow.
pub(super) fn keep_images(root: &Path, directories: &mut [Directory]) {
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
        "left out files that are no images by their names, as ImageFolder does; name the extensions \
         to have others"
    );
    for directory in directories {
        directory.files.retain(is_image);
    }
}

/// Waits until the versions that were listed are the last ones with their times
/// ([`stamp::settle`](super::stamp::settle)).
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
    progress: &'a Progress<'a>,
    counters: &'a Counters,
    /// Links that lead nowhere.
    astray: Mutex<Vec<PathBuf>>,
}

/// The directories that one lies in, by device and inode.
struct Ancestors<'a> {
    identity: (u64, u64),
    parent: Option<&'a Ancestors<'a>>,
}

impl Ancestors<'_> {
    fn contain(&self, identity: (u64, u64)) -> bool {
        self.identity == identity || self.parent.is_some_and(|parent| parent.contain(identity))
    }
}

/// What a name in a directory turned out to be.
enum Found {
    File(FileEntry),
    Directory(PathBuf),
}

impl Walk<'_> {
    /// The directory and all below it.
    fn directory(
        &self,
        path: PathBuf,
        parent: Option<&Ancestors<'_>>,
    ) -> Result<Vec<Directory>, OpenError> {
        let full = self.root.join(&path);
        let failed = |error: Errno| OpenError::unreadable(&full, error.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&full, flags, Mode::empty()).map_err(failed)?;
        // Before the names are read: a name that comes later then changes the time we keep.
        let stat = rustix::fs::fstat(&handle).map_err(failed)?;
        let identity = (stat.st_dev as u64, stat.st_ino as u64);
        if parent.is_some_and(|parent| parent.contain(identity)) {
            return Ok(Vec::new());
        }
        self.counters.listed();
        let names = self.names(&handle).map_err(failed)?;
        let found = self.found(&handle, &path, names)?;
        let (mut files, mut below) = (Vec::new(), Vec::new());
        for found in found {
            match found {
                Found::File(file) => files.push(file),
                Found::Directory(directory) => below.push(directory),
            }
        }
        drop(handle);
        files.sort_unstable_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
        self.progress.listed(files.len() as u64);
        let ancestors = Ancestors { identity, parent };
        let below: Result<Vec<_>, _> =
            below.into_par_iter().map(|path| self.directory(path, Some(&ancestors))).collect();
        let mut all = vec![Directory { path, modified: Stamp::from(&stat).modified, files }];
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
            if wanted && !name.starts_with(b".") {
                names.push((OsString::from_vec(name.to_vec()), entry.file_type()));
            }
        }
        Ok(names)
    }

    fn found(
        &self,
        handle: &OwnedFd,
        path: &Path,
        names: Vec<(OsString, FileType)>,
    ) -> Result<Vec<Found>, OpenError> {
        let each = names.into_par_iter().with_min_len(STATS_IN_A_TASK);
        let found = each.map(|(name, kind)| {
            let full = path.join(&name);
            if kind == FileType::Directory {
                return Ok(Some(Found::Directory(full)));
            }
            match self.stat(handle.as_fd(), &name) {
                Ok(stat) => Ok(self.classify(full, &stat)),
                Err(Errno::NOENT | Errno::LOOP) => {
                    if kind == FileType::Symlink {
                        lock(&self.astray).push(full);
                    }
                    Ok(None)
                }
                Err(error) => Err(OpenError::unreadable(&self.root.join(full), error.into())),
            }
        });
        let found: Result<Vec<_>, _> = found.collect();
        Ok(found?.into_iter().flatten().collect())
    }

    fn warn_of_links_to_nowhere(&self) {
        let astray = lock(&self.astray);
        if let Some(first) = astray.iter().min() {
            let (links, first) = (astray.len(), self.root.join(first));
            tracing::warn!(links, first = %first.display(), "left out links that lead nowhere");
        }
    }

    fn stat(&self, handle: impl AsFd, name: &OsStr) -> Result<Stat, Errno> {
        self.counters.stated(1);
        rustix::fs::statat(handle, name, AtFlags::empty())
    }

    fn classify(&self, path: PathBuf, stat: &Stat) -> Option<Found> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let wanted = self.extensions.allow(path.as_os_str().as_bytes());
        match kind {
            FileType::Directory => Some(Found::Directory(path)),
            FileType::RegularFile if wanted => Some(Found::File(entry(path, &stat.into()))),
            _ => None,
        }
    }
}

/// The entry of a dataset that is one file.
pub(super) fn single(path: &Path, counters: &Counters) -> Result<FileEntry, OpenError> {
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
