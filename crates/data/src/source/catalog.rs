//! What a dataset holds: its files, and where in them each sample lies.
//!
//! Columns in one block of bytes ([`block`](super::block)) that is the same in memory and
//! in a snapshot file, so a snapshot is read with one call and used as it is.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belady_control::Sizes;

use super::block::{self, Counts, Layout, NO_LABEL, Shape, SnapshotError, Texts, u32_at, u64_at};
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
    /// When its content was last written, or was said to be: nanoseconds since 1970.
    pub modified: i64,
    /// When anything of it was last changed (`ctime`), which no program can set back.
    pub changed: i64,
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
    pub classes: Vec<OsString>,
    /// Directories whose times tell whether the listing still holds: path relative to the
    /// dataset, and time of modification in nanoseconds.
    pub directories: Vec<(PathBuf, i64)>,
}

/// What a dataset holds, read-only.
pub struct Catalog {
    block: Vec<u8>,
    layout: Layout,
}

impl CatalogBuilder {
    /// Lays the catalog out. A builder without files makes a catalog of sizes.
    ///
    /// # Panics
    ///
    /// If there are more than 2³² samples or files: ids have 32 bits.
    pub fn finish(self) -> Catalog {
        let layout =
            Layout::of(self.counts()).expect("what fits in memory as rows fits as columns");
        let mut block = Vec::with_capacity(layout.length);
        block.resize(layout.paths.ends.start, 0);
        let paths = || self.files.iter().map(|file| file.path.as_os_str().as_bytes());
        put_texts(&mut block, paths);
        put_column(&mut block, self.files.iter().map(|file| file.size.to_le_bytes()));
        put_column(&mut block, self.files.iter().map(|file| file.modified.to_le_bytes()));
        let locations = || self.samples.iter().map(|sample| sample.location);
        if layout.counts.shape == Shape::Ranges {
            put_column(&mut block, locations().map(|location| location.file.to_le_bytes()));
            put_column(&mut block, locations().map(|location| location.offset.to_le_bytes()));
        }
        if layout.counts.shape != Shape::Whole {
            put_column(&mut block, locations().map(|location| location.length.to_le_bytes()));
        }
        if layout.counts.labelled {
            let labels = self.samples.iter().map(|sample| sample.label.unwrap_or(NO_LABEL));
            put_column(&mut block, labels.map(u32::to_le_bytes));
        }
        put_texts(&mut block, || self.classes.iter().map(|class| class.as_bytes()));
        put_texts(&mut block, || {
            self.directories.iter().map(|(path, _)| path.as_os_str().as_bytes())
        });
        put_column(&mut block, self.directories.iter().map(|(_, time)| time.to_le_bytes()));
        put_column(&mut block, self.files.iter().map(|file| file.changed.to_le_bytes()));
        block::complete(&mut block, &layout);
        Catalog { block, layout }
    }

    fn counts(&self) -> Counts {
        let fits = |count: usize| u32::try_from(count).is_ok();
        assert!(fits(self.samples.len()) && fits(self.files.len()), "ids have 32 bits");
        Counts {
            shape: self.shape(),
            labelled: self.samples.iter().any(|sample| sample.label.is_some()),
            samples: self.samples.len() as u64,
            files: self.files.len() as u64,
            path_bytes: self.files.iter().map(|file| file.path.as_os_str().len() as u64).sum(),
            classes: self.classes.len() as u64,
            class_bytes: self.classes.iter().map(|class| class.len() as u64).sum(),
            directories: self.directories.len() as u64,
            directory_bytes: self
                .directories
                .iter()
                .map(|(path, _)| path.as_os_str().len() as u64)
                .sum(),
        }
    }

    fn shape(&self) -> Shape {
        let whole = |(at, (sample, file)): (usize, (&SampleEntry, &FileEntry))| {
            sample.location == Location { file: at as u32, offset: 0, length: file.size }
        };
        if self.files.is_empty() {
            Shape::Sizes
        } else if self.files.len() == self.samples.len()
            && self.samples.iter().zip(&self.files).enumerate().all(whole)
        {
            Shape::Whole
        } else {
            Shape::Ranges
        }
    }
}

impl Catalog {
    /// Samples that lie in no file, of the given sizes: for sources that make them up.
    pub fn of_sizes(sizes: impl IntoIterator<Item = u64>) -> Self {
        let samples = sizes.into_iter().enumerate().map(|(at, length)| SampleEntry {
            location: Location { file: at as u32, offset: 0, length },
            label: None,
        });
        CatalogBuilder { samples: samples.collect(), ..Default::default() }.finish()
    }

    /// As [`Self::of_sizes`], where the bytes follow from a seed: it tells this dataset from
    /// others of equal sizes.
    pub fn of_seed(sizes: impl IntoIterator<Item = u64>, seed: u64) -> Self {
        let mut catalog = Self::of_sizes(sizes);
        block::add_to_fingerprint(&mut catalog.block, seed);
        catalog
    }

    /// The same, told from others by the parts it was made of, wherever these lie.
    pub(super) fn of_parts(mut self, fingerprints: impl Iterator<Item = u64>) -> Self {
        block::set_fingerprint(&mut self.block, fingerprints);
        self
    }

    /// A catalog from the bytes of a snapshot, all of which are checked.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, SnapshotError> {
        let layout = Layout::check(&bytes)?;
        Ok(Self { block: bytes, layout })
    }

    /// What [`Self::from_bytes`] reads.
    pub fn as_bytes(&self) -> &[u8] {
        &self.block
    }

    /// Makes the checksum of damaged bytes right, so that a fuzzer gets past it.
    #[doc(hidden)]
    pub fn seal(bytes: &mut [u8]) {
        block::seal(bytes);
    }

    /// F.
    pub fn len(&self) -> u32 {
        self.layout.counts.samples as u32
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample's length in bytes.
    #[inline]
    pub fn size(&self, sample: SampleId) -> u64 {
        let lengths = match self.layout.counts.shape {
            Shape::Whole => &self.layout.file_sizes,
            Shape::Ranges | Shape::Sizes => &self.layout.sample_lengths,
        };
        u64_at(&self.as_bytes()[lengths.clone()], sample as usize * 8)
    }

    #[inline]
    pub fn location(&self, sample: SampleId) -> Location {
        let length = self.size(sample);
        if self.layout.counts.shape != Shape::Ranges {
            return Location { file: sample, offset: 0, length };
        }
        let block = self.as_bytes();
        Location {
            file: u32_at(&block[self.layout.sample_files.clone()], sample as usize * 4),
            offset: u64_at(&block[self.layout.sample_offsets.clone()], sample as usize * 8),
            length,
        }
    }

    #[inline]
    pub fn label(&self, sample: SampleId) -> Option<u32> {
        if !self.layout.counts.labelled {
            return None;
        }
        let labels = &self.as_bytes()[self.layout.labels.clone()];
        Some(u32_at(labels, sample as usize * 4)).filter(|&label| label != NO_LABEL)
    }

    /// The names of the labels.
    pub fn classes(&self) -> Vec<OsString> {
        let texts = &self.layout.classes;
        let names = (0..self.layout.counts.classes as usize).map(|at| self.text(texts, at));
        names.map(|name| OsStr::from_bytes(name).to_owned()).collect()
    }

    pub fn files(&self) -> u32 {
        self.layout.counts.files as u32
    }

    /// Where a file lies, relative to the dataset.
    #[inline]
    pub fn path(&self, file: u32) -> &Path {
        Path::new(OsStr::from_bytes(self.text(&self.layout.paths, file as usize)))
    }

    #[inline]
    pub fn file_size(&self, file: u32) -> u64 {
        u64_at(&self.as_bytes()[self.layout.file_sizes.clone()], file as usize * 8)
    }

    /// When a file was last written to, in nanoseconds since 1970.
    #[inline]
    pub fn file_modified(&self, file: u32) -> i64 {
        u64_at(&self.as_bytes()[self.layout.file_times.clone()], file as usize * 8).cast_signed()
    }

    /// When anything of a file was last changed, in nanoseconds since 1970.
    #[inline]
    pub fn file_changed(&self, file: u32) -> i64 {
        u64_at(&self.as_bytes()[self.layout.file_changes.clone()], file as usize * 8).cast_signed()
    }

    pub fn file(&self, file: u32) -> FileEntry {
        FileEntry {
            path: self.path(file).to_owned(),
            size: self.file_size(file),
            modified: self.file_modified(file),
            changed: self.file_changed(file),
        }
    }

    /// How many directories were listed.
    pub fn directories(&self) -> u32 {
        self.layout.counts.directories as u32
    }

    /// A listed directory, relative to the dataset, and its time of modification.
    pub fn directory(&self, at: u32) -> (&Path, i64) {
        let times = &self.as_bytes()[self.layout.directory_times.clone()];
        let path = self.text(&self.layout.directories, at as usize);
        (Path::new(OsStr::from_bytes(path)), u64_at(times, at as usize * 8).cast_signed())
    }

    /// All sizes, for the plan.
    pub fn sizes(&self) -> Sizes {
        Sizes::of(self.len(), |sample| self.size(sample))
    }

    /// Tells this dataset from every other, and from what it was before a change: a hash of
    /// the files' relative paths, sizes and times, and of where the samples lie in them.
    pub fn fingerprint(&self) -> u64 {
        block::fingerprint(self.as_bytes())
    }

    /// Tells this listing from every other: as the fingerprint, but also from one in which only
    /// times of change differ.
    pub fn listing(&self) -> u64 {
        block::checksum(self.as_bytes())
    }

    #[inline]
    fn text(&self, texts: &Texts, at: usize) -> &[u8] {
        let block = self.as_bytes();
        let ends = &block[texts.ends.clone()];
        let start = if at == 0 { 0 } else { u64_at(ends, (at - 1) * 8) };
        &block[texts.bytes.clone()][start as usize..u64_at(ends, at * 8) as usize]
    }
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (samples, bytes) = (self.len(), self.block.len());
        write!(f, "Catalog of {samples} samples in {bytes} bytes")
    }
}

fn put_column<const N: usize>(block: &mut Vec<u8>, values: impl Iterator<Item = [u8; N]>) {
    block.extend(values.flatten());
    align(block);
}

fn put_texts<'a, I: Iterator<Item = &'a [u8]>>(block: &mut Vec<u8>, texts: impl Fn() -> I) {
    let mut end = 0u64;
    let ends = texts().map(|text| {
        end += text.len() as u64;
        end.to_le_bytes()
    });
    put_column(block, ends);
    texts().for_each(|text| block.extend_from_slice(text));
    align(block);
}

fn align(block: &mut Vec<u8>) {
    block.resize(block.len().next_multiple_of(8), 0);
}

#[cfg(test)]
mod tests;
