//! Filling the slots of a batch: from tiers, from the source, or from somebody else's read of
//! the same sample.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use belady_control::policy::TierId;
use belady_data::SampleId;
use belady_data::memory::Memory;
use belady_data::source::{Location, ReadError, Want};
use belady_data::sync::Arc;
use belady_data::tier::{Get, Pinned};

use crate::flights::Turn;
use crate::metrics::Served;
use crate::parcel::{NOWHERE, Parcel, Problem, SOURCE};
use crate::pool::{Hung, Task, Watched, Worker};
use crate::run::Run;
use crate::{EngineError, compare, hangs, peers, prefetch};

/// Samples from tiers are loaded in pieces of about this size: large enough that handing a
/// piece over costs nothing beside copying it, small enough that all threads get some.
const PIECE: u64 = 1 << 20;
/// Copying less than this from memory costs less than waking somebody up to do it.
const AT_ONCE: u64 = 128 << 10;
/// Records this close to each other are read in one request: a disk or a server takes longer
/// for two requests than for the bytes between them.
const NEIGHBOURS: u64 = 4 << 10;
/// Requests that one task makes at most.
const MOST_TOGETHER: usize = 8;
/// One request asks for at most this much, so that others get their turn.
const REQUEST: u64 = 8 << 20;

/// Who wants a sample that somebody else is reading.
#[derive(Debug)]
pub enum Waiter {
    Load(Arc<Parcel>, u32),
    Fetch(Arc<Run>, TierId),
}

/// Gives the items of a batch to those who load them.
pub fn dispatch(parcel: &Arc<Parcel>, items: impl IntoIterator<Item = u32>) {
    let run = &parcel.run;
    let (mut from_tiers, mut from_source, mut come) = (vec![], vec![], 0);
    let (mut from_peers, mut to_compare) = (vec![], vec![]);
    for index in items {
        let item = &parcel.items[index as usize];
        let waiter = || Waiter::Load(parcel.clone(), index);
        if item.from == SOURCE || item.keep() != NOWHERE {
            match run.flights.lead_or_wait(item.sample, parcel.sequence, waiter) {
                Turn::Lead => item.set_leads(true),
                Turn::Wait => continue,
                Turn::Alone => {}
            }
        } else if run.flights.wait_if_open(item.sample, parcel.sequence, waiter) {
            continue;
        }
        if item.from != SOURCE {
            let compared = run.source.is_compared(item.sample);
            if compared { &mut from_tiers } else { &mut to_compare }.push(index);
        } else if item.peer.is_some() {
            from_peers.push(index);
        } else if item.leads() && run.prefetchers.have_fetched() {
            match came_meanwhile(parcel, index) {
                Came::Loaded => come += 1,
                Came::Underway => {}
                Came::No => from_source.push(index),
            }
        } else {
            from_source.push(index);
        }
    }
    let mut tasks = vec![];
    let at_once = tier_tasks(parcel, from_tiers, &mut tasks);
    compare::tasks(parcel, &to_compare, &mut tasks);
    peers::fetch::tasks(parcel, from_peers, &mut tasks);
    source_tasks(parcel, from_source, &mut tasks);
    if !tasks.is_empty() {
        run.lane.submit(tasks);
    }
    if let Some(items) = at_once {
        load_from_tiers(None, parcel, &items);
    }
    run.loaded(parcel, come);
}

/// Whether an item could be had from another tier than planned.
pub enum Came {
    No,
    Loaded,
    /// Somebody sees to it.
    Underway,
}

/// A prefetcher may have brought a sample after it was planned to come from the source, and
/// before this item led its flight.
pub fn came_meanwhile(parcel: &Arc<Parcel>, index: u32) -> Came {
    let (run, item) = (&parcel.run, &parcel.items[index as usize]);
    let found = run.cache.find(item.sample).filter(|&tier| tier != item.from);
    let found = found.filter(|_| run.source.is_compared(item.sample));
    let Some(tier) = found.filter(|_| !item.slot_is_lost()) else { return Came::No };
    if run.cache.may_hang(tier) {
        let for_task = parcel.clone();
        let task = run.task(move |worker| hangs::load_from_other(worker, &for_task, index, tier));
        run.lane.submit_first(vec![task]);
        return Came::Underway;
    }
    let Some(length) = load_from_other(parcel, index, tier) else { return Came::No };
    run.metrics.loaded(Served::Tier(tier), 1, length);
    arrived(parcel, index);
    Came::Loaded
}

/// Returns what the caller had better load itself.
fn tier_tasks(parcel: &Arc<Parcel>, items: Vec<u32>, tasks: &mut Vec<Task>) -> Option<Vec<u32>> {
    let size = |index: &u32| parcel.run.size(parcel.items[*index as usize].sample);
    let in_memory = |index: &u32| {
        let from = parcel.items[*index as usize].from;
        from == 1 && !parcel.run.cache.may_hang(from)
    };
    let lent = parcel.run.may_lend();
    if items.is_empty() {
        return None;
    }
    if items.iter().all(in_memory) && (lent || items.iter().map(size).sum::<u64>() <= AT_ONCE) {
        return Some(items);
    }
    let mut piece = vec![];
    let mut bytes = 0;
    let mut add = |piece: Vec<u32>| {
        let (run, parcel) = (&parcel.run, parcel.clone());
        tasks.push(run.task(move |worker| load_from_tiers(Some(worker), &parcel, &piece)));
    };
    for index in items {
        bytes += size(&index);
        piece.push(index);
        if bytes >= PIECE {
            add(std::mem::take(&mut piece));
            bytes = 0;
        }
    }
    if !piece.is_empty() {
        add(piece);
    }
    None
}

fn source_tasks(parcel: &Arc<Parcel>, mut items: Vec<u32>, tasks: &mut Vec<Task>) {
    let location =
        |&index: &u32| parcel.run.source.catalog().location(parcel.items[index as usize].sample);
    if items.len() > 1 {
        items.sort_by_cached_key(location);
    }
    let mut all: Vec<Vec<u32>> = requests(&items, location).map(<[u32]>::to_vec).collect();
    let run = &parcel.run;
    // A few requests a task, so that fast reads are not outweighed by handing them over, and
    // enough tasks that every thread gets some.
    let threads = run.lane.threads() as usize;
    let at_once = run.source.together();
    let together = if run.one_at_a_time.load(Ordering::Relaxed) {
        all.len()
    } else if at_once > 1 {
        let most = (all.len() / threads).clamp(1, at_once);
        let size = |index| run.size(parcel.items[index as usize].sample);
        all = under_way_at_once(all, most, size);
        1
    } else {
        (all.len() / (2 * threads)).min(MOST_TOGETHER)
    };
    for requests in all.chunks(together.max(1)) {
        let (parcel, requests) = (parcel.clone(), Arc::from(requests));
        tasks.push(run.task(move |worker| read_requests(worker, &parcel, &requests, 0)));
    }
}

/// Puts requests for single samples together, as many and as much as one call should ask for:
/// the time that a read may take is that of the whole call. Neighbours are one request already.
fn under_way_at_once(all: Vec<Vec<u32>>, most: usize, size: impl Fn(u32) -> u64) -> Vec<Vec<u32>> {
    let (alone, mut together): (Vec<_>, Vec<_>) = all.into_iter().partition(|r| r.len() == 1);
    let (mut group, mut bytes) = (vec![], 0);
    for item in alone.into_iter().flatten() {
        let length = size(item);
        if group.len() == most || (!group.is_empty() && bytes + length > REQUEST) {
            together.push(std::mem::take(&mut group));
            bytes = 0;
        }
        group.push(item);
        bytes += length;
    }
    if !group.is_empty() {
        together.push(group);
    }
    together
}

/// Requests in turn, from one of them on.
fn read_requests(worker: &Worker, parcel: &Arc<Parcel>, requests: &Arc<[Vec<u32>]>, first: usize) {
    for at in first..requests.len() {
        if !read_source(worker, parcel, requests, at, 1) {
            return;
        }
    }
}

/// Cuts what is sorted by location into requests of neighbours.
pub fn requests<T>(sorted: &[T], location: impl Fn(&T) -> Location) -> impl Iterator<Item = &[T]> {
    let mut bytes = 0;
    sorted.chunk_by(move |before, after| {
        let (before, after) = (location(before), location(after));
        let end = before.offset.saturating_add(before.length);
        bytes += before.length;
        let near = before.file == after.file
            && after.offset >= end
            && after.offset - end <= NEIGHBOURS
            && bytes + after.length <= REQUEST;
        if !near {
            bytes = 0;
        }
        near
    })
}

/// With a worker unless all of the tiers are in memory.
pub fn load_from_tiers(worker: Option<&Worker>, parcel: &Arc<Parcel>, items: &[u32]) {
    let run = &parcel.run;
    let mut rest = items;
    // Most of the time all come from one tier; one clock reading then serves all.
    while let Some(&first) = rest.first() {
        let tier = item_tier(parcel, first);
        let others = rest.iter().position(|&index| item_tier(parcel, index) != tier);
        let (same_tier, after) = rest.split_at(others.unwrap_or(rest.len()));
        rest = after;
        let began = Instant::now();
        let outcomes = match worker.filter(|_| run.cache.may_hang(tier)) {
            Some(worker) => hangs::load(worker, parcel, tier, same_tier, rest),
            None => Some(load_all_from_tier(parcel, tier, same_tier)),
        };
        let Some(outcomes) = outcomes else { return };
        let took = began.elapsed();
        let (mut copied, mut bytes) = (0, 0);
        let mut missing = vec![];
        let mut lent: Vec<(u32, Pinned)> = vec![];
        for (&index, outcome) in same_tier.iter().zip(outcomes) {
            match outcome {
                Loaded::Copied(length) => {
                    copied += 1;
                    bytes += length;
                    arrived(parcel, index);
                }
                Loaded::Lent(pinned) => lent.push((index, pinned)),
                Loaded::Missing => missing.push(index),
            }
        }
        if copied > 0 {
            run.rates.tier(tier, bytes, took);
            run.metrics.tier_read(tier, took);
            run.metrics.loaded(Served::Tier(tier), copied, bytes);
        }
        if !lent.is_empty() {
            let bytes = lent.iter().map(|(_, pinned)| pinned.length as u64).sum();
            run.metrics.loaded(Served::Lent(tier), lent.len() as u64, bytes);
            parcel.lend(tier, &lent);
        }
        let missing = peers::fetch::without_those_that_may_come(parcel, missing);
        look_elsewhere(parcel, missing);
        run.loaded(parcel, copied as u32 + lent.len() as u32);
    }
}

pub fn load_all_from_tier(parcel: &Parcel, tier: TierId, items: &[u32]) -> Vec<Loaded> {
    items.iter().map(|&index| load_from_tier(parcel, index, tier)).collect()
}

pub fn submit_tier_task(parcel: &Arc<Parcel>, items: Vec<u32>) {
    if items.is_empty() {
        return;
    }
    let (run, parcel) = (&parcel.run, parcel.clone());
    let task = run.task(move |worker| load_from_tiers(Some(worker), &parcel, &items));
    run.lane.submit_first(vec![task]);
}

pub fn submit_source_tasks(parcel: &Arc<Parcel>, items: Vec<u32>) {
    let mut tasks = vec![];
    source_tasks(parcel, items, &mut tasks);
    parcel.run.lane.submit_first(tasks);
}

fn item_tier(parcel: &Parcel, index: u32) -> TierId {
    parcel.items[index as usize].from
}

pub enum Loaded {
    Copied(u64),
    Lent(Pinned),
    Missing,
}

fn load_from_tier(parcel: &Parcel, index: u32, tier: TierId) -> Loaded {
    let run = &parcel.run;
    let item = &parcel.items[index as usize];
    let Some(station) = run.cache.tier(tier) else { return Loaded::Missing };
    let Some(version) = run.cache.believed(tier, item.sample) else { return Loaded::Missing };
    item.set_version(version);
    // What goes after this use has to be free when the step is over, so it is not lent.
    if run.may_lend()
        && !item.last_use
        && item.keep() == NOWHERE
        && let Some(pinned) = station.pin(item.sample)
    {
        return Loaded::Lent(pinned);
    }
    // A read that was given up may write to a lost slot even after the tier has.
    if run.rates.source_is_better_than(tier) || item.slot_is_lost() {
        return Loaded::Missing;
    }
    // SAFETY: each item is given to one loader at a time, and its batch is not published
    // before it is loaded.
    let slot = unsafe { parcel.slot(index) };
    match station.get(item.sample, slot) {
        Get::Hit => {
            run.cache.served(tier, item.sample);
            Loaded::Copied(slot.len() as u64)
        }
        Get::Miss => {
            run.metrics.tier_miss(tier);
            Loaded::Missing
        }
        Get::Damaged => {
            run.metrics.damaged(tier);
            Loaded::Missing
        }
    }
}

/// For items that are not where the policy believes them to be: once they are had from
/// elsewhere they are put back there, if the policy goes on believing it.
pub fn look_elsewhere(parcel: &Arc<Parcel>, missing: Vec<u32>) {
    if missing.is_empty() {
        return;
    }
    let run = &parcel.run;
    let mut from_source = vec![];
    for index in missing {
        let item = &parcel.items[index as usize];
        if !item.leads() {
            let waiter = || Waiter::Load(parcel.clone(), index);
            match run.flights.lead_or_wait(item.sample, parcel.sequence, waiter) {
                Turn::Lead => item.set_leads(true),
                Turn::Wait => continue,
                Turn::Alone => {}
            }
        }
        match came_meanwhile(parcel, index) {
            Came::Loaded => {
                run.loaded(parcel, 1);
                continue;
            }
            Came::Underway => continue,
            Came::No => {}
        }
        // Or it was given up.
        let passed_over = run.cache.tier(item.from).is_none_or(|tier| tier.holds(item.sample));
        if item.keep() == NOWHERE && !item.last_use && !item.guest && !passed_over {
            item.set_keep(item.from);
        }
        from_source.push(index);
    }
    submit_source_tasks(parcel, from_source);
}

/// From a tier in memory that is not the one where it should have been.
fn load_from_other(parcel: &Parcel, index: u32, tier: TierId) -> Option<u64> {
    let item = &parcel.items[index as usize];
    // SAFETY: each item is given to one loader at a time, and its batch is not published
    // before it is loaded.
    let slot = unsafe { parcel.slot(index) };
    let cache = &parcel.run.cache;
    let station = cache.tier(tier)?;
    item.set_version(cache.believed(tier, item.sample)?);
    let hit = station.get(item.sample, slot) == Get::Hit;
    hit.then_some(slot.len() as u64)
}

/// One of several requests to the source, the `attempt`th try; whether to go on with the others.
/// If it is given up, somebody else does.
fn read_source(
    worker: &Worker,
    parcel: &Arc<Parcel>,
    requests: &Arc<[Vec<u32>]>,
    at: usize,
    attempt: u32,
) -> bool {
    let run = &parcel.run;
    if run.is_stopping() {
        return false;
    }
    let items = &requests[at];
    let began = Instant::now();
    let on_timeout = {
        let (parcel, requests) = (parcel.clone(), requests.clone());
        move |hung| {
            timed_out(&parcel, &requests[at], attempt, hung);
            if at + 1 < requests.len() {
                let run = parcel.run.clone();
                let rest =
                    run.task(move |worker| read_requests(worker, &parcel, &requests, at + 1));
                run.lane.submit_first(vec![rest]);
            }
        }
    };
    let Watched::InTime(outcome) = worker.watch(on_timeout, || read_into_slots(parcel, items))
    else {
        return false;
    };
    match outcome {
        Ok(own) => {
            let took = began.elapsed();
            let bytes = items.iter().map(|&i| run.size(parcel.items[i as usize].sample)).sum();
            run.rates.source(bytes, took);
            run.metrics.source_read(took);
            run.metrics.loaded(Served::Source, items.len() as u64, bytes);
            for (item, bytes) in own {
                parcel.own(item, Arc::new(bytes));
            }
            for &item in items {
                if let Some(peers) = &run.peers {
                    peers.read_anew(parcel.items[item as usize].sample);
                }
                arrived(parcel, item);
            }
            run.loaded(parcel, items.len() as u32);
        }
        Err(_) if items.len() > 1 => {
            // One bad record must not take its neighbours with it.
            run.metrics.retry();
            let alone = items.iter().map(|&item| read_task(parcel, item, attempt));
            run.lane.submit_first(alone.collect::<Vec<_>>());
        }
        Err(error) => failed(parcel, items[0], attempt, error),
    }
    true
}

fn read_task(parcel: &Arc<Parcel>, item: u32, attempt: u32) -> Task {
    let (run, parcel) = (&parcel.run, parcel.clone());
    let requests: Arc<[Vec<u32>]> = Arc::from([vec![item]]);
    run.task(move |worker| {
        read_source(worker, &parcel, &requests, 0, attempt);
    })
}

/// Memory of their own for items whose slots cannot be used.
type Own = Vec<(u32, Memory)>;

fn read_into_slots(parcel: &Parcel, items: &[u32]) -> Result<Own, ReadError> {
    let run = &parcel.run;
    let mut own: Own = items
        .iter()
        .filter(|&&item| parcel.items[item as usize].slot_is_lost())
        .map(|&item| {
            let size = run.size(parcel.items[item as usize].sample) as usize;
            (item, Memory::zeroed(size))
        })
        .collect();
    {
        let mut owned = own.iter_mut();
        let mut wants: Vec<Want<'_>> = Vec::with_capacity(items.len());
        for &index in items {
            let item = &parcel.items[index as usize];
            let into: &mut [u8] = match item.slot_is_lost().then(|| owned.next()).flatten() {
                Some((_, bytes)) => bytes,
                // SAFETY: each item is given to one loader at a time; a read that was given up
                // has lost the slot for good, and its batch is not published before it is loaded.
                None => unsafe { parcel.slot(index) },
            };
            wants.push(Want::new(item.sample, into));
        }
        run.source.read(&mut wants)?;
        for (&index, want) in items.iter().zip(&wants) {
            parcel.items[index as usize].set_version(want.version);
        }
    }
    Ok(own)
}

pub fn timed_out(parcel: &Arc<Parcel>, items: &[u32], attempt: u32, hung: Hung) {
    let run = &parcel.run;
    run.metrics.timeout();
    let limit = run.retry.timeout;
    if hung.too_many {
        let sample = parcel.items[items[0] as usize].sample;
        run.fail(EngineError::SourceHangs { hung: hung.threads, limit, sample });
        return;
    }
    for &index in items {
        let item = &parcel.items[index as usize];
        item.lose_slot();
        let error = ReadError::Io {
            sample: item.sample,
            path: PathBuf::from("the source"),
            error: io::Error::new(io::ErrorKind::TimedOut, "the read did not return in time"),
        };
        failed(parcel, index, attempt, error);
    }
}

/// Tries again, later, or gives the sample up.
pub fn failed(parcel: &Arc<Parcel>, index: u32, attempt: u32, error: ReadError) {
    let run = &parcel.run;
    if error.is_shortage() {
        // It passes when another thread closes a file, and is no fault of the sample.
        tracing::warn!("{error}; it is tried again. Allow the process more open files (ulimit -n)");
        run.metrics.retry();
        run.lane.delay(run.retry.backoff, read_task(parcel, index, attempt));
        return;
    }
    if error.is_transient() && attempt < run.retry.attempts {
        run.metrics.retry();
        let pause = run.retry.backoff * 2u32.saturating_pow(attempt - 1).min(64);
        run.lane.delay(pause, read_task(parcel, index, attempt + 1));
        return;
    }
    parcel.bad(index, Problem { error, attempts: attempt });
    let item = &parcel.items[index as usize];
    if item.leads() {
        item.set_leads(false);
        // The others have to see for themselves.
        for waiter in run.flights.land(item.sample).waiters {
            match waiter {
                Waiter::Load(other, item) => dispatch(&other, [item]),
                Waiter::Fetch(run, tier) => prefetch::give_up(&run, tier),
            }
        }
    }
    run.loaded(parcel, 1);
}

/// An item is there, and who waits for it gets it. If it is going to be kept, the flight goes
/// on until that is done.
pub fn arrived(parcel: &Parcel, index: u32) {
    let item = &parcel.items[index as usize];
    if !item.leads() {
        return;
    }
    if item.keep() == NOWHERE {
        land(parcel, index);
    } else {
        serve(parcel, index, parcel.run.flights.arrive(item.sample));
    }
}

/// Ends the flight that an item leads; where it is not to be kept any more.
pub fn land(parcel: &Parcel, index: u32) -> Option<TierId> {
    let item = &parcel.items[index as usize];
    item.set_leads(false);
    let landed = parcel.run.flights.land(item.sample);
    serve(parcel, index, landed.waiters);
    landed.cancelled
}

fn serve(parcel: &Parcel, index: u32, waiters: Vec<Waiter>) {
    let item = &parcel.items[index as usize];
    let (sample, version) = (item.sample, item.version());
    for waiter in waiters {
        match waiter {
            Waiter::Load(other, slot) if !still_counts(&other, slot, version) => {
                dispatch(&other, [slot]);
            }
            Waiter::Load(other, slot) => {
                parcel.with_bytes(index, |bytes| share(bytes, version, &other, slot));
            }
            Waiter::Fetch(run, tier) => parcel.with_bytes(index, |bytes| {
                prefetch::store_copy(&run, tier, (sample, version), bytes);
            }),
        }
    }
}

/// Whether a batch may be given what was read for an earlier one: not if its file was noticed to be
/// another one since, or is to be compared anew for this batch's epoch.
pub fn still_counts(parcel: &Parcel, index: u32, version: i64) -> bool {
    let (source, sample) = (&parcel.run.source, parcel.items[index as usize].sample);
    source.version(sample).changed == version && source.is_compared(sample)
}

/// Gives a sample, of this version of its file, to a batch that waits for it.
pub fn share(bytes: &[u8], version: i64, parcel: &Arc<Parcel>, index: u32) {
    let item = &parcel.items[index as usize];
    item.set_version(version);
    if item.slot_is_lost() {
        parcel.own(index, Arc::new(bytes.into()));
    } else {
        // SAFETY: the item waits, so nobody else loads it.
        unsafe { parcel.slot(index) }.copy_from_slice(bytes);
    }
    parcel.run.metrics.loaded(Served::Shared, 1, bytes.len() as u64);
    parcel.run.loaded(parcel, 1);
}

/// Reads a sample that is not part of a batch, and says of which version of its file it is.
pub fn read_alone(run: &Run, sample: SampleId) -> Result<(Memory, i64), ReadError> {
    let mut bytes = Memory::zeroed(run.size(sample) as usize);
    let mut wants = [Want::new(sample, &mut bytes)];
    run.source.read(&mut wants)?;
    let [Want { version, .. }] = wants;
    Ok((bytes, version))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn samples_that_fill_a_request_exactly_are_read_together() {
        let sizes = [REQUEST / 2, REQUEST / 2, 1];
        let all = vec![vec![0], vec![1], vec![2]];
        let groups = under_way_at_once(all, 16, |index| sizes[index as usize]);
        assert_eq!(groups, [vec![0, 1], vec![2]]);
    }

    proptest! {
        #[test]
        fn sixteen_huge_samples_shared_the_time_of_one_read(
            sizes in prop::collection::vec(prop_oneof![0u64..1000, 1u64 << 18..40 << 20], 0..60),
            most in 1usize..17,
            pairs in prop::collection::vec(any::<bool>(), 60),
        ) {
            let size = |index: u32| sizes[index as usize];
            let items: Vec<u32> = (0..sizes.len() as u32).collect();
            // Some requests are of neighbours, and stay as they are.
            let all: Vec<Vec<u32>> = items
                .chunks(2)
                .zip(&pairs)
                .flat_map(|(two, &pair)| two.chunks(if pair { 2 } else { 1 }))
                .map(<[u32]>::to_vec)
                .collect();
            let groups = under_way_at_once(all.clone(), most, size);
            for group in &groups {
                let bytes: u64 = group.iter().map(|&index| size(index)).sum();
                let as_before = all.contains(group);
                prop_assert!(as_before || group.len() <= most && bytes <= REQUEST);
            }
            // As many go together as may.
            let alone: Vec<&Vec<u32>> = groups.iter().filter(|group| !all.contains(group) || group.len() == 1).collect();
            for two in alone.windows(2) {
                let bytes: u64 = two[0].iter().map(|&i| size(i)).sum::<u64>() + size(two[1][0]);
                prop_assert!(two[0].len() == most || bytes > REQUEST);
            }
            let mut seen = groups.concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, items);
        }
    }
}
