//! What a dataset holds: its files, and where in them each sample lies.
//!
//! Columns in one block of bytes that is the same in memory and in a snapshot file, so a
//! snapshot is mapped and used as it is, and costs no anonymous memory.

use std::path::PathBuf;

use belady_control::Sizes;

use crate::SampleId;

/// Where a sample's payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    pub file: u32,
    pub offset: u64,
    pub length: u64,
}

/// A file of the dataset as it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the dataset.
    pub path: PathBuf,
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
}

/// A sample as it was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleEntry {
    pub location: Location,
    /// Index into the classes, if the format has any.
    pub label: Option<u32>,
}

/// Gathers a dataset's files and samples.
#[derive(Clone, Debug, Default)]
pub struct CatalogBuilder {
    pub files: Vec<FileEntry>,
    pub samples: Vec<SampleEntry>,
    pub classes: Vec<String>,
    /// Directories whose times tell whether the listing still holds: path relative to the
    /// dataset, and time of modification in nanoseconds.
    pub directories: Vec<(PathBuf, i64)>,
}

/// What a dataset holds, read-only.
#[derive(Debug)]
pub struct Catalog {
    // Placeholder of the interface: replaced by the mapped columns.
    built: CatalogBuilder,
}

impl CatalogBuilder {
    pub fn finish(self) -> Catalog {
        Catalog { built: self }
    }
}

impl Catalog {
    /// Samples that lie in no file, of the given sizes: for sources that make them up.
    pub fn of_sizes(sizes: impl IntoIterator<Item = u64>) -> Self {
        let samples = sizes.into_iter().enumerate().map(|(at, length)| SampleEntry {
            location: Location { file: at as u32, offset: 0, length },
            label: None,
        });
        Self { built: CatalogBuilder { samples: samples.collect(), ..Default::default() } }
    }

    /// F.
    pub fn len(&self) -> u32 {
        self.built.samples.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn size(&self, sample: SampleId) -> u64 {
        self.location(sample).length
    }

    pub fn location(&self, sample: SampleId) -> Location {
        self.built.samples[sample as usize].location
    }

    pub fn label(&self, sample: SampleId) -> Option<u32> {
        self.built.samples[sample as usize].label
    }

    pub fn classes(&self) -> Vec<String> {
        self.built.classes.clone()
    }

    pub fn files(&self) -> u32 {
        self.built.files.len() as u32
    }

    /// All sizes, for the plan.
    pub fn sizes(&self) -> Sizes {
        Sizes::from_bytes((0..self.len()).map(|sample| self.size(sample)).collect())
    }

    /// Tells this dataset from every other, and from what it was before a change.
    pub fn fingerprint(&self) -> u64 {
        0
    }
}
