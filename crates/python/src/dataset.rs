//! A dataset that was listed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use belady_data::SampleId;
use belady_data::source::{
    Chosen, Extensions, Format, Joined, Listed as Found, Manifest, OpenError, OpenOptions,
    Progress, Seen, Snapshots, Source, ThrottleSpec, Throttled, Want, open_for_others,
};
use belady_peer::{HandoutError, hand_out};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::cluster::Cluster;
use crate::errors::{BeladyError, opening, reading, sample_id, wrong};
use crate::patience::patiently;
use crate::process::Home;

/// A dataset that was listed: what is in it, and how to read it.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Dataset(pub Arc<Listed>);

/// What a dataset is, for everyone who needs to know.
#[derive(Debug)]
pub struct Listed {
    /// Catalogs may be looked at in a forked child; only the process that opened it reads.
    pub source: Home<Arc<dyn Source>>,
    /// What the paths of its files are relative to.
    root: PathBuf,
    path: PathBuf,
    format: String,
    /// What another process needs to open it; none for joined ones, whose parts have it.
    found: Option<Found>,
}

#[derive(Debug, FromPyObject)]
pub enum WhereSnapshots {
    Usual(bool),
    In(PathBuf),
}

#[pymethods]
impl Dataset {
    /// Lists a dataset, or takes the listing from its snapshot.
    #[staticmethod]
    #[pyo3(
        signature = (path, *, format=None, extensions=None, allow_empty=false, files=None, snapshots=WhereSnapshots::Usual(true), progress=None, throttle=None, freshness="start"),
        text_signature = "(path, *, format=None, extensions=None, allow_empty=False, files=None, snapshots=True, progress=None, throttle=None, freshness='start')"
    )]
    #[expect(clippy::too_many_arguments, reason = "all that opening has options for")]
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
        let throttle: Option<ThrottleSpec> = throttle.map(str::parse).transpose().map_err(wrong)?;
        let options = OpenOptions {
            manifest: files.map(manifest),
            allow_empty,
            ..options(format, extensions, snapshots, freshness)?
        };
        let seen = Arc::new(Mutex::new(Seen::default()));
        let listing = Listing { path: path.clone(), options, seen: seen.clone() };
        let mut told = Seen::default();
        let opened = patiently(
            py,
            move || listing.run(),
            |_| {
                let now = *seen.lock().unwrap_or_else(PoisonError::into_inner);
                match &progress {
                    Some(progress) if now != told => {
                        told = now;
                        tell(progress, now)
                    }
                    _ => Ok(()),
                }
            },
        )?;
        let (source, found) = opened.map_err(|error| opening(&error))?;
        Ok(Self::new(path, Arc::from(source), throttle, found))
    }

    /// Rank 0 hands the list of this dataset out, as `received` takes it. All ranks call one of the two.
    #[pyo3(signature = (cluster, format=None, extensions=None))]
    fn hand_out(
        &self,
        py: Python<'_>,
        cluster: &Bound<'_, Cluster>,
        format: Option<&str>,
        extensions: Option<Vec<String>>,
    ) -> PyResult<()> {
        let options = options(format, extensions, WhereSnapshots::Usual(true), "start")?;
        let found = self.0.found.clone().ok_or_else(|| wrong("a joined dataset has no list"))?;
        let cluster = cluster.get();
        let (native, listed) = (cluster.native()?, self.0.clone());
        let handed_out = py.detach(|| {
            let source = listed.source.get("Dataset").cloned();
            let source = source.map_err(|error| HandoutError::Broken(error.to_string()))?;
            hand_out(&native, &listed.path, &options, || Ok((source, found)))
        });
        handed_out.map(drop).map_err(|error| handing(cluster, &error))
    }

    /// The dataset that rank 0 has listed. This rank asks nothing of its storage.
    #[staticmethod]
    #[pyo3(
        signature = (cluster, path, *, format=None, extensions=None, snapshots=WhereSnapshots::Usual(true), throttle=None, freshness="start"),
        text_signature = "(cluster, path, *, format=None, extensions=None, snapshots=True, throttle=None, freshness='start')"
    )]
    #[expect(clippy::too_many_arguments, reason = "those of open that count here")]
    fn received(
        py: Python<'_>,
        cluster: &Bound<'_, Cluster>,
        path: PathBuf,
        format: Option<&str>,
        extensions: Option<Vec<String>>,
        snapshots: WhereSnapshots,
        throttle: Option<&str>,
        freshness: &str,
    ) -> PyResult<Self> {
        let throttle: Option<ThrottleSpec> = throttle.map(str::parse).transpose().map_err(wrong)?;
        let options = options(format, extensions, snapshots, freshness)?;
        let cluster = cluster.get();
        let native = cluster.native()?;
        let received = py.detach(|| {
            hand_out(&native, &path, &options, || Err(OpenError::Missing { path: path.clone() }))
        });
        let (source, found) = received.map_err(|error| handing(cluster, &error))?;
        Ok(Self::new(path, source, throttle, found))
    }

    /// Several datasets laid end to end: ids of the second follow those of the first.
    #[staticmethod]
    fn join(py: Python<'_>, datasets: Vec<Py<Self>>) -> PyResult<Self> {
        let parts: Vec<Arc<Listed>> = datasets.iter().map(|part| part.get().0.clone()).collect();
        let mut sources = Vec::with_capacity(parts.len());
        for part in &parts {
            sources.push((part.root.clone(), part.source.get("Dataset")?.clone()));
        }
        let joined = py.detach(|| Joined::new(sources)).map_err(wrong)?;
        let names: Vec<OsString> = parts.iter().map(|part| part.path.clone().into()).collect();
        let mut formats: Vec<&str> = parts.iter().map(|part| part.format.as_str()).collect();
        formats.dedup();
        let format = formats.join("+");
        Ok(Self(Arc::new(Listed {
            source: Home::new(Arc::new(joined)),
            // Its files are named in full.
            root: PathBuf::new(),
            path: names.join("+".as_ref()).into(),
            format,
            found: None,
        })))
    }

    /// Some samples of this dataset, in this order, as one of their own.
    fn chosen(&self, py: Python<'_>, samples: Vec<SampleId>) -> PyResult<Self> {
        let source = self.0.source.get("Dataset")?.clone();
        let chosen = py.detach(|| Chosen::new(source, samples)).map_err(wrong)?;
        Ok(Self(Arc::new(Listed {
            source: Home::new(Arc::new(chosen)),
            root: self.0.root.clone(),
            path: self.0.path.clone(),
            format: self.0.format.clone(),
            found: None,
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

    /// The smallest staging buffer for batches of so many samples.
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

    /// Where a sample lies, for people: a file, or a file and the place in it.
    fn sample_path(&self, sample: i64) -> PyResult<OsString> {
        Ok(self.0.sample_path(self.0.id(sample)?))
    }

    /// Reads straight from the source, past every cache.
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

impl Dataset {
    fn new(
        path: PathBuf,
        source: Arc<dyn Source>,
        throttle: Option<ThrottleSpec>,
        found: Found,
    ) -> Self {
        let source: Arc<dyn Source> = match throttle {
            Some(throttle) => Arc::new(Throttled::new(source, throttle, 0)),
            None => source,
        };
        let root = if found.is_file { parent(&path) } else { path.clone() };
        let format = found.format.to_string();
        Self(Arc::new(Listed { source: Home::new(source), root, path, format, found: Some(found) }))
    }
}

/// Files that the user names, their labels, and the names of these.
type Files = (Vec<PathBuf>, Vec<Option<u32>>, Vec<OsString>);

fn manifest((files, labels, classes): Files) -> Arc<Manifest> {
    Arc::new(Manifest { files, labels, classes })
}

/// Options as Python gives them.
fn options(
    format: Option<&str>,
    extensions: Option<Vec<String>>,
    snapshots: WhereSnapshots,
    freshness: &str,
) -> PyResult<OpenOptions> {
    Ok(OpenOptions {
        format: format.map(str::parse::<Format>).transpose().map_err(wrong)?,
        extensions: extensions.map_or(Extensions::Usual, Extensions::only),
        snapshots: snapshots.into(),
        freshness: freshness.parse().map_err(wrong)?,
        ..OpenOptions::default()
    })
}

/// Why a list did not go from rank 0 to the others.
fn handing(cluster: &Cluster, error: &HandoutError) -> PyErr {
    match error {
        HandoutError::Meet(why) => cluster.told(why),
        HandoutError::Open(why) => opening(why),
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

impl Listed {
    pub fn samples(&self) -> u32 {
        self.source.catalog().len()
    }

    pub fn id(&self, sample: i64) -> PyResult<SampleId> {
        sample_id(sample, self.samples())
    }

    /// What the dataset is called in caches and warnings.
    pub fn name(&self) -> String {
        let whole = self.path.canonicalize();
        let path = whole.as_deref().unwrap_or(&self.path);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| path.display().to_string())
    }

    pub fn label(&self, sample: SampleId) -> Option<u32> {
        self.source.catalog().label(sample)
    }

    /// Native int64; -1 where there is none.
    pub fn labels(&self, samples: impl Iterator<Item = SampleId>) -> Vec<u8> {
        let label = |sample| self.label(sample).map_or(-1, i64::from).to_ne_bytes();
        samples.flat_map(label).collect()
    }

    /// Not as text: a name need not be UTF-8, and what Python makes of it opens the file.
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

/// What is opened, on a thread of its own.
struct Listing {
    path: PathBuf,
    options: OpenOptions,
    seen: Arc<Mutex<Seen>>,
}

impl Listing {
    fn run(self) -> Result<(Box<dyn Source>, Found), belady_data::source::OpenError> {
        let Self { path, options, seen } = self;
        let note = |now| *seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
        open_for_others(&path, &options, &Progress::telling(&note))
    }
}

fn tell(progress: &Bound<'_, PyAny>, seen: Seen) -> PyResult<()> {
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
