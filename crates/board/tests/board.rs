//! The board against a naive model, and through other mappings from other threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use belady_board::file_stat::FileStat;
use belady_board::message::ShimMessage;
use belady_board::{
    Attach, Board, BoardConfig, BoardLevelConfig, BoardPublisher, FileId, NewRecord, OpenCounter,
    RecordKind, Revalidate,
};
use proptest::prelude::*;

fn config(records_log2: u32) -> BoardConfig {
    let level = |files: &str, dev| BoardLevelConfig { files: files.into(), dev };
    BoardConfig {
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
        kind: RecordKind::Copy { level: 0, copy: copy(number) },
        stat: FileStat { dev: 9, ino, size: number, ..FileStat::default() },
        is_link: false,
        validated: Some(board.change_snapshot()),
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
    fn a_board_agrees_with_a_map_of_names(steps in prop::collection::vec(step(), 0..200)) {
        let board = board(10);
        let mut publisher = BoardPublisher::new(Arc::clone(&board));
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
                    board.mark_written(source(ino));
                    model.written.push(ino);
                    model.live.retain(|_, file| file.0 != ino);
                }
            }
            for name in 0..40 {
                let found = board.find(board.key(&u64::to_le_bytes(name)));
                let said = found.map(|entry| (entry.stat().ino, entry.stat().size));
                prop_assert_eq!(said, model.live.get(&name).copied());
                if let Some((_, number)) = said {
                    prop_assert_eq!(board.find_copy(copy(number)).map(|entry| entry.stat().size), Some(number));
                }
            }
        }
    }
}

/// Publishes more records than the first three tables hold, with concurrent lookups and writes.
#[test]
fn no_lookup_misses_a_record_while_the_tables_grow() {
    const FILES: u64 = 100_000;
    let (board, file) = Board::create(&config(17)).unwrap();
    let (_reader, pipe) = rustix::pipe::pipe().unwrap();
    let attach = Attach::new(&board, &file, &pipe);
    let board = Arc::new(board);
    let mut publisher = BoardPublisher::new(Arc::clone(&board));
    publisher.publish(&record(&board, FILES, FILES, FILES)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // As another process maps it.
                let seen = attach.board().unwrap();
                let first = seen.key(&FILES.to_le_bytes());
                while !done.load(Relaxed) {
                    assert_eq!(seen.find(first).unwrap().stat().ino, FILES);
                    assert_eq!(seen.find_copy(copy(FILES)).unwrap().stat().ino, FILES);
                }
            });
        }
        scope.spawn(|| {
            let seen = attach.board().unwrap();
            // Every second file is opened for writing, before or after it is published.
            for ino in (0..FILES).step_by(2) {
                seen.mark_written(source(ino));
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
            assert!(found.is_none(), "{number} was written and still has a copy");
        } else if !board.was_written(source(number)) {
            assert_eq!(found.unwrap().stat().size, number);
        }
    }
}

#[test]
fn publishing_on_a_full_board_is_an_error() {
    let board = board(4);
    let mut publisher = BoardPublisher::new(Arc::clone(&board));
    for number in 0..16 {
        publisher.publish(&record(&board, number, number, number)).unwrap();
    }
    assert!(publisher.publish(&record(&board, 16, 16, 16)).is_err());
    assert!(board.find(board.key(&16u64.to_le_bytes())).is_none());
    assert_eq!(board.find(board.key(&15u64.to_le_bytes())).unwrap().number, 15);
}

#[test]
fn requiring_revalidation_concerns_all_copies() {
    let board = board(4);
    let mut publisher = BoardPublisher::new(Arc::clone(&board));
    let unvalidated = NewRecord { validated: None, ..record(&board, 2, 2, 2) };
    assert!(!publisher.publish(&unvalidated).unwrap().is_validated());
    assert!(publisher.publish(&record(&board, 1, 1, 1)).unwrap().is_validated());
    board.require_revalidation();
    let entry = board.find(board.key(&1u64.to_le_bytes())).unwrap();
    assert!(!entry.is_validated());
    entry.mark_validated(2);
    assert!(entry.is_validated());
}

#[test]
fn another_mapping_shares_records_counters_and_messages() {
    let (board, file) = Board::create(&config(4)).unwrap();
    let (reader, pipe) = rustix::pipe::pipe().unwrap();
    let text = Attach::new(&board, &file, &pipe).to_text();
    let attach = Attach::parse(text.as_bytes()).unwrap();
    let other = attach.board().unwrap();
    assert_eq!(other.header().dataset().real, b"/mnt/data");
    assert_eq!(other.header().levels()[1].files.get(), b"/slow/files");
    other.header().count(Some(1), OpenCounter::Opens, 2);
    other.header().count(None, OpenCounter::Bytes, 5);
    assert_eq!(board.header().totals(Some(1)).opens, 2);
    assert_eq!(board.header().totals(None).bytes, 5);
    assert!(attach.send(ShimMessage::Want(b"a/b")));
    let mut bytes = [0; 64];
    let length = rustix::io::read(&reader, &mut bytes).unwrap();
    assert_eq!(ShimMessage::decode(&bytes[..length]), Some((ShimMessage::Want(b"a/b"), length)));
    // Another board with the same descriptor and malformed text are rejected.
    assert!(Attach { token: attach.token ^ 1, ..attach }.board().is_none());
    assert!(Attach { board: 9999, ..attach }.board().is_none());
    for nonsense in
        ["", "1:2:3", "1:2:3:4", "1:2:3:4:5:6", "1:2:x:4:5", "1::3:4:5", "99999999999:2:3:4:5"]
    {
        assert_eq!(Attach::parse(nonsense.as_bytes()), None);
    }
}

#[test]
fn a_change_while_a_file_is_copied_leaves_the_copy_unvalidated() {
    let board = board(4);
    let mut publisher = BoardPublisher::new(Arc::clone(&board));
    let renamed_directory = record(&board, 1, 1, 1);
    board.require_revalidation();
    assert!(!publisher.publish(&renamed_directory).unwrap().is_validated());
    let replaced = record(&board, 2, 2, 2);
    board.count_change();
    assert!(!publisher.publish(&replaced).unwrap().is_validated());
    assert!(publisher.publish(&record(&board, 3, 3, 3)).unwrap().is_validated());
}

#[test]
fn a_message_is_only_written_to_the_launchers_own_pipe() {
    let (board, file) = Board::create(&config(4)).unwrap();
    let (_reader, pipe) = rustix::pipe::pipe().unwrap();
    let attach = Attach::new(&board, &file, &pipe);
    // The launcher has exited, and another process has its id.
    let other = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(other.path(), "unrelated bytes").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(other.as_file()).cast_unsigned();
    assert!(!Attach { pipe: number, ..attach }.send(ShimMessage::Want(b"a")));
    assert_eq!(std::fs::read(other.path()).unwrap(), b"unrelated bytes");
    let (_reader, other) = rustix::pipe::pipe().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&other).cast_unsigned();
    assert!(!Attach { pipe: number, ..attach }.send(ShimMessage::Want(b"a")));
}
