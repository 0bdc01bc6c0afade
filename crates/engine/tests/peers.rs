//! Several nodes in one process, each with an engine of its own: together they are one cache.

mod common;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::{AccessStream, Order, SampleId, Scheme, StreamConfig};
use belady_data::source::Synthetic;
use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{Engine, EngineConfig, EngineError, JobConfig, PeerPatience, TierConfig};
use belady_peer::Cluster;
use belady_peer::meet::Hall;
use belady_peer::memory::MemoryTransport;
use common::policy;

const NODES: u32 = 4;
const LIMIT: Duration = Duration::from_mins(1);

struct Seen {
    batches: Vec<Vec<SampleId>>,
    /// After each epoch.
    metrics: Vec<MetricsSnapshot>,
}

struct World {
    source: Arc<Synthetic>,
    job: JobConfig,
    ram: u64,
    /// Ranks take their batches together, as in training.
    together: bool,
    patience: Duration,
}

impl World {
    fn new(samples: u32, cached: f64) -> Self {
        let source = Arc::new(Synthetic::of_sizes(
            (0..samples).map(|k| 1500 + u64::from(k * 7919 % 1000)),
            7,
        ));
        let bytes = belady_data::source::Source::catalog(&*source).sizes().total().0;
        let mut job = JobConfig::new(source.clone());
        job.batch = 8;
        job.epochs = Some(4);
        job.staging = Bytes(1 << 20);
        let ram = (bytes as f64 * cached / f64::from(NODES)) as u64;
        Self { source, job, ram, together: true, patience: LIMIT }
    }

    fn expected(&self, rank: u32) -> Vec<Vec<SampleId>> {
        let stream = AccessStream::new(StreamConfig {
            samples: self.source_len(),
            ranks: NODES,
            batch: self.job.batch * NODES,
            order: self.job.order.clone(),
            scheme: Scheme::Uniform,
            seed: self.job.seed,
            sampler_drop_last: false,
            drop_last: self.job.drop_last,
        })
        .unwrap();
        (0..self.job.epochs.unwrap())
            .flat_map(|epoch| {
                let order = stream.epoch(epoch);
                (0..order.iterations())
                    .map(|at| order.batch(rank, at).collect())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    fn source_len(&self) -> u32 {
        belady_data::source::Source::catalog(&*self.source).len()
    }

    fn run(&self) -> Vec<Result<Seen, EngineError>> {
        let hall = Hall::new(NODES, LIMIT);
        let barrier = Barrier::new(NODES as usize);
        let nodes = MemoryTransport::network(NODES);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(nodes)
                .map(|(rank, transport)| {
                    let cluster = Arc::new(Cluster::new(hall.seat(rank), transport));
                    let barrier = &barrier;
                    scope.spawn(move || self.node(rank, cluster, barrier))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn node(
        &self,
        rank: u32,
        cluster: Arc<Cluster>,
        barrier: &Barrier,
    ) -> Result<Seen, EngineError> {
        let engine = Engine::new(EngineConfig {
            threads: Some(2),
            tiers: vec![TierConfig::Ram { capacity: Bytes(self.ram) }],
            peers: Some(cluster),
            peer_patience: PeerPatience { wait: self.patience, ..PeerPatience::default() },
            ..EngineConfig::default()
        })?;
        let mut loader = engine.start(&self.job)?;
        let mut seen = Seen { batches: vec![], metrics: vec![] };
        let mut epoch = 0;
        while let Some(batch) = loader.next_batch()? {
            if batch.step().epoch > epoch {
                seen.metrics.push(engine.metrics().snapshot());
                epoch = batch.step().epoch;
            }
            for sample in batch.iter() {
                let right = self.source.verify(sample.id, sample.bytes());
                assert!(right, "bytes of sample {} on rank {rank}", sample.id);
            }
            seen.batches.push(batch.iter().map(|sample| sample.id).collect());
            if self.together {
                barrier.wait();
            }
        }
        seen.metrics.push(engine.metrics().snapshot());
        Ok(seen)
    }
}

fn source_bytes(seen: &Seen) -> Vec<u64> {
    let mut before = 0;
    let each =
        |now: &MetricsSnapshot| now.source.bytes - std::mem::replace(&mut before, now.source.bytes);
    seen.metrics.iter().map(each).collect()
}

#[test]
fn what_fits_into_all_caches_together_is_read_from_the_source_once() {
    let world = World::new(1000, 1.02);
    let seen: Vec<Seen> = world.run().into_iter().map(Result::unwrap).collect();
    for (rank, seen) in (0..).zip(&seen) {
        assert_eq!(seen.batches, world.expected(rank), "rank {rank}");
        eprintln!("{rank}: {:?} {:?}", source_bytes(seen), seen.metrics.last().unwrap().peers);
    }
    let all: u64 = seen.iter().map(|seen| seen.metrics.last().unwrap().source.samples).sum();
    assert_eq!(all, 1000, "each sample once");
}

#[test]
fn policies_deliver_exact_epochs_on_several_nodes() {
    for name in ["belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster"] {
        for (together, cached) in [(true, 0.6), (false, 1.1)] {
            let mut world = World::new(300, cached);
            world.job.policy = policy(name);
            world.job.order = Order::Permutation;
            world.together = together;
            // Who does not train with us is not waited for.
            world.patience = if together { LIMIT } else { Duration::from_millis(20) };
            for (rank, seen) in (0..).zip(world.run()) {
                assert_eq!(seen.unwrap().batches, world.expected(rank), "{name}, rank {rank}");
            }
        }
    }
}
