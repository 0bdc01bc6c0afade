//! The tiers of a job, and what lies in them that its policy does not know of.
//!
//! A disk tier may be warm from an earlier run. The policy plans as if it were empty; what is
//! there are *guests*: served if they are asked for before they have to go, and let go when
//! the policy's own samples need the room, those first that were used already. A guest that
//! the policy decides to keep where it is becomes its own without being written again.
//!
//! A tier that hangs is *given up* for the rest of the job: nobody calls it any more, and its
//! samples come from elsewhere. Letting a sample go never waits for a call that may hang, since
//! all steps would wait with it; it is tried again when its room is needed.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belady_control::bits::Bits;
use belady_control::policy::TierId;
use belady_data::SampleId;
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::{Evicted, Put, Tier, TierStatus};

use crate::build::Share;

#[derive(Debug)]
pub struct Cache {
    /// Tier j at j − 1.
    shelves: Vec<Shelf>,
    share: Option<Arc<Share>>,
}

/// A tier as one knows it whom it has lent memory: it lives as long as that, with its quota.
#[derive(Clone, Debug)]
pub struct Lender {
    pub tier: Arc<dyn Tier>,
    _share: Option<Arc<Share>>,
}

#[derive(Debug)]
struct Shelf {
    tier: Arc<dyn Tier>,
    /// For warnings.
    name: String,
    /// A call of it may never return.
    may_hang: bool,
    given_up: AtomicBool,
    /// `None` where nothing was there at the start.
    guests: Option<Mutex<Guests>>,
    overdue: Overdue,
}

/// Samples that could not be let go when they should have been.
#[derive(Debug, Default)]
struct Overdue {
    /// Whether there are any: mostly there are none, and nobody need take the lock.
    any: AtomicBool,
    samples: Mutex<HashSet<SampleId>>,
}

impl Overdue {
    fn add(&self, sample: SampleId) {
        lock(&self.samples).insert(sample);
        self.any.store(true, Ordering::Release);
    }

    /// The policy wants it after all.
    fn forgive(&self, sample: SampleId) {
        if self.any.load(Ordering::Acquire) {
            lock(&self.samples).remove(&sample);
        }
    }

    fn take(&self) -> HashSet<SampleId> {
        if !self.any.swap(false, Ordering::AcqRel) {
            return HashSet::new();
        }
        std::mem::take(&mut *lock(&self.samples))
    }
}

#[derive(Debug)]
struct Guests {
    /// What the policy knows of.
    own: Bits,
    used: Used,
    /// Guests before this one are gone or used.
    next: SampleId,
    samples: u32,
}

/// Guests that were used already, each once, in the order of their first use.
#[derive(Debug)]
struct Used {
    queue: VecDeque<SampleId>,
    queued: Bits,
}

impl Used {
    fn new(samples: u32) -> Self {
        Self { queue: VecDeque::new(), queued: Bits::new(samples) }
    }

    fn add(&mut self, sample: SampleId) {
        if self.queued.insert(sample) {
            self.queue.push_back(sample);
        }
    }

    fn take(&mut self) -> Option<SampleId> {
        let sample = self.queue.pop_front()?;
        self.queued.remove(sample);
        Some(sample)
    }
}

impl Cache {
    /// Of tiers, each with its name and whether a call of it may never return.
    pub fn new(tiers: Vec<(Arc<dyn Tier>, String, bool)>, samples: u32, share: Share) -> Self {
        let shelf = |(tier, name, may_hang): (Arc<dyn Tier>, String, bool)| {
            let guests = (tier.status().samples > 0).then(|| {
                let (own, used) = (Bits::new(samples), Used::new(samples));
                Mutex::new(Guests { own, used, next: 0, samples })
            });
            let (given_up, overdue) = (AtomicBool::new(false), Overdue::default());
            Shelf { tier, name, may_hang, given_up, guests, overdue }
        };
        let shelves = tiers.into_iter().map(shelf).collect();
        Self { shelves, share: Some(Arc::new(share)) }
    }

    pub fn tier(&self, id: TierId) -> Option<&dyn Tier> {
        Some(self.shelf(id)?.tier.as_ref())
    }

    /// Whether a call of the tier may never return.
    pub fn may_hang(&self, id: TierId) -> bool {
        self.shelf(id).is_some_and(|shelf| shelf.may_hang)
    }

    /// A call of the tier has not returned within `limit`: it is left alone from now on.
    pub fn give_up(&self, id: TierId, limit: Duration) {
        if let Some(shelf) = self.shelf(id)
            && !shelf.given_up.swap(true, Ordering::AcqRel)
        {
            tracing::warn!("{}", shelf.hangs(limit));
        }
    }

    pub fn lender(&self, id: TierId) -> Option<Lender> {
        let tier = self.shelf(id)?.tier.clone();
        Some(Lender { tier, _share: self.share.clone() })
    }

    pub fn len(&self) -> usize {
        self.shelves.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = TierId> + use<> {
        1..=self.shelves.len() as TierId
    }

    pub fn status(&self) -> Vec<TierStatus> {
        self.shelves.iter().map(Shelf::status).collect()
    }

    /// A tier that is in use.
    fn shelf(&self, id: TierId) -> Option<&Shelf> {
        let shelf = self.shelves.get(usize::from(id).checked_sub(1)?)?;
        (!shelf.given_up.load(Ordering::Acquire)).then_some(shelf)
    }

    /// The fastest tier that holds a sample, whether the policy knows of it or not.
    pub fn find(&self, sample: SampleId) -> Option<TierId> {
        self.ids().find(|&id| self.tier(id).is_some_and(|tier| tier.holds(sample)))
    }

    /// Puts a sample where the policy wants it, at the expense of guests if need be.
    pub fn put(&self, id: TierId, sample: SampleId, bytes: &[u8]) -> Put {
        let Some(shelf) = self.shelf(id) else { return Put::Refused };
        loop {
            let put = shelf.tier.put(sample, bytes);
            match put {
                Put::Stored | Put::Present => {
                    shelf.overdue.forgive(sample);
                    if let Some(guests) = &shelf.guests {
                        lock(guests).own.insert(sample);
                    }
                    return put;
                }
                Put::Full if shelf.evict_overdue() || shelf.evict_guest() => {}
                Put::Full | Put::Refused => return put,
            }
        }
    }

    /// The policy knows from now on that a tier holds a sample.
    pub fn claim(&self, id: TierId, sample: SampleId) {
        let Some(shelf) = self.shelf(id) else { return };
        shelf.overdue.forgive(sample);
        if let Some(guests) = &shelf.guests {
            lock(guests).own.insert(sample);
        }
    }

    pub fn evict(&self, id: TierId, sample: SampleId) {
        let Some(shelf) = self.shelf(id) else { return };
        if shelf.tier.evict_now(sample) == Evicted::Busy {
            shelf.overdue.add(sample);
        }
        if let Some(guests) = &shelf.guests {
            lock(guests).own.remove(sample);
        }
    }

    /// A sample was served from a tier; if it is a guest there, it may go now.
    pub fn served(&self, id: TierId, sample: SampleId) {
        if let Some(guests) = self.shelf(id).and_then(|shelf| shelf.guests.as_ref()) {
            let mut guests = lock(guests);
            if !guests.own.contains(sample) {
                guests.used.add(sample);
            }
        }
    }
}

impl Shelf {
    fn hangs(&self, limit: Duration) -> String {
        format!(
            "a read or write in the cache {} has not returned after {limit:?}: it is not used \
             any more in this job, and its samples are read elsewhere; look after its disk",
            self.name
        )
    }

    fn status(&self) -> TierStatus {
        let status = self.tier.status();
        if !self.given_up.load(Ordering::Acquire) {
            return status;
        }
        let hangs = "a read or write has not returned: it is not used any more in this job";
        let degraded = status.degraded.into_iter().chain([hangs.to_owned()]);
        TierStatus { degraded: Some(degraded.collect::<Vec<_>>().join("; ")), ..status }
    }

    /// Whether one of those that should have gone before has gone now.
    fn evict_overdue(&self) -> bool {
        let mut gone = false;
        for sample in self.overdue.take() {
            match self.tier.evict_now(sample) {
                Evicted::Gone => gone = true,
                Evicted::NotHeld => {}
                Evicted::Busy => self.overdue.add(sample),
            }
        }
        gone
    }

    /// Whether there was one to go.
    fn evict_guest(&self) -> bool {
        let Some(guests) = &self.guests else { return false };
        let guests = &mut *lock(guests);
        while let Some(sample) = guests.used.take() {
            if !guests.own.contains(sample) && self.tier.evict_now(sample) == Evicted::Gone {
                return true;
            }
        }
        while guests.next < guests.samples {
            let sample = guests.next;
            guests.next += 1;
            if !guests.own.contains(sample) && self.tier.evict_now(sample) == Evicted::Gone {
                return true;
            }
        }
        false
    }
}
