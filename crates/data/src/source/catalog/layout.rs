//! The encoding of a catalog in one block of bytes: a header and columns, little-endian, each
//! column aligned to eight bytes. It is the same in memory and in a snapshot file.
//!
//! ```text
//! header
//! files:   ends of paths u64, paths, sizes u64, times i64
//! samples: file u32, offset u64, length u64      (left out where each file is one sample)
//!          label u32                             (left out where there are none)
//! classes: ends of names u64, names
//! directories: ends of paths u64, paths, times i64
//! versions: times of the last change of each file's inode i64
//! ```
//!
//! A block from outside is checked once ([`CatalogLayout::check`]): its checksum, and every end,
//! index, range and label in it. After that, no accessor can leave the block.
//!
//! Large blocks are hashed and checked on all cores, by threads that end with the call: a pool that
//! outlives it would be lost in a forked child.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"BeladyCt";
const VERSION: u64 = 2;
const HEADER: usize = 128;
/// The checksum covers everything behind itself.
const CHECKED_FROM: usize = 16;
/// Long inputs are hashed in pieces of this size, which is part of the format.
const PIECE: usize = 1 << 20;
/// Work for a thread: a few hundred microseconds, several times what starting it takes.
const PIECES_FOR_A_THREAD: usize = 4;

/// The label of a sample that has none, in a dataset where others have one.
pub(super) const NO_LABEL: u32 = u32::MAX;

/// Why bytes are not a valid snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum SnapshotError {
    /// The bytes do not begin like a snapshot.
    #[error("this is not a snapshot of a dataset")]
    Foreign,
    /// Another version of Belady wrote it.
    #[error("the snapshot has version {found} and this program reads version {VERSION}")]
    Version { found: u64 },
    /// It has another length than its header says.
    #[error("the snapshot should be {expected} bytes long and is {found}")]
    Torn { expected: u64, found: u64 },
    /// Its checksum does not match.
    #[error("the snapshot's checksum does not match its content")]
    Checksum,
    /// Its content is inconsistent.
    #[error("the snapshot is inconsistent: {what}")]
    Broken { what: &'static str },
}

fn broken(what: &'static str) -> SnapshotError {
    SnapshotError::Broken { what }
}

/// How samples are stored in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatalogShape {
    /// Sample k is the whole of file k.
    Whole = 0,
    /// A sample is a range of a file.
    Ranges = 1,
    /// Samples are in no file and have only sizes.
    Sizes = 2,
}

/// The numbers that determine a block's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CatalogCounts {
    pub shape: CatalogShape,
    pub labelled: bool,
    pub samples: u64,
    pub files: u64,
    pub path_bytes: u64,
    pub classes: u64,
    pub class_bytes: u64,
    pub directories: u64,
    pub directory_bytes: u64,
}

/// A column of texts in a block: where each ends, and their bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct TextColumn {
    pub ends: Range<usize>,
    pub bytes: Range<usize>,
}

/// The range of each column in a block.
#[derive(Clone, Debug)]
pub(super) struct CatalogLayout {
    pub counts: CatalogCounts,
    pub paths: TextColumn,
    pub file_sizes: Range<usize>,
    pub file_times: Range<usize>,
    pub sample_files: Range<usize>,
    pub sample_offsets: Range<usize>,
    pub sample_lengths: Range<usize>,
    pub labels: Range<usize>,
    pub classes: TextColumn,
    pub directories: TextColumn,
    pub directory_times: Range<usize>,
    pub file_changes: Range<usize>,
    pub length: usize,
}

impl CatalogLayout {
    /// Returns the layout for these counts; `None` if the block would not fit in memory.
    pub fn of(counts: CatalogCounts) -> Option<Self> {
        let ranges = if counts.shape == CatalogShape::Ranges { counts.samples } else { 0 };
        let lengths = if counts.shape == CatalogShape::Whole { 0 } else { counts.samples };
        let labels = if counts.labelled { counts.samples } else { 0 };
        let mut end = HEADER;
        let mut column = |count: u64, width: usize| {
            let start = end;
            let length = usize::try_from(count).ok()?.checked_mul(width)?;
            let stop = start.checked_add(length)?;
            end = stop.checked_next_multiple_of(8)?;
            Some(start..stop)
        };
        let paths =
            TextColumn { ends: column(counts.files, 8)?, bytes: column(counts.path_bytes, 1)? };
        Some(Self {
            counts,
            paths,
            file_sizes: column(counts.files, 8)?,
            file_times: column(counts.files, 8)?,
            sample_files: column(ranges, 4)?,
            sample_offsets: column(ranges, 8)?,
            sample_lengths: column(lengths, 8)?,
            labels: column(labels, 4)?,
            classes: TextColumn {
                ends: column(counts.classes, 8)?,
                bytes: column(counts.class_bytes, 1)?,
            },
            directories: TextColumn {
                ends: column(counts.directories, 8)?,
                bytes: column(counts.directory_bytes, 1)?,
            },
            directory_times: column(counts.directories, 8)?,
            file_changes: column(counts.files, 8)?,
            length: end,
        })
    }

    /// Reads the layout from a block's header and checks the whole block.
    pub fn check(block: &[u8]) -> Result<Self, SnapshotError> {
        let layout =
            Self::of(CatalogCounts::read(block)?).ok_or(broken("it is larger than memory"))?;
        if layout.length != block.len() {
            return Err(broken("its counts do not add up to its length"));
        }
        if u64_at(block, 8) != hash(&block[CHECKED_FROM..]) {
            return Err(SnapshotError::Checksum);
        }
        layout.check_texts(block)?;
        layout.check_ranges(block)?;
        layout.check_labels(block)?;
        Ok(layout)
    }

    fn check_texts(&self, block: &[u8]) -> Result<(), SnapshotError> {
        for texts in [&self.paths, &self.classes, &self.directories] {
            let ends = &block[texts.ends.clone()];
            let ordered = on_all_cores(ends.len().div_ceil(PIECE), |piece| {
                let start = piece * PIECE;
                let before = start.checked_sub(8).map_or(0, |at| u64_at(ends, at));
                ascending(before, &ends[start..ends.len().min(start + PIECE)])
            });
            let last = ends.len().checked_sub(8).map_or(0, |at| u64_at(ends, at));
            if ordered.contains(&false) || last != texts.bytes.len() as u64 {
                return Err(broken("its names do not follow each other"));
            }
        }
        Ok(())
    }

    /// Checks that every sample lies within a file that exists.
    fn check_ranges(&self, block: &[u8]) -> Result<(), SnapshotError> {
        if self.counts.shape != CatalogShape::Ranges {
            return Ok(());
        }
        let files = &block[self.sample_files.clone()];
        let offsets = &block[self.sample_offsets.clone()];
        let lengths = &block[self.sample_lengths.clone()];
        let sizes = &block[self.file_sizes.clone()];
        let is_inside = |sample: usize| {
            let file = u32_at(files, sample * 4);
            let end = u64_at(offsets, sample * 8).checked_add(u64_at(lengths, sample * 8));
            u64::from(file) < self.counts.files
                && end.is_some_and(|end| end <= u64_at(sizes, file as usize * 8))
        };
        let samples = self.counts.samples as usize;
        let inside = on_all_cores(samples.div_ceil(PIECE / 8), |piece| {
            let start = piece * (PIECE / 8);
            (start..samples.min(start + PIECE / 8)).all(is_inside)
        });
        if inside.contains(&false) {
            return Err(broken("a sample lies outside its file"));
        }
        Ok(())
    }

    /// Checks that every label is the number of a class, if classes have names.
    fn check_labels(&self, block: &[u8]) -> Result<(), SnapshotError> {
        let labels = &block[self.labels.clone()];
        let named = self.counts.classes;
        let is_named = |label: &[u8]| {
            let label = u32_at(label, 0);
            label == NO_LABEL || u64::from(label) < named
        };
        let fine = on_all_cores(labels.len().div_ceil(PIECE), |piece| {
            let start = piece * PIECE;
            labels[start..labels.len().min(start + PIECE)].chunks_exact(4).all(is_named)
        });
        if named > 0 && fine.contains(&false) {
            return Err(broken("a label has no class"));
        }
        Ok(())
    }

    /// Returns the bytes that identify the dataset: all columns of files and samples. Times of
    /// change are not among them, since they differ between copies of a dataset on several
    /// machines.
    fn identity(&self) -> Range<usize> {
        HEADER..self.labels.end
    }
}

impl CatalogCounts {
    fn read(block: &[u8]) -> Result<Self, SnapshotError> {
        if block.len() < HEADER || block[..8] != MAGIC {
            return Err(SnapshotError::Foreign);
        }
        let field = |at: usize| u64_at(block, at);
        if field(16) != VERSION {
            return Err(SnapshotError::Version { found: field(16) });
        }
        if field(24) != block.len() as u64 {
            return Err(SnapshotError::Torn { expected: field(24), found: block.len() as u64 });
        }
        let shape = match field(40) {
            0 => CatalogShape::Whole,
            1 => CatalogShape::Ranges,
            2 => CatalogShape::Sizes,
            _ => return Err(broken("it has an unknown shape")),
        };
        let counts = Self {
            shape,
            labelled: field(48) == 1,
            samples: field(56),
            files: field(64),
            path_bytes: field(72),
            classes: field(80),
            class_bytes: field(88),
            directories: field(96),
            directory_bytes: field(104),
        };
        counts.check()
    }

    fn check(self) -> Result<Self, SnapshotError> {
        let most = u64::from(u32::MAX);
        let agree = match self.shape {
            CatalogShape::Whole => self.samples == self.files,
            CatalogShape::Ranges => true,
            CatalogShape::Sizes => self.files == 0,
        };
        if self.samples > most || self.files > most || self.classes > most || !agree {
            return Err(broken("its counts are impossible"));
        }
        Ok(self)
    }

    fn fields(&self) -> [u64; 9] {
        [
            self.shape as u64,
            u64::from(self.labelled),
            self.samples,
            self.files,
            self.path_bytes,
            self.classes,
            self.class_bytes,
            self.directories,
            self.directory_bytes,
        ]
    }
}

/// Writes the header of a block whose columns are complete.
pub(super) fn complete(block: &mut [u8], layout: &CatalogLayout) {
    let fields = layout.counts.fields();
    block[..8].copy_from_slice(&MAGIC);
    put(block, 16, VERSION);
    put(block, 24, block.len() as u64);
    for (at, field) in fields.into_iter().enumerate() {
        put(block, 40 + 8 * at, field);
    }
    // Classes and directories do not count: they follow from the paths, or change without them.
    let mut identity: Vec<u8> = fields[..5].iter().flat_map(|field| field.to_le_bytes()).collect();
    identity.extend(hash(&block[layout.identity()]).to_le_bytes());
    put(block, 32, hash(&identity));
    seal(block);
}

/// Sets the fingerprint of a dataset that is made of parts with these fingerprints.
pub(super) fn set_fingerprint(block: &mut [u8], parts: impl Iterator<Item = u64>) {
    let parts: Vec<u8> = parts.flat_map(u64::to_le_bytes).collect();
    put(block, 32, hash(&parts));
    seal(block);
}

/// Adds a number to the fingerprint.
pub(super) fn add_to_fingerprint(block: &mut [u8], what: u64) {
    let both = [fingerprint(block).to_le_bytes(), what.to_le_bytes()].concat();
    put(block, 32, hash(&both));
    seal(block);
}

/// Writes the checksum of a block's content.
pub(super) fn seal(block: &mut [u8]) {
    if block.len() >= CHECKED_FROM {
        let checksum = hash(&block[CHECKED_FROM..]);
        put(block, 8, checksum);
    }
}

/// Returns the length of a block from the header in its first bytes.
pub(in crate::source) fn encoded_length(start: &[u8]) -> Option<u64> {
    (start.len() >= HEADER && start[..8] == MAGIC).then(|| u64_at(start, 24))
}

pub(super) fn fingerprint(block: &[u8]) -> u64 {
    u64_at(block, 32)
}

pub(super) fn checksum(block: &[u8]) -> u64 {
    u64_at(block, 8)
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn put(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn ascending(mut before: u64, ends: &[u8]) -> bool {
    let mut ordered = true;
    for end in ends.chunks_exact(8) {
        let end = u64_at(end, 0);
        ordered &= before <= end;
        before = end;
    }
    ordered
}

/// Returns the xxh3 hash; for longer inputs, the hash of the hashes of their pieces.
fn hash(bytes: &[u8]) -> u64 {
    if bytes.len() <= PIECE {
        return xxh3_64(bytes);
    }
    let pieces = on_all_cores(bytes.len().div_ceil(PIECE), |piece| {
        let start = piece * PIECE;
        xxh3_64(&bytes[start..bytes.len().min(start + PIECE)]).to_le_bytes()
    });
    xxh3_64(&pieces.concat())
}

/// Returns what `work` returns for each piece.
fn on_all_cores<T: Send>(pieces: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    if pieces <= PIECES_FOR_A_THREAD {
        return (0..pieces).map(work).collect();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(pieces.div_ceil(PIECES_FOR_A_THREAD));
    let share = |thread: usize| pieces * thread / threads..pieces * (thread + 1) / threads;
    let run = |thread| share(thread).map(&work).collect::<Vec<T>>();
    std::thread::scope(|scope| {
        let run = &run;
        let spawn = |thread| std::thread::Builder::new().spawn_scoped(scope, move || run(thread));
        // This thread does the first share, and any share for which no thread can be started.
        let others: Vec<_> = (1..threads).map(|thread| (thread, spawn(thread))).collect();
        let mut all = run(0);
        for (thread, other) in others {
            all.extend(match other.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(results)) => results,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                Err(_) => run(thread),
            });
        }
        all
    })
}
