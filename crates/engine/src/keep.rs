//! The end of a step: what it frees is let go, what it keeps goes into tiers, and the batch
//! goes to the consumer.
//!
//! Steps end in order. Policies plan in that order too, so there is room for what a step keeps
//! once it has let go of what it frees, and what a later batch counts on is there or on its way.

use std::sync::atomic::Ordering;

use belady_control::policy::Evict;
use belady_data::sync::{Arc, lock};
use belady_data::tier::Put;

use crate::parcel::{NOWHERE, Parcel, SOURCE};
use crate::peers::{give, notify, pace};
use crate::pool::{Task, Worker};
use crate::run::Run;
use crate::{hangs, load};

/// Samples are kept in pieces of about this size.
const PIECE: u64 = 1 << 20;

/// Ends all steps whose batches are there.
pub fn advance(run: &Arc<Run>) {
    loop {
        let parcel = {
            let mut in_order = lock(&run.in_order);
            let Some(first) = in_order.front().filter(|first| first.is_loaded()) else { return };
            if !pace::may_end(run, first) {
                // Somebody looks again in any case: a consumer may be waiting.
                if !run.looks_again.swap(true, Ordering::AcqRel) {
                    pace::look_again(run);
                }
                return;
            }
            let Some(parcel) = in_order.pop_front() else { return };
            // Before anybody ends the next step.
            let_go(run, &parcel);
            if let Some(peers) = &run.peers {
                peers.step_ends(&parcel);
            }
            announce(run, &parcel);
            parcel
        };
        keep(&parcel);
    }
}

/// Looks again whether the first step may end.
pub fn look_again(run: &Arc<Run>) {
    run.looks_again.store(false, Ordering::Release);
    advance(run);
}

fn let_go(run: &Run, parcel: &Parcel) {
    let used_up = parcel.items.iter().filter(|item| item.last_use && item.from != SOURCE);
    for item in used_up {
        // It may be on its way there still.
        run.flights.cancel(item.sample, item.from, parcel.sequence - 1);
        run.cache.evict(item.from, item.sample);
    }
    for &Evict { sample, tier } in &parcel.evictions {
        run.flights.cancel(sample, tier, parcel.sequence - 1);
        match &run.peers {
            Some(peers) => peers.let_go(run, tier, sample, parcel.block.step().epoch),
            None => run.cache.evict(tier, sample),
        }
    }
}

/// What goes into a tier from here on can be waited for, and a later step can call it off, also
/// if the sample came by somebody else's flight.
fn announce(run: &Run, parcel: &Parcel) {
    for item in &parcel.items {
        if item.keep() == NOWHERE || item.leads() {
            continue;
        }
        item.set_leads(run.flights.lead_arrived(item.sample, parcel.sequence));
    }
}

fn keep(parcel: &Arc<Parcel>) {
    let mut pieces: Vec<Vec<u32>> = vec![];
    let mut bytes = PIECE;
    for (index, item) in parcel.items.iter().enumerate() {
        if item.keep() == NOWHERE {
            continue;
        }
        if bytes >= PIECE {
            pieces.push(vec![]);
            bytes = 0;
        }
        bytes += parcel.run.size(item.sample);
        if let Some(piece) = pieces.last_mut() {
            piece.push(index as u32);
        }
    }
    let gifts = parcel.gifts();
    parcel.begin_keeping(pieces.len() as u32 + u32::from(!gifts.is_empty()));
    let in_memory = |&index: &u32| !parcel.run.cache.may_hang(parcel.items[index as usize].keep());
    match &pieces[..] {
        [] if gifts.is_empty() => finish(parcel),
        // Nothing is gained by asking somebody else.
        [piece] if piece.iter().all(in_memory) => keep_in_memory(parcel, piece),
        _ => {
            let tasks = pieces.into_iter().map(|items| keep_task(parcel, items.into(), 0));
            parcel.run.lane.submit_first(tasks.collect::<Vec<_>>());
        }
    }
    if !gifts.is_empty() {
        give::offer(parcel, gifts);
    }
}

fn keep_in_memory(parcel: &Arc<Parcel>, items: &[u32]) {
    for &index in items {
        let item = &parcel.items[index as usize];
        comes(parcel, index);
        let put =
            |bytes: &[u8]| parcel.run.cache.put(item.keep(), item.sample, bytes, item.version());
        kept(parcel, index, parcel.with_bytes(index, put));
    }
    end_piece(parcel);
}

/// Keeps items of a piece, from one of them on.
fn keep_task(parcel: &Arc<Parcel>, items: Arc<[u32]>, first: usize) -> Task {
    let (run, parcel) = (&parcel.run, parcel.clone());
    run.task(move |worker| keep_items(worker, &parcel, &items, first))
}

fn keep_items(worker: &Worker, parcel: &Arc<Parcel>, items: &Arc<[u32]>, first: usize) {
    for at in first..items.len() {
        let index = items[at];
        let item = &parcel.items[index as usize];
        let instead = {
            let (parcel, items) = (parcel.clone(), items.clone());
            move || {
                parcel.leave_slot(index);
                kept(&parcel, index, Put::Refused);
                parcel.run.lane.submit_first(vec![keep_task(&parcel, items, at + 1)]);
            }
        };
        comes(parcel, index);
        let bytes = |put: &mut dyn FnMut(&[u8]) -> Put| parcel.with_bytes(index, put);
        let put = hangs::put(
            worker,
            &parcel.run,
            item.keep(),
            (item.sample, item.version()),
            bytes,
            instead,
        );
        // If it hangs, somebody else goes on.
        let Some(put) = put else { return };
        kept(parcel, index, put);
    }
    end_piece(parcel);
}

/// An item is about to be put into its tier.
fn comes(parcel: &Parcel, index: u32) {
    let item = &parcel.items[index as usize];
    if let Some(peers) = &parcel.run.peers {
        peers.comes(item.keep(), item.sample, parcel.block.step().epoch);
    }
}

/// An item was put into its tier, or could not be.
fn kept(parcel: &Arc<Parcel>, index: u32, put: Put) {
    let item = &parcel.items[index as usize];
    let tier = item.keep();
    parcel.run.metrics.put(tier, put);
    if let Some(peers) = &parcel.run.peers {
        match put {
            Put::Stored | Put::Present => {
                peers.was_put(tier, item.sample, parcel.block.step().epoch);
            }
            Put::Full | Put::Refused => {
                peers.was_not_put(&parcel.run, tier, item.sample);
                if put == Put::Full {
                    // Room that another node has not freed yet, perhaps.
                    give::keep_later(parcel, index, tier);
                }
            }
        }
    }
    if item.leads() && load::land(parcel, index) == Some(tier) {
        parcel.run.cache.evict(tier, item.sample);
    }
}

/// A part of what is left to do when a batch ends is done.
pub fn end_piece(parcel: &Parcel) {
    if parcel.kept() {
        finish(parcel);
    }
}

fn finish(parcel: &Parcel) {
    // Before it is published: whoever gets the last batch may leave at once.
    parcel.run.ended(parcel.block.step().epoch);
    notify::epochs_done(&parcel.run);
    parcel.publish();
}
