//! The conformance suite of transports. An implementation is done when it passes.
//!
//! A [`TestHandler`] derives its answers from the number of a sample, so the caller knows what must
//! arrive, in this process or in another. Where all nodes are in one process, [`all`] runs
//! everything. Where they are not, each registers a test handler and calls [`ask_everything`] for
//! each of the others.

mod client;
mod test_handler;

pub use client::ask_everything;
pub use test_handler::{CHANNEL, TestHandler};

use std::time::{Duration, Instant};

use belady_base::sync::Arc;

use crate::message::{Answer, Notice, PushOutcome};
use crate::transport::Transport;
use crate::{NodeId, PeerError};

/// Makes a number of nodes that can reach each other.
pub type Make<'a> = &'a dyn Fn(u32) -> Vec<Arc<dyn Transport>>;

/// Runs the whole suite.
pub fn all(make: Make<'_>) {
    one_asks_another(make);
    all_ask_all_at_once(make);
    a_job_that_is_not_there_is_about_to_begin_or_has_ended(make);
    a_closed_transport_neither_calls_nor_is_called(make);
}

/// Returns a deadline that no call of the suite reaches, on any machine.
fn deadline() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

fn close(nodes: &[Arc<dyn Transport>]) {
    for node in nodes {
        node.close();
    }
}

fn one_asks_another(make: Make<'_>) {
    let nodes = make(2);
    let _handler = TestHandler::register(&nodes[1]);
    ask_everything(&*nodes[0], 0, 1);
    close(&nodes);
}

/// In both directions, by more threads than there are connections.
fn all_ask_all_at_once(make: Make<'_>) {
    let nodes = make(3);
    let _handlers: Vec<_> = nodes.iter().map(TestHandler::register).collect();
    std::thread::scope(|scope| {
        for from in 0..3 {
            for to in (0..3).filter(|&to| to != from) {
                for _ in 0..6 {
                    let node = &nodes[from as usize];
                    scope.spawn(move || client::ask_for_samples(&**node, from, to));
                }
            }
        }
    });
    close(&nodes);
}

fn a_job_that_is_not_there_is_about_to_begin_or_has_ended(make: Make<'_>) {
    let nodes = make(2);
    client::no_handler(&*nodes[0], 1, (Answer::NotYet, PushOutcome::NoSpace));
    let handler = TestHandler::register(&nodes[1]);
    client::ask_for_samples(&*nodes[0], 0, 1);
    drop(handler);
    client::no_handler(&*nodes[0], 1, (Answer::NotHere, PushOutcome::Refused));
    close(&nodes);
}

fn a_closed_transport_neither_calls_nor_is_called(make: Make<'_>) {
    let nodes = make(3);
    let _handlers: Vec<_> = nodes.iter().map(TestHandler::register).collect();
    client::ask_for_samples(&*nodes[0], 0, 1);
    client::ask_for_samples(&*nodes[1], 1, 0);
    nodes[1].close();
    let tell = |from: NodeId, to: NodeId| {
        nodes[from as usize].tell(to, CHANNEL, &Notice::EpochDone { epoch: 1 }, deadline())
    };
    assert!(matches!(tell(1, 0), Err(PeerError::Left)), "a closed transport makes no calls");
    let gone = tell(0, 1);
    let is_gone = |gone| {
        matches!(
            gone,
            Err(PeerError::Unreachable { peer: 1, .. } | PeerError::Closed { peer: 1, .. })
        )
    };
    assert!(is_gone(gone), "and cannot be called");
    client::ask_for_samples(&*nodes[0], 0, 2);
    client::ask_for_samples(&*nodes[2], 2, 0);
    close(&nodes);
}
