//! Packed files: many samples in one file, found by reading one header after another.
//!
//! A format ([`tfrecord`](super::tfrecord), [`webdataset`](super::webdataset)) walks over bytes
//! that can be read at any offset ([`ReadAt`]): a file through a [`ReadWindow`], or memory. Of a
//! file only the headers are read. With small samples the window grows, so that one call reads many
//! headers; with large ones it stays a page.
//!
//! A [`Flaw`] is what is wrong with the bytes; an [`IndexFileError`] adds the file's name.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use belady_base::heartbeat;

use super::Operations;

/// A sample found in a packed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedRecord {
    /// Its first byte in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The sample's name, in formats that have names.
    pub key: Option<String>,
    /// The class number stored with the sample, in formats that have it.
    pub label: Option<u32>,
}

/// Finds the samples of a file, and counts the calls.
pub(super) type IndexFile = fn(&Path, &mut Operations) -> Result<Vec<PackedRecord>, IndexFileError>;

/// Why a packed file cannot be indexed.
#[derive(Debug, thiserror::Error)]
#[error("cannot index {}: {flaw}", path.display())]
pub struct IndexFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub flaw: Flaw,
}

/// What is wrong with the bytes of a packed file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum Flaw {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is compressed.
    #[error("it is compressed with {0}, so single samples cannot be read: decompress it first")]
    Compressed(&'static str),
    /// It ends within a record or member.
    #[error(
        "it ends within what begins at byte {offset}, after {whole} whole samples: copy or write \
         it again"
    )]
    Truncated { offset: u64, whole: u64 },
    /// It has no end-of-archive mark.
    #[error(
        "it ends at byte {offset} without an end-of-archive mark, after at least {whole} whole \
         samples, and is probably truncated: copy or write it again"
    )]
    NoEnd { offset: u64, whole: u64 },
    /// A header is not valid.
    #[error("{damage} at byte {offset}, after {whole} whole samples: copy or write it again")]
    Damaged { offset: u64, whole: u64, damage: String },
    /// The name of a member is dangerous or invalid.
    #[error(
        "the member at byte {offset} has the name `{name}`, which {why}: pack the archive again \
         with plain relative names"
    )]
    Hostile { offset: u64, name: String, why: &'static str },
    /// A feature of the format is not supported.
    #[error("{what} at byte {offset} cannot be used: pack the archive again without it")]
    Unsupported { offset: u64, what: String },
}

impl Flaw {
    /// Sets the number of whole samples before the flaw.
    #[must_use]
    pub(super) fn after(mut self, samples: usize) -> Self {
        if let Self::Truncated { whole, .. }
        | Self::NoEnd { whole, .. }
        | Self::Damaged { whole, .. } = &mut self
        {
            *whole = samples as u64;
        }
        self
    }
}

/// Bytes that can be read from any offset.
pub(super) trait ReadAt {
    /// Fills `into` from `offset` on, and returns how many bytes were filled: fewer only at the
    /// end.
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
}

impl ReadAt for &[u8] {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(offset).map_or(self.len(), |offset| offset.min(self.len()));
        let count = into.len().min(self.len() - start);
        into[..count].copy_from_slice(&self[start..start + count]);
        Ok(count)
    }
}

/// A page: a disk reads no less.
const NARROWEST: usize = 4 << 10;
/// Beyond this the cost of a call is small beside that of copying.
const WIDEST: usize = 256 << 10;

/// A part of a file in memory, moved forward from header to header.
#[derive(Debug)]
pub(super) struct ReadWindow<R> {
    reader: R,
    start: u64,
    held: usize,
    memory: Vec<u8>,
    span: usize,
    reads: u64,
    bytes: u64,
}

impl<R: Read + Seek> ReadWindow<R> {
    pub(super) fn new(reader: R) -> Self {
        let memory = Vec::new();
        Self { reader, start: 0, held: 0, memory, span: NARROWEST, reads: 0, bytes: 0 }
    }

    /// Returns the part of the window from `offset` on.
    fn from(&self, offset: u64) -> &[u8] {
        let skip = offset.checked_sub(self.start).map_or(self.held, |skip| {
            usize::try_from(skip).map_or(self.held, |skip| skip.min(self.held))
        });
        &self.memory[skip..self.held]
    }

    /// Moves the window to `offset`, and reads at least `least` bytes if the file has as many.
    fn move_to(&mut self, offset: u64, least: usize) -> io::Result<()> {
        let gap = offset.abs_diff(self.start + self.held as u64);
        let near = gap <= self.span as u64;
        self.span = if near { (self.span * 2).min(WIDEST) } else { NARROWEST };
        let span = self.span.max(least);
        if self.memory.len() < span {
            self.memory.resize(span, 0);
        }
        self.held = 0;
        self.start = self.reader.seek(SeekFrom::Start(offset))?;
        while self.held < span {
            self.reads += 1;
            match self.reader.read(&mut self.memory[self.held..span]) {
                Ok(0) => break,
                Ok(count) => {
                    self.held += count;
                    heartbeat::beat();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes += self.held as u64;
        Ok(())
    }
}

impl<R: Read + Seek> ReadAt for ReadWindow<R> {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.from(offset).len() < into.len() {
            self.move_to(offset, into.len())?;
        }
        let held = self.from(offset);
        let count = held.len().min(into.len());
        into[..count].copy_from_slice(&held[..count]);
        Ok(count)
    }
}

/// Opens a file, walks over it, and adds the calls to `operations`.
pub(super) fn index_file(
    path: &Path,
    operations: &mut Operations,
    walk: impl FnOnce(&mut ReadWindow<File>, u64) -> Result<Vec<PackedRecord>, Flaw>,
) -> Result<Vec<PackedRecord>, IndexFileError> {
    let open_and_walk = || {
        operations.open += 1;
        let file = File::open(path)?;
        operations.stat += 1;
        let length = file.metadata()?.len();
        let mut window = ReadWindow::new(file);
        let found = walk(&mut window, length);
        operations.read += window.reads;
        operations.bytes += window.bytes;
        found
    };
    open_and_walk().map_err(|flaw| IndexFileError { path: path.to_owned(), flaw })
}

/// Returns the compression whose magic number the bytes begin with. Called only after the bytes
/// have failed as what they should be, since a valid file may also begin like this.
pub(super) fn compression(bytes: &mut impl ReadAt) -> Option<&'static str> {
    let mut start = [0; 6];
    let count = bytes.read_at(0, &mut start).ok()?;
    Some(match &start[..count] {
        [0x1f, 0x8b, ..] => "gzip",
        [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] => "zlib",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0xfd, b'7', b'z', b'X', b'Z', 0] => "xz",
        [b'B', b'Z', b'h', ..] => "bzip2",
        [0x04, 0x22, 0x4d, 0x18, ..] => "lz4",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_window_reads_the_bytes_of_the_file(
            length in 0usize..20_000,
            asks in prop::collection::vec((0u64..21_000, 0usize..6_000), 1..30),
        ) {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut window = ReadWindow::new(Cursor::new(&bytes));
            for (offset, count) in asks {
                let (mut seen, mut meant) = (vec![0; count], vec![0; count]);
                let got = window.read_at(offset, &mut seen).unwrap();
                let expected = bytes.as_slice().read_at(offset, &mut meant).unwrap();
                prop_assert_eq!(got, expected);
                prop_assert_eq!(&seen[..got], &meant[..got]);
            }
        }
    }

    /// Returns the reads and bytes that a walk over headers of 12 bytes costs.
    fn cost_of_headers(step: u64, count: u64) -> (u64, u64) {
        let mut window = ReadWindow::new(Cursor::new(vec![0u8; (step * count) as usize]));
        for header in 0..count {
            window.read_at(header * step, &mut [0; 12]).unwrap();
        }
        (window.reads, window.bytes)
    }

    #[test]
    fn one_read_brings_many_small_records() {
        let (reads, bytes) = cost_of_headers(100, 100_000);
        assert!(reads < 60, "{reads} reads");
        assert!(bytes < 10_200_000, "{bytes} bytes");
    }

    #[test]
    fn large_records_are_skipped_and_not_read() {
        let (reads, bytes) = cost_of_headers(110_000, 300);
        assert_eq!(reads, 300);
        assert!(bytes <= 300 * NARROWEST as u64 + NARROWEST as u64, "{bytes} bytes");
    }
}
