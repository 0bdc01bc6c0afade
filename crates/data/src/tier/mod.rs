//! Tiers: storage of this node between the source and the ring. A tier never decides what it holds;
//! the policy does.
//!
//! A tier belongs to one dataset, whose catalog gives the samples' sizes. Its quota is hard. No
//! tier fails an epoch: a tier that cannot store or return a sample says so by a value, and the
//! engine reads the sample elsewhere.
//!
//! [`RamTier`] lends its memory without a lock. [`disk::DiskTier`] outlives the run. [`FaultyTier`]
//! injects faults. One conformance suite covers all of them.

#[cfg(test)]
mod conformance;
pub mod disk;
mod extents;
mod faulty;
mod pins;
mod ram;

use std::fmt;

use belady_base::SampleId;
use belady_base::shared_memory::SharedMapping;
use belady_control::model::Bytes;

pub use disk::{DiskConfig, DiskTier};
pub use faulty::{FaultyTier, TierFaultCounts, TierFaults};
pub use ram::RamTier;

/// How a `put` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The tier now holds the sample.
    Stored,
    /// The tier held it already.
    Present,
    /// There is no space for it now.
    Full,
    /// The tier cannot accept it: degraded, read-only, or an evicted copy is still pinned.
    Refused,
}

/// How a `get` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// The sample was copied.
    Hit,
    /// The tier does not hold the sample.
    Miss,
    /// The tier held it, but its checksum did not match or it could not be read. It is evicted.
    Damaged,
}

/// How an `evict_now` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The sample is evicted.
    Gone,
    /// It was not held, or the tier is read-only.
    NotHeld,
    /// A slow or hung call uses it: the caller can retry later.
    Busy,
}

/// What a tier holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStatus {
    /// The bytes that it may use.
    pub capacity: Bytes,
    /// The bytes that it uses.
    pub used: Bytes,
    /// The samples that it holds.
    pub samples: u64,
    /// Why the tier does less than configured, if so.
    pub degraded: Option<String>,
}

/// Storage class j ≥ 1 of this node, for one dataset.
pub trait Tier: Send + Sync + fmt::Debug {
    /// Stores a copy of a sample that was read from this version of its file
    /// ([`Version::changed`](crate::source::Version::changed); 0 for what cannot change). A tier
    /// that outlives a run stores the version with the copy and refuses an outdated one; for other
    /// tiers the caller tracks the versions.
    fn put(&self, sample: SampleId, bytes: &[u8], version: i64) -> Put;

    /// Copies a sample into `into`, which is exactly as long as the sample.
    fn get(&self, sample: SampleId, into: &mut [u8]) -> Get;

    /// Evicts a sample, and returns whether it was held.
    fn evict(&self, sample: SampleId) -> bool;

    /// Evicts a sample as [`Tier::evict`] does, but does not wait for a call that hangs.
    fn evict_now(&self, sample: SampleId) -> Evicted {
        if self.evict(sample) { Evicted::Gone } else { Evicted::NotHeld }
    }

    /// Whether the tier holds a sample.
    fn holds(&self, sample: SampleId) -> bool;

    /// Whether the tier holds a copy of the version that the source is known to have.
    /// [`get`](Self::get) returns no other; a tier that does not outlive the run has no other.
    fn is_current(&self, sample: SampleId) -> bool {
        self.holds(sample)
    }

    /// Returns what the tier holds.
    fn status(&self) -> TierStatus;

    /// Returns how much of the quota a sample of this size takes.
    fn footprint(&self, size: u64) -> u64 {
        size
    }

    /// Pins a sample and lends its memory for reading. The bytes stay in place, even if the sample
    /// is evicted meanwhile, until [`Tier::unpin`] was called as often as this. Returns `None` if
    /// the tier has no memory to lend (a disk), does not hold the sample, or holds it in pieces.
    fn pin(&self, _sample: SampleId) -> Option<Pinned> {
        None
    }

    /// Releases a pin of [`Tier::pin`].
    fn unpin(&self, _sample: SampleId) {}

    /// Returns the memory that other processes can map to read what is pinned.
    fn shared_memory(&self) -> Option<&SharedMapping> {
        None
    }
}

/// Lets wrappers contain a tier of any kind.
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

    fn shared_memory(&self) -> Option<&SharedMapping> {
        self.as_ref().shared_memory()
    }
}

/// The bytes of a pinned sample.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// The first byte.
    pub start: *const u8,
    /// The number of bytes.
    pub length: usize,
    /// The offset of the first byte in [`Tier::shared_memory`], if the tier has any.
    pub offset: Option<usize>,
}

// SAFETY: the bytes do not change while they are pinned.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use belady_base::sync::{Mutex, lock};

    /// Records its calls, and returns what no default method returns.
    #[derive(Debug, Default)]
    struct CallLog(Mutex<Vec<(&'static str, u64)>>);

    impl CallLog {
        fn note(&self, call: &'static str, about: impl Into<u64>) {
            lock(&self.0).push((call, about.into()));
        }
    }

    const LENT: &[u8] = b"lent";

    impl Tier for CallLog {
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
            Some(Pinned { start: LENT.as_ptr(), length: LENT.len(), offset: None })
        }

        fn unpin(&self, sample: SampleId) {
            self.note("unpin", sample);
        }
    }

    #[test]
    fn a_shared_tier_forwards_every_call() {
        let log = Arc::new(CallLog::default());
        let shared: Arc<dyn Tier> = log.clone();
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
        assert_eq!(*lock(&log.0), calls.collect::<Vec<_>>());
    }

    /// A tier with the default methods.
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
    fn default_methods_follow_from_the_required_ones() {
        assert_eq!([1, 2].map(|sample| Plain.evict_now(sample)), [Evicted::Gone, Evicted::NotHeld]);
        assert_eq!([1, 2].map(|sample| Plain.is_current(sample)), [true, false]);
        assert!(Plain.pin(1).is_none());
        assert_eq!(Plain.footprint(3), 3);
    }
}
