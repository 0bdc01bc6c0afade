//! Reading samples out of a dataset's files: the source behind every format.
//!
//! A request takes wants that lie in one file. The file is opened or found among the
//! [`descriptors`](super::descriptors) kept open, and all wants are read with one call, what
//! lies between them into memory that is thrown away. A format may have a [`Trailer`] behind
//! each sample, which is read along and checked. Then the file's stamp is compared with the
//! catalog: bytes count only if no write had begun when the last of them was read. If only
//! the time of change is new, they are read once more, and count if it stays ([`Versions`]). Of a file
//! that was just opened the stamp is looked at before it is read as well, so that one that was touched
//! since it was listed is read once. Several requests at once, of a local disk, are under way together.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::counters::Counters;
use super::descriptors::{Descriptors, Kept};
use super::open::OpenError;
use super::packed::{Flaw, IndexFile};
use super::reindex::Reindexed;
use super::stamp::{self, Stamp};
use super::versions::{Begin, Freshness, Version, Versions};
use super::{Catalog, Operations, ReadError, Source, Want, snapshot};
use crate::SampleId;
use crate::file::{self, Cold};
use crate::open_files;
use crate::sync::Arc;

/// Wants further apart than this are not read together: reading a gap of this size takes
/// about as long as another call.
const LARGEST_GAP: u64 = 64 << 10;

/// A file whose time of change is another one each time that it is read is read so often.
const MOST_READS: u32 = 5;
const KEEPS_CHANGING: &str = "its time of change is new each time that it is read";

/// What lies right behind each sample and tells whether it is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trailer {
    pub length: usize,
    /// What is wrong with a sample, given its bytes and its trailer.
    pub damage: fn(&[u8], &[u8]) -> Option<String>,
}

/// How the files of a source are to be read.
#[derive(Debug)]
pub(super) struct Opening {
    /// Whether files hold many samples, so that it pays to keep them open wherever they are.
    pub keep_open: bool,
    pub direct: bool,
    pub verify_times: bool,
    pub freshness: Freshness,
    pub trailer: Option<Trailer>,
    /// How samples were found in files, where that took reading them.
    pub index: Option<IndexFile>,
    /// Removed when the dataset turns out to have changed.
    pub snapshot: Option<PathBuf>,
}

impl Opening {
    fn versions(&self, catalog: &Catalog) -> Versions {
        let meaningless = !self.verify_times;
        let freshness = if meaningless { Freshness::Never } else { self.freshness };
        Versions::new(catalog.files(), freshness)
    }
}

/// A dataset in files.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    /// The directory that all paths start from, once it is open.
    root: OnceLock<OwnedFd>,
    catalog: Catalog,
    counters: Counters,
    opening: Opening,
    /// On a disk of this machine, whose times can be trusted.
    local: bool,
    kept: Descriptors,
    versions: Versions,
    reindexed: Reindexed,
}

/// An open file.
enum Handle {
    /// Opened for this one read.
    Own(File),
    Kept {
        kept: Arc<Kept>,
        /// Just opened: what it is now is what lies at its path.
        fresh: bool,
    },
}

impl Handle {
    fn file(&self) -> &File {
        match self {
            Self::Own(file) => file,
            Self::Kept { kept, .. } => &kept.file,
        }
    }

    /// Whether it was opened just now.
    fn is_fresh(&self) -> bool {
        matches!(self, Self::Own(_) | Self::Kept { fresh: true, .. })
    }

    /// How to read what is cold of it; direct reads need two descriptors, so files are kept then.
    fn cold(&self) -> Cold<'_> {
        match self {
            Self::Own(_) => Cold::Buffered,
            Self::Kept { kept, .. } => kept.cold(),
        }
    }
}

/// Whether what was read of a file that is no changed one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    /// They are of this version.
    Of(i64),
    /// The file was touched while it was read or kept open: it is opened and read once more.
    Doubtful,
}

impl Files {
    pub fn new(
        path: PathBuf,
        catalog: Catalog,
        counters: Counters,
        mut opening: Opening,
    ) -> Result<Self, OpenError> {
        let root = open_root(&path).map_err(|error| OpenError::unreadable(&path, error.into()))?;
        let local = file::is_on_local_disk(&root);
        opening.direct &= local;
        // Elsewhere it is opening a file that tells whether it has changed at the server.
        let packed = opening.keep_open;
        opening.keep_open |= local;
        let kept = Descriptors::new(if opening.direct { 2 } else { 1 }, packed);
        let versions = opening.versions(&catalog);
        let (root, reindexed) = (root.into(), Reindexed::default());
        Ok(Self { path, root, catalog, counters, opening, local, kept, versions, reindexed })
    }

    /// On storage that is known to be shared: nothing is asked of it before the first read.
    pub fn on_shared_storage(path: PathBuf, catalog: Catalog, opening: Opening) -> Self {
        let opening = Opening { direct: false, ..opening };
        let kept = Descriptors::new(1, opening.keep_open);
        let (root, counters) = (OnceLock::new(), Counters::default());
        let versions = opening.versions(&catalog);
        let (local, reindexed) = (false, Reindexed::default());
        Self { path, root, catalog, counters, opening, local, kept, versions, reindexed }
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

    /// Reads wants that all lie in one file.
    fn read_file(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let first = wants[0].sample;
        let number = self.catalog.location(first).file;
        for _ in 0..MOST_READS {
            let handle = self.handle(first, number)?;
            let outcome = self.read_wants(handle.file(), number, wants, handle.cold());
            // That the file changed also explains whatever went wrong.
            if let Bytes::Of(version) = self.check_unchanged(&handle, first, number)? {
                for want in wants {
                    want.version = version;
                }
                return outcome;
            }
        }
        Err(self.changed(first, number, KEEPS_CHANGING.to_owned()))
    }

    /// Reads wants that lie anywhere, what has to come from the disk all at once.
    fn read_at_once(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        for _ in 0..MOST_READS {
            if self.try_at_once(wants)? {
                return Ok(());
            }
        }
        let first = wants[0].sample;
        Err(self.changed(first, self.catalog.location(first).file, KEEPS_CHANGING.to_owned()))
    }

    /// Whether what came counts.
    fn try_at_once(&self, wants: &mut [Want<'_>]) -> Result<bool, ReadError> {
        let mut handles: Vec<(Handle, u32, u32)> = Vec::with_capacity(wants.len());
        for want in &*wants {
            let number = self.catalog.location(want.sample).file;
            if handles.last().is_none_or(|(_, last, _)| *last != number) {
                handles.push((self.handle(want.sample, number)?, number, want.sample));
            }
        }
        let mut at = 0;
        let mut requests: Vec<file::Request<'_>> = Vec::with_capacity(wants.len());
        for want in &mut *wants {
            let location = self.catalog.location(want.sample);
            at += usize::from(handles[at].1 != location.file);
            let handle = &handles[at].0;
            self.counters.read(location.length);
            requests.push(file::Request {
                file: handle.file(),
                cold: handle.cold(),
                offset: location.offset,
                into: want.into,
            });
        }
        let came = file::read_many(&mut requests);
        let outcome = wants.iter_mut().zip(came).try_for_each(|(want, came)| {
            let number = self.catalog.location(want.sample).file;
            self.check_whole(number, std::slice::from_ref(want), want.into.len(), came)
        });
        let mut right = true;
        let mut rest = wants;
        for (handle, number, first) in &handles {
            let in_file = |want: &Want<'_>| self.catalog.location(want.sample).file == *number;
            let others = rest.iter().position(|want| !in_file(want)).unwrap_or(rest.len());
            let (of_file, after) = rest.split_at_mut(others);
            rest = after;
            match self.check_unchanged(handle, *first, *number)? {
                Bytes::Of(version) => {
                    for want in of_file {
                        want.version = version;
                    }
                }
                Bytes::Doubtful => right = false,
            }
        }
        if right {
            outcome?;
        }
        Ok(right)
    }

    fn read_wants(
        &self,
        file: &File,
        number: u32,
        wants: &mut [Want<'_>],
        cold: Cold<'_>,
    ) -> Result<(), ReadError> {
        let mut rest = wants;
        while !rest.is_empty() {
            let (together, others) = rest.split_at_mut(self.count_together(rest));
            self.read_together(file, number, together, cold)?;
            rest = others;
        }
        Ok(())
    }

    /// The file of a sample, open. One that was opened just now is what was listed, or its version is
    /// noticed before any of it is read.
    fn handle(&self, sample: u32, number: u32) -> Result<Handle, ReadError> {
        let handle =
            self.find_or_open(number).map_err(|error| self.failed(sample, number, error))?;
        if handle.is_fresh() {
            // Opening the file has brought its stamp: this is no call on the storage of its own.
            self.look_at(&handle, sample, number)?;
        }
        Ok(handle)
    }

    fn find_or_open(&self, number: u32) -> io::Result<Handle> {
        if !self.opening.keep_open {
            return Ok(Handle::Own(self.open(number)?));
        }
        let before = self.kept.get(number);
        // What is kept open may lie elsewhere by now, though nothing has happened to it: another folder
        // was put in the place of its own, say. So it is opened anew, by its name, in every round.
        if let Some(kept) = before.as_ref().filter(|_| self.versions.is_compared(number)) {
            return Ok(Handle::Kept { kept: Arc::clone(kept), fresh: false });
        }
        let kept = Kept::new(self.open(number)?, self.opening.direct);
        let kept = self.kept.insert(number, kept, before.as_ref());
        Ok(Handle::Kept { kept, fresh: true })
    }

    fn open(&self, number: u32) -> io::Result<File> {
        self.counters.opened();
        // Without waiting: should a pipe lie where the file was, it is not waited for.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let path = self.catalog.path(number);
        let open = || rustix::fs::openat(self.root()?, path, flags, Mode::empty());
        match open() {
            // Whoever else has them needs them more than what is kept open for convenience.
            Err(Errno::MFILE | Errno::NFILE) => {
                self.kept.clear();
                open_files::let_go();
                Ok(open()?.into())
            }
            opened => Ok(opened?.into()),
        }
    }

    fn check_unchanged(
        &self,
        handle: &Handle,
        sample: u32,
        number: u32,
    ) -> Result<Bytes, ReadError> {
        self.counters.stated(1);
        self.look_at(handle, sample, number)
    }

    /// What the stamp of an open file says about bytes that were read before.
    fn look_at(&self, handle: &Handle, sample: u32, number: u32) -> Result<Bytes, ReadError> {
        let round = self.versions.round();
        let stat = rustix::fs::fstat(handle.file())
            .map_err(|error| self.failed(sample, number, error.into()))?;
        if let Handle::Kept { kept, fresh } = handle {
            let moved = stat.st_nlink == 0 || self.opening.verify_times && kept.is_touched(&stat);
            let other = self.versions.is_new(
                number,
                self.catalog.file_changed(number),
                Stamp::from(&stat).changed,
            );
            // A look at its name may have found another file there.
            if (moved || other) && !fresh {
                self.kept.remove(number);
                return Ok(Bytes::Doubtful);
            }
        }
        self.judge(sample, number, &Stamp::from(&stat), round)
    }

    /// What the stamp of a file, asked for in some round, says about bytes that were read before.
    fn judge(
        &self,
        sample: u32,
        number: u32,
        found: &Stamp,
        round: u64,
    ) -> Result<Bytes, ReadError> {
        let (size, time) = (self.catalog.file_size(number), self.catalog.file_modified(number));
        let listed = self.catalog.file_changed(number);
        let change = if !found.is_regular {
            "it is no regular file any more".to_owned()
        } else if found.size != size {
            format!("it had {size} bytes and has {}", found.size)
        } else if self.opening.verify_times && found.modified != time {
            "it was written to".to_owned()
        } else if self.versions.is_new(number, listed, found.changed)
            && !self.holds_what_was_listed(sample, number, found)?
        {
            "its samples lie elsewhere in it".to_owned()
        } else {
            let first = !self.versions.has_noticed();
            let known = self.versions.saw(number, listed, found.changed, round);
            if known.is_none() && first {
                // The next start lists anew, and copies are of the versions that are then listed.
                self.forget_snapshot();
            }
            return Ok(known.map_or(Bytes::Doubtful, Bytes::Of));
        };
        Err(self.changed(sample, number, change))
    }

    /// Whether samples lie where they did in a file that was touched: where they are found by
    /// reading, it is read again, by one thread.
    fn holds_what_was_listed(
        &self,
        sample: u32,
        number: u32,
        found: &Stamp,
    ) -> Result<bool, ReadError> {
        stamp::settle(found.changed);
        let Some(index) = self.opening.index else { return Ok(true) };
        let look = || match self.lie_where_they_did(number, index) {
            Err(Flaw::Io(error)) => Err(self.failed(sample, number, error)),
            looked => Ok(looked.unwrap_or(false)),
        };
        self.reindexed.holds(number, found.changed, look)
    }

    /// Whether samples lie in a file as they were listed.
    fn lie_where_they_did(&self, number: u32, index: IndexFile) -> Result<bool, Flaw> {
        let mut operations = Operations::default();
        let found = index(&self.path_of(number), &mut operations).map_err(|error| error.flaw);
        self.counters.add(operations);
        // Listed file by file.
        let first = self.first_from(number);
        let listed = (first..self.first_from(number + 1)).map(|sample| {
            let place = self.catalog.location(sample);
            (place.offset, place.length, self.catalog.label(sample))
        });
        Ok(listed.eq(found?.iter().map(|record| (record.offset, record.length, record.label))))
    }

    /// The first sample in a file or behind it.
    fn first_from(&self, number: u32) -> u32 {
        let (mut low, mut high) = (0, self.catalog.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.catalog.location(middle).file < number {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn changed(&self, sample: u32, number: u32, change: String) -> ReadError {
        self.kept.remove(number);
        self.forget_snapshot();
        ReadError::Changed { sample, path: self.path_of(number), change }
    }

    /// Compares a file with the catalog, by its name: whatever is kept open may lie elsewhere by now.
    fn compare_file(&self, sample: u32, number: u32) -> Result<(), ReadError> {
        self.counters.stated(1);
        let round = self.versions.round();
        let found = self.root().and_then(|root| stamp::look(root, self.catalog.path(number)));
        let found = found.map_err(|error| self.failed(sample, number, error.into()))?;
        self.judge(sample, number, &found, round).map(drop)
    }

    /// How many of the wants one call can read: those that follow each other closely.
    fn count_together(&self, wants: &[Want<'_>]) -> usize {
        let end = |want: &Want<'_>| {
            let location = self.catalog.location(want.sample);
            location.offset + location.length + self.trailer_length() as u64
        };
        let apart = wants.windows(2).position(|pair| {
            let gap = self.catalog.location(pair[1].sample).offset.checked_sub(end(&pair[0]));
            gap.is_none_or(|gap| gap > LARGEST_GAP)
        });
        apart.map_or(wants.len(), |at| at + 1)
    }

    fn read_together(
        &self,
        file: &File,
        number: u32,
        wants: &mut [Want<'_>],
        cold: Cold<'_>,
    ) -> Result<(), ReadError> {
        let start = self.catalog.location(wants[0].sample).offset;
        if let ([want], None) = (&mut *wants, self.opening.trailer) {
            let wanted = want.into.len();
            let got = self.call(wanted, || file::read_exact_at(file, start, want.into, cold));
            return self.check_whole(number, wants, wanted, got);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let behind = self.lay_out(wants, scratch);
            let wanted = scratch.len() + wants.iter().map(|want| want.into.len()).sum::<usize>();
            let got = self.call(wanted, || {
                let mut pieces = pieces(wants, scratch, &behind);
                file::read_vectored_at(file, start, &mut pieces, cold)
            });
            self.check_whole(number, wants, wanted, got)?;
            self.check_trailers(number, wants, scratch, &behind)
        })
    }

    fn call(&self, bytes: usize, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        self.counters.read(bytes as u64);
        read()
    }

    /// Where in the scratch memory the bytes behind each want go: its trailer, and what lies
    /// between it and the next.
    fn lay_out(&self, wants: &[Want<'_>], scratch: &mut Vec<u8>) -> Vec<Range<usize>> {
        let mut at = 0;
        let mut behind = Vec::with_capacity(wants.len());
        for (index, want) in wants.iter().enumerate() {
            let location = self.catalog.location(want.sample);
            let length = wants.get(index + 1).map_or(self.trailer_length(), |next| {
                let next = self.catalog.location(next.sample).offset;
                (next - location.offset - location.length) as usize
            });
            behind.push(at..at + length);
            at += length;
        }
        scratch.resize(at, 0);
        behind
    }

    fn check_trailers(
        &self,
        number: u32,
        wants: &[Want<'_>],
        scratch: &[u8],
        behind: &[Range<usize>],
    ) -> Result<(), ReadError> {
        let Some(trailer) = self.opening.trailer else { return Ok(()) };
        for (want, behind) in wants.iter().zip(behind) {
            let bytes = &scratch[behind.clone()][..trailer.length];
            if let Some(damage) = (trailer.damage)(want.into, bytes) {
                let path = self.path_of(number);
                return Err(ReadError::Damaged { sample: want.sample, path, damage });
            }
        }
        Ok(())
    }

    fn trailer_length(&self) -> usize {
        self.opening.trailer.map_or(0, |trailer| trailer.length)
    }

    /// Turns a call that failed or brought too little into the error it is.
    fn check_whole(
        &self,
        number: u32,
        wants: &[Want<'_>],
        wanted: usize,
        got: io::Result<usize>,
    ) -> Result<(), ReadError> {
        match got {
            Ok(got) if got == wanted => Ok(()),
            Ok(got) => Err(self.short(number, wants, got as u64)),
            Err(error) => Err(self.failed(wants[0].sample, number, error)),
        }
    }

    fn short(&self, number: u32, wants: &[Want<'_>], got: u64) -> ReadError {
        let start = self.catalog.location(wants[0].sample).offset;
        // The last one, if only its trailer is missing.
        let cut = wants.iter().find(|want| {
            let location = self.catalog.location(want.sample);
            location.offset + location.length > start + got
        });
        let sample = cut.unwrap_or(&wants[wants.len() - 1]).sample;
        let location = self.catalog.location(sample);
        let got = (start + got).saturating_sub(location.offset).min(location.length);
        ReadError::Short { sample, path: self.path_of(number), expected: location.length, got }
    }

    fn failed(&self, sample: u32, number: u32, error: io::Error) -> ReadError {
        if error.kind() == io::ErrorKind::NotFound {
            self.forget_snapshot();
        }
        ReadError::Io { sample, path: self.path_of(number), error }
    }

    fn path_of(&self, number: u32) -> PathBuf {
        self.path.join(self.catalog.path(number))
    }

    fn forget_snapshot(&self) {
        if let Some(path) = &self.opening.snapshot {
            snapshot::forget(path);
        }
    }
}

fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

impl Source for Files {
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
        let together = if wants.chunk_by(in_one_file).nth(1).is_some() {
            0
        } else {
            self.count_together(wants)
        };
        if self.together() > 1 && together < wants.len() {
            return self.read_at_once(wants);
        }
        wants.chunk_by_mut(in_one_file).try_for_each(|wants| self.read_file(wants))
    }

    fn together(&self) -> usize {
        let alone = !self.opening.direct || self.opening.trailer.is_some();
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
        self.counters.so_far()
    }
}

thread_local! {
    /// Memory for what lies between wants.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The memory of the wants, and behind each that for what is not wanted.
fn pieces<'a>(
    wants: &'a mut [Want<'_>],
    mut scratch: &'a mut [u8],
    behind: &[Range<usize>],
) -> Vec<IoSliceMut<'a>> {
    let mut pieces = Vec::with_capacity(2 * wants.len());
    for (want, behind) in wants.iter_mut().zip(behind) {
        pieces.push(IoSliceMut::new(want.into));
        let (gap, rest) = scratch.split_at_mut(behind.len());
        pieces.push(IoSliceMut::new(gap));
        scratch = rest;
    }
    pieces
}
