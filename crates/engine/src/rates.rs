//! How fast the source and the tiers have been lately, by one thread: what the model said at
//! first, corrected by what was measured.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belady_control::model::{Rate, System};
use belady_control::policy::TierId;

/// A disk is passed over when the source is this many times faster: reading the source costs
/// others something, too. Memory never is: what looks slow there is the machine being busy.
const CLEARLY: f64 = 2.0;
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
}

/// Index 0 is the source, then the tiers.
#[derive(Debug)]
pub struct Rates {
    places: Vec<Place>,
}

impl Rates {
    /// `disks` says of each tier whether it is one.
    pub fn new(system: &System, disks: &[bool]) -> Self {
        let place = |modelled, disk| Place {
            modelled,
            disk,
            bytes: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        };
        let mut places = vec![place(system.source.throughput.at(1), false)];
        let tiers = system.tiers.iter().skip(1).zip(disks);
        places.extend(tiers.map(|(tier, &disk)| place(tier.read_rate_per_thread(), disk)));
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

    /// Whether a sample in that tier should rather be read from the source.
    pub fn source_is_better_than(&self, tier: TierId) -> bool {
        self.places
            .get(usize::from(tier))
            .is_some_and(|place| place.disk && self.places[0].rate() > place.rate() * CLEARLY)
    }
}

impl Place {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::default_system;
    use belady_control::model::Bytes;

    #[test]
    fn a_disk_slower_than_the_source_is_passed_over_once_that_was_measured() {
        let tiers = [("ram".into(), Bytes(1 << 20)), ("disk".into(), Bytes(1 << 30))];
        let rates = Rates::new(&default_system(Bytes(1 << 20), 4, &tiers), &[false, true]);
        assert!(!rates.source_is_better_than(2));
        rates.tier(2, 1 << 20, Duration::from_secs(1));
        rates.tier(1, 1 << 20, Duration::from_secs(1));
        rates.source(10 << 20, Duration::from_secs(1));
        assert!(rates.source_is_better_than(2) && !rates.source_is_better_than(1));
        // Old measurements fade.
        for _ in 0..100 {
            rates.tier(2, 100 << 20, Duration::from_secs(1));
        }
        assert!(!rates.source_is_better_than(2));
    }
}
