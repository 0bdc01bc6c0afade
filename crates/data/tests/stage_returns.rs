//! Space that returns in another order than it was reserved in.
#![cfg(not(feature = "shuttle"))]

use std::time::Duration;

use belady_control::sampler::Step;
use belady_data::stage::{
    RingBatch, RingBlock, RingConfig, RingConsumer, RingProducer, Take, Wait, mapped_ring, ring,
    shared_ring,
};

/// Bytes of the one sample in each batch, and of the block that it lies in.
const SAMPLE: u64 = 4000;
const BLOCK: usize = 4032;

fn reserve(producer: &mut RingProducer, iteration: u32) -> Option<RingBlock> {
    producer.reserve(Step { epoch: 0, iteration }, &[iteration], &[SAMPLE]).unwrap()
}

/// Reserves, fills and publishes a batch; the block is not dropped yet.
fn put(producer: &mut RingProducer, iteration: u32) -> Option<RingBlock> {
    let block = reserve(producer, iteration)?;
    // SAFETY: this thread alone has the block, and has not published it.
    unsafe { block.slot(0) }.fill(iteration as u8);
    block.publish();
    Some(block)
}

fn take(consumer: &mut RingConsumer) -> RingBatch {
    match consumer.take(Some(Duration::ZERO)) {
        Take::Batch(batch) => batch,
        other => panic!("published, and yet {other:?}"),
    }
}

fn is_unharmed(batch: &RingBatch) -> bool {
    let iteration = batch.step().iteration;
    batch.sample(0) == iteration && batch.bytes(0).iter().all(|byte| *byte == iteration as u8)
}

fn ring_of(blocks: usize, batches: u32) -> (RingProducer, RingConsumer) {
    ring(&RingConfig { capacity: blocks * BLOCK, batches, align: 1 }).unwrap()
}

#[test]
fn one_read_that_never_returns_does_not_stop_the_run() {
    // Space for the batch of the hung read, the one that is held, and the next.
    let (mut producer, mut consumer) = ring_of(6, 3);
    let hung = put(&mut producer, 0).unwrap();
    // SAFETY: no thread writes to it, and the space is not reused while the block lives.
    let written = unsafe { hung.slot(0) }.as_ptr();
    let mut held = take(&mut consumer);
    for iteration in 1..1000 {
        put(&mut producer, iteration).expect("space beside the hung and the held batch");
        let next = take(&mut consumer);
        assert!(is_unharmed(&held) && is_unharmed(&next) && next.step().iteration == iteration);
        held = next;
        assert_eq!((producer.lent(), producer.ready()), (1, 0));
    }
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(written, SAMPLE as usize) };
    assert!(bytes.iter().all(|byte| *byte == 0), "space used twice");
    // The last two outstanding batches are the hung one and the held one, until it returns.
    drop((hung, held));
    let _blocks = [1000, 1001, 1002].map(|iteration| reserve(&mut producer, iteration).unwrap());
}

#[test]
fn with_a_hung_read_the_smallest_ring_waits_for_the_held_batch() {
    let (mut producer, mut consumer) = ring_of(2, 8);
    let hung = put(&mut producer, 0).unwrap();
    drop(take(&mut consumer));
    put(&mut producer, 1).unwrap();
    let held = take(&mut consumer);
    assert!(reserve(&mut producer, 2).is_none());
    assert_eq!((producer.lent(), producer.wait(Duration::ZERO)), (1, Wait::TimedOut));
    drop(held);
    assert_eq!((producer.lent(), producer.wait(Duration::ZERO)), (0, Wait::Released));
    put(&mut producer, 2).unwrap();
    assert!(is_unharmed(&take(&mut consumer)));
    drop(hung);
    assert_eq!(producer.wait(Duration::ZERO), Wait::Released);
}

#[test]
fn after_a_pause_the_whole_ring_is_usable() {
    for keeps_up_for in 3..24 {
        let (mut producer, mut consumer) = ring_of(1000, 1024);
        let mut iterations = 0..;
        let mut put_next = |producer: &mut RingProducer| put(producer, iterations.next().unwrap());
        let mut held = None;
        for _ in 0..keeps_up_for {
            while producer.ready() < 2 {
                put_next(&mut producer).unwrap();
            }
            held = Some(take(&mut consumer));
        }
        // Now it pauses and holds that batch.
        while put_next(&mut producer).is_some() {}
        assert_eq!((producer.lent(), producer.ready()), (1, 999));
        assert!(held.is_some_and(|batch| is_unharmed(&batch)));
    }
}

#[test]
fn a_wait_ends_when_a_later_batch_returns_first() {
    let (mut producer, mut consumer) = ring_of(4, 8);
    for iteration in 0..4 {
        put(&mut producer, iteration).unwrap();
    }
    let [first, second, third] = [(); 3].map(|()| take(&mut consumer));
    assert!(reserve(&mut producer, 4).is_none());
    assert_eq!(producer.wait(Duration::ZERO), Wait::TimedOut);
    drop(second);
    assert_eq!(producer.wait(Duration::ZERO), Wait::Released);
    assert_eq!((producer.lent(), producer.ready()), (2, 1));
    put(&mut producer, 4).unwrap();
    assert!(reserve(&mut producer, 5).is_none());
    assert_eq!(producer.wait(Duration::ZERO), Wait::TimedOut, "known of already");
    assert_eq!((producer.lent(), producer.ready()), (2, 2));
    assert!(is_unharmed(&first) && is_unharmed(&third));
    assert!([3, 4].iter().all(|next| take(&mut consumer).step().iteration == *next));
}

#[test]
fn each_hung_read_costs_one_outstanding_batch() {
    let (mut producer, mut consumer) = ring_of(100, 4);
    let mut hung = Vec::new();
    for iteration in 0..4 {
        hung.push(put(&mut producer, iteration).unwrap());
        drop(take(&mut consumer));
    }
    assert_eq!((producer.lent(), producer.ready()), (0, 0));
    assert!(reserve(&mut producer, 4).is_none());
    assert_eq!(producer.wait(Duration::ZERO), Wait::TimedOut);
    drop(hung.remove(2));
    assert_eq!(producer.wait(Duration::ZERO), Wait::Released);
    for iteration in 4..20 {
        put(&mut producer, iteration).unwrap();
        assert!(is_unharmed(&take(&mut consumer)));
    }
}

/// Trims a ring while one batch is held and one is ready; returns the ring's ends.
fn trim(
    (mut producer, mut consumer): (RingProducer, RingConsumer),
) -> (RingProducer, RingConsumer) {
    for iteration in 1..32 {
        put(&mut producer, iteration).unwrap();
    }
    let mut taken: Vec<RingBatch> = (1..32).map(|_| take(&mut consumer)).collect();
    let held = taken.remove(7);
    drop(taken);
    put(&mut producer, 32).unwrap();
    producer.trim();
    let ready = take(&mut consumer);
    assert!(is_unharmed(&held) && is_unharmed(&ready));
    // Discarded memory is zero when next used; the rest is unchanged.
    let blocks: Vec<RingBlock> =
        (40..60).filter_map(|iteration| reserve(&mut producer, iteration)).collect();
    // SAFETY: this thread alone has the blocks.
    let zero = |block: &&RingBlock| unsafe { block.slot(0) }.iter().all(|byte| *byte == 0);
    assert!(blocks.iter().filter(zero).count() > blocks.len() / 2, "pages at the edges stay");
    for block in &blocks {
        block.publish();
    }
    drop(blocks);
    assert!(is_unharmed(&held) && is_unharmed(&ready));
    (producer, consumer)
}

const SIXTY_FOUR: RingConfig = RingConfig { capacity: 64 * BLOCK, batches: 64, align: 1 };

#[test]
fn memory_without_a_batch_goes_back_to_the_system_and_batches_stay() {
    trim(ring(&SIXTY_FOUR).unwrap());
}

#[test]
fn memory_that_another_process_writes_goes_back_to_the_system_too() {
    let (producer, file) = shared_ring(&SIXTY_FOUR).unwrap();
    let consumer = RingConsumer::attach(file.try_clone().unwrap()).unwrap();
    trim((producer, consumer));
}

#[test]
fn memory_that_another_process_maps_goes_back_to_the_system_where_it_may_be_written() {
    for writable in [true, false] {
        let (mut producer, mut consumer, memory) = mapped_ring(&SIXTY_FOUR, writable).unwrap();
        for iteration in 0..32 {
            put(&mut producer, iteration).unwrap();
        }
        // All at once, so that each had memory of its own.
        drop((0..32).map(|_| take(&mut consumer)).collect::<Vec<_>>());
        let resident = || rustix::fs::fstat(&memory.file).unwrap().st_blocks * 512;
        let before = resident();
        producer.trim();
        let after = resident();
        if writable {
            assert!(after < before / 4, "{before} bytes, and then {after}");
        } else {
            assert_eq!(after, before, "the seal against writing forbids it");
        }
    }
}
