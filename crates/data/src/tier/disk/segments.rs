//! The segment files: one address space of bytes, divided into files of equal length.
//!
//! Files are created and extended in order as space is needed, so the space is always contiguous
//! from zero, and the files' lengths give its end after a restart.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belady_base::sync::{Mutex, lock};

use super::granule::Granule;
use super::index::{IndexHeader, PAGE};
use super::location::{MOST_PIECES, SegmentLocation, decode_table, payload_runs, table_bytes};
use super::segment_file::SegmentFile;
use crate::tier::extents::Extent;

/// The bytes between two starts of write-back: large enough to be sequential for a disk, small
/// beside the kernel's own limits on dirty pages.
const WRITE_BACK: u64 = 8 << 20;

/// The segments of one cache.
#[derive(Debug)]
pub(super) struct Segments {
    directory: PathBuf,
    segment_bytes: u64,
    granule: Granule,
    writable: bool,
    open: Mutex<HashMap<u64, Arc<SegmentFile>>>,
    written: AtomicU64,
}

impl Segments {
    pub fn new(directory: &Path, header: &IndexHeader, writable: bool) -> Self {
        Self {
            directory: directory.to_owned(),
            segment_bytes: header.segment_bytes,
            granule: header.granule,
            writable,
            open: Mutex::new(HashMap::new()),
            written: AtomicU64::new(0),
        }
    }

    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub fn granule(&self) -> Granule {
        self.granule
    }

    /// Returns the granules of a segment.
    pub fn segment_granules(&self) -> u64 {
        self.segment_bytes / self.granule.bytes()
    }

    /// Returns the pieces of a sample, from the table in its first piece if it has several.
    pub fn pieces(&self, location: SegmentLocation, size: u64) -> io::Result<Vec<Extent>> {
        let Some(count) = location.pieces else {
            return Ok(vec![Extent { start: location.start, granules: self.granule.count(size) }]);
        };
        let torn = || io::Error::new(io::ErrorKind::InvalidData, "the table of pieces is torn");
        if u64::from(count) > MOST_PIECES {
            return Err(torn());
        }
        let mut table = vec![0; table_bytes(count)];
        self.read(location.start * self.granule.bytes(), &mut table)?;
        decode_table(&table, location.start, size, self.granule).ok_or_else(torn)
    }

    /// Copies a sample's payload, which the caller checks by its checksum.
    pub fn read_sample(&self, location: SegmentLocation, into: &mut [u8]) -> io::Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        if location.pieces.is_none() {
            return self.read(location.start * self.granule.bytes(), into);
        }
        let pieces = self.pieces(location, into.len() as u64)?;
        let mut rest = into;
        for (at, length) in payload_runs(&pieces, rest.len() as u64, self.granule) {
            let (part, others) = rest.split_at_mut(length);
            self.read(at, part)?;
            rest = others;
        }
        Ok(())
    }

    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let segment = self.segment(at / self.segment_bytes)?;
        segment.write_at(at % self.segment_bytes, bytes)?;
        let before = self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if before / WRITE_BACK != (before + bytes.len() as u64) / WRITE_BACK {
            segment.start_write_back();
        }
        Ok(())
    }

    /// Extends the space from `from` to `to` bytes, which lie in the same segment.
    pub fn extend(&self, from: u64, to: u64) -> io::Result<()> {
        let start = from - from % self.segment_bytes;
        self.segment_or_new(from / self.segment_bytes, true)?.extend(from - start, to - start)
    }

    /// Returns the bytes of space that the files have, in whole pages, at most `limit`. The rest is
    /// truncated.
    pub fn trim(&self, limit: u64) -> io::Result<u64> {
        let mut made = 0;
        let mut number = 0;
        let mut is_last = false;
        while path(&self.directory, number).exists() {
            if is_last || made >= limit {
                std::fs::remove_file(path(&self.directory, number))?;
            } else {
                let segment = self.segment(number)?;
                let bytes = segment.bytes()?;
                let keep = bytes.min(self.segment_bytes).min(limit - made) / PAGE * PAGE;
                if keep < bytes {
                    segment.truncate(keep)?;
                }
                made += keep;
                is_last = keep < self.segment_bytes;
            }
            number += 1;
        }
        Ok(made)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.segment(at / self.segment_bytes)?.read_at(at % self.segment_bytes, into)
    }

    fn segment(&self, number: u64) -> io::Result<Arc<SegmentFile>> {
        self.segment_or_new(number, false)
    }

    fn segment_or_new(&self, number: u64, create: bool) -> io::Result<Arc<SegmentFile>> {
        let mut open = lock(&self.open);
        if let Some(segment) = open.get(&number) {
            return Ok(Arc::clone(segment));
        }
        let path = path(&self.directory, number);
        let segment = Arc::new(SegmentFile::open(&path, self.writable, create)?);
        open.insert(number, Arc::clone(&segment));
        Ok(segment)
    }
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(file_name(number))
}

/// `segment-0000`, ...
pub(super) fn file_name(number: u64) -> String {
    format!("segment-{number:04}")
}

pub(super) fn is_file_name(name: &str) -> bool {
    name.strip_prefix("segment-")
        .is_some_and(|number| number.len() >= 4 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_four_digits_or_more_name_segments() {
        for number in [0, 9, 9_999, 10_000, 123_456] {
            assert!(is_file_name(&file_name(number)), "{number}");
        }
        for name in ["segment-", "segment-123", "segment-00a0", "segment_0000", "0000", "lock"] {
            assert!(!is_file_name(name), "{name}");
        }
    }
}
