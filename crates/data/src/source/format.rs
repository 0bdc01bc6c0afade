//! The formats a dataset can have, by name.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use belady_control::model::Bytes;

use super::counters::Counters;
use super::extensions;
use super::open::OpenError;

/// How samples lie in a dataset's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Files in class folders, as torchvision's ImageFolder has them: the label of a file is
    /// the top-level folder it lies in, at any depth.
    Folder,
    /// Every file below the directory is a sample; no labels.
    Flat,
    /// Big files of records that all have this size.
    Records(Bytes),
    /// TensorFlow's record files.
    TfRecord,
    /// Tar files of samples that are groups of members with the same key.
    WebDataset,
}

/// Why a name is no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseFormatError {
    #[error(
        "`{0}` is no format; use folder, flat, records:SIZE (such as records:4096 or \
         records:2MB), tfrecord or webdataset"
    )]
    Unknown(String),
    #[error("`{text}` has no usable record size: {reason}")]
    Size { text: String, reason: String },
}

impl FromStr for Format {
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

fn record_size(text: &str, size: &str) -> Result<Format, ParseFormatError> {
    let refused = |reason: String| ParseFormatError::Size { text: text.to_owned(), reason };
    match size.parse::<Bytes>() {
        Ok(Bytes(0)) => Err(refused("a record has at least one byte".to_owned())),
        Ok(size) => Ok(Format::Records(size)),
        Err(error) => Err(refused(error.to_string())),
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder => f.write_str("folder"),
            Self::Flat => f.write_str("flat"),
            // To the byte: snapshots are told apart by this text.
            Self::Records(Bytes(size)) => write!(f, "records:{size}"),
            Self::TfRecord => f.write_str("tfrecord"),
            Self::WebDataset => f.write_str("webdataset"),
        }
    }
}

impl Format {
    /// Whether many samples lie in one file.
    pub(super) fn is_packed(self) -> bool {
        matches!(self, Self::Records(_) | Self::TfRecord | Self::WebDataset)
    }

    /// Whether the name is that of a file of this format, where names tell.
    pub(super) fn claims(self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let is = |extension: &str| Path::new(&name).extension().is_some_and(|it| it == extension);
        match self {
            Self::TfRecord => name.contains(".tfrecord") || is("tfrec"),
            Self::WebDataset => is("tar"),
            Self::Folder | Self::Flat | Self::Records(_) => false,
        }
    }

    /// What the names of a dataset's files look like: tar files alone are `webdataset`,
    /// TFRecord files alone `tfrecord`, folders of other files `folder`, anything else
    /// `flat`. Records cannot be guessed, since nothing tells their size.
    pub fn guess(path: &Path) -> Result<Self, OpenError> {
        Self::guess_counted(path, &Counters::default())
    }

    pub(super) fn guess_counted(path: &Path, counters: &Counters) -> Result<Self, OpenError> {
        let metadata =
            std::fs::metadata(path).map_err(|error| OpenError::unreadable(path, error))?;
        if !metadata.is_dir() {
            let mut packed = [Self::WebDataset, Self::TfRecord].into_iter();
            let path = path.to_owned();
            return packed.find(|format| format.claims(&path)).ok_or_else(
                || match extensions::unread(Path::new(path.file_name().unwrap_or_default())) {
                    Some(what) => OpenError::Unread { path, what },
                    None => OpenError::CannotGuess { path },
                },
            );
        }
        let (files, folders) = look(path, counters)?;
        if let Some(packed) = guess_packed(&files) {
            return Ok(packed);
        }
        for folder in &folders {
            if let Some(files) = first_files(folder, counters)? {
                return Ok(guess_packed(&files).unwrap_or(Self::Folder));
            }
        }
        Ok(Self::Flat)
    }
}

fn guess_packed(files: &[PathBuf]) -> Option<Format> {
    // What usually lies beside packed files and describes them.
    let describes = |path: &Path| {
        let extension = path.extension().unwrap_or_default();
        ["json", "txt", "md", "yaml", "csv", "idx"].iter().any(|&one| extension == one)
    };
    [Format::WebDataset, Format::TfRecord].into_iter().find(|format| {
        files.iter().any(|file| format.claims(file))
            && files.iter().all(|file| format.claims(file) || describes(file))
    })
}

/// The files of the first directory, in order, at or below this one that has any.
fn first_files(directory: &Path, counters: &Counters) -> Result<Option<Vec<PathBuf>>, OpenError> {
    let (files, folders) = look(directory, counters)?;
    if !files.is_empty() {
        return Ok(Some(files));
    }
    for folder in &folders {
        // A link may lead back up here; a guess need not follow it.
        if !folder.is_symlink()
            && let Some(files) = first_files(folder, counters)?
        {
            return Ok(Some(files));
        }
    }
    Ok(None)
}

/// The files and the folders in a directory, each sorted.
fn look(directory: &Path, counters: &Counters) -> Result<(Vec<PathBuf>, Vec<PathBuf>), OpenError> {
    let failed = |error| OpenError::unreadable(directory, error);
    counters.listed();
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let is_folder = kind.is_dir() || (kind.is_symlink() && path.is_dir());
        if is_folder { folders.push(path) } else { files.push(path) }
    }
    files.sort_unstable();
    folders.sort_unstable();
    Ok((files, folders))
}
