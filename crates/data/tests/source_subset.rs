//! A subset of a source passes the conformance suite of sources.

mod source_support;

use std::sync::Arc;

use belady_base::SampleId;
use belady_data::source::conformance::{Expected, check, check_changes};
use belady_data::source::{Source, Subset, SubsetError, Synthetic};
use proptest::prelude::*;
use source_support::{Dataset, noise, read};

fn chosen(source: Box<dyn Source>, of: &[SampleId]) -> Subset {
    Subset::new(source.into(), of.to_vec()).expect("they are there")
}

fn folder() -> Dataset {
    let dataset = Dataset::new();
    for (at, class) in ["cat", "dog", "owl"].iter().enumerate() {
        for file in 0..4 {
            dataset.write(format!("{class}/{file}.bin"), &noise(at * 4 + file, 3000 * (file + 1)));
        }
    }
    dataset
}

fn records() -> Dataset {
    let dataset = Dataset::new();
    for file in 0..3 {
        dataset.write(format!("{file}.bin"), &noise(file, 5000 * 6));
    }
    dataset
}

fn expected(whole: &dyn Source, of: &[SampleId]) -> Vec<Expected> {
    let one = |&sample: &SampleId| Expected {
        bytes: read(whole, &[sample]).expect("read").remove(0),
        label: whole.catalog().label(sample),
    };
    of.iter().map(one).collect()
}

#[test]
fn a_subset_passes_the_suite_of_sources() {
    for (dataset, format, of) in [
        (folder(), "folder", &[11, 2, 2, 0, 7][..]),
        (records(), "records:5000", &[17, 3, 4, 3, 0, 12]),
        (records(), "records:5000", &[9]),
    ] {
        for direct in [false, true] {
            let open = || if direct { dataset.open_direct(format) } else { dataset.open(format) };
            let samples = expected(&*open(), of);
            check(&chosen(open(), of), &samples);
            check_changes(&|| Box::new(chosen(open(), of)), &dataset.root);
        }
    }
}

#[test]
fn a_subset_of_samples_without_files_needs_none() {
    let whole = Synthetic::of_sizes([10, 20, 30], 1);
    let samples = expected(&whole, &[2, 0]);
    check(&chosen(Box::new(whole), &[2, 0]), &samples);
}

#[test]
fn a_subset_may_be_empty() {
    assert!(chosen(folder().open("folder"), &[]).catalog().is_empty());
}

#[test]
fn samples_out_of_range_cannot_be_selected() {
    let error = Subset::new(folder().open("folder").into(), vec![0, 12]).expect_err("12 of 12");
    assert_eq!(error, SubsetError { sample: 12, samples: 12 });
}

#[test]
fn an_error_names_the_sample_by_its_number_in_the_subset() {
    let dataset = folder();
    let some = chosen(dataset.open("folder"), &[8, 5, 1]);
    std::fs::remove_file(dataset.root.join("dog/1.bin")).expect("removed");
    assert_eq!(read(&some, &[1]).expect_err("gone").sample(), 1);
    assert_eq!(some.compare(1).expect_err("gone").sample(), 1);
    read(&some, &[0]).expect("still there");
}

proptest! {
    #[test]
    fn another_choice_has_another_fingerprint(
        one in prop::collection::vec(0..12u32, 0..6),
        other in prop::collection::vec(0..12u32, 0..6),
    ) {
        let whole: Arc<dyn Source> = Arc::new(Synthetic::of_sizes((1..13).map(|size| size * 10), 1));
        let fingerprint = |of: &[SampleId]| {
            Subset::new(whole.clone(), of.to_vec()).expect("there").catalog().fingerprint()
        };
        prop_assert_eq!(fingerprint(&one) == fingerprint(&other), one == other);
        prop_assert_ne!(fingerprint(&one), whole.catalog().fingerprint());
    }
}
