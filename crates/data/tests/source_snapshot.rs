//! A snapshot is used if the dataset has not changed, never otherwise, and never fails an opening.

mod source_support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use belady_data::source::{Extensions, ListingProgress, OpenOptions, ReadError, Snapshots, open};
use source_support::{Dataset, noise, paths, read, tfrecord_file};

fn two_classes() -> Dataset {
    let dataset = Dataset::with(&[("a/1", b"one"), ("a/2", b"two"), ("b/3", b"three")]);
    dataset.settle();
    dataset
}

#[test]
fn the_second_opening_lists_nothing() {
    let dataset = two_classes();
    let first = dataset.open("folder");
    assert_eq!(first.operations().list, 3);
    let second = dataset.open("folder");
    assert_eq!(second.operations().list, 0);
    assert_eq!(second.catalog().as_bytes(), first.catalog().as_bytes());
    assert_eq!(second.catalog().fingerprint(), first.catalog().fingerprint());
    assert_eq!(read(&*second, &[2]).expect("read"), [b"three"]);
}

#[test]
fn every_change_is_noticed_and_listed_again() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 6] = [
        ("a new file", |root| fs::write(root.join("a/0"), "zero").expect("written")),
        ("a file gone", |root| fs::remove_file(root.join("a/1")).expect("removed")),
        ("a new class", |root| {
            fs::create_dir(root.join("c")).expect("made");
            fs::write(root.join("c/4"), "four").expect("written");
        }),
        ("a class gone", |root| fs::remove_dir_all(root.join("b")).expect("removed")),
        ("a file renamed", |root| fs::rename(root.join("a/1"), root.join("a/9")).expect("renamed")),
        ("a file rewritten", |root| fs::write(root.join("a/1"), "eins").expect("written")),
    ];
    for (what, change) in changes {
        let dataset = two_classes();
        let before = dataset.open("folder").catalog().fingerprint();
        change(&dataset.root);
        let after = dataset.open("folder");
        assert!(after.operations().list >= 2, "{what}");
        assert_ne!(after.catalog().fingerprint(), before, "{what}");
        for sample in 0..after.catalog().len() {
            read(&*after, &[sample]).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
}

#[test]
fn a_touched_directory_is_listed_again_and_is_the_same_dataset() {
    let dataset = two_classes();
    let before = dataset.open("folder").catalog().fingerprint();
    dataset.write("a/.hidden", b"x");
    let after = dataset.open("folder");
    assert_eq!(after.operations().list, 3);
    assert_eq!(after.catalog().fingerprint(), before);
}

#[test]
fn the_listing_of_a_dataset_that_was_just_written_is_not_stored() {
    let dataset = Dataset::with(&[("a/1", b"one")]);
    let future = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    let directory = fs::File::open(dataset.root.join("a")).expect("opened");
    directory.set_modified(future).expect("touched");
    dataset.open("folder");
    assert_eq!(dataset.snapshot_files().len(), 0);
}

#[test]
fn a_file_rewritten_among_many_is_noticed_at_the_read_and_at_the_next_start() {
    let dataset = Dataset::new();
    for at in 0..5000 {
        dataset.write(format!("a/{at:04}"), b"x");
    }
    dataset.settle();
    dataset.open("folder");
    dataset.write("a/0007", b"y");
    let old = fs::File::options().write(true).open(dataset.root.join("a/0007")).expect("opened");
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("touched");
    let source = dataset.open("folder");
    assert_eq!(source.operations().list, 0, "too many files to look at each");
    let error = read(&*source, &[7]).expect_err("changed");
    assert!(matches!(error, ReadError::Changed { sample: 7, .. }), "{error}");
    assert!(error.to_string().contains("start again"), "{error}");
    let next = dataset.open("folder");
    assert_eq!(next.operations().list, 2, "listed again");
    assert_eq!(read(&*next, &[7]).expect("read"), [b"y"]);
}

#[test]
fn packed_files_are_compared_one_by_one() {
    let dataset = Dataset::with(&[("a.tfrecord", &tfrecord_file(&[noise(1, 50)]))]);
    dataset.settle();
    dataset.open("tfrecord");
    assert_eq!(dataset.open("tfrecord").operations().open, 0);
    dataset.write("a.tfrecord", &tfrecord_file(&[noise(1, 20), noise(2, 30)]));
    assert_eq!(dataset.open("tfrecord").catalog().len(), 2);
}

#[test]
fn two_datasets_never_collide() {
    let (one, two) = (two_classes(), two_classes());
    two.write("a/4", b"four");
    two.settle();
    let options = one.options("folder");
    let lists = |dataset: &Dataset, options: &OpenOptions| {
        let source = open(&dataset.root, options, &ListingProgress::silent()).expect("opened");
        (source.operations().list > 0, source.catalog().len())
    };
    assert_eq!(lists(&one, &options), (true, 3));
    assert_eq!(lists(&two, &options), (true, 4));
    let jpg = OpenOptions { extensions: Extensions::only(["jpg"]), ..options.clone() };
    assert!(open(&one.root, &jpg, &ListingProgress::silent()).is_err(), "other options, no files");
    let records = OpenOptions { format: one.options("records:1").format, ..options.clone() };
    assert_eq!(lists(&one, &records), (true, 11));
    assert_eq!(lists(&one, &options), (false, 3));
    assert_eq!(lists(&two, &options), (false, 4));
    assert_eq!(one.snapshot_files().len(), 3);

    // As if two hashes collided: the snapshot of one dataset under the name of the other.
    let snapshots = one.snapshot_files();
    for from in &snapshots {
        let bytes = fs::read(from).expect("read");
        for to in &snapshots {
            fs::write(to, &bytes).expect("written");
        }
        assert_eq!(lists(&one, &options).1, 3);
        assert_eq!(lists(&two, &options).1, 4);
        assert_eq!(lists(&one, &records).1, 11);
    }
}

#[test]
fn a_link_and_its_target_are_one_dataset() {
    let dataset = two_classes();
    dataset.open("folder");
    let link = dataset.root.with_file_name("link");
    symlink(&dataset.root, &link).expect("linked");
    let source =
        open(&link, &dataset.options("folder"), &ListingProgress::silent()).expect("opened");
    assert_eq!(source.operations().list, 0);
    assert_eq!(read(&*source, &[0]).expect("read"), [b"one"]);
}

#[test]
fn broken_snapshots_are_replaced() {
    let dataset = two_classes();
    dataset.open("folder");
    let snapshot = dataset.snapshot_files().remove(0);
    let good = fs::read(&snapshot).expect("read");
    let mut flipped = good.clone();
    flipped[200] ^= 4;
    for broken in [&good[..good.len() / 2], &good[..20], &[], b"nonsense", &flipped] {
        fs::write(&snapshot, broken).expect("written");
        let source = dataset.open("folder");
        assert_eq!(source.operations().list, 3);
        assert_eq!(paths(&*source), ["a/1", "a/2", "b/3"]);
        assert!(fs::read(&snapshot).expect("read") == good);
    }
}

#[test]
fn an_unusable_cache_directory_is_no_error() {
    let dataset = two_classes();
    dataset.write("file", b"x");
    for place in ["/proc/belady", "/dev/null/belady", "file/belady"] {
        let snapshots = Snapshots::In(dataset.root.join(place));
        let options = OpenOptions { snapshots, ..dataset.options("folder") };
        for _ in 0..2 {
            let source = open(&dataset.root, &options, &ListingProgress::silent()).expect("opened");
            assert_eq!(source.operations().list, 3);
        }
    }
}

#[test]
fn snapshots_can_be_switched_off() {
    let dataset = two_classes();
    let options = OpenOptions { snapshots: Snapshots::Off, ..dataset.options("folder") };
    for _ in 0..2 {
        let source = open(&dataset.root, &options, &ListingProgress::silent()).expect("opened");
        assert_eq!(source.operations().list, 3);
    }
    assert!(!dataset.snapshots.exists());
}

#[test]
fn snapshots_are_private_and_whole() {
    let dataset = two_classes();
    dataset.open("folder");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&dataset.snapshots), 0o700);
    let files = dataset.snapshot_files();
    assert_eq!(files.len(), 1, "no unfinished file is left");
    assert_eq!(mode(&files[0]), 0o600);
}

#[test]
fn a_snapshot_that_is_a_link_is_not_followed() {
    let dataset = two_classes();
    dataset.open("folder");
    let snapshot = dataset.snapshot_files().remove(0);
    let elsewhere = dataset.root.with_file_name("elsewhere");
    fs::rename(&snapshot, &elsewhere).expect("moved");
    symlink(&elsewhere, &snapshot).expect("linked");
    assert_eq!(dataset.open("folder").operations().list, 3);
    assert!(snapshot.symlink_metadata().expect("there").is_file(), "replaced by a file");
}

#[test]
fn the_dataset_itself_is_never_written_to() {
    let dataset = two_classes();
    let state = || {
        let mut all = Vec::new();
        let mut below = vec![dataset.root.clone()];
        while let Some(path) = below.pop() {
            let metadata = fs::metadata(&path).expect("there");
            if metadata.is_dir() {
                below
                    .extend(fs::read_dir(&path).expect("listed").map(|it| it.expect("one").path()));
            }
            all.push((path, metadata.modified().expect("a time"), metadata.len()));
        }
        all.sort();
        all
    };
    let before = state();
    for _ in 0..2 {
        let source = dataset.open("folder");
        read(&*source, &[0, 1]).expect("read");
    }
    assert_eq!(state(), before);
}

#[test]
fn truncating_a_snapshot_does_not_affect_an_open_dataset() {
    let dataset = two_classes();
    drop(dataset.open("folder"));
    let source = dataset.open("folder");
    assert_eq!(source.operations().list, 0, "from its snapshot");
    for snapshot in dataset.snapshot_files() {
        fs::File::options().write(true).open(snapshot).expect("opened").set_len(0).expect("cut");
    }
    assert_eq!(read(&*source, &[0, 1]).expect("read"), [b"one", b"two"]);
}

#[test]
fn a_file_overwritten_with_its_time_set_back_is_found_at_the_start() {
    let dataset = two_classes();
    drop(dataset.open("folder"));
    let path = dataset.root.join("a/1");
    let time = fs::metadata(&path).expect("there").modified().expect("a time");
    fs::write(&path, "uno").expect("written");
    fs::File::options().write(true).open(&path).expect("opened").set_modified(time).expect("set");
    let source = dataset.open("folder");
    assert!(source.operations().list > 0);
    assert_eq!(read(&*source, &[0]).expect("read"), [b"uno"]);
}
