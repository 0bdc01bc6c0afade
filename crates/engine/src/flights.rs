//! Samples on their way, so that one that is wanted several times at once is read once.
//!
//! The first who wants a sample from the source, or is going to put it into a tier, opens a
//! *flight* and leads it. Whoever wants the same sample while the flight is open waits for
//! it and gets a copy of the bytes when they have arrived, or later, when the sample is in its
//! tier and the flight ends. Nobody waits in a thread: a waiter is a piece of work that is set
//! aside.
//!
//! A batch waits for flights of its own or earlier batches only, and for those of prefetchers. A later
//! batch may put its sample aside for as long as its consumer does not starve for it, and puts it into a
//! tier only when all earlier batches are there: an earlier batch would wait for itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use belady_control::policy::TierId;
use belady_data::SampleId;
use belady_data::sync::{Mutex, MutexGuard, lock};

/// Locks are short; this many keep threads from meeting at one.
const SHARDS: usize = 16;

#[derive(Debug)]
struct Flight<W> {
    waiters: Vec<W>,
    /// The leader's place in the sequence of batches.
    leader: u64,
    /// A prefetcher leads it, which waits for nothing but the source.
    is_fetch: bool,
    /// The bytes are there; what is left is to put them into a tier.
    arrived: bool,
    /// The sample is not to be kept there any more.
    cancelled: Option<TierId>,
}

/// What to do about a sample that one wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Get it, and tell the others.
    Lead,
    /// Somebody else gets it.
    Wait,
    /// Get it, for nobody else.
    Alone,
}

/// How a flight ended.
#[derive(Debug)]
pub struct Landed<W> {
    pub waiters: Vec<W>,
    /// The sample is not to be kept there any more.
    pub cancelled: Option<TierId>,
}

#[derive(Debug)]
pub struct Flights<W> {
    shards: [Mutex<HashMap<SampleId, Flight<W>>>; SHARDS],
    open: AtomicUsize,
    /// Nobody waits any more, and nobody may begin to.
    closed: AtomicBool,
}

impl<W> Default for Flights<W> {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            open: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }
}

impl<W> Flight<W> {
    /// Whether somebody of the batch `sequence` may wait for it.
    fn takes(&self, sequence: u64) -> bool {
        sequence > self.leader || !self.arrived && (sequence == self.leader || self.is_fetch)
    }
}

impl<W> Flights<W> {
    fn shard(&self, sample: SampleId) -> MutexGuard<'_, HashMap<SampleId, Flight<W>>> {
        lock(&self.shards[sample as usize % SHARDS])
    }

    /// What one should do who belongs to the batch `sequence`; the waiter of one who should wait
    /// is kept.
    pub fn lead_or_wait(
        &self,
        sample: SampleId,
        sequence: u64,
        waiter: impl FnOnce() -> W,
    ) -> Turn {
        self.enter(sample, sequence, false, waiter)
    }

    /// The same for a prefetcher, when batches up to `planned` are on their way.
    pub fn fetch_or_wait(
        &self,
        sample: SampleId,
        planned: u64,
        waiter: impl FnOnce() -> W,
    ) -> Turn {
        self.enter(sample, planned, true, waiter)
    }

    fn enter(
        &self,
        sample: SampleId,
        leader: u64,
        is_fetch: bool,
        waiter: impl FnOnce() -> W,
    ) -> Turn {
        let mut shard = self.shard(sample);
        if self.closed.load(Ordering::Acquire) {
            return Turn::Alone;
        }
        match shard.entry(sample) {
            Entry::Vacant(vacant) => {
                let (waiters, arrived, cancelled) = (vec![], false, None);
                vacant.insert(Flight { waiters, leader, is_fetch, arrived, cancelled });
                self.open.fetch_add(1, Ordering::Relaxed);
                Turn::Lead
            }
            Entry::Occupied(mut flight) if flight.get().takes(leader) => {
                flight.get_mut().waiters.push(waiter());
                Turn::Wait
            }
            Entry::Occupied(_) => Turn::Alone,
        }
    }

    /// Waits for an open flight, if there is one.
    pub fn wait_if_open(
        &self,
        sample: SampleId,
        sequence: u64,
        waiter: impl FnOnce() -> W,
    ) -> bool {
        // Most of the time nothing is on its way. Whoever opens a flight that this thread has
        // to know of did so before it planned what this thread is doing.
        if self.open.load(Ordering::Acquire) == 0 {
            return false;
        }
        match self.shard(sample).get_mut(&sample) {
            Some(flight) if flight.takes(sequence) => {
                flight.waiters.push(waiter());
                true
            }
            _ => false,
        }
    }

    /// Leads a flight of what is there already and only has to be put into a tier; whether
    /// nobody else does.
    pub fn lead_arrived(&self, sample: SampleId, sequence: u64) -> bool {
        let mut shard = self.shard(sample);
        if self.closed.load(Ordering::Acquire) {
            return false;
        }
        match shard.entry(sample) {
            Entry::Vacant(vacant) => {
                let (waiters, leader, is_fetch, cancelled) = (vec![], sequence, false, None);
                vacant.insert(Flight { waiters, leader, is_fetch, arrived: true, cancelled });
                self.open.fetch_add(1, Ordering::Relaxed);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The bytes are there: those who have waited so far get them now.
    pub fn arrive(&self, sample: SampleId) -> Vec<W> {
        match self.shard(sample).get_mut(&sample) {
            Some(flight) => {
                flight.arrived = true;
                std::mem::take(&mut flight.waiters)
            }
            None => vec![],
        }
    }

    /// Tells a leader who is not after `by` not to keep the sample in that tier; whether there
    /// was one.
    pub fn cancel(&self, sample: SampleId, tier: TierId, by: u64) -> bool {
        if self.open.load(Ordering::Acquire) == 0 {
            return false;
        }
        match self.shard(sample).get_mut(&sample) {
            Some(flight) if flight.leader <= by => {
                flight.cancelled = Some(tier);
                true
            }
            _ => false,
        }
    }

    /// The leader's last word.
    pub fn land(&self, sample: SampleId) -> Landed<W> {
        match self.shard(sample).remove(&sample) {
            Some(Flight { waiters, cancelled, .. }) => {
                self.open.fetch_sub(1, Ordering::Release);
                Landed { waiters, cancelled }
            }
            None => Landed { waiters: vec![], cancelled: None },
        }
    }

    /// Sends everybody away, for good: waiters refer to batches, which refer to this.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for shard in &self.shards {
            let flights = std::mem::take(&mut *lock(shard));
            self.open.fetch_sub(flights.len(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_leads_and_the_others_wait() {
        let flights = Flights::default();
        assert_eq!(flights.lead_or_wait(7, 5, || "first"), Turn::Lead);
        assert_eq!(flights.lead_or_wait(7, 6, || "second"), Turn::Wait);
        assert!(flights.wait_if_open(7, 5, || "third") && !flights.wait_if_open(8, 6, || "none"));
        assert!(!flights.cancel(7, 1, 4) && flights.cancel(7, 1, 5) && !flights.cancel(8, 1, 5));
        let landed = flights.land(7);
        assert_eq!((landed.waiters, landed.cancelled), (vec!["second", "third"], Some(1)));
        assert!(!flights.wait_if_open(7, 6, || "late"));
        assert_eq!(flights.lead_or_wait(7, 5, || "again"), Turn::Lead);
        assert_eq!(flights.lead_or_wait(7, 6, || "behind it"), Turn::Wait);
        flights.close();
        assert_eq!(flights.lead_or_wait(7, 5, || "alone"), Turn::Alone);
        assert!(flights.land(7).waiters.is_empty());
    }

    #[test]
    fn an_earlier_batch_never_waits_for_a_later_one() {
        let flights = Flights::default();
        assert_eq!(flights.lead_or_wait(7, 5, || 5), Turn::Lead);
        assert_eq!(flights.lead_or_wait(7, 4, || 4), Turn::Alone);
        assert!(!flights.wait_if_open(7, 4, || 4));
        assert_eq!(flights.lead_or_wait(7, 5, || 5), Turn::Wait, "twice in one batch");
        assert_eq!(flights.arrive(7), [5]);
        assert_eq!(flights.lead_or_wait(7, 3, || 3), Turn::Alone);
        assert!(!flights.wait_if_open(7, 3, || 3) && flights.wait_if_open(7, 6, || 6));
        assert_eq!(flights.land(7).waiters, [6]);
        assert_eq!(flights.fetch_or_wait(7, 5, || 0), Turn::Lead);
        assert_eq!(flights.lead_or_wait(7, 4, || 4), Turn::Wait, "a prefetcher waits for nothing");
    }
}
