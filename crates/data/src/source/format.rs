//! The formats of datasets, by name.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use belady_control::model::Bytes;

/// How a dataset's files hold its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetFormat {
    /// Files in class folders, as in torchvision's ImageFolder: a file's label is its top-level
    /// folder, at any depth.
    Folder,
    /// Every file below the directory is a sample; no labels.
    Flat,
    /// Large files of records that all have this size.
    Records(Bytes),
    /// TensorFlow's record files.
    TfRecord,
    /// Tar files in which a sample is a group of members with the same key.
    WebDataset,
}

/// Why a text is not the name of a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum ParseFormatError {
    /// No format has this name.
    #[error(
        "`{0}` is not a format; use folder, flat, records:SIZE (such as records:4096 or \
         records:2MB), tfrecord or webdataset"
    )]
    Unknown(String),
    /// The record size is not valid.
    #[error("`{text}` has no valid record size: {reason}")]
    Size { text: String, reason: String },
}

impl FromStr for DatasetFormat {
    type Err = ParseFormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "folder" => Ok(Self::Folder),
            "flat" => Ok(Self::Flat),
            "tfrecord" => Ok(Self::TfRecord),
            "webdataset" => Ok(Self::WebDataset),
            _ => match text.strip_prefix("records:") {
                Some(size) => record_size(text, size),
                None => Err(ParseFormatError::Unknown(text.to_owned())),
            },
        }
    }
}

fn record_size(text: &str, size: &str) -> Result<DatasetFormat, ParseFormatError> {
    let refused = |reason: String| ParseFormatError::Size { text: text.to_owned(), reason };
    match size.parse::<Bytes>() {
        Ok(Bytes(0)) => Err(refused("a record has at least one byte".to_owned())),
        Ok(size) => Ok(DatasetFormat::Records(size)),
        Err(error) => Err(refused(error.to_string())),
    }
}

impl fmt::Display for DatasetFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder => f.write_str("folder"),
            Self::Flat => f.write_str("flat"),
            // In bytes, not rounded to a unit: this text is part of a snapshot's key.
            Self::Records(Bytes(size)) => write!(f, "records:{size}"),
            Self::TfRecord => f.write_str("tfrecord"),
            Self::WebDataset => f.write_str("webdataset"),
        }
    }
}

impl DatasetFormat {
    /// Whether one file holds many samples.
    pub(super) fn is_packed(self) -> bool {
        matches!(self, Self::Records(_) | Self::TfRecord | Self::WebDataset)
    }

    /// Whether the name of a file says that it has this format.
    pub(super) fn claims(self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let is = |extension: &str| Path::new(&name).extension().is_some_and(|it| it == extension);
        match self {
            Self::TfRecord => name.contains(".tfrecord") || is("tfrec"),
            Self::WebDataset => is("tar"),
            Self::Folder | Self::Flat | Self::Records(_) => false,
        }
    }
}
