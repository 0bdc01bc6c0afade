//! Why a dataset cannot be opened, and why a sample cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use belady_base::{SampleId, open_files};

use super::format::DatasetFormat;
use super::packed::IndexFileError;

/// Why a dataset cannot be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum OpenError {
    /// Nothing exists at the path.
    #[error("there is no dataset at {}: check the path", path.display())]
    Missing { path: PathBuf },
    /// The path is a file, and the format needs a directory.
    #[error(
        "{} is a file and format {format} needs a directory: name the directory, or a format \
         that packs samples into files (records:SIZE, tfrecord, webdataset)", path.display()
    )]
    NotADirectory { path: PathBuf, format: DatasetFormat },
    /// A file or directory cannot be read.
    #[error("cannot list {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The dataset has no samples.
    #[error("no samples in {} as format {format}: {hint}", path.display())]
    Empty { path: PathBuf, format: DatasetFormat, hint: &'static str },
    /// Some class folders are empty.
    #[error(
        "{} has class folders without a file that counts ({classes}): remove them, or allow empty \
         classes (allow_empty=True, --allow-empty), which keep their numbers", path.display()
    )]
    EmptyClasses { path: PathBuf, classes: String },
    /// The files are of a format that is not supported.
    #[error(
        "{} is {what}, which belady does not read: unpack or convert it, or choose the format \
         flat to use every file as one sample", path.display()
    )]
    Unsupported { path: PathBuf, what: &'static str },
    /// A file of the manifest cannot be read.
    #[error("cannot read {}, number {position} in the list of files: {error}", path.display())]
    NoFile { path: PathBuf, position: usize, error: io::Error },
    /// Ids have 32 bits.
    #[error("{} holds more than 2^32 {what}: split the dataset", path.display())]
    TooMany { path: PathBuf, what: &'static str },
    /// The name of a file does not tell its format.
    #[error(
        "cannot tell the format of {} from its name: name the format, such as records:4096",
        path.display()
    )]
    CannotGuess { path: PathBuf },
    /// A packed file cannot be indexed.
    #[error(transparent)]
    Index(#[from] IndexFileError),
}

impl OpenError {
    pub(super) fn unreadable(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            _ => Self::Unreadable { path, error },
        }
    }
}

/// Why a sample cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum ReadError {
    /// The operating system reported an error; [`Self::is_transient`] tells whether a retry may
    /// help.
    #[error("cannot read sample {sample} from {}: {error}", path.display())]
    Io { sample: SampleId, path: PathBuf, error: io::Error },
    /// The file has its listed size, but a read returned fewer bytes than requested.
    #[error("sample {sample} in {} ended after {got} of {expected} bytes", path.display())]
    Short { sample: SampleId, path: PathBuf, expected: u64, got: u64 },
    /// The file has changed since the dataset was listed.
    #[error(
        "{} has changed since the dataset was listed ({change}), so sample {sample} cannot be \
         trusted: start again to list the dataset again", path.display()
    )]
    Changed { sample: SampleId, path: PathBuf, change: String },
    /// A checksum in the file does not match.
    #[error("sample {sample} in {} is damaged: {damage}", path.display())]
    Damaged { sample: SampleId, path: PathBuf, damage: String },
}

impl ReadError {
    /// Whether a retry may help.
    pub fn is_transient(&self) -> bool {
        use io::ErrorKind as Kind;
        match self {
            Self::Io { error, .. } => !matches!(
                error.kind(),
                Kind::NotFound | Kind::PermissionDenied | Kind::IsADirectory | Kind::InvalidInput
            ),
            // Bytes can be damaged in transit as well as on the storage.
            Self::Short { .. } | Self::Damaged { .. } => true,
            Self::Changed { .. } => false,
        }
    }

    /// Whether the process had no descriptor left to open the file with. The sample may be fine.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Io { error, .. } if open_files::is_shortage(error))
    }

    /// Returns the file that holds the sample.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Short { path, .. }
            | Self::Changed { path, .. }
            | Self::Damaged { path, .. } => path,
        }
    }

    /// Returns the sample that could not be read.
    pub fn sample(&self) -> SampleId {
        match self {
            Self::Io { sample, .. }
            | Self::Short { sample, .. }
            | Self::Changed { sample, .. }
            | Self::Damaged { sample, .. } => *sample,
        }
    }

    /// Returns the same error for a sample with another number.
    pub(super) fn renumbered(mut self, number: impl FnOnce(SampleId) -> SampleId) -> Self {
        let (Self::Io { sample, .. }
        | Self::Short { sample, .. }
        | Self::Changed { sample, .. }
        | Self::Damaged { sample, .. }) = &mut self;
        *sample = number(*sample);
        self
    }
}
