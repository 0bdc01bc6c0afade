//! The conformance suite of sources: checks that panic, called by the tests of each implementation.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use belady_base::SampleId;

use super::{ReadError, Source, Want};

/// An expected sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its label.
    pub label: Option<u32>,
}

/// Runs all checks that do not change the dataset.
pub fn check(source: &dyn Source, expected: &[Expected]) {
    check_catalog(source, expected);
    let all: Vec<SampleId> = (0..source.catalog().len()).collect();
    for &sample in all.iter().chain(all.iter().rev()) {
        check_read(source, &[sample], expected);
    }
    for step in [1, 2, 3] {
        let picked: Vec<_> = all.iter().copied().step_by(step).collect();
        for wants in by_file(source, &picked) {
            check_read(source, &wants, expected);
        }
    }
    check_threads(source, expected);
    check_operations(source, expected);
    assert!(source.read(&mut []).is_ok(), "an empty request succeeds");
}

fn check_catalog(source: &dyn Source, expected: &[Expected]) {
    let catalog = source.catalog();
    assert_eq!(catalog.len() as usize, expected.len(), "number of samples");
    let sizes = catalog.sizes();
    for (sample, expected) in (0..).zip(expected) {
        assert_eq!(catalog.size(sample), expected.bytes.len() as u64, "size of {sample}");
        assert_eq!(sizes.get(sample), catalog.size(sample), "size of {sample}");
        assert_eq!(catalog.label(sample), expected.label, "label of {sample}");
        if let Some(label) = expected.label {
            let classes = catalog.classes().len();
            assert!(classes == 0 || (label as usize) < classes, "{label} has no name");
        }
    }
}

/// Groups samples by file, in the order of their offsets.
fn by_file(source: &dyn Source, samples: &[SampleId]) -> Vec<Vec<SampleId>> {
    let file = |sample: &SampleId| source.catalog().location(*sample).file;
    let mut samples = samples.to_vec();
    samples.sort_by_key(|&sample| source.catalog().location(sample));
    samples.chunk_by(|a, b| file(a) == file(b)).map(<[_]>::to_vec).collect()
}

/// Reads samples of one file with one request.
fn read(source: &dyn Source, samples: &[SampleId]) -> Result<Vec<Vec<u8>>, ReadError> {
    let size = |&sample: &SampleId| source.catalog().size(sample) as usize;
    let mut memory: Vec<Vec<u8>> = samples.iter().map(|sample| vec![0xA5; size(sample)]).collect();
    let wants = samples.iter().zip(&mut memory);
    let mut wants: Vec<_> = wants.map(|(&sample, into)| Want::new(sample, into)).collect();
    source.read(&mut wants)?;
    Ok(memory)
}

fn check_read(source: &dyn Source, samples: &[SampleId], expected: &[Expected]) {
    let got = read(source, samples).unwrap_or_else(|error| panic!("{samples:?}: {error}"));
    for (&sample, got) in samples.iter().zip(got) {
        assert!(got == expected[sample as usize].bytes, "sample {sample} has the wrong bytes");
    }
}

fn check_threads(source: &dyn Source, expected: &[Expected]) {
    let samples = source.catalog().len();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for at in 0..samples {
                    check_read(source, &[(at * 7 + thread * 3) % samples], expected);
                }
            });
        }
    });
}

fn check_operations(source: &dyn Source, expected: &[Expected]) {
    let Some(sample) = (0..).zip(expected).find(|(_, it)| !it.bytes.is_empty()) else { return };
    let before = source.operations();
    check_read(source, &[sample.0], expected);
    let after = source.operations();
    assert_eq!(after.read, before.read + 1, "one read was made");
    assert!(after.bytes >= before.bytes + sample.1.bytes.len() as u64, "its bytes were counted");
}

/// Checks the errors of a source when its files below `root` change after it was opened. `open`
/// opens it again; at the end the files are as they were, apart from their times.
pub fn check_changes(open: &dyn Fn() -> Box<dyn Source>, root: &Path) {
    let original = open();
    let catalog = original.catalog();
    let sample = (0..catalog.len()).find(|&sample| catalog.size(sample) > 0);
    let sample = sample.expect("a sample that is not empty");
    let path = root.join(catalog.path(catalog.location(sample).file));
    drop(original);
    let said = |change: &dyn Fn(&Path)| {
        let source = open();
        let aside = Aside::put(&path);
        change(&path);
        let error = read(&*source, &[sample]).expect_err("the change is noticed");
        aside.put_back();
        assert_eq!(error.sample(), sample);
        let text = error.to_string();
        assert!(text.contains(&*path.to_string_lossy()), "{text} does not name the file");
        assert!(!error.is_transient(), "{text} does not go away");
        read(&*open(), &[sample]).expect("all is well again");
        error
    };
    let copy = |path: &Path| fs::copy(aside(path), path).expect("copied");
    let vanished = said(&|_| ());
    assert!(
        matches!(&vanished, ReadError::Io { error, .. } if error.kind() == ErrorKind::NotFound),
        "{vanished}"
    );
    let shrunk = said(&|path| {
        let length = copy(path);
        File::options().write(true).open(path).expect("opened").set_len(length - 1).expect("cut");
    });
    assert!(matches!(shrunk, ReadError::Changed { .. }), "{shrunk}");
    let touched = said(&|path| {
        copy(path);
        let file = File::options().write(true).open(path).expect("opened");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("touched");
    });
    assert!(matches!(touched, ReadError::Changed { .. }), "{touched}");
    let replaced = said(&|path| fs::create_dir(path).expect("made"));
    assert!(matches!(replaced, ReadError::Changed { .. }), "{replaced}");
}

/// A file moved aside, to be restored later.
struct Aside<'a> {
    path: &'a Path,
}

fn aside(path: &Path) -> PathBuf {
    // Hidden, so that listings leave it out.
    path.with_file_name(".put-aside")
}

impl<'a> Aside<'a> {
    fn put(path: &'a Path) -> Self {
        fs::rename(path, aside(path)).expect("moved away");
        Self { path }
    }

    fn put_back(self) {
        if self.path.is_dir() {
            fs::remove_dir(self.path).expect("removed");
        }
        fs::rename(aside(self.path), self.path).expect("moved back");
    }
}
