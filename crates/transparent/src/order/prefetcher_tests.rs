//! The thread, with a launcher that tells what it is asked to do, and copies that are real files.

use std::fs::File;
use std::path::PathBuf;

use belady_data::sync::{Mutex, lock};

use super::super::world::{Standing, Wish};
use super::*;

/// As long as a test waits for what has to come.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Fetch(String, Wish),
    LetGo(String),
    Freed(String, u64),
}

struct Launcher {
    folder: tempfile::TempDir,
    asked: Sender<Asked>,
    /// Names of records and how often they were opened.
    records: Mutex<Vec<(String, u32)>>,
    standing: Standing,
}

fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap()
}

impl Launcher {
    /// Copies lie in memory, where leases are known to work.
    fn new(standing: Standing) -> (Arc<Self>, Receiver<Asked>) {
        let (asked, inbox) = mpsc::channel();
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let records = Mutex::new(vec![]);
        (Arc::new(Self { folder, asked, records, standing }), inbox)
    }

    fn copy(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn publish(&self, name: &str) {
        lock(&self.records).push((name.to_owned(), 0));
    }

    /// The program opens a file that has a record.
    fn open(&self, name: &str) {
        let mut records = lock(&self.records);
        let record = records.iter_mut().rfind(|(there, _)| there == name);
        record.unwrap().1 += 1;
    }
}

impl Sight for Launcher {
    fn all_opens(&self) -> u64 {
        lock(&self.records).iter().map(|&(_, opens)| u64::from(opens)).sum()
    }

    fn opens(&self, record: u32) -> Option<u32> {
        lock(&self.records).get(record as usize).map(|&(_, opens)| opens)
    }

    fn name(&self, record: u32) -> Option<Box<[u8]>> {
        lock(&self.records).get(record as usize).map(|(name, _)| name.as_bytes().into())
    }

    fn standing(&self, _name: &[u8]) -> Standing {
        self.standing
    }
}

impl Hands for Launcher {
    fn fetch(&self, name: &[u8], wish: Wish) {
        self.asked.send(Asked::Fetch(text(name), wish)).unwrap();
    }

    fn let_go(&self, name: &[u8]) -> Option<OwnedFd> {
        let path = self.copy(&text(name));
        let copy = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        self.asked.send(Asked::LetGo(text(name))).unwrap();
        Some(copy.into())
    }

    fn freed(&self, name: &[u8], bytes: u64) {
        self.asked.send(Asked::Freed(text(name), bytes)).unwrap();
    }
}

fn order(names: &[String]) -> Order {
    Order { names: names.iter().map(|name| name.as_bytes().into()).collect() }
}

fn config(plan: Plan, room: u64) -> PrefetcherConfig {
    PrefetcherConfig { plan, ahead: Ahead::default(), fetches: 1, room }
}

#[test]
fn a_copy_takes_room_until_nobody_has_it_open() {
    let (launcher, asked) = Launcher::new(Standing::Refused { bytes: 10 });
    let next = || asked.recv_timeout(PATIENCE).unwrap();
    let files = order(&["a", "b", "c"].map(String::from));
    let config = config(Plan::Follow(files), 20);
    let prefetcher = Prefetcher::start(config, Arc::clone(&launcher)).unwrap();
    let notes = prefetcher.notes().clone();
    let wish = Wish::Pass { bytes: 10 };
    for name in ["a", "b"] {
        assert_eq!(next(), Asked::Fetch(name.to_owned(), wish));
        std::fs::write(launcher.copy(name), "ten bytes.").unwrap();
        launcher.publish(name);
        notes.fetched(name.as_bytes(), Outcome::Kept { bytes: 10 });
    }
    let program = File::open(launcher.copy("a")).unwrap();
    launcher.open("a");
    assert_eq!(next(), Asked::LetGo("a".to_owned()));
    assert!(asked.try_recv().is_err(), "it is still open");
    drop(program);
    assert_eq!(next(), Asked::Freed("a".to_owned(), 10));
    assert_eq!(next(), Asked::Fetch("c".to_owned(), wish));
    let summary = prefetcher.stop();
    assert_eq!(summary.tally, Tally { passed: 2, ..Tally::default() });
    assert_eq!(summary.learnt, None);
    assert!(summary.was_following);
    assert!(launcher.copy("b").exists(), "what is in the window stays for the next run");
}

#[test]
fn an_order_is_learnt_from_messages_and_followed_by_counters() {
    let (launcher, asked) = Launcher::new(Standing::Unknown);
    let config = config(Plan::Learn(None), 0);
    let prefetcher = Prefetcher::start(config, Arc::clone(&launcher)).unwrap();
    let notes = prefetcher.notes().clone();
    let names: Vec<String> = (0..16).map(|number| format!("{number:02}")).collect();
    for name in &names {
        notes.opened(name.as_bytes());
        launcher.publish(name);
    }
    launcher.open("00");
    launcher.open("01");
    // The second epoch begins the same way.
    let next = asked.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next, Asked::Fetch("02".to_owned(), Wish::Keep));
    let summary = prefetcher.stop();
    assert_eq!(summary.learnt, Some(order(&names)));
    assert!(summary.was_following);
}
