//! Tiers whose calls may never return: those on disks.
//!
//! Such a call is made under watch, by a thread of the pool. If it takes too long the tier is
//! given up until it returns ([`crate::cache`]), and somebody else does what the thread that
//! hangs was about to do. That thread may still read or write the memory it was given:
//!
//! - a *get* may write to slots, so what it was to load is read elsewhere, into memory of its
//!   own;
//! - a *put* may read from a slot, to which the consumer may write. So the consumer gets a copy,
//!   and the slot stays as it is: else what it reads in the end, and gives a checksum, might be
//!   what the consumer has made of it.
//!
//! Both hold on to the parcel, so the ring does not use that space again meanwhile.

use belady_control::policy::TierId;
use belady_data::SampleId;
use belady_data::sync::Arc;
use belady_data::tier::{Get, Put};

use crate::EngineError;
use crate::load::{self, Loaded};
use crate::metrics::Served;
use crate::parcel::Parcel;
use crate::pool::{Hung, Watched, Worker};
use crate::run::Run;

/// Makes a call of a tier; `None` if that hangs. Then `instead` is called elsewhere.
pub fn watch<T>(
    worker: &Worker,
    run: &Arc<Run>,
    tier: TierId,
    instead: impl FnOnce() + Send + 'static,
    call: impl FnOnce() -> T,
) -> Option<T> {
    let on_timeout = {
        let run = run.clone();
        move |hung: Hung| {
            run.metrics.timeout();
            let limit = run.retry.timeout;
            run.cache.give_up(tier, limit);
            if hung.too_many {
                run.fail(EngineError::TierHangs { hung: hung.threads, limit, tier });
            } else {
                instead();
            }
        }
    };
    match worker.watch(on_timeout, call) {
        Watched::InTime(outcome) => Some(outcome),
        Watched::TooLate => {
            run.cache.came_back(tier, run.retry.timeout);
            None
        }
    }
}

/// What came of each of some items of one tier; `None` if it hangs. Then somebody else sees to
/// them, and to `rest`.
pub fn load(
    worker: &Worker,
    parcel: &Arc<Parcel>,
    tier: TierId,
    items: &[u32],
    rest: &[u32],
) -> Option<Vec<Loaded>> {
    let instead = {
        let (parcel, items, rest) = (parcel.clone(), items.to_vec(), rest.to_vec());
        move || {
            lose_slots(&parcel, &items);
            load::look_elsewhere(&parcel, items);
            load::submit_tier_task(&parcel, rest);
        }
    };
    let call = || load::load_all_from_tier(parcel, tier, items);
    watch(worker, &parcel.run, tier, instead, call)
}

/// Loads an item from a tier where it turned out to be, or else from the source.
pub fn load_from_other(worker: &Worker, parcel: &Arc<Parcel>, index: u32, tier: TierId) {
    let run = &parcel.run;
    let instead = {
        let parcel = parcel.clone();
        move || {
            lose_slots(&parcel, &[index]);
            load::submit_source_tasks(&parcel, vec![index]);
        }
    };
    let get = || {
        let sample = parcel.items[index as usize].sample;
        let station = run.cache.tier(tier)?;
        parcel.items[index as usize].set_version(run.cache.believed(tier, sample)?);
        // SAFETY: each item is given to one loader at a time, and its batch is not published
        // before it is loaded; if this is given up, the slot is lost.
        let slot = unsafe { parcel.slot(index) };
        let hit = station.get(sample, slot) == Get::Hit;
        hit.then_some(slot.len() as u64)
    };
    match watch(worker, run, tier, instead, get) {
        None => {}
        Some(Some(length)) => {
            run.metrics.loaded(Served::Tier(tier), 1, length);
            load::arrived(parcel, index);
            run.loaded(parcel, 1);
        }
        Some(None) => load::submit_source_tasks(parcel, vec![index]),
    }
}

fn lose_slots(parcel: &Parcel, items: &[u32]) {
    for &index in items {
        parcel.items[index as usize].lose_slot();
    }
}

/// Puts a sample into a tier, under watch if that may hang; `None` if it does, and `instead` is
/// called elsewhere. The version is that of its file.
pub fn put(
    worker: &Worker,
    run: &Arc<Run>,
    tier: TierId,
    (sample, version): (SampleId, i64),
    with_bytes: impl FnOnce(&mut dyn FnMut(&[u8]) -> Put) -> Put,
    instead: impl FnOnce() + Send + 'static,
) -> Option<Put> {
    let put = || with_bytes(&mut |bytes| run.cache.put(tier, sample, bytes, version));
    if !run.cache.may_hang(tier) {
        return Some(put());
    }
    watch(worker, run, tier, instead, put)
}
