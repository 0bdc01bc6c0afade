//! The end of a step: what it frees is let go, what it keeps goes into tiers, and the batch
//! goes to the consumer.
//!
//! Steps end in order. Policies plan in that order too, so there is room for what a step keeps
//! once it has let go of what it frees, and what a later batch counts on is there or on its way.

use belady_data::sync::{Arc, lock};

use crate::load;
use crate::parcel::{NOWHERE, Parcel, SOURCE};
use crate::pool::Task;
use crate::run::Run;

/// Samples are kept in pieces of about this size.
const PIECE: u64 = 1 << 20;

/// Ends all steps whose batches are there.
pub fn advance(run: &Run) {
    loop {
        let parcel = {
            let mut in_order = lock(&run.in_order);
            if !in_order.front().is_some_and(|first| first.is_loaded()) {
                return;
            }
            let Some(parcel) = in_order.pop_front() else { return };
            // Before anybody ends the next step.
            let_go(run, &parcel);
            announce(run, &parcel);
            parcel
        };
        keep(&parcel);
    }
}

fn let_go(run: &Run, parcel: &Parcel) {
    let used_up = parcel.items.iter().filter(|item| item.last_use && item.from != SOURCE);
    let used_up = used_up.map(|item| (item.sample, item.from));
    let told = parcel.evictions.iter().map(|evict| (evict.sample, evict.tier));
    for (sample, tier) in used_up.chain(told) {
        // It may be on its way there still.
        run.flights.cancel(sample, tier, parcel.sequence - 1);
        run.cache.evict(tier, sample);
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
    parcel.begin_keeping(pieces.len() as u32);
    match pieces.len() {
        0 => parcel.publish(),
        // Nothing is gained by asking somebody else.
        1 => keep_items(parcel, &pieces[0]),
        _ => {
            let task = |items: Vec<u32>| -> Task {
                let (run, parcel) = (&parcel.run, parcel.clone());
                run.task(move |_| keep_items(&parcel, &items))
            };
            parcel.run.lane.submit_first(pieces.into_iter().map(task).collect::<Vec<_>>());
        }
    }
}

fn keep_items(parcel: &Arc<Parcel>, items: &[u32]) {
    let run = &parcel.run;
    for &index in items {
        let item = &parcel.items[index as usize];
        let tier = item.keep();
        let put = parcel.with_bytes(index, |bytes| run.cache.put(tier, item.sample, bytes));
        run.metrics.put(tier, put);
        if item.leads() && load::land(parcel, index) == Some(tier) {
            run.cache.evict(tier, item.sample);
        }
    }
    if parcel.kept() {
        parcel.publish();
    }
}
