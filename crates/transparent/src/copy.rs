//! Makes the copy of one file.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use belady_board::{ChangeSnapshot, FileId, FileStat, NewRecord, RecordKind};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use crate::copy_store::{CopyStore, NameClaim, is_name, path_of, remove};
use crate::files::private_directory;
use crate::level::{self, CopyLevel, CopyLifetime};
use crate::metadata::CopyMetadata;

/// The mode bit that marks copies, so that the shim recognises them after an `fstat`.
pub const STICKY: u32 = 0o1000;
/// The size of a read, in bytes.
pub const CHUNK: usize = 1 << 20;

/// The result of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyResult {
    /// The copy was made.
    Copied,
    /// There was a copy.
    Present,
    /// No level has space.
    Refused,
    /// The source changed meanwhile or was opened for writing, the run is over, or another thread
    /// or launcher is making the copy.
    NotNow,
    /// The source is not a regular file, or it cannot be read.
    Failed,
}

/// An open source file.
struct SourceFile {
    file: File,
    stat: FileStat,
    is_link: bool,
    /// Taken before the file was opened.
    snapshot: ChangeSnapshot,
}

impl CopyStore {
    /// Makes the copy of `name` if there is none.
    pub fn fetch(&self, name: &[u8], lifetime: CopyLifetime, buffer: &mut Vec<u8>) -> CopyResult {
        if !is_name(name) {
            return CopyResult::Failed;
        }
        let Some(claim) = self.claim(name) else { return CopyResult::NotNow };
        self.fetch_claimed(&claim, name, lifetime, buffer)
    }

    fn fetch_claimed(
        &self,
        _: &NameClaim<'_>,
        name: &[u8],
        lifetime: CopyLifetime,
        buffer: &mut Vec<u8>,
    ) -> CopyResult {
        match (self.find(name).map(|entry| entry.kind()), lifetime) {
            (Some(RecordKind::Copy { .. }), _) => return CopyResult::Present,
            (Some(RecordKind::Refused), CopyLifetime::Kept) => return CopyResult::Refused,
            (Some(RecordKind::Refused), CopyLifetime::Transient) | (None, _) => {}
        }
        match self.try_fetch(name, lifetime, buffer) {
            Ok(outcome) => outcome,
            Err(error) => {
                let path = path_of(&self.source, name);
                self.tally.fail(format!("cannot copy {}: {error}", path.display()));
                CopyResult::Failed
            }
        }
    }

    fn try_fetch(
        &self,
        name: &[u8],
        lifetime: CopyLifetime,
        buffer: &mut Vec<u8>,
    ) -> io::Result<CopyResult> {
        let began = Instant::now();
        self.watch(name);
        let source = SourceFile::open(&path_of(&self.source, name), self.board.change_snapshot())?;
        if !source.stat.is_regular() {
            return Ok(CopyResult::Failed);
        }
        if self.board.was_written(source.id()) {
            return Ok(CopyResult::NotNow);
        }
        if self.adopt(name, &source, buffer)? {
            return Ok(CopyResult::Present);
        }
        if let Some(outcome) = self.link(name, &source, buffer)? {
            return Ok(outcome);
        }
        if self.is_foreign(name) {
            if lifetime == CopyLifetime::Transient {
                return Ok(CopyResult::NotNow);
            }
            self.refuse(name, &source);
            return Ok(CopyResult::Refused);
        }
        let size = source.stat.size;
        let most = if lifetime == CopyLifetime::Transient { 1 } else { self.levels.len() };
        for (at, level) in self.levels.iter().enumerate().take(most) {
            if !self.unless_over(|| level.reserve(size, lifetime)).unwrap_or(Ok(false))? {
                continue;
            }
            let made = self.copy_into(level, name, &source, buffer);
            if !matches!(made, Ok(Some(_))) {
                // After the end of the run the level has released it already.
                self.unless_over(|| level.release(size, lifetime)).transpose()?;
            }
            match made {
                Ok(Some(copy)) => {
                    self.tally.copied_files.fetch_add(1, Relaxed);
                    self.tally.copied_bytes.fetch_add(size, Relaxed);
                    self.tally.busy_nanos.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
                    if lifetime == CopyLifetime::Transient {
                        self.add_transient(name, size);
                    }
                    return Ok(self.announce(at, name, &source, copy));
                }
                Ok(None) => return Ok(CopyResult::NotNow),
                // The disk is full although the quota is not; the next level may have space.
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if self.is_stopping() || lifetime == CopyLifetime::Transient {
            return Ok(CopyResult::NotNow);
        }
        self.refuse(name, &source);
        Ok(CopyResult::Refused)
    }

    /// Returns whether another launcher has a copy on a level without copy metadata. This launcher
    /// cannot use it, and would make its own again and again.
    fn is_foreign(&self, name: &[u8]) -> bool {
        let shared = self.levels.iter().filter(|level| !level.keeps && !level.is_private);
        shared.into_iter().any(|level| path_of(&level.files, name).exists())
    }

    fn refuse(&self, name: &[u8], source: &SourceFile) {
        self.tally.refused.fetch_add(1, Relaxed);
        self.publish(name, &source.record(self, name, RecordKind::Refused));
    }

    fn announce(&self, level: usize, name: &[u8], source: &SourceFile, copy: FileId) -> CopyResult {
        self.retire_refused(name);
        if self.publish(name, &source.record(self, name, RecordKind::Copy { level, copy })) {
            return CopyResult::Copied;
        }
        // The board is full, so no process would find the copy.
        let _ = self.unless_over(|| remove(&self.levels[level], name, Some(copy)));
        self.tally.refused.fetch_add(1, Relaxed);
        CopyResult::Refused
    }

    /// Retires a `Refused` record, because a lookup may find either of two records.
    fn retire_refused(&self, name: &[u8]) {
        if let Some(refused) = self.find(name) {
            refused.retire();
        }
    }

    /// Publishes a copy that another launcher or an earlier run has made. Removes one that is not
    /// current.
    fn adopt(&self, name: &[u8], source: &SourceFile, buffer: &mut Vec<u8>) -> io::Result<bool> {
        for (at, level) in self.levels.iter().enumerate().filter(|(_, level)| level.keeps) {
            let Ok(copy) = File::open(path_of(&level.files, name)) else { continue };
            let meta = CopyMetadata::read(&copy);
            let stat = FileStat::of(&copy, c"", AtFlags::empty())?;
            let complete = stat.size == source.stat.size && stat.is_regular();
            let fresh = meta
                .filter(|meta| {
                    complete && source.stat.is_unchanged_since(&meta.stat(self.source_dev))
                })
                .map_or(Ok(false), |meta| self.is_intact(&copy, meta, stat.mode, buffer))?;
            if self.is_stopping() {
                return Ok(false);
            }
            let id = stat.id();
            if fresh {
                let kind = RecordKind::Copy { level: at, copy: id };
                self.retire_refused(name);
                return Ok(self.publish(name, &source.record(self, name, kind)));
            }
            if let Some(removed) = self.unless_over(|| remove(level, name, Some(id))) {
                removed?;
            }
        }
        Ok(false)
    }

    /// Makes the copy of a symbolic link within the dataset: a hard link to the copy of its target.
    /// Returns None if the source is no such link.
    fn link(
        &self,
        name: &[u8],
        source: &SourceFile,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<CopyResult>> {
        use std::os::unix::ffi::OsStrExt as _;
        if !source.is_link {
            return Ok(None);
        }
        let target = std::fs::read_link(format!("/proc/self/fd/{}", raw(&source.file)))?;
        let Ok(target) = target.strip_prefix(&self.source) else { return Ok(None) };
        let target = target.as_os_str().as_bytes();
        if target == name || !is_name(target) {
            return Ok(Some(CopyResult::NotNow));
        }
        // The target may be in flight. It is no link, so the thread that copies it waits for no
        // claim.
        let Some(claim) = self.claim_when_free(target) else {
            return Ok(Some(CopyResult::NotNow));
        };
        self.drop_if_changed(target, &source.stat);
        let fetched = self.fetch_claimed(&claim, target, CopyLifetime::Kept, buffer);
        // A transient copy will be evicted, whatever other names it has.
        if !matches!(fetched, CopyResult::Copied | CopyResult::Present) || self.is_transient(target)
        {
            return Ok(Some(CopyResult::NotNow));
        }
        let found = self.find(target);
        let same = found.filter(|entry| source.stat.is_unchanged_since(entry.stat()));
        let Some(RecordKind::Copy { level: at, copy }) = same.map(|entry| entry.kind()) else {
            return Ok(Some(CopyResult::NotNow));
        };
        let level = &self.levels[at];
        let path = path_of(&level.files, name);
        make_parent(&path)?;
        let linked = self.unless_over(|| std::fs::hard_link(path_of(&level.files, target), &path));
        if !matches!(linked, Some(Ok(()))) {
            return Ok(Some(CopyResult::NotNow));
        }
        Ok(Some(self.announce(at, name, source, copy)))
    }

    /// Drops a copy of an earlier run that is not current.
    fn drop_if_changed(&self, name: &[u8], stat: &FileStat) {
        if let Some(entry) = self.find(name)
            && matches!(entry.kind(), RecordKind::Copy { .. })
            && !stat.is_unchanged_since(entry.stat())
        {
            entry.drop_copy();
        }
    }

    /// Returns the copy, or None if the source changed, another launcher was faster or the run is
    /// over.
    fn copy_into(
        &self,
        level: &CopyLevel,
        name: &[u8],
        source: &SourceFile,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<FileId>> {
        let partial = level.partial();
        let made = self.write(level, &partial, source, buffer).and_then(|copy| match copy {
            Some(copy) => self.place(level, &partial, name).map(|placed| placed.then_some(copy)),
            None => Ok(None),
        });
        if !matches!(made, Ok(Some(_))) {
            let _ = std::fs::remove_file(&partial);
        }
        made
    }

    fn write(
        &self,
        level: &CopyLevel,
        partial: &Path,
        source: &SourceFile,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<FileId>> {
        let mut copy = File::options().write(true).create_new(true).mode(0o600).open(partial)?;
        allocate(&copy, source.stat.size)?;
        buffer.resize(CHUNK, 0);
        let mut hash = Xxh3::new();
        let mut left = source.stat.size;
        while left > 0 {
            if self.is_stopping() {
                return Ok(None);
            }
            let most = (left as usize).min(CHUNK);
            let length = match (&source.file).read(&mut buffer[..most]) {
                // The source was truncated.
                Ok(0) => return Ok(None),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hash.update(&buffer[..length]);
            copy.write_all(&buffer[..length])?;
            left -= length as u64;
        }
        // Files of /proc and /sys, counters and the like have more bytes than their size says.
        if (&source.file).read(&mut buffer[..1])? > 0 {
            return Ok(None);
        }
        let after = FileStat::of(&source.file, c"", AtFlags::empty())?;
        if !after.is_unchanged_since(&source.stat) || self.board.was_written(source.id()) {
            return Ok(None);
        }
        let meta = CopyMetadata::new(&source.stat, self.source_dev, source.is_link, hash.digest());
        if level.keeps {
            meta.write(&copy)?;
        }
        set_attributes(&copy, &source.stat)?;
        let stat = FileStat::of(&copy, c"", AtFlags::empty())?;
        Ok(Some(stat.id()))
    }

    /// Renames a complete copy to its name, unless another launcher has placed one.
    fn place(&self, level: &CopyLevel, partial: &Path, name: &[u8]) -> io::Result<bool> {
        let path = path_of(&level.files, name);
        make_parent(&path)?;
        let _lock = self.lock_levels()?;
        if self.levels.iter().any(|other| path_of(&other.files, name).exists()) {
            return Ok(false);
        }
        match self.unless_over(|| rename_new(partial, &path)) {
            Some(Ok(())) => Ok(true),
            Some(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Some(Err(error)) => Err(error),
            None => Ok(false),
        }
    }

    /// Locks the levels if launchers share several of them: two launchers may have copied the same
    /// file to different levels.
    fn lock_levels(&self) -> io::Result<Option<File>> {
        let mut shared = self.levels.iter().filter(|level| !level.is_private);
        match (shared.next(), shared.next()) {
            (Some(first), Some(_)) => level::lock(&first.root).map(Some),
            _ => Ok(None),
        }
    }
}

impl SourceFile {
    fn open(path: &Path, snapshot: ChangeSnapshot) -> io::Result<Self> {
        // NONBLOCK because a FIFO would block, NOFOLLOW to recognise a link.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (file, is_link) = match rustix::fs::open(path, flags | OFlags::NOFOLLOW, Mode::empty())
        {
            Err(Errno::LOOP) => (rustix::fs::open(path, flags, Mode::empty())?, true),
            other => (other?, false),
        };
        let file = File::from(file);
        let stat = FileStat::of(file.as_fd(), c"", AtFlags::empty())?;
        Ok(Self { file, stat, is_link, snapshot })
    }

    fn id(&self) -> FileId {
        self.stat.id()
    }

    fn record(&self, store: &CopyStore, name: &[u8], kind: RecordKind) -> NewRecord {
        NewRecord {
            path: store.board.key(name),
            kind,
            stat: self.stat,
            is_link: self.is_link,
            validated: Some(self.snapshot),
        }
    }
}

fn raw(file: &File) -> i32 {
    use std::os::fd::AsRawFd as _;
    file.as_raw_fd()
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Allocates all blocks at once, so that a full disk is noticed early and a partial copy counts as
/// many bytes as were reserved for it.
fn allocate(copy: &File, size: u64) -> io::Result<()> {
    if size == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(copy, FallocateFlags::empty(), 0, size) {
        Err(Errno::NOTSUP | Errno::NOSYS) => copy.set_len(size),
        other => Ok(other?),
    }
}

/// Sets the source's mode and times, and the mark of a copy.
fn set_attributes(copy: &File, stat: &FileStat) -> io::Result<()> {
    let mode = stat.mode & 0o777 | 0o400 | STICKY;
    rustix::fs::fchmod(copy, Mode::from_raw_mode(mode))?;
    let time = |time: belady_board::file_stat::FileTime| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanos.cast_signed(),
    };
    let times =
        Timestamps { last_access: time(stat.accessed), last_modification: time(stat.modified) };
    Ok(rustix::fs::futimens(copy, &times)?)
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), private_directory)
}

/// Renames a file without replacing an existing one.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::CWD;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        other => Ok(other?),
    }
}

/// Returns the absolute form of a path, without `.` and `..` but with its symbolic links.
pub fn normalise(path: &Path) -> io::Result<PathBuf> {
    use std::path::Component;
    let absolute = std::path::absolute(path)?;
    // With `..` the result depends on where links lead.
    if absolute.components().any(|part| part == Component::ParentDir) {
        return absolute.canonicalize();
    }
    Ok(absolute.components().collect())
}
