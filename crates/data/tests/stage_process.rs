//! The ring between two processes: this test binary runs itself again as the other side.
#![cfg(not(feature = "shuttle"))]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belady_control::sampler::Step;
use belady_data::stage::{
    RingBatch, RingBlock, RingConfig, RingConsumer, RingProducer, Take, Wait, shared_ring,
};
use rustix::io::{FdFlags, fcntl_setfd};

const BATCHES: u32 = 2_000;
const CONFIG: RingConfig = RingConfig { capacity: 64 << 10, batches: 8, align: 8 };
/// The environment variable with the child's role and descriptor.
const ROLE: &str = "BELADY_TEST_ROLE";
const FILE: &str = "BELADY_TEST_FILE";

fn lengths(iteration: u32) -> Vec<u64> {
    (0..iteration % 7).map(|index| u64::from((iteration * 37 + index * 501) % 3000)).collect()
}

fn byte(iteration: u32, index: usize, at: usize) -> u8 {
    (iteration as usize * 31 + index * 7 + at) as u8
}

fn reserve(producer: &mut RingProducer, iteration: u32) -> Result<RingBlock, Wait> {
    let lengths = lengths(iteration);
    let samples: Vec<u32> = (0..lengths.len() as u32).map(|index| iteration + index).collect();
    loop {
        let step = Step { epoch: 3, iteration };
        if let Some(block) = producer.reserve(step, &samples, &lengths).unwrap() {
            return Ok(block);
        }
        match producer.wait(Duration::MAX) {
            Wait::Released => {}
            other => return Err(other),
        }
    }
}

fn produce(producer: &mut RingProducer, iteration: u32) -> Result<(), Wait> {
    let block = reserve(producer, iteration)?;
    for index in 0..block.len() {
        // SAFETY: this thread alone has the block, and has not published it.
        for (at, to) in unsafe { block.slot(index) }.iter_mut().enumerate() {
            *to = byte(iteration, index, at);
        }
    }
    block.publish();
    Ok(())
}

fn check(batch: &RingBatch, iteration: u32) {
    assert_eq!(batch.step(), Step { epoch: 3, iteration });
    let lengths = lengths(iteration);
    assert_eq!(batch.len(), lengths.len());
    for (index, length) in lengths.into_iter().enumerate() {
        assert_eq!(batch.sample(index), iteration + index as u32);
        let bytes = batch.bytes(index);
        assert_eq!(bytes.len() as u64, length);
        assert!(bytes.iter().enumerate().all(|(at, found)| *found == byte(iteration, index, at)));
    }
}

/// Runs this binary again with only the test `the_other_side`, and reads one line from it.
fn other_side(role: &str, file: Option<&OwnedFd>) -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["the_other_side", "--exact", "--nocapture", "--quiet"]);
    command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(file) = file {
        fcntl_setfd(file, FdFlags::empty()).unwrap();
        command.env(FILE, file.as_raw_fd().to_string());
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.find_map(|line| Some(line.split_once("SAYS ")?.1.to_string()));
    (child, said.expect("the child says one thing"))
}

/// Not a test: the child's side of the tests below.
#[test]
fn the_other_side() {
    let inherited = || {
        let number = std::env::var(FILE).unwrap().parse().unwrap();
        // SAFETY: the parent left this descriptor open, and nothing else uses it.
        RingConsumer::attach(unsafe { OwnedFd::from_raw_fd(number) }).unwrap()
    };
    let sleep = || loop {
        std::thread::sleep(Duration::from_mins(1));
    };
    match std::env::var(ROLE).as_deref() {
        Ok("reads all") => {
            let mut consumer = inherited();
            let mut held = None;
            for iteration in 0..BATCHES {
                let Take::Batch(batch) = consumer.take(None) else { panic!("too early an end") };
                check(&batch, iteration);
                // Holds one batch until it has the next.
                if let Some(before) = held.replace(batch) {
                    check(&before, iteration - 1);
                }
            }
            assert!(matches!(consumer.take(None), Take::Ended));
            println!("SAYS complete {}", consumer.is_complete());
            drop((held, consumer));
            // Before the test harness writes to a closed pipe.
            std::process::exit(0);
        }
        Ok("takes one and hangs") => {
            let mut consumer = inherited();
            let Take::Batch(batch) = consumer.take(None) else { panic!("too early an end") };
            check(&batch, 0);
            println!("SAYS holding");
            sleep();
        }
        Ok("produces three and hangs") => {
            let (mut producer, file) = shared_ring(&CONFIG).unwrap();
            for iteration in 0..3 {
                produce(&mut producer, iteration).unwrap();
            }
            let _unpublished = reserve(&mut producer, 3).unwrap();
            println!("SAYS {}", file.as_raw_fd());
            sleep();
        }
        _ => {}
    }
}

#[test]
fn every_batch_reaches_the_other_process_unharmed() {
    let (mut producer, file) = shared_ring(&CONFIG).unwrap();
    let producing = std::thread::spawn(move || {
        for iteration in 0..BATCHES {
            produce(&mut producer, iteration).unwrap();
        }
        producer.finish();
        producer
    });
    let (mut child, said) = other_side("reads all", Some(&file));
    assert_eq!(said, "complete true");
    assert!(child.wait().unwrap().success());
    let producer = producing.join().unwrap();
    assert_eq!((producer.lent(), producer.ready()), (0, 0));
}

#[test]
fn a_killed_consumer_is_noticed() {
    let (mut producer, file) = shared_ring(&CONFIG).unwrap();
    produce(&mut producer, 0).unwrap();
    let (mut child, said) = other_side("takes one and hangs", Some(&file));
    assert_eq!((said.as_str(), producer.lent()), ("holding", 1));
    let outcome = std::thread::spawn(move || {
        (1..).find_map(|iteration| produce(&mut producer, iteration).err())
    });
    child.kill().unwrap();
    // Before the child is waited for: it may stay a zombie for long.
    assert_eq!(outcome.join().unwrap(), Some(Wait::ConsumerGone));
    child.wait().unwrap();
}

#[test]
fn a_killed_producer_is_noticed() {
    let (mut child, said) = other_side("produces three and hangs", None);
    let path = format!("/proc/{}/fd/{said}", child.id());
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut consumer = RingConsumer::attach(file.into()).unwrap();
    let Take::Batch(first) = consumer.take(None) else { panic!("published") };
    child.kill().unwrap();
    check(&first, 0);
    for iteration in 1..3 {
        let Take::Batch(batch) = consumer.take(None) else { panic!("published before the end") };
        check(&batch, iteration);
    }
    assert!(matches!(consumer.take(None), Take::Ended));
    assert!(!consumer.is_complete());
    child.wait().unwrap();
}

#[test]
fn a_fork_that_drops_what_it_inherited_releases_nothing() {
    let (mut producer, file) = shared_ring(&CONFIG).unwrap();
    let mut consumer = RingConsumer::attach(file).unwrap();
    produce(&mut producer, 1).unwrap();
    let Take::Batch(batch) = consumer.take(None) else { panic!("published") };
    // SAFETY: the child only drops, which takes no lock but the allocator's, and leaves.
    match unsafe { libc::fork() } {
        0 => {
            let ended = matches!(consumer.take(None), Take::Ended);
            let stopped = producer.wait(Duration::MAX) == Wait::Stopped;
            drop((batch, consumer, producer));
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!(ended && stopped))) };
        }
        child => {
            let mut status = 0;
            // SAFETY: our own child, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the fork ended as it should");
        }
    }
    assert_eq!(producer.lent(), 1);
    check(&batch, 1);
    drop(batch);
    assert_eq!((producer.lent(), producer.wait(Duration::ZERO)), (0, Wait::Released));
    produce(&mut producer, 2).unwrap();
    assert!(matches!(consumer.take(None), Take::Batch(_)));
}
