//! TFRecord: whatever the bytes are, the records that are found lie in them, in order, one
//! behind the other; and proper records, written here, are found again.
//!
//! Fuzzers do not guess checksums. So the first byte chooses: the rest is a file as it is,
//! or payloads to write a file from, which then may lose its end or change a byte.

#![no_main]

use std::io::Cursor;

use belady_data::source::tfrecord::{self, FOOTER, HEADER};
use belady_data::source::{Flaw, PackedRecord};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    match choice % 4 {
        0 => drop(check(rest)),
        1 => {
            let (file, count) = written(rest);
            let records = check(&file).expect("a proper file has an index");
            assert_eq!(records.len(), count);
            assert!(records.iter().all(|record| damage(&file, record).is_none()));
        }
        2 => cut(rest),
        _ => change(rest),
    }
});

/// Indexes a file and checks what was found.
fn check(file: &[u8]) -> Result<Vec<PackedRecord>, Flaw> {
    let length = file.len() as u64;
    let found = tfrecord::index(Cursor::new(file), length);
    match &found {
        Ok(records) => {
            let mut end = 0;
            for record in records {
                assert_eq!(record.offset, end + HEADER as u64);
                end = record.offset + record.length + FOOTER as u64;
                let _ = damage(file, record);
            }
            assert_eq!(end, length);
        }
        Err(Flaw::Truncated { offset, whole } | Flaw::Damaged { offset, whole, .. }) => {
            assert!(*offset < length && *whole <= offset / (HEADER + FOOTER) as u64);
        }
        Err(Flaw::Compressed(_)) => {}
        Err(flaw) => panic!("no TFRecord file has this flaw: {flaw}"),
    }
    found
}

fn damage(file: &[u8], record: &PackedRecord) -> Option<String> {
    let end = (record.offset + record.length) as usize;
    let footer = file[end..end + FOOTER].try_into().expect("four bytes");
    tfrecord::damage(&file[record.offset as usize..end], footer)
}

/// A file of the payloads that the input tells: a length byte before each.
fn written(mut input: &[u8]) -> (Vec<u8>, usize) {
    let (mut file, mut count) = (Vec::new(), 0);
    while let Some((&length, rest)) = input.split_first() {
        let (payload, rest) = rest.split_at(rest.len().min(length.into()));
        let header = (payload.len() as u64).to_le_bytes();
        file.extend(header);
        file.extend(tfrecord::masked_crc(&header).to_le_bytes());
        file.extend(payload);
        file.extend(tfrecord::masked_crc(payload).to_le_bytes());
        input = rest;
        count += 1;
    }
    (file, count)
}

/// A file that lost its end is refused unless it was cut between two records.
fn cut(input: &[u8]) {
    let Some((&[low, high], rest)) = input.split_first_chunk() else { return };
    let (file, count) = written(rest);
    let keep = usize::from(u16::from_le_bytes([low, high])) % (file.len() + 1);
    match check(&file[..keep]) {
        Ok(records) => assert!(records.len() < count || keep == file.len()),
        Err(Flaw::Truncated { whole, .. }) => assert!(whole < count as u64),
        Err(flaw) => panic!("a cut file is truncated and not this: {flaw}"),
    }
}

/// One changed byte is noticed, in the index or in the payload's checksum.
fn change(input: &[u8]) {
    let Some((&[low, high, flip], rest)) = input.split_first_chunk() else { return };
    let (mut file, _) = written(rest);
    if file.is_empty() || flip == 0 {
        return;
    }
    let at = usize::from(u16::from_le_bytes([low, high])) % file.len();
    file[at] ^= flip;
    if let Ok(records) = check(&file) {
        assert!(records.iter().any(|record| damage(&file, record).is_some()));
    }
}
