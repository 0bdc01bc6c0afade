//! The RAM tier: one anonymous mapping, which forked children do not inherit, cut into extents.
//!
//! A reader takes a pin on the sample's word ([`leases`](super::leases)), copies or lends
//! the bytes and gives the pin back, without a lock. Only writers and evictors meet at the
//! lock of the extents. A sample that fits in no single free extent lies in pieces, listed
//! in a side table: then it can be copied out but not lent.
//!
//! Pages of the mapping cost memory once they are written; what was evicted is written over.
//! They are of the usual size: on a virtual machine, asking for huge ones made the first
//! filling several times slower and pins hardly faster.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use belady_control::Sizes;
use belady_control::model::Bytes;

use super::extents::{Extent, Extents, GRANULE, granules};
use super::leases::{ADDRESSABLE, Claim, Doom, Leases, Place};
use super::{Get, Pinned, Put, Tier, TierStatus};
use crate::SampleId;
use crate::fork::Mapping;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock};

/// Storage class of RAM.
pub struct RamTier {
    sizes: Arc<Sizes>,
    memory: Memory,
    leases: Leases,
    space: Mutex<Space>,
    held: AtomicU64,
    degraded: Option<String>,
}

/// What writers and evictors share.
struct Space {
    extents: Extents,
    chains: HashMap<SampleId, Arc<[Extent]>>,
}

impl RamTier {
    /// A tier of at most `capacity` bytes. Where the system cannot give so much address
    /// space the tier holds nothing and says so.
    pub fn new(capacity: Bytes, sizes: Arc<Sizes>) -> Self {
        let wanted = (capacity.0 / GRANULE).min(ADDRESSABLE);
        let (memory, degraded) = match Memory::new(wanted) {
            Ok(memory) => (memory, None),
            Err(error) => {
                let why = format!(
                    "the system gives no {} bytes of memory for the RAM tier ({error}); it \
                     holds nothing: ask for less",
                    capacity.0
                );
                tracing::warn!("{why}");
                (Memory::none(), Some(why))
            }
        };
        let mut extents = Extents::new(None);
        extents.free(Extent { start: 0, granules: memory.granules });
        Self {
            leases: Leases::new(sizes.len()),
            sizes,
            memory,
            space: Mutex::new(Space { extents, chains: HashMap::new() }),
            held: AtomicU64::new(0),
            degraded,
        }
    }

    /// Writes a claimed sample; where it lies, or `None` if there is no room.
    fn write(&self, sample: SampleId, bytes: &[u8]) -> Option<Place> {
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
            // SAFETY: these granules were allocated to this call, which alone claimed the
            // sample, and nobody reads them before they are published.
            unsafe { self.memory.write(piece.start, part) };
            rest = others;
        }
        Some(match *pieces {
            [] => Place::At(0),
            [piece] => Place::At(piece.start),
            _ => Place::Chained,
        })
    }

    /// Copies a pinned sample out.
    fn copy(&self, sample: SampleId, place: Place, into: &mut [u8]) {
        let chain = match place {
            Place::At(start) => {
                // SAFETY: the sample is pinned and lies here as a whole.
                unsafe { self.memory.read(start, into) };
                return;
            }
            Place::Chained => lock(&self.space).chains.get(&sample).map(Arc::clone),
        };
        let mut rest = into;
        for &piece in chain.iter().flat_map(|chain| chain.iter()) {
            let (part, others) = rest.split_at_mut(rest.len().min(length(piece)));
            // SAFETY: the sample is pinned and this is one of its pieces.
            unsafe { self.memory.read(piece.start, part) };
            rest = others;
        }
    }

    /// Frees the memory of a doomed sample without readers.
    fn free(&self, sample: SampleId, place: Place) {
        let mut space = lock(&self.space);
        match place {
            Place::At(start) => {
                space.extents.free(Extent { start, granules: granules(self.sizes.get(sample)) });
            }
            Place::Chained => {
                for &piece in space.chains.remove(&sample).iter().flat_map(|chain| chain.iter()) {
                    space.extents.free(piece);
                }
            }
        }
        self.leases.clear(sample);
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
        match self.leases.claim(sample) {
            Claim::Present => return Put::Present,
            Claim::Busy => return Put::Refused,
            Claim::Granted => {}
        }
        let Some(place) = self.write(sample, bytes) else {
            self.leases.clear(sample);
            return Put::Full;
        };
        self.held.fetch_add(1, Ordering::Relaxed);
        self.leases.publish(sample, place);
        Put::Stored
    }

    fn get(&self, sample: SampleId, into: &mut [u8]) -> Get {
        if !self.is_sample(sample, into.len()) {
            return Get::Miss;
        }
        let Some(place) = self.leases.pin(sample) else { return Get::Miss };
        self.copy(sample, place, into);
        self.unpin(sample);
        Get::Hit
    }

    fn evict(&self, sample: SampleId) -> bool {
        let doom = self.leases.doom(sample);
        if doom != Doom::Absent {
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
        if let Doom::Free(place) = doom {
            self.free(sample, place);
        }
        doom != Doom::Absent
    }

    fn holds(&self, sample: SampleId) -> bool {
        self.leases.holds(sample)
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
        let place = self.leases.pin(sample)?;
        let Place::At(start) = place else {
            self.unpin(sample);
            return None;
        };
        let length = self.sizes.get(sample) as usize;
        Some(Pinned { start: self.memory.at(start), length })
    }

    fn unpin(&self, sample: SampleId) {
        if let Some(place) = self.leases.unpin(sample) {
            self.free(sample, place);
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

/// The mapping. Who may touch which granules is decided by the leases.
struct Memory {
    map: Option<Mapping>,
    granules: u64,
}

impl Memory {
    fn new(granules: u64) -> std::io::Result<Self> {
        if granules == 0 {
            return Ok(Self::none());
        }
        let length = (granules * GRANULE) as usize;
        Ok(Self { map: Some(Mapping::unreserved(length)?), granules })
    }

    fn none() -> Self {
        Self { map: None, granules: 0 }
    }

    /// A granule's address; past the end only for samples of no bytes.
    fn at(&self, granule: u64) -> *mut u8 {
        match &self.map {
            Some(map) => map.start().as_ptr().wrapping_add((granule * GRANULE) as usize),
            None => std::ptr::dangling_mut(),
        }
    }

    /// # Safety
    /// The bytes from this granule on must be allocated to the caller and to nobody else.
    unsafe fn write(&self, granule: u64, bytes: &[u8]) {
        // SAFETY: as the caller promises; `bytes` is not part of the mapping's free memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(granule), bytes.len()) };
    }

    /// # Safety
    /// The bytes from this granule on must be pinned.
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
        // What is free then lies on both sides of sample 1.
        tier.evict(0);
        tier.evict(2);
        assert_eq!(tier.put(3, &[7; 192], 0), Put::Stored);
        assert_eq!(listed(), [3]);
        tier.evict(3);
        assert!(listed().is_empty());
    }
}
