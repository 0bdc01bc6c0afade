//! All copies of a run: the levels, and what the board says of them.
//!
//! A name is claimed while something is done to its copy, so that nobody removes what another has just
//! made. The board tells the program; the names here are for removing what it gave up.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use belady_board::{Board, FileId, Kind, NewRecord, PathKey, Publisher};
use belady_data::sync::{Mutex, lock};

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
    /// By the number of the record; none once the copy was removed, or if there is none.
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
        }
    }

    /// None if somebody else is at it.
    pub fn claim(&self, name: &[u8]) -> Option<Claim<'_>> {
        let key = self.board.key(name);
        let is_free = lock(&self.claimed).insert(key);
        // Made only if it is ours: one that is dropped frees the name.
        is_free.then(|| Claim { shelf: self, key })
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
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.board.find(self.board.key(name)).is_some()
    }

    /// Tells the program of a copy, or that there will be none. Whether there was room on the board.
    pub fn publish(&self, name: &[u8], new: &NewRecord) -> bool {
        let mut catalogue = lock(&self.catalogue);
        let Ok(number) = catalogue.publisher.publish(new).map(|entry| entry.number) else {
            return false;
        };
        let kept = matches!(new.kind, Kind::Copy { .. }).then(|| Box::from(name));
        debug_assert_eq!(number as usize, catalogue.names.len());
        catalogue.names.push(kept);
        if let Kind::Copy { level, .. } = new.kind {
            self.levels[level].held.add(new.facts.size);
        }
        true
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
                let removed = self.unless_over(|| remove(level, &name, Some(copy)));
                match removed {
                    Some(Ok(_)) => level.held.take(entry.facts().size),
                    Some(Err(error)) => tracing::warn!("a copy cannot be removed: {error}"),
                    None => {}
                }
            }
            if let Some(name) = lock(&self.catalogue).names.get_mut(number as usize) {
                *name = None;
            }
        }
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
    let Ok(facts) = path.symlink_metadata() else { return Ok(false) };
    if only.is_some_and(|only| only != FileId { dev: facts.dev(), ino: facts.ino() }) {
        return Ok(false);
    }
    match std::fs::remove_file(&path) {
        // Bytes go with the last name.
        Ok(()) if facts.nlink() == 1 => level.used.release(facts.size()).map(|()| true),
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
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
