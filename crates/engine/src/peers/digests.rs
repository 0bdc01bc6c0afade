//! What the bytes of samples add up to, as they were when they came from the source.

use std::sync::atomic::{AtomicU32, Ordering};

use belady_data::SampleId;
use belady_data::source::Version;
use belady_data::sparse::Sparse;
use belady_peer::digest;

/// Half a digest for each sample, 0 if it is not known: one in four thousand million wrong samples
/// would pass.
#[derive(Debug)]
pub struct Digests {
    halves: Box<[AtomicU32]>,
    /// By sample, the version that its digest is of, where that is not the listed one.
    noticed: Sparse,
}

impl Digests {
    pub fn new(samples: u32) -> Self {
        let halves = (0..samples).map(|_| AtomicU32::new(0)).collect();
        Self { halves, noticed: Sparse::new(samples) }
    }

    /// That of a sample whose bytes, of this version of its file, are at hand.
    pub fn of(&self, sample: SampleId, version: Version, bytes: &[u8]) -> u64 {
        let known = self.known(sample, version);
        if known != 0 {
            return known.into();
        }
        let found = half(digest(bytes));
        self.remember(sample, version, found);
        found.into()
    }

    /// Whether bytes that came from elsewhere are the right ones. Where the digest is not known, that
    /// of the sender counts.
    pub fn check(&self, sample: SampleId, version: Version, bytes: &[u8], theirs: u64) -> bool {
        let found = half(digest(bytes));
        let known = self.known(sample, version);
        let right = u64::from(found) == theirs && (known == 0 || known == found);
        if right && known == 0 {
            self.remember(sample, version, found);
        }
        right
    }

    /// The sample came from the source anew: what was known of it may have been wrong.
    pub fn forget(&self, sample: SampleId) {
        self.halves[sample as usize].store(0, Ordering::Relaxed);
    }

    fn known(&self, sample: SampleId, version: Version) -> u32 {
        if version.noticed && self.noticed.get(sample) != Some(version.changed) {
            return 0;
        }
        self.halves[sample as usize].load(Ordering::Relaxed)
    }

    fn remember(&self, sample: SampleId, version: Version, half: u32) {
        self.halves[sample as usize].store(half, Ordering::Relaxed);
        if version.noticed {
            self.noticed.set(sample, version.changed);
        }
    }
}

fn half(digest: u64) -> u32 {
    ((digest as u32) ^ (digest >> 32) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: Version = Version { changed: 1, noticed: false };

    #[test]
    fn wrong_bytes_are_found_whoever_sent_them() {
        let digests = Digests::new(3);
        let sent = Digests::new(3).of(1, LISTED, b"right");
        assert!(digests.check(1, LISTED, b"right", sent));
        assert!(!digests.check(1, LISTED, b"wrong", sent));
        let lie = Digests::new(3).of(1, LISTED, b"wrong");
        assert!(!digests.check(1, LISTED, b"wrong", lie), "it is known what it should be");
        assert_eq!(digests.of(1, LISTED, b"whatever"), sent);
        digests.forget(1);
        assert!(digests.check(1, LISTED, b"wrong", lie), "there is nothing to compare it with");
    }

    #[test]
    fn a_new_version_of_a_sample_is_not_taken_for_a_damaged_one() {
        let (digests, others) = (Digests::new(3), Digests::new(3));
        assert!(digests.check(1, LISTED, b"old", others.of(1, LISTED, b"old")));
        for changed in [2, 3] {
            let new = Version { changed, noticed: true };
            let bytes = [changed as u8; 9];
            let sent = others.of(1, new, &bytes);
            assert!(digests.check(1, new, &bytes, sent));
            assert!(!digests.check(1, new, b"wrong", sent));
            assert!(!digests.check(1, new, b"wrong", half(digest(b"wrong")).into()), "it is known");
        }
    }
}
