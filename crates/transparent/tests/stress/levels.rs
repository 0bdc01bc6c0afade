//! The levels as the file system shows them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::files;
use crate::processes::Running;
use crate::roles::Settings;

#[derive(Clone, Debug)]
pub struct StressLevel {
    pub path: PathBuf,
    pub quota: u64,
}

/// Sizes of files by inode, because a complete copy changes its name.
type Sizes = HashMap<u64, u64>;

/// Polls the levels until it is stopped, and fails if one exceeds its quota.
pub struct QuotaMonitor {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl QuotaMonitor {
    pub fn start(levels: Vec<StressLevel>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut before = vec![Sizes::new(); levels.len()];
            while !stopped.load(SeqCst) {
                for (level, before) in levels.iter().zip(&mut before) {
                    let now = sizes(&level.path);
                    check_quota(level, before, &now);
                    *before = now;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self { over, thread }
    }

    pub fn stop(self) {
        self.over.store(true, SeqCst);
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Files change while they are listed. But a file in two successive lists existed in between,
/// together with all others in both, and was no smaller than in the first list.
fn check_quota(level: &StressLevel, before: &Sizes, now: &Sizes) {
    let both: u64 =
        before.iter().filter(|(inode, _)| now.contains_key(inode)).map(|(_, size)| size).sum();
    assert!(
        both <= level.quota,
        "{} holds {both} bytes, {} is its quota",
        level.path.display(),
        level.quota
    );
}

fn sizes(level: &Path) -> Sizes {
    let mut sizes = Sizes::new();
    for kind in ["files", "partial"] {
        for path in below(level, kind) {
            if let Ok(found) = fs::symlink_metadata(path) {
                sizes.insert(found.ino(), found.len());
            }
        }
    }
    sizes
}

/// Lists all files in the folders of this name, one per dataset.
fn below(level: &Path, kind: &str) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = list(level).into_iter().map(|at| at.join(kind)).collect();
    let mut found = vec![];
    while let Some(folder) = folders.pop() {
        for path in list(&folder) {
            // Does not follow links: a level contains files and folders only.
            match fs::symlink_metadata(&path) {
                Ok(entry) if entry.is_dir() => folders.push(path),
                Ok(_) => found.push(path),
                Err(_) => {}
            }
        }
    }
    found
}

/// Lists a folder; empty if it does not exist.
fn list(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Lists partial copies, without the launchers' lock files.
pub fn partials(settings: &Settings) -> Vec<PathBuf> {
    let all = settings.levels.iter().flat_map(|level| below(&level.path, "partial"));
    all.filter(|path| !path.ends_with("lock")).collect()
}

pub fn wait_for_a_partial(settings: &Settings, launcher: &mut Running) {
    while partials(settings).is_empty() && launcher.is_running() {
        thread::yield_now();
    }
}

pub fn clear(settings: &Settings) {
    for level in &settings.levels {
        fs::remove_dir_all(&level.path).unwrap();
        fs::create_dir(&level.path).unwrap();
    }
}

/// Checks the levels after all launchers have ended: each copy is right, of an existing file and on
/// one level only, and no partial copy is left. Returns the number of copies.
pub fn check(settings: &Settings) -> u64 {
    let expected: HashMap<_, _> =
        files::expected(&settings.dataset, settings.files).into_iter().collect();
    let mut count = HashMap::new();
    let mut copies = 0;
    for level in &settings.levels {
        let held: u64 = sizes(&level.path).values().sum();
        assert!(held <= level.quota, "{} holds {held} of {}", level.path.display(), level.quota);
        for path in below(&level.path, "files") {
            let name = relative(&path);
            let right = expected.get(&name).expect("a copy has the name of its source");
            assert_eq!(xxh3_64(&fs::read(&path).unwrap()), *right, "{}", path.display());
            *count.entry(name).or_insert(0) += 1;
            copies += 1;
        }
    }
    count.retain(|_, copies| *copies > 1);
    assert!(count.is_empty(), "files with two copies: {count:?}");
    assert_eq!(partials(settings), Vec::<PathBuf>::new());
    copies
}

/// Checks that no level has space for a file without a copy.
pub fn check_that_nothing_more_fits(settings: &Settings) {
    let copied: Vec<_> = settings
        .levels
        .iter()
        .flat_map(|level| below(&level.path, "files"))
        .map(|path| relative(&path))
        .collect();
    for (name, _) in files::expected(&settings.dataset, settings.files) {
        if copied.contains(&name) {
            continue;
        }
        let size = fs::metadata(settings.dataset.join(&name)).unwrap().len();
        for level in &settings.levels {
            let held: u64 = sizes(&level.path).values().sum();
            assert!(
                held + size > level.quota,
                "{name} has {size} bytes and no copy, and {} holds {held} of {}",
                level.path.display(),
                level.quota
            );
        }
    }
}

/// `LEVEL/dataset/files/a/b` is the copy of `a/b`.
fn relative(copy: &Path) -> String {
    let parts: Vec<_> = copy.iter().map(|part| part.to_str().unwrap()).collect();
    let at = parts.iter().rposition(|&part| part == "files").unwrap();
    parts[at + 1..].join("/")
}
