//! `bound_seconds` against values worked out by hand from its definition:
//!
//! summed over epochs, the largest of (a) compute, the slowest rank of each iteration;
//! (b) preprocessing at p_0·β a node; (c) the least source bytes at the best t(γ) that
//! the nodes can reach; (d) the same through the nodes' links; (e) what each tier must
//! serve at the least, at its rate; (f) its iterations one after the other, each of which computes
//! when the source has delivered what it needs. The least source bytes are those of Bélády's MIN
//! over one cache with the capacity of all nodes.
//!
//! Two nodes of one rank unless a test says otherwise, a global batch of two, samples in
//! the order 0, 1, 2, ...: rank 0 reads the even ones, rank 1 the odd ones.

use std::sync::Arc;

use belady_control::job::{Job, Packing, Sizes};
use belady_control::model::{
    Bytes, Curve, Pipeline, Rate, Readers, Sharing, SourceModel, System, TierModel,
};
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};
use belady_sim::bound::{Bound, bound};

/// So fast that it never binds.
const FAST: f64 = 1e12;

/// A job in which nothing takes time but what a test slows down.
struct Case {
    sizes: Vec<u64>,
    /// One list of samples an epoch, or none for 0, 1, 2, ...
    orders: Vec<Vec<u32>>,
    batch: u32,
    nodes: u32,
    ranks_per_node: u32,
    epochs: u32,
    compute: f64,
    preprocess: f64,
    threads: u32,
    link: f64,
    readers: Readers,
    throughput: Vec<(u32, f64)>,
    /// Capacity, threads and rate of each cache tier.
    tiers: Vec<(u64, u32, f64)>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            sizes: vec![10; 4],
            orders: vec![],
            batch: 2,
            nodes: 2,
            ranks_per_node: 1,
            epochs: 1,
            compute: FAST,
            preprocess: FAST,
            threads: 1,
            link: FAST,
            readers: Readers::Nodes,
            throughput: vec![(1, FAST)],
            tiers: vec![],
        }
    }
}

impl Case {
    fn bound(self) -> Bound {
        let tier = |name: &str, capacity, threads, rate| TierModel {
            name: name.to_owned(),
            capacity: Bytes(capacity),
            by_node: vec![],
            threads,
            read: Curve::flat(Rate(rate)),
            write: Curve::flat(Rate(rate)),
        };
        let mut tiers = vec![tier("staging", 1_000, self.threads, FAST)];
        tiers.extend(
            self.tiers
                .iter()
                .map(|&(capacity, threads, rate)| tier("cache", capacity, threads, rate)),
        );
        let points = self.throughput.iter().map(|&(count, rate)| (count, Rate(rate))).collect();
        let samples = self.sizes.len() as u32;
        let stream = AccessStream::new(StreamConfig {
            samples,
            ranks: self.nodes * self.ranks_per_node,
            batch: self.batch,
            order: if self.orders.is_empty() {
                Order::Sequential
            } else {
                Order::Given(Arc::new(self.orders))
            },
            scheme: Scheme::Uniform,
            seed: 0,
            sampler_drop_last: true,
            drop_last: true,
        })
        .unwrap();
        let job = Job {
            system: System {
                nodes: self.nodes,
                ranks_per_node: self.ranks_per_node,
                compute: Rate(self.compute).into(),
                preprocess: Rate(self.preprocess).into(),
                network: Rate(FAST),
                source: SourceModel {
                    throughput: Curve::new(points).unwrap(),
                    link: Rate(self.link),
                    sharing: Sharing::Aggregate,
                    readers: self.readers,
                },
                tiers,
                pipeline: Pipeline::Overlapped,
            },
            stream,
            sizes: Sizes::from_bytes(self.sizes),
            epochs: Some(self.epochs),
            packing: Packing { files: samples, read_size: None },
        };
        bound(&job, self.epochs)
    }
}

fn close(actual: f64, expected: f64) {
    assert!((actual - expected).abs() <= 1e-6 * expected.max(1e-3), "{actual} is not {expected}");
}

fn source_bytes(bound: &Bound) -> Vec<u64> {
    bound.epochs.iter().map(|epoch| epoch.source_bytes).collect()
}

/// Seconds by epoch and what binds each of them.
fn expect(bound: &Bound, epochs: &[(f64, &str)]) {
    assert_eq!(bound.epochs.len(), epochs.len());
    for (epoch, &(seconds, binds)) in bound.epochs.iter().zip(epochs) {
        close(epoch.seconds().0, seconds);
        assert_eq!(epoch.binds(), binds);
    }
    close(bound.seconds.0, epochs.iter().map(|epoch| epoch.0).sum());
}

#[test]
fn compute_is_the_slowest_rank_of_each_iteration() {
    // Iteration 0: 10 B against 40 B; iteration 1: 30 B against 20 B. The slowest ranks
    // compute 40 + 30 = 70 B at 10 B/s: 7 s. Rank by rank it would be 6 s.
    let case = Case { sizes: vec![10, 40, 30, 20], compute: 10.0, ..Case::default() };
    let bound = case.bound();
    expect(&bound, &[(7.0, "compute")]);
    close(bound.perfect.0, 7.0);
}

#[test]
fn perfect_is_compute_even_where_something_else_binds() {
    // Compute as above, 7 s an epoch; the source gives 100 B at 5 B/s: 20 s, and then some rank
    // computes its last batch, 2 s at the least. In the second epoch all 100 B are held.
    let case = Case {
        sizes: vec![10, 40, 30, 20],
        compute: 10.0,
        throughput: vec![(1, 5.0)],
        tiers: vec![(50, 1, FAST)],
        epochs: 2,
        ..Case::default()
    };
    let bound = case.bound();
    expect(&bound, &[(22.0, "source"), (7.0, "compute")]);
    close(bound.perfect.0, 14.0);
}

#[test]
fn an_iteration_computes_once_the_source_has_given_its_samples() {
    // 50 B and 50 B from the source at 5 B/s. When the last rank of the first iteration begins it
    // is 10 s, and it computes 10 B at 10 B/s at the least; the last one of the second begins at
    // 20 s and computes 20 B. At 10 B/s that is 5 s and 1 s, and 10 s and 2 s.
    let seconds = |rate| Case {
        sizes: vec![10, 40, 30, 20],
        compute: 10.0,
        throughput: vec![(1, rate)],
        ..Case::default()
    };
    close(seconds(5.0).bound().seconds.0, 22.0);
    close(seconds(10.0).bound().seconds.0, 12.0);
    // At 20 B/s the ranks with more to compute may be the first to begin: 4 s and 3 s.
    close(seconds(20.0).bound().seconds.0, 7.0);
    // Through two links of 2 B/s each the same 100 B take 25 s.
    close(Case { link: 2.0, ..seconds(5.0) }.bound().seconds.0, 27.0);
}

#[test]
fn preprocessing_is_the_busiest_node_with_all_its_threads() {
    // Node 0 prepares 10 + 30 B, node 1 40 + 20 B, three threads of 2 B/s each: 60/6.
    let case = Case { sizes: vec![10, 40, 30, 20], preprocess: 2.0, threads: 3, ..Case::default() };
    expect(&case.bound(), &[(10.0, "preprocess")]);
}

#[test]
fn ranks_of_a_node_share_its_preprocessing_threads() {
    // One node of two ranks: 100 B, still three threads of 2 B/s.
    let case = Case {
        sizes: vec![10, 40, 30, 20],
        nodes: 1,
        ranks_per_node: 2,
        preprocess: 2.0,
        threads: 3,
        ..Case::default()
    };
    expect(&case.bound(), &[(100.0 / 6.0, "preprocess")]);
}

#[test]
fn the_first_epoch_reads_everything_from_the_source() {
    // 40 B at the best of t(1) = 4 and t(2) = 5, whatever the caches could hold.
    let case = Case {
        throughput: vec![(1, 4.0), (2, 5.0)],
        tiers: vec![(1_000, 1, FAST)],
        ..Case::default()
    };
    let bound = case.bound();
    expect(&bound, &[(8.0, "source")]);
    assert_eq!(bound.epochs[0].source_bytes, 40);
    assert_eq!(bound.epochs[0].first_bytes, 40);
}

#[test]
fn fewer_readers_may_be_faster_and_more_than_there_are_do_not_count() {
    // A curve that sags, t(1) = 8 and t(2) = 5: the best is one reader. The 100 B/s of
    // four readers are out of two nodes' reach, but t(3) lies on the way there and is
    // out of reach as well.
    let case = Case { throughput: vec![(1, 8.0), (2, 5.0), (4, 100.0)], ..Case::default() };
    expect(&case.bound(), &[(5.0, "source")]);
}

#[test]
fn the_curve_is_linear_between_measured_counts() {
    // t(1) = 2 and t(3) = 6, so two nodes reach t(2) = 4: 40/4.
    let case = Case { throughput: vec![(1, 2.0), (3, 6.0)], ..Case::default() };
    expect(&case.bound(), &[(10.0, "source")]);
}

#[test]
fn readers_may_be_threads() {
    // Two nodes of one staging and three cache threads: eight readers, t(8) = 20: 40/20.
    // Counting nodes it would be t(2) = 5: 8 s.
    let case = |readers| Case {
        readers,
        throughput: vec![(1, 2.5), (8, 20.0)],
        tiers: vec![(100, 3, FAST)],
        ..Case::default()
    };
    expect(&case(Readers::Threads).bound(), &[(2.0, "source")]);
    expect(&case(Readers::Nodes).bound(), &[(8.0, "source")]);
}

#[test]
fn later_epochs_read_what_the_caches_cannot_hold() {
    // 80 B; two nodes hold 2 x (10 + 15) = 50 B in two tiers, of which samples of 10 B can use
    // 40 B. Epoch 0: 80 B at 10 B/s. Later ones: 80 - 40 = 40 B at 10 B/s. The staging buffer of
    // 1000 B is no cache.
    let case = Case {
        sizes: vec![10; 8],
        epochs: 3,
        throughput: vec![(1, 10.0)],
        tiers: vec![(10, 1, FAST), (15, 1, FAST)],
        ..Case::default()
    };
    let bound = case.bound();
    expect(&bound, &[(8.0, "source"), (4.0, "source"), (4.0, "source")]);
    assert_eq!(source_bytes(&bound), [80, 40, 40]);
}

#[test]
fn links_bind_where_the_source_is_faster() {
    // 40 B through two links of 4 B/s: 5 s; the source itself would take 40/10 = 4 s.
    let case = Case { throughput: vec![(1, 10.0)], link: 4.0, ..Case::default() };
    expect(&case.bound(), &[(5.0, "link")]);
}

#[test]
fn a_tier_must_serve_what_the_other_tiers_cannot_hold() {
    // 80 B, all held from the second epoch on: in the fast tier of 2 x 12 B one sample a node at
    // the most, so at least 80 - 20 = 60 B from the slow one (2 x 30 B), at 2 x 4 B/s: 7.5 s.
    let case = Case {
        sizes: vec![10; 8],
        epochs: 2,
        throughput: vec![(1, 20.0)],
        tiers: vec![(12, 1, FAST), (30, 2, 4.0)],
        ..Case::default()
    };
    let bound = case.bound();
    expect(&bound, &[(4.0, "source"), (7.5, "tier")]);
    // And the fast one at least 80 - 60 = 20 B, at 2 x 1e12 B/s.
    close(bound.epochs[1].tiers[0].0 * FAST, 10.0);
}

#[test]
fn a_tier_need_not_serve_what_comes_from_the_source_anyway() {
    // 80 B, caches of 2 x 10 + 2 x 20 = 60 B: 20 B from the source (at 10 B/s, 2 s) and
    // 60 B from the tiers, of which the slow one holds 40: 40 B at 2 x 4 B/s, 5 s.
    let case = Case {
        sizes: vec![10; 8],
        epochs: 2,
        throughput: vec![(1, 10.0)],
        tiers: vec![(10, 1, FAST), (20, 1, 4.0)],
        ..Case::default()
    };
    expect(&case.bound(), &[(8.0, "source"), (5.0, "tier")]);
}

#[test]
fn dropped_samples_are_first_read_later() {
    // Five samples in batches of two: each epoch drops one. Epoch 0 uses 0, 1, 2, 3
    // (10 + 20 + 30 + 40 = 100 B), epoch 1 uses 4 (50 B) instead of 0: 140 B, of which
    // 50 B that no node can hold although 2 x 100 B fit. At 10 B/s: 10 s and 5 s. Epoch 2
    // is like epoch 0 with everything seen: no source bytes.
    let case = Case {
        sizes: vec![10, 20, 30, 40, 50],
        orders: vec![vec![0, 1, 2, 3, 4], vec![4, 3, 2, 1, 0], vec![0, 1, 2, 3, 4]],
        epochs: 3,
        compute: 100.0,
        throughput: vec![(1, 10.0)],
        tiers: vec![(100, 1, FAST)],
        ..Case::default()
    };
    let bound = case.bound();
    // Epoch 0 ends with 30 B or more at 100 B/s after 10 s. Sample 4 is there at 15 s; then 40 B
    // or more are computed, and 30 B in the next iteration: epoch 1 ends at 15.7 s. Epoch 2
    // computes max(10, 20) + max(30, 40) = 60 B.
    expect(&bound, &[(10.3, "source"), (5.4, "source"), (0.6, "compute")]);
    let of = |f: fn(&belady_sim::bound::EpochBound) -> u64| -> Vec<u64> {
        bound.epochs.iter().map(f).collect()
    };
    assert_eq!(of(|epoch| epoch.distinct_bytes), [100, 140, 100]);
    assert_eq!(of(|epoch| epoch.first_bytes), [100, 50, 0]);
    assert_eq!(source_bytes(&bound), [100, 50, 0]);
}

#[test]
fn first_reads_count_among_what_does_not_fit_not_on_top_of_it() {
    // As above with a capacity of 2 x 30 B: 140 - 60 = 80 B do not fit, and the 50 B of
    // sample 4 may be among them.
    let case = Case {
        sizes: vec![10, 20, 30, 40, 50],
        orders: vec![vec![0, 1, 2, 3, 4], vec![4, 3, 2, 1, 0]],
        epochs: 2,
        throughput: vec![(1, 10.0)],
        tiers: vec![(30, 1, FAST)],
        ..Case::default()
    };
    expect(&case.bound(), &[(10.0, "source"), (8.0, "source")]);
}

#[test]
fn a_sample_used_twice_in_an_epoch_is_read_once_if_it_can_be_held_and_computed_twice() {
    // 0 and 1, then 0 and 2: distinct bytes 10 + 20 + 30 = 60 B at 10 B/s, if there is capacity for
    // sample 0 between its uses; without, it is read twice. Preprocessing at 1 B/s: node 0
    // prepares sample 0 twice, 20 B; node 1 20 + 30 = 50 B: 50 s.
    let case = |preprocess, room| Case {
        sizes: vec![10, 20, 30],
        orders: vec![vec![0, 1, 0, 2]],
        throughput: vec![(1, 10.0)],
        tiers: vec![(room, 1, FAST)],
        preprocess,
        ..Case::default()
    };
    expect(&case(FAST, 5).bound(), &[(6.0, "source")]);
    expect(&case(FAST, 0).bound(), &[(7.0, "source")]);
    expect(&case(1.0, 5).bound(), &[(50.0, "preprocess")]);
}

#[test]
fn a_sample_that_two_ranks_use_in_one_step_is_read_once() {
    let case = Case { orders: vec![vec![1, 1, 2, 2]], ..Case::default() };
    assert_eq!(source_bytes(&case.bound()), [20]);
}

#[test]
fn a_sample_that_an_epoch_leaves_out_may_stay_cached() {
    // Sample 0 is in epochs 0 and 2 alone. All four fit, so epoch 2 reads nothing.
    let case = Case {
        orders: vec![vec![0, 1], vec![2, 3], vec![0, 2]],
        epochs: 3,
        tiers: vec![(20, 1, FAST)],
        ..Case::default()
    };
    assert_eq!(source_bytes(&case.bound()), [20, 20, 0]);
}

#[test]
fn batches_of_unequal_bytes_straggle_where_compute_binds() {
    // 10 B against 40 B and 30 B against 20 B: 70 B of the slowest ranks, 50 B of the mean, at
    // 10 B/s. From a source of 17 B/s all 100 B take 5.9 s, from one of 5 B/s 20 s, and then no
    // time is lost by the batches.
    let lost = |throughput, sizes: [u64; 4]| {
        let throughput = vec![(1, throughput)];
        let sizes = sizes.to_vec();
        Case { sizes, compute: 10.0, throughput, ..Case::default() }.bound().straggling.0
    };
    close(lost(FAST, [10, 40, 30, 20]), 2.0);
    close(lost(17.0, [10, 40, 30, 20]), 7.0 - 100.0 / 17.0);
    close(lost(5.0, [10, 40, 30, 20]), 0.0);
    close(lost(FAST, [10; 4]), 0.0);
}
