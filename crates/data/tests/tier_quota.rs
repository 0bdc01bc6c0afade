//! The quota of a directory, and the part that each cache gets.

mod tier_support;

use std::path::Path;
use std::sync::Arc;

use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::tier::disk;
use belady_data::tier::{DiskConfig, DiskTier, Put, Tier};
use proptest::prelude::*;
use tempfile::tempdir;
use tier_support::*;

const QUOTA: u64 = 1 << 20;

fn dataset(directory: &Path, fingerprint: u64, quota: u64) -> (DiskTier, Arc<Sizes>) {
    let sizes = mixed_sizes(200);
    let tier = DiskTier::open(DiskConfig { fingerprint, ..config(directory, quota, &sizes) });
    (tier, sizes)
}

#[test]
fn idle_caches_are_removed_least_recently_used_first() {
    let directory = tempdir().expect("a directory");
    let mut one = 0;
    for fingerprint in [1, 2, 3] {
        let (tier, sizes) = dataset(directory.path(), fingerprint, 100 << 20);
        assert_eq!(fill(&tier, &sizes), 200);
        one = one.max(disk_usage(&root(directory.path())) / fingerprint);
    }
    drop(dataset(directory.path(), 1, 100 << 20));
    // Space for two existing caches and one that may become about as large.
    let quota = 2 * one + 1_450_000;
    let (tier, _) = dataset(directory.path(), 4, quota);
    assert_eq!(tier.status().degraded, None);
    let left: Vec<u64> =
        disk::list(directory.path()).expect("listed").iter().map(|info| info.fingerprint).collect();
    assert!(left.contains(&1) && !left.contains(&2) && left.contains(&4), "{left:?}");
    assert!(disk_usage(&root(directory.path())) <= quota);
}

#[test]
fn caches_in_use_keep_their_part_of_the_quota() {
    let directory = tempdir().expect("a directory");
    let (first, sizes) = dataset(directory.path(), 1, QUOTA);
    let (second, _) = dataset(directory.path(), 2, QUOTA + 100_000);
    assert!(degraded(&second).contains("other datasets"), "{}", degraded(&second));
    assert!(second.status().capacity.0 <= 100_000);
    let (third, _) = dataset(directory.path(), 3, QUOTA);
    assert!(degraded(&third).contains("is off"), "{}", degraded(&third));
    assert_eq!(third.put(0, &payload(0, &sizes), 0), Put::Refused);
    fill(&first, &sizes);
    fill(&second, &sizes);
    assert!(disk_usage(&root(directory.path())) <= QUOTA + 100_000);
}

fn fingerprints(directory: &Path) -> Vec<u64> {
    disk::list(directory).expect("listed").iter().map(|info| info.fingerprint).collect()
}

/// The share was once taken for the quota of all, and idle caches were removed for nothing.
#[test]
fn a_small_share_removes_no_idle_caches() {
    let directory = tempdir().expect("a directory");
    for fingerprint in [1, 2] {
        let (tier, sizes) = dataset(directory.path(), fingerprint, 4 * QUOTA);
        assert_eq!(fill(&tier, &sizes), 200);
    }
    let sizes = mixed_sizes(200);
    let with = |fingerprint, share| {
        let config = config(directory.path(), 4 * QUOTA, &sizes);
        DiskTier::open(DiskConfig { fingerprint, share: Bytes(share), ..config })
    };
    let (third, fourth) = (with(3, 100_000), with(4, 200_000));
    assert_eq!(third.status().degraded, None, "it has what it asked for");
    assert!((1..=100_000).contains(&third.status().capacity.0), "{:?}", third.status());
    assert!((100_001..=200_000).contains(&fourth.status().capacity.0), "{:?}", fourth.status());
    assert!(fill(&third, &sizes) > 0 && fill(&fourth, &sizes) > 0);
    assert_eq!(fingerprints(directory.path()), [1, 2, 3, 4]);
}

#[test]
fn a_share_of_nothing_opens_nothing_and_removes_nothing() {
    let directory = tempdir().expect("a directory");
    drop(open(directory.path(), QUOTA, &mixed_sizes(300)));
    let sizes = mixed_sizes(200);
    let config = config(directory.path(), 10_000, &sizes);
    let tier = DiskTier::open(DiskConfig { fingerprint: 1, share: Bytes(0), ..config });
    assert_eq!(fingerprints(directory.path()), [FINGERPRINT]);
    assert_eq!(tier.put(1, &payload(1, &sizes), 0), Put::Refused);
    assert_eq!(tier.status().capacity, Bytes(0));
    assert!(degraded(&tier).contains("left for this job"), "{}", degraded(&tier));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever jobs start and end with any shares, the directory never exceeds its quota.
    #[test]
    fn all_caches_together_stay_within_the_quota(
        jobs in proptest::collection::vec((0_u64..6, 0_u64..900_000, any::<bool>()), 1..12),
    ) {
        let directory = tempdir().expect("a directory");
        let sizes = mixed_sizes(200);
        let mut open: Vec<DiskTier> = Vec::new();
        for (fingerprint, share, close_one) in jobs {
            if close_one && !open.is_empty() {
                open.remove(0);
            }
            let config = config(directory.path(), QUOTA, &sizes);
            let tier = DiskTier::open(DiskConfig { fingerprint, share: Bytes(share), ..config });
            let status = tier.status();
            let shared = status.degraded.as_ref().is_some_and(|why| why.contains("another job or process writes"));
            prop_assert!(shared || status.capacity.0 <= share, "{status:?}");
            open.push(tier);
            for tier in &open {
                fill(tier, &sizes);
            }
            prop_assert!(disk_usage(&root(directory.path())) <= QUOTA);
        }
    }
}

#[test]
fn a_quota_below_the_index_turns_the_tier_off_with_a_warning() {
    let directory = tempdir().expect("a directory");
    let sizes = mixed_sizes(1_000);
    let tier = open(directory.path(), 10_000, &sizes);
    assert!(degraded(&tier).contains("no space beside its index"), "{}", degraded(&tier));
    assert_eq!(tier.status().capacity, Bytes(0));
    assert_eq!(tier.put(1, &payload(1, &sizes), 0), Put::Refused);
    assert_eq!(hits(&tier, &sizes), 0);
}
