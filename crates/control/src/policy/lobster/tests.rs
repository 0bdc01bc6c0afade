//! Unit tests of lobster's answers.

use super::*;
use crate::policy::testing::{Driver, job};
use crate::sampler::{AccessStream, Order, StreamConfig};

const ALL: LobsterOptions = LobsterOptions { threads: true, eviction: true, tau: Seconds(0.001) };

fn shuffled(capacity: u64, epochs: u32) -> Arc<Job> {
    let mut job = job(40, 2, 2, &[capacity]);
    let config = StreamConfig { order: Order::Torch, ..job.stream.config().clone() };
    job.stream = AccessStream::new(config).unwrap();
    job.epochs = Some(epochs);
    Arc::new(job)
}

/// Plays a run; returns the loads from the source by epoch.
fn play(job: &Arc<Job>, options: LobsterOptions) -> Vec<usize> {
    let plan: Arc<dyn PolicyPlan> = Arc::new(Lobster::new(job, options));
    let mut nodes = [0, 1].map(|node| Driver::new(&plan, node));
    let mut held = [Bits::new(40), Bits::new(40)];
    let epochs = job.epochs.unwrap();
    let mut read = vec![];
    for epoch in 0..epochs {
        let order = Arc::new(job.stream.epoch(epoch));
        let next = (epoch + 1 < epochs).then(|| Arc::new(job.stream.epoch(epoch + 1)));
        plan.begin_epoch(epoch, &order, next.as_ref());
        let mut from_source = 0;
        for iteration in 0..order.iterations() {
            let batch = |rank| order.batch(rank, iteration).collect::<Vec<_>>();
            for rank in 0..4 {
                let node = rank as usize / 2;
                for load in nodes[node].stage(rank, (epoch, iteration), &batch(rank)) {
                    match load.from {
                        LoadFrom::Source => from_source += 1,
                        LoadFrom::Local(1) => assert!(held[node].contains(load.sample)),
                        LoadFrom::Peer(peer, 1) => {
                            assert!(peer as usize != node);
                            assert!(held[peer as usize].contains(load.sample), "{load:?}");
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            for rank in 0..4 {
                let node = rank as usize / 2;
                let actions = nodes[node].consumed(rank, (epoch, iteration), &batch(rank));
                for evict in &actions.evictions {
                    assert!(held[node].remove(evict.sample), "{evict:?} is not held");
                }
                for keep in &actions.keeps {
                    assert!(held[node].insert(keep.sample), "{keep:?} is held already");
                }
                let capacity = job.system.tiers[1].capacity.0 as usize / 10;
                assert!(held[node].count() <= capacity);
            }
        }
        read.push(from_source);
    }
    read
}

#[test]
fn a_cache_of_the_whole_dataset_reads_the_source_only_in_the_first_epoch() {
    assert_eq!(play(&shuffled(400, 4), ALL), [40, 0, 0, 0]);
}

#[test]
fn in_a_small_cache_every_action_can_be_carried_out() {
    for eviction in [true, false] {
        let read = play(&shuffled(100, 5), LobsterOptions { eviction, ..ALL });
        assert_eq!(read[0], 40);
        // Two nodes of ten: twenty of forty can be held.
        assert!(read[1..].iter().all(|&later| (20..40).contains(&later)), "{read:?}");
    }
}

#[test]
fn an_epoch_that_was_not_begun_is_read_from_the_source() {
    let plan: Arc<dyn PolicyPlan> = Arc::new(Lobster::new(&shuffled(400, 2), ALL));
    let mut node = Driver::new(&plan, 0);
    assert_eq!(node.stage(0, (1, 0), &[7]), [Load::from_source(7)]);
    assert!(node.consumed(0, (1, 0), &[7]).keeps.is_empty());
    let missed = node.on(Event::Missed { rank: 0, sample: 7, peer: 1 });
    assert_eq!(missed.loads, [Load::from_source(7)]);
}

#[test]
fn threads_are_dalis_unless_they_follow_the_load() {
    let job = shuffled(400, 2);
    let dali = Lobster::new(&job, LobsterOptions { threads: false, ..ALL }).threads();
    assert_eq!(dali, ThreadAssignment::Split { loading: vec![3.0, 3.0], preprocessing: 2.0 });
    assert_eq!(Lobster::new(&job, ALL).threads(), ThreadAssignment::PerRank);
}

#[test]
fn threads_are_assigned_with_the_first_batch_of_a_step_and_when_they_change() {
    let job = shuffled(400, 2);
    let lobster = Lobster::new(&job, ALL);
    let order = Arc::new(job.stream.epoch(0));
    lobster.begin_epoch(0, &order, Some(&Arc::new(job.stream.epoch(1))));
    let plan: Arc<dyn PolicyPlan> = Arc::new(lobster);
    let mut node = Driver::new(&plan, 0);
    let mut assigned = |rank, iteration| {
        let batch: Vec<_> = order.batch(rank, iteration).collect();
        node.stage(rank, (0, iteration), &batch);
        node.actions.threads.is_some()
    };
    let steps = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(rank, at)| assigned(rank, at));
    assert_eq!(steps, [true, false, false, false]);
}

#[test]
fn a_sample_on_its_way_through_the_ring_is_read_from_the_tier_it_goes_to() {
    let mut job = job(4, 1, 1, &[400]);
    job.epochs = Some(2);
    let job = Arc::new(job);
    let lobster = Lobster::new(&job, ALL);
    let orders = [0, 1].map(|epoch| Arc::new(job.stream.epoch(epoch)));
    lobster.begin_epoch(0, &orders[0], Some(&orders[1]));
    lobster.begin_epoch(1, &orders[1], None);
    let plan: Arc<dyn PolicyPlan> = Arc::new(lobster);
    let mut node = Driver::new(&plan, 0);
    node.stage(0, (0, 0), &[0, 1]);
    assert_eq!(node.stage(0, (1, 0), &[0])[0].from, LoadFrom::Local(1));
    // Planned, but its first use is not even staged.
    assert_eq!(node.stage(0, (1, 1), &[2])[0].from, LoadFrom::Source);
}

#[test]
fn three_epochs_are_remembered() {
    let job = shuffled(400, 9);
    let lobster = Lobster::new(&job, ALL);
    for epoch in 0..6 {
        let order = Arc::new(job.stream.epoch(epoch));
        lobster.begin_epoch(epoch, &order, Some(&Arc::new(job.stream.epoch(epoch + 1))));
    }
    let there = [0, 1, 2, 3, 4, 5, 6].map(|epoch| lobster.epoch(epoch).is_some());
    assert_eq!(there, [false, false, false, true, true, true, false]);
}

/// One node of 80 steps of two samples, whose prefetcher fetches 16 after the second step.
fn prefetching() -> Driver {
    let mut job = job(160, 1, 1, &[1600]);
    job.system.tiers[0].capacity.0 = 100;
    let job = Arc::new(job);
    let lobster = Lobster::new(&job, ALL);
    let orders = [0, 1].map(|epoch| Arc::new(job.stream.epoch(epoch)));
    lobster.begin_epoch(0, &orders[0], Some(&orders[1]));
    let plan: Arc<dyn PolicyPlan> = Arc::new(lobster);
    assert!(plan.waits_for_fetches());
    let mut node = Driver::new(&plan, 0);
    for iteration in 0..2 {
        assert!(node.on(Event::Idle { tier: 1, limit: 9 }).fetches.is_empty());
        let batch = [2 * iteration, 2 * iteration + 1];
        node.stage(0, (0, iteration), &batch);
        node.consumed(0, (0, iteration), &batch);
    }
    node
}

const FETCHED: SampleId = 16;

fn places(loads: &[Load]) -> Vec<LoadFrom> {
    loads.iter().map(|load| load.from).collect()
}

#[test]
fn staging_waits_for_what_a_prefetcher_reads() {
    let mut node = prefetching();
    assert_eq!(node.on(Event::Idle { tier: 1, limit: 9 }).fetches, [Fetch { sample: FETCHED }]);
    assert!(node.on(Event::Idle { tier: 1, limit: 9 }).fetches.is_empty());
    let loads = node.stage(0, (0, 8), &[FETCHED, 17]);
    assert_eq!(places(&loads), [LoadFrom::Local(1), LoadFrom::Source]);
    assert!(node.on(Event::Fetched { tier: 1, sample: FETCHED }).evictions.is_empty());
    // In its tier already, while 17 is kept.
    let actions = node.consumed(0, (0, 8), &[FETCHED, 17]);
    assert_eq!(actions.keeps, [Keep { sample: 17, node: 0, tier: 1 }]);
}

#[test]
fn what_staging_reads_first_goes_from_the_ring_to_the_tier() {
    let mut node = prefetching();
    let loads = node.stage(0, (0, 8), &[FETCHED, 17]);
    assert_eq!(places(&loads), [LoadFrom::Source, LoadFrom::Source]);
    assert!(node.on(Event::Idle { tier: 1, limit: 9 }).fetches.is_empty());
    let actions = node.consumed(0, (0, 8), &[FETCHED, 17]);
    let keep = |sample| Keep { sample, node: 0, tier: 1 };
    assert_eq!(actions.keeps, [keep(FETCHED), keep(17)]);
}

#[test]
fn a_sample_that_arrives_unasked_is_dropped() {
    let mut node = prefetching();
    let actions = node.on(Event::Fetched { tier: 1, sample: 99 });
    assert_eq!(actions.evictions, [Evict { sample: 99, tier: 1 }]);
}
