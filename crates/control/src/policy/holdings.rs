//! A node's own view of what it holds: one bit per sample and tier, and free bytes. Policies keep
//! it instead of asking the world, so that the same code runs where asking would cost a round trip.

use super::{NodeId, TierId};
use crate::bits::Bits;
use crate::job::Job;
use crate::sampler::SampleId;

#[derive(Debug)]
struct HeldTier {
    held: Bits,
    free: u64,
    capacity: u64,
}

/// What the cache tiers of one node hold.
#[derive(Debug)]
pub struct Holdings {
    /// Tier 1 first: the staging buffer is not a cache.
    tiers: Vec<HeldTier>,
}

impl Holdings {
    pub fn new(job: &Job, node: NodeId) -> Self {
        let held = Bits::new(job.sizes.len());
        let empty = |capacity| HeldTier { held: held.clone(), free: capacity, capacity };
        let tiers = job.system.tiers.iter().skip(1);
        Self { tiers: tiers.map(|tier| empty(tier.capacity_of(node).0)).collect() }
    }

    /// Returns the fastest tier that holds the sample.
    #[inline]
    pub fn tier_of(&self, sample: SampleId) -> Option<TierId> {
        let at = self.tiers.iter().position(|tier| tier.held.contains(sample))?;
        Some(at as TierId + 1)
    }

    /// Returns the fastest tier with that much free space.
    #[inline]
    pub fn room_for(&self, bytes: u64) -> Option<TierId> {
        let at = self.tiers.iter().position(|tier| tier.free >= bytes)?;
        Some(at as TierId + 1)
    }

    /// Returns whether an empty tier could hold that much.
    pub fn could_hold(&self, bytes: u64) -> bool {
        self.tiers.iter().any(|tier| tier.capacity >= bytes)
    }

    /// Reserves space for a sample that arrives later.
    pub fn reserve(&mut self, tier: TierId, bytes: u64) {
        let free = &mut self.tiers[tier as usize - 1].free;
        debug_assert!(*free >= bytes, "reserved more than is free");
        *free = free.saturating_sub(bytes);
    }

    /// Records that a sample, whose space was reserved, has arrived.
    pub fn arrive(&mut self, tier: TierId, sample: SampleId) {
        self.tiers[tier as usize - 1].held.insert(sample);
    }

    pub fn put(&mut self, tier: TierId, sample: SampleId, bytes: u64) {
        self.reserve(tier, bytes);
        self.arrive(tier, sample);
    }

    pub fn remove(&mut self, tier: TierId, sample: SampleId, bytes: u64) {
        let tier = &mut self.tiers[tier as usize - 1];
        tier.held.remove(sample);
        tier.free += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::job;

    #[test]
    fn space_is_found_in_the_fastest_tier_first() {
        let job = job(10, 1, 1, &[30, 50]);
        let mut held = Holdings::new(&job, 0);
        assert_eq!(held.room_for(30), Some(1));
        held.put(1, 7, 10);
        assert_eq!((held.room_for(30), held.room_for(60)), (Some(2), None));
        assert_eq!((held.tier_of(7), held.tier_of(8)), (Some(1), None));
        held.remove(1, 7, 10);
        assert_eq!((held.room_for(30), held.tier_of(7)), (Some(1), None));
        assert!(held.could_hold(50) && !held.could_hold(51));
    }
}
