//! Datasets whose files the user names one by one: a list from the program or from a table.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use rustix::fs::CWD;
use xxhash_rust::xxh3::Xxh3;

use super::counters::OperationCounters;
use super::error::OpenError;
use super::listing::{STATS_IN_A_TASK, entry};
use super::progress::ListingProgress;
use super::stamp;
use super::threads::on_many_threads;
use super::{CatalogBuilder, FileEntry, SampleEntry, SampleLocation};

/// The files of a dataset, in the order of their ids; each is a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Relative to the dataset's directory, or absolute.
    pub files: Vec<PathBuf>,
    /// One label for each file, or an empty list.
    pub labels: Vec<Option<u32>>,
    /// The names of the labels, if they have names.
    pub classes: Vec<OsString>,
}

impl Manifest {
    /// Returns the text that identifies its snapshot.
    pub(super) fn key(&self) -> String {
        let mut hash = Xxh3::new();
        let mut text = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        self.files.iter().for_each(|file| text(file.as_os_str().as_bytes()));
        self.classes.iter().for_each(|class| text(class.as_bytes()));
        let labels = self.labels.iter().map(|label| label.map_or(u64::MAX, u64::from));
        labels.for_each(|label| hash.update(&label.to_le_bytes()));
        format!("{} files {:032x}", self.files.len(), hash.digest128())
    }

    /// Reads the size and the times of every file, on many threads.
    pub(super) fn list(
        &self,
        root: &Path,
        progress: &ListingProgress<'_>,
        counters: &OperationCounters,
    ) -> Result<CatalogBuilder, OpenError> {
        let file = |(at, path): (usize, &PathBuf)| {
            counters.stated(1);
            look(root, path).map_err(|error| OpenError::NoFile {
                path: root.join(path),
                position: at,
                error,
            })
        };
        let each = self.files.par_iter().enumerate().with_min_len(STATS_IN_A_TASK);
        let files = on_many_threads(|| each.map(file).collect::<Result<Vec<_>, _>>())?;
        progress.listed(files.len() as u64);
        let samples = (0..).zip(&files).map(|(at, file): (u32, &FileEntry)| SampleEntry {
            location: SampleLocation { file: at, offset: 0, length: file.size },
            label: self.labels.get(at as usize).copied().flatten(),
        });
        Ok(CatalogBuilder {
            samples: samples.collect(),
            classes: self.classes.clone(),
            directories: self.directories(root, counters),
            files,
        })
    }

    /// Returns the directories of the files, with the times that tell whether names in them have
    /// changed.
    fn directories(&self, root: &Path, counters: &OperationCounters) -> Vec<(PathBuf, i64)> {
        let parents: BTreeSet<&Path> = self.files.iter().filter_map(|file| file.parent()).collect();
        counters.stated(parents.len() as u64);
        let time = |directory: &&Path| {
            let stamp = stamp::look(CWD, &root.join(directory)).ok()?;
            Some((directory.to_path_buf(), stamp.modified))
        };
        parents.iter().filter_map(time).collect()
    }
}

fn look(root: &Path, path: &Path) -> Result<FileEntry, io::Error> {
    let stamp = stamp::look(CWD, &root.join(path))?;
    if !stamp.is_regular {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(entry(path.to_owned(), &stamp))
}
