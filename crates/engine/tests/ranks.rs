//! Several ranks of one node, which share an engine: one cache, one plan, one pool.

mod common;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::{AccessStream, SampleId, Scheme, StreamConfig};
use belady_data::source::{Source, Synthetic};
use belady_engine::{Engine, EngineConfig, JobConfig, Loader, POLICIES, PeerPatience, TierConfig};
use belady_peer::Cluster;
use belady_peer::memory::MemoryTransport;
use belady_peer::rendezvous::InProcessRendezvous;
use common::gate::Gate;
use common::policy;
use proptest::prelude::*;

type Batches = Vec<Vec<SampleId>>;

fn source(samples: u32) -> Arc<Synthetic> {
    let size = |k: u32| 500 + u64::from(k * 7919 % 3000);
    Arc::new(Synthetic::of_sizes((0..samples).map(size), 7))
}

fn job(source: &Arc<Synthetic>, batch: u32, epochs: u32) -> JobConfig {
    let mut job = JobConfig::new(source.clone());
    (job.batch, job.epochs, job.staging) = (batch, Some(epochs), Bytes(64 << 10));
    job
}

fn engine(ram: u64) -> Engine {
    let tiers = vec![TierConfig::Ram { capacity: Bytes(ram) }];
    Engine::new(EngineConfig { threads: Some(4), tiers, ..EngineConfig::default() }).unwrap()
}

/// Returns the batches of each rank in the access stream.
fn expected(job: &JobConfig, ranks: u32) -> Vec<Batches> {
    let stream = AccessStream::new(StreamConfig {
        samples: job.source.catalog().len(),
        ranks,
        batch: job.batch * ranks,
        order: job.order.clone(),
        scheme: Scheme::Uniform,
        seed: job.seed,
        sampler_drop_last: false,
        drop_last: job.drop_last,
    })
    .unwrap();
    let orders: Vec<_> = (0..job.epochs.unwrap()).map(|epoch| stream.epoch(epoch)).collect();
    let batches = |rank| {
        let of_epoch = orders.iter().map(|order| {
            (0..order.iterations()).map(|at| order.batch(rank, at).collect()).collect::<Batches>()
        });
        of_epoch.flatten().collect()
    };
    (0..ranks).map(batches).collect()
}

/// Consumes so many batches at most; checks their bytes.
fn consume(mut loader: Loader, source: &Synthetic, limit: usize) -> Batches {
    let mut seen = vec![];
    while seen.len() < limit {
        let Some(batch) = loader.next_batch().unwrap() else { break };
        for sample in batch.iter() {
            assert!(source.verify(sample.id, sample.bytes()), "bytes of sample {}", sample.id);
        }
        seen.push(batch.iter().map(|sample| sample.id).collect());
    }
    seen
}

/// Consumes all loaders side by side, each up to its limit.
fn consume_all(loaders: Vec<Loader>, source: &Arc<Synthetic>, limits: &[usize]) -> Vec<Batches> {
    let consumers = loaders.into_iter().zip(limits).map(|(loader, &limit)| {
        let source = source.clone();
        std::thread::spawn(move || consume(loader, &source, limit))
    });
    let consumers: Vec<_> = consumers.collect();
    consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect()
}

const ALL: usize = usize::MAX;

#[test]
fn each_rank_of_a_node_gets_its_own_order_under_every_policy() {
    for name in POLICIES {
        let source = source(101);
        let mut job = job(&source, 4, 3);
        job.policy = policy(name);
        let total = source.catalog().sizes().total().0;
        let loaders = engine(total * 6 / 10).start_ranks(&job, 3).unwrap();
        assert_eq!(consume_all(loaders, &source, &[ALL; 3]), expected(&job, 3), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn ranks_that_leave_at_any_time_change_nothing_for_the_others(
        samples in 1u32..80,
        batch in 1u32..6,
        drop_last: bool,
        limits in prop::collection::vec(prop_oneof![Just(ALL), 0usize..12], 1..5),
        cached in 0u64..12,
    ) {
        let source = source(samples);
        let mut job = job(&source, batch, 3);
        job.drop_last = drop_last;
        let total = source.catalog().sizes().total().0;
        let ranks = limits.len() as u32;
        prop_assume!(!drop_last || samples.div_ceil(ranks) >= batch);
        let loaders = engine(total * cached / 10).start_ranks(&job, ranks).unwrap();
        let seen = consume_all(loaders, &source, &limits);
        for ((mut expected, seen), limit) in expected(&job, ranks).into_iter().zip(seen).zip(limits) {
            expected.truncate(limit);
            prop_assert_eq!(seen, expected);
        }
    }
}

/// Four engines with a quarter of the cache each would have to get samples from each other.
#[test]
fn ranks_of_a_node_read_what_one_cache_cannot_hold_within_a_percent() {
    let epochs = 6;
    for ranks in [1, 4] {
        let source = source(400);
        let total = source.catalog().sizes().total().0;
        let cache = total * 6 / 10;
        let mut job = job(&source, 16 / ranks, epochs);
        job.staging = Bytes((256 << 10) / u64::from(ranks));
        let loaders = engine(cache).start_ranks(&job, ranks).unwrap();
        consume_all(loaders, &source, &[ALL; 4]);
        let read = source.operations().bytes;
        let bound = total + u64::from(epochs - 1) * (total - cache);
        let most = bound + u64::from(epochs - 1) * total / 100;
        // What the staging buffers hold at the start of an epoch is a hit too.
        let least = bound - u64::from(epochs - 1) * (256 << 10);
        assert!((least..=most).contains(&read), "{ranks} ranks: {read}, bound {bound}");
    }
}

#[test]
fn a_staging_buffer_too_small_for_a_rank_is_refused() {
    let source = source(64);
    let mut job = job(&source, 4, 1);
    job.staging = Bytes(1000);
    let error = engine(0).start_ranks(&job, 2).unwrap_err().to_string();
    assert!(error.contains("staging"), "{error}");
}

/// Four threads and two ranks: with a share for each rank, two reads of each are under way.
#[test]
fn the_engine_gives_ranks_the_threads_that_the_policy_assigns() {
    for (name, shares) in [("staging", [2, 2]), ("nopfs", [2, 2])] {
        let inner = source(64);
        let expected = expected(&job(&inner, 32, 1), 2);
        let mut rank_of = vec![0; 64];
        for &sample in expected[1].iter().flatten() {
            rank_of[sample as usize] = 1;
        }
        let gate = Gate::new(inner.clone(), rank_of);
        let mut job = JobConfig::new(gate.clone());
        (job.batch, job.staging, job.policy) = (32, Bytes(1 << 20), policy(name));
        let loaders = engine(0).start_ranks(&job, 2).unwrap();
        assert_eq!(gate.wait_for_reads(4), shares, "{name}");
        gate.open();
        assert_eq!(consume_all(loaders, &inner, &[ALL; 2]), expected, "{name}");
    }
}

/// The one thread that stages waits for the source. NoPFS prefetches with p_1 more.
#[test]
fn nopfs_prefetches_while_all_staging_threads_load() {
    let inner = source(64);
    let gate = Gate::new(inner.clone(), vec![0; 64]);
    let mut job = JobConfig::new(gate.clone());
    (job.batch, job.staging, job.policy) = (8, Bytes(1 << 20), policy("nopfs"));
    (job.epochs, job.seed) = (Some(2), 3);
    let tiers = vec![TierConfig::Ram { capacity: Bytes(1 << 20) }];
    let config = EngineConfig { threads: Some(1), tiers, ..EngineConfig::default() };
    let loader = Engine::new(config).unwrap().start(&job).unwrap();
    gate.wait_for_reads(2);
    gate.open();
    assert_eq!(vec![consume(loader, &inner, ALL)], expected(&job, 1));
}

/// Two nodes of two ranks each.
#[test]
fn ranks_of_several_nodes_share_the_caches_of_all_nodes() {
    let (nodes, local, epochs) = (2u32, 2u32, 4);
    let source = source(200);
    let total = source.catalog().sizes().total().0;
    let job = job(&source, 5, epochs);
    let meeting = InProcessRendezvous::new(nodes, Duration::from_mins(1));
    let networks = MemoryTransport::network(nodes);
    let barrier = Arc::new(Barrier::new((nodes * local) as usize));
    let starts = (0..).zip(networks).map(|(node, transport)| {
        let (job, source, barrier) = (job.clone(), source.clone(), barrier.clone());
        let cluster = Cluster::new(meeting.member(node), transport);
        std::thread::spawn(move || {
            let engine = Engine::new(EngineConfig {
                threads: Some(4),
                tiers: vec![TierConfig::Ram { capacity: Bytes(total * 11 / 20) }],
                peers: Some(Arc::new(cluster)),
                peer_patience: PeerPatience {
                    answer: Duration::from_secs(5),
                    wait: Duration::from_mins(1),
                },
                ..EngineConfig::default()
            })
            .unwrap();
            let loaders = engine.start_ranks(&job, local).unwrap();
            let consumers = loaders.into_iter().map(|mut loader| {
                let (source, barrier) = (source.clone(), barrier.clone());
                std::thread::spawn(move || {
                    let mut seen: Batches = vec![];
                    while let Some(batch) = loader.next_batch().unwrap() {
                        assert!(batch.iter().all(|one| source.verify(one.id, one.bytes())));
                        seen.push(batch.iter().map(|sample| sample.id).collect());
                        drop(batch);
                        // In step, as in training.
                        barrier.wait();
                    }
                    seen
                })
            });
            let consumers: Vec<_> = consumers.collect();
            consumers.into_iter().map(|one| one.join().unwrap()).collect::<Vec<Batches>>()
        })
    });
    let starts: Vec<_> = starts.collect();
    let seen: Vec<Batches> = starts.into_iter().flat_map(|node| node.join().unwrap()).collect();
    assert_eq!(seen, expected(&job, nodes * local));
    let read = source.operations().bytes;
    // Both caches together hold everything, so later epochs read nothing.
    assert!(read <= total + total / 50, "{read} of {total}");
}
