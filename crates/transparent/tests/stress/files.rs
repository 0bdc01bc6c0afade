//! Files whose bytes depend on their names, so that a reader can check them.

use std::fs;
use std::path::Path;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Sizes around a page, zero, and some that take a while.
const SIZES: [u64; 8] = [0, 1, 4_095, 4_096, 4_097, 20_000, 65_537, 150_000];
const LARGE: &str = "large.bin";

/// Names relative to the dataset.
pub fn names(files: u32) -> Vec<String> {
    (0..files).map(|number| format!("class {}/é{number:05}.bin", number % 7)).collect()
}

fn size(name: &str) -> u64 {
    let hash = xxh3_64(name.as_bytes());
    let base = SIZES[(hash % SIZES.len() as u64) as usize];
    base + if base > 5_000 { hash >> 8 & 0xfff } else { 0 }
}

/// Returns the bytes of a file.
pub fn bytes(name: &str) -> Vec<u8> {
    fill(name, size(name))
}

fn fill(name: &str, size: u64) -> Vec<u8> {
    let words = (0..size.div_ceil(8)).map(|at| xxh3_64_with_seed(name.as_bytes(), at));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(size as usize);
    bytes
}

/// Writes the dataset and returns its size.
pub fn make(dataset: &Path, files: u32) -> u64 {
    let write = |name: String| {
        let path = dataset.join(&name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes = bytes(&name);
        fs::write(path, &bytes).unwrap();
        bytes.len() as u64
    };
    names(files).into_iter().map(write).sum()
}

/// Writes one more file of this size. Readers read it if it exists.
pub fn make_large(dataset: &Path, size: u64) -> u64 {
    fs::write(dataset.join(LARGE), fill(LARGE, size)).unwrap();
    size
}

/// Returns the names of all files, and hashes of their bytes.
pub fn expected(dataset: &Path, files: u32) -> Vec<(String, u64)> {
    let large = fs::metadata(dataset.join(LARGE)).ok().map(|large| fill(LARGE, large.len()));
    let ordinary = names(files).into_iter().map(|name| (xxh3_64(&bytes(&name)), name));
    let large = large.map(|bytes| (xxh3_64(&bytes), LARGE.to_owned()));
    ordinary.chain(large).map(|(hash, name)| (name, hash)).collect()
}
