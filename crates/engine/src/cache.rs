//! The tiers of a job, and what lies in them that its policy does not know of.
//!
//! A disk tier may be warm from an earlier run. The policy plans as if it were empty; what is
//! there are *guests*: served if they are asked for before they have to go, and let go when
//! the policy's own samples need the room, those first that were used already. A guest that
//! the policy decides to keep where it is becomes its own without being written again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use belady_control::bits::Bits;
use belady_control::policy::TierId;
use belady_data::SampleId;
use belady_data::tier::{Put, Tier, TierStatus};

use crate::pool::lock;

#[derive(Debug, Default)]
pub struct Cache {
    /// Tier j at j − 1.
    shelves: Vec<Shelf>,
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
    /// Guests that were used already.
    used: VecDeque<SampleId>,
    /// Guests before this one are gone or used.
    next: SampleId,
    samples: u32,
}

impl Cache {
    pub fn new(tiers: Vec<Arc<dyn Tier>>, samples: u32) -> Self {
        let shelf = |tier: Arc<dyn Tier>| {
            let guests = (tier.status().samples > 0).then(|| {
                let own = Bits::new(samples);
                Mutex::new(Guests { own, used: VecDeque::new(), next: 0, samples })
            });
            Shelf { tier, guests }
        };
        Self { shelves: tiers.into_iter().map(shelf).collect() }
    }

    pub fn tier(&self, id: TierId) -> Option<&dyn Tier> {
        Some(self.shelf(id)?.tier.as_ref())
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
                guests.used.push_back(sample);
            }
        }
    }
}

impl Shelf {
    /// Whether there was one to go.
    fn evict_guest(&self) -> bool {
        let Some(guests) = &self.guests else { return false };
        let guests = &mut *lock(guests);
        while let Some(sample) = guests.used.pop_front() {
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
