//! All copies of a run: the levels, and the records on the board.
//!
//! A thread claims a name while it changes its copy, so that no other thread removes a copy that
//! was just made. The board has hashes of names; the names here are for removing dropped copies.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use belady_base::sync::{Condvar, Mutex, lock};
use belady_board::{
    Board, BoardPublisher, FileId, FileStat, NewRecord, PathKey, RecordKind, RecordRef, Revalidate,
};

use crate::dataset_watch::{DatasetChange, DatasetWatch};
use crate::level::CopyLevel;

/// The copies of a run.
#[derive(Debug)]
pub struct CopyStore {
    pub board: Arc<Board>,
    /// The dataset, without symbolic links.
    pub source: PathBuf,
    /// The device of the dataset.
    pub source_dev: u64,
    pub levels: Vec<CopyLevel>,
    pub tally: CopyTally,
    /// None if files do not change, or the kernel cannot tell.
    watch: Option<DatasetWatch>,
    /// The run is over: no copy is made or removed any more.
    over: Mutex<bool>,
    stopping: AtomicBool,
    records: Mutex<PublishedRecords>,
    claimed: Mutex<HashSet<PathKey>>,
    /// A claim was released, or the run is over.
    released: Condvar,
    /// Transient copies, which are on the first level, and their bytes.
    transient: Mutex<HashMap<Box<[u8]>, u64>>,
}

/// The counters of the report.
#[derive(Debug, Default)]
pub struct CopyTally {
    pub copied_files: AtomicU64,
    pub copied_bytes: AtomicU64,
    pub busy_nanos: AtomicU64,
    pub refused: AtomicU64,
    pub failed: AtomicU64,
    pub first_failure: Mutex<Option<String>>,
}

impl CopyTally {
    /// Counts a failure and keeps the first message.
    pub fn fail(&self, sentence: String) {
        self.failed.fetch_add(1, Relaxed);
        lock(&self.first_failure).get_or_insert(sentence);
    }
}

/// The launcher's view of the records on the board.
#[derive(Debug)]
struct PublishedRecords {
    publisher: BoardPublisher,
    /// By record number; None after the copy was removed.
    names: Vec<Option<Box<[u8]>>>,
    /// The board's count of dropped copies at the last sweep.
    swept: u64,
}

/// The exclusive right to change a name's copy, until it is dropped.
#[derive(Debug)]
pub struct NameClaim<'a> {
    store: &'a CopyStore,
    key: PathKey,
}

impl Drop for NameClaim<'_> {
    fn drop(&mut self) {
        lock(&self.store.claimed).remove(&self.key);
        self.store.released.notify_all();
    }
}

impl CopyStore {
    pub fn new(
        board: Arc<Board>,
        source: PathBuf,
        source_dev: u64,
        levels: Vec<CopyLevel>,
    ) -> Self {
        let publisher = BoardPublisher::new(Arc::clone(&board));
        let may_change = board.header().revalidate() != Revalidate::Never;
        let watch = may_change.then(|| DatasetWatch::new(&source)).flatten();
        let records = PublishedRecords { publisher, names: vec![], swept: 0 };
        Self {
            board,
            source,
            source_dev,
            levels,
            tally: CopyTally::default(),
            watch,
            over: Mutex::new(false),
            stopping: AtomicBool::new(false),
            records: Mutex::new(records),
            claimed: Mutex::new(HashSet::new()),
            released: Condvar::new(),
            transient: Mutex::new(HashMap::new()),
        }
    }

    /// Claims a name; None if another thread has claimed it.
    pub fn claim(&self, name: &[u8]) -> Option<NameClaim<'_>> {
        let key = self.board.key(name);
        // `then`, not `then_some`: dropping a claim releases the name.
        lock(&self.claimed).insert(key).then(|| NameClaim { store: self, key })
    }

    /// Claims a name, and waits for another thread's claim; None if the run is over. To avoid a
    /// deadlock, the holder of such a claim must not wait for another one.
    pub fn claim_when_free(&self, name: &[u8]) -> Option<NameClaim<'_>> {
        let key = self.board.key(name);
        let mut claimed = lock(&self.claimed);
        while !claimed.insert(key) {
            if self.is_stopping() {
                return None;
            }
            let waited = self.released.wait(claimed);
            claimed = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        Some(NameClaim { store: self, key })
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Makes or removes copies unless the run is over. The run cannot end while `change` runs.
    pub fn unless_over<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        let over = lock(&self.over);
        (!*over).then(change)
    }

    /// Ends the run. After this only [`CopyLevel::close`] changes a level.
    pub fn end(&self) {
        self.stopping.store(true, SeqCst);
        *lock(&self.over) = true;
        drop(lock(&self.claimed));
        self.released.notify_all();
        if let Some(watch) = &self.watch {
            watch.wake();
        }
    }

    /// Watches the directory of a file, before it is copied or an earlier copy of it published.
    pub fn watch(&self, name: &[u8]) {
        if let Some(watch) = &self.watch {
            watch.file(&self.source, name);
        }
    }

    /// Drops the copies of files that any process of this machine changes, until the run is over.
    pub fn follow_changes(&self) {
        let Some(watch) = &self.watch else { return };
        let on_change = |change: DatasetChange| {
            self.board.count_change();
            match change {
                // Under all of its names.
                DatasetChange::File(name) => {
                    if let Some(entry) = self.find(&name) {
                        let source = entry.stat().id();
                        entry.drop_copy();
                        self.board.drop_source(source);
                        self.sweep();
                    }
                }
                DatasetChange::Any => self.board.require_revalidation(),
            }
        };
        watch.follow(&self.source, on_change, || self.is_stopping());
    }

    /// Finds the live record of a name.
    pub fn find(&self, name: &[u8]) -> Option<RecordRef<'_>> {
        self.board.find(self.board.key(name))
    }

    /// Returns whether a name has a record.
    pub fn has(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// Publishes a record. Returns false if the board is full.
    pub fn publish(&self, name: &[u8], new: &NewRecord) -> bool {
        let mut records = lock(&self.records);
        if let RecordKind::Copy { copy, .. } = new.kind {
            self.retire_reused(copy, &new.stat);
        }
        let Ok(number) = records.publisher.publish(new).map(|entry| entry.number) else {
            return false;
        };
        debug_assert_eq!(number as usize, records.names.len());
        records.names.push(Some(name.into()));
        if let RecordKind::Copy { level, .. } = new.kind {
            self.levels[level].contents.add(new.stat.size);
        }
        true
    }

    /// Retires records whose copy another launcher has removed, if its inode is now that of a new
    /// copy.
    fn retire_reused(&self, copy: FileId, stat: &FileStat) {
        // Records of links share a copy.
        while let Some(other) = self.board.find_copy(copy)
            && other.stat().id() != stat.id()
        {
            other.retire();
        }
    }

    /// Removes dropped copies, except those whose name another thread has claimed.
    pub fn sweep(&self) {
        for (number, name) in self.dropped() {
            let Some(_claim) = self.claim(&name) else {
                // Retried at the next sweep.
                lock(&self.records).swept = 0;
                continue;
            };
            let entry = self.board.entry(number);
            if let RecordKind::Copy { level, copy } = entry.kind() {
                let level = &self.levels[level];
                level.contents.remove(entry.stat().size);
                let removed = self.unless_over(|| {
                    if self.is_reused(&name, entry.kind()) {
                        return Ok(false);
                    }
                    // `remove` releases the bytes, so `release_transient` must not.
                    self.remove_transient(&name);
                    remove(level, &name, Some(copy))
                });
                if let Some(Err(error)) = removed {
                    tracing::warn!("cannot remove a dropped copy: {error}");
                }
            }
            if let Some(name) = lock(&self.records).names.get_mut(number as usize) {
                *name = None;
            }
        }
    }

    /// Returns whether a newer record of this name has the same copy, whose inode was reused.
    fn is_reused(&self, name: &[u8], old: RecordKind) -> bool {
        self.find(name).is_some_and(|entry| entry.kind() == old)
    }

    fn dropped(&self) -> Vec<(u32, Box<[u8]>)> {
        let mut records = lock(&self.records);
        let dropped = self.board.header().dropped.load(SeqCst);
        if dropped == records.swept {
            return vec![];
        }
        let found: Vec<_> = (0..)
            .zip(&records.names)
            .filter(|&(number, _)| !self.board.entry(number).is_live())
            .filter_map(|(number, name)| Some((number, name.clone()?)))
            .collect();
        records.swept = dropped;
        found
    }

    /// Marks a copy as transient.
    pub fn add_transient(&self, name: &[u8], bytes: u64) {
        lock(&self.transient).insert(name.into(), bytes);
    }

    pub fn is_transient(&self, name: &[u8]) -> bool {
        lock(&self.transient).contains_key(name)
    }

    /// Unmarks a transient copy. Returns whether it was marked.
    fn remove_transient(&self, name: &[u8]) -> bool {
        let Some(bytes) = lock(&self.transient).remove(name) else { return false };
        self.levels[0].remove_transient(bytes);
        true
    }

    /// Unlinks a transient copy and returns the open file, which shows whether a program still
    /// reads it. Its bytes count until [`CopyStore::release_transient`].
    pub fn evict(&self, name: &[u8]) -> Option<OwnedFd> {
        let _claim = self.claim_soon(name)?;
        let entry = self.find(name)?;
        let RecordKind::Copy { level, .. } = entry.kind() else { return None };
        let path = path_of(&self.levels[level].files, name);
        let copy = File::open(&path).ok()?;
        self.unless_over(|| {
            if !entry.retire() {
                // Dropped by the program: `sweep` removes it.
                return None;
            }
            self.levels[level].contents.remove(entry.stat().size);
            if let Some(name) = lock(&self.records).names.get_mut(entry.number as usize) {
                *name = None;
            }
            std::fs::remove_file(&path).ok()
        })??;
        Some(copy.into())
    }

    /// Claims a name within a second. A claim on a file that has a copy is short.
    fn claim_soon(&self, name: &[u8]) -> Option<NameClaim<'_>> {
        for _ in 0..1000 {
            if let Some(claim) = self.claim(name) {
                return Some(claim);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        None
    }

    /// Releases the bytes of an evicted copy that no process has open any more. Does nothing if the
    /// copy could not be evicted.
    pub fn release_transient(&self, name: &[u8], bytes: u64) {
        let entry = self.find(name);
        if entry.is_some_and(|entry| matches!(entry.kind(), RecordKind::Copy { .. })) {
            return;
        }
        self.unless_over(|| {
            if self.remove_transient(name) {
                let _ = self.levels[0].used.release(bytes);
            }
        });
    }

    /// Removes transient copies when the run ends.
    pub fn remove_transients(&self) {
        let transient = std::mem::take(&mut *lock(&self.transient));
        for (name, bytes) in transient {
            let removed = remove(&self.levels[0], &name, None);
            if matches!(removed, Ok(false)) {
                // Evicted before, but perhaps still open.
                let _ = self.levels[0].used.release(bytes);
            }
        }
    }

    /// Returns how many records were published.
    pub fn record_count(&self) -> u32 {
        lock(&self.records).names.len() as u32
    }

    /// Returns the name of a live record's file.
    pub fn name(&self, record: u32) -> Option<Box<[u8]>> {
        let live = self.board.entry(record).is_live();
        lock(&self.records).names.get(record as usize)?.clone().filter(|_| live)
    }

    /// Returns levels and names of up to `most` copies.
    pub fn some_copies(&self, most: usize) -> Vec<(usize, Box<[u8]>)> {
        let records = lock(&self.records);
        let numbers = 0..records.names.len() as u32;
        let live =
            numbers.map(|number| self.board.entry(number)).filter(belady_board::RecordRef::is_live);
        live.filter_map(|entry| match entry.kind() {
            RecordKind::Copy { level, .. } => {
                Some((level, records.names[entry.number as usize].clone()?))
            }
            RecordKind::Refused => None,
        })
        .take(most)
        .collect()
    }
}

/// Returns the path of a name below a directory.
pub fn path_of(directory: &Path, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    directory.join(std::ffi::OsStr::from_bytes(name))
}

/// Returns whether a name can only lead below its directory. Names come from the program.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && !name.contains(&0)
        && name.split(|&byte| byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

/// Removes a copy, if it is the given one, and releases its bytes. Returns whether it removed one.
///
/// # Errors
/// If the copy cannot be removed.
pub fn remove(level: &CopyLevel, name: &[u8], only: Option<FileId>) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let path = path_of(&level.files, name);
    let is_same = |metadata: &std::fs::Metadata| {
        only.is_none_or(|only| only == FileId { dev: metadata.dev(), ino: metadata.ino() })
    };
    if !path.symlink_metadata().is_ok_and(|metadata| is_same(&metadata)) {
        return Ok(false);
    }
    // Rename it first and check again: another launcher may replace it at any time, and the
    // released bytes must be those of the removed file.
    let taken = level.partial();
    match std::fs::rename(&path, &taken) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    }
    let metadata = taken.symlink_metadata()?;
    if !is_same(&metadata) && std::fs::hard_link(&taken, &path).is_ok() {
        std::fs::remove_file(&taken)?;
        return Ok(false);
    }
    std::fs::remove_file(&taken)?;
    // The last name frees the bytes.
    if metadata.nlink() == 1 {
        level.used.release(metadata.size())?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_may_lead_elsewhere_is_rejected() {
        for name in [&b""[..], b"/etc/passwd", b"../a", b"a/../b", b"a//b", b"a/", b"./a", b"a\0b"]
        {
            assert!(!is_name(name), "{}", name.escape_ascii());
        }
        for name in [&b"a"[..], b"a/b.c", b"...", b"a/..b", b" "] {
            assert!(is_name(name), "{}", name.escape_ascii());
        }
    }
}
