//! The levels as anybody sees them who looks at the file system.

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
pub struct Level {
    pub path: PathBuf,
    pub quota: u64,
}

/// Files and their sizes by inode; a copy changes its name when it is whole.
type Seen = HashMap<u64, u64>;

/// Looks at the levels until it is stopped, and fails if one holds more than its quota.
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub fn start(levels: Vec<Level>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut before = vec![Seen::new(); levels.len()];
            while !told.load(SeqCst) {
                for (level, before) in levels.iter().zip(&mut before) {
                    let now = look(&level.path);
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

/// Looking takes time, and files come and go meanwhile. But what was there in this look and in the one
/// before was there in between, all of it at once, and no smaller than the look before saw it.
fn check_quota(level: &Level, before: &Seen, now: &Seen) {
    let both: u64 =
        before.iter().filter(|(inode, _)| now.contains_key(inode)).map(|(_, size)| size).sum();
    assert!(
        both <= level.quota,
        "{} holds {both} bytes, {} is its quota",
        level.path.display(),
        level.quota
    );
}

fn look(level: &Path) -> Seen {
    let mut seen = Seen::new();
    for kind in ["files", "partial"] {
        for path in below(level, kind) {
            if let Ok(found) = fs::symlink_metadata(path) {
                seen.insert(found.ino(), found.len());
            }
        }
    }
    seen
}

/// All files in the folders of this name that a level has, one for each dataset.
fn below(level: &Path, kind: &str) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = list(level).into_iter().map(|at| at.join(kind)).collect();
    let mut found = vec![];
    while let Some(folder) = folders.pop() {
        for path in list(&folder) {
            // Not following links: nothing but files and folders belongs there.
            match fs::symlink_metadata(&path) {
                Ok(entry) if entry.is_dir() => folders.push(path),
                Ok(_) => found.push(path),
                Err(_) => {}
            }
        }
    }
    found
}

/// Nothing, if it is not there (any more).
fn list(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Copies that are not whole; but for the file by which a launcher shows that it lives.
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

/// When nobody runs: all copies are right, of files that there are, in one level each, and no partial
/// ones are left. How many copies there are.
pub fn check(settings: &Settings) -> u64 {
    let expected: HashMap<_, _> =
        files::expected(&settings.dataset, settings.files).into_iter().collect();
    let mut count = HashMap::new();
    let mut copies = 0;
    for level in &settings.levels {
        let held: u64 = look(&level.path).values().sum();
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

/// A file without a copy is one that no level has room for.
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
            let held: u64 = look(&level.path).values().sum();
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
