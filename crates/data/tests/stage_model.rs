//! The ring against a naive model: a list of batches, each with the bytes that must not change
//! while it is held.
#![cfg(not(feature = "shuttle"))]

use std::time::Duration;

use belady_control::sampler::Step;
use belady_data::stage::{
    RingBatch, RingBlock, RingConfig, RingConsumer, RingError, RingProducer, SlotState, Take, Wait,
    ring,
};
use proptest::prelude::*;

/// Returns the byte at an offset of a sample of a batch; neighbours differ.
fn pattern(sequence: u64, index: usize, at: usize) -> u8 {
    (sequence.wrapping_mul(31) as usize ^ index.wrapping_mul(7) ^ at ^ (at >> 8)) as u8
}

fn fill(block: &RingBlock, sequence: u64) {
    for index in 0..block.len() {
        // SAFETY: this thread alone has the block, and has not published it.
        let slot = unsafe { block.slot(index) };
        for (at, byte) in slot.iter_mut().enumerate() {
            *byte = pattern(sequence, index, at);
        }
    }
}

fn holds_its_bytes(bytes: &[u8], sequence: u64, index: usize) -> bool {
    bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(sequence, index, at))
}

fn step(sequence: u64) -> Step {
    Step { epoch: (sequence / 10) as u32, iteration: (sequence % 10) as u32 }
}

fn samples(sequence: u64, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| sequence as u32 * 100 + index).collect()
}

fn state(sequence: u64, index: usize) -> SlotState {
    match (sequence as usize + index) % 5 {
        1 => SlotState::Skipped,
        2 => SlotState::Elsewhere,
        3 => SlotState::Replaced,
        _ => SlotState::Filled,
    }
}

#[derive(Clone, Debug)]
enum Move {
    Reserve(Vec<u64>),
    /// Publish one of the unpublished blocks, perhaps keeping a clone of it.
    Publish {
        which: prop::sample::Index,
        keep: bool,
    },
    DropKept(prop::sample::Index),
    Take,
    Clone(prop::sample::Index),
    Drop(prop::sample::Index),
}

fn any_move() -> impl Strategy<Value = Move> {
    let sizes = prop::collection::vec(prop_oneof![Just(0u64), 1u64..200, 200u64..900], 0..6);
    let which = any::<prop::sample::Index>;
    prop_oneof![
        4 => sizes.prop_map(Move::Reserve),
        4 => (which(), any::<bool>()).prop_map(|(which, keep)| Move::Publish { which, keep }),
        2 => which().prop_map(Move::DropKept),
        4 => Just(Move::Take),
        1 => which().prop_map(Move::Clone),
        5 => which().prop_map(Move::Drop),
    ]
}

/// A batch in the naive model.
#[derive(Debug)]
struct Expected {
    sizes: Vec<u64>,
    published: bool,
    taken: bool,
    /// Clones of the batch held, once taken.
    batches: usize,
    /// Clones of the block held.
    blocks: usize,
}

impl Expected {
    fn is_back(&self) -> bool {
        self.taken && self.batches == 0 && self.blocks == 0
    }
}

/// A clone of a block that outlives its publication, and where its slots lie.
struct Kept {
    sequence: u64,
    slots: Vec<(*const u8, usize)>,
    _block: RingBlock,
}

struct Bench {
    producer: RingProducer,
    consumer: RingConsumer,
    config: RingConfig,
    all: Vec<Expected>,
    filling: Vec<(u64, RingBlock)>,
    kept: Vec<Kept>,
    held: Vec<RingBatch>,
}

impl Bench {
    fn new(config: RingConfig) -> Self {
        let (producer, consumer) = ring(&config).expect("a sound configuration");
        let (all, filling, kept, held) = Default::default();
        Self { producer, consumer, config, all, filling, kept, held }
    }

    /// Returns the batches whose space cannot have returned yet.
    fn outstanding(&self) -> impl Iterator<Item = &Expected> {
        self.all.iter().filter(|batch| !batch.is_back())
    }

    fn play(&mut self, next: Move) {
        match next {
            Move::Reserve(sizes) => self.reserve(sizes),
            Move::Publish { which, keep } => self.publish(which, keep),
            Move::DropKept(which) if !self.kept.is_empty() => {
                let kept = self.kept.swap_remove(which.index(self.kept.len()));
                self.all[kept.sequence as usize].blocks -= 1;
            }
            Move::Take => self.take(),
            Move::Clone(which) if !self.held.is_empty() => {
                let batch = self.held[which.index(self.held.len())].clone();
                self.all[batch.sequence() as usize].batches += 1;
                self.held.push(batch);
            }
            Move::Drop(which) if !self.held.is_empty() => {
                let batch = self.held.swap_remove(which.index(self.held.len()));
                self.all[batch.sequence() as usize].batches -= 1;
            }
            Move::DropKept(_) | Move::Clone(_) | Move::Drop(_) => {}
        }
    }

    fn reserve(&mut self, sizes: Vec<u64>) {
        let sequence = self.all.len() as u64;
        let ids = samples(sequence, sizes.len());
        let bytes: u64 = sizes.iter().sum();
        let half = self.config.check(bytes, sizes.len() as u32).is_ok();
        match self.producer.reserve(step(sequence), &ids, &sizes) {
            Ok(Some(block)) => {
                assert!(self.outstanding().count() < self.config.batches as usize);
                assert_eq!((block.len(), block.step()), (sizes.len(), step(sequence)));
                for (index, &size) in sizes.iter().enumerate() {
                    assert_eq!(
                        (block.sample(index), block.length(index)),
                        (ids[index], size as usize)
                    );
                }
                fill(&block, sequence);
                self.filling.push((sequence, block));
                let (published, taken) = (false, false);
                self.all.push(Expected { sizes, published, taken, batches: 0, blocks: 1 });
            }
            Ok(None) => {
                let outstanding: Vec<_> = self.outstanding().collect();
                assert!(!outstanding.is_empty(), "an empty ring has space for what it can hold");
                let only_small = outstanding.iter().all(|batch| {
                    self.config.check(batch.sizes.iter().sum(), batch.sizes.len() as u32).is_ok()
                });
                assert!(
                    !(half && only_small && outstanding.len() == 1),
                    "one batch of half the ring leaves space for another"
                );
                assert_eq!(self.producer.wait(Duration::ZERO), Wait::TimedOut);
            }
            Err(RingError::BatchTooLarge { bytes: needed, capacity, .. }) => {
                assert!(needed > capacity && capacity == self.config.capacity as u64);
                assert!(!half);
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn publish(&mut self, which: prop::sample::Index, keep: bool) {
        if self.filling.is_empty() {
            return;
        }
        let (sequence, block) = self.filling.swap_remove(which.index(self.filling.len()));
        let mut slots = Vec::new();
        for index in 0..block.len() {
            // SAFETY: this thread alone has the block, and has not published it.
            let slot = unsafe { block.slot(index) };
            assert!(holds_its_bytes(slot, sequence, index));
            slots.push((slot.as_ptr(), slot.len()));
            block.mark(index, state(sequence, index));
        }
        block.publish();
        block.publish();
        let expected = &mut self.all[sequence as usize];
        expected.published = true;
        if keep {
            self.kept.push(Kept { sequence, slots, _block: block });
        } else {
            expected.blocks -= 1;
        }
    }

    fn take(&mut self) {
        let next = self.all.iter_mut().find(|batch| !batch.taken);
        let expected = next.filter(|batch| batch.published);
        assert_eq!(self.consumer.is_ready(), expected.is_some());
        match (self.consumer.take(Some(Duration::ZERO)), expected) {
            (Take::Batch(batch), Some(expected)) => {
                assert_eq!(batch.len(), expected.sizes.len());
                for (index, &size) in expected.sizes.iter().enumerate() {
                    assert_eq!(batch.bytes(index).len() as u64, size);
                    assert_eq!(batch.state(index), state(batch.sequence(), index));
                    let start = batch.bytes(index).as_ptr() as usize;
                    assert!(start.is_multiple_of(self.config.align));
                    assert_eq!(batch.slot_range(index).start, start - batch.as_ptr() as usize);
                    assert_eq!(batch.slot_range(index).len() as u64, size);
                }
                (expected.taken, expected.batches) = (true, 1);
                let sequence = batch.sequence();
                assert_eq!(batch.step(), step(sequence));
                let ids: Vec<_> = (0..batch.len()).map(|index| batch.sample(index)).collect();
                assert_eq!(ids, samples(sequence, ids.len()));
                self.held.push(batch);
            }
            (Take::TimedOut, None) => {}
            (took, expected) => panic!("{took:?} where {expected:?} was expected"),
        }
    }

    /// Checks that held bytes have not changed.
    fn check(&self) {
        for batch in &self.held {
            for index in 0..batch.len() {
                assert!(holds_its_bytes(batch.bytes(index), batch.sequence(), index));
            }
        }
        for kept in &self.kept {
            for (index, &(start, length)) in kept.slots.iter().enumerate() {
                // SAFETY: the space is not given away while a clone of its block lives.
                let bytes = unsafe { std::slice::from_raw_parts(start, length) };
                assert!(holds_its_bytes(bytes, kept.sequence, index));
            }
        }
        let lent = self.all.iter().filter(|batch| batch.batches > 0).count();
        let ready = self.all.iter().filter(|batch| batch.published && !batch.taken).count();
        assert_eq!((self.producer.lent(), self.producer.ready()), (lent as u32, ready as u32));
    }

    /// Checks that everything published is delivered, and then the end.
    fn finish(mut self) {
        self.producer.finish();
        self.kept.clear();
        while let Some((_, block)) = self.filling.pop() {
            assert!(!self.consumer.is_complete());
            block.publish();
        }
        let left = self.all.iter().filter(|batch| !batch.taken).count();
        for _ in 0..left {
            assert!(matches!(self.consumer.take(None), Take::Batch(_)));
        }
        assert!(matches!(self.consumer.take(None), Take::Ended));
        assert!(self.consumer.is_complete());
        assert!(!matches!(self.producer.reserve(step(0), &[], &[]), Ok(Some(_))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_holding_pattern_agrees_with_a_list_of_batches(
        capacity in 64usize..6000,
        batches in 2u32..8,
        align in prop::sample::select(vec![1usize, 8, 64, 512]),
        moves in prop::collection::vec(any_move(), 1..150),
    ) {
        let mut bench = Bench::new(RingConfig { capacity, batches, align });
        for next in moves {
            bench.play(next);
            bench.check();
        }
        bench.finish();
    }

    /// Threads fill batches, others release them in any order; the consumer gets them in exact
    /// order.
    #[test]
    fn batches_cross_threads_in_order_and_unharmed(
        sizes in prop::collection::vec(prop::collection::vec(0u64..3000, 0..8), 1..120),
        extra in 0usize..20_000,
        more_batches in 1u32..9,
        holders in 1usize..4,
        hold in 1usize..5,
    ) {
        let largest = sizes.iter().map(|batch| batch.iter().sum::<u64>()).max().unwrap_or(0);
        // Space for what a holder keeps until it releases everything.
        let capacity = RingConfig::needed(largest, 8, 1) as usize * hold + extra;
        let batches = hold as u32 + more_batches;
        let (producer, consumer) = ring(&RingConfig { capacity, batches, align: 1 }).unwrap();
        cross_threads(producer, consumer, &sizes, holders, hold);
    }
}

/// Releases batches in an order that is neither theirs nor its reverse.
fn release(held: &mut Vec<RingBatch>) {
    while !held.is_empty() {
        let batch = held.swap_remove(held.len() / 2);
        for index in 0..batch.len() {
            assert!(holds_its_bytes(batch.bytes(index), batch.sequence(), index));
        }
    }
}

fn cross_threads(
    mut producer: RingProducer,
    mut consumer: RingConsumer,
    sizes: &[Vec<u64>],
    holders: usize,
    hold: usize,
) {
    std::thread::scope(|scope| {
        let (to_fill, fillers) = std::sync::mpsc::channel::<(u64, RingBlock)>();
        let fillers = std::sync::Arc::new(std::sync::Mutex::new(fillers));
        for _ in 0..2 {
            let fillers = fillers.clone();
            scope.spawn(move || {
                loop {
                    let Ok((sequence, block)) = fillers.lock().unwrap().recv() else { return };
                    fill(&block, sequence);
                    block.publish();
                }
            });
        }
        scope.spawn(move || {
            for (sequence, sizes) in sizes.iter().enumerate() {
                let sequence = sequence as u64;
                let ids = samples(sequence, sizes.len());
                let block = loop {
                    match producer.reserve(step(sequence), &ids, sizes).unwrap() {
                        Some(block) => break block,
                        None => assert_eq!(producer.wait(Duration::MAX), Wait::Released),
                    }
                };
                to_fill.send((sequence, block)).unwrap();
            }
            producer.finish();
        });
        let holders: Vec<_> = (0..holders)
            .map(|_| {
                let (to_hold, taken) = std::sync::mpsc::channel::<RingBatch>();
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for batch in taken {
                        held.push(batch);
                        if held.len() == hold {
                            release(&mut held);
                        }
                    }
                    release(&mut held);
                });
                to_hold
            })
            .collect();
        let mut expected = 0;
        while let Take::Batch(batch) = consumer.take(None) {
            assert_eq!(batch.sequence(), expected);
            assert_eq!(batch.len(), sizes[expected as usize].len());
            expected += 1;
            for holder in &holders {
                holder.send(batch.clone()).unwrap();
            }
        }
        assert_eq!(expected, sizes.len() as u64);
        assert!(consumer.is_complete());
    });
}

#[test]
fn a_buffer_too_small_is_refused_with_the_size_it_needs() {
    let needed = RingConfig::needed(10_000, 64, 1);
    let small = RingConfig { capacity: needed as usize - 1, batches: 4, align: 1 };
    let error = small.check(10_000, 64).unwrap_err();
    assert!(error.to_string().contains(&needed.to_string()), "{error}");
    let enough = RingConfig { capacity: needed as usize, ..small };
    enough.check(10_000, 64).unwrap();
    let (mut producer, mut consumer) = ring(&enough).unwrap();
    // The consumer holds one batch until it has the next, as a training loop does.
    let mut held = None;
    for sequence in 0..50 {
        let sizes: Vec<u64> = vec![if sequence % 3 == 0 { 1 } else { 10_000 / 64 }; 64];
        let block = producer.reserve(step(sequence), &samples(sequence, 64), &sizes).unwrap();
        block.expect("space beside one held batch").publish();
        let Take::Batch(batch) = consumer.take(None) else { panic!("published") };
        held.replace(batch);
    }
}

#[test]
fn a_batch_of_the_whole_ring_goes_through() {
    let config = RingConfig { capacity: 4096, batches: 4, align: 1 };
    let (mut producer, mut consumer) = ring(&config).unwrap();
    for (sequence, size) in [4040, 10, 4040, 2000, 3000].into_iter().enumerate() {
        let sequence = sequence as u64;
        let block = producer.reserve(step(sequence), &[1], &[size]).unwrap().unwrap();
        fill(&block, sequence);
        block.publish();
        drop(block);
        assert!(matches!(producer.reserve(step(9), &[1], &[4040]), Ok(None)));
        let Take::Batch(batch) = consumer.take(None) else { panic!("published") };
        assert!(holds_its_bytes(batch.bytes(0), sequence, 0));
    }
    let refused = producer.reserve(step(9), &[1, 2], &[u64::MAX, 5]).unwrap_err();
    assert!(matches!(refused, RingError::BatchTooLarge { capacity: 4096, .. }), "{refused}");
}

#[test]
fn invalid_ring_configs_are_refused() {
    let sound = RingConfig { capacity: 4096, batches: 4, align: 1 };
    for unsound in [
        RingConfig { align: 0, ..sound },
        RingConfig { align: 24, ..sound },
        RingConfig { align: 8192, ..sound },
        RingConfig { batches: 0, ..sound },
        RingConfig { batches: 1, ..sound },
        RingConfig { capacity: usize::MAX, ..sound },
    ] {
        let error = ring(&unsound).unwrap_err();
        assert!(matches!(error, RingError::Config { .. }), "{error}");
    }
    let vast = ring(&RingConfig { capacity: isize::MAX as usize / 2, ..sound }).unwrap_err();
    assert!(matches!(vast, RingError::Memory { .. }), "{vast}");
}

#[test]
fn each_side_notices_that_the_other_was_dropped() {
    let config = RingConfig { capacity: 4096, batches: 2, align: 1 };
    let (mut producer, consumer) = ring(&config).unwrap();
    let _block = producer.reserve(step(0), &[], &[]).unwrap().unwrap();
    drop(consumer);
    assert_eq!(producer.wait(Duration::MAX), Wait::ConsumerGone);

    // Dropped in the middle: what is published still comes, then the end, not complete.
    let (mut producer, mut consumer) = ring(&config).unwrap();
    producer.reserve(step(0), &[7], &[3]).unwrap().unwrap().publish();
    let unpublished = producer.reserve(step(1), &[8], &[3]).unwrap().unwrap();
    drop(producer);
    assert!(matches!(consumer.take(None), Take::Batch(_)));
    assert!(matches!(consumer.take(None), Take::Ended));
    assert!(!consumer.is_complete());
    drop(unpublished);

    // A block dropped unpublished ends it too, even after all was announced as finished.
    let (mut producer, mut consumer) = ring(&config).unwrap();
    let abandoned = producer.reserve(step(0), &[7], &[3]).unwrap().unwrap();
    producer.finish();
    assert!(matches!(consumer.take(Some(Duration::from_millis(1))), Take::TimedOut));
    drop(abandoned);
    assert!(matches!(consumer.take(None), Take::Ended));
    assert!(!consumer.is_complete());

    let (mut producer, _consumer) = ring(&config).unwrap();
    let waker = producer.waker();
    let _block = producer.reserve(step(0), &[], &[]).unwrap().unwrap();
    let woken = std::thread::spawn(move || producer.wait(Duration::MAX));
    waker.wake();
    assert_eq!(woken.join().unwrap(), Wait::Stopped);
}
