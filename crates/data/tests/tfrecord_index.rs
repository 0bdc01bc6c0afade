//! TFRecord files: written records are found, and damaged files are refused with a clear error.

use std::fs;
use std::io::Cursor;

use belady_data::source::tfrecord::{self, FOOTER, masked_crc};
use belady_data::source::{Flaw, Operations, PackedRecord};
use proptest::prelude::*;

fn record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let (header, footer) = (masked_crc(&length).to_le_bytes(), masked_crc(payload).to_le_bytes());
    [&length, &header[..], payload, &footer].concat()
}

fn index(file: &[u8]) -> Result<Vec<PackedRecord>, Flaw> {
    tfrecord::index(Cursor::new(file), file.len() as u64)
}

fn payload<'a>(file: &'a [u8], record: &PackedRecord) -> &'a [u8] {
    &file[record.offset as usize..][..record.length as usize]
}

fn damage(file: &[u8], record: &PackedRecord) -> Option<String> {
    let end = (record.offset + record.length) as usize;
    tfrecord::damage(payload(file, record), file[end..end + FOOTER].try_into().unwrap())
}

fn three() -> Vec<u8> {
    [record(b"one"), record(b""), record(&[3; 300])].concat()
}

#[test]
fn checksums_are_those_of_tensorflow() {
    // The check value of CRC-32C, e3069283, rotated and moved as TensorFlow does it.
    assert_eq!(
        masked_crc(b"123456789"),
        0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8)
    );
    // An empty record as TensorFlow writes it.
    let written = [0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2];
    assert_eq!(record(b""), written);
}

proptest! {
    #[test]
    fn what_is_written_is_found(
        payloads in prop::collection::vec(
            prop_oneof![Just(0usize), 1usize..50, 4_000usize..4_200, 5_000usize..20_000], 0..40,
        ),
    ) {
        let payloads: Vec<Vec<u8>> = payloads.iter().map(|&length| vec![length as u8; length]).collect();
        let file: Vec<u8> = payloads.iter().flat_map(|payload| record(payload)).collect();
        let records = index(&file).unwrap();
        let found: Vec<&[u8]> = records.iter().map(|record| payload(&file, record)).collect();
        prop_assert_eq!(found, payloads);
        prop_assert!(records.iter().all(|record| damage(&file, record).is_none()));
    }
}

#[test]
fn a_file_without_records_is_legal() {
    assert_eq!(index(b"").unwrap(), []);
}

#[test]
fn a_truncated_file_names_the_offset_and_the_whole_samples() {
    let file = three();
    let starts = [0, 19, 35, file.len()];
    for keep in 0..file.len() {
        let whole = starts[1..].iter().filter(|&&end| end <= keep).count();
        match index(&file[..keep]) {
            Ok(records) => assert!(starts.contains(&keep) && records.len() == whole),
            Err(Flaw::Truncated { offset, whole: found }) => {
                assert_eq!((offset, found), (starts[whole] as u64, whole as u64), "cut at {keep}");
            }
            Err(flaw) => panic!("cut at {keep}: {flaw}"),
        }
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_indexed_is_truncated() {
    let file = three();
    let flaw = tfrecord::index(Cursor::new(&file[..40]), file.len() as u64).unwrap_err();
    assert!(matches!(flaw, Flaw::Truncated { offset: 35, whole: 2 }), "{flaw}");
}

#[test]
fn every_flipped_bit_is_noticed() {
    let file = three();
    for bit in 0..file.len() * 8 {
        let mut changed = file.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        match index(&changed) {
            Ok(records) => {
                let damaged = records.iter().filter(|record| damage(&changed, record).is_some());
                assert_eq!(damaged.count(), 1, "bit {bit}");
            }
            Err(flaw) => assert!(matches!(flaw, Flaw::Damaged { .. }), "bit {bit}: {flaw}"),
        }
    }
}

#[test]
fn damage_names_both_checksums() {
    let text = tfrecord::damage(b"", [0; FOOTER]).unwrap();
    assert_eq!(text, "its checksum is a282ead8 and the record says 00000000");
}

#[test]
fn a_length_beyond_the_file_is_refused() {
    for length in [u64::MAX, u64::MAX - 15, 1 << 63, 1 << 40, 1] {
        let mut file = record(b"first");
        file.extend(length.to_le_bytes());
        file.extend(masked_crc(&length.to_le_bytes()).to_le_bytes());
        file.extend([0; FOOTER]);
        let flaw = index(&file).unwrap_err();
        assert!(matches!(flaw, Flaw::Truncated { offset: 21, whole: 1 }), "{length}: {flaw}");
    }
}

#[test]
fn compressed_files_are_refused_by_name() {
    for (start, name) in [([0x1f, 0x8b, 8], "gzip"), ([0x78, 0x9c, 1], "zlib")] {
        for length in [3, 100] {
            let mut file = start.to_vec();
            file.resize(length, 7);
            let text = index(&file).unwrap_err().to_string();
            assert!(text.contains(&format!("compressed with {name}")), "{text}");
        }
    }
    // A record whose length looks like gzip is one all the same.
    let payload = vec![0; 0x8b1f];
    assert_eq!(index(&record(&payload)).unwrap().len(), 1);
}

#[test]
fn errors_name_the_file_and_reads_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train-0.tfrecord");
    let mut operations = Operations::default();
    let missing = tfrecord::index_file(&path, &mut operations).unwrap_err().to_string();
    assert!(missing.starts_with(&format!("cannot index {}: ", path.display())), "{missing}");

    fs::write(&path, three()).unwrap();
    let mut operations = Operations::default();
    let records = tfrecord::index_file(&path, &mut operations).unwrap();
    assert_eq!(records.len(), 3);
    assert_eq!((operations.open, operations.stat, operations.list), (1, 1, 0));
    assert_eq!(operations.bytes, three().len() as u64);

    fs::write(&path, &three()[..30]).unwrap();
    let error = tfrecord::index_file(&path, &mut operations).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot index {}: it ends within what begins at byte 19, after 1 whole samples: \
             copy or write it again",
            path.display()
        )
    );
}
