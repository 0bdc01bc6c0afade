//! Making the copy of one file.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use belady_board::{Facts, FileId, Kind, NewRecord, Seen};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use crate::level::{Level, Stay, gate, private_directory};
use crate::meta::Meta;
use crate::shelf::{Claim, Shelf, is_name, path_of, remove};

/// Marks copies, so that `fstat` in the program knows them at a glance.
pub const STICKY: u32 = 0o1000;
/// Bytes read at once.
pub const CHUNK: usize = 1 << 20;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is a copy now.
    Copied,
    /// There was one.
    Present,
    /// No level has room.
    Refused,
    /// The source changed meanwhile, or is being written to, or the run is over, or another is at it.
    NotNow,
    /// It is no regular file, or it cannot be read.
    Failed,
}

/// A source file, opened.
struct Source {
    file: File,
    facts: Facts,
    is_link: bool,
    /// Before it was opened.
    seen: Seen,
}

impl Shelf {
    /// Makes the copy of `name`, if there is none.
    pub fn fetch(&self, name: &[u8], stay: Stay, buffer: &mut Vec<u8>) -> Outcome {
        if !is_name(name) {
            return Outcome::Failed;
        }
        let Some(claim) = self.claim(name) else { return Outcome::NotNow };
        self.fetch_claimed(&claim, name, stay, buffer)
    }

    fn fetch_claimed(
        &self,
        _: &Claim<'_>,
        name: &[u8],
        stay: Stay,
        buffer: &mut Vec<u8>,
    ) -> Outcome {
        match (self.board.find(self.board.key(name)).map(|entry| entry.kind()), stay) {
            (Some(Kind::Copy { .. }), _) => return Outcome::Present,
            (Some(Kind::Refused), Stay::Kept) => return Outcome::Refused,
            (Some(Kind::Refused), Stay::Passing) | (None, _) => {}
        }
        match self.try_fetch(name, stay, buffer) {
            Ok(outcome) => outcome,
            Err(error) => {
                let path = path_of(&self.source, name);
                self.tally.fail(format!("{} cannot be copied: {error}", path.display()));
                Outcome::Failed
            }
        }
    }

    fn try_fetch(&self, name: &[u8], stay: Stay, buffer: &mut Vec<u8>) -> io::Result<Outcome> {
        let began = Instant::now();
        let source = Source::open(&path_of(&self.source, name), self.board.seen())?;
        if !source.facts.is_regular() {
            return Ok(Outcome::Failed);
        }
        if self.board.was_written(source.id()) {
            return Ok(Outcome::NotNow);
        }
        if self.adopt(name, &source, buffer)? {
            return Ok(Outcome::Present);
        }
        if let Some(outcome) = self.link(name, &source, buffer)? {
            return Ok(outcome);
        }
        if self.is_anothers(name) {
            if stay == Stay::Passing {
                return Ok(Outcome::NotNow);
            }
            self.refuse(name, &source);
            return Ok(Outcome::Refused);
        }
        let size = source.facts.size;
        let most = if stay == Stay::Passing { 1 } else { self.levels.len() };
        for (at, level) in self.levels.iter().enumerate().take(most) {
            if !self.unless_over(|| level.reserve(size, stay)).unwrap_or(Ok(false))? {
                continue;
            }
            let made = self.copy_into(level, name, &source, buffer);
            if !matches!(made, Ok(Some(_))) {
                // After the end of the run the level has given it back already.
                self.unless_over(|| level.release(size, stay)).transpose()?;
            }
            match made {
                Ok(Some(copy)) => {
                    self.tally.copied_files.fetch_add(1, Relaxed);
                    self.tally.copied_bytes.fetch_add(size, Relaxed);
                    self.tally.busy_nanos.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
                    if stay == Stay::Passing {
                        self.passes(name, size);
                    }
                    return Ok(self.announce(at, name, &source, copy));
                }
                Ok(None) => return Ok(Outcome::NotNow),
                // The disk is full before the quota is; the next level may have room.
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if self.is_stopping() || stay == Stay::Passing {
            return Ok(Outcome::NotNow);
        }
        self.refuse(name, &source);
        Ok(Outcome::Refused)
    }

    /// Whether another launcher has a copy where nobody can tell what it is like. It is in the way of
    /// ours, which would be made again and again.
    fn is_anothers(&self, name: &[u8]) -> bool {
        let shared = self.levels.iter().filter(|level| !level.keeps && !level.is_private);
        shared.into_iter().any(|level| path_of(&level.files, name).exists())
    }

    fn refuse(&self, name: &[u8], source: &Source) {
        self.tally.refused.fetch_add(1, Relaxed);
        self.publish(name, &source.record(self, name, Kind::Refused));
    }

    fn announce(&self, level: usize, name: &[u8], source: &Source, copy: FileId) -> Outcome {
        self.retire_refused(name);
        if self.publish(name, &source.record(self, name, Kind::Copy { level, copy })) {
            return Outcome::Copied;
        }
        // The board is full: a copy that nobody finds only takes room.
        let _ = self.unless_over(|| remove(&self.levels[level], name, Some(copy)));
        self.tally.refused.fetch_add(1, Relaxed);
        Outcome::Refused
    }

    /// Of two records, any may be found.
    fn retire_refused(&self, name: &[u8]) {
        if let Some(refused) = self.board.find(self.board.key(name)) {
            refused.retire();
        }
    }

    /// Takes a copy that is there already, made by another launcher or in an earlier run. One that is
    /// not like the source is removed.
    fn adopt(&self, name: &[u8], source: &Source, buffer: &mut Vec<u8>) -> io::Result<bool> {
        for (at, level) in self.levels.iter().enumerate().filter(|(_, level)| level.keeps) {
            let Ok(copy) = File::open(path_of(&level.files, name)) else { continue };
            let meta = Meta::read(&copy);
            let facts = Facts::of(&copy, c"", AtFlags::empty())?;
            let whole = facts.size == source.facts.size && facts.is_regular();
            let fresh = meta
                .filter(|meta| whole && source.facts.is_still(&meta.facts(self.source_dev)))
                .map_or(Ok(false), |meta| self.is_intact(&copy, meta, facts.mode, buffer))?;
            if self.is_stopping() {
                return Ok(false);
            }
            let id = FileId { dev: facts.dev, ino: facts.ino };
            if fresh {
                let kind = Kind::Copy { level: at, copy: id };
                self.retire_refused(name);
                return Ok(self.publish(name, &source.record(self, name, kind)));
            }
            if let Some(removed) = self.unless_over(|| remove(level, name, Some(id))) {
                removed?;
            }
        }
        Ok(false)
    }

    /// The copy of a symbolic link within the dataset is another name of the copy of what it leads to.
    /// None if it is no such link.
    fn link(
        &self,
        name: &[u8],
        source: &Source,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<Outcome>> {
        use std::os::unix::ffi::OsStrExt as _;
        if !source.is_link {
            return Ok(None);
        }
        let target = std::fs::read_link(format!("/proc/self/fd/{}", raw(&source.file)))?;
        let Ok(target) = target.strip_prefix(&self.source) else { return Ok(None) };
        let target = target.as_os_str().as_bytes();
        if target == name || !is_name(target) {
            return Ok(Some(Outcome::NotNow));
        }
        // It may be on its way. It is no link itself, so whoever copies it waits for nobody.
        let Some(claim) = self.claim_when_free(target) else { return Ok(Some(Outcome::NotNow)) };
        self.give_up_unless_still(target, &source.facts);
        let fetched = self.fetch_claimed(&claim, target, Stay::Kept, buffer);
        // What only passes through will lose its bytes, whatever other names it has.
        if !matches!(fetched, Outcome::Copied | Outcome::Present) || self.is_passing(target) {
            return Ok(Some(Outcome::NotNow));
        }
        let found = self.board.find(self.board.key(target));
        let same = found.filter(|entry| source.facts.is_still(entry.facts()));
        let Some(Kind::Copy { level: at, copy }) = same.map(|entry| entry.kind()) else {
            return Ok(Some(Outcome::NotNow));
        };
        let level = &self.levels[at];
        let path = path_of(&level.files, name);
        make_parent(&path)?;
        let linked = self.unless_over(|| std::fs::hard_link(path_of(&level.files, target), &path));
        if !matches!(linked, Some(Ok(()))) {
            return Ok(Some(Outcome::NotNow));
        }
        Ok(Some(self.announce(at, name, source, copy)))
    }

    /// A copy of an earlier run may not have been compared with its source yet.
    fn give_up_unless_still(&self, name: &[u8], facts: &Facts) {
        if let Some(entry) = self.board.find(self.board.key(name))
            && matches!(entry.kind(), Kind::Copy { .. })
            && !facts.is_still(entry.facts())
        {
            entry.drop_copy();
        }
    }

    /// The copy's number, or None if the source changed, another was faster or the run is over.
    fn copy_into(
        &self,
        level: &Level,
        name: &[u8],
        source: &Source,
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
        level: &Level,
        partial: &Path,
        source: &Source,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<FileId>> {
        let mut copy = File::options().write(true).create_new(true).mode(0o600).open(partial)?;
        allocate(&copy, source.facts.size)?;
        buffer.resize(CHUNK, 0);
        let mut hash = Xxh3::new();
        let mut left = source.facts.size;
        while left > 0 {
            if self.is_stopping() {
                return Ok(None);
            }
            let most = (left as usize).min(CHUNK);
            let length = match (&source.file).read(&mut buffer[..most]) {
                // It is shorter than it was.
                Ok(0) => return Ok(None),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hash.update(&buffer[..length]);
            copy.write_all(&buffer[..length])?;
            left -= length as u64;
        }
        let after = Facts::of(&source.file, c"", AtFlags::empty())?;
        if !after.is_still(&source.facts) || self.board.was_written(source.id()) {
            return Ok(None);
        }
        let meta = Meta::new(&source.facts, self.source_dev, source.is_link, hash.digest());
        if level.keeps {
            meta.write(&copy)?;
        }
        look_like(&copy, &source.facts)?;
        let facts = Facts::of(&copy, c"", AtFlags::empty())?;
        Ok(Some(FileId { dev: facts.dev, ino: facts.ino }))
    }

    /// Gives a finished copy its name, unless another has it.
    fn place(&self, level: &Level, partial: &Path, name: &[u8]) -> io::Result<bool> {
        let path = path_of(&level.files, name);
        make_parent(&path)?;
        let _turn = self.turn()?;
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

    /// Where launchers share several levels, one after the other places its copies: two of them may
    /// have made one of the same file, in different levels.
    fn turn(&self) -> io::Result<Option<File>> {
        let mut shared = self.levels.iter().filter(|level| !level.is_private);
        match (shared.next(), shared.next()) {
            (Some(first), Some(_)) => gate(&first.root).map(Some),
            _ => Ok(None),
        }
    }
}

impl Source {
    fn open(path: &Path, seen: Seen) -> io::Result<Self> {
        // A pipe would block, and a link is to be known as one.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (file, is_link) = match rustix::fs::open(path, flags | OFlags::NOFOLLOW, Mode::empty())
        {
            Err(Errno::LOOP) => (rustix::fs::open(path, flags, Mode::empty())?, true),
            other => (other?, false),
        };
        let file = File::from(file);
        let facts = Facts::of(file.as_fd(), c"", AtFlags::empty())?;
        Ok(Self { file, facts, is_link, seen })
    }

    fn id(&self) -> FileId {
        FileId { dev: self.facts.dev, ino: self.facts.ino }
    }

    fn record(&self, shelf: &Shelf, name: &[u8], kind: Kind) -> NewRecord {
        NewRecord {
            path: shelf.board.key(name),
            kind,
            facts: self.facts,
            is_link: self.is_link,
            proved: Some(self.seen),
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

/// Takes the room at once: then it is known whether there is any, and what was left half written
/// counts as what was reserved for it.
fn allocate(copy: &File, size: u64) -> io::Result<()> {
    if size == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(copy, FallocateFlags::empty(), 0, size) {
        Err(Errno::NOTSUP | Errno::NOSYS) => copy.set_len(size),
        other => Ok(other?),
    }
}

/// Mode and times of the source, and the mark of a copy.
fn look_like(copy: &File, facts: &Facts) -> io::Result<()> {
    let mode = facts.mode & 0o777 | 0o400 | STICKY;
    rustix::fs::fchmod(copy, Mode::from_raw_mode(mode))?;
    let time = |time: belady_board::facts::Time| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanos.cast_signed(),
    };
    let times =
        Timestamps { last_access: time(facts.accessed), last_modification: time(facts.modified) };
    Ok(rustix::fs::futimens(copy, &times)?)
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), private_directory)
}

/// As a rename, but nothing that is there is replaced.
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

/// The absolute form of a directory's name, without `.` and `..` but with its symbolic links.
pub fn clean(path: &Path) -> io::Result<PathBuf> {
    use std::path::Component;
    let absolute = std::path::absolute(path)?;
    // With `..` the name may depend on where links lead.
    if absolute.components().any(|part| part == Component::ParentDir) {
        return absolute.canonicalize();
    }
    Ok(absolute.components().collect())
}
