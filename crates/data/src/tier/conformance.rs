//! The conformance suite of tiers. An implementation is done when it passes.
//!
//! One part compares a tier with a naive model step by step, for any sizes, quota and order of
//! calls. The other calls it from several threads, and checks bytes and totals.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use belady_base::SampleId;
use belady_base::shared_memory::SharedMapping;
use belady_control::Sizes;
use belady_control::model::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::{
    DiskConfig, DiskTier, Evicted, FaultyTier, Get, Pinned, Put, RamTier, Tier, TierFaults,
};

const GRANULE: u64 = 16;

/// Makes tiers of one kind.
trait Maker {
    /// Creates a tier, which holds what the previous one of this maker held if `KEEPS`.
    fn make(&self, capacity: Bytes, sizes: &Arc<Sizes>) -> Box<dyn Tier>;
    const KEEPS: bool;
    /// The size of an additional sample.
    const LARGE: Option<u64> = None;
    /// Returns the space that a sample in pieces may need beyond its size.
    fn slack(held: u64) -> u64;
}

struct Ram;

impl Maker for Ram {
    const KEEPS: bool = false;

    fn make(&self, capacity: Bytes, sizes: &Arc<Sizes>) -> Box<dyn Tier> {
        Box::new(RamTier::new(capacity, Arc::clone(sizes)))
    }

    fn slack(_held: u64) -> u64 {
        0
    }
}

/// A RAM tier that other processes can map.
struct SharedRam;

impl Maker for SharedRam {
    const KEEPS: bool = false;

    fn make(&self, capacity: Bytes, sizes: &Arc<Sizes>) -> Box<dyn Tier> {
        Box::new(RamTier::shared(capacity, Arc::clone(sizes)))
    }

    fn slack(held: u64) -> u64 {
        Ram::slack(held)
    }
}

struct FaultyWithoutFaults;

impl Maker for FaultyWithoutFaults {
    const KEEPS: bool = false;

    fn make(&self, capacity: Bytes, sizes: &Arc<Sizes>) -> Box<dyn Tier> {
        let ram: Arc<dyn Tier> = Arc::new(RamTier::new(capacity, Arc::clone(sizes)));
        Box::new(FaultyTier::new(ram, TierFaults::default(), 1))
    }

    fn slack(held: u64) -> u64 {
        Ram::slack(held)
    }
}

/// A disk tier with segments of 16 KiB, so that samples reach their ends.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }
}

impl Maker for Disk {
    const KEEPS: bool = true;

    fn make(&self, capacity: Bytes, sizes: &Arc<Sizes>) -> Box<dyn Tier> {
        // The quota includes the index, the lock and file system tables.
        let index = 4096 + (24 * u64::from(sizes.len())).next_multiple_of(4096);
        let others = 2 * 4096;
        let quota = Bytes(capacity.0.next_multiple_of(4096) + index + others);
        Box::new(DiskTier::open(DiskConfig {
            directory: self.0.path().to_owned(),
            quota,
            share: quota,
            fingerprint: 42,
            name: "conformance".to_owned(),
            sizes: Arc::clone(sizes),
            segment: Some(Bytes(16 << 10)),
            versions: super::disk::FileVersions::default(),
        }))
    }

    /// With n gaps a table takes n granules, all of them in the largest gap.
    fn slack(held: u64) -> u64 {
        let holes = held + 8;
        GRANULE * holes * holes
    }
}

/// A disk tier with samples that begin at blocks.
struct DiskOfBlocks(Disk);

impl Maker for DiskOfBlocks {
    const KEEPS: bool = true;
    /// Large enough that the mean size is that of large samples. It never fits.
    const LARGE: Option<u64> = Some(4 << 20);

    fn make(&self, capacity: Bytes, sizes: &Arc<Sizes>) -> Box<dyn Tier> {
        self.0.make(capacity, sizes)
    }

    /// Every sample, gap and table may leave most of a block unused.
    fn slack(held: u64) -> u64 {
        3 * 512 * (held + 8)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(SampleId),
    Get(SampleId),
    Evict(SampleId),
    Pin(SampleId),
    /// Releases one of the pins.
    Unpin(usize),
    /// Closes and opens a tier that outlives the run.
    Reopen,
}

fn steps(samples: u32) -> impl Strategy<Value = Vec<Step>> {
    let sample = 0..samples;
    let step = prop_oneof![
        8 => sample.clone().prop_map(Step::Put),
        4 => sample.clone().prop_map(Step::Get),
        5 => sample.clone().prop_map(Step::Evict),
        3 => sample.prop_map(Step::Pin),
        3 => any::<usize>().prop_map(Step::Unpin),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..150)
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    let size =
        prop_oneof![1 => Just(0), 4 => 1_u64..100, 4 => 100_u64..5_000, 1 => 5_000_u64..40_000];
    proptest::collection::vec(size, 2..24)
}

/// Returns the bytes of a sample, which differ from those of every other.
fn payload(sample: SampleId, size: u64) -> Vec<u8> {
    let start = u64::from(sample).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7;
    (0..size).map(|at| (start.wrapping_add(at * 31) >> 2) as u8).collect()
}

fn bytes_of(pinned: Pinned) -> Vec<u8> {
    // SAFETY: the caller holds the pin.
    unsafe { std::slice::from_raw_parts(pinned.start, pinned.length) }.to_vec()
}

/// The naive model.
#[derive(Default)]
struct Model {
    held: HashSet<SampleId>,
    /// Pins of samples, evicted ones included.
    pins: Vec<(SampleId, Pinned)>,
    /// Evicted and still pinned.
    lent: HashSet<SampleId>,
}

impl Model {
    fn space_taken(&self, sizes: &Sizes) -> u64 {
        let all = self.held.iter().chain(&self.lent);
        all.map(|&sample| sizes.get(sample).next_multiple_of(GRANULE)).sum()
    }
}

fn run<M: Maker>(
    maker: &M,
    capacity: u64,
    mut sizes: Vec<u64>,
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    sizes.extend(M::LARGE);
    let sizes = Arc::new(Sizes::from_bytes(sizes));
    let mut tier = maker.make(Bytes(capacity), &sizes);
    let capacity = tier.status().capacity.0;
    prop_assert_eq!(tier.status().degraded, None);
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Put(sample) => {
                let size = sizes.get(sample);
                let got = tier.put(sample, &payload(sample, size), 0);
                if model.held.contains(&sample) {
                    prop_assert_eq!(got, Put::Present);
                } else if model.lent.contains(&sample) {
                    prop_assert_eq!(got, Put::Refused);
                } else if got == Put::Full {
                    let wanted = model.space_taken(&sizes) + size.next_multiple_of(GRANULE);
                    let slack = M::slack((model.held.len() + model.lent.len()) as u64);
                    prop_assert!(wanted + slack > capacity, "full with space left");
                } else {
                    prop_assert_eq!(got, Put::Stored);
                    model.held.insert(sample);
                }
            }
            Step::Get(sample) => {
                let size = sizes.get(sample);
                let mut into = vec![0xEE; size as usize];
                let expected = if model.held.contains(&sample) { Get::Hit } else { Get::Miss };
                prop_assert_eq!(tier.get(sample, &mut into), expected);
                if expected == Get::Hit {
                    prop_assert_eq!(into, payload(sample, size));
                }
            }
            Step::Evict(sample) => {
                prop_assert_eq!(tier.evict(sample), model.held.remove(&sample));
                if model.pins.iter().any(|&(pinned, _)| pinned == sample) {
                    model.lent.insert(sample);
                }
            }
            Step::Pin(sample) => {
                if let Some(pinned) = tier.pin(sample) {
                    prop_assert!(model.held.contains(&sample));
                    prop_assert_eq!(bytes_of(pinned), payload(sample, sizes.get(sample)));
                    prop_assert_eq!(mapped_elsewhere(&*tier, pinned), bytes_of(pinned));
                    model.pins.push((sample, pinned));
                }
            }
            Step::Unpin(which) => {
                if !model.pins.is_empty() {
                    let (sample, pinned) = model.pins.swap_remove(which % model.pins.len());
                    prop_assert_eq!(bytes_of(pinned), payload(sample, sizes.get(sample)));
                    tier.unpin(sample);
                    if !model.pins.iter().any(|&(other, _)| other == sample) {
                        model.lent.remove(&sample);
                    }
                }
            }
            Step::Reopen if M::KEEPS => {
                drop(tier);
                tier = maker.make(Bytes(capacity), &sizes);
            }
            Step::Reopen => {}
        }
        let status = tier.status();
        prop_assert!(model.space_taken(&sizes) <= capacity, "the quota is hard");
        prop_assert!(status.used <= status.capacity);
        prop_assert!(status.used.0 >= model.space_taken(&sizes));
        prop_assert_eq!(status.samples, model.held.len() as u64);
        for sample in 0..sizes.len() {
            prop_assert_eq!(tier.holds(sample), model.held.contains(&sample));
            prop_assert_eq!(tier.is_current(sample), model.held.contains(&sample));
            let size = sizes.get(sample);
            prop_assert!(tier.footprint(size) >= size, "a quota pays for every byte");
        }
    }
    Ok(())
}

fn agrees_with_the_model<M: Maker>(cases: u32, new: impl Fn() -> M) {
    let inputs = (0_u64..60_000, sizes()).prop_flat_map(|(capacity, sizes)| {
        let steps = steps((sizes.len() + usize::from(M::LARGE.is_some())) as u32);
        (Just(capacity), Just(sizes), steps)
    });
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let result = runner.run(&inputs, |(capacity, sizes, steps)| {
        // A quota of zero is tested elsewhere.
        run(&new(), capacity.max(GRANULE), sizes, steps)
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

/// Threads put, get, pin and evict at random; bytes are right and no space is lost.
fn withstands_threads<M: Maker>(maker: &M, rounds: u64) {
    let sizes: Vec<u64> = (0..40).map(|sample| (sample * sample * 7) % 3_000).collect();
    let sizes = Arc::new(Sizes::from_bytes(sizes));
    let tier = maker.make(Bytes(16 << 10), &sizes);
    let tier = &*tier;
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let sizes = &sizes;
            scope.spawn(move || {
                let mut random = thread + 1;
                for _ in 0..rounds {
                    // xorshift64
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let sample = (random >> 8) as u32 % sizes.len();
                    touch(tier, sample, sizes.get(sample), random % 5);
                }
            });
        }
    });
    let mut left: HashMap<SampleId, Vec<u8>> = HashMap::new();
    for sample in 0..sizes.len() {
        let mut into = vec![0; sizes.get(sample) as usize];
        if tier.get(sample, &mut into) == Get::Hit {
            left.insert(sample, into);
        }
    }
    assert_eq!(tier.status().samples, left.len() as u64);
    for (sample, bytes) in left {
        assert_eq!(bytes, payload(sample, sizes.get(sample)));
        assert!(tier.evict(sample));
    }
    assert_eq!((tier.status().samples, tier.status().used), (0, Bytes(0)), "space was lost");
}

fn touch(tier: &dyn Tier, sample: SampleId, size: u64, what: u64) {
    match what {
        0 | 1 => {
            tier.put(sample, &payload(sample, size), 0);
        }
        2 => {
            let mut into = vec![0; size as usize];
            match tier.get(sample, &mut into) {
                Get::Hit => assert_eq!(into, payload(sample, size)),
                Get::Miss => {}
                Get::Damaged => panic!("sample {sample} counts as damaged but was only moved"),
            }
        }
        3 => {
            if let Some(pinned) = tier.pin(sample) {
                std::thread::yield_now();
                assert_eq!(bytes_of(pinned), payload(sample, size));
                tier.unpin(sample);
            }
        }
        _ => {
            tier.evict(sample);
        }
    }
}

/// Returns a pinned sample as another process finds it, if the tier's memory can be mapped.
fn mapped_elsewhere(tier: &dyn Tier, pinned: Pinned) -> Vec<u8> {
    let Some(memory) = tier.shared_memory() else {
        assert_eq!(pinned.offset, None);
        return bytes_of(pinned);
    };
    let file = memory.as_fd().try_clone_to_owned().expect("a descriptor");
    let other = SharedMapping::attach(file, memory.len(), false).expect("a mapping");
    let offset = pinned.offset.expect("the place in the memory");
    assert!(offset + pinned.length <= other.len());
    let start = other.start().as_ptr().wrapping_add(offset).cast_const();
    // SAFETY: within the mapping, and pinned.
    unsafe { std::slice::from_raw_parts(start, pinned.length) }.to_vec()
}

/// Samples that do not exist or have another length are refused and missed; evicted ones are gone.
fn refuses_what_is_no_sample<M: Maker>(maker: &M) {
    let sizes = Arc::new(Sizes::from_bytes(vec![100, 200]));
    let tier = maker.make(Bytes(10_000), &sizes);
    let bytes = payload(0, 100);
    assert_eq!(tier.put(2, &bytes, 0), Put::Refused, "there is no third sample");
    assert_eq!(tier.put(1, &bytes, 0), Put::Refused, "too short");
    assert_eq!((tier.put(0, &bytes, 0), tier.put(0, &bytes, 0)), (Put::Stored, Put::Present));
    let get = |sample, length| tier.get(sample, &mut vec![0; length]);
    assert_eq!((get(0, 100), get(0, 99), get(1, 200)), (Get::Hit, Get::Miss, Get::Miss));
    assert_eq!(get(2, 100), Get::Miss);
    assert_eq!((tier.evict_now(0), tier.evict_now(0)), (Evicted::Gone, Evicted::NotHeld));
    assert_eq!(tier.put(0, &bytes, 0), Put::Stored);
    assert_eq!((tier.evict(0), tier.evict(0), tier.evict(1)), (true, false, false));
}

#[test]
fn tiers_refuse_what_is_no_sample() {
    refuses_what_is_no_sample(&Ram);
    refuses_what_is_no_sample(&FaultyWithoutFaults);
    refuses_what_is_no_sample(&Disk::new());
}

#[test]
fn ram_agrees_with_the_model() {
    agrees_with_the_model(400, || Ram);
}

#[test]
fn shared_ram_agrees_with_the_model_and_with_another_mapping() {
    agrees_with_the_model(200, || SharedRam);
}

#[test]
fn faulty_without_faults_agrees_with_the_model() {
    agrees_with_the_model(100, || FaultyWithoutFaults);
}

#[test]
fn disk_agrees_with_the_model() {
    agrees_with_the_model(120, Disk::new);
}

#[test]
fn disk_of_blocks_agrees_with_the_model() {
    agrees_with_the_model(120, || DiskOfBlocks(Disk::new()));
}

#[test]
fn ram_withstands_threads() {
    withstands_threads(&Ram, 50_000);
    withstands_threads(&SharedRam, 20_000);
}

#[test]
fn disk_withstands_threads() {
    withstands_threads(&Disk::new(), 5_000);
}
