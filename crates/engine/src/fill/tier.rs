//! Fills slots from the tiers of this node.

use std::time::Instant;

use belady_control::model::online::LOCAL;
use belady_control::policy::TierId;
use belady_data::tier::{Get, Pinned};
use belady_peer::Answer;
use belady_peer::protocol::retry::RetryDecision;

use super::{BatchFill, source};
use crate::metrics::{PeerEvent, Served};
use crate::pending::{PendingBatch, SampleOrigin};
use crate::pool::{Task, Worker};

/// Samples from tiers are read in pieces of about this size: large enough that the cost of a task
/// does not count beside copying, small enough that all threads get some.
const PIECE: u64 = 1 << 20;
/// Copying less than this from memory costs less than waking another thread to do it.
const AT_ONCE: u64 = 128 << 10;

/// Whether an item was filled from another tier than planned.
pub enum OtherTier {
    Missing,
    Filled,
    /// A task fills it.
    UnderWay,
}

/// Adds tasks that read items from their tiers. Returns items that the caller should read itself.
pub fn tasks(fill: &BatchFill, items: Vec<u32>, tasks: &mut Vec<Task>) -> Option<Vec<u32>> {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    if items.is_empty() {
        return None;
    }
    let in_memory = |&index: &u32| batch.item(index).tier() == Some(1) && !job.tiers.may_hang(1);
    let bytes = || items.iter().map(|&index| batch.size(index)).sum::<u64>();
    if items.iter().all(in_memory) && (job.may_lend(fill.batch.rank) || bytes() <= AT_ONCE) {
        return Some(items);
    }
    let mut piece = vec![];
    let mut bytes = 0;
    for index in items {
        bytes += batch.size(index);
        piece.push(index);
        if bytes >= PIECE {
            tasks.push(task(fill, std::mem::take(&mut piece)));
            bytes = 0;
        }
    }
    if !piece.is_empty() {
        tasks.push(task(fill, piece));
    }
    None
}

fn task(fill: &BatchFill, items: Vec<u32>) -> Task {
    let for_task = fill.clone();
    fill.batch.job.task(move |worker| self::fill(Some(worker), &for_task, &items))
}

/// Submits a task that reads items from their tiers, before all other work.
pub fn submit(fill: &BatchFill, items: Vec<u32>) {
    if !items.is_empty() {
        fill.batch.job.lane.submit_first_for(fill.batch.rank, vec![task(fill, items)]);
    }
}

/// Reads items from their tiers. Without a worker, all of the tiers are in memory.
pub fn fill(worker: Option<&Worker>, fill: &BatchFill, items: &[u32]) {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    let tier_of = |index: u32| batch.item(index).tier();
    let mut rest = items;
    // Mostly all items come from one tier; one clock reading then serves all.
    while let Some(&first) = rest.first() {
        let Some(tier) = tier_of(first) else { return };
        let others = rest.iter().position(|&index| tier_of(index) != Some(tier));
        let (same_tier, after) = rest.split_at(others.unwrap_or(rest.len()));
        rest = after;
        let began = Instant::now();
        let timer = job.threads.meter.load(LOCAL);
        let outcomes = match worker.filter(|_| job.tiers.may_hang(tier)) {
            Some(worker) => read_watched(worker, fill, tier, same_tier, rest),
            None => Some(read_all(batch, tier, same_tier)),
        };
        let Some(outcomes) = outcomes else { return };
        let took = began.elapsed();
        let (mut copied, mut bytes) = (0, 0);
        let mut missing = vec![];
        let mut lent: Vec<(u32, Pinned)> = vec![];
        for (&index, outcome) in same_tier.iter().zip(outcomes) {
            match outcome {
                TierRead::Copied(length) => {
                    copied += 1;
                    bytes += length;
                    batch.arrived(index);
                }
                TierRead::Lent(pinned) => lent.push((index, pinned)),
                TierRead::Missing => missing.push(index),
            }
        }
        if let Some(timer) = timer.filter(|_| copied > 0) {
            timer.end(bytes);
        }
        if copied > 0 {
            job.rates.tier(tier, copied, bytes, took);
            job.metrics.tier_read(tier, took);
            job.metrics.loaded(Served::Tier(tier), copied, bytes);
        }
        if !lent.is_empty() {
            let bytes = lent.iter().map(|(_, pinned)| pinned.length as u64).sum();
            job.metrics.loaded(Served::Lent(tier), lent.len() as u64, bytes);
            batch.lend(tier, &lent);
        }
        let missing = without_those_that_may_come(fill, tier, missing);
        fill_elsewhere(fill, missing);
        batch.filled(copied as u32 + lent.len() as u32);
    }
}

enum TierRead {
    Copied(u64),
    Lent(Pinned),
    Missing,
}

fn read_all(batch: &PendingBatch, tier: TierId, items: &[u32]) -> Vec<TierRead> {
    items.iter().map(|&index| read(batch, index, tier)).collect()
}

/// Reads items of one tier that may hang. If it does, returns `None`, and another thread fills the
/// items and `rest`.
fn read_watched(
    worker: &Worker,
    fill: &BatchFill,
    tier: TierId,
    items: &[u32],
    rest: &[u32],
) -> Option<Vec<TierRead>> {
    let instead = {
        let (fill, items, rest) = (fill.clone(), items.to_vec(), rest.to_vec());
        move || {
            for &index in &items {
                fill.batch.item(index).lose_slot();
            }
            fill_elsewhere(&fill, items);
            submit(&fill, rest);
        }
    };
    let batch = &fill.batch;
    batch.job.call_tier(worker, tier, instead, || read_all(batch, tier, items))
}

fn read(batch: &PendingBatch, index: u32, tier: TierId) -> TierRead {
    let (job, item) = (&batch.job, batch.item(index));
    let Some(station) = job.tiers.get(tier) else { return TierRead::Missing };
    let Some(version) = job.tiers.current_version(tier, item.sample) else {
        return TierRead::Missing;
    };
    item.set_version(version);
    // A sample that is evicted after this use must be evictable when the step retires, so it is not
    // lent.
    if job.may_lend(batch.rank)
        && !item.last_use
        && item.keep().is_none()
        && let Some(pinned) = station.pin(item.sample)
    {
        return TierRead::Lent(pinned);
    }
    // A read that was given up may write to a lost slot even after the tier has.
    if job.rates.source_is_better_than(tier) || item.slot_is_lost() {
        return TierRead::Missing;
    }
    // SAFETY: one thread at a time fills an item, and its batch is not published before.
    let slot = unsafe { batch.slot(index) };
    match station.get(item.sample, slot) {
        Get::Hit => {
            job.tiers.served(tier, item.sample);
            TierRead::Copied(slot.len() as u64)
        }
        Get::Miss => {
            job.metrics.tier_miss(tier);
            TierRead::Missing
        }
        Get::Damaged => {
            job.metrics.damaged(tier);
            TierRead::Missing
        }
    }
}

/// Removes items that another node may still push to a tier of this node; they are looked up again.
fn without_those_that_may_come(fill: &BatchFill, tier: TierId, missing: Vec<u32>) -> Vec<u32> {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    let Some(peers) = fill.stage.peers.as_ref().filter(|_| !missing.is_empty()) else {
        return missing;
    };
    let may_come = peers.may_come(batch.epoch());
    let starved = batch.starved();
    let mut pause = None;
    let (mut came, mut again, mut gone) = (vec![], vec![], vec![]);
    for index in missing {
        let item = batch.item(index);
        if job.tiers.holds(tier, item.sample) {
            // It was pushed after the lookup, perhaps together with the notice that all is here. Or
            // the tier is bypassed for being slow.
            if item.set_came_late() { &mut came } else { &mut gone }.push(index);
            continue;
        }
        let answer = if may_come { Answer::NotYet } else { Answer::NotHere };
        match peers.after_miss(batch, item, (answer, item.count_lookup()), starved) {
            RetryDecision::AskAgain(after) => {
                pause = pause.max(Some(after));
                again.push(index);
            }
            RetryDecision::Elsewhere | RetryDecision::Take => gone.push(index),
        }
    }
    submit(fill, came);
    if let Some(pause) = pause {
        job.metrics.peers().count(PeerEvent::Retried, again.len() as u64);
        let for_task = fill.clone();
        let lookup = job.task(move |_| submit(&for_task, again));
        job.lane.delay(pause, lookup);
    }
    gone
}

/// Fills items that are not where the policy believes them to be. They are put back there
/// afterwards, if the policy goes on believing it.
fn fill_elsewhere(fill: &BatchFill, missing: Vec<u32>) {
    if missing.is_empty() {
        return;
    }
    let (batch, mut from_source) = (&fill.batch, vec![]);
    for index in missing {
        let item = batch.item(index);
        if !item.leads() && !fill.may_read(index) {
            continue;
        }
        match fill_from_other(fill, index) {
            OtherTier::Filled => {
                batch.filled(1);
                continue;
            }
            OtherTier::UnderWay => continue,
            OtherTier::Missing => {}
        }
        if let SampleOrigin::Tier { tier, is_warm: false } = item.origin
            && item.keep().is_none()
            && !item.last_use
        {
            // A bypassed or suspended tier has it still.
            let tiers = &batch.job.tiers;
            let may_hold = tiers.get(tier).is_none_or(|tier| tier.holds(item.sample));
            if !may_hold {
                item.set_keep(Some(tier));
            }
        }
        from_source.push(index);
    }
    source::submit(fill, from_source);
}

/// Fills an item from a tier that is not the planned one, if a prefetcher or another node has put
/// the sample there since.
pub fn fill_from_other(fill: &BatchFill, index: u32) -> OtherTier {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    let item = batch.item(index);
    let found = job.tiers.find(item.sample).filter(|&tier| Some(tier) != item.tier());
    let found = found.filter(|_| job.source.is_compared(item.sample));
    let Some(tier) = found.filter(|_| !item.slot_is_lost()) else { return OtherTier::Missing };
    if job.tiers.may_hang(tier) {
        let for_task = fill.clone();
        let task = job.task(move |worker| copy_from_other_watched(worker, &for_task, index, tier));
        job.lane.submit_first(vec![task]);
        return OtherTier::UnderWay;
    }
    let Some(length) = copy_from_other(batch, index, tier) else { return OtherTier::Missing };
    job.metrics.loaded(Served::Tier(tier), 1, length);
    batch.arrived(index);
    OtherTier::Filled
}

fn copy_from_other(batch: &PendingBatch, index: u32, tier: TierId) -> Option<u64> {
    let (item, tiers) = (batch.item(index), &batch.job.tiers);
    let station = tiers.get(tier)?;
    item.set_version(tiers.current_version(tier, item.sample)?);
    // SAFETY: one thread at a time fills an item, and its batch is not published before; if the
    // call is given up, the slot is lost.
    let slot = unsafe { batch.slot(index) };
    let hit = station.get(item.sample, slot) == Get::Hit;
    hit.then_some(slot.len() as u64)
}

/// Fills an item from a tier that may hang, or else from the source.
fn copy_from_other_watched(worker: &Worker, fill: &BatchFill, index: u32, tier: TierId) {
    let instead = {
        let fill = fill.clone();
        move || {
            fill.batch.item(index).lose_slot();
            source::submit(&fill, vec![index]);
        }
    };
    let batch = &fill.batch;
    let copy = || copy_from_other(batch, index, tier);
    match batch.job.call_tier(worker, tier, instead, copy) {
        None => {}
        Some(Some(length)) => {
            batch.job.metrics.loaded(Served::Tier(tier), 1, length);
            batch.arrived(index);
            batch.filled(1);
        }
        Some(None) => source::submit(fill, vec![index]),
    }
}
