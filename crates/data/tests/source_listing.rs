//! Listing: which files are found, in which order, and the errors of bad datasets.

mod source_support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use belady_data::source::{
    Extensions, ListingCounts, ListingProgress, OpenError, OpenOptions, open,
};
use proptest::prelude::*;
use source_support::{Dataset, paths, read};

#[test]
fn labels_and_order_are_those_of_torchvision() {
    let dataset = Dataset::with(&[
        ("b/2.jpg", b"1"),
        ("b/10.jpg", b"2"),
        ("b/deep/er/1.jpg", b"3"),
        ("b/deep/0.jpg", b"4"),
        // Sorted by whole path, this one would come before `b`: '-' is less than '/'.
        ("b-side/1.jpg", b"5"),
        ("B/x.jpg", b"6"),
        ("a/z.jpg", b"7"),
        ("stray.txt", b"in no folder"),
    ]);
    let source = dataset.open("folder");
    let order = [
        ("B/x.jpg", 0),
        ("a/z.jpg", 1),
        ("b/10.jpg", 2),
        ("b/2.jpg", 2),
        ("b/deep/0.jpg", 2),
        ("b/deep/er/1.jpg", 2),
        ("b-side/1.jpg", 3),
    ];
    assert_eq!(paths(&*source), order.map(|(path, _)| path));
    let labels: Vec<_> = (0..7).filter_map(|sample| source.catalog().label(sample)).collect();
    assert_eq!(labels, order.map(|(_, label)| label));
    assert_eq!(source.catalog().classes(), ["B", "a", "b", "b-side"]);
}

#[test]
fn a_class_without_files_is_refused_or_keeps_its_number() {
    let dataset = Dataset::with(&[("a/1", b"x"), ("c/1", b"x")]);
    std::fs::create_dir(dataset.root.join("b")).expect("made");
    let allowing = OpenOptions { allow_empty: true, ..dataset.options("folder") };
    for _ in 0..2 {
        let source = open(&dataset.root, &allowing, &ListingProgress::silent()).expect("opened");
        assert_eq!(source.catalog().classes(), ["a", "b", "c"]);
        assert_eq!(source.catalog().label(1), Some(2));
        let error = dataset.try_open("folder").expect_err("an empty class").to_string();
        assert!(error.contains("class folders without a file that counts (b)"), "{error}");
        dataset.settle();
    }
}

#[test]
fn in_class_folders_with_images_only_these_count() {
    let dataset = Dataset::new();
    for file in ["a/1.jpg", "a/1.txt", "a/deep/2.PNG", "b/3.webp", "b/3.gif", "top.jpg", "top.txt"]
    {
        dataset.write(file, b"x");
    }
    assert_eq!(paths(&*dataset.open("folder")), ["a/1.jpg", "a/deep/2.PNG", "b/3.webp"]);
    assert_eq!(paths(&*dataset.open("flat")).len(), 7, "a flat dataset has files of any kind");
    let all = OpenOptions { extensions: Extensions::All, ..dataset.options("folder") };
    let all = open(&dataset.root, &all, &ListingProgress::silent()).expect("opened");
    assert_eq!(paths(&*all).len(), 5);
}

#[test]
fn unsupported_formats_are_refused_unless_a_format_is_named() {
    for file in ["0.parquet", "train/0.parquet", "x.zarr/c/0", "a.tar.gz"] {
        let dataset = Dataset::with(&[(file, b"x")]);
        let guessed = OpenOptions { format: None, ..dataset.options("flat") };
        for path in [dataset.root.clone(), dataset.root.join(file.split('/').next().unwrap())] {
            let error = open(&path, &guessed, &ListingProgress::silent()).expect_err("refused");
            assert!(matches!(error, OpenError::Unsupported { .. }), "{error}");
            if path.join("0.parquet").exists() {
                break; // a folder that is called `train` tells nothing
            }
        }
        assert_eq!(paths(&*dataset.open("flat")), [file]);
        let error = open(&dataset.root, &guessed, &ListingProgress::silent())
            .expect_err("no snapshot of it");
        assert!(matches!(error, OpenError::Unsupported { .. }), "{error}");
    }
}

#[test]
fn hidden_files_and_what_is_no_file_are_left_out() {
    let dataset = Dataset::with(&[
        ("a/1", b"x"),
        ("a/.hidden", b"x"),
        ("a/.thumbnails/1", b"x"),
        (".git/a/1", b"x"),
        (".DS_Store", b"x"),
    ]);
    let pipe = dataset.root.join("a/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("a pipe");
    assert_eq!(paths(&*dataset.open("folder")), ["a/1"]);
    assert_eq!(paths(&*dataset.open("flat")), ["a/1"]);
}

#[test]
fn links_are_followed_and_loops_end() {
    let dataset = Dataset::with(&[("a/1", b"one"), ("a/sub/2", b"two")]);
    let outside = Dataset::with(&[("far/3", b"three")]);
    let link =
        |target: &Path, name: &str| symlink(target, dataset.root.join(name)).expect("linked");
    link(&outside.root.join("far/3"), "a/linked");
    link(&outside.root.join("far"), "b");
    link(&dataset.root, "a/up");
    link(Path::new("."), "a/sub/self");
    link(Path::new("../../a"), "a/sub/parent");
    link(Path::new("round"), "a/round");
    link(Path::new("nowhere"), "a/dangling");
    let source = dataset.open("folder");
    assert_eq!(paths(&*source), ["a/1", "a/linked", "a/sub/2", "b/3"]);
    assert_eq!(read(&*source, &[1]).expect("read"), [b"three"]);
    assert_eq!(read(&*source, &[3]).expect("read"), [b"three"]);
}

#[test]
fn extensions_choose_files_in_any_case() {
    let files = ["a/1.jpg", "a/2.JPEG", "a/3.txt", "a/jpg", "b/4.Jpg"];
    let dataset = Dataset::new();
    for file in files {
        dataset.write(file, b"x");
    }
    symlink("3.txt", dataset.root.join("a/5.jpg")).expect("linked");
    let options =
        OpenOptions { extensions: Extensions::only(["jpg", ".JPEG"]), ..dataset.options("folder") };
    let source = open(&dataset.root, &options, &ListingProgress::silent()).expect("opened");
    assert_eq!(paths(&*source), ["a/1.jpg", "a/2.JPEG", "a/5.jpg", "b/4.Jpg"]);
    let all = OpenOptions { extensions: Extensions::All, ..dataset.options("folder") };
    let all = open(&dataset.root, &all, &ListingProgress::silent()).expect("opened");
    assert_eq!(paths(&*all).len(), 6, "other options, other snapshot");
}

#[test]
fn progress_ends_with_the_totals() {
    let dataset = Dataset::with(&[("a/1", b"x"), ("a/b/2", b"x"), ("c/3", b"x")]);
    let last = std::sync::Mutex::new(ListingCounts::default());
    let tell = |seen: ListingCounts| {
        let mut last = last.lock().expect("not poisoned");
        last.files = last.files.max(seen.files);
        last.directories = last.directories.max(seen.directories);
    };
    open(&dataset.root, &dataset.options("flat"), &ListingProgress::reporting(&tell))
        .expect("opened");
    let seen = *last.lock().expect("not poisoned");
    assert_eq!(seen, ListingCounts { directories: 4, files: 3, indexed: 0 });
}

#[test]
fn operations_of_listing_are_counted() {
    let dataset = Dataset::with(&[("a/1", b"12345"), ("b/2", b"")]);
    let source = dataset.open("folder");
    let listing = source.operations();
    assert_eq!((listing.list, listing.stat), (3, 2));
    assert_eq!((listing.open, listing.read, listing.bytes), (0, 0, 0));
    read(&*source, &[0]).expect("read");
    read(&*source, &[1]).expect("read");
    let reading = source.operations();
    assert_eq!((reading.open, reading.stat, reading.read, reading.bytes), (2, 4, 1, 5));
}

#[test]
fn bad_datasets_get_clear_errors() {
    let dataset = Dataset::with(&[("file", b"x")]);
    let try_open = |path: &str, format: &str| {
        let path = dataset.root.join(path);
        open(&path, &dataset.options(format), &ListingProgress::silent()).expect_err("refused")
    };
    let missing = try_open("nothing", "folder");
    assert!(matches!(missing, OpenError::Missing { .. }), "{missing}");
    assert!(missing.to_string().contains("dataset/nothing: check the path"), "{missing}");
    let file = try_open("file", "flat");
    assert!(file.to_string().contains("format flat needs a directory"), "{file}");
    let below_file = try_open("file/x", "flat");
    assert!(matches!(below_file, OpenError::Unreadable { .. }), "{below_file}");
    let no_folders = try_open("", "folder");
    assert!(no_folders.to_string().contains("use format flat"), "{no_folders}");

    let empty = Dataset::new();
    for format in ["folder", "flat", "records:10", "tfrecord", "webdataset"] {
        let error = empty.try_open(format).expect_err("empty");
        assert!(matches!(error, OpenError::Empty { .. }), "{error}");
        assert!(error.to_string().contains(format), "{error}");
    }
    let hollow = Dataset::with(&[("a/.hidden", b"x")]);
    let error = hollow.try_open("folder").expect_err("empty").to_string();
    assert!(error.contains("folders hold no files"), "{error}");
    let unguessed = OpenOptions { format: None, ..empty.options("flat") };
    assert!(open(&empty.root.join("no"), &unguessed, &ListingProgress::silent()).is_err());
}

/// Names of files and folders, some of them no UTF-8.
fn tree() -> impl Strategy<Value = BTreeMap<PathBuf, Vec<u8>>> {
    let name = prop::collection::vec(
        prop_oneof![Just(b'a'), Just(b'b'), Just(b'-'), Just(b' '), Just(0xFF), Just(b'~')],
        1..4,
    );
    let path = prop::collection::vec(name, 1..4);
    let path = path.prop_map(|names| OsString::from_vec(names.join(&b'/')).into());
    prop::collection::btree_map(path, prop::collection::vec(any::<u8>(), 0..20), 1..25)
}

/// Lists class folders as torchvision does: sorted classes; below each, sorted directories; in
/// each, sorted names.
fn naive_order(files: &mut [PathBuf]) {
    files.sort_by_key(|file| {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let directory = file.parent().map(bytes).unwrap_or_default();
        let class = directory.split(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
        (class, directory, bytes(file))
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_tree_is_listed_in_the_naive_order(tree in tree()) {
        let dataset = Dataset::new();
        let mut made = Vec::new();
        for (path, bytes) in &tree {
            // A name may be that of a folder already, or lie below a file.
            let full = dataset.root.join(path);
            let parent = full.parent().expect("a parent");
            if std::fs::create_dir_all(parent).is_ok() && std::fs::write(&full, bytes).is_ok() {
                made.push(path.clone());
            }
        }
        naive_order(&mut made);
        let flat = dataset.open("flat");
        let listed = |source: &dyn belady_data::source::Source| -> Vec<PathBuf> {
            (0..source.catalog().files()).map(|file| source.catalog().path(file).to_owned()).collect()
        };
        prop_assert_eq!(&listed(&*flat), &made);
        for (sample, path) in (0..).zip(&made) {
            prop_assert_eq!(&read(&*flat, &[sample]).expect("read")[0], &tree[path]);
        }
        made.retain(|path| path.components().count() > 1);
        if !made.is_empty() {
            let options = OpenOptions { allow_empty: true, ..dataset.options("folder") };
            let folder = open(&dataset.root, &options, &ListingProgress::silent()).expect("opened");
            prop_assert_eq!(&listed(&*folder), &made);
            let labels: Vec<_> = (0..made.len() as u32).map(|it| folder.catalog().label(it)).collect();
            prop_assert!(labels.is_sorted());
        }
    }
}
