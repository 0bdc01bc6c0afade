//! Verifies that a file is the one that was listed, by its stamp.

use belady_base::SampleId;

use super::super::packed::{Flaw, IndexFile};
use super::super::stamp::{self, Stamp};
use super::super::{Operations, ReadError};
use super::FileSource;
use super::handle::FileHandle;

/// What a stamp says about bytes that were read before it, if the file has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StampCheck {
    /// The bytes are of this version.
    Version(i64),
    /// The file was touched while it was read or kept open: the caller opens and reads it again.
    Retry,
}

impl FileSource {
    /// Checks an open file after a read, and counts the call.
    pub(super) fn check_after_read(
        &self,
        handle: &FileHandle,
        sample: SampleId,
        number: u32,
    ) -> Result<StampCheck, ReadError> {
        self.counters.stated(1);
        self.check_handle(handle, sample, number)
    }

    /// Checks the stamp of an open file.
    pub(super) fn check_handle(
        &self,
        handle: &FileHandle,
        sample: SampleId,
        number: u32,
    ) -> Result<StampCheck, ReadError> {
        let round = self.versions.round();
        let stat = rustix::fs::fstat(handle.file())
            .map_err(|error| self.failed(sample, number, error.into()))?;
        let found = Stamp::from(&stat);
        if let FileHandle::Kept { file, fresh } = handle {
            let moved = stat.st_nlink == 0 || self.options.verify_times && file.is_touched(&stat);
            // A comparison by path may have found another file there.
            let listed = self.catalog.file_changed(number);
            let replaced = self.versions.is_new(number, listed, found.changed);
            if (moved || replaced) && !fresh {
                self.descriptors.remove(number);
                return Ok(StampCheck::Retry);
            }
        }
        self.check_stamp(sample, number, &found, round)
    }

    /// Checks the stamp that a file had in a round.
    fn check_stamp(
        &self,
        sample: SampleId,
        number: u32,
        found: &Stamp,
        round: u64,
    ) -> Result<StampCheck, ReadError> {
        let (size, time) = (self.catalog.file_size(number), self.catalog.file_modified(number));
        let listed = self.catalog.file_changed(number);
        let change = if !found.is_regular {
            "it is no longer a regular file".to_owned()
        } else if found.size != size {
            format!("it had {size} bytes and has {}", found.size)
        } else if self.options.verify_times && found.modified != time {
            "it was written to".to_owned()
        } else if self.versions.is_new(number, listed, found.changed)
            && !self.samples_lie_as_listed(sample, number, found)?
        {
            "its samples lie at other offsets".to_owned()
        } else {
            let first = !self.versions.has_noticed();
            let known = self.versions.record(number, listed, found.changed, round);
            if known.is_none() && first {
                // The next start lists again, and copies then carry the versions listed by it.
                self.forget_snapshot();
            }
            return Ok(known.map_or(StampCheck::Retry, StampCheck::Version));
        };
        Err(self.changed(sample, number, change))
    }

    /// Whether the samples of a touched file lie where they did. If they are found by reading, one
    /// thread indexes the file again.
    fn samples_lie_as_listed(
        &self,
        sample: SampleId,
        number: u32,
        found: &Stamp,
    ) -> Result<bool, ReadError> {
        stamp::settle(found.changed);
        let Some(index) = self.options.index else { return Ok(true) };
        let reindex = || match self.index_matches(number, index) {
            Err(Flaw::Io(error)) => Err(self.failed(sample, number, error)),
            matches => Ok(matches.unwrap_or(false)),
        };
        self.reindexed.holds(number, found.changed, reindex)
    }

    /// Whether an index of the file gives the samples that were listed.
    fn index_matches(&self, number: u32, index: IndexFile) -> Result<bool, Flaw> {
        let mut operations = Operations::default();
        let found = index(&self.path_of(number), &mut operations).map_err(|error| error.flaw);
        self.counters.add(operations);
        let first = self.first_sample_from(number);
        let listed = (first..self.first_sample_from(number + 1)).map(|sample| {
            let location = self.catalog.location(sample);
            (location.offset, location.length, self.catalog.label(sample))
        });
        Ok(listed.eq(found?.iter().map(|record| (record.offset, record.length, record.label))))
    }

    /// Returns the first sample in this file or a later one: samples are listed file by file.
    fn first_sample_from(&self, number: u32) -> SampleId {
        let (mut low, mut high) = (0, self.catalog.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.catalog.location(middle).file < number {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Compares the file at its path with the catalog: one that is kept open may have been
    /// replaced.
    pub(super) fn compare_file(&self, sample: SampleId, number: u32) -> Result<(), ReadError> {
        self.counters.stated(1);
        let round = self.versions.round();
        let found = self.root().and_then(|root| stamp::look(root, self.catalog.path(number)));
        let found = found.map_err(|error| self.failed(sample, number, error.into()))?;
        self.check_stamp(sample, number, &found, round).map(drop)
    }
}
