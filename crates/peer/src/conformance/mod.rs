//! What every transport promises, whatever it is made of. An implementation is done when it passes.
//!
//! A [`Shop`] serves what the number of a sample says, so whoever asks knows what must come, in
//! this process or in another. Where all nodes are in one process, [`all`] does everything. Where they
//! are not, each opens a shop and calls [`ask_everything`] for each of the others.

mod client;
mod shop;

pub use client::ask_everything;
pub use shop::{CHANNEL, Shop};

use std::time::{Duration, Instant};

use belady_data::sync::Arc;

use crate::transport::{Answer, Notice, Taken, Transport};
use crate::{NodeId, PeerError};

/// Makes so many nodes, which can reach each other.
pub type Make<'a> = &'a dyn Fn(u32) -> Vec<Arc<dyn Transport>>;

/// The whole suite.
pub fn all(make: Make<'_>) {
    one_asks_another(make);
    all_ask_all_at_once(make);
    a_job_that_is_not_there_is_about_to_begin_or_has_ended(make);
    whoever_has_left_says_so(make);
}

/// No call of the suite takes this long, on any machine.
fn far() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

fn close(nodes: &[Arc<dyn Transport>]) {
    for node in nodes {
        node.close();
    }
}

fn one_asks_another(make: Make<'_>) {
    let nodes = make(2);
    let _shop = Shop::open(&nodes[1]);
    ask_everything(&*nodes[0], 0, 1);
    close(&nodes);
}

/// In both directions, by more threads than there are connections.
fn all_ask_all_at_once(make: Make<'_>) {
    let nodes = make(3);
    let _shops: Vec<_> = nodes.iter().map(Shop::open).collect();
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
    client::nobody_serves(&*nodes[0], 1, (Answer::NotYet, Taken::NoRoom));
    let shop = Shop::open(&nodes[1]);
    client::ask_for_samples(&*nodes[0], 0, 1);
    drop(shop);
    client::nobody_serves(&*nodes[0], 1, (Answer::NotHere, Taken::Refused));
    close(&nodes);
}

fn whoever_has_left_says_so(make: Make<'_>) {
    let nodes = make(3);
    let _shops: Vec<_> = nodes.iter().map(Shop::open).collect();
    client::ask_for_samples(&*nodes[0], 0, 1);
    client::ask_for_samples(&*nodes[1], 1, 0);
    nodes[1].close();
    let tell = |from: NodeId, to: NodeId| {
        nodes[from as usize].tell(to, CHANNEL, &Notice::EpochDone { epoch: 1 }, far())
    };
    assert!(matches!(tell(1, 0), Err(PeerError::Left)), "one who has left cannot speak");
    let gone = tell(0, 1);
    let is_gone = |gone| {
        matches!(
            gone,
            Err(PeerError::Unreachable { peer: 1, .. } | PeerError::Closed { peer: 1, .. })
        )
    };
    assert!(is_gone(gone), "and cannot be spoken to");
    client::ask_for_samples(&*nodes[0], 0, 2);
    client::ask_for_samples(&*nodes[2], 2, 0);
    close(&nodes);
}
