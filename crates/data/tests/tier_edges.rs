//! The disk tier's degradations, outdated copies, caches in use and exact accounting of space.

mod tier_support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use belady_base::SampleId;
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::source::{Catalog, Operations, ReadError, Source, Synthetic, Version, Want};
use belady_data::tier::disk::{self, FileVersions, VerifyProgress, Which};
use belady_data::tier::{DiskConfig, DiskTier, Evicted, Get, Put, Tier};
use belady_testing::not_run;
use tempfile::tempdir;
use tier_support::*;

const QUOTA: u64 = 1 << 20;
const PAGE: u64 = 4096;

fn put(tier: &DiskTier, sizes: &Sizes, sample: SampleId) -> Put {
    put_version(tier, sizes, sample, 0)
}

fn put_version(tier: &DiskTier, sizes: &Sizes, sample: SampleId, version: i64) -> Put {
    tier.put(sample, &payload(sample, sizes), version)
}

fn get(tier: &DiskTier, sizes: &Sizes, sample: SampleId) -> Get {
    tier.get(sample, &mut vec![0; sizes.get(sample) as usize])
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[!byte[0]], at).expect("written");
}

#[test]
fn a_cache_is_granted_what_its_dataset_needs_and_no_more() {
    for sizes in [mixed_sizes(3_000), Arc::new(Sizes::Equal { bytes: 100_000, samples: 30 })] {
        let directory = tempdir().expect("a directory");
        let tier = open(directory.path(), 1 << 30, &sizes);
        let index = fs::metadata(cache(directory.path()).join("index")).expect("index").len();
        let granule = tier.footprint(1);
        let payload = sizes.total().0 + granule * u64::from(sizes.len());
        let needed = index + payload + payload / 64 + (1 << 20);
        let lock = fs::read_to_string(cache(directory.path()).join("lock")).expect("read");
        assert_eq!(lock.trim().parse(), Ok(needed));
        // The lock's page, and what file systems take for themselves.
        let space = (needed - index - PAGE - needed / 512) / PAGE * PAGE;
        assert_eq!(tier.status().capacity, Bytes(space));
        assert_eq!(fill(&tier, &sizes), u64::from(sizes.len()));
    }
}

#[test]
fn a_quota_below_one_page_of_space_turns_the_tier_off() {
    let sizes = mixed_sizes(100);
    let index = {
        let directory = tempdir().expect("a directory");
        let _tier = open(directory.path(), 1 << 20, &sizes);
        fs::metadata(cache(directory.path()).join("index")).expect("index").len()
    };
    // Beside the index there are the lock's page, a page of space, and a 512th for the file system.
    for (pages, capacity) in [(1, 0), (2, 0), (3, PAGE)] {
        let directory = tempdir().expect("a directory");
        let tier = open(directory.path(), index + pages * PAGE, &sizes);
        assert_eq!(tier.status().capacity, Bytes(capacity), "{pages}");
        let said = tier.status().degraded;
        let off = said.is_some_and(|said| said.contains("no space beside its index"));
        assert_eq!(off, capacity == 0, "{pages}");
    }
}

#[test]
fn damage_in_a_cache_in_use_is_reported_and_kept() {
    let sizes = Arc::new(Sizes::Equal { bytes: 1_000, samples: 20 });
    let directory = tempdir().expect("a directory");
    let tier = open(directory.path(), QUOTA, &sizes);
    assert_eq!(fill(&tier, &sizes), 20);
    flip(&cache(directory.path()).join("segment-0000"), 10);
    flip(&cache(directory.path()).join("segment-0000"), 5_000);
    let mut steps: Vec<VerifyProgress> = vec![];
    let found = disk::verify(directory.path(), &mut |step| steps.push(step)).expect("verified");
    assert_eq!((found[0].good, found[0].damaged, found[0].dropped), (18, 2, false));
    assert_eq!((found[0].name.as_str(), &found[0].problem), ("a dataset", &None));
    assert!((0..20).all(|sample| tier.holds(sample)), "the writer decides about them");
    let step = |checked| VerifyProgress { fingerprint: FINGERPRINT, checked, samples: 20 };
    assert_eq!(steps, (0..=20).map(step).collect::<Vec<_>>());
    drop(tier);
    let found = disk::verify(directory.path(), &mut |_| ()).expect("verified");
    assert_eq!((found[0].good, found[0].damaged, found[0].dropped), (18, 2, true));
    let tier = open(directory.path(), QUOTA, &sizes);
    assert_eq!((tier.status().samples, hits(&tier, &sizes)), (18, 18));
}

#[test]
fn an_unreadable_index_affects_its_own_cache_only() {
    let sizes = mixed_sizes(50);
    let directory = tempdir().expect("a directory");
    for fingerprint in [1, 2] {
        let config = config(directory.path(), 4 * QUOTA, &sizes);
        fill(&DiskTier::open(DiskConfig { fingerprint, ..config }), &sizes);
    }
    fs::write(root(directory.path()).join("0000000000000001/index"), "short").expect("written");
    let found = disk::verify(directory.path(), &mut |_| ()).expect("verified");
    assert!(found[0].problem.as_ref().is_some_and(|why| why.contains("too short")), "{found:?}");
    assert_eq!((found[1].good, &found[1].problem), (50, &None));
    let listed = disk::list(directory.path()).expect("listed");
    assert_eq!((listed[0].samples, listed[0].bytes, listed[0].name.as_str()), (0, Bytes(0), ""));
    assert_eq!((listed[1].samples, listed[1].bytes), (50, sizes.total()));
    assert!(listed.iter().all(|cache| cache.version_ok && !cache.in_use));
    let cleared = disk::clear(directory.path(), Which::One(1)).expect("cleared");
    assert_eq!(cleared.iter().map(|cache| cache.fingerprint).collect::<Vec<_>>(), [1]);
    let left = disk::list(directory.path()).expect("listed");
    assert_eq!(left.iter().map(|cache| cache.fingerprint).collect::<Vec<_>>(), [2]);
}

/// Space that a disk cannot read is lost, and no other sample is put there.
#[test]
fn space_that_cannot_be_read_is_retired() {
    let sizes = Arc::new(Sizes::Equal { bytes: 1_000, samples: 200 });
    let directory = tempdir().expect("a directory");
    let tier = open(directory.path(), QUOTA, &sizes);
    (0..100).for_each(|sample| assert_eq!(put(&tier, &sizes, sample), Put::Stored));
    let before = tier.status();
    let place = tier.footprint(1_000);
    // The second segment begins with sample 64 or so: it is truncated in the middle.
    let path = cache(directory.path()).join("segment-0001");
    OpenOptions::new().write(true).open(path).expect("there").set_len(0).expect("cut");
    let lost: Vec<u32> =
        (0..100).filter(|&sample| get(&tier, &sizes, sample) == Get::Damaged).collect();
    assert!((30..40).contains(&lost.len()), "{lost:?}");
    let after = tier.status();
    let gone = lost.len() as u64 * place;
    assert_eq!(
        (after.samples, after.used.0),
        (before.samples - lost.len() as u64, before.used.0 - gone)
    );
    assert_eq!(after.capacity.0, before.capacity.0 - gone);
    assert!(degraded(&tier).contains("cannot read sample"), "{}", degraded(&tier));
    for &sample in &lost {
        assert!(!tier.holds(sample));
        assert_eq!(get(&tier, &sizes, sample), Get::Miss, "it is damage once");
    }
    // The lost samples are put elsewhere and can be read.
    assert_eq!(put(&tier, &sizes, lost[0]), Put::Stored);
    assert_eq!(get(&tier, &sizes, lost[0]), Get::Hit);
    assert_eq!(tier.status().used.0, after.used.0 + place);
}

/// A disk without space for a write, though the file has its length.
#[test]
fn a_put_without_disk_space_is_full_and_its_space_is_retired() {
    let directory = tempdir().expect("a directory");
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(directory.path())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        not_run("no file system can be mounted");
        return;
    }
    let sizes = Arc::new(Sizes::Equal { bytes: 30_000, samples: 100 });
    let tier = open(directory.path(), 100 << 20, &sizes);
    let first = put(&tier, &sizes, 0);
    let capacity = tier.status().capacity;
    // The segment has its length, and no space: truncated, then made long by its end alone.
    let segment = cache(directory.path()).join("segment-0000");
    let file = OpenOptions::new().write(true).open(&segment).expect("there");
    let length = file.metadata().expect("there").len();
    let cut = file.set_len(0).and_then(|()| file.set_len(length));
    let filled = fs::write(directory.path().join("filler"), vec![1; 2 << 20]).is_err();
    let second = put(&tier, &sizes, 1);
    let after = tier.status();
    drop(tier);
    drop(file);
    let unmount = std::process::Command::new("umount").arg(directory.path()).status();
    assert!(unmount.is_ok_and(|status| status.success()));
    assert!(first == Put::Stored && cut.is_ok() && filled);
    assert_eq!(second, Put::Full);
    assert_eq!(after.samples, 1);
    assert!(after.capacity < capacity, "{after:?}");
    let said = after.degraded.unwrap_or_default();
    assert!(said.contains("cannot write to"), "{said}");
}

/// A source whose files are of a version that the test sets.
#[derive(Debug)]
struct Changing {
    source: Synthetic,
    changed: AtomicI64,
}

impl Source for Changing {
    fn catalog(&self) -> &Catalog {
        self.source.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        self.source.read(wants)
    }

    fn operations(&self) -> Operations {
        self.source.operations()
    }

    fn version(&self, _sample: SampleId) -> Version {
        Version { changed: self.changed.load(Ordering::Relaxed), noticed: false }
    }
}

#[test]
fn a_copy_of_another_version_is_a_miss_and_is_replaced() {
    let sizes = Arc::new(Sizes::Equal { bytes: 1_000, samples: 3 });
    let source =
        Arc::new(Changing { source: Synthetic::of_sizes([1_000; 3], 1), changed: 5.into() });
    let directory = tempdir().expect("a directory");
    let versions = FileVersions(Some(source.clone()));
    let config = DiskConfig { versions, ..config(directory.path(), QUOTA, &sizes) };
    let tier = DiskTier::open(config.clone());
    let reader = DiskTier::open_to_read(config.clone()).expect("there");
    (0..3).for_each(|sample| assert_eq!(put_version(&tier, &sizes, sample, 5), Put::Stored));
    assert_eq!((hits(&tier, &sizes), hits(&reader, &sizes)), (3, 3));
    assert!(tier.is_current(1) && reader.is_current(1));

    source.changed.store(6, Ordering::Relaxed);
    assert!(tier.holds(1) && !tier.is_current(1) && !reader.is_current(1));
    assert_eq!(get(&reader, &sizes, 1), Get::Miss);
    assert!(tier.holds(1), "a reader lets nothing go");
    assert_eq!(get(&tier, &sizes, 1), Get::Miss);
    assert!(!tier.holds(1));
    let used = tier.status().used;
    assert_eq!(put_version(&tier, &sizes, 2, 5), Put::Refused, "what the source no longer has");
    assert_eq!(put_version(&tier, &sizes, 2, 6), Put::Stored, "over the older one");
    assert_eq!(tier.status().used, used);
    assert_eq!((get(&tier, &sizes, 2), get(&reader, &sizes, 2)), (Get::Hit, Get::Hit));
    assert_eq!(put_version(&tier, &sizes, 2, 6), Put::Present);
    source.changed.store(5, Ordering::Relaxed);
    assert_eq!((get(&reader, &sizes, 2), get(&reader, &sizes, 0)), (Get::Miss, Get::Hit));
}

#[test]
fn a_reader_finds_damage_and_leaves_it_to_the_writer() {
    let sizes = Arc::new(Sizes::Equal { bytes: 1_000, samples: 3 });
    let directory = tempdir().expect("a directory");
    let writer = open(directory.path(), QUOTA, &sizes);
    let reader = open(directory.path(), QUOTA, &sizes);
    assert_eq!(fill(&writer, &sizes), 3);
    assert_eq!(reader.status().used, writer.status().used);
    assert_eq!(reader.status().capacity, reader.status().used);
    flip(&cache(directory.path()).join("segment-0000"), 10);
    assert_eq!(get(&reader, &sizes, 0), Get::Damaged);
    assert_eq!(get(&reader, &sizes, 0), Get::Damaged);
    assert_eq!(reader.evict_now(0), Evicted::NotHeld);
    assert_eq!(get(&writer, &sizes, 0), Get::Damaged);
    // The next put or eviction brings the file up to date.
    assert!(writer.evict(1));
    assert_eq!((get(&reader, &sizes, 0), hits(&reader, &sizes)), (Get::Miss, 1));
}

#[test]
fn samples_outside_of_the_dataset_are_refused() {
    let sizes = mixed_sizes(300);
    let directory = tempdir().expect("a directory");
    let tier = open(directory.path(), QUOTA, &sizes);
    fill(&tier, &sizes);
    for sample in [300, 301, u32::MAX] {
        assert_eq!(tier.put(sample, &[1; 10], 0), Put::Refused);
        assert_eq!(tier.get(sample, &mut [0; 10]), Get::Miss);
        assert!(!tier.holds(sample) && !tier.is_current(sample) && !tier.evict(sample));
        assert_eq!(tier.evict_now(sample), Evicted::NotHeld);
    }
    let length = sizes.get(7) as usize;
    for wrong in [length - 1, length + 1] {
        assert_eq!(tier.put(7, &vec![1; wrong], 0), Put::Refused);
        assert_eq!(tier.get(7, &mut vec![0; wrong]), Get::Miss);
    }
    assert_eq!(hits(&tier, &sizes), 300);
    assert_eq!(tier.evict_now(299), Evicted::Gone);
    assert!(tier.evict(298) && !tier.evict(298));
    assert_eq!(tier.status().samples, 298);
}

/// Space is counted in granules, and all of it is free again after the evictions.
#[test]
fn the_space_of_samples_is_counted_to_the_byte() {
    for (bytes, unit) in [(1_000, 16), (1_008, 16), (100_000, 512)] {
        let sizes = Arc::new(Sizes::Equal { bytes, samples: 8 });
        let directory = tempdir().expect("a directory");
        let mut config = config(directory.path(), 4 << 20, &sizes);
        config.segment = Some(Bytes(1 << 20));
        let tier = DiskTier::open(config);
        let each = bytes.div_ceil(unit) * unit;
        assert_eq!(
            [0, 1, unit, unit + 1].map(|size| tier.footprint(size)),
            [0, unit, unit, 2 * unit]
        );
        for held in 1..=8 {
            assert_eq!(put(&tier, &sizes, held - 1), Put::Stored);
            let status = tier.status();
            assert_eq!((status.samples, status.used.0), (held.into(), u64::from(held) * each));
        }
        for left in (0..8).rev() {
            assert!(tier.evict(left));
            assert_eq!(tier.status().used.0, u64::from(left) * each);
        }
    }
}

#[test]
fn a_cache_with_another_writer_warns_only_if_samples_are_missing() {
    let sizes = mixed_sizes(20);
    for (held, sentence) in [(19, "none are added"), (20, "holds all samples")] {
        let directory = tempdir().expect("a directory");
        let writer = open(directory.path(), QUOTA, &sizes);
        for sample in 0..held {
            assert_eq!(put(&writer, &sizes, sample), Put::Stored);
        }
        drop(writer);
        let _writer = open(directory.path(), QUOTA, &sizes);
        let said = degraded(&open(directory.path(), QUOTA, &sizes));
        assert!(said.contains(sentence), "{said}");
    }
}
