//! A job with a known order. The test is the program: it uses the board as the shim does.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belady_base::units::Bytes;
use belady_board::message::ShimMessage;
use belady_board::{Attach, Board, OpenCounter, RecordKind};
use belady_transparent::{LevelConfig, Revalidate, TransparentConfig, TransparentJob};

const FILES: usize = 64;
const SIZE: u64 = 10_000;
/// Space for a bit more than half of the files; an eighth of it is the window.
const QUOTA: u64 = 400_000;
/// How long the test waits for an event that has to happen.
const PATIENCE: Duration = Duration::from_mins(2);

struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::fs::create_dir(folder.path().join("cache")).unwrap();
        let fixture = Self(folder);
        for file in 0..FILES {
            std::fs::write(fixture.path("data").join(name(file)), bytes(file)).unwrap();
        }
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self) -> TransparentConfig {
        TransparentConfig {
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

/// Stands for the shim in a real program.
struct Program {
    attach: Attach,
    board: Board,
    cache: PathBuf,
}

impl Program {
    fn of(job: &TransparentJob, fixture: &Fixture) -> Self {
        let environment = job.environment();
        let (_, text) = environment.iter().find(|(key, _)| key == belady_board::VARIABLE).unwrap();
        let attach = Attach::parse(text.as_bytes()).unwrap();
        Self { attach, board: attach.board().unwrap(), cache: fixture.path("cache") }
    }

    /// Opens and reads a file. Returns whether it had a copy.
    fn read(&self, file: usize) -> bool {
        let name = name(file);
        let Some(entry) = self.board.find(self.board.key(name.as_bytes())) else {
            self.board.header().count(None, OpenCounter::Opens, 1);
            assert!(self.attach.send(ShimMessage::Want(name.as_bytes())));
            return false;
        };
        entry.count_open();
        let RecordKind::Copy { level, .. } = entry.kind() else {
            self.board.header().count(None, OpenCounter::Opens, 1);
            return false;
        };
        let files = self.board.header().levels()[level].files.get();
        let copy = std::fs::read(Path::new(OsStr::from_bytes(files)).join(&name));
        // It may just have been evicted; then a program reads the source.
        let is_copy = copy.is_ok_and(|copy| {
            assert!(copy == bytes(file), "{name} has other bytes");
            true
        });
        self.board.header().count(is_copy.then_some(level), OpenCounter::Opens, 1);
        self.check_quota();
        is_copy
    }

    fn has_copy(&self, file: usize) -> bool {
        let entry = self.board.find(self.board.key(name(file).as_bytes()));
        entry.is_some_and(|entry| matches!(entry.kind(), RecordKind::Copy { .. }))
    }

    fn wait_for_copy(&self, file: usize) {
        let until = Instant::now() + PATIENCE;
        while !self.has_copy(file) {
            assert!(Instant::now() < until, "{} gets no copy", name(file));
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

/// Returns the bytes of copies and partial copies. Lists the files until two lists are equal, which
/// happens because the program does not read meanwhile.
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
        assert!(Instant::now() < until, "copies change although the program does not read");
        before = Some(files);
    }
}

/// Lists paths, inodes and lengths.
fn list_below(directory: &Path, files: &mut Vec<(PathBuf, u64, u64)>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.filter_map(Result::ok) {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => list_below(&entry.path(), files),
            Ok(metadata) => files.push((entry.path(), metadata.ino(), metadata.len())),
            Err(_) => {}
        }
    }
}

/// Backwards, to differ from the order of the directory.
fn backwards() -> Vec<usize> {
    (0..FILES).rev().collect()
}

#[test]
fn each_file_has_a_copy_before_it_is_read_although_only_half_of_them_fit() {
    let fixture = Fixture::new();
    let lines: Vec<String> = backwards().into_iter().map(name).collect();
    std::fs::write(fixture.path("order"), lines.join("\n")).unwrap();
    let config = TransparentConfig { order: Some(fixture.path("order")), ..fixture.config() };
    let job = TransparentJob::prepare(&config).unwrap();
    let program = Program::of(&job, &fixture);
    for _ in 0..3 {
        for file in backwards() {
            program.wait_for_copy(file);
            assert!(program.read(file), "{} was evicted before it was read", name(file));
        }
    }
    let report = job.finish(false);
    assert_eq!(report.source.opens, 0);
    let left = bytes_in(&fixture.path("cache"));
    assert!(left > QUOTA / 2 && left <= QUOTA, "{left} bytes are left");
}

#[test]
fn an_order_is_learnt_in_one_run_and_used_in_the_next() {
    let fixture = Fixture::new();
    let config = TransparentConfig { learn: true, ..fixture.config() };
    let job = TransparentJob::prepare(&config).unwrap();
    let program = Program::of(&job, &fixture);
    for file in backwards() {
        assert!(!program.read(file));
        // Waits for the launcher's decision on this file.
        let until = Instant::now() + PATIENCE;
        while program.board.find(program.board.key(name(file).as_bytes())).is_none() {
            assert!(Instant::now() < until, "the launcher has not decided on {}", name(file));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    job.finish(false);

    let job = TransparentJob::prepare(&config).unwrap();
    let program = Program::of(&job, &fixture);
    let order = backwards();
    // The first files have copies since the first run. They show how this run begins.
    for &file in &order[..8] {
        assert!(program.read(file));
    }
    for &file in &order[8..] {
        program.wait_for_copy(file);
        assert!(program.read(file), "{} was evicted before it was read", name(file));
    }
    assert_eq!(job.finish(false).source.opens, 0);
}
