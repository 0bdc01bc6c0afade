//! Guesses a dataset's format from the names of its files.

use std::path::{Path, PathBuf};

use super::counters::OperationCounters;
use super::error::OpenError;
use super::format::DatasetFormat;
use super::{extensions, listing};

impl DatasetFormat {
    /// Guesses a dataset's format from the names of its files: only tar files are `webdataset`,
    /// only TFRecord files `tfrecord`, folders of other files `folder`, anything else `flat`. The
    /// format `records` is never guessed, since names do not tell the record size.
    ///
    /// # Errors
    ///
    /// If a directory cannot be listed, or the dataset is a file whose name tells no format.
    pub fn guess(path: &Path) -> Result<Self, OpenError> {
        Self::guess_counted(path, &OperationCounters::default())
    }

    pub(super) fn guess_counted(
        path: &Path,
        counters: &OperationCounters,
    ) -> Result<Self, OpenError> {
        let metadata =
            std::fs::metadata(path).map_err(|error| OpenError::unreadable(path, error))?;
        if !metadata.is_dir() {
            let mut packed = [Self::WebDataset, Self::TfRecord].into_iter();
            let path = path.to_owned();
            return packed.find(|format| format.claims(&path)).ok_or_else(|| {
                match extensions::unsupported(Path::new(path.file_name().unwrap_or_default())) {
                    Some(what) => OpenError::Unsupported { path, what },
                    None => OpenError::CannotGuess { path },
                }
            });
        }
        let (files, folders) = read_directory(path, counters)?;
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

fn guess_packed(files: &[PathBuf]) -> Option<DatasetFormat> {
    // Files that often accompany packed files and describe them.
    let describes = |path: &Path| {
        let extension = path.extension().unwrap_or_default();
        ["json", "txt", "md", "yaml", "csv", "idx"].iter().any(|&one| extension == one)
    };
    [DatasetFormat::WebDataset, DatasetFormat::TfRecord].into_iter().find(|format| {
        files.iter().any(|file| format.claims(file))
            && files.iter().all(|file| format.claims(file) || describes(file))
    })
}

/// Returns the files of the first directory, in order, at or below this one that has any.
fn first_files(
    directory: &Path,
    counters: &OperationCounters,
) -> Result<Option<Vec<PathBuf>>, OpenError> {
    let (files, folders) = read_directory(directory, counters)?;
    if !files.is_empty() {
        return Ok(Some(files));
    }
    for folder in &folders {
        // A link may lead back to an ancestor; a guess need not follow it.
        if !folder.is_symlink()
            && let Some(files) = first_files(folder, counters)?
        {
            return Ok(Some(files));
        }
    }
    Ok(None)
}

/// Returns the files and the folders in a directory, each sorted.
fn read_directory(
    directory: &Path,
    counters: &OperationCounters,
) -> Result<(Vec<PathBuf>, Vec<PathBuf>), OpenError> {
    let failed = |error| OpenError::unreadable(directory, error);
    counters.listed();
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if listing::is_hidden(entry.file_name().as_encoded_bytes()) {
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
