//! An open dataset, shared by all objects that refer to it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use belady_base::SampleId;
use belady_data::source::Source;
use belady_node::DatasetRecipe;
use pyo3::prelude::*;

use crate::arguments::sample_id;
use crate::process::Home;

/// An open dataset, shared by loaders, batches and samples.
#[derive(Debug)]
pub struct OpenDataset {
    /// Only the process that opened the source reads; a forked child can use the catalog.
    pub source: Home<Arc<dyn Source>>,
    /// The directory that paths of files are relative to.
    pub root: PathBuf,
    pub path: PathBuf,
    pub format: String,
    /// How another process opens it.
    pub recipe: Arc<DatasetRecipe>,
}

impl OpenDataset {
    pub fn samples(&self) -> u32 {
        self.source.catalog().len()
    }

    pub fn id(&self, sample: i64) -> PyResult<SampleId> {
        sample_id(sample, self.samples())
    }

    /// Returns the name of the dataset in caches and warnings.
    pub fn name(&self) -> String {
        let whole = self.path.canonicalize();
        let path = whole.as_deref().unwrap_or(&self.path);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| path.display().to_string())
    }

    pub fn label(&self, sample: SampleId) -> Option<u32> {
        self.source.catalog().label(sample)
    }

    /// Returns labels as native int64; -1 where there is none.
    pub fn labels(&self, samples: impl Iterator<Item = SampleId>) -> Vec<u8> {
        let label = |sample| self.label(sample).map_or(-1, i64::from).to_ne_bytes();
        samples.flat_map(label).collect()
    }

    /// Returns a sample's file and, if it is a part of it, its bytes. Not as text: a name need not
    /// be UTF-8, and Python's `str` of it opens the file.
    pub fn sample_path(&self, sample: SampleId) -> OsString {
        let catalog = self.source.catalog();
        let mut path = OsString::from(&self.path);
        if catalog.files() == 0 {
            path.push(format!(", sample {sample}"));
            return path;
        }
        let place = catalog.location(sample);
        path = self.root.join(catalog.path(place.file)).into();
        let end = place.offset + place.length;
        if place.offset > 0 || end < catalog.file_size(place.file) {
            path.push(format!(" (bytes {} to {end})", place.offset));
        }
        path
    }
}
