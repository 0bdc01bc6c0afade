//! When a step ends: see [`belady_peer::protocol::pace`].

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_data::sync::{Arc, lock};
use belady_peer::NodeId;
use belady_peer::protocol::pace::Turn;

use super::notify;
use crate::keep;
use crate::metrics::PeerEvent;
use crate::parcel::Parcel;
use crate::run::Run;

/// How often one who has nothing more to do looks whether others have.
const LEAVING: Duration = Duration::from_millis(5);
/// How often a batch that waits for other nodes looks whether its consumer has waited long enough.
const TICK: Duration = Duration::from_millis(50);

/// An epoch of so many steps begins.
pub fn begin_epoch(run: &Run, steps: u32) {
    if let Some(peers) = &run.peers {
        lock(&peers.talk).pace.set_epoch(steps.into());
    }
}

/// So many steps were over before the run began.
pub fn skip(run: &Run, steps: u64) {
    if let Some(peers) = &run.peers {
        lock(&peers.talk).pace.skip(steps);
    }
}

/// How long the consumer has been waiting for a batch that is loaded, or on its way; zero while it has
/// something to do.
pub fn starved(run: &Run, parcel: &Parcel) -> Duration {
    run.asked.waited_for(parcel.sequence).min(parcel.since())
}

/// Waits until what caches hold for an epoch may be asked for: see [`belady_peer::protocol::pace`].
pub fn wait_to_begin(run: &Run) {
    let Some(peers) = run.peers.as_ref().filter(|peers| peers.in_step) else { return };
    let planned = run.planned.load(Ordering::Acquire);
    let since = Instant::now();
    loop {
        let starved = run.asked.waited_for(planned + 1).min(since.elapsed());
        let mut guard = lock(&peers.talk);
        let talk = &mut *guard;
        let health = &talk.health;
        if run.is_stopping() || talk.pace.may_begin(planned, starved, |node| health.is_up(node)) {
            return;
        }
        drop(peers.changed.wait_timeout(guard, TICK).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A node has told how many steps it has loaded; whether that is new.
pub fn told(run: &Run, node: NodeId, steps: u64) -> bool {
    let Some(peers) = &run.peers else { return false };
    let new = lock(&peers.talk).pace.told(node, steps, run.asked.count());
    if new {
        peers.changed.notify_all();
    }
    new
}

/// A batch is loaded: tells others how many are, from the first on.
pub fn loaded(run: &Arc<Run>, parcel: &Parcel) {
    if run.peers.as_ref().is_none_or(|peers| !peers.in_step) {
        return;
    }
    let in_order = lock(&run.in_order);
    let first = in_order.iter().take_while(|parcel| parcel.is_loaded());
    let steps = first.last().map(|parcel| parcel.sequence);
    // Somebody else may have ended it meanwhile: then all before it are loaded too.
    let is_over = in_order.front().is_none_or(|first| first.sequence > parcel.sequence);
    let steps = steps.max(is_over.then_some(parcel.sequence));
    drop(in_order);
    if let (Some(steps), Some(peers)) = (steps, &run.peers) {
        told(run, peers.me, steps);
        notify::loaded(run, steps);
    }
}

/// Whether a batch that is loaded may end: all who are there have loaded theirs of that step.
pub fn may_end(run: &Run, parcel: &Parcel) -> bool {
    let Some(peers) = run.peers.as_ref().filter(|peers| peers.in_step) else { return true };
    let starved = starved(run, parcel);
    let talk = &mut *lock(&peers.talk);
    let health = &talk.health;
    let turn = talk.pace.may_end(parcel.sequence - 1, starved, |node| health.is_up(node));
    if turn == Turn::Hurry {
        run.metrics.peers().count(PeerEvent::Hurried, 1);
        tracing::warn!(
            "other ranks are behind for longer than they are waited for: going on without them"
        );
    }
    turn != Turn::Wait
}

/// Goes on serving for a while if others have not staged all of the run yet, which they need us for.
pub fn let_others_finish(run: &Run) {
    let Some(peers) = &run.peers else { return };
    let until = peers.deadline();
    let epochs = run.epochs_begun();
    let behind = || {
        let up: Vec<bool> = (0..peers.nodes).map(|node| peers.is_up(node)).collect();
        let is_up = |node: NodeId| up[node as usize];
        let is_behind = lock(&peers.talk).ledger.may_come(epochs, is_up);
        // They wait for us as we wait for them.
        is_behind || lock(&peers.notices).are_due(|node| node != peers.me && is_up(node))
    };
    while behind() && Instant::now() < until {
        std::thread::sleep(LEAVING);
    }
}

/// Looks again later whether the first batch may end.
pub fn look_again(run: &Arc<Run>) {
    let for_later = run.clone();
    run.lane.delay(TICK, run.task(move |_| keep::look_again(&for_later)));
}
