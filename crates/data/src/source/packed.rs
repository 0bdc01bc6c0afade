//! Packed files: many samples in one file, found by walking from header to header.
//!
//! A format ([`tfrecord`](super::tfrecord), [`webdataset`](super::webdataset)) walks over
//! anything that gives bytes at an offset ([`ReadAt`]): a file through a [`Window`], or bytes
//! in memory. Of a file only the headers are read. Where samples are small a window grows,
//! so that one call brings many headers; where they are large it stays a page.
//!
//! What is wrong with the bytes is a [`Flaw`]; with the file's name it is an [`IndexError`].

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::Operations;
use crate::signs;

/// A sample found in a packed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub offset: u64,
    pub length: u64,
    /// The sample's name, in formats that have names.
    pub key: Option<String>,
    /// The class number that lies beside the sample, in formats that have it.
    pub label: Option<u32>,
}

/// Finds the samples of a file, and counts the calls that takes.
pub(super) type IndexFile = fn(&Path, &mut Operations) -> Result<Vec<Record>, IndexError>;

/// Why a packed file could not be indexed.
#[derive(Debug, thiserror::Error)]
#[error("cannot index {}: {flaw}", path.display())]
pub struct IndexError {
    pub path: PathBuf,
    pub flaw: Flaw,
}

/// What is wrong with the bytes of a packed file.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is compressed with {0}, so samples cannot be read singly: decompress it first")]
    Compressed(&'static str),
    #[error(
        "it breaks off in the middle of what begins at byte {offset}, after {whole} whole \
         samples: copy or write it again"
    )]
    Truncated { offset: u64, whole: u64 },
    #[error(
        "it ends at byte {offset} without the mark of an archive's end, after at least {whole} \
         whole samples, and so has probably been cut off: copy or write it again"
    )]
    NoEnd { offset: u64, whole: u64 },
    #[error("{damage} at byte {offset}, after {whole} whole samples: copy or write it again")]
    Damaged { offset: u64, whole: u64, damage: String },
    #[error(
        "the member at byte {offset} has the name `{name}`, which {why}: pack the archive again \
         with plain relative names"
    )]
    Hostile { offset: u64, name: String, why: &'static str },
    #[error("{what} at byte {offset} cannot be used: pack the archive again without it")]
    Unsupported { offset: u64, what: String },
}

impl Flaw {
    /// The same flaw, met after so many whole samples.
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
    /// Fills `into` from `offset` on; how much of it, which is less only at the end.
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

/// A page: less is not read from a disk anyway.
const NARROWEST: usize = 4 << 10;
/// Beyond this a call's cost no longer shows beside the copying.
const WIDEST: usize = 256 << 10;

/// A piece of a file, held in memory and moved forward from header to header.
#[derive(Debug)]
pub(super) struct Window<R> {
    reader: R,
    start: u64,
    held: usize,
    memory: Vec<u8>,
    span: usize,
    reads: u64,
    bytes: u64,
}

impl<R: Read + Seek> Window<R> {
    pub(super) fn new(reader: R) -> Self {
        let memory = Vec::new();
        Self { reader, start: 0, held: 0, memory, span: NARROWEST, reads: 0, bytes: 0 }
    }

    /// The part of the window from `offset` on.
    fn from(&self, offset: u64) -> &[u8] {
        let skip = offset.checked_sub(self.start).map_or(self.held, |skip| {
            usize::try_from(skip).map_or(self.held, |skip| skip.min(self.held))
        });
        &self.memory[skip..self.held]
    }

    /// Moves the window to `offset`, with at least `least` bytes if there are as many.
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
                    signs::give();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes += self.held as u64;
        Ok(())
    }
}

impl<R: Read + Seek> ReadAt for Window<R> {
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

/// Opens a file, walks over it, and adds what that took to `operations`.
pub(super) fn index_file(
    path: &Path,
    operations: &mut Operations,
    walk: impl FnOnce(&mut Window<File>, u64) -> Result<Vec<Record>, Flaw>,
) -> Result<Vec<Record>, IndexError> {
    let open_and_walk = || {
        operations.open += 1;
        let file = File::open(path)?;
        operations.stat += 1;
        let length = file.metadata()?.len();
        let mut window = Window::new(file);
        let found = walk(&mut window, length);
        operations.read += window.reads;
        operations.bytes += window.bytes;
        found
    };
    open_and_walk().map_err(|flaw| IndexError { path: path.to_owned(), flaw })
}

/// The compression that bytes begin like. Asked only once they have failed as what they
/// should be, since any of these may also begin a proper file.
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
        fn a_window_shows_what_the_bytes_are(
            length in 0usize..20_000,
            asks in prop::collection::vec((0u64..21_000, 0usize..6_000), 1..30),
        ) {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut window = Window::new(Cursor::new(&bytes));
            for (offset, count) in asks {
                let (mut seen, mut meant) = (vec![0; count], vec![0; count]);
                let got = window.read_at(offset, &mut seen).unwrap();
                let expected = bytes.as_slice().read_at(offset, &mut meant).unwrap();
                prop_assert_eq!(got, expected);
                prop_assert_eq!(&seen[..got], &meant[..got]);
            }
        }
    }

    /// Reads and bytes that a walk over headers of 12 bytes costs.
    fn cost_of_headers(step: u64, count: u64) -> (u64, u64) {
        let mut window = Window::new(Cursor::new(vec![0u8; (step * count) as usize]));
        for header in 0..count {
            window.read_at(header * step, &mut [0; 12]).unwrap();
        }
        (window.reads, window.bytes)
    }

    #[test]
    fn many_small_records_come_with_one_read() {
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
