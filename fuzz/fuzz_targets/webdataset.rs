//! WebDataset: whatever the bytes are, the samples that are found lie in them, in order and
//! apart from each other, and each can be taken apart into members that lie in it.
//!
//! Fuzzers do not guess checksums. So the first byte chooses whether the rest is a file as
//! it is, or one whose headers get their right checksums first; and whether the mark of the
//! end is put behind it.

#![no_main]

use std::io::Cursor;

use belady_data::source::{Flaw, PackedRecord, webdataset};
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 512;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    let mut file = rest.to_vec();
    if choice & 1 != 0 {
        file.chunks_exact_mut(BLOCK).for_each(repair);
    }
    if choice & 2 != 0 {
        file.resize(file.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    }
    check(&file);
    // A sample from elsewhere: an error or members, and no more.
    if let Ok(members) = webdataset::members(&file) {
        members.iter().for_each(|member| assert!(file.get(member.range.clone()).is_some()));
    }
});

fn check(file: &[u8]) {
    let length = file.len() as u64;
    match webdataset::index(Cursor::new(file), length) {
        Ok(records) => {
            let mut end = 0;
            for record in &records {
                assert!(record.offset >= end && record.key.is_some());
                end = record.offset + record.length;
                check_sample(file, record);
            }
            assert!(end < length, "the mark of the end comes last");
        }
        Err(Flaw::Io(error)) => panic!("memory has no such errors: {error}"),
        Err(
            Flaw::Truncated { offset, whole }
            | Flaw::NoEnd { offset, whole }
            | Flaw::Damaged { offset, whole, .. },
        ) => assert!(offset <= length && whole <= offset / BLOCK as u64),
        Err(Flaw::Hostile { offset, .. } | Flaw::Unsupported { offset, .. }) => {
            assert!(offset < length);
        }
        Err(Flaw::Compressed(_)) => {}
    }
}

fn check_sample(file: &[u8], record: &PackedRecord) {
    let sample = &file[record.offset as usize..][..record.length as usize];
    let members = webdataset::members(sample).expect("a sample that was found can be taken apart");
    let mut end = 0;
    for member in &members {
        assert!(member.range.start >= end + BLOCK, "a header lies before every member");
        end = member.range.end;
        assert!(end <= sample.len());
    }
    let last = members.last().expect("a sample has members");
    assert_eq!(last.range.end.next_multiple_of(BLOCK), sample.len());
    if record.label.is_some() {
        assert!(members.iter().any(|member| member.name == "cls"));
    }
}

/// Writes the right checksum into a block that says it is a header.
fn repair(block: &mut [u8]) {
    if &block[257..262] == b"ustar" {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}
