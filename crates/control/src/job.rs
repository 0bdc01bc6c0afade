//! A job: everything that every node's policy knows before the first byte moves.
//!
//! Plans are pure functions of the job, so nodes agree without exchanging messages.

use std::sync::Arc;

use crate::model::{Bytes, System};
use crate::sampler::{AccessStream, SampleId};

/// The sizes of all samples, in the smallest form that holds them. Clones share the memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// All samples have the same size.
    Equal {
        /// The size of each.
        bytes: u64,
        /// F.
        samples: u32,
    },
    /// Every size is below 4 GiB.
    Narrow(Arc<[u32]>),
    /// Any sizes.
    Wide(Arc<[u64]>),
}

impl Sizes {
    /// Takes the sizes in the order of sample ids.
    pub fn from_bytes(sizes: impl AsRef<[u64]>) -> Self {
        let sizes = sizes.as_ref();
        Self::of(sizes.len() as u32, |sample| sizes[sample as usize])
    }

    /// Takes the sizes from a function, which is called several times for each sample so that
    /// the sizes are held only once.
    pub fn of(samples: u32, size: impl Fn(SampleId) -> u64) -> Self {
        let all = || (0..samples).map(&size);
        match all().next() {
            Some(bytes) if all().all(|size| size == bytes) => Self::Equal { bytes, samples },
            _ if all().all(|size| u32::try_from(size).is_ok()) => {
                Self::Narrow(all().map(|size| size as u32).collect())
            }
            _ => Self::Wide(all().collect()),
        }
    }

    /// Returns F, the number of samples.
    pub fn len(&self) -> u32 {
        match self {
            Self::Equal { samples, .. } => *samples,
            Self::Narrow(sizes) => sizes.len() as u32,
            Self::Wide(sizes) => sizes.len() as u32,
        }
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of a sample.
    ///
    /// # Panics
    /// May panic if there is no such sample.
    #[inline]
    pub fn get(&self, sample: SampleId) -> u64 {
        match self {
            Self::Equal { bytes, .. } => *bytes,
            Self::Narrow(sizes) => u64::from(sizes[sample as usize]),
            Self::Wide(sizes) => sizes[sample as usize],
        }
    }

    /// Returns S, the bytes of all samples together.
    pub fn total(&self) -> Bytes {
        Bytes(match self {
            Self::Equal { bytes, samples } => bytes * u64::from(*samples),
            Self::Narrow(sizes) => sizes.iter().map(|&size| u64::from(size)).sum(),
            Self::Wide(sizes) => sizes.iter().sum(),
        })
    }

    /// Returns the bytes of the largest sample.
    pub fn largest(&self) -> Bytes {
        Bytes((0..self.len()).map(|sample| self.get(sample)).max().unwrap_or(0))
    }
}

/// A dataset packed into fewer files than samples (`TFRecord`, tar, ...).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Files; sample k lies in file k·files/F.
    pub files: u32,
    /// Bytes of one read call; `None` reads a sample in one call.
    pub read_size: Option<Bytes>,
}

/// What is trained on what: the input of every plan.
#[derive(Clone, Debug)]
pub struct Job {
    /// The machines.
    pub system: System,
    /// Which rank reads which sample when.
    pub stream: AccessStream,
    /// The samples' sizes.
    pub sizes: Sizes,
    /// E; `None` when the run is open-ended.
    pub epochs: Option<u32>,
    /// How samples lie in files.
    pub packing: Packing,
}

impl Job {
    /// Returns the file that a sample lies in.
    pub fn file_of(&self, sample: SampleId) -> u32 {
        (u64::from(sample) * u64::from(self.packing.files) / u64::from(self.sizes.len())) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_the_smallest_form() {
        assert_eq!(Sizes::from_bytes([5; 9]), Sizes::Equal { bytes: 5, samples: 9 });
        assert!(matches!(Sizes::from_bytes([5, 6]), Sizes::Narrow(_)));
        let wide = Sizes::from_bytes([1 << 40, 1]);
        assert!(matches!(wide, Sizes::Wide(_)));
        assert_eq!((wide.total(), wide.largest()), (Bytes((1 << 40) + 1), Bytes(1 << 40)));
    }
}
