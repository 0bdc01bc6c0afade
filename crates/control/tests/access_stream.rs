//! The access stream as its users see it: any order, any scheme, any epoch.

use std::sync::Arc;

use belady_control::sampler::{AccessStream, Order, SamplerError, Scheme, StreamConfig, torch};
use proptest::prelude::*;

fn config(samples: u32, ranks: u32, batch: u32) -> StreamConfig {
    StreamConfig {
        samples,
        ranks,
        batch,
        order: Order::Torch,
        scheme: Scheme::Uniform,
        seed: 42,
        sampler_drop_last: false,
        drop_last: false,
    }
}

fn stream(config: StreamConfig) -> AccessStream {
    AccessStream::new(config).unwrap()
}

fn error(config: StreamConfig) -> SamplerError {
    AccessStream::new(config).unwrap_err()
}

fn given(lists: Vec<Vec<u32>>) -> Order {
    Order::Given(Arc::new(lists))
}

#[test]
fn impossible_streams_are_refused_in_a_sentence() {
    assert_eq!(error(config(0, 1, 1)), SamplerError::NoSamples);
    assert_eq!(error(config(1, 0, 1)), SamplerError::NoRanks);
    assert_eq!(error(config(1, 1, 0)), SamplerError::ZeroBatch);
    let uneven = error(config(100, 4, 10));
    assert_eq!(uneven, SamplerError::UnevenBatch { batch: 10, ranks: 4 });
    assert!(uneven.to_string().contains("multiple of 4"), "{uneven}");
    let dropped = StreamConfig { drop_last: true, ..config(10, 1, 11) };
    assert_eq!(error(dropped), SamplerError::NoIterations { samples: 10, batch: 11 });
    // Nothing is left of three samples when four ranks must get equally many.
    let truncated = StreamConfig { sampler_drop_last: true, ..config(3, 4, 4) };
    assert_eq!(error(truncated), SamplerError::NoIterations { samples: 3, batch: 4 });
}

#[test]
fn given_orders_are_checked_before_the_first_epoch() {
    let with = |lists| StreamConfig { order: given(lists), ..config(5, 1, 2) };
    assert_eq!(error(with(vec![])), SamplerError::NoLists);
    assert_eq!(error(with(vec![vec![]])), SamplerError::NoIterations { samples: 0, batch: 2 });
    assert_eq!(
        error(with(vec![vec![0, 1], vec![2]])),
        SamplerError::UnequalLists { epoch: 1, length: 1, expected: 2 }
    );
    let range = error(with(vec![vec![0, 4], vec![3, 5]]));
    assert_eq!(range, SamplerError::OutOfRange { epoch: 1, position: 1, sample: 5, samples: 5 });
    assert!(range.to_string().contains("the last sample is 4"), "{range}");
}

#[test]
fn given_orders_repeat_when_epochs_outnumber_them() {
    let lists = given(vec![vec![4, 1, 1], vec![0, 2, 3]]);
    let stream = stream(StreamConfig { order: lists, scheme: Scheme::Whole, ..config(5, 2, 2) });
    assert_eq!(stream.iterations(), 2);
    assert_eq!(stream.epoch(2).samples(), [4, 1, 1]);
    assert_eq!(stream.epoch(3).samples(), [0, 2, 3]);
    assert_eq!(stream.epoch(0).positions(), [u32::MAX, 1, u32::MAX, u32::MAX, 0]);
}

#[test]
fn contiguous_torch_streams_cut_the_unpadded_shuffle_of_the_epoch() {
    let stream = stream(StreamConfig { scheme: Scheme::Contiguous, ..config(10, 3, 4) });
    let shuffle = torch::epoch_order(10, 42, 7);
    let epoch = stream.epoch(7);
    assert_eq!(epoch.samples(), shuffle);
    assert_eq!(epoch.iterations(), 3);
    assert_eq!(epoch.batch(0, 0).collect::<Vec<_>>(), shuffle[..1]);
    assert_eq!(epoch.batch(2, 0).collect::<Vec<_>>(), shuffle[2..4]);
    assert_eq!(epoch.batch(1, 2).len(), 0);
    assert_eq!(epoch.batch(2, 2).collect::<Vec<_>>(), shuffle[8..]);
}

#[test]
fn more_ranks_than_samples_read_them_several_times() {
    let stream = stream(StreamConfig { order: Order::Sequential, ..config(3, 8, 8) });
    assert_eq!(stream.epoch(0).samples(), [0, 1, 2, 0, 1, 2, 0, 1]);
    assert_eq!(stream.epoch(0).positions(), [0, 1, 2]);
}

#[test]
fn streams_can_be_shared_and_asked_from_many_threads() {
    let stream = stream(StreamConfig { scheme: Scheme::Whole, ..config(1000, 2, 10) });
    let expected: Vec<_> = (0..1200).map(|epoch| stream.epoch(epoch).samples().to_vec()).collect();
    // A fresh one, whose marks several threads set at once.
    let fresh = AccessStream::new(stream.config().clone()).unwrap();
    std::thread::scope(|scope| {
        for start in [1199, 600, 3] {
            let (fresh, expected) = (fresh.clone(), &expected);
            scope.spawn(move || {
                for epoch in (0..=start).rev().step_by(97) {
                    assert_eq!(fresh.epoch(epoch).samples(), expected[epoch as usize]);
                }
            });
        }
    });
}

#[test]
fn a_sample_among_four_billion_is_located_without_an_order() {
    let samples = 4_000_000_000;
    let stream = stream(StreamConfig { order: Order::Permutation, ..config(samples, 8, 256) });
    let permutation = stream.permutation(3).unwrap();
    for position in [0, 1, 255, 256, 1_234_567_890, 3_999_999_999] {
        let sample = permutation.forward(position) as u32;
        let slot = stream.locate(3, sample).unwrap();
        assert_eq!(u64::from(slot.iteration), position / 256);
        assert_eq!(u64::from(slot.rank), position % 8);
    }
}

fn any_order() -> impl Strategy<Value = Order> {
    let list = given(vec![vec![0, 3, 1, 0], vec![2, 2, 1, 3]]);
    prop::sample::select(vec![Order::Torch, Order::Permutation, Order::Sequential, list])
}

proptest! {
    #[test]
    fn every_order_is_dealt_as_it_stands_and_located(
        order in any_order(),
        scheme in prop::sample::select(vec![
            Scheme::Uniform, Scheme::Contiguous, Scheme::Whole, Scheme::Imbalanced,
        ]),
        samples in 4_u32..300,
        ranks in 1_u32..6,
        local in 1_u32..6,
        seed: u64,
        epoch in 0_u32..50,
        sampler_drop_last: bool,
        drop_last: bool,
    ) {
        let config = StreamConfig {
            samples, ranks, batch: local * ranks, order, scheme, seed, sampler_drop_last, drop_last,
        };
        let Ok(stream) = AccessStream::new(config) else { return Ok(()) };
        let epoch_order = stream.epoch(epoch);
        prop_assert_eq!(epoch_order.samples().len() as u64, stream.layout().entries());

        // By batches of ranks and iterations, each sample first comes up where
        // `locate` and `positions` say.
        let positions = epoch_order.positions();
        for sample in 0..samples {
            let first = epoch_order.samples().iter().position(|&other| other == sample);
            prop_assert_eq!(first.map_or(u32::MAX, |at| at as u32), positions[sample as usize]);
            let slot = stream.locate(epoch, sample);
            prop_assert_eq!(slot, first.and_then(|at| epoch_order.slot(at as u32)));
            if let Some(slot) = slot {
                prop_assert!(epoch_order.batch(slot.rank, slot.iteration).any(|s| s == sample));
            }
        }
        prop_assert_eq!(stream.locate(epoch, samples), None);

        // Where nothing is dropped or repeated, an epoch is the whole dataset.
        let own = matches!(stream.config().order, Order::Given(_));
        if !own && !drop_last && scheme != Scheme::Uniform {
            prop_assert!(positions.iter().all(|&position| position != u32::MAX));
            prop_assert_eq!(epoch_order.samples().len() as u32, samples);
        }
    }
}
