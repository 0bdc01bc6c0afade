//! What a dataset holds: its files, and where in them each sample lies.
//!
//! Columns in one block of bytes ([`block`](super::block)) that is the same in memory and
//! in a snapshot file, so a snapshot is mapped and used as it is, and costs no anonymous
//! memory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belady_control::Sizes;
use memmap2::Mmap;

use super::block::{self, Counts, Layout, Shape, SnapshotError, Texts, u32_at, u64_at};
use crate::SampleId;

/// The label of a sample that has none, in a dataset where others have one.
const NO_LABEL: u32 = u32::MAX;

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
    block: Block,
    layout: Layout,
}

enum Block {
    Owned(Vec<u8>),
    /// The start of a mapped snapshot.
    Mapped(Mmap, usize),
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
        block::complete(&mut block, &layout);
        Catalog { block: Block::Owned(block), layout }
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

    /// A catalog from the bytes of a snapshot, all of which are checked.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, SnapshotError> {
        let layout = Layout::check(&bytes)?;
        Ok(Self { block: Block::Owned(bytes), layout })
    }

    /// As [`Self::from_bytes`], from the first `length` bytes of a mapped file.
    pub(super) fn from_map(map: Mmap, length: usize) -> Result<Self, SnapshotError> {
        let layout = Layout::check(&map[..length])?;
        Ok(Self { block: Block::Mapped(map, length), layout })
    }

    /// What [`Self::from_bytes`] reads.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.block {
            Block::Owned(bytes) => bytes,
            Block::Mapped(map, length) => &map[..*length],
        }
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
    pub fn classes(&self) -> Vec<String> {
        let texts = &self.layout.classes;
        let names = (0..self.layout.counts.classes as usize).map(|at| self.text(texts, at));
        names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
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

    pub fn file(&self, file: u32) -> FileEntry {
        FileEntry {
            path: self.path(file).to_owned(),
            size: self.file_size(file),
            modified: self.file_modified(file),
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
        Sizes::from_bytes((0..self.len()).map(|sample| self.size(sample)).collect())
    }

    /// Tells this dataset from every other, and from what it was before a change: a hash of
    /// the files' relative paths, sizes and times, and of where the samples lie in them.
    pub fn fingerprint(&self) -> u64 {
        block::fingerprint(self.as_bytes())
    }

    #[inline]
    fn text(&self, texts: &Texts, at: usize) -> &[u8] {
        let block = self.as_bytes();
        let ends = &block[texts.ends.clone()];
        let start = if at == 0 { 0 } else { u64_at(ends, (at - 1) * 8) };
        &block[texts.bytes.clone()][start as usize..u64_at(ends, at * 8) as usize]
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Owned(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Mapped(_, length) => write!(f, "{length} bytes, mapped"),
        }
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
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn path() -> impl Strategy<Value = PathBuf> {
        prop::collection::vec(1u8.., 0..30).prop_map(|bytes| OsString::from_vec(bytes).into())
    }

    fn files() -> impl Strategy<Value = Vec<FileEntry>> {
        let file = (path(), 0u64.., any::<i64>());
        let file = file.prop_map(|(path, size, modified)| FileEntry { path, size, modified });
        prop::collection::vec(file, 0..20)
    }

    /// A range within one of the files.
    fn range(files: &[FileEntry], pick: (usize, u64, u64)) -> Location {
        let file = pick.0 % files.len();
        let offset = pick.1 % files[file].size.saturating_add(1).max(1);
        let length = pick.2 % (files[file].size - offset).saturating_add(1).max(1);
        Location { file: file as u32, offset, length }
    }

    fn builder() -> impl Strategy<Value = CatalogBuilder> {
        let picks =
            prop::collection::vec((any::<(usize, u64, u64)>(), any::<Option<u32>>()), 0..40);
        let others = (
            prop::collection::vec(".{0,8}", 0..5),
            prop::collection::vec((path(), any::<i64>()), 0..5),
            any::<bool>(),
            any::<bool>(),
        );
        (files(), picks, others).prop_map(|(files, picks, others)| {
            let (classes, directories, whole, labelled) = others;
            let label = |label: Option<u32>| label.filter(|&at| labelled && at != NO_LABEL);
            let samples = if whole || files.is_empty() {
                let all = files.iter().enumerate().map(|(at, file)| SampleEntry {
                    location: Location { file: at as u32, offset: 0, length: file.size },
                    label: label(Some(at as u32)),
                });
                all.collect()
            } else {
                let picked = picks.into_iter().map(|(pick, at)| SampleEntry {
                    location: range(&files, pick),
                    label: label(at),
                });
                picked.collect()
            };
            CatalogBuilder { files, samples, classes, directories }
        })
    }

    fn assert_same(catalog: &Catalog, rows: &CatalogBuilder) {
        assert_eq!(catalog.len() as usize, rows.samples.len());
        for (sample, row) in (0..).zip(&rows.samples) {
            assert_eq!(catalog.location(sample), row.location);
            assert_eq!(catalog.size(sample), row.location.length);
            assert_eq!(catalog.label(sample), row.label);
        }
        let files: Vec<_> = (0..catalog.files()).map(|file| catalog.file(file)).collect();
        assert_eq!(files, rows.files);
        assert_eq!(catalog.classes(), rows.classes);
        let directories = (0..catalog.directories()).map(|at| catalog.directory(at));
        let directories: Vec<_> = directories.map(|(path, time)| (path.to_owned(), time)).collect();
        assert_eq!(directories, rows.directories);
        let sizes: Vec<u64> = rows.samples.iter().map(|row| row.location.length).collect();
        assert!((0..).zip(&sizes).all(|(sample, &size)| catalog.sizes().get(sample) == size));
    }

    /// Calls everything that a catalog offers.
    fn touch(catalog: &Catalog) {
        for sample in 0..catalog.len() {
            let location = catalog.location(sample);
            let _ = (catalog.label(sample), catalog.size(sample));
            if catalog.files() > 0 {
                let end = location.offset + location.length;
                assert!(end <= catalog.file_size(location.file));
            }
        }
        (0..catalog.files()).for_each(|file| drop(catalog.file(file)));
        (0..catalog.directories()).for_each(|at| drop(catalog.directory(at).0.to_owned()));
        let _ = (catalog.classes(), catalog.fingerprint());
    }

    proptest! {
        #[test]
        fn columns_hold_what_the_rows_held(rows in builder()) {
            let catalog = rows.clone().finish();
            assert_same(&catalog, &rows);
            let again = Catalog::from_bytes(catalog.as_bytes().to_vec()).expect("its own bytes");
            assert_same(&again, &rows);
            prop_assert_eq!(again.fingerprint(), catalog.fingerprint());
        }

        #[test]
        fn any_changed_byte_is_noticed(rows in builder(), at in any::<usize>(), bit in 0u8..8) {
            let mut bytes = rows.finish().as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(Catalog::from_bytes(bytes).is_err());
        }

        #[test]
        fn any_cut_is_noticed(rows in builder(), at in any::<usize>()) {
            let mut bytes = rows.finish().as_bytes().to_vec();
            bytes.truncate(at % bytes.len());
            prop_assert!(Catalog::from_bytes(bytes).is_err());
        }

        #[test]
        fn hostile_bytes_with_a_right_checksum_never_lead_outside(
            rows in builder(),
            edits in prop::collection::vec((any::<usize>(), prop_oneof![any::<u8>(), Just(0), Just(255)]), 1..6),
        ) {
            let mut bytes = rows.finish().as_bytes().to_vec();
            for (at, value) in edits {
                // Half of the edits go to the header.
                let reach = if at % 2 == 0 { 128 } else { bytes.len() };
                bytes[16 + at / 2 % (reach - 16)] = value;
            }
            Catalog::seal(&mut bytes);
            if let Ok(catalog) = Catalog::from_bytes(bytes) {
                touch(&catalog);
            }
        }
    }

    fn two_files() -> CatalogBuilder {
        let file = |name: &str| FileEntry { path: name.into(), size: 10, modified: 5 };
        let range = |file, offset| SampleEntry {
            location: Location { file, offset, length: 5 },
            label: None,
        };
        CatalogBuilder {
            files: vec![file("a"), file("b")],
            samples: vec![range(0, 0), range(0, 5), range(1, 0)],
            ..Default::default()
        }
    }

    #[test]
    fn the_fingerprint_sees_all_that_identifies_a_dataset() {
        let original = two_files().finish().fingerprint();
        let changed = |change: fn(&mut CatalogBuilder)| {
            let mut builder = two_files();
            change(&mut builder);
            builder.finish().fingerprint()
        };
        assert_eq!(changed(|_| ()), original);
        assert_eq!(changed(|it| it.directories.push(("d".into(), 1))), original);
        let others = [
            changed(|it| it.files[0].path = "c".into()),
            changed(|it| it.files[0].size = 11),
            changed(|it| it.files[0].modified = 6),
            changed(|it| it.samples[1].location.offset = 4),
            changed(|it| it.samples[1].location.file = 1),
            changed(|it| it.samples[1].label = Some(0)),
            changed(|it| drop(it.samples.pop())),
            changed(|it| it.files.push(it.files[0].clone())),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(*other, original);
            assert!(!others[..at].contains(other));
        }
    }

    #[test]
    fn sizes_alone_make_a_catalog() {
        let catalog = Catalog::of_sizes([3, 0, u64::MAX]);
        assert_eq!(catalog.len(), 3);
        assert_eq!(catalog.files(), 0);
        assert_eq!(catalog.location(2), Location { file: 2, offset: 0, length: u64::MAX });
        assert_eq!(catalog.label(0), None);
        assert_ne!(catalog.fingerprint(), Catalog::of_sizes([3, 0, 1]).fingerprint());
        assert!(Catalog::of_sizes([]).is_empty());
    }

    #[test]
    fn each_way_of_being_wrong_has_its_error() {
        let good = two_files().finish().as_bytes().to_vec();
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Catalog::from_bytes(bytes).expect_err("refused")
        };
        assert_eq!(with(&|bytes| bytes[0] = 0), SnapshotError::Foreign);
        assert_eq!(with(&|bytes| bytes[16] = 9), SnapshotError::Version { found: 9 });
        let found = good.len() as u64 + 8;
        let torn = SnapshotError::Torn { expected: found - 8, found };
        assert_eq!(with(&|bytes| bytes.extend([0; 8])), torn);
        assert_eq!(with(&|bytes| *bytes.last_mut().expect("a byte") ^= 1), SnapshotError::Checksum);
        let outside = with(&|bytes| {
            let at = Layout::check(&good).expect("good").sample_files.start;
            bytes[at] = 2;
            Catalog::seal(bytes);
        });
        assert!(outside.to_string().contains("outside its file"), "{outside}");
    }
}
