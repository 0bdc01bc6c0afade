//! A job: all that every node's policy may know before the first byte moves.
//! Plans are pure functions of it, which is why nodes agree without talking.

use crate::model::{Bytes, System};
use crate::sampler::{AccessStream, SampleId};

/// The sizes of all samples, in as little memory as they need.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    Equal { bytes: u64, samples: u32 },
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl Sizes {
    pub fn from_bytes(sizes: Vec<u64>) -> Self {
        match sizes.first() {
            Some(&first) if sizes.iter().all(|&size| size == first) => {
                Self::Equal { bytes: first, samples: sizes.len() as u32 }
            }
            _ if sizes.iter().all(|&size| u32::try_from(size).is_ok()) => {
                Self::Narrow(sizes.into_iter().map(|size| size as u32).collect())
            }
            _ => Self::Wide(sizes),
        }
    }

    pub fn len(&self) -> u32 {
        match self {
            Self::Equal { samples, .. } => *samples,
            Self::Narrow(sizes) => sizes.len() as u32,
            Self::Wide(sizes) => sizes.len() as u32,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn get(&self, sample: SampleId) -> u64 {
        match self {
            Self::Equal { bytes, .. } => *bytes,
            Self::Narrow(sizes) => u64::from(sizes[sample as usize]),
            Self::Wide(sizes) => sizes[sample as usize],
        }
    }

    /// S.
    pub fn total(&self) -> Bytes {
        Bytes(match self {
            Self::Equal { bytes, samples } => bytes * u64::from(*samples),
            Self::Narrow(sizes) => sizes.iter().map(|&size| u64::from(size)).sum(),
            Self::Wide(sizes) => sizes.iter().sum(),
        })
    }

    pub fn largest(&self) -> Bytes {
        Bytes((0..self.len()).map(|sample| self.get(sample)).max().unwrap_or(0))
    }
}

/// A dataset packed into fewer files than samples (`TFRecord`, tar, ...).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Files; sample k lies in file k·files/F.
    pub files: u32,
    /// How many bytes one read call asks for; `None` reads a sample in one call.
    pub read_size: Option<Bytes>,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub system: System,
    pub stream: AccessStream,
    pub sizes: Sizes,
    /// E; `None` when the run is open-ended.
    pub epochs: Option<u32>,
    pub packing: Packing,
}

impl Job {
    pub fn file_of(&self, sample: SampleId) -> u32 {
        (u64::from(sample) * u64::from(self.packing.files) / u64::from(self.sizes.len())) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_the_smallest_form() {
        assert_eq!(Sizes::from_bytes(vec![5; 9]), Sizes::Equal { bytes: 5, samples: 9 });
        assert!(matches!(Sizes::from_bytes(vec![5, 6]), Sizes::Narrow(_)));
        let wide = Sizes::from_bytes(vec![1 << 40, 1]);
        assert!(matches!(wide, Sizes::Wide(_)));
        assert_eq!((wide.total(), wide.largest()), (Bytes((1 << 40) + 1), Bytes(1 << 40)));
    }
}
