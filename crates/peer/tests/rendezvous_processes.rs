//! Ranks that are processes of their own, on the loopback: they find each other, agree, get the
//! listing, are killed, and come back.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use belady_data::source::{ListingProgress, OpenOptions, Operations, Snapshots, Source};
use belady_peer::rendezvous::{FindOptions, find, launcher, port_of};
use belady_peer::{Cluster, JobKey, JoinOptions, drawn, join, open_together};

/// The dataset of a child process; the process is a child if this is set.
const DATASET: &str = "BELADY_TEST_DATASET";

fn take_part(dataset: &str) -> Result<(Cluster, Arc<dyn Source>, String), String> {
    let variables = launcher::of_this_process();
    let meet = find(&variables, FindOptions::default()).map_err(|error| error.to_string())?;
    let meet = meet.ok_or("the environment names no other process")?;
    let mine = || Ok(std::process::id().to_string().into_bytes());
    let seed = drawn(&*meet, "seed", mine).map_err(|error| error.to_string())?;
    let seed = String::from_utf8(seed).map_err(|error| error.to_string())?;
    let cluster = join(meet, JoinOptions::default()).map_err(|error| error.to_string())?;
    let options = OpenOptions { snapshots: Snapshots::Off, ..OpenOptions::default() };
    let source = open_together(&cluster, Path::new(dataset), &options, &ListingProgress::silent());
    Ok((cluster, source.map_err(|error| error.to_string())?, seed))
}

/// The body of a child process; does nothing in an ordinary test run.
#[test]
fn as_a_rank() {
    let Ok(dataset) = std::env::var(DATASET) else { return };
    match take_part(&dataset) {
        Ok((_cluster, source, seed)) => {
            let asked = source.operations() != Operations::default();
            println!("\nREADY {seed} {:x} {asked}", source.catalog().fingerprint());
            // Stays until its standard input is closed, or its parent is gone.
            let _ = std::io::stdin().read(&mut [0]);
        }
        Err(sentence) => println!("\nFAILED {sentence}"),
    }
}

/// A rank, killed on drop.
struct Rank {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Rank {
    fn start(rank: u32, size: u32, dataset: &Path, more: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"]);
        command.env(DATASET, dataset).envs(more.iter().copied());
        command.env("BELADY_RANK", rank.to_string()).env("BELADY_RANKS", size.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Returns the line that it prints.
    fn said(&mut self) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if line.starts_with("READY ") || line.starts_with("FAILED ") {
                return line.trim().to_owned();
            }
            line.clear();
        }
        panic!("it has ended without a word");
    }

    /// Returns seed and fingerprint, and whether it has read from the storage.
    fn is_ready(&mut self) -> (String, bool) {
        let said = self.said();
        let words: Vec<&str> = said.split(' ').collect();
        assert!(words.len() == 4 && words[0] == "READY", "{said}");
        (words[1..3].join(" "), words[3] == "true")
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// On a file system in memory, which counts as shared storage.
fn dataset() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    let directory = if shared.is_dir() {
        tempfile::tempdir_in(shared).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    };
    for class in ["cat", "dog"] {
        std::fs::create_dir(directory.path().join(class)).unwrap();
        for at in 0..20 {
            std::fs::write(directory.path().join(class).join(at.to_string()), class).unwrap();
        }
    }
    directory
}

/// An address where nothing listens, and whose port the system does not assign by itself.
fn free_place() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = || NEXT.fetch_add(1, Ordering::Relaxed);
    let ports = std::iter::repeat_with(next);
    let ports = ports.map(|at| port_of(&format!("test {} {at}", std::process::id())));
    let mut free = ports.filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    format!("127.0.0.1:{}", free.next().unwrap())
}

/// All ranks start, and each in turn is killed and comes back; all know the same at all times.
fn live_and_die(size: u32, more: &[(&str, &str)]) {
    let dataset = dataset();
    let start = |rank| Rank::start(rank, size, dataset.path(), more);
    let mut ranks: Vec<Rank> = (0..size).map(start).collect();
    let (known, asked) = ranks[0].is_ready();
    assert!(asked, "rank 0 has listed the dataset");
    for rank in &mut ranks[1..] {
        assert_eq!(rank.is_ready(), (known.clone(), false));
    }
    for rank in 0..size {
        let place = &mut ranks[rank as usize];
        place.child.kill().unwrap();
        place.child.wait().unwrap();
        *place = start(rank);
        assert_eq!(place.is_ready(), (known.clone(), rank == 0), "rank {rank} is back");
    }
}

#[test]
fn ranks_rejoin_a_rendezvous_server_after_kill_9() {
    let (place, key) = (free_place(), JobKey::random().unwrap().to_text());
    live_and_die(4, &[("BELADY_MEET", &place), ("BELADY_KEY", &key)]);
}

#[test]
fn ranks_rejoin_a_directory_rendezvous_after_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    live_and_die(3, &[("BELADY_MEET", path), ("BELADY_JOB", "test")]);
}

#[test]
fn a_process_with_another_key_is_told_and_the_others_go_on() {
    let (place, key) = (free_place(), JobKey::random().unwrap().to_text());
    let dataset = dataset();
    let meet = ("BELADY_MEET", &*place);
    let right = [meet, ("BELADY_KEY", &*key)];
    let mut first = Rank::start(0, 2, dataset.path(), &right);
    let wrong = JobKey::random().unwrap().to_text();
    let wrong = Rank::start(1, 2, dataset.path(), &[meet, ("BELADY_KEY", &*wrong)]).said();
    assert!(wrong.starts_with("FAILED") && wrong.contains("it has another job key"), "{wrong}");
    let none = Rank::start(1, 2, dataset.path(), &[meet]).said();
    assert!(none.contains("needs a key that all ranks share: set BELADY_KEY"), "{none}");
    let mut second = Rank::start(1, 2, dataset.path(), &right);
    assert_eq!(first.is_ready().0, second.is_ready().0);
}
