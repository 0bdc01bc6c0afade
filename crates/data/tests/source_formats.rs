//! Every format passes the conformance suite of sources.

mod source_support;

use belady_data::source::conformance::{Expected, check, check_changes};
use belady_data::source::{DatasetFormat, OpenError, OpenOptions, Snapshots, webdataset};
use source_support::{Dataset, expected, noise, tfrecord_file};

fn check_all(dataset: &Dataset, format: &str, samples: &[Expected]) {
    check(&*dataset.open(format), samples);
    for direct in [None, Some(false), Some(true)] {
        let options = OpenOptions { direct, snapshots: Snapshots::Off, ..dataset.options(format) };
        let open = || {
            belady_data::source::open(
                &dataset.root,
                &options,
                &belady_data::source::ListingProgress::silent(),
            )
            .expect("opened")
        };
        check(&*open(), samples);
        check_changes(&open, &dataset.root);
    }
    dataset.settle();
    check(&*dataset.open(format), samples);
    let mapped = dataset.open(format);
    assert_eq!(mapped.operations().list, 0, "from the snapshot");
    check(&*mapped, samples);
    check_changes(&|| dataset.open(format), &dataset.root);
}

#[test]
fn class_folders() {
    let dataset = Dataset::new();
    let mut samples = Vec::new();
    for (label, class) in ["cat", "dog", "owl"].iter().enumerate() {
        for (at, size) in [0, 1, 20_000, 300_000].into_iter().enumerate() {
            let bytes = noise(label * 10 + at, size);
            dataset.write(format!("{class}/{at}.bin"), &bytes);
            samples.push(Expected { bytes, label: Some(label as u32) });
        }
    }
    check_all(&dataset, "folder", &samples);
}

#[test]
fn flat_files() {
    let dataset = Dataset::new();
    let samples: Vec<_> = (0..10).map(|at| noise(at, at * 5_000)).collect();
    for (at, bytes) in samples.iter().enumerate() {
        dataset.write(format!("{at}"), bytes);
    }
    check_all(&dataset, "flat", &expected(samples));
}

#[test]
fn records_in_many_files() {
    let dataset = Dataset::new();
    let mut samples = Vec::new();
    for file in 0..3 {
        let bytes = noise(file, 5000 * 20);
        samples.extend(bytes.chunks(5000).map(<[u8]>::to_vec));
        dataset.write(format!("part-{file}"), &bytes);
    }
    dataset.write("part-9-empty", &[]);
    check_all(&dataset, "records:5KB", &expected(samples));
}

#[test]
fn tfrecords_in_many_files() {
    let dataset = Dataset::new();
    let mut samples = Vec::new();
    for file in 0..3 {
        let payloads: Vec<_> = [0, 3, 0, 70_000, 17, 200].map(|size| noise(file, size)).into();
        dataset.write(format!("train.tfrecord-{file}-of-3"), &tfrecord_file(&payloads));
        samples.extend(payloads);
    }
    dataset.write("labels.txt", b"beside the records");
    check_all(&dataset, "tfrecord", &expected(samples));
}

#[test]
fn webdataset_in_many_files() {
    let dataset = Dataset::new();
    let mut contents = Vec::new();
    for shard in 0..2 {
        let mut tar = tar::Builder::new(Vec::new());
        for key in 0..4 {
            let image = noise(key, 30_000 * key);
            for (name, bytes) in [("jpg", &image[..]), ("cls", &[b'0' + key as u8][..])] {
                let mut header = tar::Header::new_ustar();
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, format!("{shard}/{key}.{name}"), bytes)
                    .expect("added");
            }
            contents.push(image);
        }
        dataset.write(format!("shard-{shard}.tar"), &tar.into_inner().expect("finished"));
    }
    let source = dataset.open("webdataset");
    let samples: Vec<Expected> = (0..8)
        .map(|sample| {
            let bytes = source_support::read(&*source, &[sample]).expect("read").remove(0);
            Expected { bytes, label: Some(sample % 4) }
        })
        .collect();
    for (sample, image) in samples.iter().zip(&contents) {
        let members = webdataset::members(&sample.bytes).expect("members");
        let image_member = members.iter().find(|member| member.name == "jpg").expect("an image");
        assert!(sample.bytes[image_member.range.clone()] == **image);
    }
    drop(source);
    check_all(&dataset, "webdataset", &samples);
}

#[test]
fn one_file_alone_is_a_dataset_of_a_packed_format() {
    let payloads: Vec<_> = (0..5).map(|at| noise(at, 100 * at)).collect();
    let dataset = Dataset::with(&[("only.tfrecord", &tfrecord_file(&payloads)), ("beside", b"x")]);
    let path = dataset.root.join("only.tfrecord");
    let open = |format: &str| {
        let progress = belady_data::source::ListingProgress::silent();
        belady_data::source::open(&path, &dataset.options(format), &progress)
    };
    check(&*open("tfrecord").expect("opened"), &expected(payloads.clone()));
    let again = open("tfrecord").expect("opened");
    assert_eq!(again.operations().open, 0, "indexed once, then from the snapshot");
    check(&*again, &expected(payloads));
    let error = open("folder").expect_err("a file");
    assert!(matches!(error, OpenError::NotADirectory { .. }), "{error}");
    assert_eq!(DatasetFormat::guess(&path).expect("by its name"), DatasetFormat::TfRecord);
}

#[test]
fn damaged_records_are_named() {
    let payloads: Vec<_> = (0..3).map(|at| noise(at, 50_000)).collect();
    let mut file = tfrecord_file(&payloads);
    file[50_016 + 12 + 7] ^= 1;
    let dataset = Dataset::with(&[("a.tfrecord", &file)]);
    let source = dataset.open("tfrecord");
    for together in [&[1][..], &[0, 1, 2]] {
        let error = source_support::read(&*source, together).expect_err("damaged");
        assert!(
            matches!(error, belady_data::source::ReadError::Damaged { sample: 1, .. }),
            "{error}"
        );
    }
    assert_eq!(
        source_support::read(&*source, &[0, 2]).expect("whole"),
        [&payloads[0][..], &payloads[2]]
    );
}

#[test]
fn truncated_packed_files_are_refused_by_name() {
    let file = tfrecord_file(&[noise(1, 100), noise(2, 100)]);
    let dataset = Dataset::with(&[("good.tfrecord", &file), ("torn.tfrecord", &file[..150])]);
    let error = dataset.try_open("tfrecord").expect_err("torn").to_string();
    assert!(error.contains("torn.tfrecord"), "{error}");
}

#[test]
fn a_partial_record_at_the_end_of_a_file_is_left_out() {
    let (good, odd) = (noise(1, 20), noise(2, 27));
    let dataset = Dataset::with(&[("good", &good), ("odd", &odd), ("short", &odd[..9])]);
    let whole = [&good[..10], &good[10..], &odd[..10], &odd[10..20]];
    check_all(&dataset, "records:10", &expected(whole.map(<[u8]>::to_vec)));
    let error = dataset.try_open("records:28").expect_err("none").to_string();
    assert!(error.contains("its files are shorter than a record"), "{error}");
}

#[test]
fn formats_have_names() {
    for name in ["folder", "flat", "records:4096", "tfrecord", "webdataset"] {
        assert_eq!(name.parse::<DatasetFormat>().expect("a format").to_string(), name);
    }
    assert_eq!(
        "records:2MB".parse::<DatasetFormat>().expect("a format").to_string(),
        "records:2000000"
    );
    for (name, reason) in [
        ("zip", "is not a format; use folder"),
        ("records", "is not a format"),
        ("records:0", "at least one byte"),
        ("records:2 apples", "`apples`"),
    ] {
        let error = name.parse::<DatasetFormat>().expect_err(name).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn formats_are_guessed_from_names() {
    for (files, format) in [
        (&["a/1.jpg", "b/2.jpg", "readme.txt"][..], DatasetFormat::Folder),
        (&["1.jpg", "2.jpg"], DatasetFormat::Flat),
        (&["1.tar", "2.tar"], DatasetFormat::WebDataset),
        (&["1.tar", "sizes.json"], DatasetFormat::WebDataset),
        (&["1.tar", "2.jpg"], DatasetFormat::Flat),
        (&["x/1.tar", "x/2.tar"], DatasetFormat::WebDataset),
        (&["train.tfrecord-0-of-2", "train.tfrecord-1-of-2"], DatasetFormat::TfRecord),
        (&["a.tfrec"], DatasetFormat::TfRecord),
        (&["deep/deeper/deepest/1.jpg"], DatasetFormat::Folder),
        (&[".hidden/1.tar", "2.jpg"], DatasetFormat::Flat),
        (&[], DatasetFormat::Flat),
    ] {
        let dataset = Dataset::new();
        for file in files {
            dataset.write(file, b"x");
        }
        assert_eq!(DatasetFormat::guess(&dataset.root).expect("a guess"), format, "{files:?}");
    }
    let dataset = Dataset::with(&[("tokens.bin", b"x")]);
    let error = DatasetFormat::guess(&dataset.root.join("tokens.bin")).expect_err("no guess");
    assert!(matches!(error, OpenError::CannotGuess { .. }), "{error}");
}
