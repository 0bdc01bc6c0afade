//! The catalog: a dataset's files, and where in them each sample lies.
//!
//! A catalog is one block of bytes ([`layout`]) that is the same in memory and in a snapshot file,
//! so a snapshot is read with one call and used without decoding.

mod layout;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belady_base::SampleId;
use belady_control::Sizes;

pub use self::layout::SnapshotError;
pub(super) use self::layout::encoded_length;
use self::layout::{
    CatalogCounts, CatalogLayout, CatalogShape, NO_LABEL, TextColumn, u32_at, u64_at,
};

/// Where a sample lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampleLocation {
    /// The number of its file.
    pub file: u32,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A file of the dataset as it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the dataset.
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// Its time of modification (`mtime`), which programs can set: nanoseconds since 1970.
    pub modified: i64,
    /// Its time of change (`ctime`), which programs cannot set: nanoseconds since 1970.
    pub changed: i64,
}

/// A sample as it was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleEntry {
    /// Where it lies.
    pub location: SampleLocation,
    /// Index into the classes, if the format has any.
    pub label: Option<u32>,
}

/// Collects a dataset's files and samples.
#[derive(Clone, Debug, Default)]
pub struct CatalogBuilder {
    /// The files.
    pub files: Vec<FileEntry>,
    /// The samples, in the order of their ids.
    pub samples: Vec<SampleEntry>,
    /// The names of the labels.
    pub classes: Vec<OsString>,
    /// Directories whose times tell whether the listing still holds: the path relative to the
    /// dataset, and the time of modification in nanoseconds.
    pub directories: Vec<(PathBuf, i64)>,
}

/// A dataset's files and samples, read-only.
pub struct Catalog {
    block: Vec<u8>,
    layout: CatalogLayout,
}

impl CatalogBuilder {
    /// Encodes the catalog. A builder without files makes a catalog of sizes.
    ///
    /// # Panics
    ///
    /// If there are more than 2³² samples or files: ids have 32 bits.
    pub fn finish(self) -> Catalog {
        let layout =
            CatalogLayout::of(self.counts()).expect("columns take no more memory than the rows");
        let mut block = Vec::with_capacity(layout.length);
        block.resize(layout.paths.ends.start, 0);
        let paths = || self.files.iter().map(|file| file.path.as_os_str().as_bytes());
        put_texts(&mut block, paths);
        put_column(&mut block, self.files.iter().map(|file| file.size.to_le_bytes()));
        put_column(&mut block, self.files.iter().map(|file| file.modified.to_le_bytes()));
        let locations = || self.samples.iter().map(|sample| sample.location);
        if layout.counts.shape == CatalogShape::Ranges {
            put_column(&mut block, locations().map(|location| location.file.to_le_bytes()));
            put_column(&mut block, locations().map(|location| location.offset.to_le_bytes()));
        }
        if layout.counts.shape != CatalogShape::Whole {
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
        layout::complete(&mut block, &layout);
        Catalog { block, layout }
    }

    fn counts(&self) -> CatalogCounts {
        let fits = |count: usize| u32::try_from(count).is_ok();
        assert!(fits(self.samples.len()) && fits(self.files.len()), "ids have 32 bits");
        CatalogCounts {
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

    fn shape(&self) -> CatalogShape {
        let whole = |(at, (sample, file)): (usize, (&SampleEntry, &FileEntry))| {
            sample.location == SampleLocation { file: at as u32, offset: 0, length: file.size }
        };
        if self.files.is_empty() {
            CatalogShape::Sizes
        } else if self.files.len() == self.samples.len()
            && self.samples.iter().zip(&self.files).enumerate().all(whole)
        {
            CatalogShape::Whole
        } else {
            CatalogShape::Ranges
        }
    }
}

impl Catalog {
    /// Creates a catalog of samples in no file, for sources that generate them.
    pub fn of_sizes(sizes: impl IntoIterator<Item = u64>) -> Self {
        let samples = sizes.into_iter().enumerate().map(|(at, length)| SampleEntry {
            location: SampleLocation { file: at as u32, offset: 0, length },
            label: None,
        });
        CatalogBuilder { samples: samples.collect(), ..Default::default() }.finish()
    }

    /// Creates a catalog as [`Self::of_sizes`] does, for bytes that follow from a seed. The seed is
    /// part of the fingerprint.
    pub fn of_seed(sizes: impl IntoIterator<Item = u64>, seed: u64) -> Self {
        let mut catalog = Self::of_sizes(sizes);
        layout::add_to_fingerprint(&mut catalog.block, seed);
        catalog
    }

    /// Sets the fingerprint from those of the parts, wherever these are stored.
    pub(super) fn of_parts(mut self, fingerprints: impl Iterator<Item = u64>) -> Self {
        layout::set_fingerprint(&mut self.block, fingerprints);
        self
    }

    /// Decodes and checks the bytes of a snapshot.
    ///
    /// # Errors
    ///
    /// If they are not a valid snapshot of this version.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, SnapshotError> {
        let layout = CatalogLayout::check(&bytes)?;
        Ok(Self { block: bytes, layout })
    }

    /// Returns the encoded catalog, which [`Self::from_bytes`] reads.
    pub fn as_bytes(&self) -> &[u8] {
        &self.block
    }

    /// Writes the right checksum into damaged bytes, so that a fuzzer passes the check.
    #[doc(hidden)]
    pub fn seal(bytes: &mut [u8]) {
        layout::seal(bytes);
    }

    /// Returns the number of samples (F).
    pub fn len(&self) -> u32 {
        self.layout.counts.samples as u32
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sample's length in bytes.
    #[inline]
    pub fn size(&self, sample: SampleId) -> u64 {
        let lengths = match self.layout.counts.shape {
            CatalogShape::Whole => &self.layout.file_sizes,
            CatalogShape::Ranges | CatalogShape::Sizes => &self.layout.sample_lengths,
        };
        u64_at(&self.as_bytes()[lengths.clone()], sample as usize * 8)
    }

    /// Returns where a sample lies.
    #[inline]
    pub fn location(&self, sample: SampleId) -> SampleLocation {
        let length = self.size(sample);
        if self.layout.counts.shape != CatalogShape::Ranges {
            return SampleLocation { file: sample, offset: 0, length };
        }
        let block = self.as_bytes();
        SampleLocation {
            file: u32_at(&block[self.layout.sample_files.clone()], sample as usize * 4),
            offset: u64_at(&block[self.layout.sample_offsets.clone()], sample as usize * 8),
            length,
        }
    }

    /// Returns the label of a sample, if it has one.
    #[inline]
    pub fn label(&self, sample: SampleId) -> Option<u32> {
        if !self.layout.counts.labelled {
            return None;
        }
        let labels = &self.as_bytes()[self.layout.labels.clone()];
        Some(u32_at(labels, sample as usize * 4)).filter(|&label| label != NO_LABEL)
    }

    /// Returns the names of the labels.
    pub fn classes(&self) -> Vec<OsString> {
        let texts = &self.layout.classes;
        let names = (0..self.layout.counts.classes as usize).map(|at| self.text(texts, at));
        names.map(|name| OsStr::from_bytes(name).to_owned()).collect()
    }

    /// Returns the number of files.
    pub fn files(&self) -> u32 {
        self.layout.counts.files as u32
    }

    /// Returns a file's path, relative to the dataset.
    #[inline]
    pub fn path(&self, file: u32) -> &Path {
        Path::new(OsStr::from_bytes(self.text(&self.layout.paths, file as usize)))
    }

    /// Returns a file's length in bytes.
    #[inline]
    pub fn file_size(&self, file: u32) -> u64 {
        u64_at(&self.as_bytes()[self.layout.file_sizes.clone()], file as usize * 8)
    }

    /// Returns a file's time of modification, in nanoseconds since 1970.
    #[inline]
    pub fn file_modified(&self, file: u32) -> i64 {
        u64_at(&self.as_bytes()[self.layout.file_times.clone()], file as usize * 8).cast_signed()
    }

    /// Returns a file's time of change, in nanoseconds since 1970.
    #[inline]
    pub fn file_changed(&self, file: u32) -> i64 {
        u64_at(&self.as_bytes()[self.layout.file_changes.clone()], file as usize * 8).cast_signed()
    }

    /// Returns a file's entry.
    pub fn file(&self, file: u32) -> FileEntry {
        FileEntry {
            path: self.path(file).to_owned(),
            size: self.file_size(file),
            modified: self.file_modified(file),
            changed: self.file_changed(file),
        }
    }

    /// Returns the number of listed directories.
    pub fn directories(&self) -> u32 {
        self.layout.counts.directories as u32
    }

    /// Returns a listed directory, relative to the dataset, and its time of modification.
    pub fn directory(&self, at: u32) -> (&Path, i64) {
        let times = &self.as_bytes()[self.layout.directory_times.clone()];
        let path = self.text(&self.layout.directories, at as usize);
        (Path::new(OsStr::from_bytes(path)), u64_at(times, at as usize * 8).cast_signed())
    }

    /// Returns the sizes of all samples, for the plan.
    pub fn sizes(&self) -> Sizes {
        Sizes::of(self.len(), |sample| self.size(sample))
    }

    /// Returns a hash that identifies the dataset and changes with it: of the files' relative
    /// paths, sizes and times of modification, and of the samples' locations.
    pub fn fingerprint(&self) -> u64 {
        layout::fingerprint(self.as_bytes())
    }

    /// Returns a hash that identifies this listing. Unlike the fingerprint it depends on the times
    /// of change.
    pub fn listing(&self) -> u64 {
        layout::checksum(self.as_bytes())
    }

    #[inline]
    fn text(&self, texts: &TextColumn, at: usize) -> &[u8] {
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
