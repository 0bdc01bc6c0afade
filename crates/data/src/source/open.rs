//! Opens a dataset: from its snapshot if that still holds, by listing it, or with the listing of
//! another process.
//!
//! One process of a job can list the dataset and share its catalog with the others. These make no
//! call on shared storage before they read the first sample, so the load on its servers at the
//! start does not grow with the job. A file that has changed since is noticed when it is read, as
//! always.

use std::path::{Path, PathBuf};

use belady_control::model::Bytes;

use super::counters::OperationCounters;
use super::error::OpenError;
use super::files::FileSource;
use super::options::OpenOptions;
use super::progress::ListingProgress;
use super::scan::{DatasetPath, directory_of};
use super::snapshot::SnapshotFile;
use super::{Catalog, DatasetFormat, Source, stall_warning};

/// What another process needs beside the catalog to open a listed dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedListing {
    /// The format, guessed or given.
    pub format: DatasetFormat,
    /// Whether the dataset is one file, not a directory.
    pub is_file: bool,
    /// Whether it lies on a local disk of the machine that listed it.
    pub is_local: bool,
    /// The file name of its snapshot, if it has one: processes with the same home directory share
    /// it.
    pub snapshot: Option<String>,
}

/// Opens a dataset: a directory, or one file of a packed format.
///
/// # Errors
///
/// If the dataset cannot be listed or indexed, or has no samples.
pub fn open(
    path: &Path,
    options: &OpenOptions,
    progress: &ListingProgress<'_>,
) -> Result<Box<dyn Source>, OpenError> {
    open_for_sharing(path, options, progress).map(|(source, _)| source)
}

/// Opens a dataset as [`open`] does, and returns what another process needs to open it without a
/// call on its storage ([`open_shared_listing`]).
///
/// # Errors
///
/// As [`open`].
pub fn open_for_sharing(
    path: &Path,
    options: &OpenOptions,
    progress: &ListingProgress<'_>,
) -> Result<(Box<dyn Source>, SharedListing), OpenError> {
    let counters = OperationCounters::default();
    let load = || load_or_list(path, options, progress, &counters);
    let LoadedCatalog { dataset, snapshot, catalog } =
        stall_warning::while_listing(path, &counters, load)?;
    let snapshot = snapshot.map(SnapshotFile::into_path);
    let name = snapshot.as_deref().and_then(Path::file_name);
    let name = name.map(|name| name.to_string_lossy().into_owned());
    let (format, is_file) = (dataset.format, dataset.is_file);
    let options = options.file_options(format, &catalog, snapshot);
    let source = FileSource::new(dataset.root, catalog, counters, options)?;
    let listing = SharedListing { format, is_file, is_local: source.is_local(), snapshot: name };
    Ok((Box::new(source), listing))
}

/// Opens a dataset with the catalog of the process that listed it. The options' format and
/// extensions are not used: the listing has applied them.
///
/// # Errors
///
/// If the dataset lies on a local disk and its directory cannot be opened.
pub fn open_shared_listing(
    path: &Path,
    options: &OpenOptions,
    listed: &SharedListing,
    catalog: Catalog,
) -> Result<Box<dyn Source>, OpenError> {
    let snapshot = listed.snapshot.as_deref().and_then(|name| options.snapshots.named(name));
    let file_options = options.file_options(listed.format, &catalog, snapshot);
    let root = if listed.is_file { directory_of(path) } else { path.to_owned() };
    if listed.is_local {
        // Each machine has to check its own disk, which costs the others nothing.
        let counters = OperationCounters::default();
        return Ok(Box::new(FileSource::new(root, catalog, counters, file_options)?));
    }
    Ok(Box::new(FileSource::on_shared_storage(root, catalog, file_options)))
}

struct LoadedCatalog {
    dataset: DatasetPath,
    snapshot: Option<SnapshotFile>,
    catalog: Catalog,
}

/// Makes all calls on the storage that opening a dataset needs.
fn load_or_list(
    path: &Path,
    options: &OpenOptions,
    progress: &ListingProgress<'_>,
    counters: &OperationCounters,
) -> Result<LoadedCatalog, OpenError> {
    let format = match options.format {
        Some(format) => format,
        None if options.manifest.is_some() => DatasetFormat::Flat,
        None => DatasetFormat::guess_counted(path, counters)?,
    };
    let dataset = DatasetPath::at(path, format, options.manifest.is_some())?;
    let snapshot = options.snapshots.file(path, &snapshot_key(format, options));
    let stored =
        snapshot.as_ref().and_then(|file| file.load(&dataset.root, options.freshness, counters));
    let catalog = if let Some(catalog) = stored {
        catalog
    } else {
        let begun = std::time::SystemTime::now();
        let catalog = dataset.scan(options, progress, counters)?.finish();
        if let Some(snapshot) = &snapshot {
            snapshot.store(&catalog, begun);
        }
        catalog
    };
    if let DatasetFormat::Records(Bytes(size)) = format {
        warn_of_partial_records(&dataset.root, &catalog, size);
    }
    Ok(LoadedCatalog { dataset, snapshot, catalog })
}

fn warn_of_partial_records(root: &Path, catalog: &Catalog, size: u64) {
    let rest = |file: u32| catalog.file_size(file) % size;
    let odd: Vec<u32> = (0..catalog.files()).filter(|&file| rest(file) > 0).collect();
    if let Some(&first) = odd.first() {
        let (path, bytes) = (root.join(catalog.path(first)), rest(first));
        tracing::warn!(
            files = odd.len(), first = %path.display(), bytes,
            "left out the ends of files, which are shorter than a record of {size} bytes"
        );
    }
}

/// Returns where [`open`] stores the listing of a dataset, if it does.
pub fn snapshot_path(path: &Path, options: &OpenOptions) -> Option<PathBuf> {
    let format = options.format.or_else(|| DatasetFormat::guess(path).ok())?;
    options.snapshots.file(path, &snapshot_key(format, options)).map(SnapshotFile::into_path)
}

/// Returns the part of a snapshot's name that follows from the options.
fn snapshot_key(format: DatasetFormat, options: &OpenOptions) -> String {
    if let Some(manifest) = &options.manifest {
        return manifest.key();
    }
    let empty = if options.allow_empty { ", classes may be empty" } else { "" };
    // With a guessed format the files were also checked for formats that are not supported.
    let guessed = if options.format.is_none() { ", guessed" } else { "" };
    format!("{format}, extensions {}{empty}{guessed}", options.extensions)
}
