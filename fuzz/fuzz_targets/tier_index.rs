//! The disk tier's index: whatever the bytes are, reading them ends, and what an index says
//! it holds are samples that it has, each once and in order.
//!
//! Fuzzers do not guess checksums. So the first byte chooses whether the rest is an index as
//! it is, or the beginning of a header, which gets its checksum, and of the pages behind it.

#![no_main]

use belady_data::tier::disk::check_index;
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

const PAGE: usize = 4096;
/// All of the header that means something, its checksum apart.
const HEADER: usize = 576;
const CHECKSUM: usize = PAGE - 8;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    if choice & 1 == 0 {
        check(rest);
    } else {
        check(&completed(rest));
    }
});

fn check(bytes: &[u8]) {
    let Ok(index) = check_index(bytes) else { return };
    assert_eq!(bytes.len() % PAGE, 0);
    let held: Vec<_> = index.held().collect();
    assert!(
        held.iter().all(|(sample, entry, _)| {
            *sample < index.header.samples && entry.location.is_some()
        })
    );
    assert!(held.is_sorted_by(|a, b| a.0 < b.0));
}

/// A page with this beginning and a right checksum, and whole pages with the rest.
fn completed(input: &[u8]) -> Vec<u8> {
    let (header, entries) = input.split_at(input.len().min(HEADER));
    let mut bytes = header.to_vec();
    bytes.resize(PAGE, 0);
    let checksum = xxh3_64(&bytes[..CHECKSUM]);
    bytes[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    bytes.extend(entries);
    bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
    bytes
}
