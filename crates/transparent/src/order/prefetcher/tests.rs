//! The thread with a launcher that records its requests, and copies that are real files.

use std::fs::File;
use std::path::PathBuf;

use belady_base::sync::{Mutex, lock};

use super::super::launcher::{CopyState, FetchKind};
use super::*;

/// How long a test waits for an event that has to happen.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Fetch(String, FetchKind),
    Evict(String),
    Release(String, u64),
}

struct Launcher {
    folder: tempfile::TempDir,
    asked: Sender<Asked>,
    /// Names and opens of records.
    records: Mutex<Vec<(String, u32)>>,
    copy_state: CopyState,
}

fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap()
}

impl Launcher {
    /// Copies are in memory, where leases work.
    fn new(copy_state: CopyState) -> (Arc<Self>, Receiver<Asked>) {
        let (asked, inbox) = mpsc::channel();
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let records = Mutex::new(vec![]);
        (Arc::new(Self { folder, asked, records, copy_state }), inbox)
    }

    fn copy(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn publish(&self, name: &str) {
        lock(&self.records).push((name.to_owned(), 0));
    }

    /// Counts an open of a file that has a record.
    fn open(&self, name: &str) {
        let mut records = lock(&self.records);
        let record = records.iter_mut().rfind(|(there, _)| there == name);
        record.unwrap().1 += 1;
    }
}

impl BoardView for Launcher {
    fn all_opens(&self) -> u64 {
        lock(&self.records).iter().map(|&(_, opens)| u64::from(opens)).sum()
    }

    fn opens(&self, record: u32) -> Option<u32> {
        lock(&self.records).get(record as usize).map(|&(_, opens)| opens)
    }

    fn name(&self, record: u32) -> Option<Box<[u8]>> {
        lock(&self.records).get(record as usize).map(|(name, _)| name.as_bytes().into())
    }

    fn copy_state(&self, _name: &[u8]) -> CopyState {
        self.copy_state
    }
}

impl CopyFetcher for Launcher {
    fn fetch(&self, name: &[u8], kind: FetchKind) {
        self.asked.send(Asked::Fetch(text(name), kind)).unwrap();
    }

    fn evict(&self, name: &[u8]) -> Option<OwnedFd> {
        let path = self.copy(&text(name));
        let copy = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        self.asked.send(Asked::Evict(text(name))).unwrap();
        Some(copy.into())
    }

    fn release(&self, name: &[u8], bytes: u64) {
        self.asked.send(Asked::Release(text(name), bytes)).unwrap();
    }
}

fn order(names: &[String]) -> FileOrder {
    FileOrder { names: names.iter().map(|name| name.as_bytes().into()).collect() }
}

fn config(order: OrderSource, window: u64) -> PrefetcherConfig {
    PrefetcherConfig { order, lookahead: Lookahead::default(), fetches: 1, window }
}

#[test]
fn an_evicted_copy_takes_space_until_it_is_closed() {
    let (launcher, asked) = Launcher::new(CopyState::Refused { bytes: 10 });
    let next = || asked.recv_timeout(PATIENCE).unwrap();
    let files = order(&["a", "b", "c"].map(String::from));
    let config = config(OrderSource::Follow(files), 20);
    let prefetcher = OrderPrefetcher::start(config, Arc::clone(&launcher)).unwrap();
    let events = prefetcher.events().clone();
    let kind = FetchKind::Transient { bytes: 10 };
    for name in ["a", "b"] {
        assert_eq!(next(), Asked::Fetch(name.to_owned(), kind));
        std::fs::write(launcher.copy(name), "ten bytes.").unwrap();
        launcher.publish(name);
        events.fetched(name.as_bytes(), FetchOutcome::Kept { bytes: 10 });
    }
    let program = File::open(launcher.copy("a")).unwrap();
    launcher.open("a");
    assert_eq!(next(), Asked::Evict("a".to_owned()));
    assert!(asked.try_recv().is_err(), "it is still open");
    drop(program);
    assert_eq!(next(), Asked::Release("a".to_owned(), 10));
    assert_eq!(next(), Asked::Fetch("c".to_owned(), kind));
    let summary = prefetcher.stop();
    assert_eq!(summary.tally, PrefetchTally { passed: 2, ..PrefetchTally::default() });
    assert_eq!(summary.learnt, None);
    assert!(summary.was_following);
    assert!(launcher.copy("b").exists(), "a copy in the window stays where it is");
}

#[test]
fn an_order_is_learnt_from_messages_and_followed_by_counters() {
    let (launcher, asked) = Launcher::new(CopyState::Unknown);
    let config = config(OrderSource::Learn(None), 0);
    let prefetcher = OrderPrefetcher::start(config, Arc::clone(&launcher)).unwrap();
    let events = prefetcher.events().clone();
    let names: Vec<String> = (0..16).map(|number| format!("{number:02}")).collect();
    for name in &names {
        events.opened(name.as_bytes());
        launcher.publish(name);
    }
    launcher.open("00");
    launcher.open("01");
    // The second epoch begins the same way.
    let next = asked.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next, Asked::Fetch("02".to_owned(), FetchKind::Keep));
    let summary = prefetcher.stop();
    assert_eq!(summary.learnt, Some(order(&names)));
    assert!(summary.was_following);
}
