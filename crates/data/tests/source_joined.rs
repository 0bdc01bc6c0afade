//! Joined sources pass the conformance suite as one source.

mod source_support;

use std::path::PathBuf;
use std::sync::Arc;

use belady_data::source::conformance::{Expected, check, check_changes};
use belady_data::source::{JoinSourcesError, Joined, Source, Synthetic, Want};
use proptest::prelude::*;
use source_support::{Dataset, noise};

type Part = (PathBuf, Arc<dyn Source>);

fn part(dataset: &Dataset, format: &str) -> Part {
    (dataset.root.clone(), Arc::from(dataset.open(format)))
}

fn made_up(sizes: &[u64], seed: u64) -> Part {
    let name = format!("made up {seed}").into();
    (name, Arc::new(Synthetic::of_sizes(sizes.iter().copied(), seed)))
}

/// Reads all samples of a source, with the names of their classes.
fn contents(source: &dyn Source) -> Vec<(Vec<u8>, Option<String>)> {
    let catalog = source.catalog();
    let classes = catalog.classes();
    let one = |sample| {
        let mut bytes = vec![0; catalog.size(sample) as usize];
        source.read(&mut [Want::new(sample, &mut bytes)]).expect("read");
        let class = |label: u32| classes[label as usize].display().to_string();
        (bytes, catalog.label(sample).map(class))
    };
    (0..catalog.len()).map(one).collect()
}

fn expected(source: &Joined) -> Vec<Expected> {
    let labels = (0..source.catalog().len()).map(|sample| source.catalog().label(sample));
    let bytes = contents(source).into_iter().map(|(bytes, _)| bytes);
    bytes.zip(labels).map(|(bytes, label)| Expected { bytes, label }).collect()
}

fn folder(classes: &[&str], salt: usize) -> Dataset {
    let dataset = Dataset::new();
    for (at, class) in classes.iter().enumerate() {
        for file in 0..3 {
            let bytes = noise(salt + at * 3 + file, 100 * (file + 1));
            dataset.write(format!("{class}/{file}.bin"), &bytes);
        }
    }
    dataset
}

fn records(count: usize, salt: usize) -> Dataset {
    let dataset = Dataset::new();
    let all: Vec<u8> = (0..count).flat_map(|at| noise(salt + at, 64)).collect();
    dataset.write("all.bin", &all);
    dataset
}

#[test]
fn parts_of_all_formats_join_into_one_dataset() {
    let (one, two) = (folder(&["cat", "dog"], 0), folder(&["ant", "cat"], 50));
    let packed = records(5, 100);
    let parts = || {
        vec![
            part(&one, "folder"),
            made_up(&[], 1),
            part(&packed, "records:64"),
            made_up(&[0, 7, 300], 2),
            part(&two, "folder"),
            made_up(&[], 3),
        ]
    };
    let naive: Vec<_> = parts().iter().flat_map(|(_, source)| contents(&**source)).collect();
    let joined = Joined::new(parts()).expect("joined");
    assert_eq!(contents(&joined), naive);
    assert_eq!(joined.catalog().classes(), ["cat", "dog", "ant"]);
    check(&joined, &expected(&joined));
    let open = || Box::new(Joined::new(parts()).expect("joined")) as Box<dyn Source>;
    check_changes(&open, &one.root);
}

#[test]
fn parts_without_files_need_none() {
    let joined = Joined::new(vec![made_up(&[3, 0], 1), made_up(&[900], 2)]).expect("joined");
    assert_eq!(joined.catalog().files(), 0);
    check(&joined, &expected(&joined));
}

#[test]
fn the_fingerprint_of_a_joined_dataset_follows_from_its_parts() {
    let (one, two) = (made_up(&[3], 1), made_up(&[4], 2));
    let fingerprint =
        |parts: Vec<Part>| Joined::new(parts).expect("joined").catalog().fingerprint();
    let there = fingerprint(vec![one.clone(), two.clone()]);
    let moved = ("elsewhere".into(), one.1.clone());
    assert_eq!(there, fingerprint(vec![moved, two.clone()]));
    assert_ne!(there, fingerprint(vec![two, one.clone()]));
    assert_ne!(one.1.catalog().fingerprint(), fingerprint(vec![one]));
}

#[test]
fn joining_no_sources_is_an_error() {
    assert_eq!(Joined::new(vec![]).expect_err("nothing"), JoinSourcesError::Nothing);
}

proptest! {
    #[test]
    fn any_parts_come_out_as_they_went_in(
        sizes in prop::collection::vec(prop::collection::vec(0u64..50, 0..6), 1..6),
    ) {
        let parts = || -> Vec<Part> {
            sizes.iter().zip(0..).map(|(sizes, seed)| made_up(sizes, seed)).collect()
        };
        let naive: Vec<_> = parts().iter().flat_map(|(_, source)| contents(&**source)).collect();
        let joined = Joined::new(parts()).expect("joined");
        prop_assert_eq!(contents(&joined), naive);
    }
}

#[test]
fn joined_parts_on_a_local_disk_are_read_together() {
    let datasets = [folder(&["a", "b"], 0), folder(&["c"], 100)];
    let direct = |dataset: &Dataset| -> Part {
        (dataset.root.clone(), Arc::from(dataset.open_direct("folder")))
    };
    let parts: Vec<Part> = datasets.iter().map(direct).collect();
    let alone = parts[0].1.together();
    let joined = Joined::new(parts).expect("joined");
    assert_eq!(joined.together(), alone);
    if alone > 1 {
        // Wants of several files and parts in one call.
        let all = contents(&joined);
        let mut memory: Vec<Vec<u8>> = all.iter().map(|(bytes, _)| vec![0; bytes.len()]).collect();
        let wants = (0..).zip(&mut memory).map(|(sample, into)| Want::new(sample, into));
        joined.read(&mut wants.collect::<Vec<_>>()).expect("read");
        assert!(all.iter().map(|(bytes, _)| bytes).eq(&memory));
    }
    let slow = Joined::new(vec![made_up(&[1, 2], 1), direct(&datasets[0])]).expect("joined");
    assert_eq!(slow.together(), 1, "no faster than its slowest part");
}
