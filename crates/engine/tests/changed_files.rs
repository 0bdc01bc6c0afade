//! Files that vanish, shrink, grow, are replaced or cannot be read in the middle of a run.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use belady_base::SampleId;
use belady_control::model::Bytes;
use belady_data::source::{DatasetFormat, ListingProgress, OpenOptions, Snapshots, Source, open};
use belady_engine::{BadSamples, Engine, EngineConfig, EngineError, JobConfig, Loader};
use common::expected;

const FILES: u8 = 60;
const LENGTH: usize = 20_000;
/// [`spoil`] changes them.
const SPOILT: std::ops::Range<SampleId> = 10..15;

fn content(file: u8) -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 + at / 251) as u8 ^ file).collect()
}

fn path(root: &Path, file: u8) -> std::path::PathBuf {
    root.join(format!("{file:02}"))
}

fn spoil(root: &Path) {
    fs::remove_file(path(root, 10)).unwrap();
    fs::File::options().write(true).open(path(root, 11)).unwrap().set_len(5_000).unwrap();
    fs::write(path(root, 12), vec![0; LENGTH + 1]).unwrap();
    fs::remove_file(path(root, 13)).unwrap();
    fs::create_dir(path(root, 13)).unwrap();
    fs::write(root.join("new"), vec![0; LENGTH - 1]).unwrap();
    fs::rename(root.join("new"), path(root, 14)).unwrap();
}

/// Returns a loader of three epochs that stages less than an epoch ahead.
fn start(root: &Path, direct: bool, bad_samples: BadSamples) -> (JobConfig, Loader) {
    for file in 0..FILES {
        fs::write(path(root, file), content(file)).unwrap();
    }
    let options = OpenOptions {
        format: Some(DatasetFormat::Flat),
        snapshots: Snapshots::Off,
        direct: Some(direct),
        ..OpenOptions::default()
    };
    let source: Arc<dyn Source> =
        Arc::from(open(root, &options, &ListingProgress::silent()).unwrap());
    let config = JobConfig {
        epochs: Some(3),
        batch: 4,
        staging: Bytes(400 << 10),
        bad_samples,
        ..JobConfig::new(source)
    };
    let engine = Engine::new(EngineConfig { threads: Some(3), ..EngineConfig::default() }).unwrap();
    let loader = engine.start(&config).unwrap();
    (config, loader)
}

#[derive(Default)]
struct Seen {
    /// The ids of each delivered batch.
    batches: Vec<Vec<SampleId>>,
    errors: Vec<EngineError>,
}

/// Spoils files after the first epoch and goes on to the end. Checks all bytes.
fn run(direct: bool, bad_samples: BadSamples) -> (Vec<Vec<SampleId>>, Seen) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (config, mut loader) = start(root, direct, bad_samples);
    let expected = expected(&config);
    let mut seen = Seen::default();
    loop {
        if seen.batches.len() == expected.len() / 3 && seen.errors.is_empty() {
            spoil(root);
        }
        match loader.next_batch() {
            Ok(None) => return (expected, seen),
            Ok(Some(batch)) => {
                for sample in batch.iter() {
                    assert!(sample.bytes() == content(sample.id as u8), "sample {}", sample.id);
                }
                seen.batches.push(batch.iter().map(|sample| sample.id).collect());
            }
            Err(error) => seen.errors.push(error),
        }
    }
}

fn is_spoilt(sample: SampleId) -> bool {
    SPOILT.contains(&sample)
}

fn has_spoilt(batch: &[SampleId]) -> bool {
    batch.iter().any(|&sample| is_spoilt(sample))
}

#[test]
fn files_spoilt_in_mid_run_are_skipped_and_nothing_else_is() {
    for direct in [false, true] {
        let (expected, seen) = run(direct, BadSamples::Skip);
        assert!(seen.errors.is_empty());
        let third = expected.len() / 3 * 2;
        for (at, (batch, mut expected)) in seen.batches.iter().zip(expected).enumerate() {
            if at >= third {
                expected.retain(|&sample| !is_spoilt(sample));
            }
            // In the second epoch some were staged before they were spoilt.
            assert!(*batch == expected || at < third && has_spoilt(&expected));
        }
    }
}

#[test]
fn files_spoilt_in_mid_run_are_raised_by_name_and_other_batches_come() {
    for direct in [false, true] {
        let (expected, seen) = run(direct, BadSamples::Raise);
        assert_eq!(seen.batches.len() + seen.errors.len(), expected.len());
        for error in &seen.errors {
            let text = error.to_string();
            assert!(SPOILT.clone().any(|sample| text.contains(&format!("/{sample}"))), "{text}");
        }
        let third = &expected[expected.len() / 3 * 2..];
        let good = third.iter().filter(|batch| !has_spoilt(batch));
        assert!(seen.batches[seen.batches.len() - good.clone().count()..].iter().eq(good));
    }
}

#[test]
fn files_spoilt_in_mid_run_are_replaced_within_their_batch() {
    for direct in [false, true] {
        let (expected, seen) = run(direct, BadSamples::Replace);
        assert!(seen.errors.is_empty());
        assert_eq!(seen.batches.len(), expected.len());
        let third = expected.len() / 3 * 2;
        for (batch, expected) in seen.batches.iter().zip(&expected).skip(third) {
            assert_eq!(batch.len(), expected.len());
            for (&sample, &promised) in batch.iter().zip(expected) {
                assert!(sample == promised || is_spoilt(promised) && expected.contains(&sample));
                assert!(!is_spoilt(sample));
            }
        }
    }
}
