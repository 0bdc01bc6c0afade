//! A consumer that checks every byte, and the batches that it expects.
#![allow(dead_code)]

pub mod gate;
pub mod intercept;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use belady_control::policy::PolicyKind;
use belady_control::sampler::{AccessStream, SampleId, Scheme, StreamConfig};
use belady_data::source::Synthetic;
use belady_engine::{EngineError, JobConfig, Loader};
use belady_peer::tcp::{TcpConfig, TcpTransport};
use belady_peer::{JobKey, JobWorld, Transport};

pub fn policy(name: &str) -> PolicyKind {
    PolicyKind::by_name(name).unwrap()
}

/// Returns all batches of a job; checks their bytes.
pub fn consume(mut loader: Loader, source: &Synthetic) -> Result<Vec<Vec<SampleId>>, EngineError> {
    let mut seen = vec![];
    while let Some(batch) = loader.next_batch()? {
        for sample in batch.iter() {
            assert!(source.verify(sample.id, sample.bytes()), "bytes of sample {}", sample.id);
        }
        seen.push(batch.iter().map(|sample| sample.id).collect());
    }
    Ok(seen)
}

/// Returns the batches of the access stream.
pub fn expected(config: &JobConfig) -> Vec<Vec<SampleId>> {
    let stream = AccessStream::new(StreamConfig {
        samples: config.source.catalog().len(),
        ranks: 1,
        batch: config.batch,
        order: config.order.clone(),
        scheme: Scheme::Uniform,
        seed: config.seed,
        sampler_drop_last: false,
        drop_last: config.drop_last,
    })
    .unwrap();
    let epochs = config.epochs.unwrap();
    let mut batches = vec![];
    for epoch in 0..epochs {
        let order = stream.epoch(epoch);
        batches.extend((0..order.iterations()).map(|at| order.batch(0, at).collect()));
    }
    batches
}

/// Returns nodes that are connected over TCP on the loopback interface.
pub fn tcp_network(size: u32) -> Vec<Arc<dyn Transport>> {
    let key = JobKey::random().unwrap();
    let start = |rank| {
        let (world, loopback) = (JobWorld { rank, size }, IpAddr::V4(Ipv4Addr::LOCALHOST));
        let config = TcpConfig::new(world, key.clone(), loopback);
        TcpTransport::start(TcpConfig { unix: false, ..config }).unwrap()
    };
    let nodes: Vec<_> = (0..size).map(start).collect();
    for node in &nodes {
        for (rank, other) in (0..).zip(&nodes) {
            node.set_address(rank, other.address());
        }
    }
    nodes.into_iter().map(|node| node as Arc<dyn Transport>).collect()
}

/// Returns a sample's digest as an engine sends it.
pub fn told_digest(bytes: &[u8]) -> u64 {
    let digest = belady_peer::digest(bytes);
    ((digest as u32) ^ (digest >> 32) as u32).max(1).into()
}
