//! The disk tier when processes die or share a directory.
//!
//! The tests run this binary again as a child that churns: it puts and evicts until it
//! is killed.

mod tier_support;

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use belady_data::tier::{DiskTier, Put, Tier};
use tempfile::tempdir;
use tier_support::*;

const DIRECTORY: &str = "BELADY_TEST_CHURN_DIRECTORY";
const SEED: &str = "BELADY_TEST_CHURN_SEED";
const SAMPLES: u32 = 500;
/// Space for some 200 of the samples.
const QUOTA: u64 = 320 << 10;

/// Not a test of its own: what the child runs.
#[test]
fn churn_until_killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let tier = open(Path::new(&directory), QUOTA, &mixed_sizes(SAMPLES));
    assert_eq!(tier.status().degraded, None);
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        churn(&tier, seed, 10_000);
    }
}

fn churn(tier: &DiskTier, seed: u64, rounds: u64) {
    let sizes = mixed_sizes(SAMPLES);
    let mut random = seed * 2 + 1;
    for _ in 0..rounds {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let sample = (random >> 8) as u32 % SAMPLES;
        if tier.put(sample, &payload(sample, &sizes), 0) == Put::Full {
            (0..4).for_each(|next| {
                tier.evict((sample + next * 7) % SAMPLES);
            });
        }
    }
}

/// A child that does not outlive its test.
struct Churning(Child);

impl Churning {
    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("gone");
    }
}

impl Drop for Churning {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn child(directory: &Path, seed: u64) -> Churning {
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "churn_until_killed", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(SEED, seed.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("a child");
    Churning(child)
}

/// Waits until the child has put something, which it has not done yet if it is slow to start.
fn wait_for_samples(directory: &Path) {
    let index = cache(directory).join("index");
    for _ in 0..2_000 {
        let held = std::fs::read(&index).ok().and_then(|bytes| {
            Some(belady_data::tier::disk::check_index(&bytes).ok()?.held().count())
        });
        if held.is_some_and(|held| held > 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the child put nothing in ten seconds");
}

#[test]
fn a_writer_killed_at_any_point_leaves_right_bytes_only() {
    let sizes = mixed_sizes(SAMPLES);
    let directory = tempdir().expect("a directory");
    let mut found = 0;
    for round in 0..40 {
        let mut child = child(directory.path(), round);
        wait_for_samples(directory.path());
        std::thread::sleep(Duration::from_micros(round * 1_711 % 40_000));
        child.kill();

        let tier = open(directory.path(), QUOTA, &sizes);
        assert_eq!(tier.status().degraded, None);
        let held = tier.status().samples;
        assert_eq!(hits(&tier, &sizes), held, "a kill damages nothing");
        found += held;
        churn(&tier, round, 200);
        assert!(hits(&tier, &sizes) > 0);
        assert!(disk_usage(&root(directory.path())) <= QUOTA);
        assert!(tier.status().used <= tier.status().capacity);
        if round % 8 == 7 {
            // No space was lost.
            (0..SAMPLES).for_each(|sample| {
                tier.evict(sample);
            });
            assert_eq!(tier.status().used.0, 0);
        }
    }
    assert!(found > 40 * 50, "{found} samples outlived 40 kills");
}

#[test]
fn a_second_process_reads_right_bytes_while_the_first_churns() {
    let sizes = mixed_sizes(SAMPLES);
    let directory = tempdir().expect("a directory");
    let mut child = child(directory.path(), 5);
    wait_for_samples(directory.path());
    let reader = open(directory.path(), QUOTA, &sizes);
    let mut read = 0;
    for _ in 0..100 {
        read += hits(&reader, &sizes);
        assert_eq!(reader.put(3, &payload(3, &sizes), 0), Put::Refused);
    }
    assert!(read > 1_000, "{read}");
    assert!(child.0.try_wait().expect("asked").is_none(), "the child churns on");
    child.kill();
    // Each kill may leave the count of the samples wrong by one.
    let held = hits(&reader, &sizes);
    assert!(reader.status().samples.abs_diff(held) <= 1, "{held} and {:?}", reader.status());
}

const FEW_DESCRIPTORS: &str = "BELADY_TEST_FEW_DESCRIPTORS";

/// Not a test of its own: what the child runs.
#[test]
fn open_with_few_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Ok(directory) = std::env::var(FEW_DESCRIPTORS) else { return };
    let (directory, sizes) = (Path::new(&directory), mixed_sizes(SAMPLES));
    let all = getrlimit(Resource::Nofile);
    for descriptors in 3..30 {
        setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), ..all }).expect("set");
        let tier = open(directory, 2 * QUOTA, &sizes);
        tier.recover();
        drop(tier);
        setrlimit(Resource::Nofile, all).expect("set");
    }
}

#[test]
fn a_process_without_descriptors_leaves_all_caches_as_they_are() {
    let directory = tempdir().expect("a directory");
    let sizes = mixed_sizes(SAMPLES);
    // In use by this process, and all of the quota taken.
    let config = belady_data::tier::DiskConfig {
        fingerprint: 99,
        ..config(directory.path(), QUOTA, &sizes)
    };
    let other = DiskTier::open(config);
    let held = fill(&other, &sizes);
    let tier = open(directory.path(), 2 * QUOTA, &sizes);
    let own = fill(&tier, &sizes);
    drop(tier);
    let status = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "open_with_few_descriptors", "--nocapture"])
        .env(FEW_DESCRIPTORS, directory.path())
        .stdout(std::process::Stdio::null())
        .status()
        .expect("a child");
    assert!(status.success());
    assert_eq!(hits(&other, &sizes), held);
    drop(other);
    let tier = open(directory.path(), 2 * QUOTA, &sizes);
    assert_eq!(hits(&tier, &sizes), own);
}
