//! One word a sample: whether the RAM tier holds it, where, and how many are reading it.
//!
//! ```text
//!             claim            publish                  doom (no pins)
//!   absent ----------> writing --------> present --------------------> doomed -- clear --> absent
//!                                        |    ^                          ^
//!                                    pin |    | unpin    doom (pinned)   | the last unpin
//!                                        v    |                          |
//!                                        pinned -------------------> doomed, pinned
//! ```
//!
//! Readers take part by one compare-and-swap on the sample's word and meet no lock. A word
//! that is doomed and has no pins belongs to whoever brought it there: the evictor, or the
//! last reader. Nobody else touches it until it is cleared, so its memory is freed once.

use crate::SampleId;
use crate::sync::atomic::{AtomicU64, Ordering};

const PRESENT: u64 = 1 << 63;
const CHAINED: u64 = 1 << 62;
const DOOMED: u64 = 1 << 61;
const WRITING: u64 = 1 << 60;
const PLACE_BITS: u32 = 40;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
const ONE_PIN: u64 = 1 << PLACE_BITS;
const PINS: u64 = WRITING - ONE_PIN;

/// Granules that a word can address.
pub(super) const ADDRESSABLE: u64 = 1 << PLACE_BITS;

/// Where a sample lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    At(u64),
    /// In several pieces, listed elsewhere.
    Chained,
}

/// How a claim to write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Granted,
    Present,
    /// It is being written or is still lent.
    Busy,
}

/// What became of a sample that was to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doom {
    Absent,
    /// Someone reads it; the last [`Leases::unpin`] says where it lay.
    Lent,
    /// The caller frees its memory, then clears it.
    Free(Place),
}

/// The words of all samples.
#[derive(Debug)]
pub(super) struct Leases(Box<[AtomicU64]>);

impl Leases {
    #[cfg(not(feature = "shuttle"))]
    pub fn new(samples: u32) -> Self {
        // Zeroed by the operating system page by page when first touched.
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

    pub fn claim(&self, sample: SampleId) -> Claim {
        let Some(word) = self.word(sample) else { return Claim::Busy };
        match word.compare_exchange(0, WRITING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Claim::Granted,
            Err(now) if is_held(now) => Claim::Present,
            Err(_) => Claim::Busy,
        }
    }

    /// Shows a claimed sample to readers.
    pub fn publish(&self, sample: SampleId, place: Place) {
        let bits = match place {
            Place::At(granule) => granule & PLACE,
            Place::Chained => CHAINED,
        };
        self.store(sample, PRESENT | bits);
    }

    /// Ends a claim or a doom: the sample is absent.
    pub fn clear(&self, sample: SampleId) {
        self.store(sample, 0);
    }

    /// Keeps a held sample where it is until [`Self::unpin`].
    #[inline]
    pub fn pin(&self, sample: SampleId) -> Option<Place> {
        let word = self.word(sample)?;
        let pinned = |now| (is_held(now) && now & PINS != PINS).then(|| now + ONE_PIN);
        let before = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, pinned).ok()?;
        Some(place(before))
    }

    /// Ends a pin. If the sample was doomed and this was its last pin, the caller frees the
    /// memory at the place returned, then clears it.
    #[inline]
    pub fn unpin(&self, sample: SampleId) -> Option<Place> {
        let word = self.word(sample)?;
        let unpinned = |now: u64| (now & PINS != 0).then(|| now - ONE_PIN);
        let before = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unpinned);
        debug_assert!(before.is_ok(), "sample {sample} was given back more often than lent");
        let before = before.ok()?;
        (before & DOOMED != 0 && before & PINS == ONE_PIN).then(|| place(before))
    }

    pub fn doom(&self, sample: SampleId) -> Doom {
        let Some(word) = self.word(sample) else { return Doom::Absent };
        let doomed = |now| is_held(now).then_some(now | DOOMED);
        match word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, doomed) {
            Err(_) => Doom::Absent,
            Ok(before) if before & PINS != 0 => Doom::Lent,
            Ok(before) => Doom::Free(place(before)),
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
    word & (PRESENT | DOOMED) == PRESENT
}

fn place(word: u64) -> Place {
    if word & CHAINED == 0 { Place::At(word & PLACE) } else { Place::Chained }
}
