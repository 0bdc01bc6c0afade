//! A job that knows the order, and a program that reads in it. The program is this test: it looks at the
//! board as the library does in a real one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belady_board::message::Message;
use belady_board::{Attach, Board, Counted, Kind};
use belady_control::model::Bytes;
use belady_transparent::{Job, JobConfig, LevelConfig, Revalidate};

const FILES: usize = 64;
const SIZE: u64 = 10_000;
/// Room for a bit more than half of the files; an eighth of it is the window.
const QUOTA: u64 = 400_000;
/// As long as the test waits for what has to come.
const PATIENCE: Duration = Duration::from_mins(2);

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::fs::create_dir(folder.path().join("cache")).unwrap();
        let place = Self(folder);
        for file in 0..FILES {
            std::fs::write(place.path("data").join(name(file)), bytes(file)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self) -> JobConfig {
        JobConfig {
            dataset: self.path("data"),
            levels: vec![LevelConfig::Directory { path: self.path("cache"), quota: Bytes(QUOTA) }],
            revalidate: Revalidate::Start,
            threads: 2,
            order: None,
            learn: false,
        }
    }
}

fn name(file: usize) -> String {
    format!("{file:03}.bin")
}

fn bytes(file: usize) -> Vec<u8> {
    vec![file as u8; SIZE as usize]
}

/// What the library is in a real program.
struct Program {
    attach: Attach,
    board: Board,
    cache: PathBuf,
}

impl Program {
    fn of(job: &Job, place: &Place) -> Self {
        let environment = job.environment();
        let (_, text) = environment.iter().find(|(key, _)| key == belady_board::VARIABLE).unwrap();
        let attach = Attach::parse(text.as_bytes()).unwrap();
        Self { attach, board: attach.board().unwrap(), cache: place.path("cache") }
    }

    /// Opens a file and reads it; whether from a copy.
    fn read(&self, file: usize) -> bool {
        let name = name(file);
        let Some(entry) = self.board.find(self.board.key(name.as_bytes())) else {
            self.board.head().count(None, Counted::Opens, 1);
            assert!(self.attach.post(Message::Want(name.as_bytes())));
            return false;
        };
        entry.note_open();
        let Kind::Copy { level, .. } = entry.kind() else {
            self.board.head().count(None, Counted::Opens, 1);
            return false;
        };
        let files = self.board.head().levels()[level].files.get();
        let copy = std::fs::read(Path::new(OsStr::from_bytes(files)).join(&name));
        // It may be let go just now; then a program reads the source.
        let is_copy = copy.is_ok_and(|copy| {
            assert!(copy == bytes(file), "{name} has other bytes");
            true
        });
        self.board.head().count(is_copy.then_some(level), Counted::Opens, 1);
        self.check_quota();
        is_copy
    }

    fn has_copy(&self, file: usize) -> bool {
        let entry = self.board.find(self.board.key(name(file).as_bytes()));
        entry.is_some_and(|entry| matches!(entry.kind(), Kind::Copy { .. }))
    }

    fn wait_for_copy(&self, file: usize) {
        let until = Instant::now() + PATIENCE;
        while !self.has_copy(file) {
            assert!(Instant::now() < until, "{} does not come", name(file));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn check_quota(&self) {
        let counted = std::fs::read(self.cache.join("belady-run.used")).unwrap();
        let counted = u64::from_le_bytes(counted[..8].try_into().unwrap());
        let there = bytes_in(&self.cache);
        assert!(counted <= QUOTA && there <= QUOTA, "{counted} and {there} of {QUOTA} bytes");
    }
}

/// Of copies and what is being written. Files come and go while we look: it is looked until nothing changes
/// between two looks, which comes about since nobody reads meanwhile.
fn bytes_in(cache: &Path) -> u64 {
    let until = Instant::now() + PATIENCE;
    let mut before = None;
    loop {
        let mut files = vec![];
        for home in std::fs::read_dir(cache).unwrap().map(|home| home.unwrap().path()) {
            list_below(&home.join("files"), &mut files);
            list_below(&home.join("partial"), &mut files);
        }
        files.sort();
        if before.as_ref() == Some(&files) {
            return files.iter().map(|(_, _, length)| length).sum();
        }
        assert!(Instant::now() < until, "copies come and go though nobody reads");
        before = Some(files);
    }
}

/// Paths, what the kernel calls them, and how long they are.
fn list_below(directory: &Path, files: &mut Vec<(PathBuf, u64, u64)>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.filter_map(Result::ok) {
        match entry.metadata() {
            Ok(facts) if facts.is_dir() => list_below(&entry.path(), files),
            Ok(facts) => files.push((entry.path(), facts.ino(), facts.len())),
            Err(_) => {}
        }
    }
}

/// Backwards, so that it is not the order of the directory.
fn backwards() -> Vec<usize> {
    (0..FILES).rev().collect()
}

#[test]
fn each_file_is_there_before_it_is_read_though_only_half_of_them_fit() {
    let place = Place::new();
    let lines: Vec<String> = backwards().into_iter().map(name).collect();
    std::fs::write(place.path("order"), lines.join("\n")).unwrap();
    let config = JobConfig { order: Some(place.path("order")), ..place.config() };
    let job = Job::prepare(&config).unwrap();
    let program = Program::of(&job, &place);
    for _ in 0..3 {
        for file in backwards() {
            program.wait_for_copy(file);
            assert!(program.read(file), "{} went before it was read", name(file));
        }
    }
    let report = job.finish(false);
    assert_eq!(report.source.opens, 0);
    let left = bytes_in(&place.path("cache"));
    assert!(left > QUOTA / 2 && left <= QUOTA, "{left} bytes are left");
}

#[test]
fn an_order_is_learnt_in_one_run_and_used_in_the_next() {
    let place = Place::new();
    let config = JobConfig { learn: true, ..place.config() };
    let job = Job::prepare(&config).unwrap();
    let program = Program::of(&job, &place);
    for file in backwards() {
        assert!(!program.read(file));
        // All have come to a decision before the next: what fits is copied.
        let until = Instant::now() + PATIENCE;
        while program.board.find(program.board.key(name(file).as_bytes())).is_none() {
            assert!(Instant::now() < until, "nobody has looked at {}", name(file));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    job.finish(false);

    let job = Job::prepare(&config).unwrap();
    let program = Program::of(&job, &place);
    let order = backwards();
    // The first files fit, and are there since the first run. They show how this run begins.
    for &file in &order[..8] {
        assert!(program.read(file));
    }
    for &file in &order[8..] {
        program.wait_for_copy(file);
        assert!(program.read(file), "{} went before it was read", name(file));
    }
    assert_eq!(job.finish(false).source.opens, 0);
}
