//! Helpers for the tests of the disk tier.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belady_base::SampleId;
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::tier::{DiskConfig, DiskTier, Get, Put, Tier};

pub const FINGERPRINT: u64 = 0xfeed;

/// Sizes of 0 to some 3,000 bytes.
pub fn mixed_sizes(samples: u32) -> Arc<Sizes> {
    Arc::new(Sizes::from_bytes(
        (0..u64::from(samples)).map(|at| (at * 997) % 3_001).collect::<Vec<_>>(),
    ))
}

/// Returns the bytes of a sample, which differ from those of every other.
pub fn payload(sample: SampleId, sizes: &Sizes) -> Vec<u8> {
    let start = u64::from(sample).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7;
    (0..sizes.get(sample)).map(|at| (start.wrapping_add(at * 31) >> 2) as u8).collect()
}

pub fn config(directory: &Path, capacity: u64, sizes: &Arc<Sizes>) -> DiskConfig {
    DiskConfig {
        directory: directory.to_owned(),
        quota: Bytes(capacity),
        share: Bytes(capacity),
        fingerprint: FINGERPRINT,
        name: "a dataset".to_owned(),
        sizes: Arc::clone(sizes),
        segment: Some(Bytes(64 << 10)),
        versions: belady_data::tier::disk::FileVersions::default(),
    }
}

pub fn open(directory: &Path, capacity: u64, sizes: &Arc<Sizes>) -> DiskTier {
    DiskTier::open(config(directory, capacity, sizes))
}

pub fn root(directory: &Path) -> PathBuf {
    directory.join("belady-cache-v1")
}

/// The files of the cache with [`FINGERPRINT`].
pub fn cache(directory: &Path) -> PathBuf {
    root(directory).join(format!("{FINGERPRINT:016x}"))
}

/// Bytes of all files below, in whole pages.
pub fn disk_usage(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_usage(&entry.path()),
            Ok(metadata) => metadata.len().next_multiple_of(4096),
            Err(_) => 0,
        })
        .sum()
}

/// Reads every sample and counts those that came; none may be wrong.
pub fn hits(tier: &dyn Tier, sizes: &Sizes) -> u64 {
    let mut hits = 0;
    for sample in 0..sizes.len() {
        let mut into = vec![0xEE; sizes.get(sample) as usize];
        if tier.get(sample, &mut into) == Get::Hit {
            assert!(into == payload(sample, sizes), "sample {sample} has wrong bytes");
            hits += 1;
        }
    }
    hits
}

/// Puts every sample that there is space for.
pub fn fill(tier: &DiskTier, sizes: &Sizes) -> u64 {
    let put = |&sample: &u32| tier.put(sample, &payload(sample, sizes), 0) == Put::Stored;
    (0..sizes.len()).filter(put).count() as u64
}

pub fn degraded(tier: &DiskTier) -> String {
    tier.status().degraded.expect("degraded")
}
