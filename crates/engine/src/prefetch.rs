//! Filling tiers in the background, for policies that ask for it: when a tier's prefetcher has
//! nothing to do it asks the policy what to fetch.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use belady_control::policy::{Event, TierId};
use belady_data::SampleId;
use belady_data::memory::Memory;
use belady_data::sync::Arc;
use belady_data::tier::Put;

use crate::flights::Turn;
use crate::load::{self, Waiter};
use crate::pool::{Hung, Watched, Worker};
use crate::run::Run;
use crate::{EngineError, hangs};

/// Samples that a prefetcher asks for at once.
const AT_A_TIME: usize = 32;

/// Fetches in flight, by tier; tier 0 stays idle.
#[derive(Debug)]
pub struct Prefetchers {
    in_flight: Vec<AtomicU32>,
    have_fetched: AtomicBool,
}

impl Prefetchers {
    pub fn new(tiers: usize) -> Self {
        let in_flight = (0..=tiers).map(|_| AtomicU32::new(0)).collect();
        Self { in_flight, have_fetched: AtomicBool::new(false) }
    }

    /// Whether samples come into tiers in the background at all.
    pub fn have_fetched(&self) -> bool {
        self.have_fetched.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn pretend_to_have_fetched(&self) {
        self.have_fetched.store(true, Ordering::Relaxed);
    }
}

/// Lets idle prefetchers ask.
pub fn ask_all(run: &Arc<Run>) {
    for tier in run.cache.ids() {
        ask(run, tier);
    }
}

fn ask(run: &Arc<Run>, tier: TierId) {
    let busy = &run.prefetchers.in_flight[usize::from(tier)];
    // One too many, while asking: nobody else asks then.
    if run.is_stopping()
        || run.cache.tier(tier).is_none()
        || busy.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err()
    {
        return;
    }
    let fetches: Vec<SampleId> = run
        .brain
        .tell(Event::Idle { tier, limit: AT_A_TIME }, |actions| {
            for evict in &actions.evictions {
                run.cache.evict(evict.tier, evict.sample);
            }
            actions.fetches.iter().map(|fetch| fetch.sample).collect()
        })
        .unwrap_or_default();
    if !fetches.is_empty() {
        run.prefetchers.have_fetched.store(true, Ordering::Relaxed);
    }
    busy.fetch_add(fetches.len() as u32, Ordering::AcqRel);
    let task = |sample| {
        let for_task = run.clone();
        run.task(move |worker| fetch(worker, &for_task, tier, sample))
    };
    run.lane.submit_background(fetches.into_iter().map(task));
    busy.fetch_sub(1, Ordering::AcqRel);
}

fn fetch(worker: &Worker, run: &Arc<Run>, tier: TierId, sample: SampleId) {
    if run.is_stopping() {
        return;
    }
    if run.cache.tier(tier).is_some_and(|tier| tier.holds(sample)) {
        run.cache.claim(tier, sample);
        return done(run, tier, sample);
    }
    let planned = run.planned.load(Ordering::Acquire);
    let turn = run.flights.fetch_or_wait(sample, planned, || Waiter::Fetch(run.clone(), tier));
    if turn != Turn::Lead {
        if turn == Turn::Alone {
            give_up(run, tier);
        }
        return;
    }
    // Whoever led the flight before this one may have brought it meanwhile.
    if run.cache.tier(tier).is_some_and(|tier| tier.holds(sample)) {
        release(run, sample);
        run.cache.claim(tier, sample);
        return done(run, tier, sample);
    }
    let began = Instant::now();
    let on_timeout = {
        let run = run.clone();
        move |hung: Hung| {
            run.metrics.timeout();
            if hung.too_many {
                let (hung, limit) = (hung.threads, run.retry.timeout);
                run.fail(EngineError::SourceHangs { hung, limit, sample });
            }
            release(&run, sample);
            give_up(&run, tier);
        }
    };
    match worker.watch(on_timeout, || load::read_alone(run, sample)) {
        Watched::TooLate => {}
        Watched::InTime(Err(error)) => {
            // The batch that needs it will try again, and say so if it must.
            tracing::debug!(%error, "cannot prefetch");
            release(run, sample);
            give_up(run, tier);
        }
        Watched::InTime(Ok((bytes, version))) => {
            let took = began.elapsed();
            run.rates.source(bytes.len() as u64, took);
            run.metrics.source_read(took);
            let land = {
                let run = run.clone();
                move || release(&run, sample)
            };
            if !store(worker, run, tier, (sample, version), &bytes, land) {
                return;
            }
            for waiter in run.flights.land(sample).waiters {
                match waiter {
                    Waiter::Load(parcel, item) if !load::still_counts(&parcel, item, version) => {
                        load::dispatch(&parcel, [item]);
                    }
                    Waiter::Load(parcel, item) => load::share(&bytes, version, &parcel, item),
                    Waiter::Fetch(run, tier) => store_copy(&run, tier, (sample, version), &bytes),
                }
            }
        }
    }
}

/// Those who wait for a fetch that failed see for themselves.
fn release(run: &Arc<Run>, sample: SampleId) {
    for waiter in run.flights.land(sample).waiters {
        match waiter {
            Waiter::Load(parcel, item) => load::dispatch(&parcel, [item]),
            Waiter::Fetch(run, tier) => give_up(&run, tier),
        }
    }
}

/// Puts what somebody else has read into a tier that was to fetch it.
pub fn store_copy(run: &Arc<Run>, tier: TierId, (sample, version): (SampleId, i64), bytes: &[u8]) {
    if !run.cache.may_hang(tier) {
        return stored(run, tier, sample, run.cache.put(tier, sample, bytes, version));
    }
    let (for_task, bytes) = (run.clone(), Memory::from(bytes));
    let task = run.task(move |worker| {
        store(worker, &for_task, tier, (sample, version), &bytes, || {});
    });
    run.lane.submit_background([task]);
}

/// Puts what was fetched into its tier and tells the policy; false if that hangs. Then `instead`
/// is called elsewhere.
fn store(
    worker: &Worker,
    run: &Arc<Run>,
    tier: TierId,
    (sample, version): (SampleId, i64),
    bytes: &[u8],
    instead: impl FnOnce() + Send + 'static,
) -> bool {
    let on_timeout = {
        let run = run.clone();
        move || {
            instead();
            give_up(&run, tier);
        }
    };
    let put = hangs::put(worker, run, tier, (sample, version), |put| put(bytes), on_timeout);
    if let Some(put) = put {
        stored(run, tier, sample, put);
    }
    put.is_some()
}

fn stored(run: &Arc<Run>, tier: TierId, sample: SampleId, put: Put) {
    run.metrics.put(tier, put);
    match put {
        Put::Stored | Put::Present => done(run, tier, sample),
        Put::Full | Put::Refused => give_up(run, tier),
    }
}

fn done(run: &Arc<Run>, tier: TierId, sample: SampleId) {
    run.brain.tell(Event::Fetched { tier, sample }, |actions| {
        for evict in &actions.evictions {
            run.cache.evict(evict.tier, evict.sample);
        }
    });
    give_up(run, tier);
}

/// A fetch has ended, one way or the other.
pub fn give_up(run: &Arc<Run>, tier: TierId) {
    let busy = &run.prefetchers.in_flight[usize::from(tier)];
    if busy.fetch_sub(1, Ordering::AcqRel) == 1 {
        ask(run, tier);
    }
}
