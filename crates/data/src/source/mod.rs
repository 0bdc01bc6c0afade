//! Sources: where a dataset rests. Read-only, shared with others, slow.
//!
//! A source is opened once ([`open`]): its files are listed and their samples found, or the
//! snapshot of an earlier listing is read ([`Snapshots`]). What it holds is then fixed in
//! a [`Catalog`], the same on every node, and [`Source::read`] fetches samples by their
//! number. Wrappers make a source slow ([`Throttled`]) or unreliable ([`Faulty`]).
//!
//! ```text
//! open -> snapshot -----------------------> catalog (block) -> reader -> descriptors
//!      |-> format -> listing -> index ----/
//!      |-> a manifest of the user's ------/
//!      \-> what another process has listed
//!                                \-> tfrecord (its records: example), webdataset (packed)
//! ```

mod block;
mod catalog;
mod chosen;
#[doc(hidden)]
pub mod conformance;
mod counters;
mod descriptors;
pub mod example;
mod extensions;
mod faulty;
mod format;
mod index;
mod joined;
mod listed;
mod listing;
mod manifest;
mod open;
mod packed;
mod reader;
mod reindex;
mod snapshot;
mod stamp;
mod synthetic;
pub mod tfrecord;
mod throttled;
mod versions;
mod waiting;
pub mod webdataset;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use block::SnapshotError;
pub use catalog::{Catalog, CatalogBuilder, FileEntry, Location, SampleEntry};
pub use chosen::{ChooseError, Chosen};
pub use counters::{Progress, Seen};
pub use extensions::Extensions;
pub use faulty::{Fault, FaultSpec, Faulty};
pub use format::{Format, ParseFormatError};
pub use joined::{JoinError, Joined};
pub use listed::{Listed, open_listed};
pub use manifest::Manifest;
pub use open::{OpenError, OpenOptions, open, open_for_others, snapshot_path};
pub use packed::{Flaw, IndexError, Record};
pub use snapshot::Snapshots;
pub use synthetic::Synthetic;
pub use throttled::{ThrottleError, ThrottleSpec, Throttled};
pub use versions::{Begin, Freshness, Version};

use crate::{SampleId, open_files};

/// A sample and the memory it is to be read into, exactly as long as the catalog says.
#[derive(Debug)]
pub struct Want<'a> {
    pub sample: SampleId,
    pub into: &'a mut [u8],
    /// The version of the file that was read ([`Version::changed`]), once it was.
    pub version: i64,
}

impl<'a> Want<'a> {
    pub fn new(sample: SampleId, into: &'a mut [u8]) -> Self {
        Self { sample, into, version: Version::default().changed }
    }
}

/// Where the dataset rests.
pub trait Source: Send + Sync + fmt::Debug {
    /// What there is, fixed for the life of the source.
    fn catalog(&self) -> &Catalog;

    /// Reads samples that lie in one file, in the order in which they lie there, with one
    /// request as far as the operating system allows, and says which version of the file they are of
    /// ([`Want::version`]). All of them or none: after an error
    /// nothing may be assumed of the memory, and the caller may try again, also one by one.
    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError>;

    /// How many requests one call of [`read`](Self::read) had better make: more than one where
    /// they are under way at once. Wants of several files may then come in one call.
    fn together(&self) -> usize {
        1
    }

    /// Calls made on the storage so far, listing included.
    fn operations(&self) -> Operations;

    /// Makes sure that a sample's file is still the one that was listed, or one of which only the
    /// time of change is new ([`Self::version`]). Asks the storage once for each file in a round
    /// ([`Self::begin`]); sources whose bytes cannot change ask nothing.
    fn compare(&self, _sample: SampleId) -> Result<(), ReadError> {
        Ok(())
    }

    /// Whether [`compare`](Self::compare) would ask nothing.
    fn is_compared(&self, _sample: SampleId) -> bool {
        true
    }

    /// The version of the sample's file, as far as is known without asking. A copy of another one is
    /// not the sample.
    fn version(&self, _sample: SampleId) -> Version {
        Version::default()
    }

    /// A job or an epoch begins: files are compared again, if the user wants it so ([`Freshness`]).
    fn begin(&self, _what: Begin) {}
}

/// The versions of a wrapped source's files are those of the source.
macro_rules! forward_versions {
    ($self:ident, $source:expr) => {
        fn compare(&$self, sample: $crate::SampleId) -> Result<(), $crate::source::ReadError> {
            $source.compare(sample)
        }

        fn is_compared(&$self, sample: $crate::SampleId) -> bool {
            $source.is_compared(sample)
        }

        fn version(&$self, sample: $crate::SampleId) -> $crate::source::Version {
            $source.version(sample)
        }

        fn begin(&$self, what: $crate::source::Begin) {
            $source.begin(what);
        }
    };
}
use forward_versions;

/// What owns a source is one.
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

/// Calls on the storage that a dataset rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Directories listed.
    pub list: u64,
    pub open: u64,
    pub stat: u64,
    pub read: u64,
    /// Bytes asked for by reads, those between neighbouring samples included.
    pub bytes: u64,
}

/// Why a sample could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system said no. Whether it may say yes later is [`Self::is_transient`].
    #[error("cannot read sample {sample} from {}: {error}", path.display())]
    Io { sample: SampleId, path: PathBuf, error: std::io::Error },
    /// Fewer bytes came than asked for, though the file is as long as it was.
    #[error("sample {sample} in {} ended after {got} of {expected} bytes", path.display())]
    Short { sample: SampleId, path: PathBuf, expected: u64, got: u64 },
    /// The file is not what it was when the dataset was listed.
    #[error(
        "{} has changed since the dataset was listed ({change}); sample {sample} cannot be \
         trusted: start again to list it anew", path.display()
    )]
    Changed { sample: SampleId, path: PathBuf, change: String },
    /// A checksum in the file does not match.
    #[error("sample {sample} in {} is damaged: {damage}", path.display())]
    Damaged { sample: SampleId, path: PathBuf, damage: String },
}

impl ReadError {
    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        use std::io::ErrorKind as Kind;
        match self {
            Self::Io { error, .. } => !matches!(
                error.kind(),
                Kind::NotFound | Kind::PermissionDenied | Kind::IsADirectory | Kind::InvalidInput
            ),
            // Bytes can be damaged on the way as well as where they rest.
            Self::Short { .. } | Self::Damaged { .. } => true,
            Self::Changed { .. } => false,
        }
    }

    /// Whether the process had no descriptor left to open the file with, which says nothing of the sample.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Io { error, .. } if open_files::is_shortage(error))
    }

    /// The file that the sample lies in.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Short { path, .. }
            | Self::Changed { path, .. }
            | Self::Damaged { path, .. } => path,
        }
    }

    /// The same of a sample with another number.
    pub(super) fn renumbered(mut self, number: impl FnOnce(SampleId) -> SampleId) -> Self {
        let (Self::Io { sample, .. }
        | Self::Short { sample, .. }
        | Self::Changed { sample, .. }
        | Self::Damaged { sample, .. }) = &mut self;
        *sample = number(*sample);
        self
    }

    pub fn sample(&self) -> SampleId {
        match self {
            Self::Io { sample, .. }
            | Self::Short { sample, .. }
            | Self::Changed { sample, .. }
            | Self::Damaged { sample, .. } => *sample,
        }
    }
}
