//! A tier with injected faults, for tests and benchmarks.
//!
//! A seed and the number of the call decide which call fails. The caller sees a fault as in
//! production: a sample that is missed or damaged is no longer held afterwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belady_base::SampleId;
use belady_base::shared_memory::SharedMapping;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Evicted, Get, Pinned, Put, Tier, TierStatus};

/// The share of calls that fail, by kind, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TierFaults {
    /// Puts that find no space.
    pub full: f64,
    /// Puts that are refused.
    pub refused: f64,
    /// Gets of a sample that has vanished.
    pub miss: f64,
    /// Gets of a sample that fails its checksum.
    pub damaged: f64,
    /// Puts that hang.
    pub hung_put: f64,
    /// Gets that hang.
    pub hung_get: f64,
    /// How long a call hangs.
    pub hang: Duration,
}

/// How many calls failed, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierFaultCounts {
    /// Puts that found no space.
    pub full: u64,
    /// Puts that were refused.
    pub refused: u64,
    /// Gets of a sample that vanished.
    pub miss: u64,
    /// Gets of a damaged sample.
    pub damaged: u64,
    /// Calls that hung.
    pub hung: u64,
}

/// Wraps a tier with faults.
#[derive(Debug)]
pub struct FaultyTier<T> {
    inner: T,
    faults: TierFaults,
    seed: u64,
    calls: AtomicU64,
    full: AtomicU64,
    refused: AtomicU64,
    miss: AtomicU64,
    damaged: AtomicU64,
    hung: AtomicU64,
}

impl<T: Tier> FaultyTier<T> {
    /// Wraps a tier.
    pub fn new(inner: T, faults: TierFaults, seed: u64) -> Self {
        Self {
            inner,
            faults,
            seed,
            calls: AtomicU64::new(0),
            full: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            miss: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            hung: AtomicU64::new(0),
        }
    }

    /// Returns the faults so far.
    pub fn counts(&self) -> TierFaultCounts {
        TierFaultCounts {
            full: self.full.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            miss: self.miss.load(Ordering::Relaxed),
            damaged: self.damaged.load(Ordering::Relaxed),
            hung: self.hung.load(Ordering::Relaxed),
        }
    }

    /// Hangs for the given share of calls, then returns normally.
    fn hang(&self, share: f64) {
        if share > 0.0 && self.draw() < share {
            count(&self.hung);
            std::thread::sleep(self.faults.hang);
        }
    }

    /// Returns a number in [0, 1) for the next call.
    fn draw(&self) -> f64 {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let bits = xxh3_64_with_seed(&call.to_le_bytes(), self.seed);
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<T: Tier> Tier for FaultyTier<T> {
    fn put(&self, sample: SampleId, bytes: &[u8], version: i64) -> Put {
        self.hang(self.faults.hung_put);
        let draw = self.draw();
        if draw < self.faults.full {
            count(&self.full);
            return Put::Full;
        }
        if draw < self.faults.full + self.faults.refused {
            count(&self.refused);
            return Put::Refused;
        }
        self.inner.put(sample, bytes, version)
    }

    fn get(&self, sample: SampleId, into: &mut [u8]) -> Get {
        self.hang(self.faults.hung_get);
        let draw = self.draw();
        if draw < self.faults.miss + self.faults.damaged && self.inner.evict(sample) {
            // The memory of a failed get may hold anything.
            into.fill(0xFA);
            if draw < self.faults.miss {
                count(&self.miss);
                return Get::Miss;
            }
            count(&self.damaged);
            return Get::Damaged;
        }
        self.inner.get(sample, into)
    }

    fn evict(&self, sample: SampleId) -> bool {
        self.inner.evict(sample)
    }

    fn evict_now(&self, sample: SampleId) -> Evicted {
        self.inner.evict_now(sample)
    }

    fn holds(&self, sample: SampleId) -> bool {
        self.inner.holds(sample)
    }

    fn is_current(&self, sample: SampleId) -> bool {
        self.inner.is_current(sample)
    }

    fn footprint(&self, size: u64) -> u64 {
        self.inner.footprint(size)
    }

    fn status(&self) -> TierStatus {
        self.inner.status()
    }

    fn pin(&self, sample: SampleId) -> Option<Pinned> {
        self.inner.pin(sample)
    }

    fn unpin(&self, sample: SampleId) {
        self.inner.unpin(sample);
    }

    fn shared_memory(&self) -> Option<&SharedMapping> {
        self.inner.shared_memory()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use belady_control::Sizes;
    use belady_control::model::Bytes;

    use super::*;
    use crate::tier::RamTier;

    const FAULTS: TierFaults = TierFaults {
        full: 0.1,
        refused: 0.2,
        miss: 0.1,
        damaged: 0.2,
        hung_put: 0.0,
        hung_get: 0.0,
        hang: Duration::ZERO,
    };

    /// Returns the outcomes of repeated puts and gets of ten samples.
    fn outcomes(seed: u64) -> (Vec<(Put, Get)>, TierFaultCounts) {
        let sizes = Arc::new(Sizes::Equal { bytes: 8, samples: 10 });
        let tier = FaultyTier::new(RamTier::new(Bytes(1_000), sizes), FAULTS, seed);
        let outcomes = (0..2_000_u32)
            .map(|round| {
                let sample = round % 10;
                let mut into = [0; 8];
                let put = tier.put(sample, &[sample as u8; 8], 0);
                let held = tier.holds(sample);
                let got = tier.get(sample, &mut into);
                match got {
                    Get::Hit => assert_eq!(into, [sample as u8; 8]),
                    _ => assert!(!tier.holds(sample), "what failed is gone"),
                }
                assert!(held || got == Get::Miss);
                (put, got)
            })
            .collect();
        (outcomes, tier.counts())
    }

    #[test]
    fn the_seed_decides_which_share_of_calls_fails() {
        let (first, counts) = outcomes(1);
        assert_eq!(first, outcomes(1).0);
        assert_ne!(first, outcomes(2).0);
        let count = |wanted: Put| first.iter().filter(|(put, _)| *put == wanted).count() as u64;
        assert_eq!((count(Put::Full), count(Put::Refused)), (counts.full, counts.refused));
        assert!((150..250).contains(&counts.full) && (330..470).contains(&counts.refused));
        let damaged = first.iter().filter(|(_, got)| *got == Get::Damaged).count() as u64;
        assert_eq!(damaged, counts.damaged);
        assert!(counts.miss > 100 && counts.damaged > counts.miss);
    }

    #[test]
    fn a_call_that_hangs_succeeds_in_the_end() {
        let sizes = Arc::new(Sizes::Equal { bytes: 8, samples: 10 });
        let hang = Duration::from_millis(1);
        let faults = TierFaults { hung_put: 1.0, hung_get: 1.0, hang, ..TierFaults::default() };
        let tier = FaultyTier::new(RamTier::new(Bytes(1_000), sizes), faults, 1);
        let mut into = [0; 8];
        assert_eq!((tier.put(3, &[7; 8], 0), tier.get(3, &mut into)), (Put::Stored, Get::Hit));
        assert_eq!((into, tier.counts().hung), ([7; 8], 2));
    }
}
