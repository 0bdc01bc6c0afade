//! How a dataset is opened, and how its files are then read.

use std::path::PathBuf;
use std::sync::Arc;

use super::catalog::Catalog;
use super::extensions::Extensions;
use super::files::{FileOptions, Trailer};
use super::format::DatasetFormat;
use super::manifest::Manifest;
use super::packed::IndexFile;
use super::snapshot::Snapshots;
use super::versions::Freshness;
use super::{tfrecord, webdataset};

/// How to open a dataset.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The format; `None` to guess it from the names of the files ([`DatasetFormat::guess`]).
    pub format: Option<DatasetFormat>,
    /// Which files count as samples.
    pub extensions: Extensions,
    /// Whether class folders may be empty. Otherwise such a dataset is refused, as by torchvision's
    /// ImageFolder.
    pub allow_empty: bool,
    /// The samples, file by file, instead of a listing. The dataset's path is then the directory
    /// that the files are relative to, or a table in it.
    pub manifest: Option<Arc<Manifest>>,
    /// Where listings are stored.
    pub snapshots: Snapshots,
    /// Whether to read past the page cache what it does not hold, on local disks; `None` for
    /// datasets larger than half of the memory. Smaller ones are better kept in the page cache,
    /// which serves the next epoch.
    pub direct: Option<bool>,
    /// Whether a file with another time of modification counts as changed. Without it only another
    /// size does, for storage with meaningless times.
    pub verify_times: bool,
    /// When cached copies of files are compared with the files.
    pub freshness: Freshness,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            format: None,
            extensions: Extensions::default(),
            allow_empty: false,
            manifest: None,
            snapshots: Snapshots::default(),
            direct: None,
            verify_times: true,
            freshness: Freshness::default(),
        }
    }
}

impl OpenOptions {
    /// Returns how files of a format are read.
    pub(super) fn file_options(
        &self,
        format: DatasetFormat,
        catalog: &Catalog,
        snapshot: Option<PathBuf>,
    ) -> FileOptions {
        FileOptions {
            keep_open: format.is_packed(),
            direct: self.direct.unwrap_or_else(|| is_large(catalog)),
            verify_times: self.verify_times,
            freshness: self.freshness,
            trailer: trailer(format),
            index: index_file(format),
            snapshot,
        }
    }
}

/// Whether a dataset is too large for the page cache.
fn is_large(catalog: &Catalog) -> bool {
    let files = (0..catalog.files()).map(|file| catalog.file_size(file));
    let memory = rustix::system::sysinfo();
    files.sum::<u64>() > memory.totalram as u64 * u64::from(memory.mem_unit) / 2
}

fn trailer(format: DatasetFormat) -> Option<Trailer> {
    let damage = |payload: &[u8], footer: &[u8]| match footer.try_into() {
        Ok(footer) => tfrecord::damage(payload, footer),
        Err(_) => Some("its checksum is missing".to_owned()),
    };
    (format == DatasetFormat::TfRecord).then_some(Trailer { length: tfrecord::FOOTER, damage })
}

/// Returns how samples are found in a file, for formats in which that takes reading it.
pub(super) fn index_file(format: DatasetFormat) -> Option<IndexFile> {
    match format {
        DatasetFormat::TfRecord => Some(tfrecord::index_file),
        DatasetFormat::WebDataset => Some(webdataset::index_file),
        DatasetFormat::Folder | DatasetFormat::Flat | DatasetFormat::Records(_) => None,
    }
}
