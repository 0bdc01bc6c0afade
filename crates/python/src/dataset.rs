//! The class `Dataset`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use belady_base::SampleId;
use belady_data::source::{
    DatasetFormat, Extensions, Joined, ListingCounts, ListingProgress, Manifest, OpenError,
    OpenOptions, SharedListing, Snapshots, Source, Subset, ThrottleError, ThrottleSpec, Throttled,
    Want, open_for_sharing,
};
use belady_node::DatasetRecipe;
use belady_peer::{ListingError, share_listing};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::arguments::wrong;
use crate::cluster::PyCluster;
use crate::errors::{BeladyError, opening, reading};
use crate::open_dataset::OpenDataset;
use crate::process::Home;
use crate::wait::patiently;

/// A listed dataset.
#[pyclass(name = "Dataset", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyDataset(pub Arc<OpenDataset>);

#[derive(Debug, FromPyObject)]
pub enum WhereSnapshots {
    Usual(bool),
    In(PathBuf),
}

#[pymethods]
impl PyDataset {
    /// Lists a dataset, or reads the listing from its snapshot.
    #[staticmethod]
    #[pyo3(
        signature = (path, *, format=None, extensions=None, allow_empty=false, files=None, snapshots=WhereSnapshots::Usual(true), progress=None, throttle=None, freshness="start"),
        text_signature = "(path, *, format=None, extensions=None, allow_empty=False, files=None, snapshots=True, progress=None, throttle=None, freshness='start')"
    )]
    #[expect(clippy::too_many_arguments, reason = "the options of opening")]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        format: Option<&str>,
        extensions: Option<Vec<String>>,
        allow_empty: bool,
        files: Option<Files>,
        snapshots: WhereSnapshots,
        progress: Option<Bound<'_, PyAny>>,
        throttle: Option<&str>,
        freshness: &str,
    ) -> PyResult<Self> {
        let slow = Throttle::parse(throttle)?;
        let options = OpenOptions {
            manifest: files.map(manifest),
            allow_empty,
            ..options(format, extensions, snapshots, freshness)?
        };
        let seen = Arc::new(Mutex::new(ListingCounts::default()));
        let request =
            OpenRequest { path: path.clone(), options: options.clone(), seen: seen.clone() };
        let mut reported = ListingCounts::default();
        let opened = patiently(
            py,
            move || request.run(),
            |_| {
                let now = *seen.lock().unwrap_or_else(PoisonError::into_inner);
                match &progress {
                    Some(progress) if now != reported => {
                        reported = now;
                        report(progress, now)
                    }
                    _ => Ok(()),
                }
            },
        )?;
        let (source, found) = opened.map_err(|error| opening(&error))?;
        Ok(Self::new(path, options, Arc::from(source), slow, found))
    }

    /// Sends the listing from rank 0 to all others, which call `receive_listing`.
    #[pyo3(signature = (cluster, format=None, extensions=None))]
    fn share_listing(
        &self,
        py: Python<'_>,
        cluster: &Bound<'_, PyCluster>,
        format: Option<&str>,
        extensions: Option<Vec<String>>,
    ) -> PyResult<()> {
        let options = options(format, extensions, WhereSnapshots::Usual(true), "start")?;
        let DatasetRecipe::Listed { listed: found, .. } = &*self.0.recipe else {
            return Err(wrong("a joined dataset has no listing: send those of its parts"));
        };
        let found = found.clone();
        let cluster = cluster.get();
        let (native, listed) = (cluster.native()?, self.0.clone());
        let handed_out = py.detach(|| {
            let source = listed.source.get("Dataset").cloned();
            let source = source.map_err(|error| ListingError::Broken(error.to_string()))?;
            share_listing(&native, &listed.path, &options, || Ok((source, found)))
        });
        handed_out.map(drop).map_err(|error| listing_error(cluster, &error))
    }

    /// Receives a dataset that rank 0 has listed. This rank does not list the storage.
    #[staticmethod]
    #[pyo3(
        signature = (cluster, path, *, format=None, extensions=None, snapshots=WhereSnapshots::Usual(true), throttle=None, freshness="start"),
        text_signature = "(cluster, path, *, format=None, extensions=None, snapshots=True, throttle=None, freshness='start')"
    )]
    #[expect(clippy::too_many_arguments, reason = "the options of opening")]
    fn receive_listing(
        py: Python<'_>,
        cluster: &Bound<'_, PyCluster>,
        path: PathBuf,
        format: Option<&str>,
        extensions: Option<Vec<String>>,
        snapshots: WhereSnapshots,
        throttle: Option<&str>,
        freshness: &str,
    ) -> PyResult<Self> {
        let slow = Throttle::parse(throttle)?;
        let options = options(format, extensions, snapshots, freshness)?;
        let cluster = cluster.get();
        let native = cluster.native()?;
        let received = py.detach(|| {
            share_listing(&native, &path, &options, || {
                Err(OpenError::Missing { path: path.clone() })
            })
        });
        let (source, found) = received.map_err(|error| listing_error(cluster, &error))?;
        Ok(Self::new(path, options, source, slow, found))
    }

    /// Joins several datasets: ids of the second follow those of the first.
    #[staticmethod]
    fn join(py: Python<'_>, datasets: Vec<Py<Self>>) -> PyResult<Self> {
        let parts: Vec<Arc<OpenDataset>> =
            datasets.iter().map(|part| part.get().0.clone()).collect();
        let mut sources = Vec::with_capacity(parts.len());
        for part in &parts {
            sources.push((part.root.clone(), part.source.get("Dataset")?.clone()));
        }
        let recipes = parts.iter().map(|part| (part.root.clone(), part.recipe.clone())).collect();
        let joined = py.detach(|| Joined::new(sources)).map_err(wrong)?;
        let names: Vec<OsString> = parts.iter().map(|part| part.path.clone().into()).collect();
        let mut formats: Vec<&str> = parts.iter().map(|part| part.format.as_str()).collect();
        formats.dedup();
        let format = formats.join("+");
        Ok(Self(Arc::new(OpenDataset {
            source: Home::new(Arc::new(joined)),
            // Its files have absolute paths.
            root: PathBuf::new(),
            path: names.join("+".as_ref()).into(),
            format,
            recipe: Arc::new(DatasetRecipe::Joined(recipes)),
        })))
    }

    /// Some samples of this dataset, in this order, as a dataset.
    fn subset(&self, py: Python<'_>, samples: Vec<SampleId>) -> PyResult<Self> {
        let source = self.0.source.get("Dataset")?.clone();
        let recipe = DatasetRecipe::Subset(self.0.recipe.clone(), samples.clone().into());
        let chosen = py.detach(|| Subset::new(source, samples)).map_err(wrong)?;
        Ok(Self(Arc::new(OpenDataset {
            source: Home::new(Arc::new(chosen)),
            root: self.0.root.clone(),
            path: self.0.path.clone(),
            format: self.0.format.clone(),
            recipe: Arc::new(recipe),
        })))
    }

    fn __len__(&self) -> usize {
        self.0.samples() as usize
    }

    #[getter]
    fn path(&self) -> OsString {
        self.0.path.clone().into()
    }

    #[getter]
    fn format(&self) -> &str {
        &self.0.format
    }

    #[getter]
    fn fingerprint(&self) -> String {
        format!("{:016x}", self.0.source.catalog().fingerprint())
    }

    /// The smallest staging buffer for batches of this many samples.
    fn staging_needed(&self, batch: u32) -> PyResult<u64> {
        let source = self.0.source.get("Dataset")?;
        Ok(belady_engine::staging_needed(source.as_ref(), batch).0)
    }

    #[getter]
    fn total_bytes(&self, py: Python<'_>) -> u64 {
        py.detach(|| (0..self.0.samples()).map(|id| self.0.source.catalog().size(id)).sum())
    }

    #[getter]
    fn classes(&self) -> Vec<OsString> {
        self.0.source.catalog().classes()
    }

    fn label(&self, sample: i64) -> PyResult<Option<u32>> {
        Ok(self.0.source.catalog().label(self.0.id(sample)?))
    }

    /// Labels of all samples as native int64; -1 where there is none.
    fn labels<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let labels = py.detach(|| self.0.labels(0..self.0.samples()));
        PyBytes::new(py, &labels)
    }

    fn size(&self, sample: i64) -> PyResult<u64> {
        Ok(self.0.source.catalog().size(self.0.id(sample)?))
    }

    /// The path of a sample for messages: a file, or a file and the bytes in it.
    fn sample_path(&self, sample: i64) -> PyResult<OsString> {
        Ok(self.0.sample_path(self.0.id(sample)?))
    }

    /// Reads from the source, without any cache.
    fn read<'py>(&self, py: Python<'py>, samples: Vec<i64>) -> PyResult<Bound<'py, PyList>> {
        let source = self.0.source.get("Dataset")?;
        let read = PyList::empty(py);
        for sample in samples {
            let sample = self.0.id(sample)?;
            let mut bytes = vec![0; source.catalog().size(sample) as usize];
            py.detach(|| source.read(&mut [Want::new(sample, &mut bytes)]))
                .map_err(|error| reading(py, &error))?;
            read.append(PyBytes::new(py, &bytes))?;
            py.check_signals()?;
        }
        Ok(read)
    }
}

impl PyDataset {
    fn new(
        path: PathBuf,
        options: OpenOptions,
        source: Arc<dyn Source>,
        slow: Option<Throttle>,
        listed: SharedListing,
    ) -> Self {
        let root = if listed.is_file { parent(&path) } else { path.clone() };
        let format = listed.format.to_string();
        let (throttle, spec) = slow.map(|Throttle { text, spec }| (text, spec)).unzip();
        let recipe = DatasetRecipe::Listed {
            source: source.clone(),
            path: path.clone(),
            options,
            listed,
            throttle,
        };
        let source: Arc<dyn Source> = match spec {
            Some(spec) => Arc::new(Throttled::new(source, spec, 0)),
            None => source,
        };
        let (source, recipe) = (Home::new(source), Arc::new(recipe));
        Self(Arc::new(OpenDataset { source, root, path, format, recipe }))
    }
}

/// How slow a dataset is made.
struct Throttle {
    text: String,
    spec: ThrottleSpec,
}

impl Throttle {
    fn parse(text: Option<&str>) -> PyResult<Option<Self>> {
        let parse = |text: &str| Ok(Self { text: text.to_owned(), spec: text.parse()? });
        text.map(parse).transpose().map_err(|error: ThrottleError| wrong(error))
    }
}

/// Files from the user, their labels, and the names of the labels.
type Files = (Vec<PathBuf>, Vec<Option<u32>>, Vec<OsString>);

fn manifest((files, labels, classes): Files) -> Arc<Manifest> {
    Arc::new(Manifest { files, labels, classes })
}

/// Converts the options of opening.
fn options(
    format: Option<&str>,
    extensions: Option<Vec<String>>,
    snapshots: WhereSnapshots,
    freshness: &str,
) -> PyResult<OpenOptions> {
    Ok(OpenOptions {
        format: format.map(str::parse::<DatasetFormat>).transpose().map_err(wrong)?,
        extensions: extensions.map_or(Extensions::Usual, Extensions::only),
        snapshots: snapshots.into(),
        freshness: freshness.parse().map_err(wrong)?,
        ..OpenOptions::default()
    })
}

/// Converts an error of sending a listing from rank 0 to the others.
fn listing_error(cluster: &PyCluster, error: &ListingError) -> PyErr {
    match error {
        ListingError::Rendezvous(why) => cluster.rendezvous_error(why),
        ListingError::Open(why) => opening(why),
        _ => BeladyError::new_err(error.to_string()),
    }
}

impl From<WhereSnapshots> for Snapshots {
    fn from(given: WhereSnapshots) -> Self {
        match given {
            WhereSnapshots::Usual(true) => Self::Usual,
            WhereSnapshots::Usual(false) => Self::Off,
            WhereSnapshots::In(directory) => Self::In(directory),
        }
    }
}

/// A dataset to open on a separate thread.
struct OpenRequest {
    path: PathBuf,
    options: OpenOptions,
    seen: Arc<Mutex<ListingCounts>>,
}

impl OpenRequest {
    fn run(self) -> Result<(Box<dyn Source>, SharedListing), belady_data::source::OpenError> {
        let Self { path, options, seen } = self;
        let note = |now| *seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
        open_for_sharing(&path, &options, &ListingProgress::reporting(&note))
    }
}

fn report(progress: &Bound<'_, PyAny>, seen: ListingCounts) -> PyResult<()> {
    if seen.indexed > 0 {
        progress.call1(("indexing", seen.indexed, Some(seen.files)))?;
    } else {
        progress.call1(("listing", seen.files, None::<u64>))?;
    }
    Ok(())
}

fn parent(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}
