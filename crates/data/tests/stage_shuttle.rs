//! Schedules of the ring's two sides and its filling threads, explored.
//!
//! No time passes in these tests, so a wake-up that is lost is a deadlock, which the
//! explorer reports.
//!
//! ```text
//! cargo nextest run -p belady-data --features shuttle --test stage_shuttle
//! ```
#![cfg(feature = "shuttle")]

use std::time::Duration;

use belady_control::sampler::Step;
use belady_data::stage::{
    RingBatch, RingBlock, RingConfig, RingConsumer, RingProducer, Take, Wait, ring,
};
use shuttle::thread;

/// Schedules tried by each of the two explorers.
const SCHEDULES: usize = 3_000;
/// How often the second explorer preempts a thread.
const SURPRISES: usize = 4;

fn explore(scene: fn()) {
    shuttle::check_random(scene, SCHEDULES);
    shuttle::check_pct(scene, SCHEDULES, SURPRISES);
}

/// A ring with space for two batches of two samples.
fn small_ring() -> (RingProducer, RingConsumer) {
    let capacity = RingConfig::needed(16, 2, 1) as usize;
    ring(&RingConfig { capacity, batches: 2, align: 1 }).unwrap()
}

fn fill(block: &RingBlock) {
    for index in 0..block.len() {
        // SAFETY: one thread fills a block, before it publishes it.
        unsafe { block.slot(index) }.fill(block.step().iteration as u8);
    }
}

fn holds_its_bytes(batch: &RingBatch) -> bool {
    let expected = batch.sequence() as u8;
    (0..batch.len()).all(|index| batch.bytes(index).iter().all(|byte| *byte == expected))
}

/// Reserves the next batch, waiting for space; `None` once the wait ends otherwise.
fn reserve(producer: &mut RingProducer, iteration: u32) -> Result<RingBlock, Wait> {
    let step = Step { epoch: 0, iteration };
    loop {
        if let Some(block) = producer.reserve(step, &[1, 2], &[8, 8]).unwrap() {
            return Ok(block);
        }
        match producer.wait(Duration::MAX) {
            Wait::Released => {}
            other => return Err(other),
        }
    }
}

fn produce(mut producer: RingProducer, batches: u32) -> Result<(), Wait> {
    for iteration in 0..batches {
        let block = reserve(&mut producer, iteration)?;
        fill(&block);
        block.publish();
    }
    producer.finish();
    Ok(())
}

fn take_all(consumer: &mut RingConsumer, mut each: impl FnMut(RingBatch)) -> u64 {
    let mut taken = 0;
    while let Take::Batch(batch) = consumer.take(None) {
        assert_eq!(batch.sequence(), taken);
        assert!(holds_its_bytes(&batch));
        taken += 1;
        each(batch);
    }
    taken
}

#[test]
fn batches_arrive_in_order_and_the_end_after_them() {
    explore(|| {
        let (producer, mut consumer) = small_ring();
        let producing = thread::spawn(move || produce(producer, 5));
        // Holds one batch until it has the next.
        let mut held = None;
        let taken = take_all(&mut consumer, |batch| {
            if let Some(before) = held.replace(batch) {
                assert!(holds_its_bytes(&before));
            }
        });
        assert_eq!((taken, consumer.is_complete()), (5, true));
        assert_eq!(producing.join().unwrap(), Ok(()));
    });
}

#[test]
fn blocks_may_be_published_out_of_order_and_outlive_their_batches() {
    explore(|| {
        let (mut producer, mut consumer) = small_ring();
        let producing = thread::spawn(move || {
            let mut fillers = Vec::new();
            for iteration in 0..4 {
                let block = reserve(&mut producer, iteration).unwrap();
                fillers.push(thread::spawn(move || {
                    fill(&block);
                    // SAFETY: this thread alone has the block, and has not published it.
                    let place = unsafe { block.slot(0) }.as_ptr();
                    // A late clone, as a hung read keeps it.
                    let late = block.clone();
                    block.publish();
                    drop(block);
                    thread::yield_now();
                    // SAFETY: the space is not given away while a clone lives.
                    assert_eq!(unsafe { *place }, iteration as u8, "space used twice");
                    drop(late);
                }));
            }
            producer.finish();
            drop(producer);
            for filler in fillers {
                filler.join().unwrap();
            }
        });
        let taken = take_all(&mut consumer, drop);
        assert_eq!((taken, consumer.is_complete()), (4, true));
        producing.join().unwrap();
    });
}

#[test]
fn a_block_that_is_never_dropped_stops_nothing() {
    explore(|| {
        // Space for the kept batch, one that is taken, and the next.
        let capacity = RingConfig::needed(16, 2, 1) as usize * 3;
        let config = RingConfig { capacity, batches: 3, align: 1 };
        let (mut producer, mut consumer) = ring(&config).unwrap();
        let block = reserve(&mut producer, 0).unwrap();
        fill(&block);
        block.publish();
        let producing = thread::spawn(move || {
            for iteration in 1..6 {
                let block = reserve(&mut producer, iteration).unwrap();
                fill(&block);
                block.publish();
            }
            producer.finish();
        });
        let mut held = None;
        let taken = take_all(&mut consumer, |batch| held = Some(batch));
        assert_eq!((taken, consumer.is_complete()), (6, true));
        producing.join().unwrap();
        drop((held, block));
    });
}

#[test]
fn clones_can_be_dropped_on_other_threads() {
    explore(|| {
        let (producer, mut consumer) = small_ring();
        let producing = thread::spawn(move || produce(producer, 4));
        let mut holders = Vec::new();
        let taken = take_all(&mut consumer, |batch| {
            let clone = batch.clone();
            holders.push(thread::spawn(move || assert!(holds_its_bytes(&clone))));
        });
        assert_eq!((taken, consumer.is_complete()), (4, true));
        for holder in holders {
            holder.join().unwrap();
        }
        assert_eq!(producing.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_producer_learns_that_its_consumer_left() {
    explore(|| {
        let (producer, mut consumer) = small_ring();
        let producing = thread::spawn(move || produce(producer, 9));
        assert!(matches!(consumer.take(None), Take::Batch(_)));
        let Take::Batch(kept) = consumer.take(None) else { panic!("published") };
        drop(consumer);
        assert_eq!(producing.join().unwrap(), Err(Wait::ConsumerGone));
        assert!(holds_its_bytes(&kept));
    });
}

#[test]
fn a_consumer_never_waits_for_a_producer_that_left() {
    explore(|| {
        let (mut producer, mut consumer) = small_ring();
        let producing = thread::spawn(move || {
            let block = reserve(&mut producer, 0).unwrap();
            fill(&block);
            block.publish();
            let unpublished = reserve(&mut producer, 1).unwrap();
            drop(producer);
            unpublished
        });
        assert_eq!(take_all(&mut consumer, drop), 1);
        assert!(!consumer.is_complete());
        drop(producing.join().unwrap());
    });
}

#[test]
fn a_block_dropped_unpublished_ends_the_wait() {
    explore(|| {
        let (mut producer, mut consumer) = small_ring();
        let abandoned = reserve(&mut producer, 0).unwrap();
        let dropping = thread::spawn(move || drop(abandoned));
        producer.finish();
        assert_eq!(take_all(&mut consumer, drop), 0);
        assert!(!consumer.is_complete());
        dropping.join().unwrap();
    });
}

#[test]
fn a_waiting_producer_can_be_stopped() {
    explore(|| {
        let (producer, consumer) = small_ring();
        let waker = producer.waker();
        let producing = thread::spawn(move || produce(producer, 3));
        waker.wake();
        assert_eq!(producing.join().unwrap(), Err(Wait::Stopped));
        drop(consumer);
    });
}
