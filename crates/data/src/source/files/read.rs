//! Reads wants from files: those that lie close together with one call, those of a local disk at
//! once.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;

use belady_base::SampleId;

use super::super::{ReadError, Want};
use super::FileSource;
use super::handle::FileHandle;
use super::verify::StampCheck;
use crate::file::{self, Cold};

/// Wants further apart than this are not read together: reading a gap of this size takes
/// about as long as another call.
const LARGEST_GAP: u64 = 64 << 10;

/// How often a file is read whose time of change is new after every read.
const MOST_READS: u32 = 5;
const KEEPS_CHANGING: &str = "its time of change was new after every read";

thread_local! {
    /// Memory for the bytes between wants.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl FileSource {
    /// Reads wants that all lie in one file.
    pub(super) fn read_file(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let first = wants[0].sample;
        let number = self.catalog.location(first).file;
        for _ in 0..MOST_READS {
            let handle = self.open_checked(first, number)?;
            let outcome = self.read_wants(handle.file(), number, wants, handle.cold());
            // Checked before the outcome: a change of the file also explains a failed read.
            if let StampCheck::Version(version) = self.check_after_read(&handle, first, number)? {
                for want in wants {
                    want.version = version;
                }
                return outcome;
            }
        }
        Err(self.changed(first, number, KEEPS_CHANGING.to_owned()))
    }

    /// Reads wants of any files, with all reads of the disk in flight at once.
    pub(super) fn read_at_once(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        for _ in 0..MOST_READS {
            if self.try_at_once(wants)? {
                return Ok(());
            }
        }
        let first = wants[0].sample;
        Err(self.changed(first, self.catalog.location(first).file, KEEPS_CHANGING.to_owned()))
    }

    /// Reads wants once, and returns whether the bytes count.
    fn try_at_once(&self, wants: &mut [Want<'_>]) -> Result<bool, ReadError> {
        let mut handles: Vec<(FileHandle, u32, SampleId)> = Vec::with_capacity(wants.len());
        for want in &*wants {
            let number = self.catalog.location(want.sample).file;
            if handles.last().is_none_or(|(_, last, _)| *last != number) {
                handles.push((self.open_checked(want.sample, number)?, number, want.sample));
            }
        }
        let mut at = 0;
        let mut requests: Vec<file::ReadRequest<'_>> = Vec::with_capacity(wants.len());
        for want in &mut *wants {
            let location = self.catalog.location(want.sample);
            at += usize::from(handles[at].1 != location.file);
            let handle = &handles[at].0;
            self.counters.read(location.length);
            requests.push(file::ReadRequest {
                file: handle.file(),
                cold: handle.cold(),
                offset: location.offset,
                into: want.into,
            });
        }
        let got = file::read_many(&mut requests);
        let outcome = wants.iter_mut().zip(got).try_for_each(|(want, got)| {
            let number = self.catalog.location(want.sample).file;
            self.check_whole(number, std::slice::from_ref(want), want.into.len(), got)
        });
        let mut current = true;
        let mut rest = wants;
        for (handle, number, first) in &handles {
            let in_file = |want: &Want<'_>| self.catalog.location(want.sample).file == *number;
            let others = rest.iter().position(|want| !in_file(want)).unwrap_or(rest.len());
            let (of_file, after) = rest.split_at_mut(others);
            rest = after;
            match self.check_after_read(handle, *first, *number)? {
                StampCheck::Version(version) => {
                    for want in of_file {
                        want.version = version;
                    }
                }
                StampCheck::Retry => current = false,
            }
        }
        if current {
            outcome?;
        }
        Ok(current)
    }

    /// Opens the file of a sample. A file that was just opened is checked before it is read, so
    /// that one that was touched since it was listed is read once.
    fn open_checked(&self, sample: SampleId, number: u32) -> Result<FileHandle, ReadError> {
        let handle =
            self.find_or_open(number).map_err(|error| self.failed(sample, number, error))?;
        if handle.is_fresh() {
            // Opening the file has fetched its stamp: this is no further call on the storage.
            self.check_handle(&handle, sample, number)?;
        }
        Ok(handle)
    }

    fn read_wants(
        &self,
        file: &File,
        number: u32,
        wants: &mut [Want<'_>],
        cold: Cold<'_>,
    ) -> Result<(), ReadError> {
        let mut rest = wants;
        while !rest.is_empty() {
            let (together, others) = rest.split_at_mut(self.count_together(rest));
            self.read_together(file, number, together, cold)?;
            rest = others;
        }
        Ok(())
    }

    /// Returns how many of the wants one call can read: those that follow each other closely.
    pub(super) fn count_together(&self, wants: &[Want<'_>]) -> usize {
        let end = |want: &Want<'_>| {
            let location = self.catalog.location(want.sample);
            location.offset + location.length + self.trailer_length() as u64
        };
        let apart = wants.windows(2).position(|pair| {
            let gap = self.catalog.location(pair[1].sample).offset.checked_sub(end(&pair[0]));
            gap.is_none_or(|gap| gap > LARGEST_GAP)
        });
        apart.map_or(wants.len(), |at| at + 1)
    }

    fn read_together(
        &self,
        file: &File,
        number: u32,
        wants: &mut [Want<'_>],
        cold: Cold<'_>,
    ) -> Result<(), ReadError> {
        let start = self.catalog.location(wants[0].sample).offset;
        if let ([want], None) = (&mut *wants, self.options.trailer) {
            let wanted = want.into.len();
            let got = self.counted(wanted, || file::read_exact_at(file, start, want.into, cold));
            return self.check_whole(number, wants, wanted, got);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let behind = self.lay_out(wants, scratch);
            let wanted = scratch.len() + wants.iter().map(|want| want.into.len()).sum::<usize>();
            let got = self.counted(wanted, || {
                let mut pieces = pieces(wants, scratch, &behind);
                file::read_vectored_at(file, start, &mut pieces, cold)
            });
            self.check_whole(number, wants, wanted, got)?;
            self.check_trailers(number, wants, scratch, &behind)
        })
    }

    fn counted(&self, bytes: usize, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        self.counters.read(bytes as u64);
        read()
    }

    /// Returns where in the scratch memory the bytes behind each want go: its trailer, and the gap
    /// to the next want.
    fn lay_out(&self, wants: &[Want<'_>], scratch: &mut Vec<u8>) -> Vec<Range<usize>> {
        let mut at = 0;
        let mut behind = Vec::with_capacity(wants.len());
        for (index, want) in wants.iter().enumerate() {
            let location = self.catalog.location(want.sample);
            let length = wants.get(index + 1).map_or(self.trailer_length(), |next| {
                let next = self.catalog.location(next.sample).offset;
                (next - location.offset - location.length) as usize
            });
            behind.push(at..at + length);
            at += length;
        }
        scratch.resize(at, 0);
        behind
    }

    fn check_trailers(
        &self,
        number: u32,
        wants: &[Want<'_>],
        scratch: &[u8],
        behind: &[Range<usize>],
    ) -> Result<(), ReadError> {
        let Some(trailer) = self.options.trailer else { return Ok(()) };
        for (want, behind) in wants.iter().zip(behind) {
            let bytes = &scratch[behind.clone()][..trailer.length];
            if let Some(damage) = (trailer.damage)(want.into, bytes) {
                let path = self.path_of(number);
                return Err(ReadError::Damaged { sample: want.sample, path, damage });
            }
        }
        Ok(())
    }

    fn trailer_length(&self) -> usize {
        self.options.trailer.map_or(0, |trailer| trailer.length)
    }

    /// Turns a call that failed or returned too little into an error.
    fn check_whole(
        &self,
        number: u32,
        wants: &[Want<'_>],
        wanted: usize,
        got: io::Result<usize>,
    ) -> Result<(), ReadError> {
        match got {
            Ok(got) if got == wanted => Ok(()),
            Ok(got) => Err(self.short(number, wants, got as u64)),
            Err(error) => Err(self.failed(wants[0].sample, number, error)),
        }
    }

    fn short(&self, number: u32, wants: &[Want<'_>], got: u64) -> ReadError {
        let start = self.catalog.location(wants[0].sample).offset;
        // The last want, if only its trailer is missing.
        let cut = wants.iter().find(|want| {
            let location = self.catalog.location(want.sample);
            location.offset + location.length > start + got
        });
        let sample = cut.unwrap_or(&wants[wants.len() - 1]).sample;
        let location = self.catalog.location(sample);
        let got = (start + got).saturating_sub(location.offset).min(location.length);
        ReadError::Short { sample, path: self.path_of(number), expected: location.length, got }
    }
}

/// Returns the memory of the wants, each followed by the scratch memory for the bytes behind it.
fn pieces<'a>(
    wants: &'a mut [Want<'_>],
    mut scratch: &'a mut [u8],
    behind: &[Range<usize>],
) -> Vec<IoSliceMut<'a>> {
    let mut pieces = Vec::with_capacity(2 * wants.len());
    for (want, behind) in wants.iter_mut().zip(behind) {
        pieces.push(IoSliceMut::new(want.into));
        let (gap, rest) = scratch.split_at_mut(behind.len());
        pieces.push(IoSliceMut::new(gap));
        scratch = rest;
    }
    pieces
}
