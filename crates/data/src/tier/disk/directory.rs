//! The files of a cache directory.
//!
//! ```text
//!   DIR/belady-cache-v1/lock                            locked while caches are opened and removed
//!   DIR/belady-cache-v1/0123456789abcdef/lock           writer lock; holds the writer's quota
//!                                       /index          locked shared by all processes that use it
//!                                       /segment-0000 ...
//! ```
//!
//! Only directories of this user are used, only files with these names are removed, and symbolic
//! links below DIR are never followed.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use belady_base::fork::FileLock;

use super::index::PAGE;
use super::segments;
use crate::source::CACHE_FOLDER;

const LOCK: &str = "lock";
const INDEX: &str = "index";
const UNFINISHED_INDEX: &str = "index.new";

/// How long to wait for another process that opens or clears a cache in the same directory:
/// removing a large cache takes seconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum DirectoryError {
    /// It belongs to another user.
    #[error(
        "{} belongs to user {owner}, not to this user ({user}): choose a directory of your own",
        path.display()
    )]
    Foreign { path: PathBuf, owner: u32, user: u32 },
    /// It is not a directory.
    #[error("{} is not a directory: choose another path for the cache", path.display())]
    NotADirectory { path: PathBuf },
    /// The operating system reported an error.
    #[error("{} cannot be used as a cache directory: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Returns the directory of all caches in DIR, and creates it if it does not exist.
pub(super) fn prepare(directory: &Path) -> Result<PathBuf, DirectoryError> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |error| DirectoryError::Io { path, error }
    };
    make(directory).map_err(fail(directory))?;
    // DIR may be a link, and may belong to root.
    let metadata = fs::metadata(directory).map_err(fail(directory))?;
    check_owner(directory, &metadata, &[user(), 0])?;
    let root = directory.join(CACHE_FOLDER);
    make(&root).map_err(fail(&root))?;
    check_ours(&root)?;
    Ok(root)
}

/// Returns the directory of all caches in DIR, if it exists and belongs to this user.
pub(super) fn find(directory: &Path) -> Result<PathBuf, DirectoryError> {
    let root = directory.join(CACHE_FOLDER);
    check_ours(&root)?;
    Ok(root)
}

fn check_ours(path: &Path) -> Result<(), DirectoryError> {
    let metadata = fs::symlink_metadata(path)
        .map_err(|error| DirectoryError::Io { path: path.to_owned(), error })?;
    check_owner(path, &metadata, &[user()])
}

fn check_owner(path: &Path, found: &Metadata, owners: &[u32]) -> Result<(), DirectoryError> {
    let path = path.to_owned();
    if !found.is_dir() {
        return Err(DirectoryError::NotADirectory { path });
    }
    if owners.contains(&found.uid()) {
        Ok(())
    } else {
        Err(DirectoryError::Foreign { path, owner: found.uid(), user: owners[0] })
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn make(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// A lock on the directory, held while a cache is opened or removed, so that one process at a time
/// looks at quotas and writer locks.
#[derive(Debug)]
pub(super) struct DirectoryLock(#[expect(dead_code, reason = "held until it is dropped")] FileLock);

impl DirectoryLock {
    pub fn acquire(root: &Path) -> io::Result<Self> {
        Self::acquire_within(root, LOCK_TIMEOUT)
    }

    fn acquire_within(root: &Path, limit: Duration) -> io::Result<Self> {
        let path = root.join(LOCK);
        let step = Duration::from_millis(20);
        let mut waited = Duration::ZERO;
        loop {
            match FileLock::try_exclusive(|| open_lock(&path))? {
                Some(lock) => return Ok(Self(lock)),
                None if waited < limit => {
                    std::thread::sleep(step);
                    waited += step;
                }
                None => return Err(io::ErrorKind::WouldBlock.into()),
            }
        }
    }
}

/// The cache of one dataset.
#[derive(Clone, Debug)]
pub(super) struct CacheDirectory {
    pub path: PathBuf,
    pub fingerprint: u64,
}

/// Which processes have a cache open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheUse {
    Idle,
    Readers,
    Writer,
}

impl CacheDirectory {
    pub fn new(root: &Path, fingerprint: u64) -> Self {
        Self { path: root.join(format!("{fingerprint:016x}")), fingerprint }
    }

    /// Returns all caches below the root.
    pub fn all(root: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // The type of the entry itself: a link to a directory does not count.
            if entry.file_type()?.is_dir()
                && name.len() == 16
                && let Ok(fingerprint) = u64::from_str_radix(&name, 16)
            {
                found.push(Self { path: entry.path(), fingerprint });
            }
        }
        found.sort_by_key(|cache| cache.fingerprint);
        Ok(found)
    }

    pub fn make(&self) -> Result<(), DirectoryError> {
        make(&self.path).map_err(|error| DirectoryError::Io { path: self.path.clone(), error })?;
        check_ours(&self.path)
    }

    pub fn index(&self) -> PathBuf {
        self.path.join(INDEX)
    }

    /// Takes the writer lock; `None` if another job or process has it.
    pub fn lock(&self) -> io::Result<Option<FileLock>> {
        let path = self.path.join(LOCK);
        FileLock::exclusive(|| open_lock(&path))
    }

    /// Returns the use of a cache. One that cannot be examined counts as in use, since idle caches
    /// may be removed.
    pub fn usage(&self) -> CacheUse {
        if is_locked(&self.path.join(LOCK)) {
            CacheUse::Writer
        } else if is_locked(&self.index()) {
            CacheUse::Readers
        } else {
            CacheUse::Idle
        }
    }

    /// Sets the time of last use to now.
    pub fn touch(&self) {
        // Only the order in which idle caches are removed depends on it.
        let _ =
            File::open(self.path.join(LOCK)).and_then(|file| file.set_modified(SystemTime::now()));
    }

    pub fn last_used(&self) -> SystemTime {
        fs::symlink_metadata(self.path.join(LOCK))
            .and_then(|metadata| metadata.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Returns the bytes of the cache's files, in whole pages.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for path in self.files()? {
            match fs::symlink_metadata(path) {
                Ok(metadata) => bytes += metadata.len().next_multiple_of(PAGE),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Returns the bytes that its writer may use.
    pub fn granted(&self) -> u64 {
        let text = fs::read_to_string(self.path.join(LOCK)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Records the bytes that the writer may use.
    pub fn grant(lock: &File, bytes: u64) -> io::Result<()> {
        lock.set_len(0)?;
        lock.write_all_at(format!("{bytes}\n").as_bytes(), 0)
    }

    /// Removes the data, the index first: without it the rest has no meaning.
    pub fn empty(&self) -> io::Result<()> {
        remove_if_present(&self.index())?;
        for path in self.files()? {
            if path.file_name().is_some_and(|name| name != LOCK) {
                remove_if_present(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the cache. A directory with other files stays.
    pub fn remove(&self) -> io::Result<()> {
        self.empty()?;
        remove_if_present(&self.path.join(LOCK))?;
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
            _ => Ok(()),
        }
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let ours = |name: &str| {
            [LOCK, INDEX, UNFINISHED_INDEX].contains(&name) || segments::is_file_name(name)
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if ours(&entry.file_name().to_string_lossy()) {
                files.push(entry.path());
            }
        }
        Ok(files)
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

fn is_locked(path: &Path) -> bool {
    let open = || OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    match FileLock::try_exclusive(open) {
        Ok(lock) => lock.is_none(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_another_user_is_refused_and_both_users_are_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let metadata = fs::metadata(directory.path()).expect("metadata");
        let me = metadata.uid();
        assert!(check_owner(directory.path(), &metadata, &[me, 0]).is_ok());
        let error = check_owner(directory.path(), &metadata, &[me + 1]).expect_err("foreign");
        let sentence = error.to_string();
        assert!(sentence.contains(&format!("belongs to user {me}")), "{sentence}");
        assert!(sentence.contains(&format!("({})", me + 1)), "{sentence}");
    }

    #[test]
    fn caches_are_directories_named_by_a_fingerprint() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = prepare(directory.path()).expect("ours");
        for fingerprint in [0xfeed, 3] {
            CacheDirectory::new(&root, fingerprint).make().expect("made");
        }
        for other in ["feed", "00000000000feedf0", "a name of sixteen"] {
            fs::create_dir(root.join(other)).expect("made");
        }
        fs::write(root.join("00000000000000ff"), "a file").expect("written");
        let found: Vec<u64> =
            CacheDirectory::all(&root).expect("listed").iter().map(|one| one.fingerprint).collect();
        assert_eq!(found, [3, 0xfeed]);
    }

    /// As when another process removes a cache.
    #[test]
    fn files_removed_while_they_are_counted_count_as_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = prepare(directory.path()).expect("ours");
        let cache = CacheDirectory::new(&root, 7);
        cache.make().expect("made");
        fs::write(cache.index(), [0; 5000]).expect("written");
        fs::write(cache.path.join("notes.txt"), [0; 5000]).expect("written");
        assert_eq!(cache.bytes().expect("counted"), 2 * PAGE, "in whole pages, ours alone");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let path = |number| cache.path.join(segments::file_name(number));
                    (0..20).for_each(|number| drop(fs::write(path(number), [0; 1])));
                    (0..20).for_each(|number| drop(fs::remove_file(path(number))));
                }
            });
            for _ in 0..1_000 {
                let bytes = cache.bytes().map_err(|error| error.to_string());
                if !bytes.as_ref().is_ok_and(|bytes| (2..=22).contains(&(bytes / PAGE))) {
                    done.store(true, std::sync::atomic::Ordering::Relaxed);
                    panic!("{bytes:?}");
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_cache_whose_lock_cannot_be_examined_counts_as_in_use() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = prepare(directory.path()).expect("ours");
        let cache = CacheDirectory::new(&root, 7);
        cache.make().expect("made");
        assert_eq!(cache.usage(), CacheUse::Idle, "neither lock nor index");
        let lock = cache.lock().expect("locked").expect("free");
        assert_eq!(
            (cache.usage(), cache.lock().expect("asked").is_none()),
            (CacheUse::Writer, true)
        );
        drop(lock);
        assert_eq!(cache.usage(), CacheUse::Idle);
        std::os::unix::fs::symlink("elsewhere", cache.index()).expect("linked");
        assert_eq!(cache.usage(), CacheUse::Readers);
        fs::remove_file(cache.path.join(LOCK)).expect("removed");
        std::os::unix::fs::symlink("elsewhere", cache.path.join(LOCK)).expect("linked");
        assert_eq!(cache.usage(), CacheUse::Writer);
    }

    #[test]
    fn the_directory_lock_is_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = prepare(directory.path()).expect("ours");
        let held = DirectoryLock::acquire(&root).expect("acquired");
        let error = DirectoryLock::acquire_within(&root, Duration::ZERO).expect_err("held");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| DirectoryLock::acquire(&root).is_ok());
            drop(held);
            assert!(other.join().expect("ended"));
        });
    }

    #[test]
    fn a_failed_removal_is_an_error_and_a_missing_file_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = prepare(directory.path()).expect("ours");
        let cache = CacheDirectory::new(&root, 7);
        cache.make().expect("made");
        assert!(cache.empty().is_ok(), "it is empty");
        fs::create_dir(cache.index()).expect("made");
        assert!(cache.empty().is_err() && cache.remove().is_err());
        fs::remove_dir(cache.index()).expect("removed");
        let lock = cache.lock().expect("locked").expect("free");
        CacheDirectory::grant(&lock, 12_345).expect("granted");
        CacheDirectory::grant(&lock, 678).expect("granted");
        assert_eq!(cache.granted(), 678);
        for name in [INDEX, UNFINISHED_INDEX, "segment-0000", "segment-12345"] {
            fs::write(cache.path.join(name), "data").expect("written");
        }
        cache.empty().expect("emptied");
        let left = fs::read_dir(&cache.path).expect("listed").count();
        assert_eq!((left, cache.granted()), (1, 678), "its lock stays");
        cache.remove().expect("removed");
        assert!(!cache.path.exists());
        assert!(cache.remove().is_err(), "it is gone");
    }

    #[test]
    fn links_are_not_followed_and_other_files_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = prepare(directory.path()).expect("ours");
        let elsewhere = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink(elsewhere.path(), root.join("00000000000000aa")).expect("link");
        assert!(CacheDirectory::all(&root).expect("listed").is_empty());

        let cache = CacheDirectory::new(&root, 7);
        cache.make().expect("made");
        let target = elsewhere.path().join("kept");
        fs::write(&target, "kept").expect("written");
        std::os::unix::fs::symlink(&target, cache.path.join("segment-0000")).expect("link");
        fs::write(cache.path.join("notes.txt"), "mine").expect("written");
        cache.remove().expect("removed");
        assert!(target.exists() && cache.path.join("notes.txt").exists());
        assert!(fs::symlink_metadata(cache.path.join("segment-0000")).is_err());
    }
}
