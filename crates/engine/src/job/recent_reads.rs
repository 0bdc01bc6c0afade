//! What jobs on a dataset have read last.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use belady_base::SampleId;
use belady_base::memory::Memory;
use belady_base::sync::{Arc, Mutex, lock};

/// RecentCopies of the samples that jobs have last read from the source, or evicted, and that no job holds
/// in memory, for other jobs on the dataset: where several have the same order, one some batches
/// behind the other, a sample is read once. The oldest copies go first.
#[derive(Debug, Default)]
pub struct RecentReads(Mutex<RecentCopies>);

#[derive(Debug, Default)]
struct RecentCopies {
    /// With the version of the file.
    by_sample: HashMap<SampleId, (Arc<Memory>, i64)>,
    /// In the order in which they were read.
    oldest: VecDeque<SampleId>,
    bytes: u64,
    /// The most bytes.
    capacity: u64,
}

impl RecentReads {
    /// Grows to a capacity.
    pub fn grow(&self, capacity: u64) {
        let mut copies = lock(&self.0);
        copies.capacity = copies.capacity.max(capacity);
    }

    /// Keeps a copy, and drops the oldest copies beyond the capacity.
    pub fn keep(&self, sample: SampleId, bytes: &[u8], version: i64) {
        let mut copies = lock(&self.0);
        if bytes.len() as u64 > copies.capacity {
            return;
        }
        let copy = (Arc::new(Memory::from(bytes)), version);
        match copies.by_sample.entry(sample) {
            // Another version of the file: it has the same size.
            Entry::Occupied(mut known) => {
                known.insert(copy);
                return;
            }
            Entry::Vacant(vacant) => drop(vacant.insert(copy)),
        }
        copies.oldest.push_back(sample);
        copies.bytes += bytes.len() as u64;
        while copies.bytes > copies.capacity
            && let Some(oldest) = copies.oldest.pop_front()
            && let Some((copy, _)) = copies.by_sample.remove(&oldest)
        {
            copies.bytes -= copy.len() as u64;
        }
    }

    pub fn has(&self, sample: SampleId) -> bool {
        lock(&self.0).by_sample.contains_key(&sample)
    }

    /// RecentCopies a sample, and returns its version.
    pub fn copy(&self, sample: SampleId, into: &mut [u8]) -> Option<i64> {
        let (copy, version) = lock(&self.0).by_sample.get(&sample).cloned()?;
        (copy.len() == into.len()).then(|| into.copy_from_slice(&copy))?;
        Some(version)
    }

    pub fn clear(&self) {
        let mut copies = lock(&self.0);
        *copies = RecentCopies { capacity: copies.capacity, ..RecentCopies::default() };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The reference: all reads in a list, of which the last ones that fit are there.
        #[test]
        fn the_last_reads_that_fit_are_there(
            reads in prop::collection::vec((0u32..30, 0i64..3), 0..200), capacity in 0u64..500,
        ) {
            let size = |sample: u32| (sample * 7 % 41) as usize;
            let recent = RecentReads::default();
            recent.grow(capacity);
            let mut known: Vec<(u32, i64)> = vec![];
            for (sample, version) in reads {
                recent.keep(sample, &vec![sample as u8; size(sample)], version);
                if size(sample) as u64 > capacity {
                    continue;
                }
                match known.iter_mut().find(|(other, _)| *other == sample) {
                    Some(other) => other.1 = version,
                    None => known.push((sample, version)),
                }
                while known.iter().map(|&(sample, _)| size(sample) as u64).sum::<u64>() > capacity {
                    known.remove(0);
                }
            }
            for sample in 0..30 {
                let version = known.iter().find(|(other, _)| *other == sample).map(|found| found.1);
                let mut into = vec![0; size(sample)];
                prop_assert_eq!(recent.has(sample), version.is_some());
                prop_assert_eq!(recent.copy(sample, &mut into), version);
                if version.is_some() {
                    prop_assert!(into.iter().all(|byte| *byte == sample as u8));
                }
            }
            recent.clear();
            prop_assert!((0..30).all(|sample| !recent.has(sample)));
        }
    }
}
