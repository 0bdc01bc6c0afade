//! Nodes in one process that talk over real sockets.

// Each test file uses a part of it.
#![allow(dead_code)]

pub mod job;
pub mod proxy;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use belady_peer::tcp::{TcpConfig, TcpTransport, Tls};
use belady_peer::{JobKey, JobWorld, Transport};
use belady_testing::certificates::{Authority, Certificate};

pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns the configuration of one node.
pub fn config(rank: u32, size: u32, key: &JobKey) -> TcpConfig {
    TcpConfig::new(JobWorld { rank, size }, key.clone(), LOOPBACK)
}

/// Starts nodes that know each other's addresses.
pub fn nodes(size: u32, change: impl Fn(TcpConfig) -> TcpConfig) -> Vec<Arc<TcpTransport>> {
    let key = JobKey::random().unwrap();
    let start = |rank| TcpTransport::start(change(config(rank, size, &key))).unwrap();
    let nodes: Vec<_> = (0..size).map(start).collect();
    for node in &nodes {
        for (rank, other) in (0..).zip(&nodes) {
            node.set_address(rank, other.address());
        }
    }
    nodes
}

pub fn network(size: u32, change: impl Fn(TcpConfig) -> TcpConfig) -> Vec<Arc<dyn Transport>> {
    nodes(size, change).into_iter().map(|node| node as Arc<dyn Transport>).collect()
}

/// Makes a certificate for the loopback interface.
pub fn tls(authority: &Authority, name: &str) -> Tls {
    let Certificate { certificate, key, authority } = authority.certificate(name);
    Tls { certificate, key, authority, name: None }
}
