//! Sources in a process that may open few files.

mod source_support;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};

use belady_base::open_files;
use belady_data::source::{Source, Want};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use source_support::Dataset;

const FILES: u32 = 150;

fn many_files(salt: u32) -> Dataset {
    let dataset = Dataset::new();
    for file in 0..FILES {
        dataset.write(format!("{file:03}.bin"), &(salt + file).to_le_bytes());
    }
    dataset
}

fn read_all(source: &dyn Source, salt: u32) {
    for sample in 0..FILES {
        let mut bytes = [0; 4];
        source.read(&mut [Want::new(sample, &mut bytes)]).expect("read");
        assert_eq!(u32::from_le_bytes(bytes), salt + sample);
    }
}

/// The limit is that of the process, so one test at a time.
static LIMITED: Mutex<()> = Mutex::new(());

fn limit(descriptors: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).expect("limited");
}

fn open_another() -> std::io::Result<File> {
    File::open("/dev/null")
}

#[test]
fn several_sources_share_the_descriptors_of_the_process() {
    let _alone = LIMITED.lock().unwrap_or_else(PoisonError::into_inner);
    let datasets: Vec<Dataset> = (0..4).map(|at| many_files(at * 1000)).collect();
    limit(128);
    let sources: Vec<Box<dyn Source>> = datasets.iter().map(|it| it.open("records:4")).collect();
    for _ in 0..2 {
        for (at, source) in (0..).zip(&sources) {
            read_all(&**source, at * 1000);
        }
    }
    let others: Vec<_> = (0..50).map(|_| open_another()).collect();
    assert!(others.iter().all(Result::is_ok), "almost half is left for others");
}

#[test]
fn files_kept_open_are_closed_when_descriptors_run_out() {
    let _alone = LIMITED.lock().unwrap_or_else(PoisonError::into_inner);
    let dataset = many_files(7);
    limit(200);
    let source = dataset.open("records:4");
    let mut others: Vec<File> = std::iter::from_fn(|| open_another().ok()).collect();
    others.truncate(others.len() - 2);
    read_all(&*source, 7);
}

#[test]
fn the_soft_limit_is_raised_to_the_hard_one_and_never_lowered() {
    let _alone = LIMITED.lock().unwrap_or_else(PoisonError::into_inner);
    limit(100);
    open_files::raise_limit();
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.unwrap_or(u64::MAX).min(1 << 20);
    assert!(current.is_none_or(|current| current == most), "{current:?} of {maximum:?}");
    open_files::raise_limit();
    assert_eq!(getrlimit(Resource::Nofile).current, current);
}

#[test]
fn sockets_leave_the_last_quarter_of_the_descriptors_to_reads() {
    let _alone = LIMITED.lock().unwrap_or_else(PoisonError::into_inner);
    limit(100);
    let mut others: Vec<File> =
        std::iter::from_fn(|| open_another().ok().filter(|file| file.as_raw_fd() < 80)).collect();
    let socket = || OwnedFd::from(UnixDatagram::unbound().expect("a socket"));
    let refused = open_files::moved_down(socket()).expect_err("below 75 all are taken");
    assert!(open_files::is_shortage(&refused));
    let low = others.iter().position(|file| file.as_raw_fd() < 75).expect("one");
    others.remove(low);
    let moved = open_files::moved_down(socket()).expect("one is free now");
    assert!(moved.as_raw_fd() < 75);
    drop(moved);
    let moved = open_files::moved_down_or_kept(socket());
    assert!(moved.as_raw_fd() < 75);
    let kept = open_files::moved_down_or_kept(socket());
    assert!(kept.as_raw_fd() >= 75, "what cannot be done without stays where it is");
}
