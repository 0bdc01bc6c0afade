//! WebDataset archives: samples are found as by a naive grouping, and damaged or hostile archives
//! are refused with a clear error.

use std::fs;
use std::io::{Cursor, Read};

use belady_data::source::webdataset::{self, Member};
use belady_data::source::{Flaw, Operations, PackedRecord};
use proptest::prelude::*;
use tar::{Archive, Builder, EntryType, Header};

/// An entry of an archive to write.
#[derive(Clone, Debug)]
struct Written {
    name: String,
    kind: EntryType,
    bytes: Vec<u8>,
}

fn file(name: &str, bytes: &[u8]) -> Written {
    Written { name: name.to_owned(), kind: EntryType::Regular, bytes: bytes.to_vec() }
}

fn other(name: &str, kind: EntryType) -> Written {
    Written { name: name.to_owned(), kind, bytes: Vec::new() }
}

/// An archive in GNU's format (long names in entries of their own), or in POSIX's.
fn archive(entries: &[Written], gnu: bool) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for entry in entries {
        let mut header = if gnu { Header::new_gnu() } else { Header::new_ustar() };
        header.set_entry_type(entry.kind);
        header.set_size(entry.bytes.len() as u64);
        header.set_mode(0o644);
        if matches!(entry.kind, EntryType::Symlink | EntryType::Link) {
            builder.append_link(&mut header, &entry.name, "/etc/passwd").unwrap();
        } else {
            builder.append_data(&mut header, &entry.name, entry.bytes.as_slice()).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

/// A member with any name at all, and any type.
fn raw(name: &[u8], kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkflag = [kind];
    header.set_size(bytes.len() as u64);
    header.set_cksum();
    let mut entry = header.as_bytes().to_vec();
    entry.extend(bytes);
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

fn ended(mut entries: Vec<u8>) -> Vec<u8> {
    entries.extend([0; 1024]);
    entries
}

fn index(archive: &[u8]) -> Result<Vec<PackedRecord>, Flaw> {
    webdataset::index(Cursor::new(archive), archive.len() as u64)
}

fn sample<'a>(archive: &'a [u8], record: &PackedRecord) -> &'a [u8] {
    &archive[record.offset as usize..][..record.length as usize]
}

type Parts = Vec<(String, Vec<u8>)>;

/// The naive way: the `tar` crate reads everything, and members are grouped by key.
fn naive(archive: &[u8]) -> Vec<(String, Parts)> {
    let mut samples: Vec<(String, Parts)> = Vec::new();
    for entry in Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let (folder, base) = path.rsplit_once('/').map_or(("", &*path), |(f, b)| (f, b));
        let Some((stem, name)) = base.split_once('.') else { continue };
        if entry.header().entry_type() != EntryType::Regular || stem.is_empty() {
            continue;
        }
        let key = if path.contains('/') { format!("{folder}/{stem}") } else { stem.to_owned() };
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        if samples.last().is_none_or(|(last, _)| *last != key) {
            samples.push((key, Vec::new()));
        }
        samples.last_mut().unwrap().1.push((name.to_lowercase(), bytes));
    }
    samples
}

/// The tested way.
fn found(archive: &[u8]) -> Vec<(String, Parts)> {
    let take = |record: PackedRecord| {
        let sample = sample(archive, &record);
        let part = |Member { name, range }| (name, sample[range].to_vec());
        let parts = webdataset::members(sample).unwrap().into_iter().map(part).collect();
        (record.key.unwrap(), parts)
    };
    index(archive).unwrap().into_iter().map(take).collect()
}

fn entries() -> impl Strategy<Value = Vec<Written>> {
    let folder = prop_oneof![
        Just(String::new()),
        Just("a/".into()),
        Just("./b.c/".into()),
        (1usize..80).prop_map(|depth| "dir/".repeat(depth))
    ];
    let size = prop_oneof![Just(0usize), 1usize..20, 500usize..520, 1_000usize..30_000];
    let member = (folder, 0u32..4, 0usize..4, size, 0u8..12);
    prop::collection::vec(member, 0..40).prop_map(|members| {
        let mut entries: Vec<Written> = Vec::new();
        for (at, (folder, stem, name, size, kind)) in members.into_iter().enumerate() {
            // A rising number makes the names in a group unique.
            let name = format!("{folder}{stem}.{at}{}", ["jpg", "cls", "Seg.PNG", ""][name]);
            entries.push(match kind {
                0 => other(&format!("{folder}d"), EntryType::Directory),
                1 => other(&name, EntryType::Symlink),
                2 => other(&name, EntryType::Link),
                3 => file(&format!("{folder}README{at}"), b"text"),
                4 => file(&format!("{folder}.hidden.{at}"), b"text"),
                _ => file(&name, &vec![at as u8; size]),
            });
        }
        entries
    })
}

proptest! {
    #[test]
    fn samples_are_those_that_a_naive_grouping_finds(entries in entries(), gnu in any::<bool>()) {
        let archive = archive(&entries, gnu);
        prop_assert_eq!(found(&archive), naive(&archive));
    }

    #[test]
    fn samples_are_whole_blocks_in_order_and_apart(entries in entries()) {
        let archive = archive(&entries, true);
        let mut end = 0;
        for record in index(&archive).unwrap() {
            prop_assert!(record.offset >= end);
            prop_assert_eq!((record.offset % 512, record.length % 512), (0, 0));
            end = record.offset + record.length;
        }
    }

    /// A sample is itself an archive that others can read.
    #[test]
    fn samples_are_small_archives(entries in entries()) {
        let archive = archive(&entries, true);
        for record in index(&archive).unwrap() {
            prop_assert_eq!(naive(sample(&archive, &record)).len(), 1);
        }
    }
}

fn pairs() -> Vec<u8> {
    let entries = [("0.jpg", "picture"), ("0.cls", "7"), ("1.jpg", ""), ("1.cls", "12\n")];
    archive(&entries.map(|(name, bytes)| file(name, bytes.as_bytes())), true)
}

#[test]
fn labels_are_the_numbers_beside_the_samples() {
    let labels = |archive: &[u8]| -> Vec<Option<u32>> {
        index(archive).unwrap().into_iter().map(|record| record.label).collect()
    };
    assert_eq!(labels(&pairs()), [Some(7), Some(12)]);
    let odd = ["", "cat", "-1", "4294967295", "4294967296", "00000000007", "1 2", "+1"];
    let entries: Vec<Written> = odd
        .iter()
        .enumerate()
        .map(|(at, text)| file(&format!("{at}.cls"), text.as_bytes()))
        .collect();
    let expected = [None, None, None, Some(u32::MAX), None, None, None, None];
    assert_eq!(labels(&archive(&entries, false)), expected);
}

#[test]
fn a_truncated_archive_is_never_taken_for_whole() {
    let archive = pairs();
    assert_eq!(archive.len(), 7 * 512 + 1024, "the second picture is empty");
    for keep in 0..archive.len() {
        match index(&archive[..keep]) {
            // One block of zeros is the end mark; a second one is usual.
            Ok(records) => assert!(keep >= 8 * 512 && records.len() == 2, "cut at {keep}"),
            Err(Flaw::Truncated { offset, whole } | Flaw::NoEnd { offset, whole }) => {
                assert!(offset <= keep as u64, "cut at {keep}");
                // The first sample is known to be whole once the second's first header is read.
                assert_eq!(whole, u64::from(keep >= 5 * 512), "cut at {keep}");
            }
            Err(flaw) => panic!("cut at {keep}: {flaw}"),
        }
    }
}

#[test]
fn the_error_of_a_truncated_archive_names_file_offset_and_samples() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train-0.tar");
    fs::write(&path, &pairs()[..3_300]).unwrap();
    let error = webdataset::index_file(&path, &mut Operations::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot index {}: it ends within what begins at byte 2560, after 1 whole samples: \
             copy or write it again",
            path.display()
        )
    );
    fs::write(&path, pairs()).unwrap();
    let mut operations = Operations::default();
    assert_eq!(webdataset::index_file(&path, &mut operations).unwrap().len(), 2);
    assert_eq!((operations.open, operations.stat), (1, 1));
    // The first window holds all but the end mark's last blocks.
    assert!(operations.read <= 4, "{operations:?}");
}

#[test]
fn concatenated_archives_are_refused() {
    let flaw = index(&[pairs(), pairs()].concat()).unwrap_err();
    assert!(matches!(flaw, Flaw::Unsupported { offset: 4608, .. }), "{flaw}");
    assert!(flaw.to_string().contains("concatenated archives"), "{flaw}");
}

#[test]
fn zeros_behind_the_end_mark_are_padding() {
    let mut archive = pairs();
    archive.resize(100_000, 0);
    assert_eq!(index(&archive).unwrap().len(), 2);
}

#[test]
fn hostile_names_are_refused_by_name() {
    for (name, words) in [
        ("/etc/passwd.txt", "`/etc/passwd.txt`, which is absolute"),
        ("../up.jpg", "`../up.jpg`, which leads out"),
        ("a/../../b.jpg", "leads out"),
        ("a/..", "leads out"),
    ] {
        let archive =
            ended([raw(b"0.jpg", b'0', b"fine"), raw(name.as_bytes(), b'0', b"")].concat());
        let flaw = index(&archive).unwrap_err();
        assert!(matches!(flaw, Flaw::Hostile { offset: 1024, .. }), "{flaw}");
        assert!(flaw.to_string().contains(words), "{flaw}");
    }
    assert_eq!(index(&ended(raw(b"a..b/0..jpg", b'0', b""))).unwrap().len(), 1);
}

fn pax(lines: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in lines {
        let rest = 3 + key.len() + value.len();
        let length =
            (1..9_999).find(|length: &usize| *length == rest + length.to_string().len()).unwrap();
        body.extend(format!("{length} {key}=").as_bytes());
        body.extend(*value);
        body.push(b'\n');
    }
    body
}

#[test]
fn hostile_names_in_descriptions_are_refused() {
    let member = raw(b"0.jpg", b'0', b"");
    let long = vec![b'a'; 5_000];
    for (name, words) in [
        (&b"/abs.jpg"[..], "absolute"),
        (b"zero\0.jpg", "`zero\\0.jpg`, which holds a zero byte"),
        (&long, "longer than a path"),
    ] {
        let described = raw(b"pax", b'x', &pax(&[("path", name)]));
        let flaw = index(&ended([described, member.clone()].concat())).unwrap_err().to_string();
        assert!(flaw.contains(words), "{flaw}");
        assert!(flaw.len() < 400, "{flaw}");
    }
    let described = raw(b"././@LongLink", b'L', b"../x.jpg\0");
    assert!(index(&ended([described, member].concat())).unwrap_err().to_string().contains("out"));
}

#[test]
fn links_and_directories_in_archives_are_skipped() {
    let others = (b'1'..=b'6').map(|kind| raw(b"../../evil.jpg", kind, b""));
    let entries: Vec<u8> = [raw(b"0.a", b'0', b"1")]
        .into_iter()
        .chain(others)
        .chain([raw(b"0.b", b'0', b"2")])
        .flatten()
        .collect();
    let archive = ended(entries);
    let (key, parts) = &found(&archive)[0];
    assert_eq!(key, "0");
    assert_eq!(parts.as_slice(), [("a".into(), b"1".to_vec()), ("b".into(), b"2".to_vec())]);
}

#[test]
fn pax_sizes_and_names_count() {
    let described =
        raw(b"pax", b'x', &pax(&[("path", b"long/0.TXT"), ("size", b"3"), ("x", b"=\n")]));
    // The header says nothing of the three bytes.
    let mut member = raw(b"short.jpg", b'0', b"");
    member.extend(b"abc");
    member.resize(1024, 0);
    let archive =
        ended([raw(b"g", b'g', &pax(&[("comment", b"hello")])), described, member].concat());
    assert_eq!(found(&archive), [("long/0".into(), vec![("txt".into(), b"abc".to_vec())])]);
}

#[test]
fn a_size_beyond_eight_gigabytes_is_read() {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..5].copy_from_slice(b"0.bin");
    header.set_size(1 << 40);
    header.set_cksum();
    let flaw = webdataset::index(Cursor::new(header.as_bytes()), 2 << 40);
    // The member fits into what the file is said to be, and behind it comes nothing.
    assert!(matches!(flaw, Err(Flaw::Truncated { offset, .. }) if offset == (1 << 40) + 512));
}

#[test]
fn unsupported_archive_features_are_refused() {
    let sparse = raw(b"0.jpg", b'S', b"");
    let pax_sparse =
        [raw(b"p", b'x', &pax(&[("GNU.sparse.major", b"1")])), raw(b"0.jpg", b'0', b"")];
    for archive in [sparse, pax_sparse.concat()] {
        assert!(index(&ended(archive)).unwrap_err().to_string().contains("sparse"));
    }
    let global = raw(b"g", b'g', &pax(&[("size", b"7")]));
    assert!(index(&ended(global)).unwrap_err().to_string().contains("for all members"));
    for body in [&b"99 path=x\n"[..], b"x", b"5 a=b", b"3 \n", b"18 size=-3\n", b"1 "] {
        let archive = ended([raw(b"p", b'x', body), raw(b"0.jpg", b'0', b"")].concat());
        assert!(index(&archive).unwrap_err().to_string().contains("unreadable pax"));
    }
    let twice = ended([raw(b"0.jpg", b'0', b""), raw(b"0.JPG", b'0', b"")].concat());
    assert!(index(&twice).unwrap_err().to_string().contains("second member `0.JPG`"));
    let dangling = ended(raw(b"p", b'x', &pax(&[("path", b"x.y")])));
    assert!(index(&dangling).unwrap_err().to_string().contains("without a member"));
}

#[test]
fn a_description_that_is_too_long_is_not_read() {
    let mut header = Header::new_gnu();
    header.as_old_mut().linkflag = [b'L'];
    header.set_size(1 << 50);
    header.set_cksum();
    let flaw = webdataset::index(Cursor::new(header.as_bytes()), u64::MAX).unwrap_err();
    assert!(flaw.to_string().contains("too long"), "{flaw}");
}

#[test]
fn a_damaged_header_names_its_offset() {
    let mut archive = pairs();
    archive[1024] ^= 1;
    let flaw = index(&archive).unwrap_err();
    assert!(matches!(flaw, Flaw::Damaged { offset: 1024, whole: 0, .. }), "{flaw}");
}

#[test]
fn compressed_archives_are_refused_by_name() {
    for (start, name) in [
        (&b"\x1f\x8b\x08"[..], "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh9", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ] {
        for length in [20, 2_000] {
            let mut file = start.to_vec();
            file.resize(length, 7);
            let text = index(&file).unwrap_err().to_string();
            assert!(text.contains(&format!("compressed with {name}")), "{text}");
        }
    }
    // A name that looks like bzip2 is a name all the same.
    assert_eq!(index(&ended(raw(b"BZh9.jpg", b'0', b""))).unwrap().len(), 1);
}

#[test]
fn an_empty_file_is_no_archive() {
    assert!(matches!(index(b"").unwrap_err(), Flaw::NoEnd { offset: 0, whole: 0 }));
    assert_eq!(index(&[0; 1024]).unwrap(), []);
}
