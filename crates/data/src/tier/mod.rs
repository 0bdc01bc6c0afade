//! Tiers: storage of this node between the source and the ring. They obey, they never
//! decide: what is kept and what goes is the policy's choice.
//!
//! A tier belongs to one dataset; its samples have the sizes of that dataset's catalog. Its
//! quota is hard. Nothing here fails an epoch: a tier that cannot hold or give a sample says
//! so as a value, and the engine reads the sample elsewhere.
//!
//! [`RamTier`] lends its memory without a lock; [`disk::DiskTier`] is found again by the
//! next run; [`FaultyTier`] makes either fail on purpose. One suite judges all of them.

#[cfg(test)]
mod conformance;
pub mod disk;
mod extents;
mod faulty;
mod leases;
mod ram;

use std::fmt;

use belady_control::model::Bytes;

pub use disk::{DiskConfig, DiskTier};
pub use faulty::{FaultyTier, TierFaultCounts, TierFaults};
pub use ram::RamTier;

use crate::SampleId;

/// How a `put` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Stored,
    /// The tier holds it already.
    Present,
    /// No room for it now.
    Full,
    /// The tier cannot take it: degraded, read-only, or an evicted copy is still lent.
    Refused,
}

/// How a `get` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    Hit,
    Miss,
    /// It was held and its checksum did not match, or it could not be read; it is gone now.
    Damaged,
}

/// How an `evict_now` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    Gone,
    /// It was not held, or is not this tier's to let go.
    NotHeld,
    /// Somebody is at work where it lies and does not come to an end: ask again later.
    Busy,
}

/// What a tier holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStatus {
    pub capacity: Bytes,
    pub used: Bytes,
    pub samples: u64,
    /// Why the tier does less than it was asked to, if so.
    pub degraded: Option<String>,
}

/// Storage class j ≥ 1 of this node, for one dataset.
pub trait Tier: Send + Sync + fmt::Debug {
    /// Takes in a copy of a sample, read from this version of its file
    /// ([`Version::changed`](crate::source::Version::changed); 0 for what cannot change). A tier that
    /// outlives a run keeps the version with the copy, and refuses one that the source does not have
    /// any more; in one that does not, its user knows the versions.
    fn put(&self, sample: SampleId, bytes: &[u8], version: i64) -> Put;

    /// Copies a sample out; `into` is exactly as long as the sample.
    fn get(&self, sample: SampleId, into: &mut [u8]) -> Get;

    /// Lets a sample go; whether it was held.
    fn evict(&self, sample: SampleId) -> bool;

    /// Lets a sample go as [`Tier::evict`] does, but does not wait for a call that hangs.
    fn evict_now(&self, sample: SampleId) -> Evicted {
        if self.evict(sample) { Evicted::Gone } else { Evicted::NotHeld }
    }

    fn holds(&self, sample: SampleId) -> bool;

    /// Whether the copy that the tier holds is of the version of its file that the source has, as far
    /// as that is known. A [`get`](Self::get) gives no other; a tier that outlives no run has none.
    fn is_current(&self, sample: SampleId) -> bool {
        self.holds(sample)
    }

    fn status(&self) -> TierStatus;

    /// How much of the quota a sample of so many bytes takes.
    fn footprint(&self, size: u64) -> u64 {
        size
    }

    /// Lends the tier's own memory to someone who cannot write to it: the bytes stay where
    /// they are, also if the sample is evicted meanwhile, until [`Tier::unpin`] was called
    /// as often as this. `None` where the tier has no memory to lend (a disk), does not hold
    /// the sample, or holds it in pieces.
    fn pin(&self, _sample: SampleId) -> Option<Pinned> {
        None
    }

    /// Gives back what [`Tier::pin`] lent.
    fn unpin(&self, _sample: SampleId) {}
}

/// So that wrappers can be put around a tier of any kind.
impl Tier for std::sync::Arc<dyn Tier> {
    fn put(&self, sample: SampleId, bytes: &[u8], version: i64) -> Put {
        self.as_ref().put(sample, bytes, version)
    }

    fn get(&self, sample: SampleId, into: &mut [u8]) -> Get {
        self.as_ref().get(sample, into)
    }

    fn evict(&self, sample: SampleId) -> bool {
        self.as_ref().evict(sample)
    }

    fn evict_now(&self, sample: SampleId) -> Evicted {
        self.as_ref().evict_now(sample)
    }

    fn holds(&self, sample: SampleId) -> bool {
        self.as_ref().holds(sample)
    }

    fn is_current(&self, sample: SampleId) -> bool {
        self.as_ref().is_current(sample)
    }

    fn status(&self) -> TierStatus {
        self.as_ref().status()
    }

    fn footprint(&self, size: u64) -> u64 {
        self.as_ref().footprint(size)
    }

    fn pin(&self, sample: SampleId) -> Option<Pinned> {
        self.as_ref().pin(sample)
    }

    fn unpin(&self, sample: SampleId) {
        self.as_ref().unpin(sample);
    }
}

/// Bytes lent by [`Tier::pin`].
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    pub start: *const u8,
    pub length: usize,
}

// SAFETY: the bytes do not change while they are pinned, whoever reads them.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sync::{Mutex, lock};

    /// Writes down what it is asked, and answers what no default does.
    #[derive(Debug, Default)]
    struct Diary(Mutex<Vec<(&'static str, u64)>>);

    impl Diary {
        fn note(&self, call: &'static str, about: impl Into<u64>) {
            lock(&self.0).push((call, about.into()));
        }
    }

    const LENT: &[u8] = b"lent";

    impl Tier for Diary {
        fn put(&self, sample: SampleId, _bytes: &[u8], _version: i64) -> Put {
            self.note("put", sample);
            Put::Full
        }

        fn get(&self, sample: SampleId, into: &mut [u8]) -> Get {
            self.note("get", sample);
            into.fill(7);
            Get::Damaged
        }

        fn evict(&self, sample: SampleId) -> bool {
            self.note("evict", sample);
            true
        }

        fn evict_now(&self, sample: SampleId) -> Evicted {
            self.note("evict_now", sample);
            Evicted::Busy
        }

        fn holds(&self, sample: SampleId) -> bool {
            self.note("holds", sample);
            sample == 5
        }

        fn is_current(&self, sample: SampleId) -> bool {
            self.note("is_current", sample);
            sample == 6
        }

        fn status(&self) -> TierStatus {
            TierStatus { samples: 9, ..TierStatus::default() }
        }

        fn footprint(&self, size: u64) -> u64 {
            size + 100
        }

        fn pin(&self, sample: SampleId) -> Option<Pinned> {
            self.note("pin", sample);
            Some(Pinned { start: LENT.as_ptr(), length: LENT.len() })
        }

        fn unpin(&self, sample: SampleId) {
            self.note("unpin", sample);
        }
    }

    #[test]
    fn a_shared_tier_is_the_tier_itself() {
        let diary = Arc::new(Diary::default());
        let shared: Arc<dyn Tier> = diary.clone();
        let tier: &dyn Tier = &shared;
        let mut into = [0; 2];
        assert_eq!(
            (tier.put(1, b"a", 0), tier.get(2, &mut into), into),
            (Put::Full, Get::Damaged, [7; 2])
        );
        assert_eq!((tier.evict(3), tier.evict_now(4)), (true, Evicted::Busy));
        assert_eq!((tier.holds(5), tier.holds(6)), (true, false));
        assert_eq!((tier.is_current(5), tier.is_current(6)), (false, true));
        assert_eq!((tier.status().samples, tier.footprint(1)), (9, 101));
        assert_eq!(tier.pin(7).map(|pinned| pinned.length), Some(4));
        tier.unpin(8);
        let calls =
            ["put", "get", "evict", "evict_now", "holds", "holds", "is_current", "is_current"];
        let calls =
            calls.into_iter().zip([1, 2, 3, 4, 5, 6, 5, 6]).chain([("pin", 7), ("unpin", 8)]);
        assert_eq!(*lock(&diary.0), calls.collect::<Vec<_>>());
    }

    /// A tier that has neither versions nor memory to lend.
    #[derive(Debug)]
    struct Plain;

    impl Tier for Plain {
        fn put(&self, _sample: SampleId, _bytes: &[u8], _version: i64) -> Put {
            Put::Refused
        }

        fn get(&self, _sample: SampleId, _into: &mut [u8]) -> Get {
            Get::Miss
        }

        fn evict(&self, sample: SampleId) -> bool {
            sample == 1
        }

        fn holds(&self, sample: SampleId) -> bool {
            sample == 1
        }

        fn status(&self) -> TierStatus {
            TierStatus::default()
        }
    }

    #[test]
    fn what_a_tier_does_not_say_follows_from_what_it_says() {
        assert_eq!([1, 2].map(|sample| Plain.evict_now(sample)), [Evicted::Gone, Evicted::NotHeld]);
        assert_eq!([1, 2].map(|sample| Plain.is_current(sample)), [true, false]);
        assert!(Plain.pin(1).is_none());
        assert_eq!(Plain.footprint(3), 3);
    }
}
