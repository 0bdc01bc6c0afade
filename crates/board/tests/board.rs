//! The board beside a naive model, and seen from other threads and processes' mappings.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use belady_board::facts::Facts;
use belady_board::message::Message;
use belady_board::{
    Attach, Board, Config, Counted, FileId, Kind, LevelConfig, NewRecord, Publisher, Revalidate,
};
use proptest::prelude::*;

fn config(records_log2: u32) -> Config {
    let level = |files: &str, dev| LevelConfig { files: files.into(), dev };
    Config {
        given: b"/data".to_vec(),
        real: b"/mnt/data".to_vec(),
        levels: vec![level("/fast/files", 1), level("/slow/files", 2)],
        revalidate: Revalidate::Start,
        records_log2,
    }
}

fn board(records_log2: u32) -> Arc<Board> {
    Arc::new(Board::create(&config(records_log2)).unwrap().0)
}

fn source(ino: u64) -> FileId {
    FileId { dev: 9, ino }
}

fn copy(number: u64) -> FileId {
    FileId { dev: 1, ino: number }
}

fn record(board: &Board, name: u64, ino: u64, number: u64) -> NewRecord {
    NewRecord {
        path: board.key(&name.to_le_bytes()),
        kind: Kind::Copy { level: 0, copy: copy(number) },
        facts: Facts { dev: 9, ino, size: number, ..Facts::default() },
        is_link: false,
        proved: Some(board.seen()),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish { name: u64, ino: u64 },
    DropName(u64),
    DropSource(u64),
    Write(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40u64, 0..30u64).prop_map(|(name, ino)| Step::Publish { name, ino }),
        2 => (0..40u64).prop_map(Step::DropName),
        1 => (0..30u64).prop_map(Step::DropSource),
        1 => (0..30u64).prop_map(Step::Write),
    ]
}

/// What the board should say: live copies by name.
#[derive(Default)]
struct Model {
    live: HashMap<u64, (u64, u64)>,
    written: Vec<u64>,
}

proptest! {
    #[test]
    fn a_board_is_a_map_of_names(steps in prop::collection::vec(step(), 0..200)) {
        let board = board(10);
        let mut publisher = Publisher::new(Arc::clone(&board));
        let mut model = Model::default();
        for (number, step) in steps.into_iter().enumerate() {
            let number = number as u64;
            match step {
                Step::Publish { name, ino } => {
                    if let Some(entry) = board.find(board.key(&name.to_le_bytes())) {
                        entry.drop_copy();
                    }
                    publisher.publish(&record(&board, name, ino, number)).unwrap();
                    model.live.remove(&name);
                    if !model.written.contains(&ino) {
                        model.live.insert(name, (ino, number));
                    }
                }
                Step::DropName(name) => {
                    let found = board.find(board.key(&name.to_le_bytes()));
                    prop_assert_eq!(found.is_some_and(|entry| entry.drop_copy()), model.live.remove(&name).is_some());
                }
                Step::DropSource(ino) => {
                    let before = model.live.len();
                    model.live.retain(|_, file| file.0 != ino);
                    prop_assert_eq!(board.drop_source(source(ino)), before - model.live.len());
                }
                Step::Write(ino) => {
                    board.source_is_written(source(ino));
                    model.written.push(ino);
                    model.live.retain(|_, file| file.0 != ino);
                }
            }
            for name in 0..40 {
                let found = board.find(board.key(&u64::to_le_bytes(name)));
                let told = found.map(|entry| (entry.facts().ino, entry.facts().size));
                prop_assert_eq!(told, model.live.get(&name).copied());
                if let Some((_, number)) = told {
                    prop_assert_eq!(board.find_copy(copy(number)).map(|entry| entry.facts().size), Some(number));
                }
            }
        }
    }
}

/// More than the first three tables have room for, while others look and write.
#[test]
fn nothing_is_missed_while_the_tables_grow() {
    const FILES: u64 = 100_000;
    let (board, file) = Board::create(&config(17)).unwrap();
    let (_reader, pipe) = rustix::pipe::pipe().unwrap();
    let attach = Attach::new(&board, &file, &pipe);
    let board = Arc::new(board);
    let mut publisher = Publisher::new(Arc::clone(&board));
    publisher.publish(&record(&board, FILES, FILES, FILES)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // As another process sees it.
                let seen = attach.board().unwrap();
                let first = seen.key(&FILES.to_le_bytes());
                while !done.load(Relaxed) {
                    assert_eq!(seen.find(first).unwrap().facts().ino, FILES);
                    assert_eq!(seen.find_copy(copy(FILES)).unwrap().facts().ino, FILES);
                }
            });
        }
        scope.spawn(|| {
            let seen = attach.board().unwrap();
            // Each second file is written to, before or after it is published.
            for ino in (0..FILES).step_by(2) {
                seen.source_is_written(source(ino));
                if ino % 1000 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..FILES {
            publisher.publish(&record(&board, number, number, number)).unwrap();
        }
        done.store(true, Relaxed);
    });
    for number in 0..FILES {
        let found = board.find(board.key(&number.to_le_bytes()));
        if number % 2 == 0 {
            assert!(found.is_none(), "{number} was written to and is still there");
        } else if !board.was_written(source(number)) {
            assert_eq!(found.unwrap().facts().size, number);
        }
    }
}

#[test]
fn a_full_board_says_so() {
    let board = board(4);
    let mut publisher = Publisher::new(Arc::clone(&board));
    for number in 0..16 {
        publisher.publish(&record(&board, number, number, number)).unwrap();
    }
    assert!(publisher.publish(&record(&board, 16, 16, 16)).is_err());
    assert!(board.find(board.key(&16u64.to_le_bytes())).is_none());
    assert_eq!(board.find(board.key(&15u64.to_le_bytes())).unwrap().number, 15);
}

#[test]
fn copies_are_doubted_together() {
    let board = board(4);
    let mut publisher = Publisher::new(Arc::clone(&board));
    let unproved = NewRecord { proved: None, ..record(&board, 2, 2, 2) };
    assert!(!publisher.publish(&unproved).unwrap().is_proved());
    assert!(publisher.publish(&record(&board, 1, 1, 1)).unwrap().is_proved());
    board.doubt_all();
    let entry = board.find(board.key(&1u64.to_le_bytes())).unwrap();
    assert!(!entry.is_proved());
    entry.prove(2);
    assert!(entry.is_proved());
}

#[test]
fn another_mapping_sees_and_counts_and_posts() {
    let (board, file) = Board::create(&config(4)).unwrap();
    let (reader, pipe) = rustix::pipe::pipe().unwrap();
    let text = Attach::new(&board, &file, &pipe).to_text();
    let attach = Attach::parse(text.as_bytes()).unwrap();
    let other = attach.board().unwrap();
    assert_eq!(other.head().dataset().real, b"/mnt/data");
    assert_eq!(other.head().levels()[1].files.get(), b"/slow/files");
    other.head().count(Some(1), Counted::Opens, 2);
    other.head().count(None, Counted::Bytes, 5);
    assert_eq!(board.head().totals(Some(1)).opens, 2);
    assert_eq!(board.head().totals(None).bytes, 5);
    assert!(attach.post(Message::Want(b"a/b")));
    let mut bytes = [0; 64];
    let length = rustix::io::read(&reader, &mut bytes).unwrap();
    assert_eq!(Message::decode(&bytes[..length]), Some((Message::Want(b"a/b"), length)));
    // Neither another board of the same number nor nonsense is taken for it.
    assert!(Attach { token: attach.token ^ 1, ..attach }.board().is_none());
    assert!(Attach { board: 9999, ..attach }.board().is_none());
    for nonsense in
        ["", "1:2:3", "1:2:3:4", "1:2:3:4:5:6", "1:2:x:4:5", "1::3:4:5", "99999999999:2:3:4:5"]
    {
        assert_eq!(Attach::parse(nonsense.as_bytes()), None);
    }
}

#[test]
fn what_the_job_changes_while_a_file_is_copied_leaves_the_copy_unproved() {
    let board = board(4);
    let mut publisher = Publisher::new(Arc::clone(&board));
    let renamed_directory = record(&board, 1, 1, 1);
    board.doubt_all();
    assert!(!publisher.publish(&renamed_directory).unwrap().is_proved());
    let replaced = record(&board, 2, 2, 2);
    board.note_change();
    assert!(!publisher.publish(&replaced).unwrap().is_proved());
    assert!(publisher.publish(&record(&board, 3, 3, 3)).unwrap().is_proved());
}

#[test]
fn nothing_is_written_to_a_file_that_has_the_number_of_the_pipe() {
    let (board, file) = Board::create(&config(4)).unwrap();
    let (_reader, pipe) = rustix::pipe::pipe().unwrap();
    let attach = Attach::new(&board, &file, &pipe);
    // As when the launcher has gone, and another process has its number.
    let other = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(other.path(), "somebody's bytes").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(other.as_file()).cast_unsigned();
    assert!(!Attach { pipe: number, ..attach }.post(Message::Want(b"a")));
    assert_eq!(std::fs::read(other.path()).unwrap(), b"somebody's bytes");
    let (_reader, other) = rustix::pipe::pipe().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&other).cast_unsigned();
    assert!(!Attach { pipe: number, ..attach }.post(Message::Want(b"a")));
}
