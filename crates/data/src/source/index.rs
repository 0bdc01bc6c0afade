//! From files to samples, for the formats whose samples follow from names and sizes.

use std::path::{Path, PathBuf};

use super::listing::Directory;
use super::open::OpenError;
use super::{CatalogBuilder, FileEntry, Location, SampleEntry};

/// Class folders: each file is a sample, labelled with the top-level folder it lies in.
/// Files that lie in no folder are left out, as torchvision does.
pub(super) fn folder(directories: Vec<Directory>) -> CatalogBuilder {
    let mut builder = CatalogBuilder::default();
    let mut class: Option<PathBuf> = None;
    for directory in directories {
        builder.directories.push((directory.path.clone(), directory.modified));
        let Some(top) = directory.path.components().next() else { continue };
        // Directories come sorted by their top-level folder.
        if class.as_deref() != Some(Path::new(&top)) {
            class = Some(PathBuf::from(top.as_os_str()));
            builder.classes.push(top.as_os_str().to_string_lossy().into_owned());
        }
        let label = Some(builder.classes.len() as u32 - 1);
        directory.files.into_iter().for_each(|file| whole(&mut builder, file, label));
    }
    builder
}

/// Each file is a sample.
pub(super) fn flat(directories: Vec<Directory>) -> CatalogBuilder {
    let mut builder = CatalogBuilder::default();
    for directory in directories {
        builder.directories.push((directory.path, directory.modified));
        directory.files.into_iter().for_each(|file| whole(&mut builder, file, None));
    }
    builder
}

fn whole(builder: &mut CatalogBuilder, file: FileEntry, label: Option<u32>) {
    let location = Location { file: builder.files.len() as u32, offset: 0, length: file.size };
    builder.samples.push(SampleEntry { location, label });
    builder.files.push(file);
}

/// Files of records that all have the same size.
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
        if !file.size.is_multiple_of(size) {
            let path = root.join(&file.path);
            return Err(OpenError::RecordSize { path, length: file.size, size });
        }
        samples.extend((0..file.size / size).map(|record| SampleEntry {
            location: Location { file: at, offset: record * size, length: size },
            label: None,
        }));
    }
    Ok(CatalogBuilder { files, samples, ..Default::default() })
}
