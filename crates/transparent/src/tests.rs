//! Copies as they are made, found again and given up; without a program.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belady_board::{Board, Config, FileId, Kind, LevelConfig, Revalidate};
use proptest::prelude::*;

use crate::copy::{Outcome, STICKY};
use crate::level::{DATASET, FILES, Level, PARTIAL, Stay};
use crate::prepare::DatasetRoot;
use crate::shelf::Shelf;
use crate::stored;

/// A dataset and levels in a temporary folder.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(files: &[(&str, usize)]) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        for (name, size) in files {
            place.write(name, &bytes(name, *size));
        }
        place
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

    fn shelf(&self, quotas: &[u64]) -> Shelf {
        self.shelf_with(quotas, Revalidate::Start)
    }

    fn shelf_with(&self, quotas: &[u64], revalidate: Revalidate) -> Shelf {
        let dataset = DatasetRoot::open(&self.data()).unwrap();
        let levels: Vec<Level> = (quotas.iter().enumerate())
            .map(|(at, &quota)| {
                let root = self.root(at);
                std::fs::create_dir_all(&root).unwrap();
                Level::open(&root, at.to_string(), quota, &dataset.real, false).unwrap()
            })
            .collect();
        let config = Config {
            given: b"/data".into(),
            real: b"/data".into(),
            levels: levels.iter().map(|l| LevelConfig { files: vec![b'/'], dev: l.dev }).collect(),
            revalidate,
            records_log2: 10,
        };
        let board = Arc::new(Board::create(&config).unwrap().0);
        let shelf = Shelf::new(board, dataset.real, dataset.dev, levels);
        shelf.levels.iter().for_each(|level| level.reclaim().unwrap());
        shelf
    }

    /// The copy of a file, in whatever level it is.
    fn copy_of(&self, name: &str) -> Option<PathBuf> {
        (0..4)
            .flat_map(|level| crate::level::homes(&self.root(level)).unwrap_or_default())
            .map(|home| home.join(FILES).join(name))
            .find(|path| path.exists())
    }

    /// Bytes in a level, with those that are not finished.
    fn bytes_in(&self, level: usize) -> u64 {
        let mut total = 0;
        let mut directories = vec![self.root(level)];
        while let Some(directory) = directories.pop() {
            for path in crate::level::entries(&directory).unwrap() {
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

fn fetch(shelf: &Shelf, name: &str) -> Outcome {
    shelf.fetch(name.as_bytes(), Stay::Kept, &mut vec![])
}

#[test]
fn a_copy_has_the_bytes_and_the_looks_of_its_source() {
    let place = Place::new(&[("train/a.jpg", 3_000_000)]);
    let source = place.data().join("train/a.jpg");
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o444)).unwrap();
    let shelf = place.shelf(&[10_000_000]);
    assert_eq!(fetch(&shelf, "train/a.jpg"), Outcome::Copied);
    assert_eq!(fetch(&shelf, "train/a.jpg"), Outcome::Present);
    let copy = place.copy_of("train/a.jpg").unwrap();
    assert_eq!(std::fs::read(&copy).unwrap(), bytes("train/a.jpg", 3_000_000));
    let [of, like] = [&copy, &source].map(|path| path.metadata().unwrap());
    assert_eq!(of.mode() & 0o7777, 0o444 | STICKY);
    assert_eq!((of.mtime(), of.mtime_nsec()), (like.mtime(), like.mtime_nsec()));
    let entry = shelf.board.find(shelf.board.key(b"train/a.jpg")).unwrap();
    assert_eq!(entry.facts().ino, like.ino());
    let copy = FileId { dev: of.dev(), ino: of.ino() };
    assert_eq!(entry.kind(), Kind::Copy { level: 0, copy });
    assert!(entry.is_proved() && !entry.is_link());
    assert_eq!(shelf.levels[0].used.get().unwrap(), 3_000_000);
}

#[test]
fn a_file_that_does_not_fit_is_skipped_and_the_next_is_placed() {
    let place =
        Place::new(&[("a", 60), ("b", 50), ("c", 1000), ("d", 40), ("e", 10), ("empty", 0)]);
    let shelf = place.shelf(&[100, 60]);
    let outcomes = ["a", "b", "c", "d", "e", "empty"].map(|name| fetch(&shelf, name));
    let [copied, refused] = [Outcome::Copied, Outcome::Refused];
    assert_eq!(outcomes, [copied, copied, refused, copied, copied, copied]);
    let level =
        |name: &str| match shelf.board.find(shelf.board.key(name.as_bytes())).unwrap().kind() {
            Kind::Copy { level, .. } => Some(level),
            Kind::Refused => None,
        };
    assert_eq!(["a", "b", "c", "d", "e"].map(level), [Some(0), Some(1), None, Some(0), Some(1)]);
    assert_eq!(shelf.tally.refused.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!([place.bytes_in(0), place.bytes_in(1)], [100, 60]);
}

#[test]
fn the_next_run_finds_what_is_there_and_only_what_is_whole() {
    let place = Place::new(&[("a", 10), ("sub/b", 20), ("c", 30), ("d", 40)]);
    let first = place.shelf(&[1000]);
    for name in ["a", "sub/b", "c", "d"] {
        fetch(&first, name);
    }
    // As after a crash of the machine, of a disk, or of another program.
    std::fs::write(place.copy_of("c").unwrap(), "short").unwrap();
    std::fs::write(first.levels[0].files.join("stranger"), "who?").unwrap();
    std::fs::write(first.levels[0].partial(), "half a file").unwrap();
    drop(first);
    let second = place.shelf(&[1000]);
    second.load(&mut |unchecked| panic!("{unchecked:?} is of this boot")).unwrap();
    let known = ["a", "sub/b", "c", "d", "stranger"].map(|name| second.has(name.as_bytes()));
    assert_eq!(known, [true, true, false, true, false]);
    assert!(!second.board.find(second.board.key(b"a")).unwrap().is_proved());
    assert_eq!((second.levels[0].used.get().unwrap(), place.bytes_in(0)), (70, 70));
    let never = place.shelf_with(&[1000], Revalidate::Never);
    never.load(&mut |_| {}).unwrap();
    assert!(never.board.find(never.board.key(b"a")).unwrap().is_proved());
}

#[test]
fn a_copy_of_an_earlier_boot_is_read_before_it_is_used() {
    let place = Place::new(&[("good", 5000), ("torn", 5000)]);
    let first = place.shelf(&[10_000]);
    for name in ["good", "torn"] {
        fetch(&first, name);
        crate::meta::age(&place.copy_of(name).unwrap());
    }
    // The machine went down before these bytes were on the disk.
    let torn = std::fs::File::options().write(true).open(place.copy_of("torn").unwrap()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&torn, &[0; 100], 4000).unwrap();
    drop(first);
    let second = place.shelf(&[10_000]);
    let mut later = vec![];
    second.load(&mut |unchecked| later.push(unchecked)).unwrap();
    assert_eq!(later.len(), 2);
    assert!(!second.has(b"good") && !second.has(b"torn"));
    for unchecked in &later {
        second.check(unchecked, &mut vec![]).unwrap();
    }
    assert!(second.has(b"good") && !second.has(b"torn"));
    assert_eq!(place.copy_of("torn"), None);
    assert_eq!(second.levels[0].used.get().unwrap(), 5000);
    // In this boot it need not be read again.
    drop(second);
    let third = place.shelf(&[10_000]);
    third.load(&mut |unchecked| panic!("{unchecked:?} was checked")).unwrap();
    assert!(third.has(b"good"));
}

#[test]
fn what_the_program_gives_up_is_removed() {
    let place = Place::new(&[("a", 10), ("b", 20)]);
    let shelf = place.shelf(&[100]);
    fetch(&shelf, "a");
    fetch(&shelf, "b");
    shelf.board.find(shelf.board.key(b"a")).unwrap().drop_copy();
    // It was asked for again before anybody looked.
    place.write("a", b"new bytes");
    assert_eq!(fetch(&shelf, "a"), Outcome::Copied);
    shelf.sweep();
    assert_eq!(std::fs::read(place.copy_of("a").unwrap()).unwrap(), b"new bytes");
    shelf.board.find(shelf.board.key(b"b")).unwrap().drop_copy();
    shelf.sweep();
    assert_eq!(place.copy_of("b"), None);
    assert_eq!((shelf.levels[0].used.get().unwrap(), shelf.levels[0].held.get()), (9, (1, 9)));
}

#[test]
fn what_is_being_written_gets_no_copy() {
    let place = Place::new(&[("a", 10)]);
    let shelf = place.shelf(&[100]);
    let facts = place.data().join("a").metadata().unwrap();
    shelf.board.source_is_written(FileId { dev: facts.dev(), ino: facts.ino() });
    assert_eq!(fetch(&shelf, "a"), Outcome::NotNow);
    assert_eq!((place.copy_of("a"), shelf.levels[0].used.get().unwrap()), (None, 0));
}

#[test]
fn links_within_the_dataset_share_a_copy() {
    let place = Place::new(&[("blobs/1", 10), ("outside", 0)]);
    let elsewhere = place.folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "bytes from elsewhere").unwrap();
    let link =
        |to: &Path, name: &str| std::os::unix::fs::symlink(to, place.data().join(name)).unwrap();
    link(Path::new("blobs/1"), "a");
    link(&elsewhere, "b");
    link(Path::new("nowhere"), "c");
    link(Path::new("d"), "d");
    let shelf = place.shelf(&[100]);
    let [copied, failed] = [Outcome::Copied, Outcome::Failed];
    assert_eq!(
        ["a", "b", "c", "d"].map(|name| fetch(&shelf, name)),
        [copied, copied, failed, failed]
    );
    let find = |name: &str| shelf.board.find(shelf.board.key(name.as_bytes())).unwrap();
    assert!(find("a").is_link() && find("b").is_link() && !find("blobs/1").is_link());
    assert_eq!(find("a").kind(), find("blobs/1").kind());
    assert_eq!(shelf.levels[0].used.get().unwrap(), 10 + 20);
    // A write through either name is the end of both.
    let facts = find("a").facts();
    assert_eq!(shelf.board.source_is_written(FileId { dev: facts.dev, ino: facts.ino }), 2);
    shelf.sweep();
    assert_eq!((place.copy_of("a"), place.copy_of("blobs/1")), (None, None));
    assert_eq!(shelf.levels[0].used.get().unwrap(), 20);
}

#[test]
fn links_are_known_as_links_in_the_next_run() {
    let place = Place::new(&[("blob", 10)]);
    let elsewhere = place.folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "bytes from elsewhere").unwrap();
    std::os::unix::fs::symlink("blob", place.data().join("near")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, place.data().join("far")).unwrap();
    let shelf = place.shelf(&[100]);
    for name in ["near", "far"] {
        assert_eq!(fetch(&shelf, name), Outcome::Copied);
    }
    drop(shelf);
    let shelf = place.shelf(&[100]);
    shelf.load(&mut |unchecked| panic!("{unchecked:?} is of this boot")).unwrap();
    let found =
        ["blob", "near", "far"].map(|name| shelf.board.find(shelf.board.key(name.as_bytes())));
    let [blob, near, far] = found.map(Option::unwrap);
    assert_eq!(blob.kind(), near.kind());
    assert!(near.is_link() && far.is_link());
}

#[test]
fn a_link_waits_for_the_copy_that_it_leads_to() {
    let place = Place::new(&[("blob", 10)]);
    std::os::unix::fs::symlink("blob", place.data().join("link")).unwrap();
    let shelf = place.shelf(&[100]);
    let claim = shelf.claim(b"blob");
    std::thread::scope(|scope| {
        let linked = scope.spawn(|| fetch(&shelf, "link"));
        drop(claim);
        assert_eq!(linked.join().unwrap(), Outcome::Copied);
    });
}

#[test]
fn pipes_and_directories_get_no_copies() {
    let place = Place::new(&[("sub/a", 1)]);
    let pipe = place.data().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let shelf = place.shelf(&[100]);
    assert_eq!(["pipe", "sub", "gone"].map(|name| fetch(&shelf, name)), [Outcome::Failed; 3]);
    assert_eq!(fetch(&shelf, "../data/sub/a"), Outcome::Failed);
    assert_eq!(place.bytes_in(0), 0);
}

#[test]
fn two_launchers_share_copies_and_quota() {
    let place = Place::new(&[("a", 60), ("b", 60)]);
    let mine = place.shelf(&[100]);
    let yours = place.shelf(&[100]);
    assert_eq!(fetch(&mine, "a"), Outcome::Copied);
    assert_eq!(fetch(&yours, "b"), Outcome::Refused);
    assert_eq!(fetch(&yours, "a"), Outcome::Present);
    let find = |shelf: &Shelf| shelf.board.find(shelf.board.key(b"a")).unwrap().kind();
    assert_eq!(find(&mine), find(&yours));
    // One that dies while it copies leaves nothing, and its room is free again.
    assert!(yours.levels[0].used.reserve(30, 0).unwrap());
    std::fs::write(yours.levels[0].partial(), [0; 30]).unwrap();
    drop(yours);
    let next = place.shelf(&[100]);
    assert_eq!((next.levels[0].used.get().unwrap(), place.bytes_in(0)), (60, 60));
}

#[test]
fn the_end_of_a_run_leaves_copies_and_nothing_else() {
    let place = Place::new(&[("a", 60), ("b", 30)]);
    let shelf = place.shelf(&[100]);
    fetch(&shelf, "a");
    assert!(shelf.levels[0].used.reserve(30, 0).unwrap());
    std::fs::write(shelf.levels[0].partial(), [0; 30]).unwrap();
    shelf.end();
    shelf.levels[0].close();
    assert_eq!(fetch(&shelf, "b"), Outcome::NotNow);
    let homes = crate::level::homes(&place.root(0)).unwrap();
    assert!(crate::level::entries(&homes[0].join(PARTIAL)).unwrap().is_empty());
    assert_eq!((shelf.levels[0].used.get().unwrap(), place.bytes_in(0)), (60, 60));
}

#[test]
fn copies_are_listed_verified_and_cleared() {
    let place = Place::new(&[("a", 60), ("b", 30)]);
    let shelf = place.shelf(&[100]);
    fetch(&shelf, "a");
    fetch(&shelf, "b");
    let listed = stored::list(&place.root(0)).unwrap();
    let [info] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((info.name.as_str(), info.files, info.bytes, info.in_use), ("data", 2, 90, true));
    let busy = stored::clear(&place.root(0), None).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    drop(shelf);
    std::fs::write(place.copy_of("b").unwrap(), [0; 30]).unwrap();
    let mut seen = 0;
    let verified = stored::verify(&place.root(0), &mut |progress| seen = progress.checked).unwrap();
    assert_eq!((verified[0].good, verified[0].damaged, seen), (1, 1, 2));
    assert!(stored::clear(&place.root(0), Some(7)).is_err());
    let removed = stored::clear(&place.root(0), Some(info.fingerprint)).unwrap();
    assert_eq!((removed[0].files, removed[0].bytes), (1, 60));
    assert_eq!(stored::list(&place.root(0)).unwrap(), []);
    assert_eq!(place.shelf(&[100]).levels[0].used.get().unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// First come, first placed, and never more than the quota.
    #[test]
    fn placement_is_that_of_a_list(
        sizes in prop::collection::vec(0..60usize, 1..20),
        quotas in prop::collection::vec(1..150u64, 1..3),
        order in prop::collection::vec(0..20usize, 0..40),
    ) {
        let names: Vec<String> = (0..sizes.len()).map(|at| format!("dir{}/{at}", at % 3)).collect();
        let files: Vec<(&str, usize)> = names.iter().map(String::as_str).zip(sizes.clone()).collect();
        let place = Place::new(&files);
        let shelf = place.shelf(&quotas);
        let mut free = quotas.clone();
        let mut placed = vec![None; sizes.len()];
        for at in order.into_iter().filter(|&at| at < sizes.len()) {
            fetch(&shelf, &names[at]);
            placed[at].get_or_insert_with(|| {
                let level = free.iter().position(|&free| free >= sizes[at] as u64);
                if let Some(level) = level {
                    free[level] -= sizes[at] as u64;
                }
                level
            });
        }
        for (at, name) in names.iter().enumerate() {
            let found = shelf.board.find(shelf.board.key(name.as_bytes())).map(|entry| match entry.kind() {
                Kind::Copy { level, .. } => Some(level),
                Kind::Refused => None,
            });
            prop_assert_eq!(found, placed[at]);
        }
        for (at, &free) in free.iter().enumerate() {
            prop_assert_eq!(place.bytes_in(at), quotas[at] - free);
        }
    }
}

#[test]
fn who_finds_a_name_claimed_neither_hangs_nor_frees_it() {
    let place = Place::new(&[("a", 1)]);
    let shelf = place.shelf(&[10]);
    let mine = shelf.claim(b"a").unwrap();
    assert!(shelf.claim(b"a").is_none());
    assert!(shelf.claim(b"a").is_none());
    assert!(shelf.claim(b"b").is_some());
    drop(mine);
    assert!(shelf.claim(b"a").is_some());
}

#[test]
fn what_only_passes_through_takes_the_window_and_leaves_it() {
    let place = Place::new(&[("a", 60), ("b", 30), ("c", 20)]);
    let shelf = place.shelf(&[100]);
    shelf.levels[0].set_window(30);
    assert_eq!(fetch(&shelf, "a"), Outcome::Copied);
    // There are 40 bytes left, of which 30 are set aside.
    assert_eq!(["b", "c"].map(|name| fetch(&shelf, name)), [Outcome::Refused; 2]);
    let pass = |name: &str| shelf.fetch(name.as_bytes(), Stay::Passing, &mut vec![]);
    assert_eq!(pass("b"), Outcome::Copied);
    assert_eq!(pass("b"), Outcome::Present);
    // What passes through takes of what is set aside, not of the rest.
    assert_eq!(pass("c"), Outcome::NotNow);
    assert_eq!((place.bytes_in(0), shelf.levels[0].used.get().unwrap()), (90, 90));
    // Its bytes count as long as it is there: it may not have been possible to let it go.
    shelf.freed(b"b", 30);
    assert_eq!(shelf.levels[0].used.get().unwrap(), 90);
    let open = shelf.let_go(b"b").unwrap();
    assert!(!shelf.has(b"b") && place.copy_of("b").is_none());
    assert_eq!(shelf.levels[0].used.get().unwrap(), 90);
    drop(open);
    shelf.freed(b"b", 30);
    shelf.freed(b"b", 30);
    assert_eq!(shelf.levels[0].used.get().unwrap(), 60);
    assert_eq!(pass("c"), Outcome::Copied);
    // Given up by the program: its bytes are given back once.
    shelf.board.find(shelf.board.key(b"c")).unwrap().drop_copy();
    shelf.sweep();
    shelf.freed(b"c", 20);
    assert_eq!(shelf.levels[0].used.get().unwrap(), 60);
    assert_eq!(pass("b"), Outcome::Copied);
    shelf.end();
    shelf.remove_passing();
    shelf.levels[0].close();
    assert_eq!((place.bytes_in(0), shelf.levels[0].used.get().unwrap()), (60, 60));
}

#[test]
fn a_link_does_not_bring_an_old_copy_back() {
    let place = Place::new(&[("blob", 10)]);
    let first = place.shelf(&[100]);
    assert_eq!(fetch(&first, "blob"), Outcome::Copied);
    drop(first);
    place.write("blob", b"new bytes");
    std::os::unix::fs::symlink("blob", place.data().join("link")).unwrap();
    let second = place.shelf(&[100]);
    second.load(&mut |unchecked| panic!("{unchecked:?} is of this boot")).unwrap();
    assert_eq!(fetch(&second, "link"), Outcome::Copied);
    assert_eq!(std::fs::read(place.copy_of("link").unwrap()).unwrap(), b"new bytes");
    second.sweep();
    assert_eq!(std::fs::read(place.copy_of("link").unwrap()).unwrap(), b"new bytes");
    assert_eq!((place.bytes_in(0), second.levels[0].used.get().unwrap()), (18, 9));
}

#[test]
fn a_link_is_not_another_name_of_what_only_passes_through() {
    let place = Place::new(&[("blob", 10)]);
    std::os::unix::fs::symlink("blob", place.data().join("link")).unwrap();
    let shelf = place.shelf(&[100]);
    assert_eq!(shelf.fetch(b"blob", Stay::Passing, &mut vec![]), Outcome::Copied);
    assert_eq!(fetch(&shelf, "link"), Outcome::NotNow);
    drop(shelf.let_go(b"blob").unwrap());
    shelf.freed(b"blob", 10);
    assert_eq!((place.bytes_in(0), shelf.levels[0].used.get().unwrap()), (0, 0));
}

#[test]
fn a_copy_of_an_earlier_boot_that_is_wanted_is_read_and_not_copied_again() {
    let place = Place::new(&[("good", 5000), ("torn", 5000)]);
    let first = place.shelf(&[10_000]);
    for name in ["good", "torn"] {
        fetch(&first, name);
        crate::meta::age(&place.copy_of(name).unwrap());
    }
    std::fs::write(place.copy_of("torn").unwrap(), [0; 5000]).unwrap();
    drop(first);
    let second = place.shelf(&[10_000]);
    assert_eq!(fetch(&second, "good"), Outcome::Present);
    assert_eq!(fetch(&second, "torn"), Outcome::Copied);
    for name in ["good", "torn"] {
        assert!(second.has(name.as_bytes()));
        assert_eq!(std::fs::read(place.copy_of(name).unwrap()).unwrap(), bytes(name, 5000));
    }
    assert_eq!(second.levels[0].used.get().unwrap(), 10_000);
}

#[test]
fn what_others_may_write_to_is_not_taken_for_copies() {
    let place = Place::new(&[("a", 1)]);
    drop(place.shelf(&[100]));
    let home = crate::level::homes(&place.root(0)).unwrap().remove(0);
    let open = || Level::open(&place.root(0), "0".into(), 9, &place.data(), false).map(drop);
    let home = std::fs::canonicalize(&home).unwrap();
    assert!(open().is_ok());
    for directory in [home.clone(), home.join(FILES)] {
        let set = |mode| {
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o777);
        let error = open().unwrap_err().to_string();
        assert!(error.contains("others may write"), "{error}");
        set(0o700);
    }
    assert!(open().is_ok());
}

#[test]
fn where_launchers_cannot_share_copies_none_is_made_again_and_again() {
    let place = Place::new(&[("a", 10)]);
    let [first, second] = [(); 2].map(|()| {
        let mut shelf = place.shelf(&[100]);
        // As on a file system without extended attributes.
        shelf.levels[0].keeps = false;
        shelf
    });
    assert_eq!(fetch(&first, "a"), Outcome::Copied);
    assert_eq!(fetch(&second, "a"), Outcome::Refused);
    assert_eq!(fetch(&second, "a"), Outcome::Refused);
    assert_eq!(second.tally.refused.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!((place.bytes_in(0), second.levels[0].used.get().unwrap()), (10, 10));
}

#[test]
fn a_copy_that_another_has_replaced_gives_back_its_own_bytes_only() {
    let place = Place::new(&[("a", 10)]);
    let [mine, yours] = [(); 2].map(|()| place.shelf(&[100]));
    fetch(&mine, "a");
    let old = mine.board.find(mine.board.key(b"a")).unwrap().kind();
    let Kind::Copy { copy, .. } = old else { panic!("{old:?}") };
    place.write("a", b"new");
    assert_eq!(fetch(&yours, "a"), Outcome::Copied);
    let other = FileId { ino: copy.ino + 1_000_000, ..copy };
    assert!(!crate::shelf::remove(&mine.levels[0], b"a", Some(other)).unwrap());
    assert_eq!(std::fs::read(place.copy_of("a").unwrap()).unwrap(), b"new");
    assert_eq!((place.bytes_in(0), mine.levels[0].used.get().unwrap()), (3, 3));
    assert!(crate::shelf::remove(&mine.levels[0], b"a", None).unwrap());
    assert_eq!((place.bytes_in(0), mine.levels[0].used.get().unwrap()), (0, 0));
}

#[test]
fn a_copy_that_another_made_is_found_by_who_was_refused_before() {
    let place = Place::new(&[("a", 10)]);
    let [mine, yours] = [5, 100].map(|quota| place.shelf(&[quota]));
    assert_eq!(fetch(&mine, "a"), Outcome::Refused);
    assert_eq!(fetch(&yours, "a"), Outcome::Copied);
    assert_eq!(mine.fetch(b"a", Stay::Passing, &mut vec![]), Outcome::Present);
    let found = mine.board.find(mine.board.key(b"a")).unwrap().kind();
    assert!(matches!(found, Kind::Copy { .. }), "{found:?}");
}

#[test]
fn a_smaller_quota_removes_what_is_too_much() {
    let place = Place::new(&[("a", 60), ("b", 30), ("c", 20)]);
    let first = place.shelf(&[200]);
    for name in ["a", "b", "c"] {
        assert_eq!(fetch(&first, name), Outcome::Copied);
    }
    // Not while another launcher is there, which may have the larger quota.
    let second = place.shelf(&[50]);
    assert_eq!(place.bytes_in(0), 110);
    drop((first, second));
    let third = place.shelf(&[50]);
    assert!(place.bytes_in(0) <= 50);
    assert_eq!(third.levels[0].used.get().unwrap(), place.bytes_in(0));
    third.load(&mut |_| {}).unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(third.has(name.as_bytes()), place.copy_of(name).is_some());
    }
}
