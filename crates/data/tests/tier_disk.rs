//! The disk tier and what can happen to its files.

mod tier_support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::tier::disk::{self, CacheIndexError, ManageError, Which, check_index};
use belady_data::tier::{DiskTier, Get, Put, Tier};
use belady_testing::not_run;
use proptest::prelude::*;
use tempfile::tempdir;
use tier_support::*;

const QUOTA: u64 = 1 << 20;

/// A directory with a full cache, closed.
fn filled(sizes: &Arc<Sizes>) -> (tempfile::TempDir, u64) {
    let directory = tempdir().expect("a directory");
    let stored = fill(&open(directory.path(), QUOTA, sizes), sizes);
    (directory, stored)
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).expect("there");
    file.write_all_at(bytes, at).expect("written");
}

#[test]
fn the_next_run_finds_the_samples_and_the_free_space() {
    let sizes = mixed_sizes(2_000);
    let (directory, stored) = filled(&sizes);
    let tier = open(directory.path(), QUOTA, &sizes);
    assert!(stored > 500 && stored < 2_000, "{stored}");
    assert_eq!(tier.status().samples, stored, "before its free space is recovered");
    assert_eq!(hits(&tier, &sizes), stored);
    let used = tier.status().used;
    tier.recover();
    assert!(tier.status().used >= used, "tables of pieces count too");
    assert_eq!(fill(&tier, &sizes), 0, "it is as full as it was");
    assert_eq!(tier.status().degraded, None);
    for sample in 0..sizes.len() {
        tier.evict(sample);
    }
    assert_eq!((tier.status().used, tier.status().samples), (Bytes(0), 0));
}

#[test]
fn a_quota_is_used_to_the_last_percent_and_never_passed() {
    for quota in [300_000, 1 << 20, 9_999_999] {
        let directory = tempdir().expect("a directory");
        let sizes = Arc::new(Sizes::Equal { bytes: 11_000, samples: 4_000 });
        let tier = open(directory.path(), quota, &sizes);
        let stored = fill(&tier, &sizes);
        let index = fs::metadata(cache(directory.path()).join("index")).expect("index").len();
        let space = quota - index;
        assert!(stored * 11_000 >= space - space / 100 - 2 * 4096 - 11_000, "{stored} of {space}");
        assert!(disk_usage(&root(directory.path())) <= quota);
    }
}

#[test]
fn samples_past_the_page_cache_are_read_from_the_disk() {
    let sizes = mixed_sizes(2_000);
    let (directory, stored) = filled(&sizes);
    for entry in fs::read_dir(cache(directory.path())).expect("listed") {
        let file = File::open(entry.expect("an entry").path()).expect("opened");
        file.sync_all().expect("synced");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
    }
    let tier = open(directory.path(), QUOTA, &sizes);
    assert_eq!(hits(&tier, &sizes), stored);
}

#[test]
fn a_flipped_byte_is_damage_once_and_the_sample_can_come_back() {
    let sizes = Arc::new(Sizes::Equal { bytes: 1_000, samples: 3 });
    let (directory, _) = filled(&sizes);
    overwrite(&cache(directory.path()).join("segment-0000"), 10, &[0xAA, 0x55]);
    let tier = open(directory.path(), QUOTA, &sizes);
    let mut into = vec![0; 1_000];
    assert_eq!(tier.get(0, &mut into), Get::Damaged);
    assert!(!tier.holds(0));
    assert_eq!(tier.get(0, &mut into), Get::Miss);
    assert_eq!(tier.put(0, &payload(0, &sizes), 0), Put::Stored);
    assert_eq!(hits(&tier, &sizes), 3);
}

#[test]
fn segments_that_are_short_or_gone_lose_their_samples_only() {
    let sizes = mixed_sizes(2_000);
    let (directory, stored) = filled(&sizes);
    let path = |number: u32| cache(directory.path()).join(format!("segment-{number:04}"));
    let short = OpenOptions::new().write(true).open(path(1)).expect("there");
    short.set_len(5_000).expect("cut");
    fs::remove_file(path(3)).expect("removed");
    let tier = open(directory.path(), QUOTA, &sizes);
    let left = hits(&tier, &sizes);
    assert!(left > 0 && left < stored, "{left} of {stored}");
    assert!(fill(&tier, &sizes) > 0);
    assert!(disk_usage(&root(directory.path())) <= QUOTA);
}

#[test]
fn a_smaller_quota_releases_space_and_a_larger_one_takes_more() {
    let sizes = mixed_sizes(2_000);
    let (directory, stored) = filled(&sizes);
    for (quota, fewer) in [(QUOTA / 2, true), (2 * QUOTA, false)] {
        let tier = open(directory.path(), quota, &sizes);
        tier.recover();
        fill(&tier, &sizes);
        assert!(disk_usage(&root(directory.path())) <= quota);
        assert_eq!(hits(&tier, &sizes) < stored, fewer);
        assert_eq!(tier.status().samples, hits(&tier, &sizes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the files hold, a get returns right bytes or none, and the quota holds.
    #[test]
    fn files_with_any_bytes_changed_never_give_a_wrong_byte(
        flips in proptest::collection::vec((0_usize..6, any::<u32>(), any::<u64>(), 1_usize..9), 1..40),
    ) {
        let sizes = mixed_sizes(300);
        let directory = tempdir().expect("a directory");
        let quota = 340_000;
        let tier = open(directory.path(), quota, &sizes);
        fill(&tier, &sizes);
        // Holes, so that some samples lie in pieces.
        (0..300).step_by(3).for_each(|sample| { tier.evict(sample); });
        for sample in (0..300).rev() {
            tier.put(sample, &payload(sample, &sizes), 0);
        }
        drop(tier);
        for (file, at, bytes, length) in flips {
            // Most edits go to the entries.
            let (name, first) = match file {
                0 => ("segment-0000".to_owned(), 0),
                1 => ("segment-0001".to_owned(), 0),
                _ => ("index".to_owned(), 4096),
            };
            let path = cache(directory.path()).join(name);
            let end = fs::metadata(&path).expect("there").len().min(first + 300 * 16);
            let at = first + u64::from(at) % (end - first - 8);
            overwrite(&path, at, &bytes.to_le_bytes()[..length.min(8)]);
        }
        let tier = open(directory.path(), quota, &sizes);
        hits(&tier, &sizes);
        fill(&tier, &sizes);
        hits(&tier, &sizes);
        prop_assert!(disk_usage(&root(directory.path())) <= quota);
        let status = tier.status();
        prop_assert!(status.used <= status.capacity);
        drop(tier);
        let tier = open(directory.path(), quota, &sizes);
        let held = tier.status().samples;
        prop_assert_eq!(hits(&tier, &sizes), held, "all is sound again");
    }

    #[test]
    fn an_index_of_any_bytes_is_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..9_000),
        flips in proptest::collection::vec((0_usize..12_000, any::<u8>()), 0..9),
        cut in 0_usize..20_000,
    ) {
        if let Ok(view) = check_index(&bytes) {
            view.held().for_each(drop);
        }
        let sizes = mixed_sizes(300);
        let directory = tempdir().expect("a directory");
        fill(&open(directory.path(), QUOTA, &sizes), &sizes);
        let mut bytes = fs::read(cache(directory.path()).join("index")).expect("read");
        prop_assert_eq!(check_index(&bytes).expect("whole").held().count(), 300);
        for (at, byte) in flips {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        if let Ok(view) = check_index(&bytes) {
            prop_assert!(view.held().count() <= 300);
        }
    }
}

#[test]
fn of_two_overlapping_entries_one_is_kept() {
    let sizes = Arc::new(Sizes::Equal { bytes: 500, samples: 10 });
    let (directory, _) = filled(&sizes);
    let index = cache(directory.path()).join("index");
    let bytes = fs::read(&index).expect("read");
    overwrite(&index, 4096 + 24 * 4, &bytes[4096 + 24 * 7..][..24]);
    let tier = open(directory.path(), QUOTA, &sizes);
    tier.recover();
    assert_eq!(tier.status().samples, 9);
    assert!(hits(&tier, &sizes) >= 8);
}

#[test]
fn a_cache_of_another_version_or_dataset_is_reset_with_a_warning() {
    let sizes = mixed_sizes(300);
    for (at, bytes) in [(8, 9_u32.to_le_bytes()), (100, *b"oops"), (0, *b"what")] {
        let (directory, _) = filled(&sizes);
        overwrite(&cache(directory.path()).join("index"), at, &bytes);
        let tier = open(directory.path(), QUOTA, &sizes);
        assert!(degraded(&tier).contains("is reset"), "{}", degraded(&tier));
        assert_eq!(tier.status().samples, 0);
        assert_eq!(fill(&tier, &sizes), 300);
        drop(tier);
        assert_eq!(open(directory.path(), QUOTA, &sizes).status().degraded, None);
    }
    let (directory, _) = filled(&sizes);
    let tier = open(directory.path(), QUOTA, &mixed_sizes(301));
    assert!(degraded(&tier).contains("other samples"), "{}", degraded(&tier));
}

#[test]
fn a_second_opener_shares_what_the_first_writes() {
    let sizes = mixed_sizes(300);
    let directory = tempdir().expect("a directory");
    let writer = open(directory.path(), QUOTA, &sizes);
    let reader = open(directory.path(), QUOTA, &sizes);
    assert_eq!(fill(&writer, &sizes), 300);
    assert_eq!(hits(&reader, &sizes), 300);
    assert_eq!(reader.status().samples, 300);
    assert_eq!(reader.put(1, &payload(1, &sizes), 0), Put::Refused);
    assert!(!reader.evict(1) && reader.holds(1));
    assert!(degraded(&reader).contains("another job or process"));
    assert!(writer.evict(1) && !reader.holds(1));
    drop((reader, writer));
    assert_eq!(open(directory.path(), QUOTA, &sizes).status().degraded, None);
}

/// More samples than are recovered while a cache is opened.
fn many_small_samples() -> Arc<Sizes> {
    Arc::new(Sizes::Equal { bytes: 20, samples: 40_000 })
}

#[test]
fn a_large_cache_is_read_before_its_free_space_is_recovered() {
    let sizes = many_small_samples();
    let directory = tempdir().expect("a directory");
    let quota = 4 << 20;
    let tier = open(directory.path(), quota, &sizes);
    assert_eq!(fill(&tier, &sizes), 40_000);
    (0..100).for_each(|sample| assert!(tier.evict(sample)));
    let status = tier.status();
    drop(tier);
    for _ in 0..5 {
        let tier = open(directory.path(), quota, &sizes);
        assert_eq!(tier.status(), status, "at once");
        assert!(tier.holds(100) && !tier.holds(99));
        let put = tier.put(1, &payload(1, &sizes), 0);
        assert!(matches!(put, Put::Stored | Put::Refused), "{put:?}");
        assert!(tier.evict(1) == (put == Put::Stored), "evicting waits");
        tier.recover();
        assert_eq!(tier.put(1, &payload(1, &sizes), 0), Put::Stored);
        assert!(tier.evict(1));
        // Closed and opened again at any moment of the recovery: still the writer.
        for _ in 0..3 {
            drop(open(directory.path(), quota, &sizes));
        }
    }
}

#[test]
fn totals_that_a_crash_left_wrong_are_corrected() {
    for sizes in [mixed_sizes(300), many_small_samples()] {
        for wrong in [0, 7, u64::MAX] {
            let directory = tempdir().expect("a directory");
            let tier = open(directory.path(), 4 << 20, &sizes);
            fill(&tier, &sizes);
            let status = tier.status();
            drop(tier);
            let words = [wrong.to_le_bytes(), wrong.to_le_bytes()].concat();
            overwrite(&cache(directory.path()).join("index"), 4096 - 24, &words);
            let tier = open(directory.path(), 4 << 20, &sizes);
            assert!(tier.status().samples > 0, "warm is not taken for cold");
            assert!(tier.status().used <= tier.status().capacity);
            tier.recover();
            assert_eq!(tier.status(), status);
        }
    }
}

#[test]
fn large_samples_begin_at_blocks() {
    let sizes =
        Arc::new(Sizes::from_bytes((0..30).map(|at| 60_000 + at * 1_003).collect::<Vec<_>>()));
    let directory = tempdir().expect("a directory");
    let mut config = config(directory.path(), 3 << 20, &sizes);
    config.segment = Some(Bytes(1 << 20));
    let tier = DiskTier::open(config.clone());
    assert_eq!(fill(&tier, &sizes), 30);
    (0..30).step_by(2).for_each(|sample| assert!(tier.evict(sample)));
    assert_eq!(fill(&tier, &sizes), 15, "some of them in pieces");
    drop(tier);
    let bytes = fs::read(cache(directory.path()).join("index")).expect("read");
    assert_eq!(check_index(&bytes).expect("sound").header.granule.bytes(), 512);
    for entry in fs::read_dir(cache(directory.path())).expect("listed") {
        let file = File::open(entry.expect("an entry").path()).expect("opened");
        file.sync_all().expect("synced");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
    }
    let tier = DiskTier::open(config);
    assert_eq!(hits(&tier, &sizes), 30);
}

#[test]
fn a_file_or_a_link_in_the_directorys_place_turns_the_tier_off() {
    let sizes = mixed_sizes(10);
    let directory = tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "not a directory").expect("written");
    let tier = open(&file, QUOTA, &sizes);
    assert!(degraded(&tier).contains("is not a directory"), "{}", degraded(&tier));

    let elsewhere = tempdir().expect("a directory");
    std::os::unix::fs::symlink(elsewhere.path(), root(directory.path())).expect("linked");
    let tier = open(directory.path(), QUOTA, &sizes);
    assert!(degraded(&tier).contains("is not a directory"), "{}", degraded(&tier));
    assert_eq!(fs::read_dir(elsewhere.path()).expect("listed").count(), 0);
}

/// Locks that cannot be opened for writing look like a read-only file system, also to root.
#[test]
fn a_directory_that_cannot_be_written_is_read() {
    let sizes = mixed_sizes(300);
    let (directory, stored) = filled(&sizes);
    let lock = root(directory.path()).join("lock");
    fs::remove_file(&lock).expect("removed");
    fs::create_dir(&lock).expect("made");
    let tier = open(directory.path(), QUOTA, &sizes);
    assert!(degraded(&tier).contains("none are added"), "{}", degraded(&tier));
    assert_eq!(hits(&tier, &sizes), stored);
    assert_eq!(tier.put(1, &payload(1, &sizes), 0), Put::Refused);

    fs::remove_dir_all(cache(directory.path())).expect("removed");
    let tier = open(directory.path(), QUOTA, &sizes);
    assert!(degraded(&tier).contains("is off"), "{}", degraded(&tier));
}

#[test]
fn a_directory_that_vanishes_fails_no_call() {
    let sizes = mixed_sizes(2_000);
    let directory = tempdir().expect("a directory");
    let tier = open(directory.path(), QUOTA, &sizes);
    assert_eq!(tier.put(1, &payload(1, &sizes), 0), Put::Stored);
    fs::remove_dir_all(root(directory.path())).expect("removed");
    let stored = fill(&tier, &sizes);
    assert_eq!(hits(&tier, &sizes), stored + 1, "what is open stays");
    assert!(degraded(&tier).contains("cannot grow"), "{}", degraded(&tier));
    drop(tier);
    let tier = open(directory.path(), QUOTA, &sizes);
    assert_eq!((tier.status().samples, tier.status().degraded), (0, None));
}

/// Mounts a small file system, and records that it did not run where it cannot.
#[test]
fn a_full_disk_is_used_to_its_end() {
    let directory = tempdir().expect("a directory");
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "none"])
        .arg(directory.path())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        not_run("no file system can be mounted");
        return;
    }
    let sizes = Arc::new(Sizes::Equal { bytes: 10_000, samples: 1_000 });
    let tier = open(directory.path(), 100 << 20, &sizes);
    let said = degraded(&tier);
    let filler = fs::write(directory.path().join("filler"), vec![1; 1 << 20]);
    let stored = fill(&tier, &sizes);
    let read = hits(&tier, &sizes);
    let said_later = degraded(&tier);
    drop(tier);
    let unmount = std::process::Command::new("umount").arg(directory.path()).status();
    assert!(said.contains("has space for"), "{said}");
    assert!(filler.is_ok() && (95..105).contains(&stored), "{stored}");
    assert_eq!(read, stored);
    assert!(said_later.contains("cannot grow further"), "{said_later}");
    assert!(unmount.is_ok_and(|status| status.success()));
}

#[test]
fn caches_are_listed_verified_and_cleared() {
    let sizes = mixed_sizes(300);
    let (directory, stored) = filled(&sizes);
    let info = disk::list(directory.path()).expect("listed").remove(0);
    assert_eq!((info.fingerprint, info.name.as_str()), (FINGERPRINT, "a dataset"));
    assert_eq!((info.samples, info.bytes), (stored, sizes.total()));
    assert!(info.version_ok && !info.in_use && info.on_disk > info.bytes);

    overwrite(&cache(directory.path()).join("segment-0001"), 20_000, &[0xAB; 300]);
    let mut last = 0;
    let found = disk::verify(directory.path(), &mut |step| last = step.checked).expect("verified");
    assert_eq!(last, stored);
    assert!(found[0].damaged > 0 && found[0].dropped && found[0].problem.is_none());
    assert_eq!(found[0].good + found[0].damaged, stored);
    let again = disk::verify(directory.path(), &mut |_| ()).expect("verified");
    assert_eq!((again[0].good, again[0].damaged), (found[0].good, 0));

    let tier = open(directory.path(), QUOTA, &sizes);
    assert!(disk::list(directory.path()).expect("listed")[0].in_use);
    let refused = disk::clear(directory.path(), Which::All).expect_err("in use");
    assert!(matches!(refused, ManageError::InUse(_)) && refused.to_string().contains("in use"));
    let found = disk::verify(directory.path(), &mut |_| ()).expect("verified");
    assert_eq!((found[0].good, found[0].dropped), (again[0].good, false));
    assert_eq!(hits(&tier, &sizes), again[0].good);
    drop(tier);

    assert!(matches!(
        disk::clear(directory.path(), Which::One(1)),
        Err(ManageError::Unknown { .. })
    ));
    assert_eq!(disk::clear(directory.path(), Which::One(FINGERPRINT)).expect("cleared").len(), 1);
    assert!(disk::list(directory.path()).expect("listed").is_empty());
    let nothing = tempdir().expect("a directory");
    assert!(matches!(disk::list(nothing.path()), Err(ManageError::NoCache(_))));
}

#[test]
fn a_cache_with_readers_only_is_in_use() {
    let sizes = mixed_sizes(30);
    let directory = tempdir().expect("a directory");
    let writer = open(directory.path(), QUOTA, &sizes);
    let reader = open(directory.path(), QUOTA, &sizes);
    drop(writer);
    assert!(matches!(disk::clear(directory.path(), Which::All), Err(ManageError::InUse(_))));
    drop(reader);
    assert_eq!(disk::clear(directory.path(), Which::All).expect("cleared").len(), 1);
}

#[test]
fn a_cache_is_readable_by_its_user_only() {
    use std::os::unix::fs::MetadataExt;
    let (directory, _) = filled(&mixed_sizes(10));
    let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
    assert_eq!(mode(&root(directory.path())), 0o700);
    assert_eq!(mode(&cache(directory.path())), 0o700);
    for entry in fs::read_dir(cache(directory.path())).expect("listed") {
        assert_eq!(mode(&entry.expect("an entry").path()), 0o600);
    }
}

#[test]
fn an_index_of_another_version_is_named_before_its_checksum() {
    let (directory, _) = filled(&mixed_sizes(10));
    let mut bytes = fs::read(cache(directory.path()).join("index")).expect("read");
    bytes[8] = 7;
    assert_eq!(check_index(&bytes).err(), Some(CacheIndexError::Version { found: 7 }));
    overwrite(&cache(directory.path()).join("index"), 8, &[7]);
    assert!(!disk::list(directory.path()).expect("listed")[0].version_ok);
}

#[test]
fn truncating_the_index_of_an_open_tier_is_a_miss_and_no_signal() {
    let sizes = mixed_sizes(300);
    for length in [0, 4096, 8192] {
        let (directory, _) = filled(&sizes);
        let writer = open(directory.path(), QUOTA, &sizes);
        writer.recover();
        let reader = open(directory.path(), QUOTA, &sizes);
        assert_eq!((hits(&writer, &sizes), hits(&reader, &sizes)), (300, 300));
        let index = cache(directory.path()).join("index");
        fs::File::options().write(true).open(index).expect("opened").set_len(length).expect("cut");
        // The remaining entries are right, and the others are misses.
        assert!(hits(&reader, &sizes) < 300 && hits(&writer, &sizes) < 300);
        assert!(degraded(&writer).contains("cannot read"), "{}", degraded(&writer));
        // It is created again as samples come.
        fill(&writer, &sizes);
        assert_eq!(hits(&writer, &sizes), 300);
        drop((reader, writer));
        let tier = open(directory.path(), QUOTA, &sizes);
        assert_ne!(tier.put(1, &payload(1, &sizes), 0), Put::Refused);
    }
}

#[test]
fn an_index_that_cannot_be_opened_leaves_the_cache_as_it_is() {
    let sizes = mixed_sizes(300);
    let (directory, _) = filled(&sizes);
    let index = cache(directory.path()).join("index");
    let aside = directory.path().join("aside");
    fs::rename(&index, &aside).expect("renamed");
    // Links below a cache directory are not followed, so this is an error of the system.
    std::os::unix::fs::symlink(&aside, &index).expect("linked");
    let tier = open(directory.path(), QUOTA, &sizes);
    assert!(degraded(&tier).contains("is off: its index cannot be opened"), "{}", degraded(&tier));
    assert_eq!((tier.status().samples, tier.put(1, &payload(1, &sizes), 0)), (0, Put::Refused));
    drop(tier);
    fs::rename(&aside, &index).expect("renamed");
    let tier = open(directory.path(), QUOTA, &sizes);
    assert_eq!((hits(&tier, &sizes), tier.status().degraded), (300, None));
}
