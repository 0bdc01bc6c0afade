//! One word per sample: whether the RAM tier holds it, where, and its number of pins.
//!
//! ```text
//!             claim            publish                 evict (no pins)
//!   absent ----------> writing --------> present -------------------> evicted -- clear --> absent
//!                                        |    ^                          ^
//!                                    pin |    | unpin    evict (pinned)  | the last unpin
//!                                        v    |                          |
//!                                        pinned -------------------> evicted, pinned
//! ```
//!
//! A reader pins and unpins by one compare-and-swap on the sample's word, without a lock. The
//! thread that brings a word into the state "evicted without pins" (the evictor or the last reader)
//! owns it: no other thread changes the word until it is cleared, so the memory is freed once.

use belady_base::SampleId;
use belady_base::sync::atomic::{AtomicU64, Ordering};

const PRESENT: u64 = 1 << 63;
const CHAINED: u64 = 1 << 62;
const EVICTED: u64 = 1 << 61;
const WRITING: u64 = 1 << 60;
const PLACE_BITS: u32 = 40;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
const ONE_PIN: u64 = 1 << PLACE_BITS;
const PINS: u64 = WRITING - ONE_PIN;

/// The granules that a word can address.
pub(super) const ADDRESSABLE: u64 = 1 << PLACE_BITS;

/// Where a sample lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RamLocation {
    /// At this granule.
    At(u64),
    /// In several pieces, listed in a side table.
    Chained,
}

/// How a claim to write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutClaim {
    Granted,
    Present,
    /// Another thread writes it, or an evicted copy is still pinned.
    Busy,
}

/// How an eviction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictOutcome {
    Absent,
    /// It is pinned; the last [`Pins::unpin`] returns where it lay.
    Pinned,
    /// The caller frees its memory, then clears the word.
    Free(RamLocation),
}

/// The words of all samples.
#[derive(Debug)]
pub(super) struct Pins(Box<[AtomicU64]>);

impl Pins {
    #[cfg(not(feature = "shuttle"))]
    pub fn new(samples: u32) -> Self {
        // The operating system zeroes each page when it is first touched.
        let words = Box::<[AtomicU64]>::new_zeroed_slice(samples as usize);
        // SAFETY: an atomic integer of zero bits is a zero.
        Self(unsafe { words.assume_init() })
    }

    #[cfg(feature = "shuttle")]
    pub fn new(samples: u32) -> Self {
        Self((0..samples).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn holds(&self, sample: SampleId) -> bool {
        self.word(sample).is_some_and(|word| is_held(word.load(Ordering::Acquire)))
    }

    pub fn claim(&self, sample: SampleId) -> PutClaim {
        let Some(word) = self.word(sample) else { return PutClaim::Busy };
        match word.compare_exchange(0, WRITING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => PutClaim::Granted,
            Err(now) if is_held(now) => PutClaim::Present,
            Err(_) => PutClaim::Busy,
        }
    }

    /// Makes a claimed sample visible to readers.
    pub fn publish(&self, sample: SampleId, location: RamLocation) {
        let bits = match location {
            RamLocation::At(granule) => granule & PLACE,
            RamLocation::Chained => CHAINED,
        };
        self.store(sample, PRESENT | bits);
    }

    /// Ends a claim or an eviction: the sample is absent.
    pub fn clear(&self, sample: SampleId) {
        self.store(sample, 0);
    }

    /// Pins a held sample until [`Self::unpin`], and returns where it lies.
    #[inline]
    pub fn pin(&self, sample: SampleId) -> Option<RamLocation> {
        let word = self.word(sample)?;
        let pinned = |now| (is_held(now) && now & PINS != PINS).then(|| now + ONE_PIN);
        let before = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, pinned).ok()?;
        Some(location(before))
    }

    /// Releases a pin. If the sample was evicted and this was its last pin, the caller frees the
    /// memory at the returned location, then clears the word.
    #[inline]
    pub fn unpin(&self, sample: SampleId) -> Option<RamLocation> {
        let word = self.word(sample)?;
        let unpinned = |now: u64| (now & PINS != 0).then(|| now - ONE_PIN);
        let before = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unpinned);
        debug_assert!(before.is_ok(), "sample {sample} was unpinned more often than pinned");
        let before = before.ok()?;
        (before & EVICTED != 0 && before & PINS == ONE_PIN).then(|| location(before))
    }

    pub fn evict(&self, sample: SampleId) -> EvictOutcome {
        let Some(word) = self.word(sample) else { return EvictOutcome::Absent };
        let evicted = |now| is_held(now).then_some(now | EVICTED);
        match word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, evicted) {
            Err(_) => EvictOutcome::Absent,
            Ok(before) if before & PINS != 0 => EvictOutcome::Pinned,
            Ok(before) => EvictOutcome::Free(location(before)),
        }
    }

    fn word(&self, sample: SampleId) -> Option<&AtomicU64> {
        self.0.get(sample as usize)
    }

    fn store(&self, sample: SampleId, bits: u64) {
        if let Some(word) = self.word(sample) {
            word.store(bits, Ordering::Release);
        }
    }
}

fn is_held(word: u64) -> bool {
    word & (PRESENT | EVICTED) == PRESENT
}

fn location(word: u64) -> RamLocation {
    if word & CHAINED == 0 { RamLocation::At(word & PLACE) } else { RamLocation::Chained }
}
