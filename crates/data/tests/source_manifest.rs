//! A dataset given by a manifest passes the conformance suite of sources.

mod source_support;

use std::path::PathBuf;
use std::sync::Arc;

use belady_data::source::conformance::{Expected, check, check_changes};
use belady_data::source::{ListingProgress, Manifest, OpenError, OpenOptions, Source, open};
use source_support::{Dataset, noise, paths};

fn dataset() -> Dataset {
    let dataset = Dataset::new();
    for at in 0..6 {
        dataset.write(format!("{}/{at}.bin", at % 2), &noise(at, 2000 * at));
    }
    dataset
}

fn named(files: &[&str], labels: &[Option<u32>]) -> Manifest {
    Manifest {
        files: files.iter().map(PathBuf::from).collect(),
        labels: labels.to_vec(),
        classes: vec![],
    }
}

fn try_open(dataset: &Dataset, manifest: Manifest) -> Result<Box<dyn Source>, OpenError> {
    let options =
        OpenOptions { format: None, manifest: Some(Arc::new(manifest)), ..dataset.options("flat") };
    open(&dataset.root, &options, &ListingProgress::silent())
}

#[test]
fn named_files_are_samples_in_their_order() {
    let dataset = dataset();
    let (order, labels) = ([5, 0, 3, 5], [Some(7), None, Some(1), Some(0)]);
    let files = ["1/5.bin", "0/0.bin", "1/3.bin", "1/5.bin"];
    let samples: Vec<Expected> = std::iter::zip(order, labels)
        .map(|(at, label)| Expected { bytes: noise(at, 2000 * at), label })
        .collect();
    let open = || try_open(&dataset, named(&files, &labels)).expect("opened");
    for settled in [false, true] {
        if settled {
            dataset.settle();
        }
        assert_eq!(paths(&*open()), files);
        check(&*open(), &samples);
        check_changes(&open, &dataset.root);
    }
}

#[test]
fn each_manifest_has_its_own_snapshot() {
    let dataset = dataset();
    dataset.settle();
    let files = ["1/5.bin", "0/0.bin"];
    let first = try_open(&dataset, named(&files, &[])).expect("opened");
    assert_eq!(dataset.snapshot_files().len(), 1);
    let again = try_open(&dataset, named(&files, &[])).expect("opened");
    assert_eq!(again.catalog().fingerprint(), first.catalog().fingerprint());
    for other in [named(&files[..1], &[]), named(&files, &[Some(0), Some(1)])] {
        let other = try_open(&dataset, other).expect("opened");
        assert_ne!(other.catalog().fingerprint(), first.catalog().fingerprint());
    }
    assert_eq!(dataset.snapshot_files().len(), 3);
    dataset.write("0/0.bin", b"another");
    let changed = try_open(&dataset, named(&files, &[])).expect("opened");
    assert_eq!(changed.catalog().size(1), 7);
}

#[test]
fn a_missing_file_is_named_with_its_position() {
    let dataset = dataset();
    for wrong in ["0/none.bin", "0"] {
        let error = try_open(&dataset, named(&["0/0.bin", wrong], &[])).expect_err("no file");
        assert!(matches!(error, OpenError::NoFile { position: 1, .. }), "{error}");
        assert!(error.to_string().contains(wrong), "{error}");
    }
}
