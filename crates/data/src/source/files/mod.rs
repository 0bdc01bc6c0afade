//! The source behind every format: samples in a dataset's files.
//!
//! A request reads wants that lie in one file. [`read`] opens the file, or finds it among the open
//! [`descriptors`], and reads all wants with one call; bytes between them go into scratch memory. A
//! format may have a [`Trailer`] behind each sample, which is read along and checked. [`verify`]
//! then compares the file's stamp with the catalog, so that bytes count only if no write had begun
//! when the last of them was read. If only the time of change is new, the file is read again, and
//! the bytes count if that time stays ([`Versions`]). On a local disk several requests are in
//! flight at once.

mod descriptors;
mod handle;
mod read;
mod reindex;
mod verify;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belady_base::SampleId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::descriptors::Descriptors;
use self::reindex::Reindexed;
use super::counters::OperationCounters;
use super::error::OpenError;
use super::packed::IndexFile;
use super::versions::{Begin, Freshness, Version, Versions};
use super::{Catalog, Operations, ReadError, Source, Want, snapshot};
use crate::file;

/// Bytes behind each sample that tell whether it is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trailer {
    pub length: usize,
    /// Returns what is wrong with a sample, given its bytes and its trailer.
    pub damage: fn(&[u8], &[u8]) -> Option<String>,
}

/// How the files of a source are read.
#[derive(Debug)]
pub(super) struct FileOptions {
    /// Whether files are kept open on any storage, because each holds many samples.
    pub keep_open: bool,
    pub direct: bool,
    pub verify_times: bool,
    pub freshness: Freshness,
    pub trailer: Option<Trailer>,
    /// Finds the samples in a file, for formats in which that takes reading it.
    pub index: Option<IndexFile>,
    /// Removed when the dataset turns out to have changed.
    pub snapshot: Option<PathBuf>,
}

impl FileOptions {
    fn versions(&self, catalog: &Catalog) -> Versions {
        let freshness = if self.verify_times { self.freshness } else { Freshness::Never };
        Versions::new(catalog.files(), freshness)
    }
}

/// A dataset in files.
#[derive(Debug)]
pub(super) struct FileSource {
    path: PathBuf,
    /// The directory that all paths are relative to, once it is open.
    root: OnceLock<OwnedFd>,
    catalog: Catalog,
    counters: OperationCounters,
    options: FileOptions,
    /// Whether the files lie on a disk of this machine.
    local: bool,
    descriptors: Descriptors,
    versions: Versions,
    reindexed: Reindexed,
}

impl FileSource {
    pub fn new(
        path: PathBuf,
        catalog: Catalog,
        counters: OperationCounters,
        mut options: FileOptions,
    ) -> Result<Self, OpenError> {
        let root = open_root(&path).map_err(|error| OpenError::unreadable(&path, error.into()))?;
        let local = file::is_on_local_disk(&root);
        options.direct &= local;
        let packed = options.keep_open;
        // On a network file system a file has to be opened to see a change at the server.
        options.keep_open |= local;
        let descriptors = Descriptors::new(if options.direct { 2 } else { 1 }, packed);
        let versions = options.versions(&catalog);
        let (root, reindexed) = (root.into(), Reindexed::default());
        Ok(Self { path, root, catalog, counters, options, local, descriptors, versions, reindexed })
    }

    /// Creates a source on storage that is known to be shared, without a call on it.
    pub fn on_shared_storage(path: PathBuf, catalog: Catalog, options: FileOptions) -> Self {
        let options = FileOptions { direct: false, ..options };
        Self {
            path,
            root: OnceLock::new(),
            counters: OperationCounters::default(),
            local: false,
            descriptors: Descriptors::new(1, options.keep_open),
            versions: options.versions(&catalog),
            reindexed: Reindexed::default(),
            catalog,
            options,
        }
    }

    pub fn is_local(&self) -> bool {
        self.local
    }

    fn root(&self) -> Result<&OwnedFd, Errno> {
        if let Some(root) = self.root.get() {
            return Ok(root);
        }
        let root = open_root(&self.path)?;
        Ok(self.root.get_or_init(|| root))
    }

    fn changed(&self, sample: SampleId, number: u32, change: String) -> ReadError {
        self.descriptors.remove(number);
        self.forget_snapshot();
        ReadError::Changed { sample, path: self.path_of(number), change }
    }

    fn failed(&self, sample: SampleId, number: u32, error: io::Error) -> ReadError {
        if error.kind() == io::ErrorKind::NotFound {
            self.forget_snapshot();
        }
        ReadError::Io { sample, path: self.path_of(number), error }
    }

    fn path_of(&self, number: u32) -> PathBuf {
        self.path.join(self.catalog.path(number))
    }

    fn forget_snapshot(&self) {
        if let Some(path) = &self.options.snapshot {
            snapshot::forget(path);
        }
    }
}

fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

impl Source for FileSource {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let file = |want: &Want<'_>| self.catalog.location(want.sample).file;
        if let Some(want) =
            wants.iter().find(|want| want.into.len() as u64 != self.catalog.size(want.sample))
        {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "the memory has another size");
            return Err(self.failed(want.sample, file(want), error));
        }
        let in_one_file = |a: &Want<'_>, b: &Want<'_>| file(a) == file(b);
        let many_files = wants.chunk_by(in_one_file).nth(1).is_some();
        let many_reads = many_files || self.count_together(wants) < wants.len();
        if self.together() > 1 && many_reads {
            return self.read_at_once(wants);
        }
        wants.chunk_by_mut(in_one_file).try_for_each(|wants| self.read_file(wants))
    }

    fn together(&self) -> usize {
        let alone = !self.options.direct || self.options.trailer.is_some();
        if alone { 1 } else { file::TOGETHER }
    }

    fn compare(&self, sample: SampleId) -> Result<(), ReadError> {
        let number = self.catalog.location(sample).file;
        if self.versions.is_compared(number) {
            return Ok(());
        }
        self.compare_file(sample, number)
    }

    fn is_compared(&self, sample: SampleId) -> bool {
        self.versions.is_compared(self.catalog.location(sample).file)
    }

    fn version(&self, sample: SampleId) -> Version {
        let number = self.catalog.location(sample).file;
        self.versions.of(number, self.catalog.file_changed(number))
    }

    fn begin(&self, what: Begin) {
        self.versions.begin(what);
    }

    fn operations(&self) -> Operations {
        self.counters.totals()
    }
}
