//! Opening a dataset that another process has listed.
//!
//! One process of a job lists, and the others get its catalog. They ask nothing of storage that all
//! share before they read the first sample, so the work of its servers at the start of a job does not
//! grow with the job. Whether a file has changed since is seen when it is read, as always.

use std::path::Path;

use super::counters::Counters;
use super::open::{directory_of, opening};
use super::reader::Files;
use super::{Catalog, Format, OpenError, OpenOptions, Source};

/// What is needed beside the catalog to open a dataset that another process has listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub format: Format,
    /// The dataset is one file, not a directory.
    pub is_file: bool,
    /// Where it was listed, it lies on a disk of that machine.
    pub is_local: bool,
    /// What its snapshot is called, if it has one: processes with the same home share it.
    pub snapshot: Option<String>,
}

/// Opens a dataset by a catalog from elsewhere. Of the options, format and extensions have done
/// their work where it was listed.
pub fn open_listed(
    path: &Path,
    options: &OpenOptions,
    listed: &Listed,
    catalog: Catalog,
) -> Result<Box<dyn Source>, OpenError> {
    let snapshot = listed.snapshot.as_deref().and_then(|name| options.snapshots.named(name));
    let opening = opening(listed.format, options, &catalog, snapshot);
    let root = if listed.is_file { directory_of(path) } else { path.to_owned() };
    if listed.is_local {
        // How to read a local disk is for each machine to see, and costs no other anything.
        return Ok(Box::new(Files::new(root, catalog, Counters::default(), opening)?));
    }
    Ok(Box::new(Files::on_shared_storage(root, catalog, opening)))
}
