//! Samples of many MiB move between nodes like small ones.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use belady_control::model::Bytes;
use belady_data::source::Synthetic;
use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{Engine, EngineConfig, JobConfig, TierConfig};
use belady_peer::memory::MemoryTransport;
use belady_peer::rendezvous::InProcessRendezvous;
use belady_peer::{Ask, Cluster, NodeId, PeerError, Transport};
use common::intercept::{Call, Intercept, Intercepted};
use common::{consume, tcp_network};

const MIB: u64 = 1 << 20;
const NODES: u32 = 2;

const SIZES: [u64; 4] = [66 * MIB, 80 * MIB, 70 * MIB, 75 * MIB];

/// A simulated network so slow that no sample arrives within the time of a small answer.
#[derive(Debug)]
struct Slow {
    /// Bytes a second.
    rate: f64,
}

impl Intercept for Slow {
    fn before(&self, peer: NodeId, call: Call<'_>, deadline: Instant) -> Result<(), PeerError> {
        let size = |ask: &Ask| SIZES.get(ask.sample as usize).copied().unwrap_or(0);
        let bytes: u64 = match call {
            Call::Get(request) => request.asks.iter().map(size).sum(),
            Call::Put(pushes) => pushes.iter().map(|push| push.bytes.len() as u64).sum(),
            Call::Tell => 0,
        };
        let limit = deadline.saturating_duration_since(Instant::now());
        let is_in_time = bytes as f64 / self.rate <= limit.as_secs_f64();
        if is_in_time { Ok(()) } else { Err(PeerError::TimedOut { peer, limit }) }
    }
}

/// Runs four epochs of four samples on two nodes, whose caches together hold all of them.
fn run(network: Vec<Arc<dyn Transport>>) {
    let source = Arc::new(Synthetic::of_sizes(SIZES, 3));
    let rendezvous = InProcessRendezvous::new(NODES, Duration::from_mins(2));
    let node = |cluster: Arc<Cluster>| {
        let engine = Engine::new(EngineConfig {
            threads: Some(2),
            tiers: vec![TierConfig::Ram { capacity: Bytes(240 * MIB) }],
            peers: Some(cluster),
            ..EngineConfig::default()
        })
        .unwrap();
        let job = JobConfig::new(source.clone());
        let staging = Bytes(256 * MIB);
        let loader =
            engine.start(&JobConfig { epochs: Some(4), batch: 1, staging, ..job }).unwrap();
        let seen = consume(loader, &source).unwrap();
        (seen.len(), engine.metrics().snapshot())
    };
    let seen: Vec<(usize, MetricsSnapshot)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(network)
            .map(|(rank, transport)| {
                let cluster = Arc::new(Cluster::new(rendezvous.member(rank), transport));
                scope.spawn(|| node(cluster))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |of: fn(&MetricsSnapshot) -> u64| seen.iter().map(|(_, it)| of(it)).sum::<u64>();
    assert!(seen.iter().all(|(batches, _)| *batches == 4 * 2));
    assert_eq!(
        sum(|it| it.source.samples),
        4,
        "{:?}",
        seen.iter().map(|(_, it)| it.peers).collect::<Vec<_>>()
    );
    assert!(sum(|it| it.peers.pushed.bytes + it.peers.read.bytes) > 64 * MIB);
}

#[test]
fn samples_of_more_than_64_mib_are_read_from_the_source_once() {
    run(tcp_network(NODES));
}

#[test]
fn a_call_that_moves_large_samples_has_more_time() {
    let slow = |inner: Arc<MemoryTransport>| -> Arc<dyn Transport> {
        Arc::new(Intercepted { inner, by: Slow { rate: 2e6 } })
    };
    run(MemoryTransport::network(NODES).into_iter().map(slow).collect());
}
