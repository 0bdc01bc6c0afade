//! Sources: where a dataset is stored. Read-only, shared and slow.
//!
//! Opening a source ([`open`]) lists its files and finds their samples, or reads the snapshot of an
//! earlier listing ([`Snapshots`]). The result is a [`Catalog`], fixed and the same on every node;
//! [`Source::read`] then reads samples by their number. Wrappers make a source slow ([`Throttled`])
//! or unreliable ([`Faulty`]), join several ([`Joined`]) or select samples of one ([`Subset`]).
//!
//! ```text
//! open -> snapshot ------------------------------------> catalog -> files (FileSource)
//!      |-> guess -> scan -> listing -> index ---------/
//!      |                \-> manifest ----------------/     index -> tfrecord, webdataset (packed)
//!      \-> the catalog of another process -----------/
//! ```

mod catalog;
#[doc(hidden)]
pub mod conformance;
mod counters;
mod error;
mod extensions;
mod faulty;
mod files;
mod format;
mod guess;
mod index;
mod joined;
mod listing;
mod manifest;
mod open;
mod options;
mod packed;
mod progress;
mod scan;
mod snapshot;
mod stall_warning;
mod stamp;
mod subset;
mod synthetic;
pub mod tf_example;
pub mod tfrecord;
mod threads;
mod throttled;
mod versions;
pub mod webdataset;

use std::fmt;
use std::sync::Arc;

pub use catalog::{Catalog, CatalogBuilder, FileEntry, SampleEntry, SampleLocation, SnapshotError};
pub use error::{OpenError, ReadError};
pub use extensions::Extensions;
pub use faulty::{Fault, FaultSpec, Faulty};
pub use format::{DatasetFormat, ParseFormatError};
pub use joined::{JoinSourcesError, Joined};
pub use listing::CACHE_FOLDER;
pub use manifest::Manifest;
pub use open::{SharedListing, open, open_for_sharing, open_shared_listing, snapshot_path};
pub use options::OpenOptions;
pub use packed::{Flaw, IndexFileError, PackedRecord};
pub use progress::{ListingCounts, ListingProgress};
pub use snapshot::Snapshots;
pub use subset::{Subset, SubsetError};
pub use synthetic::Synthetic;
pub use throttled::{ThrottleError, ThrottleSpec, Throttled};
pub use versions::{Begin, Freshness, Version};

/// A sample to read, and the memory to read it into.
#[derive(Debug)]
pub struct Want<'a> {
    /// The sample.
    pub sample: SampleId,
    /// Memory exactly as long as the sample.
    pub into: &'a mut [u8],
    /// After a read, the version of the file that was read ([`Version::changed`]).
    pub version: i64,
}

impl<'a> Want<'a> {
    /// Creates a want for a sample.
    pub fn new(sample: SampleId, into: &'a mut [u8]) -> Self {
        Self { sample, into, version: Version::default().changed }
    }
}

/// Where a dataset is stored.
pub trait Source: Send + Sync + fmt::Debug {
    /// Returns the dataset's samples, fixed for the life of the source.
    fn catalog(&self) -> &Catalog;

    /// Reads samples of one file, given in the order of their offsets, with one request if the
    /// operating system allows, and sets [`Want::version`].
    ///
    /// # Errors
    ///
    /// If any of the samples cannot be read. The memory of all wants is then unspecified, and the
    /// caller may retry, also one by one.
    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError>;

    /// Returns how many wants a call of [`read`](Self::read) should have: more than one if their
    /// reads are in flight at once. The wants of a call may then lie in several files.
    fn together(&self) -> usize {
        1
    }

    /// Returns the calls made on the storage so far, including those of listing.
    fn operations(&self) -> Operations;

    /// Checks that a sample's file is still the one that was listed, apart from its time of change
    /// ([`Self::version`]). Makes one call on the storage per file and round ([`Self::begin`]);
    /// sources whose bytes cannot change make none.
    ///
    /// # Errors
    ///
    /// [`ReadError::Changed`] if the file has changed, or the error of the call.
    fn compare(&self, _sample: SampleId) -> Result<(), ReadError> {
        Ok(())
    }

    /// Whether [`compare`](Self::compare) would make no call on the storage.
    fn is_compared(&self, _sample: SampleId) -> bool {
        true
    }

    /// Returns the version of the sample's file that is known without a call on the storage. A copy
    /// of another version is not a copy of the sample.
    fn version(&self, _sample: SampleId) -> Version {
        Version::default()
    }

    /// Tells the source that a job or an epoch begins. Depending on the [`Freshness`], files are
    /// then compared again.
    fn begin(&self, _what: Begin) {}
}

/// Forwards the methods about versions to a wrapped source.
macro_rules! forward_versions {
    ($self:ident, $source:expr) => {
        fn compare(&$self, sample: belady_base::SampleId) -> Result<(), $crate::source::ReadError> {
            $source.compare(sample)
        }

        fn is_compared(&$self, sample: belady_base::SampleId) -> bool {
            $source.is_compared(sample)
        }

        fn version(&$self, sample: belady_base::SampleId) -> $crate::source::Version {
            $source.version(sample)
        }

        fn begin(&$self, what: $crate::source::Begin) {
            $source.begin(what);
        }
    };
}
use belady_base::SampleId;
use forward_versions;

/// Implements [`Source`] for an owner of a source.
macro_rules! owner {
    ($owner:ident) => {
        impl<S: Source + ?Sized> Source for $owner<S> {
            fn catalog(&self) -> &Catalog {
                (**self).catalog()
            }

            fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
                (**self).read(wants)
            }

            fn together(&self) -> usize {
                (**self).together()
            }

            fn operations(&self) -> Operations {
                (**self).operations()
            }

            forward_versions!(self, **self);
        }
    };
}
owner!(Box);
owner!(Arc);

/// Numbers of calls on the storage of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Directories listed.
    pub list: u64,
    /// Files opened.
    pub open: u64,
    /// Queries for a file's size and times.
    pub stat: u64,
    /// Reads.
    pub read: u64,
    /// Bytes requested by reads, including those between neighbouring samples.
    pub bytes: u64,
}
