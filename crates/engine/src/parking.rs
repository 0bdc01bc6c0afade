//! RAM tiers of jobs that have ended, for the next job on the same dataset.
//!
//! A loader that is started anew, in mid-epoch or after a validation run, finds what it had in
//! memory. What is parked counts as free: it goes when another job needs the room.

use belady_control::policy::TierId;
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::Tier;

#[derive(Debug, Default)]
pub struct Parking(Mutex<Vec<Parked>>);

/// What a tier was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub tier: TierId,
    pub fingerprint: u64,
    /// The job's part of the quota.
    pub bytes: u64,
}

#[derive(Debug)]
struct Parked {
    ticket: Ticket,
    tier: Arc<dyn Tier>,
}

impl Parking {
    pub fn park(&self, ticket: Ticket, tier: Arc<dyn Tier>) {
        if tier.status().samples > 0 {
            lock(&self.0).push(Parked { ticket, tier });
        }
    }

    /// The tier that was parked last for just this.
    pub fn take(&self, ticket: Ticket) -> Option<Arc<dyn Tier>> {
        let mut parked = lock(&self.0);
        let at = parked.iter().rposition(|parked| parked.ticket == ticket)?;
        Some(parked.remove(at).tier)
    }

    /// Lets go of what does not fit into what is left of each tier's quota, oldest first.
    pub fn fit_into(&self, left: &[u64]) {
        let mut gone = vec![];
        let mut parked = lock(&self.0);
        for (index, &left) in left.iter().enumerate() {
            let of_tier = |parked: &Parked| usize::from(parked.ticket.tier) == index + 1;
            let mut held: u64 =
                parked.iter().filter(|p| of_tier(p)).map(|parked| parked.ticket.bytes).sum();
            while held > left {
                let Some(at) = parked.iter().position(of_tier) else { break };
                held -= parked[at].ticket.bytes;
                gone.push(parked.remove(at));
            }
        }
        drop(parked);
        // Giving memory back takes its time.
        drop(gone);
    }
}
