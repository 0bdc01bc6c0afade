//! A dataset that another process has listed is opened without a call on the storage.

mod source_support;

use std::fs;

use belady_data::source::conformance;
use belady_data::source::{
    Catalog, ListingProgress, OpenOptions, Operations, ReadError, SharedListing, Source,
    open_for_sharing, open_shared_listing,
};
use source_support::{Dataset, expected, read, tfrecord_file};

/// Returns the listing as on shared storage, wherever the tests run.
fn listed_on_shared_storage(dataset: &Dataset, format: &str) -> (Vec<u8>, SharedListing) {
    let (source, listed) =
        open_for_sharing(&dataset.root, &dataset.options(format), &ListingProgress::silent())
            .expect("opened");
    (source.catalog().as_bytes().to_vec(), SharedListing { is_local: false, ..listed })
}

fn reopened(
    dataset: &Dataset,
    format: &str,
    block: Vec<u8>,
    listed: &SharedListing,
) -> Box<dyn Source> {
    let options = OpenOptions { format: None, ..dataset.options(format) };
    let catalog = Catalog::from_bytes(block).expect("a whole catalog");
    open_shared_listing(&dataset.root, &options, listed, catalog).expect("opened")
}

#[test]
fn a_shared_listing_makes_no_call_before_the_first_read() {
    let dataset = Dataset::with(&[("a/1", b"one"), ("a/2", b"two"), ("b/3", b"three")]);
    let (block, listed) = listed_on_shared_storage(&dataset, "folder");
    let away = dataset.root.with_extension("away");
    fs::rename(&dataset.root, &away).expect("moved");
    let source = reopened(&dataset, "folder", block.clone(), &listed);
    assert_eq!(source.operations(), Operations::default());
    assert_eq!(source.catalog().as_bytes(), block);
    assert_eq!(source.catalog().classes(), ["a", "b"]);
    assert!(matches!(read(&*source, &[0]), Err(ReadError::Io { .. })), "it is not there");
    fs::rename(&away, &dataset.root).expect("moved back");
    assert_eq!(read(&*source, &[2, 0]).expect("read"), [b"three".to_vec(), b"one".to_vec()]);
}

#[test]
fn a_packed_file_is_read_as_its_format_demands() {
    let records: Vec<Vec<u8>> = vec![b"one".to_vec(), vec![], vec![7; 5000]];
    let dataset = Dataset::with(&[("train.tfrecord", &tfrecord_file(&records))]);
    let file = dataset.root.join("train.tfrecord");
    let options = dataset.options("tfrecord");
    let (source, listed) =
        open_for_sharing(&file, &options, &ListingProgress::silent()).expect("opened");
    assert!(listed.is_file);
    let listed = SharedListing { is_local: false, ..listed };
    let catalog = Catalog::from_bytes(source.catalog().as_bytes().to_vec()).expect("whole");
    let again = open_shared_listing(&file, &options, &listed, catalog).expect("opened");
    conformance::check(&*again, &expected(records));
    let mut damaged = fs::read(&file).expect("read");
    damaged[12] ^= 1;
    let times = fs::metadata(&file).expect("there").modified().expect("a time");
    fs::write(&file, damaged).expect("written");
    fs::File::options().append(true).open(&file).expect("open").set_modified(times).expect("set");
    assert!(
        matches!(read(&*again, &[0]), Err(ReadError::Damaged { .. })),
        "checksums are looked at"
    );
}

#[test]
fn a_changed_file_removes_the_snapshot_of_the_listing_process() {
    let dataset = Dataset::with(&[("a/1", b"one"), ("b/3", b"three")]);
    dataset.settle();
    let (block, listed) = listed_on_shared_storage(&dataset, "folder");
    assert_eq!(dataset.snapshot_files().len(), 1);
    let source = reopened(&dataset, "folder", block.clone(), &listed);
    fs::write(dataset.root.join("a/1"), "another").expect("written");
    let elsewhere =
        SharedListing { snapshot: Some("../../etc/passwd".to_owned()), ..listed.clone() };
    let stranger = reopened(&dataset, "folder", block, &elsewhere);
    assert!(matches!(read(&*stranger, &[0]), Err(ReadError::Changed { .. })));
    assert_eq!(dataset.snapshot_files().len(), 1, "only a snapshot's name counts as one");
    assert!(matches!(read(&*source, &[0]), Err(ReadError::Changed { .. })));
    assert_eq!(dataset.snapshot_files().len(), 0);
}
