//! All copies of a run: the levels, and what the board says of them.
//!
//! A name is claimed while something is done to its copy, so that nobody removes what another has just
//! made. The board tells the program; the names here are for removing what it gave up.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use belady_board::{Board, Facts, FileId, Kind, NewRecord, PathKey, Publisher};
use belady_data::sync::{Condvar, Mutex, lock};

use crate::level::Level;

#[derive(Debug)]
pub struct Shelf {
    pub board: Arc<Board>,
    /// The dataset, without symbolic links.
    pub source: PathBuf,
    /// The device that it is on.
    pub source_dev: u64,
    pub levels: Vec<Level>,
    pub tally: Tally,
    /// The run is over: nothing is made or given back any more.
    over: Mutex<bool>,
    stopping: AtomicBool,
    catalogue: Mutex<Catalogue>,
    claimed: Mutex<HashSet<PathKey>>,
    /// A claim was let go of, or the run is over.
    released: Condvar,
    /// Copies in the first level that only pass through, and their bytes.
    passing: Mutex<HashMap<Box<[u8]>, u64>>,
}

/// What is counted for the report.
#[derive(Debug, Default)]
pub struct Tally {
    pub copied_files: AtomicU64,
    pub copied_bytes: AtomicU64,
    pub busy_nanos: AtomicU64,
    pub refused: AtomicU64,
    pub failed: AtomicU64,
    pub first_failure: Mutex<Option<String>>,
}

impl Tally {
    pub fn fail(&self, sentence: String) {
        self.failed.fetch_add(1, Relaxed);
        lock(&self.first_failure).get_or_insert(sentence);
    }
}

#[derive(Debug)]
struct Catalogue {
    publisher: Publisher,
    /// By the number of the record; none once the copy was removed.
    names: Vec<Option<Box<[u8]>>>,
    /// How many dropped copies were looked for so far.
    swept: u64,
}

/// The right to change a name's copy, until it is let go of.
#[derive(Debug)]
pub struct Claim<'a> {
    shelf: &'a Shelf,
    key: PathKey,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        lock(&self.shelf.claimed).remove(&self.key);
        self.shelf.released.notify_all();
    }
}

impl Shelf {
    pub fn new(board: Arc<Board>, source: PathBuf, source_dev: u64, levels: Vec<Level>) -> Self {
        let publisher = Publisher::new(Arc::clone(&board));
        let catalogue = Catalogue { publisher, names: vec![], swept: 0 };
        Self {
            board,
            source,
            source_dev,
            levels,
            tally: Tally::default(),
            over: Mutex::new(false),
            stopping: AtomicBool::new(false),
            catalogue: Mutex::new(catalogue),
            claimed: Mutex::new(HashSet::new()),
            released: Condvar::new(),
            passing: Mutex::new(HashMap::new()),
        }
    }

    /// None if somebody else is at it.
    pub fn claim(&self, name: &[u8]) -> Option<Claim<'_>> {
        let key = self.board.key(name);
        // Made only if it is ours: one that is dropped gives the name back.
        lock(&self.claimed).insert(key).then(|| Claim { shelf: self, key })
    }

    /// Waits for whoever is at it; None if the run is over. Who holds this name must not wait for another.
    pub fn claim_when_free(&self, name: &[u8]) -> Option<Claim<'_>> {
        let key = self.board.key(name);
        let mut claimed = lock(&self.claimed);
        while !claimed.insert(key) {
            if self.is_stopping() {
                return None;
            }
            let waited = self.released.wait(claimed);
            claimed = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        Some(Claim { shelf: self, key })
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Runs what makes or gives back copies, unless the run is over; no end of a run falls in between.
    pub fn unless_over<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        let over = lock(&self.over);
        (!*over).then(change)
    }

    /// From here on nothing changes any more but by [`Level::close`].
    pub fn end(&self) {
        self.stopping.store(true, SeqCst);
        *lock(&self.over) = true;
        drop(lock(&self.claimed));
        self.released.notify_all();
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.board.find(self.board.key(name)).is_some()
    }

    /// Tells the program of a copy, or that there will be none. Whether there was room on the board.
    pub fn publish(&self, name: &[u8], new: &NewRecord) -> bool {
        let mut catalogue = lock(&self.catalogue);
        if let Kind::Copy { copy, .. } = new.kind {
            self.forget_namesake(copy, &new.facts);
        }
        let Ok(number) = catalogue.publisher.publish(new).map(|entry| entry.number) else {
            return false;
        };
        debug_assert_eq!(number as usize, catalogue.names.len());
        catalogue.names.push(Some(name.into()));
        if let Kind::Copy { level, .. } = new.kind {
            self.levels[level].held.add(new.facts.size);
        }
        true
    }

    /// A number of a copy that another launcher has removed may be that of a new copy now.
    fn forget_namesake(&self, copy: FileId, facts: &Facts) {
        // Links are other names of the same copy.
        while let Some(other) = self.board.find_copy(copy)
            && (other.facts().dev, other.facts().ino) != (facts.dev, facts.ino)
        {
            other.retire();
        }
    }

    /// Removes copies that the program gave up, as far as nobody else is at them.
    pub fn sweep(&self) {
        for (number, name) in self.given_up() {
            let Some(_claim) = self.claim(&name) else {
                // The next time.
                lock(&self.catalogue).swept = 0;
                continue;
            };
            let entry = self.board.entry(number);
            if let Kind::Copy { level, copy } = entry.kind() {
                let level = &self.levels[level];
                level.held.take(entry.facts().size);
                let removed = self.unless_over(|| {
                    if self.is_new(&name, entry.kind()) {
                        return Ok(false);
                    }
                    // The bytes are given back with the copy, so that nobody does so again.
                    self.passed(&name);
                    remove(level, &name, Some(copy))
                });
                if let Some(Err(error)) = removed {
                    tracing::warn!("a copy cannot be removed: {error}");
                }
            }
            if let Some(name) = lock(&self.catalogue).names.get_mut(number as usize) {
                *name = None;
            }
        }
    }

    /// Whether a newer copy of this name is in use, which may have the number of the old one.
    fn is_new(&self, name: &[u8], old: Kind) -> bool {
        self.board.find(self.board.key(name)).is_some_and(|entry| entry.kind() == old)
    }

    fn given_up(&self) -> Vec<(u32, Box<[u8]>)> {
        let mut catalogue = lock(&self.catalogue);
        let dropped = self.board.head().dropped.load(SeqCst);
        if dropped == catalogue.swept {
            return vec![];
        }
        let found: Vec<_> = (0..)
            .zip(&catalogue.names)
            .filter(|&(number, _)| !self.board.entry(number).is_live())
            .filter_map(|(number, name)| Some((number, name.clone()?)))
            .collect();
        catalogue.swept = dropped;
        found
    }

    /// Notes that a copy only passes through.
    pub fn passes(&self, name: &[u8], bytes: u64) {
        lock(&self.passing).insert(name.into(), bytes);
    }

    pub fn is_passing(&self, name: &[u8]) -> bool {
        lock(&self.passing).contains_key(name)
    }

    /// A copy no longer passes through; whether it did until now.
    fn passed(&self, name: &[u8]) -> bool {
        let Some(bytes) = lock(&self.passing).remove(name) else { return false };
        self.levels[0].passed(bytes);
        true
    }

    /// Takes the name from a copy that passes through. Its bytes count until [`Shelf::freed`]; the file is
    /// given, to see whether somebody still reads it.
    pub fn let_go(&self, name: &[u8]) -> Option<OwnedFd> {
        let _claim = self.claim_patiently(name)?;
        let entry = self.board.find(self.board.key(name))?;
        let Kind::Copy { level, .. } = entry.kind() else { return None };
        let path = path_of(&self.levels[level].files, name);
        let copy = File::open(&path).ok()?;
        self.unless_over(|| {
            if !entry.retire() {
                // Given up by the program: then it is swept.
                return None;
            }
            self.levels[level].held.take(entry.facts().size);
            if let Some(name) = lock(&self.catalogue).names.get_mut(entry.number as usize) {
                *name = None;
            }
            std::fs::remove_file(&path).ok()
        })??;
        Some(copy.into())
    }

    /// Who claims a file that has a copy is soon done.
    fn claim_patiently(&self, name: &[u8]) -> Option<Claim<'_>> {
        for _ in 0..1000 {
            if let Some(claim) = self.claim(name) {
                return Some(claim);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        None
    }

    /// Nobody has the copy open any more that was let go. One that could not be let go is still there.
    pub fn freed(&self, name: &[u8], bytes: u64) {
        let entry = self.board.find(self.board.key(name));
        if entry.is_some_and(|entry| matches!(entry.kind(), Kind::Copy { .. })) {
            return;
        }
        self.unless_over(|| {
            if self.passed(name) {
                let _ = self.levels[0].used.release(bytes);
            }
        });
    }

    /// At the end: what only passes through is of no use to later runs.
    pub fn remove_passing(&self) {
        let passing = std::mem::take(&mut *lock(&self.passing));
        for (name, bytes) in passing {
            let removed = remove(&self.levels[0], &name, None);
            if matches!(removed, Ok(false)) {
                // Let go before, but perhaps still open somewhere.
                let _ = self.levels[0].used.release(bytes);
            }
        }
    }

    pub fn records(&self) -> u32 {
        lock(&self.catalogue).names.len() as u32
    }

    /// Of the file that this record is of; none if its copy was dropped.
    pub fn name(&self, record: u32) -> Option<Box<[u8]>> {
        let live = self.board.entry(record).is_live();
        lock(&self.catalogue).names.get(record as usize)?.clone().filter(|_| live)
    }

    /// Names of copies that are in use.
    pub fn some_copies(&self, most: usize) -> Vec<(usize, Box<[u8]>)> {
        let catalogue = lock(&self.catalogue);
        let numbers = 0..catalogue.names.len() as u32;
        let live =
            numbers.map(|number| self.board.entry(number)).filter(belady_board::Entry::is_live);
        live.filter_map(|entry| match entry.kind() {
            Kind::Copy { level, .. } => {
                Some((level, catalogue.names[entry.number as usize].clone()?))
            }
            Kind::Refused => None,
        })
        .take(most)
        .collect()
    }
}

/// Where the copy of this name lies.
pub fn path_of(directory: &Path, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    directory.join(std::ffi::OsStr::from_bytes(name))
}

/// Whether a name leads to a file below a directory and nowhere else. Names come from the program.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && !name.contains(&0)
        && name.split(|&byte| byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

/// Removes a copy and gives its bytes back, if it is there (and is this one).
///
/// # Errors
/// If it is there and cannot be removed.
pub fn remove(level: &Level, name: &[u8], only: Option<FileId>) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let path = path_of(&level.files, name);
    let is_it = |facts: &std::fs::Metadata| {
        only.is_none_or(|only| only == FileId { dev: facts.dev(), ino: facts.ino() })
    };
    if !path.symlink_metadata().is_ok_and(|facts| is_it(&facts)) {
        return Ok(false);
    }
    // Taken away first, and looked at once more then: another launcher may replace it at any time, and
    // the bytes that are given back have to be those of what was removed.
    let taken = level.partial();
    match std::fs::rename(&path, &taken) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    }
    let facts = taken.symlink_metadata()?;
    if !is_it(&facts) && std::fs::hard_link(&taken, &path).is_ok() {
        std::fs::remove_file(&taken)?;
        return Ok(false);
    }
    std::fs::remove_file(&taken)?;
    // Bytes go with the last name.
    if facts.nlink() == 1 {
        level.used.release(facts.size())?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for name in [&b""[..], b"/etc/passwd", b"../a", b"a/../b", b"a//b", b"a/", b"./a", b"a\0b"]
        {
            assert!(!is_name(name), "{}", name.escape_ascii());
        }
        for name in [&b"a"[..], b"a/b.c", b"...", b"a/..b", b" "] {
            assert!(is_name(name), "{}", name.escape_ascii());
        }
    }
}
