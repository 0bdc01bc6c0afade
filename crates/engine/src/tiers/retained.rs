//! RAM tiers of jobs that have ended, retained for the next job on the same dataset.
//!
//! A loader that is started again, in mid-epoch or after a validation run, finds what it had in
//! memory. The ended job's quota share is retained with the tiers, so memory that the consumer
//! still borrows counts once. The engine frees retained tiers when another job finds a quota
//! exhausted.

use belady_base::sync::{Arc, Mutex, lock};
use belady_data::tier::Tier;

use super::quotas::QuotaShare;

/// The retained tiers of an engine.
#[derive(Debug, Default)]
pub struct RetainedTiers(Mutex<Vec<Retained>>);

/// Identifies the jobs that may use retained tiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetainKey {
    /// The listing's hash, which covers every file's version.
    pub listing: u64,
    /// The fraction of the quotas that the job asked for.
    pub share: f64,
}

/// The tiers of one ended job.
#[derive(Debug)]
pub struct Retained {
    pub key: RetainKey,
    pub share: Arc<QuotaShare>,
    /// By tier; `None` for those on disk.
    pub tiers: Vec<Option<Arc<dyn Tier>>>,
}

impl RetainedTiers {
    /// Retains tiers, unless they are all empty.
    pub fn retain(&self, retained: Retained) {
        let holds = |tier: &Option<Arc<dyn Tier>>| {
            tier.as_ref().is_some_and(|tier| tier.status().samples > 0)
        };
        if retained.tiers.iter().any(holds) {
            lock(&self.0).push(retained);
        }
    }

    /// Removes and returns the tiers that were retained last under this key.
    pub fn take(&self, key: RetainKey) -> Option<Retained> {
        let mut retained = lock(&self.0);
        let at = retained.iter().rposition(|retained| retained.key == key)?;
        Some(retained.remove(at))
    }

    /// Returns the tiers that hold samples of a listing.
    pub fn of_listing(&self, listing: u64) -> Vec<Arc<dyn Tier>> {
        let retained = lock(&self.0);
        let of_listing = retained.iter().filter(|retained| retained.key.listing == listing);
        of_listing.flat_map(|retained| retained.tiers.iter().flatten().cloned()).collect()
    }

    /// Frees all retained tiers.
    pub fn clear(&self) {
        let retained = std::mem::take(&mut *lock(&self.0));
        // Without the lock: unmapping memory takes time.
        drop(retained);
    }
}
