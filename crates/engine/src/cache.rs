//! The tiers of a job, and what lies in them that its policy does not know of.
//!
//! A disk tier may be warm from an earlier run. The policy plans as if it were empty; what is
//! there are *guests*: served if they are asked for before they have to go, and let go when
//! the policy's own samples need the room, those first that were used already. A guest that
//! the policy decides to keep where it is becomes its own without being written again.

use std::collections::VecDeque;

use belady_control::bits::Bits;
use belady_control::policy::TierId;
use belady_data::SampleId;
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::{Put, Tier, TierStatus};

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
    /// `None` where nothing was there at the start.
    guests: Option<Mutex<Guests>>,
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
    pub fn new(tiers: Vec<Arc<dyn Tier>>, samples: u32, share: Share) -> Self {
        let shelf = |tier: Arc<dyn Tier>| {
            let guests = (tier.status().samples > 0).then(|| {
                let (own, used) = (Bits::new(samples), Used::new(samples));
                Mutex::new(Guests { own, used, next: 0, samples })
            });
            Shelf { tier, guests }
        };
        let shelves = tiers.into_iter().map(shelf).collect();
        Self { shelves, share: Some(Arc::new(share)) }
    }

    pub fn tier(&self, id: TierId) -> Option<&dyn Tier> {
        Some(self.shelf(id)?.tier.as_ref())
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
        self.shelves.iter().map(|shelf| shelf.tier.status()).collect()
    }

    fn shelf(&self, id: TierId) -> Option<&Shelf> {
        self.shelves.get(usize::from(id).checked_sub(1)?)
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
                    if let Some(guests) = &shelf.guests {
                        lock(guests).own.insert(sample);
                    }
                    return put;
                }
                Put::Full if shelf.evict_guest() => {}
                Put::Full | Put::Refused => return put,
            }
        }
    }

    /// The policy knows from now on that a tier holds a sample.
    pub fn claim(&self, id: TierId, sample: SampleId) {
        if let Some(guests) = self.shelf(id).and_then(|shelf| shelf.guests.as_ref()) {
            lock(guests).own.insert(sample);
        }
    }

    pub fn evict(&self, id: TierId, sample: SampleId) {
        let Some(shelf) = self.shelf(id) else { return };
        shelf.tier.evict(sample);
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
    /// Whether there was one to go.
    fn evict_guest(&self) -> bool {
        let Some(guests) = &self.guests else { return false };
        let guests = &mut *lock(guests);
        while let Some(sample) = guests.used.take() {
            if !guests.own.contains(sample) && self.tier.evict(sample) {
                return true;
            }
        }
        while guests.next < guests.samples {
            let sample = guests.next;
            guests.next += 1;
            if !guests.own.contains(sample) && self.tier.evict(sample) {
                return true;
            }
        }
        false
    }
}
