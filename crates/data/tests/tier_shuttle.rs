//! The RAM tier's pins, puts and evictions under every schedule that shuttle tries.
//!
//! Run by `cargo test -p belady-data --features shuttle --test tier_shuttle`.

use std::sync::Arc;

use belady_base::SampleId;
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::tier::{Get, Put, RamTier, Tier};

const SCHEDULES: usize = 3_000;

fn payload(sample: SampleId, size: u64) -> Vec<u8> {
    vec![sample as u8 + 1; size as usize]
}

fn ram(capacity: u64, sizes: &[u64]) -> Arc<RamTier> {
    Arc::new(RamTier::new(Bytes(capacity), Arc::new(Sizes::from_bytes(sizes))))
}

/// Runs each as a thread on one tier, then empties the tier: no space may be lost.
fn explore(
    tier: impl Fn() -> Arc<RamTier> + Send + Sync + 'static,
    threads: &'static [fn(&RamTier)],
    samples: u32,
) {
    let body = move || {
        let tier = tier();
        let running: Vec<_> = threads
            .iter()
            .map(|work| {
                let tier = Arc::clone(&tier);
                shuttle::thread::spawn(move || work(&tier))
            })
            .collect();
        for thread in running {
            thread.join().expect("no panic");
        }
        let held = (0..samples).filter(|&sample| tier.holds(sample)).count() as u64;
        assert_eq!(tier.status().samples, held);
        for sample in 0..samples {
            tier.evict(sample);
            assert!(!tier.holds(sample));
        }
        let status = tier.status();
        assert_eq!((status.samples, status.used), (0, Bytes(0)), "space was lost");
    };
    let body = Arc::new(body);
    let again = Arc::clone(&body);
    shuttle::check_random(move || body(), SCHEDULES);
    shuttle::check_pct(move || again(), SCHEDULES, 3);
}

fn pinned_bytes_stay(tier: &RamTier, sample: SampleId) {
    let Some(pinned) = tier.pin(sample) else { return };
    for _ in 0..2 {
        // SAFETY: pinned until below.
        let bytes = unsafe { std::slice::from_raw_parts(pinned.start, pinned.length) };
        assert_eq!(bytes, payload(sample, pinned.length as u64));
        shuttle::thread::yield_now();
    }
    tier.unpin(sample);
}

fn get_gives_its_own_bytes(tier: &RamTier, sample: SampleId, size: u64) {
    let mut into = vec![0; size as usize];
    if tier.get(sample, &mut into) == Get::Hit {
        assert_eq!(into, payload(sample, size));
    }
}

/// The space of one sample, which another needs.
fn room_for_one() -> Arc<RamTier> {
    let tier = ram(16, &[16, 16]);
    assert_eq!(tier.put(0, &payload(0, 16), 0), Put::Stored);
    tier
}

#[test]
fn a_pinned_sample_is_not_written_over() {
    explore(
        room_for_one,
        &[
            |tier| pinned_bytes_stay(tier, 0),
            |tier| {
                tier.evict(0);
                tier.put(1, &payload(1, 16), 0);
            },
            |tier| pinned_bytes_stay(tier, 1),
        ],
        2,
    );
}

#[test]
fn the_last_of_several_pins_frees_an_evicted_sample_once() {
    explore(
        room_for_one,
        &[
            |tier| pinned_bytes_stay(tier, 0),
            |tier| pinned_bytes_stay(tier, 0),
            |tier| {
                tier.evict(0);
            },
            |tier| {
                tier.evict(0);
                tier.put(0, &payload(0, 16), 0);
            },
        ],
        2,
    );
}

#[test]
fn two_puts_of_one_sample_store_it_once() {
    explore(
        || ram(64, &[16, 16]),
        &[
            |tier| {
                tier.put(0, &payload(0, 16), 0);
            },
            |tier| {
                tier.put(0, &payload(0, 16), 0);
                tier.evict(0);
            },
            |tier| get_gives_its_own_bytes(tier, 0, 16),
        ],
        2,
    );
}

/// Sample 2 lies in two pieces around sample 1.
fn in_pieces() -> Arc<RamTier> {
    let tier = ram(48, &[16, 16, 32]);
    assert_eq!(tier.put(0, &payload(0, 16), 0), Put::Stored);
    assert_eq!(tier.put(1, &payload(1, 16), 0), Put::Stored);
    assert!(tier.evict(0));
    assert_eq!(tier.put(2, &payload(2, 32), 0), Put::Stored);
    assert!(tier.pin(2).is_none(), "in pieces");
    tier
}

#[test]
fn a_sample_in_pieces_is_copied_whole_or_missed() {
    explore(
        in_pieces,
        &[
            |tier| get_gives_its_own_bytes(tier, 2, 32),
            |tier| {
                tier.evict(2);
                tier.put(0, &payload(0, 16), 0);
            },
            |tier| {
                tier.evict(1);
                tier.put(2, &payload(2, 32), 0);
            },
        ],
        3,
    );
}

/// Sample 7 lies in two pieces, and there is space for another two between the others.
fn in_pieces_with_room_for_a_second_copy() -> Arc<RamTier> {
    let tier = ram(7 * 16, &[16, 16, 16, 16, 16, 16, 16, 32]);
    for sample in 0..7 {
        assert_eq!(tier.put(sample, &payload(sample, 16), 0), Put::Stored);
    }
    for sample in [0, 2, 4, 6] {
        assert!(tier.evict(sample));
    }
    assert_eq!(tier.put(7, &payload(7, 32), 0), Put::Stored);
    assert!(tier.pin(7).is_none(), "in pieces");
    tier
}

#[test]
fn a_sample_put_again_keeps_its_new_pieces() {
    explore(
        in_pieces_with_room_for_a_second_copy,
        &[
            |tier| {
                tier.evict(7);
            },
            |tier| {
                tier.put(7, &payload(7, 32), 0);
                get_gives_its_own_bytes(tier, 7, 32);
            },
            |tier| {
                tier.put(0, &payload(0, 16), 0);
                get_gives_its_own_bytes(tier, 7, 32);
            },
        ],
        8,
    );
}
