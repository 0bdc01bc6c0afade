//! The RAM tier: one anonymous mapping, which forked children do not inherit, divided into extents.
//! The mapping of a [shared](RamTier::shared) tier is a file without a name, which processes that are
//! sent its descriptor can map.
//!
//! A reader pins the sample ([`pins`](super::pins)), copies or lends the bytes and unpins it,
//! without a lock. Writers and evictors take the lock of the extents. A sample that fits into no
//! single free extent lies in pieces, listed in a side table: it can be copied out but not lent.
//!
//! A page of the mapping takes memory once it is written. Pages have the default size: on a virtual
//! machine, huge pages made the first fill several times slower and pins hardly faster.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use belady_base::SampleId;
use belady_base::fork::Mapping;
use belady_base::shared_memory::SharedMapping;
use belady_base::sync::atomic::{AtomicU64, Ordering};
use belady_base::sync::{Mutex, lock};
use belady_control::Sizes;
use belady_control::model::Bytes;

use super::extents::{Extent, Extents, GRANULE, granules};
use super::pins::{ADDRESSABLE, EvictOutcome, Pins, PutClaim, RamLocation};
use super::{Get, Pinned, Put, Tier, TierStatus};

/// A tier in RAM.
pub struct RamTier {
    sizes: Arc<Sizes>,
    memory: TierMemory,
    pins: Pins,
    space: Mutex<RamSpace>,
    held: AtomicU64,
    degraded: Option<String>,
}

/// What writers and evictors share.
struct RamSpace {
    extents: Extents,
    chains: HashMap<SampleId, Arc<[Extent]>>,
}

impl RamTier {
    /// Creates a tier of at most `capacity` bytes. If the system has not so much address space, the
    /// tier holds nothing and its status says why.
    pub fn new(capacity: Bytes, sizes: Arc<Sizes>) -> Self {
        Self::in_memory(capacity, sizes, TierMemory::private)
    }

    /// Creates a tier whose memory other processes can map ([`Tier::shared_memory`]).
    pub fn shared(capacity: Bytes, sizes: Arc<Sizes>) -> Self {
        Self::in_memory(capacity, sizes, TierMemory::shared)
    }

    fn in_memory(
        capacity: Bytes,
        sizes: Arc<Sizes>,
        map: impl FnOnce(u64) -> std::io::Result<TierMemory>,
    ) -> Self {
        let wanted = (capacity.0 / GRANULE).min(ADDRESSABLE);
        let (memory, degraded) = match map(wanted) {
            Ok(memory) => (memory, None),
            Err(error) => {
                let why = format!(
                    "cannot map {} bytes of memory for the RAM tier ({error}), so it holds \
                     nothing: configure less",
                    capacity.0
                );
                tracing::warn!("{why}");
                (TierMemory::none(), Some(why))
            }
        };
        let mut extents = Extents::new(None);
        extents.free(Extent { start: 0, granules: memory.granules });
        Self {
            pins: Pins::new(sizes.len()),
            sizes,
            memory,
            space: Mutex::new(RamSpace { extents, chains: HashMap::new() }),
            held: AtomicU64::new(0),
            degraded,
        }
    }

    /// Writes a claimed sample and returns where it lies, or `None` if there is no space.
    fn write(&self, sample: SampleId, bytes: &[u8]) -> Option<RamLocation> {
        let pieces = {
            let mut space = lock(&self.space);
            let pieces: Arc<[Extent]> =
                space.extents.allocate(granules(bytes.len() as u64))?.into();
            if pieces.len() > 1 {
                space.chains.insert(sample, Arc::clone(&pieces));
            }
            pieces
        };
        let mut rest = bytes;
        for &piece in pieces.iter() {
            let (part, others) = rest.split_at(rest.len().min(length(piece)));
            // SAFETY: these granules are allocated to this call, the only one that has claimed the
            // sample, and are not read before the sample is published.
            unsafe { self.memory.write(piece.start, part) };
            rest = others;
        }
        Some(match *pieces {
            [] => RamLocation::At(0),
            [piece] => RamLocation::At(piece.start),
            _ => RamLocation::Chained,
        })
    }

    /// Copies a pinned sample into `into`.
    fn copy(&self, sample: SampleId, location: RamLocation, into: &mut [u8]) {
        let chain = match location {
            RamLocation::At(start) => {
                // SAFETY: the sample is pinned and lies here as a whole.
                unsafe { self.memory.read(start, into) };
                return;
            }
            RamLocation::Chained => lock(&self.space).chains.get(&sample).map(Arc::clone),
        };
        let mut rest = into;
        for &piece in chain.iter().flat_map(|chain| chain.iter()) {
            let (part, others) = rest.split_at_mut(rest.len().min(length(piece)));
            // SAFETY: the sample is pinned and this is one of its pieces.
            unsafe { self.memory.read(piece.start, part) };
            rest = others;
        }
    }

    /// Frees the memory of an evicted sample without pins.
    fn free(&self, sample: SampleId, location: RamLocation) {
        let mut space = lock(&self.space);
        match location {
            RamLocation::At(start) => {
                space.extents.free(Extent { start, granules: granules(self.sizes.get(sample)) });
            }
            RamLocation::Chained => {
                for &piece in space.chains.remove(&sample).iter().flat_map(|chain| chain.iter()) {
                    space.extents.free(piece);
                }
            }
        }
        self.pins.clear(sample);
    }

    fn is_sample(&self, sample: SampleId, length: usize) -> bool {
        sample < self.sizes.len() && self.sizes.get(sample) == length as u64
    }
}

impl Tier for RamTier {
    fn put(&self, sample: SampleId, bytes: &[u8], _version: i64) -> Put {
        if !self.is_sample(sample, bytes.len()) {
            return Put::Refused;
        }
        match self.pins.claim(sample) {
            PutClaim::Present => return Put::Present,
            PutClaim::Busy => return Put::Refused,
            PutClaim::Granted => {}
        }
        let Some(location) = self.write(sample, bytes) else {
            self.pins.clear(sample);
            return Put::Full;
        };
        self.held.fetch_add(1, Ordering::Relaxed);
        self.pins.publish(sample, location);
        Put::Stored
    }

    fn get(&self, sample: SampleId, into: &mut [u8]) -> Get {
        if !self.is_sample(sample, into.len()) {
            return Get::Miss;
        }
        let Some(location) = self.pins.pin(sample) else { return Get::Miss };
        self.copy(sample, location, into);
        self.unpin(sample);
        Get::Hit
    }

    fn evict(&self, sample: SampleId) -> bool {
        let outcome = self.pins.evict(sample);
        if outcome != EvictOutcome::Absent {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
        if let EvictOutcome::Free(location) = outcome {
            self.free(sample, location);
        }
        outcome != EvictOutcome::Absent
    }

    fn holds(&self, sample: SampleId) -> bool {
        self.pins.holds(sample)
    }

    fn footprint(&self, size: u64) -> u64 {
        granules(size) * GRANULE
    }

    fn status(&self) -> TierStatus {
        let free = lock(&self.space).extents.total_free();
        TierStatus {
            capacity: Bytes(self.memory.granules * GRANULE),
            used: Bytes((self.memory.granules - free) * GRANULE),
            samples: self.held.load(Ordering::Relaxed),
            degraded: self.degraded.clone(),
        }
    }

    fn pin(&self, sample: SampleId) -> Option<Pinned> {
        let location = self.pins.pin(sample)?;
        let RamLocation::At(start) = location else {
            self.unpin(sample);
            return None;
        };
        let length = self.sizes.get(sample) as usize;
        let offset = self.shared_memory().map(|_| (start * GRANULE) as usize);
        Some(Pinned { start: self.memory.at(start), length, offset })
    }

    fn shared_memory(&self) -> Option<&SharedMapping> {
        match &self.memory.map {
            TierMapping::Shared(map) => Some(map),
            TierMapping::None | TierMapping::Private(_) => None,
        }
    }

    fn unpin(&self, sample: SampleId) {
        if let Some(location) = self.pins.unpin(sample) {
            self.free(sample, location);
        }
    }
}

impl fmt::Debug for RamTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RamTier").field("status", &self.status()).finish_non_exhaustive()
    }
}

fn length(extent: Extent) -> usize {
    (extent.granules * GRANULE) as usize
}

/// The mapping. The pins decide which granules may be read or written.
struct TierMemory {
    map: TierMapping,
    granules: u64,
}

enum TierMapping {
    /// The capacity is 0.
    None,
    Private(Mapping),
    Shared(SharedMapping),
}

impl TierMemory {
    fn private(granules: u64) -> std::io::Result<Self> {
        Self::new(granules, |length| Mapping::unreserved(length).map(TierMapping::Private))
    }

    fn shared(granules: u64) -> std::io::Result<Self> {
        let create = |length| SharedMapping::create("belady-tier", length);
        Self::new(granules, |length| create(length).map(TierMapping::Shared))
    }

    fn new(
        granules: u64,
        map: impl FnOnce(usize) -> std::io::Result<TierMapping>,
    ) -> std::io::Result<Self> {
        if granules == 0 {
            return Ok(Self::none());
        }
        Ok(Self { map: map((granules * GRANULE) as usize)?, granules })
    }

    fn none() -> Self {
        Self { map: TierMapping::None, granules: 0 }
    }

    /// Returns a granule's address; past the end only for empty samples.
    fn at(&self, granule: u64) -> *mut u8 {
        let start = match &self.map {
            TierMapping::None => return std::ptr::dangling_mut(),
            TierMapping::Private(map) => map.start(),
            TierMapping::Shared(map) => map.start(),
        };
        start.as_ptr().wrapping_add((granule * GRANULE) as usize)
    }

    /// # Safety
    /// The bytes from this granule on are allocated to the caller alone.
    unsafe fn write(&self, granule: u64, bytes: &[u8]) {
        // SAFETY: the caller guarantees it; `bytes` is not part of the mapping's free memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(granule), bytes.len()) };
    }

    /// # Safety
    /// The bytes from this granule on are pinned.
    unsafe fn read(&self, granule: u64, into: &mut [u8]) {
        // SAFETY: pinned bytes lie in the mapping and do not change.
        unsafe { std::ptr::copy_nonoverlapping(self.at(granule), into.as_mut_ptr(), into.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sample_in_several_pieces_has_a_list_of_them() {
        let sizes = Arc::new(Sizes::from_bytes([96, 96, 96, 192]));
        let tier = RamTier::new(Bytes(3 * 96), sizes);
        let listed = || lock(&tier.space).chains.keys().copied().collect::<Vec<_>>();
        for sample in 0..3 {
            assert_eq!(tier.put(sample, &[7; 96], 0), Put::Stored);
        }
        assert!(listed().is_empty());
        // The free extents then lie on both sides of sample 1.
        tier.evict(0);
        tier.evict(2);
        assert_eq!(tier.put(3, &[7; 192], 0), Put::Stored);
        assert_eq!(listed(), [3]);
        tier.evict(3);
        assert!(listed().is_empty());
    }
}
