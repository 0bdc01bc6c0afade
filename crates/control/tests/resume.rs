//! Going on with another number of ranks: a position counts global batches, and the
//! global batches of an epoch do not depend on how many share them, but for its end.

use std::sync::Arc;

use belady_control::sampler::orders::{
    MixtureOrders, MixturePart, RankOrders, RankShare, Replacement, StartAt, WeightedOrders,
};
use belady_control::sampler::{
    AccessStream, Order, OrderProvider, RankPlace, SampleId, SamplerError, Scheme, StreamConfig,
};
use proptest::prelude::*;

const BATCH: u32 = 12;

#[derive(Clone, Copy, Debug)]
struct Case {
    samples: u32,
    seed: u64,
    sampler_drop_last: bool,
    drop_last: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Torch(Scheme),
    Permutation(Scheme),
    Weighted(Replacement),
    Mixture,
}

fn config(case: Case, ranks: u32, order: Order, scheme: Scheme) -> StreamConfig {
    StreamConfig {
        samples: case.samples,
        ranks,
        batch: 0,
        order,
        scheme,
        seed: case.seed,
        sampler_drop_last: case.sampler_drop_last,
        drop_last: case.drop_last,
    }
}

fn orders(case: Case, rank: u32, ranks: u32) -> Result<Arc<dyn OrderProvider>, SamplerError> {
    let Case { samples, seed, sampler_drop_last, drop_last, kind } = case;
    let batch = BATCH / ranks;
    let share = RankShare { rank, ranks, batch, sampler_drop_last, drop_last };
    Ok(match kind {
        Kind::Torch(scheme) => {
            Arc::new(RankOrders::new(rank, batch, config(case, ranks, Order::Torch, scheme))?)
        }
        Kind::Permutation(scheme) => {
            let config = config(case, ranks, Order::Permutation, scheme);
            Arc::new(RankOrders::new(rank, batch, config)?)
        }
        Kind::Weighted(replacement) => {
            let weights: Vec<f64> = (1..=samples).map(f64::from).collect();
            Arc::new(WeightedOrders::new(&weights, samples, replacement, seed, share)?)
        }
        Kind::Mixture => {
            let parts =
                [MixturePart { samples, weight: 0.7 }, MixturePart { samples: 3, weight: 0.3 }];
            Arc::new(MixtureOrders::new(&parts, samples, seed, share)?)
        }
    })
}

/// The global batches of an epoch from a position on, each as a sorted list.
fn global(case: Case, ranks: u32, epoch: u32, batch: u32) -> Option<Vec<Vec<SampleId>>> {
    let mut together: Vec<Vec<SampleId>> = vec![];
    for rank in 0..ranks {
        let orders = orders(case, rank, ranks).ok()?;
        let list = StartAt { orders, epoch, batch }.epoch(0).unwrap().unwrap();
        let batches = list.batches();
        together.resize(batches.len(), vec![]);
        for (all, own) in together.iter_mut().zip(batches) {
            all.extend(own);
        }
    }
    for batch in &mut together {
        batch.sort_unstable();
    }
    Some(together)
}

fn kinds() -> impl Strategy<Value = Kind> {
    let scheme = prop_oneof![Just(Scheme::Uniform), Just(Scheme::Contiguous)];
    prop_oneof![
        scheme.clone().prop_map(Kind::Torch),
        scheme.prop_map(Kind::Permutation),
        Just(Kind::Weighted(Replacement::With)),
        Just(Kind::Weighted(Replacement::Without)),
        Just(Kind::Mixture),
    ]
}

proptest! {
    #[test]
    fn global_batches_are_the_same_for_any_number_of_ranks_but_for_the_last(
        samples in 1u32..150,
        seed: u64,
        sampler_drop_last: bool,
        drop_last: bool,
        kind in kinds(),
        before in prop::sample::select(vec![1u32, 2, 3, 4, 6, 12]),
        after in prop::sample::select(vec![1u32, 2, 3, 4, 6, 12]),
        epoch in 0u32..4,
        batch in 0u32..12,
    ) {
        let case = Case { samples, seed, sampler_drop_last, drop_last, kind };
        let Some(whole) = global(case, before, epoch, 0) else { return Ok(()) };
        let batch = batch.min(whole.len() as u32);
        let Some(rest) = global(case, after, epoch, batch) else { return Ok(()) };
        let full = (samples / BATCH) as usize;
        // Padding and cutting are at the end: every batch before that has the same samples.
        let common = full.saturating_sub(batch as usize);
        prop_assert!(rest.len() >= common, "{} of {common}", rest.len());
        prop_assert_eq!(&rest[..common], &whole[full.min(batch as usize)..full]);
        let batches = batch as usize + rest.len();
        prop_assert!(batches.abs_diff(whole.len()) <= 1);
        // Nothing depends on the number of ranks where nothing is padded or cut.
        if samples % before == 0 && samples % after == 0 {
            prop_assert_eq!(&rest[..], &whole[batch as usize..]);
        }
        // A last batch that is short is padded up to the number of ranks, and no further.
        if !sampler_drop_last && !drop_last {
            prop_assert_eq!(batches, whole.len());
        }
    }
}

proptest! {
    #[test]
    fn every_rank_knows_what_the_others_read(
        samples in 1u32..150,
        seed: u64,
        sampler_drop_last: bool,
        drop_last: bool,
        kind in kinds(),
        ranks in prop::sample::select(vec![2u32, 3, 4]),
        asks in 0u32..4,
        epoch in 0u32..3,
        batch in 0u32..3,
    ) {
        let case = Case { samples, seed, sampler_drop_last, drop_last, kind };
        let from = |rank| {
            Some(StartAt { orders: orders(case, rank, ranks).ok()?, epoch: 1, batch })
        };
        let Some(asking) = from(asks % ranks) else { return Ok(()) };
        let place = RankPlace { rank: asks % ranks, ranks };
        prop_assert_eq!(asking.place(), Some(place));
        let own: Result<Option<Vec<_>>, _> =
            (0..ranks).map(|rank| from(rank).unwrap().epoch(epoch)).collect();
        let Ok(own) = own else {
            prop_assert!(asking.all_ranks(epoch).is_err());
            return Ok(());
        };
        let all = asking.all_ranks(epoch).unwrap();
        prop_assert_eq!(&all, &own);
        let stream = AccessStream::new(StreamConfig {
            batch: BATCH,
            // A mixture has three more.
            samples: samples + 3,
            ..config(case, ranks, Order::Provided(Arc::new(asking)), Scheme::Uniform)
        })
        .unwrap();
        let order = stream.ask(epoch).unwrap().unwrap();
        for (rank, list) in (0..).zip(own.unwrap()) {
            for (iteration, theirs) in (0..).zip(list.batches()) {
                prop_assert_eq!(order.batch(rank, iteration).collect::<Vec<_>>(), theirs);
            }
        }
    }
}

#[test]
fn the_last_batch_of_an_epoch_can_depend_on_the_number_of_ranks() {
    let case = Case {
        samples: 23,
        seed: 1,
        sampler_drop_last: false,
        drop_last: true,
        kind: Kind::Torch(Scheme::Uniform),
    };
    // 23 samples make one whole batch of 12; padded to 24 for two ranks, two.
    assert_eq!(global(case, 1, 0, 0).unwrap().len(), 1);
    assert_eq!(global(case, 2, 0, 0).unwrap().len(), 2);
    // Saved after the second by two ranks, this epoch is over for one.
    assert_eq!(global(case, 1, 0, 2).unwrap().len(), 0);
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    let case = Case {
        samples: 9,
        seed: 1,
        sampler_drop_last: false,
        drop_last: false,
        kind: Kind::Mixture,
    };
    let error = RankOrders::new(3, 1, config(case, 3, Order::Torch, Scheme::Uniform)).unwrap_err();
    assert_eq!(error, SamplerError::NoSuchRank { rank: 3, ranks: 3 });
    let huge = RankOrders::new(0, u32::MAX, config(case, 2, Order::Torch, Scheme::Uniform));
    assert!(matches!(huge, Err(SamplerError::HugeBatch { .. })));
    let provided = Order::Provided(Arc::new(orders_of_one(case)));
    let error = RankOrders::new(1, 1, config(case, 2, provided, Scheme::Uniform)).unwrap_err();
    assert_eq!(error, SamplerError::ProvidedRanks { known: 1, ranks: 2 });
}

fn orders_of_one(case: Case) -> RankOrders {
    RankOrders::new(0, 3, config(case, 1, Order::Sequential, Scheme::Uniform)).unwrap()
}
