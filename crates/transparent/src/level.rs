//! A level: a directory with copies, its quota, and what is being written there.
//!
//! ```text
//! LEVEL/belady-run.lock              held for a moment while one comes, goes or counts
//! LEVEL/belady-run.used              how many bytes there are, see used.rs
//! LEVEL/<dataset>/dataset.json       which dataset it is
//! LEVEL/<dataset>/files/...          copies, under the names of their sources
//! LEVEL/<dataset>/partial/<launcher> what a launcher is writing; its lock is held as long as it lives
//! ```
//!
//! A copy is written below `partial` and appears under its name by a rename. What a launcher leaves
//! there that was killed is removed by the next one.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::used::Used;

pub const LOCK: &str = "belady-run.lock";
pub const USED: &str = "belady-run.used";
pub const DATASET: &str = "dataset.json";
pub const FILES: &str = "files";
pub const PARTIAL: &str = "partial";

/// For the flags of an open: in a directory for everybody, a link may lead to any file of ours.
pub const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

#[derive(Debug)]
pub struct Level {
    /// `ram`, or the directory.
    pub name: String,
    pub root: PathBuf,
    /// Where this dataset's copies lie.
    pub files: PathBuf,
    pub dev: u64,
    pub used: Used,
    /// Whether copies can be told from one another in a later run.
    pub keeps: bool,
    /// Files and bytes of this dataset.
    pub held: Held,
    /// Bytes that are set aside for files that only pass through, and what these take now.
    window: AtomicU64,
    passing: AtomicU64,
    partial: PathBuf,
    _alive: File,
    next: AtomicU64,
    /// It is removed at the end.
    pub is_private: bool,
}

/// How long a copy stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// As long as its source does not change.
    Kept,
    /// Until the program has read it: see `order`.
    Passing,
}

#[derive(Debug, Default)]
pub struct Held {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Held {
    pub fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub fn take(&self, bytes: u64) {
        self.files.fetch_sub(1, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    pub fn get(&self) -> (u64, u64) {
        (self.files.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// How a dataset's directory in a level is called: readable, and the same for the same dataset only.
pub fn dataset_name(real: &Path) -> String {
    let hash = dataset_fingerprint(real);
    let name =
        real.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let clean: String = name
        .chars()
        .map(|c| if c.is_alphanumeric() || ".-_".contains(c) { c } else { '_' })
        .collect();
    let short: String = clean.chars().take(60).collect();
    format!("{}-{hash:016x}", if short.is_empty() { "dataset" } else { &short })
}

pub fn dataset_fingerprint(real: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt as _;
    xxhash_rust::xxh3::xxh3_64(real.as_os_str().as_bytes())
}

pub fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// In a directory for everybody, such as /tmp, another user may have been there first.
fn check_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let facts = directory.symlink_metadata()?;
    let own = facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw();
    if own && facts.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} belongs to somebody else, or others may write to it; remove it or give another directory",
        directory.display()
    )))
}

impl Level {
    /// # Errors
    /// If something cannot be made or locked there.
    pub fn open(
        root: &Path,
        name: String,
        quota: u64,
        real: &Path,
        is_private: bool,
    ) -> io::Result<Self> {
        // First: what is made here would be cleared away while nobody is seen to use it.
        let _gate = gate(root)?;
        let home = root.join(dataset_name(real));
        let files = home.join(FILES);
        for directory in [&home, &files, &home.join(PARTIAL)] {
            private_directory(directory)?;
            check_private(directory)?;
        }
        write_dataset(&home, real)?;
        let keeps = crate::meta::is_supported(&home)?;
        let (partial, alive) = own_partial(&home.join(PARTIAL))?;
        Ok(Self {
            name,
            dev: rustix::fs::stat(&files)?.st_dev,
            files,
            used: Used::open(&root.join(USED), quota)?,
            keeps,
            held: Held::default(),
            window: AtomicU64::new(0),
            passing: AtomicU64::new(0),
            partial,
            _alive: alive,
            next: AtomicU64::new(0),
            is_private,
            root: root.to_owned(),
        })
    }

    /// Removes what launchers that are gone have left half written, and counts what there is if no
    /// other launcher is at work here. While it does, none can come.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn reclaim(&self) -> io::Result<()> {
        let _gate = gate(&self.root)?;
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
                    freed += bytes_below(&partial)?;
                    std::fs::remove_dir_all(&partial)?;
                }
            }
        }
        if others > 0 {
            return self.used.release(freed);
        }
        let mut total = 0;
        for home in homes(&self.root)? {
            total += bytes_below(&home.join(FILES))?;
        }
        self.used.set(self.trim(total)?)
    }

    /// Removes copies if there are more than the quota allows, which may have been larger in an earlier run: of
    /// datasets that were not used for longest first. What is left.
    fn trim(&self, mut total: u64) -> io::Result<u64> {
        let mut homes = if total > self.used.quota() { homes(&self.root)? } else { vec![] };
        homes.sort_by_key(|home| {
            home.join(PARTIAL).metadata().and_then(|facts| facts.modified()).ok()
        });
        for home in homes {
            walk(&home.join(FILES), &mut |path, facts| {
                if total > self.used.quota() {
                    std::fs::remove_file(path)?;
                    // Bytes go with the last name.
                    total -= if facts.nlink() == 1 { facts.size() } else { 0 };
                }
                Ok(())
            })?;
        }
        Ok(total)
    }

    /// Sets part of the quota aside for files that only pass through.
    pub fn set_window(&self, bytes: u64) {
        self.window.store(bytes, Relaxed);
    }

    /// Whether there was room for so many bytes.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn reserve(&self, bytes: u64, stay: Stay) -> io::Result<bool> {
        match stay {
            Stay::Kept => {
                let spared = self.window.load(Relaxed).saturating_sub(self.passing.load(Relaxed));
                self.used.reserve(bytes, spared)
            }
            Stay::Passing => {
                let reserved = self.used.reserve(bytes, 0)?;
                self.passing.fetch_add(if reserved { bytes } else { 0 }, Relaxed);
                Ok(reserved)
            }
        }
    }

    /// So many bytes fewer pass through; whoever removed them gives them back.
    pub fn passed(&self, bytes: u64) {
        self.passing.fetch_sub(bytes, Relaxed);
    }

    /// # Errors
    /// If it cannot be written down.
    pub fn release(&self, bytes: u64, stay: Stay) -> io::Result<()> {
        if stay == Stay::Passing {
            self.passed(bytes);
        }
        self.used.release(bytes)
    }

    /// A new name for something that is being written.
    pub fn partial(&self) -> PathBuf {
        self.partial.join(self.next.fetch_add(1, Relaxed).to_string())
    }

    /// At the end: what is still being written is removed.
    pub fn close(&self) {
        let Ok(_gate) = gate(&self.root) else { return };
        let left = bytes_below(&self.partial).unwrap_or(0);
        if std::fs::remove_dir_all(&self.partial).is_ok() {
            let _ = self.used.release(left);
        }
        if self.is_private {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

/// One at a time, among all launchers.
pub fn gate(root: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK);
    let file = options.open(root.join(LOCK))?;
    file.lock()?;
    Ok(file)
}

fn own_partial(parent: &Path) -> io::Result<(PathBuf, File)> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let own = parent.join(format!("{}-{:016x}", std::process::id(), u64::from_ne_bytes(random)));
    private_directory(&own)?;
    let alive = File::create(own.join("lock"))?;
    alive.lock()?;
    Ok((own, alive))
}

/// Whether the launcher that this directory belongs to lives.
pub fn is_alive(partial: &Path) -> bool {
    File::open(partial.join("lock")).is_ok_and(|file| file.try_lock().is_err())
}

/// Directories of datasets in a level.
pub fn homes(root: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(entries(root)?.into_iter().filter(|home| home.join(DATASET).is_file()).collect())
}

/// What a directory holds; nothing if it is not there.
pub fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        Err(error) => Err(error),
    }
}

fn bytes_below(directory: &Path) -> io::Result<u64> {
    let mut total = 0;
    let mut linked = HashSet::new();
    walk(directory, &mut |_, facts| {
        // A copy with two names takes its bytes once.
        if facts.nlink() == 1 || linked.insert(facts.ino()) {
            total += facts.size();
        }
        Ok(())
    })?;
    Ok(total)
}

/// All files below a directory.
pub fn walk(
    directory: &Path,
    file: &mut dyn FnMut(&Path, &Metadata) -> io::Result<()>,
) -> io::Result<()> {
    for path in entries(directory)? {
        match path.symlink_metadata() {
            Ok(facts) if facts.is_dir() => walk(&path, file)?,
            Ok(facts) => file(&path, &facts)?,
            // Another launcher has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
