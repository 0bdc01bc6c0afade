//! In-flight reads, so that a sample that several batches need at once is read once.
//!
//! The first request for a sample from the source, or the first that will put it into a tier,
//! *leads* an in-flight read. Requests for the same sample meanwhile are coalesced with it: each
//! leaves a [`Waiter`] and gets a copy of the bytes when they arrive, or when the sample is in its
//! tier and the read ends. No thread blocks; a waiter is deferred work.
//!
//! A batch waits only for reads led by its own batch, by earlier batches or by prefetchers
//! (`an_earlier_batch_never_waits_for_a_later_one`). A later batch may defer its sample until its
//! consumer starves, and puts it into a tier only after all earlier batches: an earlier batch that
//! waited for it would deadlock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use belady_base::SampleId;
use belady_base::sync::{Mutex, MutexGuard, lock};
use belady_control::policy::TierId;

/// Shards of the table: locks are short, and this many keep threads from contending for one.
const SHARDS: usize = 16;

/// A request that is coalesced with an in-flight read.
pub trait Waiter: Send {
    /// Takes a copy of the sample's bytes, of this version of its file.
    fn arrived(self: Box<Self>, bytes: &[u8], version: i64);

    /// Starts over: the read has failed.
    fn failed(self: Box<Self>);
}

#[derive(Debug)]
struct InFlight<W> {
    waiters: Vec<W>,
    /// The sequence number of the leading batch.
    leader: u64,
    /// A prefetcher leads, which waits for nothing but the source.
    is_fetch: bool,
    /// The bytes have arrived and only have to be put into a tier.
    arrived: bool,
    /// The tier that the sample is not to be kept in any more.
    cancelled: Option<TierId>,
}

/// What a request for a sample does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRole {
    /// Read the sample, and serve the waiters.
    Lead,
    /// Wait for the in-flight read.
    Wait,
    /// Read the sample for this request alone.
    Alone,
}

/// The end of an in-flight read.
#[derive(Debug)]
pub struct EndedRead<W> {
    pub waiters: Vec<W>,
    /// The tier that the sample is not to be kept in any more.
    pub cancelled: Option<TierId>,
}

/// The in-flight reads of a job.
pub struct InFlightReads<W> {
    shards: [Mutex<HashMap<SampleId, InFlight<W>>>; SHARDS],
    open: AtomicUsize,
    /// Set for good: no request may wait any more.
    closed: AtomicBool,
}

impl<W> Default for InFlightReads<W> {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            open: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }
}

impl<W> InFlight<W> {
    fn new(leader: u64, is_fetch: bool, arrived: bool) -> Self {
        Self { waiters: vec![], leader, is_fetch, arrived, cancelled: None }
    }

    /// Returns whether a request of the batch `sequence` may wait for this read.
    fn admits(&self, sequence: u64) -> bool {
        sequence > self.leader || !self.arrived && (sequence == self.leader || self.is_fetch)
    }
}

impl<W> InFlightReads<W> {
    fn shard(&self, sample: SampleId) -> MutexGuard<'_, HashMap<SampleId, InFlight<W>>> {
        lock(&self.shards[sample as usize % SHARDS])
    }

    /// Leads a read for the batch `sequence`, or waits for one; keeps the waiter of one that waits.
    pub fn lead_or_wait(
        &self,
        sample: SampleId,
        sequence: u64,
        waiter: impl FnOnce() -> W,
    ) -> ReadRole {
        self.enter(sample, sequence, false, waiter)
    }

    /// Does the same for a prefetcher, when batches up to `planned` have been planned.
    pub fn fetch_or_wait(
        &self,
        sample: SampleId,
        planned: u64,
        waiter: impl FnOnce() -> W,
    ) -> ReadRole {
        self.enter(sample, planned, true, waiter)
    }

    fn enter(
        &self,
        sample: SampleId,
        leader: u64,
        is_fetch: bool,
        waiter: impl FnOnce() -> W,
    ) -> ReadRole {
        let mut shard = self.shard(sample);
        if self.closed.load(Ordering::Acquire) {
            return ReadRole::Alone;
        }
        match shard.entry(sample) {
            Entry::Vacant(vacant) => {
                vacant.insert(InFlight::new(leader, is_fetch, false));
                self.open.fetch_add(1, Ordering::Relaxed);
                ReadRole::Lead
            }
            Entry::Occupied(mut read) if read.get().admits(leader) => {
                read.get_mut().waiters.push(waiter());
                ReadRole::Wait
            }
            Entry::Occupied(_) => ReadRole::Alone,
        }
    }

    /// Waits for an in-flight read, if there is one; returns whether there is.
    pub fn wait_if_open(
        &self,
        sample: SampleId,
        sequence: u64,
        waiter: impl FnOnce() -> W,
    ) -> bool {
        // Mostly nothing is in flight. A read that matters to this thread was opened before this
        // thread's work was planned, so the load sees it.
        if self.open.load(Ordering::Acquire) == 0 {
            return false;
        }
        match self.shard(sample).get_mut(&sample) {
            Some(read) if read.admits(sequence) => {
                read.waiters.push(waiter());
                true
            }
            _ => false,
        }
    }

    /// Leads a read of a sample that has arrived and only has to be put into a tier; returns false
    /// if another read of it is in flight.
    pub fn lead_arrived(&self, sample: SampleId, sequence: u64) -> bool {
        let mut shard = self.shard(sample);
        if self.closed.load(Ordering::Acquire) {
            return false;
        }
        match shard.entry(sample) {
            Entry::Vacant(vacant) => {
                vacant.insert(InFlight::new(sequence, false, true));
                self.open.fetch_add(1, Ordering::Relaxed);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Marks the bytes as arrived, and returns the waiters so far.
    pub fn arrive(&self, sample: SampleId) -> Vec<W> {
        match self.shard(sample).get_mut(&sample) {
            Some(read) => {
                read.arrived = true;
                std::mem::take(&mut read.waiters)
            }
            None => vec![],
        }
    }

    /// Tells a leader that is not after the batch `by` not to keep the sample in a tier; returns
    /// whether there is one.
    pub fn cancel(&self, sample: SampleId, tier: TierId, by: u64) -> bool {
        if self.open.load(Ordering::Acquire) == 0 {
            return false;
        }
        match self.shard(sample).get_mut(&sample) {
            Some(read) if read.leader <= by => {
                read.cancelled = Some(tier);
                true
            }
            _ => false,
        }
    }

    /// Ends a read. Only its leader calls this.
    pub fn end(&self, sample: SampleId) -> EndedRead<W> {
        match self.shard(sample).remove(&sample) {
            Some(InFlight { waiters, cancelled, .. }) => {
                self.open.fetch_sub(1, Ordering::Release);
                EndedRead { waiters, cancelled }
            }
            None => EndedRead { waiters: vec![], cancelled: None },
        }
    }

    /// Drops all waiters, for good: they refer to batches, which refer to the job.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for shard in &self.shards {
            let reads = std::mem::take(&mut *lock(shard));
            self.open.fetch_sub(reads.len(), Ordering::Release);
        }
    }
}

impl InFlightReads<Box<dyn Waiter>> {
    /// Ends a read that has failed: its waiters start over.
    pub fn fail(&self, sample: SampleId) {
        for waiter in self.end(sample).waiters {
            waiter.failed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_leads_and_the_others_wait() {
        let reads = InFlightReads::default();
        assert_eq!(reads.lead_or_wait(7, 5, || "first"), ReadRole::Lead);
        assert_eq!(reads.lead_or_wait(7, 6, || "second"), ReadRole::Wait);
        assert!(reads.wait_if_open(7, 5, || "third") && !reads.wait_if_open(8, 6, || "none"));
        assert!(!reads.cancel(7, 1, 4) && reads.cancel(7, 1, 5) && !reads.cancel(8, 1, 5));
        let ended = reads.end(7);
        assert_eq!((ended.waiters, ended.cancelled), (vec!["second", "third"], Some(1)));
        assert!(!reads.wait_if_open(7, 6, || "late"));
        assert_eq!(reads.lead_or_wait(7, 5, || "again"), ReadRole::Lead);
        assert_eq!(reads.lead_or_wait(7, 6, || "behind it"), ReadRole::Wait);
        reads.close();
        assert_eq!(reads.lead_or_wait(7, 5, || "alone"), ReadRole::Alone);
        assert!(reads.end(7).waiters.is_empty());
    }

    #[test]
    fn an_earlier_batch_never_waits_for_a_later_one() {
        let reads = InFlightReads::default();
        assert_eq!(reads.lead_or_wait(7, 5, || 5), ReadRole::Lead);
        assert_eq!(reads.lead_or_wait(7, 4, || 4), ReadRole::Alone);
        assert!(!reads.wait_if_open(7, 4, || 4));
        assert_eq!(reads.lead_or_wait(7, 5, || 5), ReadRole::Wait, "twice in one batch");
        assert_eq!(reads.arrive(7), [5]);
        assert_eq!(reads.lead_or_wait(7, 3, || 3), ReadRole::Alone);
        assert!(!reads.wait_if_open(7, 3, || 3) && reads.wait_if_open(7, 6, || 6));
        assert_eq!(reads.end(7).waiters, [6]);
        assert_eq!(reads.fetch_or_wait(7, 5, || 0), ReadRole::Lead);
        assert_eq!(reads.lead_or_wait(7, 4, || 4), ReadRole::Wait, "a prefetcher leads");
    }
}
