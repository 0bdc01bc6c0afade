//! How fast the source and the tiers have been lately, by one thread: what the model said at
//! first, corrected by what was measured; and which disks are passed over because of it.
//!
//! A disk that is passed over is tried with a few of its reads all the same, so that one which
//! has recovered is used again. It is passed over from a larger difference on than it is taken
//! back at, so that rates which waver do not change the choice with every read.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use belady_control::model::{Rate, System};
use belady_control::policy::TierId;

/// A disk is passed over when the source is this many times faster: reading the source costs
/// others something, too. Memory never is: what looks slow there is the machine being busy.
const CLEARLY: f64 = 2.0;
/// And used again when the source is less than this many times faster.
const HARDLY: f64 = 1.4;
/// One in so many reads of a disk that is passed over goes there: at a tenth of the source's
/// speed that takes a quarter more time in all.
const TRIAL: u32 = 32;
/// Measured time after which the older half of what was measured is forgotten.
const MEMORY: u64 = 10_000_000_000;
/// Nothing is concluded from less than this.
const ENOUGH: u64 = 50_000_000;

#[derive(Debug)]
struct Place {
    modelled: Rate,
    /// May be passed over.
    disk: bool,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
    passed_over: AtomicBool,
    /// Reads since it is.
    turned_away: AtomicU32,
}

/// Index 0 is the source, then the tiers.
#[derive(Debug)]
pub struct Rates {
    places: Vec<Place>,
}

impl Rates {
    /// `disks` says of each tier whether it is one.
    pub fn new(system: &System, disks: &[bool]) -> Self {
        let mut places = vec![Place::new(system.source.throughput.at(1), false)];
        let tiers = system.tiers.iter().skip(1).zip(disks);
        places.extend(tiers.map(|(tier, &disk)| Place::new(tier.read_rate_per_thread(), disk)));
        Self { places }
    }

    pub fn source(&self, bytes: u64, took: Duration) {
        self.places[0].measured(bytes, took);
    }

    pub fn tier(&self, tier: TierId, bytes: u64, took: Duration) {
        if let Some(place) = self.places.get(usize::from(tier)) {
            place.measured(bytes, took);
        }
    }

    /// Whether a sample in that tier should rather be read from the source, this time.
    pub fn source_is_better_than(&self, tier: TierId) -> bool {
        let place = self.places.get(usize::from(tier)).filter(|place| place.disk);
        place.is_some_and(|place| place.is_turned_away(self.places[0].rate()))
    }
}

impl Place {
    fn new(modelled: Rate, disk: bool) -> Self {
        Self {
            modelled,
            disk,
            bytes: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            passed_over: AtomicBool::new(false),
            turned_away: AtomicU32::new(0),
        }
    }

    fn measured(&self, bytes: u64, took: Duration) {
        let took = took.as_nanos() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.nanoseconds.fetch_add(took, Ordering::Relaxed) + took > MEMORY {
            // Two threads may both halve: the quotient stays the same.
            self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |b| Some(b / 2)).ok();
            self.nanoseconds
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n / 2))
                .ok();
        }
    }

    fn rate(&self) -> f64 {
        let nanoseconds = self.nanoseconds.load(Ordering::Relaxed);
        if nanoseconds < ENOUGH {
            return self.modelled.0;
        }
        self.bytes.load(Ordering::Relaxed) as f64 / (nanoseconds as f64 * 1e-9)
    }

    /// Whether this read goes to a source of that rate instead.
    fn is_turned_away(&self, source: f64) -> bool {
        let rate = self.rate();
        let was_passed_over = self.passed_over.load(Ordering::Relaxed);
        let passed_over = source > rate * if was_passed_over { HARDLY } else { CLEARLY };
        if passed_over != was_passed_over {
            self.passed_over.store(passed_over, Ordering::Relaxed);
        }
        if passed_over && !was_passed_over {
            self.keep_only_the_rate(rate);
        }
        passed_over
            && !self
                .turned_away
                .fetch_add(1, Ordering::Relaxed)
                .wrapping_add(1)
                .is_multiple_of(TRIAL)
    }

    /// Lets what was measured weigh no more than it must, so that a few trials can change it.
    /// What others measure at this moment may be lost.
    fn keep_only_the_rate(&self, rate: f64) {
        self.bytes.store((rate * ENOUGH as f64 * 1e-9) as u64, Ordering::Relaxed);
        self.nanoseconds.store(ENOUGH, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::default_system;
    use belady_control::model::Bytes;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Of a RAM and a disk tier, after this many bytes a second from disk and source.
    fn measured(disk: u64, source: u64) -> Rates {
        let tiers = [("ram".into(), Bytes(1 << 20)), ("disk".into(), Bytes(1 << 30))];
        let rates = Rates::new(&default_system(Bytes(1 << 20), 4, &tiers), &[false, true]);
        assert!(!rates.source_is_better_than(2), "nothing is known yet");
        rates.tier(2, disk, SECOND);
        rates.source(source, SECOND);
        rates
    }

    /// How many of so many reads go to the disk.
    fn to_disk(rates: &Rates, reads: u32) -> usize {
        (0..reads).filter(|_| !rates.source_is_better_than(2)).count()
    }

    #[test]
    fn a_disk_slower_than_the_source_is_passed_over_once_that_was_measured() {
        let rates = measured(1 << 20, 10 << 20);
        rates.tier(1, 1 << 20, SECOND);
        assert!(rates.source_is_better_than(2) && !rates.source_is_better_than(1));
    }

    #[test]
    fn a_disk_that_is_passed_over_gets_a_small_share_of_its_reads() {
        let rates = measured(1 << 20, 10 << 20);
        assert_eq!(to_disk(&rates, 320), 10);
    }

    #[test]
    fn a_disk_that_was_passed_over_for_ever_is_used_again_when_it_has_recovered() {
        let rates = measured(1 << 20, 10 << 20);
        for _ in 0..60 {
            rates.tier(2, 1 << 20, SECOND); // It has been slow for a minute.
        }
        assert!(rates.source_is_better_than(2));
        // Reads of 1 MiB in 10 ms each, when it is asked at all.
        let mut reads = 0;
        while to_disk(&rates, 2) < 2 {
            reads += 1;
            assert!(reads < 32 * 32, "a few trials are enough");
            if !rates.source_is_better_than(2) {
                rates.tier(2, 1 << 20, Duration::from_millis(10));
            }
        }
        assert_eq!(to_disk(&rates, 100), 100);
    }

    #[test]
    fn rates_that_waver_do_not_change_the_choice() {
        let rates = measured(10 << 20, 17 << 20);
        assert_eq!(to_disk(&rates, 100), 100, "not clearly slower");
        let rates = measured(10 << 20, 21 << 20);
        assert_eq!(to_disk(&rates, 320), 10);
        rates.source(13 << 20, SECOND);
        assert_eq!(to_disk(&rates, 320), 10, "1.7 times faster is not enough to change back");
        rates.source(5 << 20, SECOND);
        assert_eq!(to_disk(&rates, 320), 320);
    }

    proptest! {
        /// The naive judge: all measurements in a list, none forgotten.
        #[test]
        fn the_choice_follows_from_the_measured_rates(
            disk in 1u64..1000, source in 1u64..1000, more in proptest::collection::vec(1u64..1000, 0..6),
        ) {
            let rates = measured(disk << 20, source << 20);
            let mut all = vec![source];
            let mut passed_over = source > 2 * disk;
            prop_assert_eq!(rates.source_is_better_than(2), passed_over);
            for rate in more {
                rates.source(rate << 20, SECOND);
                all.push(rate);
                let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
                let limit = if passed_over { HARDLY } else { CLEARLY };
                // Too close to call, for rounded bytes.
                prop_assume!((mean / disk as f64 / limit - 1.0).abs() > 1e-4);
                passed_over = mean > disk as f64 * limit;
                prop_assert_eq!(rates.source_is_better_than(2), passed_over);
            }
        }
    }
}
