//! Reads of the source, with retries.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use belady_base::memory::Memory;
use belady_base::sync::Arc;
use belady_control::model::online::SOURCE;
use belady_data::source::{ReadError, Want};

use super::BatchFill;
use crate::EngineError;
use crate::job::Problem;
use crate::metrics::Served;
use crate::pending::PendingBatch;
use crate::pool::{Hung, Task, Watched, Worker};

/// Makes requests one after the other, from the `first` on.
pub fn read_requests(worker: &Worker, fill: &BatchFill, requests: &Arc<[Vec<u32>]>, first: usize) {
    for at in first..requests.len() {
        if !read(worker, fill, requests, at, 1) {
            return;
        }
    }
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
            job.rates.source(items.len() as u64, bytes, took);
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

/// Submits a task that reads an item, before all other work.
pub fn submit_alone(fill: &BatchFill, item: u32) {
    fill.batch.job.lane.submit_first_for(fill.batch.rank, vec![read_task(fill, item, 1)]);
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
