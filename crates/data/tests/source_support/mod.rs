//! Datasets on disk for the tests of sources.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use belady_base::SampleId;
use belady_data::source::conformance::Expected;
use belady_data::source::{
    DatasetFormat, ListingProgress, OpenError, OpenOptions, ReadError, Snapshots, Source, Want,
    tfrecord,
};

/// A dataset and a directory for its snapshots, both removed at the end of the test.
pub struct Dataset {
    pub root: PathBuf,
    pub snapshots: PathBuf,
    _directory: tempfile::TempDir,
}

impl Dataset {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().join("dataset");
        fs::create_dir(&root).expect("made");
        Self { root, snapshots: directory.path().join("snapshots"), _directory: directory }
    }

    pub fn with(files: &[(&str, &[u8])]) -> Self {
        let dataset = Self::new();
        for (path, bytes) in files {
            dataset.write(path, bytes);
        }
        dataset
    }

    pub fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, bytes).expect("written");
    }

    /// Sets all directories' times back, as if nothing had been written for an hour.
    pub fn settle(&self) {
        let mut below = vec![self.root.clone()];
        while let Some(directory) = below.pop() {
            let hour_ago = SystemTime::now() - Duration::from_secs(3601);
            let handle = fs::File::open(&directory).expect("opened");
            handle.set_modified(hour_ago).expect("touched");
            let entries = fs::read_dir(&directory).expect("listed");
            below.extend(
                entries.map(|entry| entry.expect("an entry").path()).filter(|it| it.is_dir()),
            );
        }
    }

    pub fn options(&self, format: &str) -> OpenOptions {
        OpenOptions {
            format: Some(format.parse::<DatasetFormat>().expect("a format")),
            snapshots: Snapshots::In(self.snapshots.clone()),
            ..Default::default()
        }
    }

    pub fn try_open(&self, format: &str) -> Result<Box<dyn Source>, OpenError> {
        belady_data::source::open(&self.root, &self.options(format), &ListingProgress::silent())
    }

    pub fn open(&self, format: &str) -> Box<dyn Source> {
        self.try_open(format).expect("opened")
    }

    /// Reads past the page cache where possible.
    #[allow(dead_code, reason = "not every suite reads so")]
    pub fn open_direct(&self, format: &str) -> Box<dyn Source> {
        let options = OpenOptions { direct: Some(true), ..self.options(format) };
        belady_data::source::open(&self.root, &options, &ListingProgress::silent()).expect("opened")
    }

    pub fn snapshot_files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.snapshots) else { return Vec::new() };
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }
}

/// The paths of all files, in the order of the samples.
pub fn paths(source: &dyn Source) -> Vec<String> {
    let catalog = source.catalog();
    let path = |sample| catalog.path(catalog.location(sample).file);
    (0..catalog.len()).map(|sample| path(sample).display().to_string()).collect()
}

pub fn read(source: &dyn Source, samples: &[SampleId]) -> Result<Vec<Vec<u8>>, ReadError> {
    let size = |&sample: &SampleId| source.catalog().size(sample) as usize;
    let mut memory: Vec<Vec<u8>> = samples.iter().map(|sample| vec![0xEE; size(sample)]).collect();
    let wants = samples.iter().zip(&mut memory);
    let mut wants: Vec<_> = wants.map(|(&sample, into)| Want::new(sample, into)).collect();
    source.read(&mut wants)?;
    Ok(memory)
}

/// Bytes that differ from sample to sample.
pub fn noise(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (((at + 1) * (seed * 2 + 1) * 2_654_435_761) >> 13) as u8).collect()
}

pub fn expected(bytes: impl IntoIterator<Item = Vec<u8>>) -> Vec<Expected> {
    bytes.into_iter().map(|bytes| Expected { bytes, label: None }).collect()
}

pub fn tfrecord_file(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for payload in payloads {
        let length = (payload.len() as u64).to_le_bytes();
        file.extend(length);
        file.extend(tfrecord::masked_crc(&length).to_le_bytes());
        file.extend(payload);
        file.extend(tfrecord::masked_crc(payload).to_le_bytes());
    }
    file
}
