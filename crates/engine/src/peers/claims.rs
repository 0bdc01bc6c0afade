//! Puts into this node's tiers and evictions from them, where plans of several nodes count on them.
//!
//! A *claim* on a sample in a tier lasts until the epoch that uses it
//! ([`belady_peer::protocol::claims`]).

use belady_base::SampleId;
use belady_base::sync::{MutexGuard, lock};
use belady_data::tier::Put;
use belady_peer::protocol::claims::Claims;
use belady_peer::{PushOutcome, TierId};

use super::Peers;
use crate::pending::PendingBatch;

impl Peers {
    fn claims(&self, tier: TierId) -> Option<MutexGuard<'_, Claims>> {
        self.claims.get(usize::from(tier).checked_sub(1)?).map(lock)
    }

    /// An epoch is about to put a sample into a tier: a copy that is there stays.
    pub fn will_put(&self, tier: TierId, sample: SampleId, epoch: u32) {
        if let Some(mut claims) = self.claims(tier) {
            claims.comes(sample, epoch);
        }
    }

    /// An epoch has put a sample into a tier for the next one.
    pub fn was_put(&self, tier: TierId, sample: SampleId, epoch: u32) {
        if let Some(mut claims) = self.claims(tier) {
            claims.put(sample, epoch);
        }
    }

    /// A sample could not be put into a tier.
    pub fn was_not_put(&self, tier: TierId, sample: SampleId) {
        if let Some(mut claims) = self.claims(tier)
            && !self.job.tiers.holds(tier, sample)
        {
            claims.gone(sample);
        }
    }

    /// An epoch has used a sample in a tier, which keeps it for the next one.
    pub(super) fn stays(&self, tier: TierId, sample: SampleId, epoch: u32) {
        if let Some(mut claims) = self.claims(tier) {
            claims.stays(sample, epoch);
        }
    }

    /// Evicts a copy in an epoch, unless another node has put it here anew. The claims' lock keeps
    /// other nodes from doing so in between.
    pub fn evict(&self, tier: TierId, sample: SampleId, epoch: u32) {
        let Some(mut claims) = self.claims(tier) else { return };
        if claims.may_go(sample, epoch) {
            self.job.tiers.evict(tier, sample);
            claims.gone(sample);
        }
    }

    /// An epoch has used a sample in a tier for the last time: it may be evicted when space is
    /// needed.
    pub(super) fn release_here(&self, tier: TierId, sample: SampleId, epoch: u32) {
        let may_repeat = self.orders.may_repeat(epoch);
        let Some(mut claims) = self.claims(tier) else { return };
        if may_repeat {
            claims.release_again(sample, epoch);
        } else {
            claims.release(sample, epoch);
        }
    }

    /// Updates the claims for a step that retires: some samples are gone, others wait for the next
    /// epoch.
    pub fn step_retires(&self, batch: &PendingBatch) {
        for item in &batch.items {
            let Some(mut claims) = item.tier().and_then(|tier| self.claims(tier)) else { continue };
            if item.last_use {
                claims.gone(item.sample);
            } else {
                claims.stays(item.sample, batch.epoch());
            }
        }
    }

    /// Puts a sample of a file version that an epoch leaves into a tier. If the tier is full,
    /// evicts samples that no plan counts on.
    pub(super) fn put(
        &self,
        tier: TierId,
        (sample, version): (SampleId, i64),
        bytes: &[u8],
        epoch: u32,
    ) -> PushOutcome {
        self.will_put(tier, sample, epoch);
        loop {
            let put = self.job.tiers.put(tier, sample, bytes, version);
            self.job.metrics.put(tier, put);
            match put {
                Put::Stored | Put::Present => {
                    self.was_put(tier, sample, epoch);
                    return PushOutcome::Stored;
                }
                Put::Full if self.evict_unclaimed(tier, sample) => {}
                Put::Full | Put::Refused => {
                    self.was_not_put(tier, sample);
                    return if put == Put::Full {
                        PushOutcome::NoSpace
                    } else {
                        PushOutcome::Refused
                    };
                }
            }
        }
    }

    /// Evicts a sample that no plan counts on, in favour of another one; returns whether there was
    /// one.
    fn evict_unclaimed(&self, tier: TierId, wanted: SampleId) -> bool {
        let done = {
            let status = lock(&self.status);
            status.epochs.all_done(|node| status.takes_part(node))
        };
        let Some(mut claims) = self.claims(tier) else { return false };
        let Some(station) = self.job.tiers.get(tier) else { return false };
        let now = self.now();
        let holds = |sample| station.holds(sample);
        let victim = claims.released(holds).or_else(|| {
            if claims.lacks_room(wanted, now) { claims.forgotten(done, holds) } else { None }
        });
        let Some(victim) = victim else { return false };
        // Under the claims' lock, so that no node puts it here anew meanwhile.
        self.job.tiers.evict(tier, victim);
        claims.gone(victim);
        true
    }
}
