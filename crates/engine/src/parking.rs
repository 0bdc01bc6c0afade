//! RAM tiers of jobs that have ended, for the next job on the same dataset.
//!
//! A loader that is started anew, in mid-epoch or after a validation run, finds what it had in
//! memory. The job's part of the quotas is parked with it, so what the consumer is still lent of a
//! tier counts once. It goes when another job finds nothing left.

use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::Tier;

use crate::build::Share;

#[derive(Debug, Default)]
pub struct Parking(Mutex<Vec<Parked>>);

/// What tiers were for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ticket {
    /// A listing in which any file's version is another one is another listing.
    pub listing: u64,
    /// The part of the quotas that the job asked for.
    pub share: f64,
}

#[derive(Debug)]
pub struct Parked {
    pub ticket: Ticket,
    pub share: Arc<Share>,
    /// By tier; `None` for those on disk.
    pub tiers: Vec<Option<Arc<dyn Tier>>>,
}

impl Parking {
    pub fn park(&self, parked: Parked) {
        let holds = |tier: &Option<Arc<dyn Tier>>| {
            tier.as_ref().is_some_and(|tier| tier.status().samples > 0)
        };
        if parked.tiers.iter().any(holds) {
            lock(&self.0).push(parked);
        }
    }

    /// What was parked last for just this.
    pub fn take(&self, ticket: Ticket) -> Option<Parked> {
        let mut parked = lock(&self.0);
        let at = parked.iter().rposition(|parked| parked.ticket == ticket)?;
        Some(parked.remove(at))
    }

    pub fn clear(&self) {
        let parked = std::mem::take(&mut *lock(&self.0));
        // Without the lock: giving memory back takes its time.
        drop(parked);
    }
}
