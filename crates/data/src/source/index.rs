//! Finds the samples in listed files: one function for each format.

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::counters::OperationCounters;
use super::error::OpenError;
use super::listing::ListedDirectory;
use super::packed::IndexFile;
use super::progress::ListingProgress;
use super::threads::on_many_threads;
use super::{CatalogBuilder, FileEntry, Operations, SampleEntry, SampleLocation};

/// Indexes class folders: each file is a sample, labelled by its top-level folder. Files in no
/// folder are left out, as in torchvision.
pub(super) fn folder(directories: Vec<ListedDirectory>) -> CatalogBuilder {
    let mut builder = CatalogBuilder::default();
    let mut class: Option<PathBuf> = None;
    for directory in directories {
        builder.directories.push((directory.path.clone(), directory.modified));
        let Some(top) = directory.path.components().next() else { continue };
        // Directories come sorted by their top-level folder.
        if class.as_deref() != Some(Path::new(&top)) {
            class = Some(PathBuf::from(top.as_os_str()));
            builder.classes.push(top.as_os_str().to_owned());
        }
        let label = Some(builder.classes.len() as u32 - 1);
        directory.files.into_iter().for_each(|file| whole(&mut builder, file, label));
    }
    builder
}

/// Indexes a flat dataset: each file is a sample.
pub(super) fn flat(directories: Vec<ListedDirectory>) -> CatalogBuilder {
    let mut builder = CatalogBuilder::default();
    for directory in directories {
        builder.directories.push((directory.path, directory.modified));
        directory.files.into_iter().for_each(|file| whole(&mut builder, file, None));
    }
    builder
}

fn whole(builder: &mut CatalogBuilder, file: FileEntry, label: Option<u32>) {
    let location =
        SampleLocation { file: builder.files.len() as u32, offset: 0, length: file.size };
    builder.samples.push(SampleEntry { location, label });
    builder.files.push(file);
}

/// Indexes files of equal records. A shorter rest at the end of a file is left out.
pub(super) fn records(
    root: &Path,
    files: Vec<FileEntry>,
    size: u64,
) -> Result<CatalogBuilder, OpenError> {
    let count: u64 = files.iter().map(|file| file.size / size).sum();
    if u32::try_from(count).is_err() {
        return Err(OpenError::TooMany { path: root.to_owned(), what: "records" });
    }
    let mut samples = Vec::with_capacity(count as usize);
    for (at, file) in (0..).zip(&files) {
        samples.extend((0..file.size / size).map(|record| SampleEntry {
            location: SampleLocation { file: at, offset: record * size, length: size },
            label: None,
        }));
    }
    Ok(CatalogBuilder { files, samples, ..Default::default() })
}

/// Indexes files in which samples are found by reading them, many files at a time.
pub(super) fn packed(
    root: &Path,
    files: Vec<FileEntry>,
    index_file: IndexFile,
    progress: &ListingProgress<'_>,
    counters: &OperationCounters,
) -> Result<CatalogBuilder, OpenError> {
    let index = |file: &FileEntry| {
        let mut operations = Operations::default();
        let records = index_file(&root.join(&file.path), &mut operations);
        counters.add(operations);
        progress.indexed();
        records
    };
    let indexed: Result<Vec<_>, _> =
        on_many_threads(|| files.par_iter().with_max_len(1).map(index).collect());
    let indexed = indexed?;
    let count: usize = indexed.iter().map(Vec::len).sum();
    if u32::try_from(count).is_err() {
        return Err(OpenError::TooMany { path: root.to_owned(), what: "samples" });
    }
    let mut samples = Vec::with_capacity(count);
    for (file, records) in (0..).zip(indexed) {
        samples.extend(records.into_iter().map(|record| SampleEntry {
            location: SampleLocation { file, offset: record.offset, length: record.length },
            label: record.label,
        }));
    }
    Ok(CatalogBuilder { files, samples, ..Default::default() })
}
