//! The recent read rates of the source and the tiers, for one thread.
//!
//! Rates start as the model's and are replaced by measurements. A disk that is clearly slower than
//! the source is *bypassed*. A few of its reads still go there as trials, so that a disk that has
//! recovered is found. The threshold to bypass a disk is larger than the one to use it again, so
//! that rates that fluctuate do not change the choice with every read.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use belady_control::model::{Rate, System, TierModel};
use belady_control::policy::TierId;

/// A disk is bypassed when the source is this many times faster, since reading a shared source
/// costs other clients too. Memory is never bypassed: it looks slow only when the machine is busy.
const CLEARLY: f64 = 2.0;
/// A bypassed disk is used again when the source is less than this many times faster.
const HARDLY: f64 = 1.4;
/// One in this many reads of a bypassed disk is a trial: at a tenth of the source's speed, trials
/// take a quarter more time in all.
const TRIAL: u32 = 32;
/// Measured nanoseconds after which the older half of the measurements is forgotten.
const MEMORY: u64 = 10_000_000_000;
/// Nanoseconds of measurements below which the modelled rate counts.
const ENOUGH: u64 = 50_000_000;
/// What a read of the source takes beside the transfer, as long as the source is not measured. A
/// warm run never measures it, and without this every disk with small samples would look slow: it
/// reads fewer bytes a second than the modelled rate, which is that of large transfers.
const SOURCE_LATENCY: f64 = 1e-3;

#[derive(Debug)]
struct MeasuredRate {
    modelled: Rate,
    /// May be bypassed.
    disk: bool,
    bytes: AtomicU64,
    samples: AtomicU64,
    nanoseconds: AtomicU64,
    bypassed: AtomicBool,
    /// Reads while bypassed.
    reads: AtomicU32,
}

/// The measured rates of a job.
#[derive(Debug)]
pub struct JobRates {
    source: MeasuredRate,
    /// Tier j at j − 1.
    tiers: Vec<MeasuredRate>,
}

impl JobRates {
    /// `disks` says of each tier whether it is on a disk.
    pub fn new(system: &System, disks: &[bool]) -> Self {
        let tiers = system.tiers.iter().skip(1).zip(disks);
        let tier = |(tier, &disk): (&TierModel, &bool)| {
            MeasuredRate::new(tier.read_rate_per_thread(), disk)
        };
        Self {
            source: MeasuredRate::new(system.source.throughput.at(1), false),
            tiers: tiers.map(tier).collect(),
        }
    }

    /// Records a read of samples from the source.
    pub fn source(&self, samples: u64, bytes: u64, took: Duration) {
        self.source.measured(samples, bytes, took);
    }

    /// Records a read of samples from a tier.
    pub fn tier(&self, tier: TierId, samples: u64, bytes: u64, took: Duration) {
        if let Some(rate) = self.of(tier) {
            rate.measured(samples, bytes, took);
        }
    }

    /// Returns whether the source should be read this time, instead of this tier.
    pub fn source_is_better_than(&self, tier: TierId) -> bool {
        let disk = self.of(tier).filter(|rate| rate.disk);
        disk.is_some_and(|disk| disk.is_bypassed(self.source_rate(disk.mean_size())))
    }

    /// Returns the source's rate for samples of this many bytes.
    fn source_rate(&self, size: f64) -> f64 {
        let modelled = size / (SOURCE_LATENCY + size / self.source.modelled.0);
        self.source.measured_rate().unwrap_or(modelled)
    }

    fn of(&self, tier: TierId) -> Option<&MeasuredRate> {
        self.tiers.get(usize::from(tier).checked_sub(1)?)
    }
}

impl MeasuredRate {
    fn new(modelled: Rate, disk: bool) -> Self {
        Self {
            modelled,
            disk,
            bytes: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            bypassed: AtomicBool::new(false),
            reads: AtomicU32::new(0),
        }
    }

    fn measured(&self, samples: u64, bytes: u64, took: Duration) {
        let took = took.as_nanos() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.samples.fetch_add(samples, Ordering::Relaxed);
        if self.nanoseconds.fetch_add(took, Ordering::Relaxed) + took > MEMORY {
            // Two threads may both halve: the quotients stay the same.
            for sum in [&self.bytes, &self.samples, &self.nanoseconds] {
                sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| Some(sum / 2)).ok();
            }
        }
    }

    fn rate(&self) -> f64 {
        self.measured_rate().unwrap_or(self.modelled.0)
    }

    fn measured_rate(&self) -> Option<f64> {
        let nanoseconds = self.nanoseconds.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed) as f64;
        (nanoseconds >= ENOUGH).then(|| bytes / (nanoseconds as f64 * 1e-9))
    }

    /// Returns the mean size of the samples read, or 0 before the first.
    fn mean_size(&self) -> f64 {
        let samples = self.samples.load(Ordering::Relaxed).max(1);
        self.bytes.load(Ordering::Relaxed) as f64 / samples as f64
    }

    /// Returns whether this read goes to a source of that rate instead.
    fn is_bypassed(&self, source: f64) -> bool {
        let rate = self.rate();
        let was_bypassed = self.bypassed.load(Ordering::Relaxed);
        let bypassed = source > rate * if was_bypassed { HARDLY } else { CLEARLY };
        if bypassed != was_bypassed {
            self.bypassed.store(bypassed, Ordering::Relaxed);
        }
        if bypassed && !was_bypassed {
            self.keep_only_the_rate(rate);
        }
        let is_trial =
            || (self.reads.fetch_add(1, Ordering::Relaxed).wrapping_add(1)).is_multiple_of(TRIAL);
        bypassed && !is_trial()
    }

    /// Reduces the weight of past measurements to the minimum, so that a few trials can change the
    /// rate. Concurrent measurements may be lost.
    fn keep_only_the_rate(&self, rate: f64) {
        let bytes = rate * ENOUGH as f64 * 1e-9;
        let samples = bytes / self.mean_size().max(1.0);
        self.bytes.store(bytes as u64, Ordering::Relaxed);
        self.samples.store(samples.max(1.0) as u64, Ordering::Relaxed);
        self.nanoseconds.store(ENOUGH, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::system::default_system;
    use belady_control::model::Bytes;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the rates of a RAM and a disk tier after this many bytes a second from disk and
    /// source.
    fn measured(disk: u64, source: u64) -> JobRates {
        let tiers = [("ram".into(), Bytes(1 << 20)), ("disk".into(), Bytes(1 << 30))];
        let rates = JobRates::new(&default_system(Bytes(1 << 20), 4, &tiers), &[false, true]);
        assert!(!rates.source_is_better_than(2), "nothing is known yet");
        rates.tier(2, 1, disk, SECOND);
        rates.source(1, source, SECOND);
        rates
    }

    /// Counts how many of so many reads go to the disk.
    fn to_disk(rates: &JobRates, reads: u32) -> usize {
        (0..reads).filter(|_| !rates.source_is_better_than(2)).count()
    }

    #[test]
    fn a_disk_measured_slower_than_the_source_is_bypassed() {
        let rates = measured(1 << 20, 10 << 20);
        rates.tier(1, 1, 1 << 20, SECOND);
        assert!(rates.source_is_better_than(2) && !rates.source_is_better_than(1));
    }

    #[test]
    fn a_disk_of_small_samples_is_not_slower_than_a_source_that_was_never_read() {
        let tiers = [("disk".into(), Bytes(1 << 30))];
        let rates = JobRates::new(&default_system(Bytes(1 << 20), 4, &tiers), &[true]);
        // 3 MB/s, where the modelled source gives 100, but only in large reads.
        rates.tier(1, 50_000, 50_000 * 64, SECOND);
        assert!(!rates.source_is_better_than(1));
        // 10 ms a sample is more than a read of any source should take.
        rates.tier(1, 900, 900 * 64, 9 * SECOND);
        assert!(!rates.source_is_better_than(1), "0.2 ms in the mean");
        for _ in 0..20 {
            rates.tier(1, 900, 900 * 64, 9 * SECOND);
        }
        assert!(rates.source_is_better_than(1));
    }

    #[test]
    fn a_bypassed_disk_gets_a_small_share_of_its_reads() {
        let rates = measured(1 << 20, 10 << 20);
        assert_eq!(to_disk(&rates, 320), 10);
    }

    #[test]
    fn a_disk_that_has_recovered_is_used_again() {
        let rates = measured(1 << 20, 10 << 20);
        for _ in 0..60 {
            rates.tier(2, 1, 1 << 20, SECOND); // It has been slow for a minute.
        }
        assert!(rates.source_is_better_than(2));
        // Reads of 1 MiB in 10 ms each, when it is asked at all.
        let mut reads = 0;
        while to_disk(&rates, 2) < 2 {
            reads += 1;
            assert!(reads < 32 * 32, "a few trials are enough");
            if !rates.source_is_better_than(2) {
                rates.tier(2, 1, 1 << 20, Duration::from_millis(10));
            }
        }
        assert_eq!(to_disk(&rates, 100), 100);
    }

    #[test]
    fn rates_that_fluctuate_do_not_change_the_choice() {
        let rates = measured(10 << 20, 17 << 20);
        assert_eq!(to_disk(&rates, 100), 100, "not clearly slower");
        let rates = measured(10 << 20, 21 << 20);
        assert_eq!(to_disk(&rates, 320), 10);
        rates.source(1, 13 << 20, SECOND);
        assert_eq!(to_disk(&rates, 320), 10, "1.7 times faster is not enough to change back");
        rates.source(1, 5 << 20, SECOND);
        assert_eq!(to_disk(&rates, 320), 320);
    }

    proptest! {
        /// The reference: all measurements in a list, none forgotten.
        #[test]
        fn the_choice_follows_from_the_measured_rates(
            disk in 1u64..1000, source in 1u64..1000, more in proptest::collection::vec(1u64..1000, 0..6),
        ) {
            let rates = measured(disk << 20, source << 20);
            let mut all = vec![source];
            let mut bypassed = source > 2 * disk;
            prop_assert_eq!(rates.source_is_better_than(2), bypassed);
            for rate in more {
                rates.source(1, rate << 20, SECOND);
                all.push(rate);
                let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
                let limit = if bypassed { HARDLY } else { CLEARLY };
                // Too close to call, for rounded bytes.
                prop_assume!((mean / disk as f64 / limit - 1.0).abs() > 1e-4);
                bypassed = mean > disk as f64 * limit;
                prop_assert_eq!(rates.source_is_better_than(2), bypassed);
            }
        }
    }
}
