//! The TCP transport passes the conformance suite: over TCP, Unix sockets, and TLS.

mod common;

use belady_peer::conformance;
use belady_peer::tcp::TcpConfig;
use belady_testing::certificates::Authority;
use common::{network, tls};

#[test]
fn over_tcp() {
    conformance::all(&|nodes| network(nodes, |config| TcpConfig { unix: false, ..config }));
}

#[test]
fn over_unix_sockets() {
    conformance::all(&|nodes| network(nodes, |config| config));
}

#[test]
fn over_tcp_with_one_connection_a_peer() {
    let one = |config| TcpConfig { unix: false, connections: 1, ..config };
    conformance::all(&|nodes| network(nodes, one));
}

#[test]
fn under_tls() {
    let authority = Authority::new();
    let under = |config: TcpConfig| {
        let tls = Some(tls(&authority, &format!("node{}", config.world.rank)));
        TcpConfig { unix: false, tls, ..config }
    };
    conformance::all(&|nodes| network(nodes, under));
}
