//! Source bytes judged by the least that any placement can read.

use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::Sizes;
use crate::model::Bytes;
use crate::sampler::orders::{RankShare, Replacement, WeightedOrders};

/// The least bytes that an epoch reads from the source, by epoch: Belady's rule over the caches
/// of all nodes as one, with samples that can be held in part. Nothing can read less, and where
/// all samples are equally large this can be reached.
fn least(job: &Job) -> Vec<u64> {
    let epochs = job.epochs.unwrap();
    // One rank reads for all where all get the same.
    let whole = job.stream.config().scheme == Scheme::Whole;
    let ranks = if whole { 1 } else { job.system.ranks() };
    let mut steps: Vec<(u32, Vec<SampleId>)> = vec![];
    for epoch in 0..epochs {
        let order = job.stream.epoch(epoch);
        for iteration in 0..order.iterations() {
            let mut used: Vec<SampleId> =
                (0..ranks).flat_map(|rank| distinct(&order, rank, iteration)).collect();
            used.sort_unstable();
            steps.push((epoch, used));
        }
    }
    let mut next_use = vec![HashMap::new(); steps.len()];
    let mut seen: HashMap<SampleId, usize> = HashMap::new();
    for (at, (_, used)) in steps.iter().enumerate().rev() {
        for &sample in used {
            if let Some(next) = seen.insert(sample, at)
                && next > at
            {
                next_use[at].insert(sample, next);
            }
        }
    }
    let capacity: u64 = (0..job.system.nodes as usize * job.system.tiers.len())
        .map(|spot| super::super::space::usable(job, spot))
        .sum();
    let mut held: BTreeMap<(usize, SampleId), u64> = BTreeMap::new();
    let mut read = vec![0; epochs as usize];
    let mut full = 0;
    for (at, (epoch, used)) in steps.iter().enumerate() {
        for &sample in used {
            let here = held.get(&(at, sample)).copied().unwrap_or(0);
            read[*epoch as usize] += job.sizes.get(sample) - here;
        }
        for &sample in used {
            full -= held.remove(&(at, sample)).unwrap_or(0);
        }
        for (&sample, &next) in &next_use[at] {
            held.insert((next, sample), job.sizes.get(sample));
            full += job.sizes.get(sample);
        }
        while full > capacity {
            let mut last = held.last_entry().unwrap();
            let goes = (*last.get()).min(full - capacity);
            full -= goes;
            *last.get_mut() -= goes;
            if *last.get() == 0 {
                last.remove();
            }
        }
    }
    read
}

/// What a rank reads in an iteration: a sample that its batch names twice, once.
fn distinct(order: &EpochOrder, rank: u32, iteration: u32) -> Vec<SampleId> {
    let mut samples: Vec<SampleId> = order.batch(rank, iteration).collect();
    samples.sort_unstable();
    samples.dedup();
    samples
}

/// The least bytes that a run can read from the source, found by trying all that can be held
/// after each step: for samples of ten bytes.
fn brute_force(job: &Job) -> u64 {
    let capacity: u64 =
        (0..job.system.nodes).map(|node| job.system.tiers[1].capacity_of(node).0 / 10).sum();
    let mut cheapest: HashMap<u32, u64> = HashMap::from([(0, 0)]);
    for epoch in 0..job.epochs.unwrap() {
        let order = job.stream.epoch(epoch);
        for iteration in 0..order.iterations() {
            let ranks = 0..job.system.ranks();
            let used: Vec<SampleId> =
                ranks.flat_map(|rank| distinct(&order, rank, iteration)).collect();
            let mut after: HashMap<u32, u64> = HashMap::new();
            for (held, cost) in cheapest {
                let misses = used.iter().filter(|&&sample| held >> sample & 1 == 0).count();
                let there = used.iter().fold(held, |there, sample| there | 1 << sample);
                let subsets = (0..=there).filter(|set| set & !there == 0);
                for set in subsets.filter(|set| u64::from(set.count_ones()) <= capacity) {
                    let cost = cost + 10 * misses as u64;
                    after.entry(set).and_modify(|least| *least = cost.min(*least)).or_insert(cost);
                }
            }
            cheapest = after;
        }
    }
    cheapest.into_values().min().unwrap()
}

/// All lists of `length` out of so many samples: without repeats, or with them.
fn lists(samples: u32, length: usize, repeats: bool) -> Vec<Vec<SampleId>> {
    let mut all: Vec<Vec<SampleId>> = vec![vec![]];
    for _ in 0..length {
        let longer = |list: &Vec<SampleId>| {
            let list = list.clone();
            let more = (0..samples).filter(move |s| repeats || !list.contains(s));
            more.collect::<Vec<_>>()
        };
        all = all
            .iter()
            .flat_map(|list| longer(list).into_iter().map(|s| [&list[..], &[s]].concat()))
            .collect();
    }
    all
}

/// Plays all orders of `epochs` epochs out of the lists, each with every capacity.
fn every_order_reads_the_least(
    samples: u32,
    nodes: u32,
    batch: u32,
    lists: &[Vec<SampleId>],
    epochs: usize,
    capacities: &[&[u64]],
) {
    let mut wrong = vec![];
    let mut played = 0;
    let orders = lists.len().pow(epochs as u32 - 1);
    // The first epoch may as well be the first list: samples can be renamed.
    for number in 0..orders {
        let mut rest = number;
        let mut order = vec![lists[0].clone()];
        for _ in 1..epochs {
            order.push(lists[rest % lists.len()].clone());
            rest /= lists.len();
        }
        for capacity in capacities {
            let mut job = job(samples, nodes, 1, &[0]);
            job.system.tiers[1].by_node = capacity.iter().map(|&c| Bytes(10 * c)).collect();
            job.epochs = Some(epochs as u32);
            let order_ = Order::Given(Arc::new(order.clone()));
            let config = job.stream.config().clone();
            job.stream =
                AccessStream::new(StreamConfig { order: order_, batch, ..config }).unwrap();
            let job = Arc::new(job);
            let world = World::play(&job).unwrap();
            played += 1;
            let (ours, theirs) = (world.read.iter().sum::<u64>(), brute_force(&job));
            assert_eq!(least(&job).iter().sum::<u64>(), theirs, "{order:?}");
            if ours != theirs {
                wrong.push((order.clone(), capacity.to_vec(), ours, theirs));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {played}: {:?}", wrong.len(), &wrong[..wrong.len().min(3)]);
}

#[test]
fn permutations_on_one_node_read_the_least() {
    let all = lists(4, 4, false);
    every_order_reads_the_least(4, 1, 1, &all, 3, &[&[0], &[1], &[2], &[3], &[4]]);
}

#[test]
fn permutations_on_two_nodes_read_the_least() {
    let all = lists(4, 4, false);
    every_order_reads_the_least(4, 2, 2, &all, 3, &[&[1, 0], &[1, 1], &[2, 1], &[0, 3]]);
}

#[test]
fn orders_that_leave_samples_out_read_the_least() {
    let all = lists(5, 3, false);
    every_order_reads_the_least(5, 1, 1, &all, 3, &[&[1], &[2], &[3], &[4]]);
    let all = lists(4, 2, false);
    every_order_reads_the_least(4, 2, 2, &all, 4, &[&[1, 0], &[1, 1], &[2, 1]]);
}

#[test]
fn orders_with_repeats_read_the_least() {
    let all = lists(3, 4, true);
    every_order_reads_the_least(3, 1, 1, &all, 3, &[&[1], &[2]]);
    // Two ranks that use a sample in the same step both read it, so such a sample counts twice,
    // which Belady's rule does not know.
    let mut all = lists(3, 4, true);
    all.retain(|list| list[0] != list[1] && list[2] != list[3]);
    every_order_reads_the_least(3, 2, 2, &all, 3, &[&[1, 0], &[1, 1]]);
}

/// Source bytes are within half a per cent of the dataset an epoch of the least. Samples of
/// different sizes cannot fill a cache to the last byte: each leaves a rest, on average half a
/// sample, and one of the largest at most.
fn reads_about_the_least(what: &str, job: Job) {
    let job = Arc::new(job);
    let world = World::play(&job).unwrap();
    let least: u64 = least(&job).iter().sum();
    let read: u64 = world.read.iter().sum();
    let rests = match job.sizes {
        Sizes::Equal { .. } => 0,
        _ => u64::from(job.system.nodes) * job.sizes.largest().0,
    };
    let allowed = u64::from(job.epochs.unwrap()) * (job.sizes.total().0 / 200 + rests / 2);
    assert!(read >= least, "{what}: {read} B, less than the least, {least} B");
    assert!(read - least <= allowed, "{what}: {read} B, the least is {least} B, {allowed} B more");
}

fn with(
    (nodes, per_node): (u32, u32),
    samples: u32,
    share: f64,
    skew: bool,
    change: impl Fn(&mut Job, &mut StreamConfig),
) -> Job {
    let mut job = job(samples, nodes, per_node, &[0]);
    if skew {
        // About log-normal, with a deviation of 0.7 of the mean.
        let size = |k: u64| {
            let z = (0..12)
                .map(|i| {
                    ((k * 12 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64
                        / (1 << 24) as f64
                })
                .sum::<f64>()
                - 6.0;
            (1000.0 * (0.63 * z).exp()) as u64
        };
        job.sizes = Sizes::from_bytes((0..u64::from(samples)).map(size).collect::<Vec<_>>());
    }
    let space = (job.sizes.total().0 as f64 * share) as u64 / u64::from(nodes);
    job.system.tiers[1].capacity = Bytes(space);
    job.epochs = Some(6);
    let mut config = StreamConfig { order: Order::Torch, seed: 11, ..job.stream.config().clone() };
    change(&mut job, &mut config);
    job.stream = AccessStream::new(config).unwrap();
    job
}

#[test]
fn every_class_of_jobs_reads_about_the_least() {
    let plain = |_: &mut Job, _: &mut StreamConfig| {};
    let scheme = |scheme| move |_: &mut Job, config: &mut StreamConfig| config.scheme = scheme;
    let drop = |batch| {
        move |_: &mut Job, config: &mut StreamConfig| {
            (config.batch, config.drop_last) = (batch, true);
        }
    };
    let unlike = |job: &mut Job, _: &mut StreamConfig| {
        let space = job.system.tiers[1].capacity.0;
        job.system.tiers[1].by_node =
            [space / 5, space / 2, space, 4 * space - space / 5 - space / 2 - space]
                .map(Bytes)
                .to_vec();
    };
    let weighted = |replacement, exponent: f64, length: f64| {
        move |job: &mut Job, config: &mut StreamConfig| {
            let samples = job.sizes.len();
            let weights: Vec<f64> =
                (0..samples).map(|sample| (f64::from(sample) + 1.0).powf(-exponent)).collect();
            let share = RankShare { ranks: job.system.ranks(), ..RankShare::whole(4, false) };
            let length = (f64::from(samples) * length) as u32;
            let orders = WeightedOrders::new(&weights, length, replacement, 5, share).unwrap();
            config.order = Order::Provided(Arc::new(orders));
        }
    };
    let (with_, without) = (Replacement::With, Replacement::Without);
    for space in [0.1, 0.3, 0.6, 0.9, 0.98, 1.05] {
        let test = |what: &str, job: Job| reads_about_the_least(&format!("{what}, {space}"), job);
        test("all samples once", with((4, 1), 2000, space, false, plain));
        test("one node", with((1, 1), 2000, space, false, plain));
        test("few samples", with((4, 1), 40, space, false, plain));
        test("skewed sizes", with((4, 1), 2000, space, true, plain));
        test("few of skewed sizes", with((4, 2), 80, space, true, plain));
        test("nodes of different capacities", with((4, 1), 2000, space, false, unlike));
        test("half left out", with((1, 1), 1900, space, false, drop(1000)));
        test("half left out on four nodes", with((4, 1), 1900, space, false, drop(1000)));
        test("few left out", with((4, 1), 5000, space, false, drop(820)));
        test("replacement", with((4, 1), 2000, space, false, weighted(with_, 0.0, 1.0)));
        test("weighted", with((4, 1), 2000, space, false, weighted(with_, 0.7, 1.0)));
        test("weighted, once", with((4, 1), 2000, space, false, weighted(without, 0.7, 0.5)));
        test("weighted, skewed", with((4, 1), 2000, space, true, weighted(without, 0.7, 0.5)));
        test("unequal batches", with((4, 1), 2000, space, false, scheme(Scheme::Imbalanced)));
        test("the whole for each", with((4, 1), 2000, space, false, scheme(Scheme::Whole)));
    }
}

#[test]
fn what_only_a_later_epoch_uses_gives_its_space_to_what_the_next_one_uses() {
    // The first epoch has all its space for what the last one uses; the others use as much twice.
    let (ends, middle): (Vec<_>, Vec<_>) = ((0..20).collect(), (20..40).collect());
    let orders = vec![ends.clone(), middle.clone(), middle.clone(), middle, ends];
    let job = super::even::given(40, 10, orders);
    let read = World::play(&Arc::new(job.clone())).unwrap().read;
    assert_eq!(read, least(&job));
    assert_eq!(read, [200, 200, 100, 100, 200]);
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn few_samples_a_rank_read_the_least_where_epochs_leave_some_out(
        mut orders in prop::collection::vec(Just((0..40).collect::<Vec<_>>()).prop_shuffle(), 4),
        space in 1u64..4,
    ) {
        for order in &mut orders {
            order.truncate(24);
        }
        let mut job = job(40, 4, 1, &[10 * space]);
        job.epochs = Some(4);
        let order = Order::Given(Arc::new(orders));
        let config = StreamConfig { order, batch: 4, ..job.stream.config().clone() };
        job.stream = AccessStream::new(config).unwrap();
        let world = World::play(&Arc::new(job.clone()))?;
        prop_assert_eq!(world.read, least(&job));
    }
}
