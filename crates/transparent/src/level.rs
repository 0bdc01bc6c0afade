//! A level: a directory with copies, its quota, and copies that are being written.
//!
//! ```text
//! LEVEL/belady-run.lock              locked while a launcher starts, ends or counts
//! LEVEL/belady-run.used              the number of bytes in use, see quota.rs
//! LEVEL/<dataset>/dataset.json       the dataset's path
//! LEVEL/<dataset>/files/...          copies, under the names of their sources
//! LEVEL/<dataset>/partial/<launcher> copies that a launcher is writing; it holds a lock there while
//!                                    it runs
//! ```
//!
//! A copy is written below `partial` and renamed to its name when it is complete. The next launcher
//! removes the partial copies of a killed one.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::files::{NO_LINK, count_below, entries, is_ours, private_directory, random, walk};
use crate::metadata;
use crate::quota::QuotaUsage;

pub const LOCK: &str = "belady-run.lock";
pub const USED: &str = "belady-run.used";
pub const DATASET: &str = "dataset.json";
pub const FILES: &str = "files";
pub const PARTIAL: &str = "partial";

/// A level that this launcher uses.
#[derive(Debug)]
pub struct CopyLevel {
    /// `ram`, or the directory.
    pub name: String,
    pub root: PathBuf,
    /// The directory of this dataset's copies.
    pub files: PathBuf,
    pub dev: u64,
    pub used: QuotaUsage,
    /// Whether the file system stores copy metadata, so that later runs can use the copies.
    pub keeps: bool,
    /// Copies of this dataset.
    pub contents: LevelContents,
    /// Bytes reserved for transient copies, and bytes of the transient copies.
    window: AtomicU64,
    transient: AtomicU64,
    partial: PathBuf,
    _alive: File,
    next: AtomicU64,
    /// The level is removed when the run ends.
    pub is_private: bool,
}

/// How long a copy is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyLifetime {
    /// Until its source changes.
    Kept,
    /// Until the program has read it, see `order`.
    Transient,
}

/// The number of copies in a level and their bytes.
#[derive(Debug, Default)]
pub struct LevelContents {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl LevelContents {
    pub fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub fn remove(&self, bytes: u64) {
        self.files.fetch_sub(1, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    pub fn get(&self) -> (u64, u64) {
        (self.files.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// Returns the name of a dataset's directory in a level: readable and unique.
pub fn dataset_name(real: &Path) -> String {
    let hash = dataset_fingerprint(real);
    let name =
        real.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let plain: String = name
        .chars()
        .map(|c| if c.is_alphanumeric() || ".-_".contains(c) { c } else { '_' })
        .collect();
    let short: String = plain.chars().take(60).collect();
    format!("{}-{hash:016x}", if short.is_empty() { "dataset" } else { &short })
}

pub fn dataset_fingerprint(real: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt as _;
    xxhash_rust::xxh3::xxh3_64(real.as_os_str().as_bytes())
}

/// Fails if another user can change the directory, which may be below /tmp.
fn check_private(directory: &Path) -> io::Result<()> {
    let metadata = directory.symlink_metadata()?;
    if metadata.is_dir() && is_ours(&metadata) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "other users own {} or may write to it; remove it or choose another directory",
        directory.display()
    )))
}

impl CopyLevel {
    /// Creates this launcher's part of a level.
    ///
    /// # Errors
    /// If a file cannot be created or locked there.
    pub fn open(
        root: &Path,
        name: String,
        quota: u64,
        real: &Path,
        is_private: bool,
    ) -> io::Result<Self> {
        // Under the lock: `clear` would remove directories that no launcher has locked yet.
        let _lock = lock(root)?;
        let home = root.join(dataset_name(real));
        let files = home.join(FILES);
        for directory in [&home, &files, &home.join(PARTIAL)] {
            private_directory(directory)?;
            check_private(directory)?;
        }
        write_dataset(&home, real)?;
        let keeps = metadata::is_supported(&home)?;
        let (partial, alive) = own_partial(&home.join(PARTIAL))?;
        Ok(Self {
            name,
            dev: rustix::fs::stat(&files)?.st_dev,
            files,
            used: QuotaUsage::open(&root.join(USED), quota)?,
            keeps,
            contents: LevelContents::default(),
            window: AtomicU64::new(0),
            transient: AtomicU64::new(0),
            partial,
            _alive: alive,
            next: AtomicU64::new(0),
            is_private,
            root: root.to_owned(),
        })
    }

    /// Removes partial copies of launchers that have exited, and counts the used bytes again if no
    /// other launcher uses the level. No launcher can start meanwhile.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn reclaim(&self) -> io::Result<()> {
        let _lock = lock(&self.root)?;
        let mut others = 0;
        let mut freed = 0;
        for home in homes(&self.root)? {
            for partial in entries(&home.join(PARTIAL))? {
                if partial == self.partial {
                    continue;
                }
                if is_alive(&partial) {
                    others += 1;
                } else {
                    freed += count_below(&partial)?.1;
                    std::fs::remove_dir_all(&partial)?;
                }
            }
        }
        if others > 0 {
            return self.used.release(freed);
        }
        let mut total = 0;
        for home in homes(&self.root)? {
            total += count_below(&home.join(FILES))?.1;
        }
        self.used.set(self.trim(total)?)
    }

    /// Removes copies beyond the quota, which may have been larger in an earlier run. Starts with
    /// the least recently used dataset. Returns the bytes that are left.
    fn trim(&self, mut total: u64) -> io::Result<u64> {
        let mut homes = if total > self.used.quota() { homes(&self.root)? } else { vec![] };
        homes.sort_by_key(|home| {
            home.join(PARTIAL).metadata().and_then(|metadata| metadata.modified()).ok()
        });
        for home in homes {
            walk(&home.join(FILES), &mut |path, metadata| {
                if total > self.used.quota() {
                    std::fs::remove_file(path)?;
                    // The last name frees the bytes.
                    total -= if metadata.nlink() == 1 { metadata.size() } else { 0 };
                }
                Ok(())
            })?;
        }
        Ok(total)
    }

    /// Reserves part of the quota for transient copies.
    pub fn set_window(&self, bytes: u64) {
        self.window.store(bytes, Relaxed);
    }

    /// Reserves bytes. Returns false if the quota does not allow it.
    ///
    /// # Errors
    /// If the quota file cannot be written.
    pub fn reserve(&self, bytes: u64, lifetime: CopyLifetime) -> io::Result<bool> {
        match lifetime {
            CopyLifetime::Kept => {
                let spared = self.window.load(Relaxed).saturating_sub(self.transient.load(Relaxed));
                self.used.reserve(bytes, spared)
            }
            CopyLifetime::Transient => {
                let reserved = self.used.reserve(bytes, 0)?;
                self.transient.fetch_add(if reserved { bytes } else { 0 }, Relaxed);
                Ok(reserved)
            }
        }
    }

    /// Subtracts from the bytes of transient copies. The caller releases the quota.
    pub fn remove_transient(&self, bytes: u64) {
        self.transient.fetch_sub(bytes, Relaxed);
    }

    /// Releases reserved bytes.
    ///
    /// # Errors
    /// If the quota file cannot be written.
    pub fn release(&self, bytes: u64, lifetime: CopyLifetime) -> io::Result<()> {
        if lifetime == CopyLifetime::Transient {
            self.remove_transient(bytes);
        }
        self.used.release(bytes)
    }

    /// Returns a new path for a partial copy.
    pub fn partial(&self) -> PathBuf {
        self.partial.join(self.next.fetch_add(1, Relaxed).to_string())
    }

    /// Removes partial copies when the run ends.
    pub fn close(&self) {
        let Ok(_lock) = lock(&self.root) else { return };
        let left = count_below(&self.partial).map_or(0, |(_, bytes)| bytes);
        if std::fs::remove_dir_all(&self.partial).is_ok() {
            let _ = self.used.release(left);
        }
        if self.is_private {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

/// Locks a level against other launchers.
pub fn lock(root: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK);
    let file = options.open(root.join(LOCK))?;
    file.lock()?;
    Ok(file)
}

fn own_partial(parent: &Path) -> io::Result<(PathBuf, File)> {
    let own = parent.join(format!("{}-{:016x}", std::process::id(), random()?));
    private_directory(&own)?;
    let alive = File::create(own.join("lock"))?;
    alive.lock()?;
    Ok((own, alive))
}

/// Returns whether the launcher that owns this directory is running.
pub fn is_alive(partial: &Path) -> bool {
    File::open(partial.join("lock")).is_ok_and(|file| file.try_lock().is_err())
}

/// Lists the directories of datasets in a level.
pub fn homes(root: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(entries(root)?.into_iter().filter(|home| home.join(DATASET).is_file()).collect())
}

fn write_dataset(home: &Path, real: &Path) -> io::Result<()> {
    let path = home.join(DATASET);
    if path.is_file() {
        return Ok(());
    }
    let text = serde_json::json!({ "dataset": real.to_string_lossy(), "version": 1 }).to_string();
    let new = home.join(format!(".{DATASET}-{}", std::process::id()));
    std::fs::write(&new, text)?;
    std::fs::rename(&new, &path)
}
