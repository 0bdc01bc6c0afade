//! A source as slow as a shared file system.
//!
//! A read request first waits for the latency, then joins the readers of one shared [`Link`] that
//! carries t(γ) bytes a second for γ readers together, in equal shares. Meanwhile the wrapped
//! source reads the bytes, and the request returns when the link has carried them. Jitter changes a
//! request's latency and bytes by up to its share.

mod link;
mod spec;

use std::time::{Duration, Instant};

use belady_base::sync::atomic::{AtomicU64, Ordering};
use belady_base::sync::{Condvar, Mutex, lock};
use belady_control::model::Seconds;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::link::{Link, LinkTicket};
pub use self::spec::{ThrottleError, ThrottleSpec};
use super::{Catalog, Operations, ReadError, Source, Want};

/// A source behind a shared link.
#[derive(Debug)]
pub struct Throttled<S> {
    source: S,
    latency: Seconds,
    jitter: f64,
    seed: u64,
    requests: AtomicU64,
    start: Instant,
    link: Mutex<Link>,
    /// Notified when a waiting reader may be done sooner than computed.
    sooner: Condvar,
}

impl<S: Source> Throttled<S> {
    /// Wraps a source; `seed` decides the jitter of each request.
    pub fn new(source: S, spec: ThrottleSpec, seed: u64) -> Self {
        Self {
            source,
            latency: spec.latency,
            jitter: spec.jitter,
            seed,
            requests: AtomicU64::new(0),
            start: Instant::now(),
            link: Mutex::new(Link::new(spec.bandwidth)),
            sooner: Condvar::new(),
        }
    }

    /// Returns the wrapped source.
    pub fn source(&self) -> &S {
        &self.source
    }

    fn now(&self) -> Seconds {
        Seconds(self.start.elapsed().as_secs_f64())
    }

    /// Returns the factor of the next request's latency and bytes.
    fn next_factor(&self) -> f64 {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let draw = xxh3_64_with_seed(&request.to_le_bytes(), self.seed);
        // In [-1, 1).
        let uniform = draw as f64 / 2f64.powi(63) - 1.0;
        1.0 + self.jitter * uniform
    }

    fn join(&self, bytes: f64) -> LinkReader<'_, S> {
        let mut link = lock(&self.link);
        let ticket = link.join(self.now(), bytes);
        if link.joining_may_speed_up() {
            self.sooner.notify_all();
        }
        LinkReader { throttled: self, ticket }
    }
}

/// A request on the link. It leaves the link when it is dropped.
struct LinkReader<'a, S: Source> {
    throttled: &'a Throttled<S>,
    ticket: LinkTicket,
}

impl<S: Source> LinkReader<'_, S> {
    fn wait(&self) {
        let Throttled { link, sooner, .. } = self.throttled;
        let mut link = lock(link);
        loop {
            let now = self.throttled.now();
            link.advance(now);
            if link.is_done(self.ticket) {
                return;
            }
            let rest = duration(link.end(self.ticket) - now);
            let waited = sooner.wait_timeout(link, rest);
            link = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

impl<S: Source> Drop for LinkReader<'_, S> {
    fn drop(&mut self) {
        let left_early = lock(&self.throttled.link).leave(self.throttled.now(), self.ticket);
        if left_early {
            self.throttled.sooner.notify_all();
        }
    }
}

impl<S: Source> Source for Throttled<S> {
    fn catalog(&self) -> &Catalog {
        self.source.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let factor = self.next_factor();
        let bytes: f64 = wants.iter().map(|want| want.into.len() as f64).sum();
        std::thread::sleep(duration(self.latency * factor));
        let reader = self.join(bytes * factor);
        self.source.read(wants)?;
        reader.wait();
        Ok(())
    }

    fn operations(&self) -> Operations {
        self.source.operations()
    }

    super::forward_versions!(self, self.source);
}

/// Converts a time to the nearest representable duration.
fn duration(time: Seconds) -> Duration {
    Duration::try_from_secs_f64(time.0.max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::Synthetic;
    use super::*;

    fn factors(jitter: &str, seed: u64) -> Vec<f64> {
        let spec = format!("1:1GB/s,jitter:{jitter}").parse().expect("a proper throttle");
        let throttled = Throttled::new(Synthetic::of_sizes([], 0), spec, seed);
        (0..1000).map(|_| throttled.next_factor()).collect()
    }

    #[test]
    fn jitter_moves_requests_both_ways_and_not_beyond_its_share() {
        let some = factors("20%", 1);
        assert!(some.iter().all(|factor| (0.8..1.2).contains(factor)));
        assert!(some.iter().any(|&factor| factor < 0.82));
        assert!(some.iter().any(|&factor| factor > 1.18));
        // The mean of a thousand uniform draws is within four standard deviations of 1.
        let mean = some.iter().sum::<f64>() / 1000.0;
        assert!((mean - 1.0).abs() < 4.0 * 0.4 / 12f64.sqrt() / 1000f64.sqrt(), "{mean}");
        assert!(factors("0%", 1).iter().all(|&factor| factor == 1.0));
    }

    #[test]
    fn jitter_follows_from_the_seed() {
        assert_eq!(factors("10%", 1), factors("10%", 1));
        assert_ne!(factors("10%", 1), factors("10%", 2));
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        assert_eq!(duration(Seconds(f64::INFINITY)), Duration::MAX);
        assert_eq!(duration(Seconds(-1.0)), Duration::ZERO);
    }
}
