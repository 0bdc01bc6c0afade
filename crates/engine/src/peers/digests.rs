//! What the bytes of samples add up to, as they were when they came from the source.

use std::sync::atomic::{AtomicU32, Ordering};

use belady_data::SampleId;
use belady_peer::digest;

/// Half a digest for each sample, 0 if it is not known: one in four thousand million wrong samples
/// would pass.
#[derive(Debug)]
pub struct Digests(Box<[AtomicU32]>);

impl Digests {
    pub fn new(samples: u32) -> Self {
        Self((0..samples).map(|_| AtomicU32::new(0)).collect())
    }

    /// That of a sample whose bytes are at hand.
    pub fn of(&self, sample: SampleId, bytes: &[u8]) -> u64 {
        let known = self.0[sample as usize].load(Ordering::Relaxed);
        if known != 0 {
            return known.into();
        }
        let found = half(digest(bytes));
        self.0[sample as usize].store(found, Ordering::Relaxed);
        found.into()
    }

    /// Whether bytes that came from elsewhere are the right ones. Where the digest is not known, that
    /// of the sender counts.
    pub fn check(&self, sample: SampleId, bytes: &[u8], theirs: u64) -> bool {
        let found = half(digest(bytes));
        let place = &self.0[sample as usize];
        let known = place.load(Ordering::Relaxed);
        let right = u64::from(found) == theirs && (known == 0 || known == found);
        if right && known == 0 {
            place.store(found, Ordering::Relaxed);
        }
        right
    }

    /// The sample came from the source anew: what was known of it may have been wrong.
    pub fn forget(&self, sample: SampleId) {
        self.0[sample as usize].store(0, Ordering::Relaxed);
    }
}

fn half(digest: u64) -> u32 {
    ((digest as u32) ^ (digest >> 32) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_bytes_are_found_whoever_sent_them() {
        let digests = Digests::new(3);
        let sent = Digests::new(3).of(1, b"right");
        assert!(digests.check(1, b"right", sent));
        assert!(!digests.check(1, b"wrong", sent));
        let lie = Digests::new(3).of(1, b"wrong");
        assert!(!digests.check(1, b"wrong", lie), "it is known what it should be");
        assert_eq!(digests.of(1, b"whatever"), sent);
        digests.forget(1);
        assert!(digests.check(1, b"wrong", lie), "nobody knows better");
    }
}
