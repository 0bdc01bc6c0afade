//! Reading files: few calls and right bytes for any request, and every change is noticed.

mod source_support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, SystemTime};

use belady_data::source::{Begin, ListingProgress, OpenOptions, ReadError, Want};
use proptest::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use source_support::{Dataset, noise, read, tfrecord_file};

#[test]
fn neighbours_are_read_with_one_call() {
    let bytes = noise(3, 4000);
    let dataset = Dataset::with(&[("tokens", &bytes)]);
    let source = dataset.open("records:100");
    let before = source.operations();
    let got = read(&*source, &[3, 4, 5, 8]).expect("read").concat();
    assert!(got == [&bytes[300..600], &bytes[800..900]].concat());
    let after = source.operations();
    assert_eq!(after.read - before.read, 1);
    assert_eq!(after.bytes - before.bytes, 600, "with what lies between");
}

#[test]
fn samples_far_apart_are_read_with_separate_calls() {
    let bytes = noise(3, 400_000);
    let dataset = Dataset::with(&[("tokens", &bytes)]);
    let source = dataset.open("records:1000");
    let before = source.operations();
    let got = read(&*source, &[0, 1, 300, 301]).expect("read").concat();
    assert!(got == [&bytes[..2000], &bytes[300_000..302_000]].concat());
    let after = source.operations();
    assert_eq!((after.read - before.read, after.bytes - before.bytes), (2, 4000));
}

fn touch(path: &Path) {
    let rights = fs::metadata(path).expect("there").permissions().mode() ^ 0o020;
    fs::set_permissions(path, fs::Permissions::from_mode(rights)).expect("touched");
}

/// Returns the time of change of a file, which is its version.
fn changed(path: &Path) -> i64 {
    let metadata = fs::metadata(path).expect("there");
    metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec()
}

#[test]
fn a_file_that_was_touched_since_it_was_listed_is_read_once() {
    let dataset = Dataset::with(&[("a", &noise(1, 4000)), ("b", &noise(2, 4000))]);
    let (files, packed) = (dataset.open("flat"), dataset.open("records:100"));
    for name in ["a", "b"] {
        touch(&dataset.root.join(name));
    }
    for (source, samples) in [(files, [0, 1]), (packed, [3, 55])] {
        let before = source.operations();
        read(&*source, &samples).expect("read");
        let after = source.operations();
        assert_eq!((after.read - before.read, after.stat - before.stat), (2, 2));
    }
}

#[test]
fn the_version_of_a_read_is_that_of_its_bytes() {
    let bytes = noise(1, 4000);
    for direct in [false, true] {
        let dataset = Dataset::with(&[("a", &bytes), ("b", &bytes)]);
        let source = if direct { dataset.open_direct("flat") } else { dataset.open("flat") };
        let paths = ["a", "b"].map(|name| dataset.root.join(name));
        for round in 0..3 {
            if round > 0 {
                touch(&paths[1]);
            }
            let (mut first, mut second) = (vec![0; 4000], vec![0; 4000]);
            let mut wants = [Want::new(0, &mut first), Want::new(1, &mut second)];
            source.read(&mut wants).expect("read");
            let versions = wants.map(|want| want.version);
            assert_eq!(versions, [changed(&paths[0]), changed(&paths[1])], "round {round}");
            assert_eq!(versions, [0, 1].map(|sample| source.version(sample).changed));
        }
    }
}

#[test]
fn a_touched_shard_is_indexed_once_however_many_threads_read_it() {
    let payloads: Vec<Vec<u8>> = (0..64).map(|seed| noise(seed, 100)).collect();
    let moved: Vec<Vec<u8>> = (0..64).map(|seed| noise(seed, 36 + 2 * seed)).collect();
    for (after_touch, is_right) in [(&payloads, true), (&moved, false)] {
        let shard = tfrecord_file(&payloads);
        let dataset = Dataset::with(&[("shard", &shard)]);
        let (source, path) = (dataset.open("tfrecord"), dataset.root.join("shard"));
        let time = fs::metadata(&path).and_then(|shard| shard.modified()).expect("a time");
        let mut other = tfrecord_file(after_touch);
        other.resize(shard.len(), 0);
        fs::write(&path, other).expect("written");
        fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(time))
            .expect("touched");
        let before = source.operations();
        let together = Barrier::new(8);
        std::thread::scope(|scope| {
            for sample in 0..8 {
                let (source, together, payloads) = (&source, &together, &payloads);
                scope.spawn(move || {
                    together.wait();
                    let outcome = read(&**source, &[sample * 8]);
                    match outcome {
                        Ok(bytes) => assert!(is_right && bytes[0] == payloads[sample as usize * 8]),
                        Err(error) => {
                            assert!(!is_right && matches!(error, ReadError::Changed { .. }));
                        }
                    }
                });
            }
        });
        // One to index it, the others to read it.
        let opened = source.operations().open - before.open;
        let indexed = source.operations().read - before.read - if is_right { 8 } else { 0 };
        assert!(opened >= 2 && indexed <= 2, "opened {opened} times, {indexed} reads to index it");
    }
}

/// The file that is kept open does not change: its path leads to another one.
#[test]
fn a_file_is_opened_by_its_path_once_in_every_round() {
    let (old, new) = (noise(1, 4000), noise(2, 4000));
    for by_link in [false, true] {
        let dataset = Dataset::with(&[("v1/a", &old), ("v2/a", &new)]);
        let folder = dataset.root.join("classes/c");
        fs::create_dir(dataset.root.join("classes")).expect("made");
        let time =
            fs::metadata(dataset.root.join("v1/a")).and_then(|a| a.modified()).expect("a time");
        let other =
            fs::File::options().write(true).open(dataset.root.join("v2/a")).expect("opened");
        other.set_modified(time).expect("touched");
        let put = |version: &str| {
            let version = dataset.root.join(version);
            if by_link {
                let link = dataset.root.join("link");
                std::os::unix::fs::symlink(version, &link).expect("linked");
                fs::rename(link, &folder).expect("moved");
            } else {
                let _ = fs::rename(&folder, dataset.root.join("gone"));
                fs::rename(version, &folder).expect("moved");
            }
        };
        put("v1");
        let options = dataset.options("folder");
        let path = dataset.root.join("classes");
        let source =
            belady_data::source::open(&path, &options, &ListingProgress::silent()).expect("opened");
        assert!(read(&*source, &[0]).expect("read") == [old.clone()]);
        put("v2");
        source.begin(Begin::Job);
        assert!(read(&*source, &[0]).expect("read") == [new.clone()], "by a link: {by_link}");
    }
}

#[test]
fn packed_files_stay_open_wherever_they_are() {
    let bytes = noise(3, 4000);
    let dataset = Dataset::with(&[("tokens", &bytes)]);
    let packed = dataset.open("records:100");
    for _ in 0..5 {
        read(&*packed, &[3]).expect("read");
    }
    assert_eq!(packed.operations().open, 1);
}

/// Files of one sample are kept open only where that cannot hide a change.
#[test]
fn a_file_replaced_or_removed_is_noticed_though_it_may_be_kept_open() {
    let dataset = Dataset::with(&[("a", &noise(1, 4000)), ("b", &noise(2, 4000))]);
    let source = dataset.open("flat");
    let time = fs::metadata(dataset.root.join("a")).and_then(|a| a.modified()).expect("a time");
    read(&*source, &[0, 1]).expect("read");
    // Another file of the same size and time: what lies there now is what is read.
    dataset.write("other", &noise(5, 4000));
    let other = fs::File::options().write(true).open(dataset.root.join("other")).expect("opened");
    other.set_modified(time).expect("touched");
    fs::rename(dataset.root.join("other"), dataset.root.join("a")).expect("moved");
    assert!(read(&*source, &[0]).expect("read") == [noise(5, 4000)]);
    dataset.write("other", &noise(5, 3000));
    fs::rename(dataset.root.join("other"), dataset.root.join("a")).expect("moved");
    let error = read(&*source, &[0]).expect_err("replaced");
    assert!(matches!(error, ReadError::Changed { sample: 0, .. }), "{error}");
    fs::remove_file(dataset.root.join("b")).expect("removed");
    let error = read(&*source, &[1]).expect_err("removed");
    assert!(matches!(error, ReadError::Io { sample: 1, .. }), "{error}");
}

/// Its old bytes were delivered forever: the remaining hard link looked like the file itself.
#[test]
fn a_file_moved_away_or_replaced_while_it_has_another_name_is_noticed() {
    let dataset = Dataset::with(&[("a", &noise(1, 4000)), ("b", &noise(2, 4000))]);
    let elsewhere = dataset.snapshots.with_file_name("elsewhere");
    fs::create_dir(&elsewhere).expect("made");
    let source = dataset.open("flat");
    read(&*source, &[0, 1]).expect("read");
    fs::hard_link(dataset.root.join("a"), elsewhere.join("a")).expect("linked");
    read(&*source, &[0]).expect("nothing has changed");
    fs::write(elsewhere.join("new"), noise(5, 3000)).expect("written");
    fs::rename(elsewhere.join("new"), dataset.root.join("a")).expect("moved");
    let error = read(&*source, &[0]).expect_err("replaced");
    assert!(matches!(error, ReadError::Changed { sample: 0, .. }), "{error}");
    fs::rename(dataset.root.join("b"), elsewhere.join("b")).expect("moved");
    let error = read(&*source, &[1]).expect_err("moved away");
    assert!(matches!(error, ReadError::Io { sample: 1, .. }), "{error}");
}

#[test]
fn samples_of_many_cold_files_come_in_one_call() {
    let dataset = Dataset::new();
    for at in 0..50 {
        dataset.write(format!("{at:02}"), &noise(at, 20_000 + 511 * at));
    }
    let source = dataset.open_direct("flat");
    for round in 0..3 {
        for at in 0..50 {
            let file = fs::File::open(dataset.root.join(format!("{at:02}"))).expect("opened");
            file.sync_all().expect("synced");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
        }
        let wants: Vec<u32> = (0..50).filter(|at| at % 3 >= round).collect();
        let got = read(&*source, &wants).expect("read");
        assert!(
            wants
                .iter()
                .zip(got)
                .all(|(&at, bytes)| bytes == noise(at as usize, 20_000 + 511 * at as usize))
        );
    }
    fs::write(dataset.root.join("07"), b"shorter").expect("written");
    let error = read(&*source, &[6, 7, 8]).expect_err("changed");
    assert!(matches!(error, ReadError::Changed { sample: 7, .. }), "{error}");
}

#[test]
fn more_packed_files_than_are_kept_open() {
    let dataset = Dataset::new();
    for at in 0..600 {
        dataset.write(format!("{at:03}"), &noise(at, 20));
    }
    // At most half of what the process may have open.
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(512), ..before }).expect("a lower limit");
    let source = dataset.open("records:10");
    for round in 0..2 {
        for sample in (0..1200).step_by(1 + round) {
            let expected = &noise(sample / 2, 20)[sample % 2 * 10..][..10];
            assert_eq!(read(&*source, &[sample as u32]).expect("read"), [expected]);
        }
    }
    let open = fs::read_dir("/proc/self/fd").expect("listed").count();
    setrlimit(Resource::Nofile, before).expect("the limit as it was");
    assert!(open < 512, "{open} descriptors are open");
}

#[test]
fn a_file_that_shrinks_while_it_is_kept_open_is_noticed() {
    let dataset = Dataset::with(&[("tokens", &noise(3, 4000))]);
    let source = dataset.open("records:100");
    read(&*source, &[39]).expect("read");
    let file = fs::File::options().write(true).open(dataset.root.join("tokens")).expect("opened");
    file.set_len(3950).expect("cut");
    let error = read(&*source, &[39]).expect_err("shrunk");
    assert!(matches!(error, ReadError::Changed { sample: 39, .. }), "{error}");
    assert!(error.to_string().contains("had 4000 bytes and has 3950"), "{error}");
}

/// The check of the time once came before the read, and what was written in between was
/// delivered. A request of many calls, so that the write falls into one of them, and some
/// rounds, should it not.
#[test]
fn a_file_rewritten_during_a_read_is_not_delivered() {
    const RECORD: u64 = 1_000;
    // Too far apart to be read together.
    let wants: Vec<u32> = (0..3_000).map(|at| at * 70).collect();
    for _ in 0..5 {
        let dataset = Dataset::with(&[("records", b"")]);
        let file = fs::File::options().write(true).open(dataset.root.join("records"));
        let file = file.expect("opened");
        file.set_len(3_000 * 70 * RECORD).expect("a file of zeros");
        let hour_ago = SystemTime::now() - Duration::from_hours(1);
        file.set_modified(hour_ago).expect("touched");
        let source = dataset.open("records:1000");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                loop {
                    match read(&*source, &wants) {
                        Ok(records) => assert!(records[2_999].iter().all(|&byte| byte == 0)),
                        Err(error) => return error,
                    }
                }
            });
            let reads = source.operations().read;
            while source.operations().read == reads && !reader.is_finished() {
                std::thread::yield_now();
            }
            let last = u64::from(wants[2_999]) * RECORD;
            std::os::unix::fs::FileExt::write_all_at(&file, b"changed", last).expect("written");
            let error = reader.join().expect("right bytes or an error");
            assert!(matches!(error, ReadError::Changed { .. }), "{error}");
        });
    }
}

#[test]
fn a_pipe_in_place_of_a_file_does_not_hang() {
    let dataset = Dataset::with(&[("a", b"x")]);
    let source = dataset.open("flat");
    let path = dataset.root.join("a");
    fs::remove_file(&path).expect("removed");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::RWXU, 0).expect("a pipe");
    let error = read(&*source, &[0]).expect_err("a pipe");
    assert!(error.to_string().contains("no longer a regular file"), "{error}");
}

#[test]
fn times_can_be_ignored() {
    let dataset = Dataset::with(&[("a", b"x")]);
    let options = OpenOptions { verify_times: false, ..dataset.options("flat") };
    let progress = belady_data::source::ListingProgress::silent();
    let source = belady_data::source::open(&dataset.root, &options, &progress).expect("opened");
    let file = fs::File::options().write(true).open(dataset.root.join("a")).expect("opened");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("touched");
    assert_eq!(read(&*source, &[0]).expect("read"), [b"x"]);
    file.set_len(0).expect("cut");
    assert!(matches!(read(&*source, &[0]), Err(ReadError::Changed { .. })));
}

#[test]
fn memory_of_another_size_is_refused() {
    let dataset = Dataset::with(&[("a", b"12345")]);
    let source = dataset.open("flat");
    for size in [4, 6] {
        let mut memory = vec![0; size];
        let error = source.read(&mut [Want::new(0, &mut memory)]).expect_err("refused");
        assert!(!error.is_transient(), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_wants_in_any_order_get_their_bytes(
        sizes in prop::collection::vec(prop_oneof![0usize..50, 0usize..90_000], 1..30),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        sorted in any::<bool>(),
        direct in any::<Option<bool>>(),
        cold in any::<bool>(),
    ) {
        let payloads: Vec<_> = sizes.iter().enumerate().map(|(at, &size)| noise(at, size)).collect();
        let (left, right) = payloads.split_at(payloads.len() / 2);
        let dataset = Dataset::with(&[
            ("1.tfrecord", &tfrecord_file(left)),
            ("2.tfrecord", &tfrecord_file(right)),
        ]);
        if cold {
            for name in ["1.tfrecord", "2.tfrecord"] {
                let file = fs::File::open(dataset.root.join(name)).expect("opened");
                file.sync_all().expect("synced");
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
            }
        }
        let options = OpenOptions { direct, ..dataset.options("tfrecord") };
        let progress = belady_data::source::ListingProgress::silent();
        let source = belady_data::source::open(&dataset.root, &options, &progress).expect("opened");
        let mut wants: Vec<u32> = picks.iter().map(|pick| pick.index(sizes.len()) as u32).collect();
        if sorted {
            wants.sort_unstable();
        }
        let got = read(&*source, &wants).expect("read");
        for (&want, got) in wants.iter().zip(got) {
            prop_assert!(got == payloads[want as usize]);
        }
    }
}
