//! Fills slots from the source, with retries.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use belady_base::memory::Memory;
use belady_base::sync::Arc;
use belady_control::model::online::SOURCE;
use belady_data::source::{ReadError, SampleLocation, Want};

use super::{BatchFill, siblings};
use crate::EngineError;
use crate::job::Problem;
use crate::metrics::Served;
use crate::pending::PendingBatch;
use crate::pool::{Hung, Task, Watched, Worker};

/// Records this close to each other are read in one request: a disk or a server takes longer for
/// two requests than for the bytes between them.
const NEIGHBOURS: u64 = 4 << 10;
/// Requests that one task makes at most.
const MOST_TOGETHER: usize = 8;
/// One request asks for at most this many bytes, so that others get their turn.
const REQUEST: u64 = 8 << 20;

/// Adds tasks that read items from the source.
pub fn tasks(fill: &BatchFill, mut items: Vec<u32>, tasks: &mut Vec<Task>) {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    let location = |&index: &u32| job.source.catalog().location(batch.item(index).sample);
    if items.len() > 1 {
        items.sort_by_cached_key(location);
    }
    let mut all: Vec<Vec<u32>> = requests(&items, location).map(<[u32]>::to_vec).collect();
    // A few requests a task, so that the cost of a task does not outweigh fast reads, and enough
    // tasks for all threads.
    let threads = job.lane.threads() as usize;
    let at_once = job.source.together();
    let together = if job.one_at_a_time.load(Ordering::Relaxed) {
        all.len()
    } else if at_once > 1 {
        let most = (all.len() / threads).clamp(1, at_once);
        all = group_single_samples(all, most, |index| batch.size(index));
        1
    } else {
        (all.len() / (2 * threads)).min(MOST_TOGETHER)
    };
    for requests in all.chunks(together.max(1)) {
        let (fill, requests) = (fill.clone(), Arc::from(requests));
        tasks.push(job.task(move |worker| {
            if let Some(rest) = siblings::fill(worker, &fill, &requests) {
                read_requests(worker, &fill, &rest, 0);
            }
        }));
    }
}

/// Submits tasks that read items from the source, before all other work.
pub fn submit(fill: &BatchFill, items: Vec<u32>) {
    let mut all = vec![];
    tasks(fill, items, &mut all);
    fill.batch.job.lane.submit_first_for(fill.batch.rank, all);
}

/// Groups requests for single samples, up to the number and bytes that one call should ask for,
/// since the time limit of a read is that of the whole call. Neighbours are one request already.
fn group_single_samples(
    all: Vec<Vec<u32>>,
    most: usize,
    size: impl Fn(u32) -> u64,
) -> Vec<Vec<u32>> {
    let (single, mut groups): (Vec<_>, Vec<_>) = all.into_iter().partition(|r| r.len() == 1);
    let (mut group, mut bytes) = (vec![], 0);
    for item in single.into_iter().flatten() {
        let length = size(item);
        if group.len() == most || (!group.is_empty() && bytes + length > REQUEST) {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
        group.push(item);
        bytes += length;
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// Makes requests one after the other, from the `first` on.
fn read_requests(worker: &Worker, fill: &BatchFill, requests: &Arc<[Vec<u32>]>, first: usize) {
    for at in first..requests.len() {
        if !read(worker, fill, requests, at, 1) {
            return;
        }
    }
}

/// Cuts items that are sorted by location into requests of neighbours.
fn requests<T>(
    sorted: &[T],
    location: impl Fn(&T) -> SampleLocation,
) -> impl Iterator<Item = &[T]> {
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

/// Makes one of several requests, for the `attempt`th time. Returns whether to go on with the
/// others; if the read is given up, another thread does.
fn read(
    worker: &Worker,
    fill: &BatchFill,
    requests: &Arc<[Vec<u32>]>,
    at: usize,
    attempt: u32,
) -> bool {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    if job.is_stopping() {
        return false;
    }
    let items = &requests[at];
    let began = Instant::now();
    let timer = job.threads.meter.load(SOURCE);
    let on_timeout = {
        let (fill, requests) = (fill.clone(), requests.clone());
        move |hung| {
            timed_out(&fill, &requests[at], attempt, hung);
            if at + 1 < requests.len() {
                let (job, rank) = (fill.batch.job.clone(), fill.batch.rank);
                let rest = job.task(move |worker| read_requests(worker, &fill, &requests, at + 1));
                job.lane.submit_first_for(rank, vec![rest]);
            }
        }
    };
    let Watched::InTime(outcome) = worker.watch(on_timeout, || read_into_slots(batch, items))
    else {
        return false;
    };
    match outcome {
        Ok(own) => {
            let took = began.elapsed();
            let bytes = items.iter().map(|&index| batch.size(index)).sum();
            if let Some(timer) = timer {
                timer.end(bytes);
            }
            job.rates.source(bytes, took);
            job.metrics.source_read(took);
            job.metrics.loaded(Served::Source, items.len() as u64, bytes);
            for (item, bytes) in own {
                batch.own(item, Arc::new(bytes));
            }
            for &item in items {
                if let Some(peers) = &fill.stage.peers {
                    peers.read_from_source(batch.item(item).sample);
                }
                batch.arrived(item);
            }
            batch.filled(items.len() as u32);
        }
        Err(_) if items.len() > 1 => {
            // One bad record must not fail its neighbours.
            job.metrics.retry();
            let alone = items.iter().map(|&item| read_task(fill, item, attempt));
            job.lane.submit_first_for(batch.rank, alone.collect());
        }
        Err(error) => failed(fill, items[0], attempt, error),
    }
    true
}

fn read_task(fill: &BatchFill, item: u32, attempt: u32) -> Task {
    let for_task = fill.clone();
    let requests: Arc<[Vec<u32>]> = Arc::from([vec![item]]);
    fill.batch.job.task(move |worker| {
        read(worker, &for_task, &requests, 0, attempt);
    })
}

/// Memory for items whose slots cannot be used.
type Own = Vec<(u32, Memory)>;

fn read_into_slots(batch: &PendingBatch, items: &[u32]) -> Result<Own, ReadError> {
    let lost = items.iter().copied().filter(|&index| batch.item(index).slot_is_lost());
    let mut own: Own =
        lost.map(|index| (index, Memory::zeroed(batch.size(index) as usize))).collect();
    {
        let mut owned = own.iter_mut();
        let mut wants: Vec<Want<'_>> = Vec::with_capacity(items.len());
        for &index in items {
            let item = batch.item(index);
            let into: &mut [u8] = match item.slot_is_lost().then(|| owned.next()).flatten() {
                Some((_, bytes)) => bytes,
                // SAFETY: one thread at a time fills an item; a read that was given up has lost the
                // slot for good, and the batch is not published before the item is filled.
                None => unsafe { batch.slot(index) },
            };
            wants.push(Want::new(item.sample, into));
        }
        batch.job.source.read(&mut wants)?;
        for (&index, want) in items.iter().zip(&wants) {
            batch.item(index).set_version(want.version);
        }
    }
    Ok(own)
}

/// Gives up a read that hangs: its items are tried again, or fail.
pub fn timed_out(fill: &BatchFill, items: &[u32], attempt: u32, hung: Hung) {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    job.metrics.timeout();
    let limit = job.retry.timeout;
    if hung.too_many {
        let sample = batch.item(items[0]).sample;
        job.fail(EngineError::SourceHangs { hung: hung.threads, limit, sample });
        return;
    }
    for &index in items {
        let item = batch.item(index);
        item.lose_slot();
        let error = ReadError::Io {
            sample: item.sample,
            path: PathBuf::from("the source"),
            error: io::Error::new(io::ErrorKind::TimedOut, "the read did not return in time"),
        };
        failed(fill, index, attempt, error);
    }
}

/// Tries a read again after a pause, or records the sample as bad.
pub fn failed(fill: &BatchFill, index: u32, attempt: u32, error: ReadError) {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    if error.is_shortage() {
        // It ends when another thread closes a file, and is no fault of the sample.
        tracing::warn!("{error}; trying again. Allow the process more open files (ulimit -n)");
        job.metrics.retry();
        job.lane.delay(job.retry.backoff, read_task(fill, index, attempt));
        return;
    }
    if error.is_transient() && attempt < job.retry.attempts {
        job.metrics.retry();
        let pause = job.retry.backoff * 2u32.saturating_pow(attempt - 1).min(64);
        job.lane.delay(pause, read_task(fill, index, attempt + 1));
        return;
    }
    batch.bad(index, Problem { error, attempts: attempt });
    let item = batch.item(index);
    if item.leads() {
        item.set_leads(false);
        job.in_flight.fail(item.sample);
    }
    batch.filled(1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn samples_that_fill_a_request_exactly_are_read_together() {
        let sizes = [REQUEST / 2, REQUEST / 2, 1];
        let all = vec![vec![0], vec![1], vec![2]];
        let groups = group_single_samples(all, 16, |index| sizes[index as usize]);
        assert_eq!(groups, [vec![0, 1], vec![2]]);
    }

    proptest! {
        #[test]
        fn grouped_samples_stay_within_one_request(
            sizes in prop::collection::vec(prop_oneof![0u64..1000, 1u64 << 18..40 << 20], 0..60),
            most in 1usize..17,
            pairs in prop::collection::vec(any::<bool>(), 60),
        ) {
            let size = |index: u32| sizes[index as usize];
            let items: Vec<u32> = (0..sizes.len() as u32).collect();
            // Requests of neighbours stay as they are.
            let all: Vec<Vec<u32>> = items
                .chunks(2)
                .zip(&pairs)
                .flat_map(|(two, &pair)| two.chunks(if pair { 2 } else { 1 }))
                .map(<[u32]>::to_vec)
                .collect();
            let groups = group_single_samples(all.clone(), most, size);
            for group in &groups {
                let bytes: u64 = group.iter().map(|&index| size(index)).sum();
                let as_before = all.contains(group);
                prop_assert!(as_before || group.len() <= most && bytes <= REQUEST);
            }
            // Groups are as large as the limits allow.
            let is_grouped = |group: &&Vec<u32>| !all.contains(group) || group.len() == 1;
            let alone: Vec<&Vec<u32>> = groups.iter().filter(is_grouped).collect();
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
