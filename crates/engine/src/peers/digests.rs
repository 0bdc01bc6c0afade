//! Digests of samples, as their bytes were when they came from the source.

use std::sync::atomic::{AtomicU32, Ordering};

use belady_base::SampleId;
use belady_data::source::Version;
use belady_data::sparse_table::SparseTable;
use belady_peer::digest;

/// Half a digest for each sample, 0 if it is not known. One in 2³² wrong samples would pass.
#[derive(Debug)]
pub struct Digests {
    halves: Box<[AtomicU32]>,
    /// By sample, the version of its digest, where that is not the listed one.
    noticed: SparseTable,
}

impl Digests {
    pub fn new(samples: u32) -> Self {
        let halves = (0..samples).map(|_| AtomicU32::new(0)).collect();
        Self { halves, noticed: SparseTable::new(samples) }
    }

    /// Returns the digest of a sample, given its bytes of this version of its file.
    pub fn of(&self, sample: SampleId, version: Version, bytes: &[u8]) -> u64 {
        let known = self.known(sample, version);
        if known != 0 {
            return known.into();
        }
        let found = half(digest(bytes));
        self.remember(sample, version, found);
        found.into()
    }

    /// Returns whether bytes from another node are right. If the digest is not known, the sender's
    /// counts.
    pub fn check(&self, sample: SampleId, version: Version, bytes: &[u8], theirs: u64) -> bool {
        let found = half(digest(bytes));
        let known = self.known(sample, version);
        let right = u64::from(found) == theirs && (known == 0 || known == found);
        if right && known == 0 {
            self.remember(sample, version, found);
        }
        right
    }

    /// Forgets the digest of a sample that was read from the source again.
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
    fn wrong_bytes_are_found_whichever_node_sent_them() {
        let digests = Digests::new(3);
        let sent = Digests::new(3).of(1, LISTED, b"right");
        assert!(digests.check(1, LISTED, b"right", sent));
        assert!(!digests.check(1, LISTED, b"wrong", sent));
        let lie = Digests::new(3).of(1, LISTED, b"wrong");
        assert!(!digests.check(1, LISTED, b"wrong", lie), "the digest is known");
        assert_eq!(digests.of(1, LISTED, b"ignored"), sent);
        digests.forget(1);
        assert!(digests.check(1, LISTED, b"wrong", lie), "the digest is not known");
    }

    #[test]
    fn a_new_version_of_a_sample_does_not_count_as_damaged() {
        let (digests, others) = (Digests::new(3), Digests::new(3));
        assert!(digests.check(1, LISTED, b"old", others.of(1, LISTED, b"old")));
        for changed in [2, 3] {
            let new = Version { changed, noticed: true };
            let bytes = [changed as u8; 9];
            let sent = others.of(1, new, &bytes);
            assert!(digests.check(1, new, &bytes, sent));
            assert!(!digests.check(1, new, b"wrong", sent));
            assert!(
                !digests.check(1, new, b"wrong", half(digest(b"wrong")).into()),
                "the digest is known"
            );
        }
    }
}
