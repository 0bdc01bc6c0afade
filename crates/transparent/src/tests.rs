//! Copies as the launcher makes, finds and drops them, without a program.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belady_board::{Board, BoardConfig, BoardLevelConfig, FileId, RecordKind, Revalidate};
use proptest::prelude::*;

use crate::copy::{CopyResult, STICKY};
use crate::copy_store::CopyStore;
use crate::level::{CopyLevel, CopyLifetime, DATASET, FILES, PARTIAL};
use crate::prepare::DatasetRoot;
use crate::stored_copies;

/// A dataset and levels in a temporary folder.
struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new(files: &[(&str, usize)]) -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap() };
        for (name, size) in files {
            fixture.write(name, &bytes(name, *size));
        }
        fixture
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.data().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn root(&self, level: usize) -> PathBuf {
        self.folder.path().join(format!("level-{level}"))
    }

    fn store(&self, quotas: &[u64]) -> CopyStore {
        self.store_with(quotas, Revalidate::Start)
    }

    fn store_with(&self, quotas: &[u64], revalidate: Revalidate) -> CopyStore {
        let dataset = DatasetRoot::open(&self.data()).unwrap();
        let levels: Vec<CopyLevel> = (quotas.iter().enumerate())
            .map(|(at, &quota)| {
                let root = self.root(at);
                std::fs::create_dir_all(&root).unwrap();
                CopyLevel::open(&root, at.to_string(), quota, &dataset.real, false).unwrap()
            })
            .collect();
        let config = BoardConfig {
            given: b"/data".into(),
            real: b"/data".into(),
            levels: levels
                .iter()
                .map(|l| BoardLevelConfig { files: vec![b'/'], dev: l.dev })
                .collect(),
            revalidate,
            records_log2: 10,
        };
        let board = Arc::new(Board::create(&config).unwrap().0);
        let store = CopyStore::new(board, dataset.real, dataset.dev, levels);
        store.levels.iter().for_each(|level| level.reclaim().unwrap());
        store
    }

    /// Returns the copy of a file on any level.
    fn copy_of(&self, name: &str) -> Option<PathBuf> {
        (0..4)
            .flat_map(|level| crate::level::homes(&self.root(level)).unwrap_or_default())
            .map(|home| home.join(FILES).join(name))
            .find(|path| path.exists())
    }

    /// Returns the bytes on a level, with partial copies.
    fn bytes_in(&self, level: usize) -> u64 {
        let mut total = 0;
        let mut directories = vec![self.root(level)];
        while let Some(directory) = directories.pop() {
            for path in crate::files::entries(&directory).unwrap() {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() {
                    directories.push(path);
                } else if name != DATASET && !name.starts_with("belady-run") {
                    total += path.metadata().unwrap().len();
                }
            }
        }
        total
    }
}

fn bytes(name: &str, size: usize) -> Vec<u8> {
    name.bytes().cycle().take(size).collect()
}

fn fetch(store: &CopyStore, name: &str) -> CopyResult {
    store.fetch(name.as_bytes(), CopyLifetime::Kept, &mut vec![])
}

#[test]
fn a_copy_has_the_bytes_mode_and_times_of_its_source() {
    let fixture = Fixture::new(&[("train/a.jpg", 3_000_000)]);
    let source = fixture.data().join("train/a.jpg");
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o444)).unwrap();
    let store = fixture.store(&[10_000_000]);
    assert_eq!(fetch(&store, "train/a.jpg"), CopyResult::Copied);
    assert_eq!(fetch(&store, "train/a.jpg"), CopyResult::Present);
    let copy = fixture.copy_of("train/a.jpg").unwrap();
    assert_eq!(std::fs::read(&copy).unwrap(), bytes("train/a.jpg", 3_000_000));
    let [of, like] = [&copy, &source].map(|path| path.metadata().unwrap());
    assert_eq!(of.mode() & 0o7777, 0o444 | STICKY);
    assert_eq!((of.mtime(), of.mtime_nsec()), (like.mtime(), like.mtime_nsec()));
    let entry = store.find(b"train/a.jpg").unwrap();
    assert_eq!(entry.stat().ino, like.ino());
    let copy = FileId { dev: of.dev(), ino: of.ino() };
    assert_eq!(entry.kind(), RecordKind::Copy { level: 0, copy });
    assert!(entry.is_validated() && !entry.is_link());
    assert_eq!(store.levels[0].used.get().unwrap(), 3_000_000);
}

#[test]
fn a_file_that_does_not_fit_is_skipped_and_the_next_is_placed() {
    let fixture =
        Fixture::new(&[("a", 60), ("b", 50), ("c", 1000), ("d", 40), ("e", 10), ("empty", 0)]);
    let store = fixture.store(&[100, 60]);
    let outcomes = ["a", "b", "c", "d", "e", "empty"].map(|name| fetch(&store, name));
    let [copied, refused] = [CopyResult::Copied, CopyResult::Refused];
    assert_eq!(outcomes, [copied, copied, refused, copied, copied, copied]);
    let level = |name: &str| match store.find(name.as_bytes()).unwrap().kind() {
        RecordKind::Copy { level, .. } => Some(level),
        RecordKind::Refused => None,
    };
    assert_eq!(["a", "b", "c", "d", "e"].map(level), [Some(0), Some(1), None, Some(0), Some(1)]);
    assert_eq!(store.tally.refused.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!([fixture.bytes_in(0), fixture.bytes_in(1)], [100, 60]);
}

#[test]
fn the_next_run_finds_complete_copies_only() {
    let fixture = Fixture::new(&[("a", 10), ("sub/b", 20), ("c", 30), ("d", 40)]);
    let first = fixture.store(&[1000]);
    for name in ["a", "sub/b", "c", "d"] {
        fetch(&first, name);
    }
    // As after a crash, or when another program writes there.
    std::fs::write(fixture.copy_of("c").unwrap(), "short").unwrap();
    std::fs::write(first.levels[0].files.join("foreign"), "not a copy").unwrap();
    std::fs::write(first.levels[0].partial(), "half a file").unwrap();
    drop(first);
    let second = fixture.store(&[1000]);
    second.scan(&mut |unchecked| panic!("{unchecked:?} is of this boot")).unwrap();
    let known = ["a", "sub/b", "c", "d", "foreign"].map(|name| second.has(name.as_bytes()));
    assert_eq!(known, [true, true, false, true, false]);
    assert!(!second.find(b"a").unwrap().is_validated());
    assert_eq!((second.levels[0].used.get().unwrap(), fixture.bytes_in(0)), (70, 70));
    let never = fixture.store_with(&[1000], Revalidate::Never);
    never.scan(&mut |_| {}).unwrap();
    assert!(never.find(b"a").unwrap().is_validated());
}

#[test]
fn a_copy_of_an_earlier_boot_is_verified_before_it_is_used() {
    let fixture = Fixture::new(&[("good", 5000), ("torn", 5000)]);
    let first = fixture.store(&[10_000]);
    for name in ["good", "torn"] {
        fetch(&first, name);
        crate::metadata::age(&fixture.copy_of(name).unwrap());
    }
    // The machine crashed before these bytes were on the disk.
    let torn = std::fs::File::options().write(true).open(fixture.copy_of("torn").unwrap()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&torn, &[0; 100], 4000).unwrap();
    drop(first);
    let second = fixture.store(&[10_000]);
    let mut later = vec![];
    second.scan(&mut |unchecked| later.push(unchecked)).unwrap();
    assert_eq!(later.len(), 2);
    assert!(!second.has(b"good") && !second.has(b"torn"));
    for unchecked in &later {
        second.verify(unchecked, &mut vec![]).unwrap();
    }
    assert!(second.has(b"good") && !second.has(b"torn"));
    assert_eq!(fixture.copy_of("torn"), None);
    assert_eq!(second.levels[0].used.get().unwrap(), 5000);
    // It is not verified again in this boot.
    drop(second);
    let third = fixture.store(&[10_000]);
    third.scan(&mut |unchecked| panic!("{unchecked:?} was checked")).unwrap();
    assert!(third.has(b"good"));
}

#[test]
fn a_dropped_copy_is_removed() {
    let fixture = Fixture::new(&[("a", 10), ("b", 20)]);
    let store = fixture.store(&[100]);
    fetch(&store, "a");
    fetch(&store, "b");
    store.find(b"a").unwrap().drop_copy();
    // Requested again before the sweep.
    fixture.write("a", b"new bytes");
    assert_eq!(fetch(&store, "a"), CopyResult::Copied);
    store.sweep();
    assert_eq!(std::fs::read(fixture.copy_of("a").unwrap()).unwrap(), b"new bytes");
    store.find(b"b").unwrap().drop_copy();
    store.sweep();
    assert_eq!(fixture.copy_of("b"), None);
    assert_eq!((store.levels[0].used.get().unwrap(), store.levels[0].contents.get()), (9, (1, 9)));
}

#[test]
fn a_file_opened_for_writing_gets_no_copy() {
    let fixture = Fixture::new(&[("a", 10)]);
    let store = fixture.store(&[100]);
    let facts = fixture.data().join("a").metadata().unwrap();
    store.board.mark_written(FileId { dev: facts.dev(), ino: facts.ino() });
    assert_eq!(fetch(&store, "a"), CopyResult::NotNow);
    assert_eq!((fixture.copy_of("a"), store.levels[0].used.get().unwrap()), (None, 0));
}

#[test]
fn links_within_the_dataset_share_a_copy() {
    let fixture = Fixture::new(&[("blobs/1", 10), ("outside", 0)]);
    let elsewhere = fixture.folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "bytes from elsewhere").unwrap();
    let link =
        |to: &Path, name: &str| std::os::unix::fs::symlink(to, fixture.data().join(name)).unwrap();
    link(Path::new("blobs/1"), "a");
    link(&elsewhere, "b");
    link(Path::new("nowhere"), "c");
    link(Path::new("d"), "d");
    let store = fixture.store(&[100]);
    let [copied, failed] = [CopyResult::Copied, CopyResult::Failed];
    assert_eq!(
        ["a", "b", "c", "d"].map(|name| fetch(&store, name)),
        [copied, copied, failed, failed]
    );
    let find = |name: &str| store.find(name.as_bytes()).unwrap();
    assert!(find("a").is_link() && find("b").is_link() && !find("blobs/1").is_link());
    assert_eq!(find("a").kind(), find("blobs/1").kind());
    assert_eq!(store.levels[0].used.get().unwrap(), 10 + 20);
    // A write through either name drops both.
    let facts = find("a").stat();
    assert_eq!(store.board.mark_written(FileId { dev: facts.dev, ino: facts.ino }), 2);
    store.sweep();
    assert_eq!((fixture.copy_of("a"), fixture.copy_of("blobs/1")), (None, None));
    assert_eq!(store.levels[0].used.get().unwrap(), 20);
}

#[test]
fn links_are_recognised_in_the_next_run() {
    let fixture = Fixture::new(&[("blob", 10)]);
    let elsewhere = fixture.folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "bytes from elsewhere").unwrap();
    std::os::unix::fs::symlink("blob", fixture.data().join("near")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, fixture.data().join("far")).unwrap();
    let store = fixture.store(&[100]);
    for name in ["near", "far"] {
        assert_eq!(fetch(&store, name), CopyResult::Copied);
    }
    drop(store);
    let store = fixture.store(&[100]);
    store.scan(&mut |unchecked| panic!("{unchecked:?} is of this boot")).unwrap();
    let found = ["blob", "near", "far"].map(|name| store.find(name.as_bytes()));
    let [blob, near, far] = found.map(Option::unwrap);
    assert_eq!(blob.kind(), near.kind());
    assert!(near.is_link() && far.is_link());
}

#[test]
fn a_link_waits_for_the_copy_of_its_target() {
    let fixture = Fixture::new(&[("blob", 10)]);
    std::os::unix::fs::symlink("blob", fixture.data().join("link")).unwrap();
    let store = fixture.store(&[100]);
    let claim = store.claim(b"blob");
    std::thread::scope(|scope| {
        let linked = scope.spawn(|| fetch(&store, "link"));
        drop(claim);
        assert_eq!(linked.join().unwrap(), CopyResult::Copied);
    });
}

#[test]
fn pipes_and_directories_get_no_copies() {
    let fixture = Fixture::new(&[("sub/a", 1)]);
    let pipe = fixture.data().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let store = fixture.store(&[100]);
    assert_eq!(["pipe", "sub", "gone"].map(|name| fetch(&store, name)), [CopyResult::Failed; 3]);
    assert_eq!(fetch(&store, "../data/sub/a"), CopyResult::Failed);
    assert_eq!(fixture.bytes_in(0), 0);
}

#[test]
fn a_file_with_more_bytes_than_its_size_says_gets_no_copy() {
    let fixture = Fixture::new(&[("a", 1), ("empty", 0)]);
    std::os::unix::fs::symlink("/proc/version", fixture.data().join("version")).unwrap();
    let store = fixture.store(&[100]);
    assert_eq!(fetch(&store, "version"), CopyResult::NotNow);
    assert!(store.find(b"version").is_none());
    assert_eq!(fetch(&store, "empty"), CopyResult::Copied);
    assert_eq!(fixture.bytes_in(0), 0);
}

#[test]
fn two_launchers_share_copies_and_quota() {
    let fixture = Fixture::new(&[("a", 60), ("b", 60)]);
    let mine = fixture.store(&[100]);
    let yours = fixture.store(&[100]);
    assert_eq!(fetch(&mine, "a"), CopyResult::Copied);
    assert_eq!(fetch(&yours, "b"), CopyResult::Refused);
    assert_eq!(fetch(&yours, "a"), CopyResult::Present);
    let find = |store: &CopyStore| store.find(b"a").unwrap().kind();
    assert_eq!(find(&mine), find(&yours));
    // The partial copy of a killed launcher is removed, and its space is free again.
    assert!(yours.levels[0].used.reserve(30, 0).unwrap());
    std::fs::write(yours.levels[0].partial(), [0; 30]).unwrap();
    drop(yours);
    let next = fixture.store(&[100]);
    assert_eq!((next.levels[0].used.get().unwrap(), fixture.bytes_in(0)), (60, 60));
}

#[test]
fn the_end_of_a_run_leaves_complete_copies_only() {
    let fixture = Fixture::new(&[("a", 60), ("b", 30)]);
    let store = fixture.store(&[100]);
    fetch(&store, "a");
    assert!(store.levels[0].used.reserve(30, 0).unwrap());
    std::fs::write(store.levels[0].partial(), [0; 30]).unwrap();
    store.end();
    store.levels[0].close();
    assert_eq!(fetch(&store, "b"), CopyResult::NotNow);
    let homes = crate::level::homes(&fixture.root(0)).unwrap();
    assert!(crate::files::entries(&homes[0].join(PARTIAL)).unwrap().is_empty());
    assert_eq!((store.levels[0].used.get().unwrap(), fixture.bytes_in(0)), (60, 60));
}

#[test]
fn copies_are_listed_verified_and_cleared() {
    let fixture = Fixture::new(&[("a", 60), ("b", 30)]);
    let store = fixture.store(&[100]);
    fetch(&store, "a");
    fetch(&store, "b");
    let listed = stored_copies::list(&fixture.root(0)).unwrap();
    let [info] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((info.name.as_str(), info.files, info.bytes, info.in_use), ("data", 2, 90, true));
    let busy = stored_copies::clear(&fixture.root(0), None).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    drop(store);
    std::fs::write(fixture.copy_of("b").unwrap(), [0; 30]).unwrap();
    let mut seen = 0;
    let verified =
        stored_copies::verify(&fixture.root(0), &mut |progress| seen = progress.checked).unwrap();
    assert_eq!((verified[0].good, verified[0].damaged, seen), (1, 1, 2));
    assert!(stored_copies::clear(&fixture.root(0), Some(7)).is_err());
    let removed = stored_copies::clear(&fixture.root(0), Some(info.fingerprint)).unwrap();
    assert_eq!((removed[0].files, removed[0].bytes), (1, 60));
    assert_eq!(stored_copies::list(&fixture.root(0)).unwrap(), []);
    assert_eq!(fixture.store(&[100]).levels[0].used.get().unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each copy goes to the first level with space, and the quota is never exceeded.
    #[test]
    fn placement_agrees_with_a_naive_model(
        sizes in prop::collection::vec(0..60usize, 1..20),
        quotas in prop::collection::vec(1..150u64, 1..3),
        order in prop::collection::vec(0..20usize, 0..40),
    ) {
        let names: Vec<String> = (0..sizes.len()).map(|at| format!("dir{}/{at}", at % 3)).collect();
        let files: Vec<(&str, usize)> = names.iter().map(String::as_str).zip(sizes.clone()).collect();
        let fixture = Fixture::new(&files);
        let store = fixture.store(&quotas);
        let mut free = quotas.clone();
        let mut placed = vec![None; sizes.len()];
        for at in order.into_iter().filter(|&at| at < sizes.len()) {
            fetch(&store, &names[at]);
            placed[at].get_or_insert_with(|| {
                let level = free.iter().position(|&free| free >= sizes[at] as u64);
                if let Some(level) = level {
                    free[level] -= sizes[at] as u64;
                }
                level
            });
        }
        for (at, name) in names.iter().enumerate() {
            let found = store.find(name.as_bytes()).map(|entry| match entry.kind() {
                RecordKind::Copy { level, .. } => Some(level),
                RecordKind::Refused => None,
            });
            prop_assert_eq!(found, placed[at]);
        }
        for (at, &free) in free.iter().enumerate() {
            prop_assert_eq!(fixture.bytes_in(at), quotas[at] - free);
        }
    }
}

#[test]
fn a_failed_claim_neither_blocks_nor_releases_the_name() {
    let fixture = Fixture::new(&[("a", 1)]);
    let store = fixture.store(&[10]);
    let mine = store.claim(b"a").unwrap();
    assert!(store.claim(b"a").is_none());
    assert!(store.claim(b"a").is_none());
    assert!(store.claim(b"b").is_some());
    drop(mine);
    assert!(store.claim(b"a").is_some());
}

#[test]
fn transient_copies_use_the_window_and_release_it() {
    let fixture = Fixture::new(&[("a", 60), ("b", 30), ("c", 20)]);
    let store = fixture.store(&[100]);
    store.levels[0].set_window(30);
    assert_eq!(fetch(&store, "a"), CopyResult::Copied);
    // 40 bytes are free, of which 30 are reserved for the window.
    assert_eq!(["b", "c"].map(|name| fetch(&store, name)), [CopyResult::Refused; 2]);
    let pass = |name: &str| store.fetch(name.as_bytes(), CopyLifetime::Transient, &mut vec![]);
    assert_eq!(pass("b"), CopyResult::Copied);
    assert_eq!(pass("b"), CopyResult::Present);
    // Transient copies use the reserved bytes only.
    assert_eq!(pass("c"), CopyResult::NotNow);
    assert_eq!((fixture.bytes_in(0), store.levels[0].used.get().unwrap()), (90, 90));
    // The bytes count until the copy is evicted.
    store.release_transient(b"b", 30);
    assert_eq!(store.levels[0].used.get().unwrap(), 90);
    let open = store.evict(b"b").unwrap();
    assert!(!store.has(b"b") && fixture.copy_of("b").is_none());
    assert_eq!(store.levels[0].used.get().unwrap(), 90);
    drop(open);
    store.release_transient(b"b", 30);
    store.release_transient(b"b", 30);
    assert_eq!(store.levels[0].used.get().unwrap(), 60);
    assert_eq!(pass("c"), CopyResult::Copied);
    // Dropped by the program: its bytes are released once.
    store.find(b"c").unwrap().drop_copy();
    store.sweep();
    store.release_transient(b"c", 20);
    assert_eq!(store.levels[0].used.get().unwrap(), 60);
    assert_eq!(pass("b"), CopyResult::Copied);
    store.end();
    store.remove_transients();
    store.levels[0].close();
    assert_eq!((fixture.bytes_in(0), store.levels[0].used.get().unwrap()), (60, 60));
}

#[test]
fn a_link_does_not_revive_an_old_copy() {
    let fixture = Fixture::new(&[("blob", 10)]);
    let first = fixture.store(&[100]);
    assert_eq!(fetch(&first, "blob"), CopyResult::Copied);
    drop(first);
    fixture.write("blob", b"new bytes");
    std::os::unix::fs::symlink("blob", fixture.data().join("link")).unwrap();
    let second = fixture.store(&[100]);
    second.scan(&mut |unchecked| panic!("{unchecked:?} is of this boot")).unwrap();
    assert_eq!(fetch(&second, "link"), CopyResult::Copied);
    assert_eq!(std::fs::read(fixture.copy_of("link").unwrap()).unwrap(), b"new bytes");
    second.sweep();
    assert_eq!(std::fs::read(fixture.copy_of("link").unwrap()).unwrap(), b"new bytes");
    assert_eq!((fixture.bytes_in(0), second.levels[0].used.get().unwrap()), (18, 9));
}

#[test]
fn a_link_never_refers_to_a_transient_copy() {
    let fixture = Fixture::new(&[("blob", 10)]);
    std::os::unix::fs::symlink("blob", fixture.data().join("link")).unwrap();
    let store = fixture.store(&[100]);
    assert_eq!(store.fetch(b"blob", CopyLifetime::Transient, &mut vec![]), CopyResult::Copied);
    assert_eq!(fetch(&store, "link"), CopyResult::NotNow);
    drop(store.evict(b"blob").unwrap());
    store.release_transient(b"blob", 10);
    assert_eq!((fixture.bytes_in(0), store.levels[0].used.get().unwrap()), (0, 0));
}

#[test]
fn a_requested_copy_of_an_earlier_boot_is_verified_and_not_copied_again() {
    let fixture = Fixture::new(&[("good", 5000), ("torn", 5000)]);
    let first = fixture.store(&[10_000]);
    for name in ["good", "torn"] {
        fetch(&first, name);
        crate::metadata::age(&fixture.copy_of(name).unwrap());
    }
    std::fs::write(fixture.copy_of("torn").unwrap(), [0; 5000]).unwrap();
    drop(first);
    let second = fixture.store(&[10_000]);
    assert_eq!(fetch(&second, "good"), CopyResult::Present);
    assert_eq!(fetch(&second, "torn"), CopyResult::Copied);
    for name in ["good", "torn"] {
        assert!(second.has(name.as_bytes()));
        assert_eq!(std::fs::read(fixture.copy_of(name).unwrap()).unwrap(), bytes(name, 5000));
    }
    assert_eq!(second.levels[0].used.get().unwrap(), 10_000);
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let fixture = Fixture::new(&[("a", 1)]);
    drop(fixture.store(&[100]));
    let home = crate::level::homes(&fixture.root(0)).unwrap().remove(0);
    let open =
        || CopyLevel::open(&fixture.root(0), "0".into(), 9, &fixture.data(), false).map(drop);
    let home = std::fs::canonicalize(&home).unwrap();
    assert!(open().is_ok());
    for directory in [home.clone(), home.join(FILES)] {
        let set = |mode| {
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o777);
        let error = open().unwrap_err().to_string();
        assert!(error.contains("may write to it"), "{error}");
        set(0o700);
    }
    assert!(open().is_ok());
}

#[test]
fn without_copy_metadata_a_second_launcher_makes_no_copy() {
    let fixture = Fixture::new(&[("a", 10)]);
    let [first, second] = [(); 2].map(|()| {
        let mut store = fixture.store(&[100]);
        // As on a file system without extended attributes.
        store.levels[0].keeps = false;
        store
    });
    assert_eq!(fetch(&first, "a"), CopyResult::Copied);
    assert_eq!(fetch(&second, "a"), CopyResult::Refused);
    assert_eq!(fetch(&second, "a"), CopyResult::Refused);
    assert_eq!(second.tally.refused.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!((fixture.bytes_in(0), second.levels[0].used.get().unwrap()), (10, 10));
}

#[test]
fn removing_a_replaced_copy_releases_only_its_own_bytes() {
    let fixture = Fixture::new(&[("a", 10)]);
    let [mine, yours] = [(); 2].map(|()| fixture.store(&[100]));
    fetch(&mine, "a");
    let old = mine.find(b"a").unwrap().kind();
    let RecordKind::Copy { copy, .. } = old else { panic!("{old:?}") };
    fixture.write("a", b"new");
    assert_eq!(fetch(&yours, "a"), CopyResult::Copied);
    let other = FileId { ino: copy.ino + 1_000_000, ..copy };
    assert!(!crate::copy_store::remove(&mine.levels[0], b"a", Some(other)).unwrap());
    assert_eq!(std::fs::read(fixture.copy_of("a").unwrap()).unwrap(), b"new");
    assert_eq!((fixture.bytes_in(0), mine.levels[0].used.get().unwrap()), (3, 3));
    assert!(crate::copy_store::remove(&mine.levels[0], b"a", None).unwrap());
    assert_eq!((fixture.bytes_in(0), mine.levels[0].used.get().unwrap()), (0, 0));
}

#[test]
fn a_refused_file_is_served_from_another_launchers_copy() {
    let fixture = Fixture::new(&[("a", 10)]);
    let [mine, yours] = [5, 100].map(|quota| fixture.store(&[quota]));
    assert_eq!(fetch(&mine, "a"), CopyResult::Refused);
    assert_eq!(fetch(&yours, "a"), CopyResult::Copied);
    assert_eq!(mine.fetch(b"a", CopyLifetime::Transient, &mut vec![]), CopyResult::Present);
    let found = mine.find(b"a").unwrap().kind();
    assert!(matches!(found, RecordKind::Copy { .. }), "{found:?}");
}

#[test]
fn a_smaller_quota_removes_copies_beyond_it() {
    let fixture = Fixture::new(&[("a", 60), ("b", 30), ("c", 20)]);
    let first = fixture.store(&[200]);
    for name in ["a", "b", "c"] {
        assert_eq!(fetch(&first, name), CopyResult::Copied);
    }
    // Not while another launcher runs, which may have the larger quota.
    let second = fixture.store(&[50]);
    assert_eq!(fixture.bytes_in(0), 110);
    drop((first, second));
    let third = fixture.store(&[50]);
    assert!(fixture.bytes_in(0) <= 50);
    assert_eq!(third.levels[0].used.get().unwrap(), fixture.bytes_in(0));
    third.scan(&mut |_| {}).unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(third.has(name.as_bytes()), fixture.copy_of(name).is_some());
    }
}
