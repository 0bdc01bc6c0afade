//! A ring whose memory the other side has overwritten is refused, or used within bounds.
#![cfg(not(feature = "shuttle"))]

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use belady_control::sampler::Step;
use belady_data::stage::{
    RingBatch, RingConfig, RingConsumer, RingError, RingProducer, Take, shared_ring,
};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

const CONFIG: RingConfig = RingConfig { capacity: 8192, batches: 4, align: 8 };
const NOW: Option<Duration> = Some(Duration::ZERO);

fn refused(file: impl Into<OwnedFd>, because: &str) {
    let error = RingConsumer::attach(file.into()).unwrap_err();
    assert!(matches!(error, RingError::NotARing { .. }), "{error}");
    assert!(error.to_string().contains(because), "{error}");
}

fn memory_file(content: &[u8], seals: SealFlags) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("test", flags).unwrap());
    file.write_all(content).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn size_seals() -> SealFlags {
    SealFlags::GROW | SealFlags::SHRINK
}

/// Returns a ring's file with some bytes replaced, before a consumer attaches.
fn ring_with(at: u64, bytes: &[u8]) -> File {
    let (_producer, file) = shared_ring(&CONFIG).unwrap();
    let file = File::from(file);
    file.write_all_at(bytes, at).unwrap();
    file
}

#[test]
fn a_file_that_is_not_a_ring_is_refused() {
    refused(tempfile::tempfile().unwrap(), "");
    refused(File::open("/dev/null").unwrap(), "");
    refused(memory_file(&[0; 10_000], SealFlags::empty()), "sealed");
    refused(memory_file(&[], size_seals()), "size is 0");
    refused(memory_file(&[1; 100], size_seals()), "size is 100");
    refused(memory_file(&[0; 10_000], size_seals()), "begin");
    let (_producer, file) = shared_ring(&CONFIG).unwrap();
    let mut whole =
        vec![0; File::from(file.try_clone().unwrap()).metadata().unwrap().len() as usize];
    File::from(file).read_exact_at(&mut whole, 0).unwrap();
    whole.push(0);
    refused(memory_file(&whole, size_seals()), "claims");
}

#[test]
fn a_header_with_a_false_size_is_refused() {
    // Words of the header: magic, version, then capacity, alignment and batches.
    refused(ring_with(0, &[0; 8]), "begin");
    refused(ring_with(8, &99u32.to_ne_bytes()), "version 99");
    for capacity in [0u64, 8191, 8193, 1 << 40, u64::MAX] {
        refused(ring_with(16, &capacity.to_ne_bytes()), "");
    }
    for align in [0u64, 3, 8192, u64::MAX] {
        refused(ring_with(24, &align.to_ne_bytes()), "aligned");
    }
    for batches in [0u64, 1, 1 << 20, u64::MAX] {
        refused(ring_with(32, &batches.to_ne_bytes()), "");
    }
}

#[test]
fn a_ring_has_one_consumer() {
    let (_producer, file) = shared_ring(&CONFIG).unwrap();
    let again = file.try_clone().unwrap();
    let first = RingConsumer::attach(file).unwrap();
    drop(first);
    assert!(matches!(RingConsumer::attach(again), Err(RingError::Occupied)));
}

/// Produces, takes and releases batches for a while; their bytes only have to be readable.
fn use_it(producer: &mut RingProducer, consumer: &mut RingConsumer, held: &mut Vec<RingBatch>) {
    for iteration in 0..6 {
        let lengths = [100, 0, 900];
        let step = Step { epoch: 0, iteration };
        if let Ok(Some(block)) = producer.reserve(step, &[1, 2, 3], &lengths) {
            for (index, length) in lengths.into_iter().enumerate() {
                assert_eq!(block.length(index) as u64, length);
                // SAFETY: this thread alone has the block, and has not published it.
                unsafe { block.slot(index) }.fill(1);
            }
            block.publish();
        }
        assert!(producer.lent() <= CONFIG.batches && producer.ready() <= CONFIG.batches);
        if let Take::Batch(batch) = consumer.take(NOW) {
            for index in 0..batch.len() {
                let sum: u64 = batch.bytes(index).iter().map(|byte| u64::from(*byte)).sum();
                assert!(sum <= 255 * CONFIG.capacity as u64);
            }
            held.push(batch);
        }
        if held.len() > 1 {
            held.remove(0);
        }
        producer.wait(Duration::ZERO);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn scribbles_never_lead_out_of_bounds(
        scribbles in prop::collection::vec(
            (
                // The header and descriptors, and the tables of the first blocks.
                prop_oneof![0usize..1024, 4096usize..4096 + 4096],
                prop_oneof![
                    any::<u64>(),
                    Just(u64::MAX),
                    0u64..20_000,
                    Just(0),
                ],
            ),
            1..60,
        ),
    ) {
        let (mut producer, file) = shared_ring(&CONFIG).unwrap();
        let scribbler = File::from(file.try_clone().unwrap());
        let mut consumer = RingConsumer::attach(file).unwrap();
        let mut held = Vec::new();
        use_it(&mut producer, &mut consumer, &mut held);
        for (at, word) in scribbles {
            // By a system call, so that no reference is written through.
            scribbler.write_all_at(&word.to_ne_bytes(), at as u64 / 4 * 4).unwrap();
            use_it(&mut producer, &mut consumer, &mut held);
        }
    }

    #[test]
    fn any_header_is_refused_or_used_within_bounds(
        words in prop::collection::vec((0u64..1024, prop_oneof![any::<u64>(), 0u64..300]), 1..8),
    ) {
        let (_producer, file) = shared_ring(&CONFIG).unwrap();
        let file = File::from(file);
        for (at, word) in words {
            file.write_all_at(&word.to_ne_bytes(), at / 4 * 4).unwrap();
        }
        if let Ok(mut consumer) = RingConsumer::attach(file.into()) {
            while let Take::Batch(batch) = consumer.take(NOW) {
                prop_assert!((0..batch.len()).all(|index| batch.bytes(index).len() < 10_000));
            }
        }
    }
}
