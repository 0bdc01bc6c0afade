//! The least source bytes against the best of all placements, found by trying them.
//!
//! A placement is a set of samples, each on one tier of one node. In every step it may become any
//! other that consists of what was held and what the step used: moving costs nothing here. The
//! search goes through all of them, so jobs are tiny.

mod jobs;

use std::collections::HashMap;

use belady_control::Job;
use belady_control::policy::{PolicyKind, plan};
use belady_sim::bound::{EpochBound, bound};
use belady_sim::world::simulate;
use jobs::{Shape, Spread, choices, small, spreads};
use proptest::prelude::*;

/// Whether these samples can lie on the tiers, none of them cut.
fn fits(job: &Job, held: u32) -> bool {
    fn place(samples: &[u64], rooms: &mut Vec<u64>) -> bool {
        let Some((&size, rest)) = samples.split_first() else { return true };
        for at in 0..rooms.len() {
            if rooms[at] >= size {
                rooms[at] -= size;
                if place(rest, rooms) {
                    return true;
                }
                rooms[at] += size;
            }
        }
        false
    }
    let system = &job.system;
    let mut samples: Vec<u64> =
        (0..job.sizes.len()).filter(|k| held >> k & 1 == 1).map(|k| job.sizes.get(k)).collect();
    samples.sort_unstable_by(|a, b| b.cmp(a));
    let mut rooms = (1..system.tiers.len())
        .flat_map(|tier| (0..system.nodes).map(move |node| (tier, node)))
        .map(|(tier, node)| system.tiers[tier].capacity_of(node).0)
        .collect();
    place(&samples, &mut rooms)
}

/// The least source bytes of any placement in the first 1, 2, ... epochs.
fn by_trying(job: &Job, epochs: u32) -> Vec<u64> {
    let bytes = |set: u32| -> u64 {
        (0..job.sizes.len()).filter(|k| set >> k & 1 == 1).map(|k| job.sizes.get(k)).sum()
    };
    let possible: Vec<bool> = (0..1u32 << job.sizes.len()).map(|held| fits(job, held)).collect();
    let mut best: HashMap<u32, u64> = HashMap::from([(0, 0)]);
    (0..epochs)
        .map(|epoch| {
            let order = job.stream.epoch(epoch);
            for iteration in 0..order.iterations() {
                let used = (0..job.system.ranks())
                    .flat_map(|rank| order.batch(rank, iteration).collect::<Vec<_>>())
                    .fold(0u32, |set, sample| set | 1 << sample);
                let mut next: HashMap<u32, u64> = HashMap::new();
                for (&held, &read) in &best {
                    let read = read + bytes(used & !held);
                    // All subsets of what may stay, the empty one last.
                    let all = held | used;
                    let mut stays = all;
                    loop {
                        if possible[stays as usize] {
                            let least = next.entry(stays).or_insert(u64::MAX);
                            *least = read.min(*least);
                        }
                        if stays == 0 {
                            break;
                        }
                        stays = (stays - 1) & all;
                    }
                }
                best = next;
            }
            best.values().copied().min().unwrap_or(0)
        })
        .collect()
}

/// Source bytes that the bound gives for the first 1, 2, ... epochs.
fn by_bound(job: &Job, epochs: u32) -> Vec<u64> {
    let add = |sum: &mut u64, epoch: &EpochBound| {
        *sum += epoch.source_bytes;
        Some(*sum)
    };
    bound(job, epochs).epochs.iter().scan(0, add).collect()
}

fn tiny() -> impl Strategy<Value = Shape> {
    let machine = (1u32..=2, 1u32..=2, 1u32..=2);
    let room = prop::collection::vec(prop::collection::vec(0.0f64..0.9, 1..=2), 1..=2);
    let data = (2u32..=7, 1u32..=4, choices(), any::<bool>(), spreads(), any::<u64>());
    (machine, room, data).prop_map(
        |(
            (nodes, ranks_per_node, local),
            room,
            (samples, epochs, choice, drop_last, spread, seed),
        )| {
            Shape {
                nodes,
                ranks_per_node,
                local,
                samples,
                epochs,
                choice,
                drop_last,
                spread,
                room,
                ring: 2,
                source: 1.0,
                seed,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// For the run and for each of its beginnings.
    #[test]
    fn no_placement_reads_less_and_one_reads_as_little_where_sizes_are_equal(shape in tiny()) {
        let Some(job) = shape.job() else { return Ok(()) };
        let (least, bound) = (by_trying(&job, shape.epochs), by_bound(&job, shape.epochs));
        if shape.spread == Spread::Equal {
            prop_assert_eq!(least, bound);
        } else {
            prop_assert!(
                least.iter().zip(&bound).all(|(least, bound)| least >= bound),
                "{:?} of the best placement, {:?} of the bound", least, bound
            );
        }
    }
}

/// The same job with the rings' capacity added: what a ring holds ahead of its use may
/// have left the tiers already.
fn with_rings_as_cache(job: &Job) -> Job {
    let mut job = job.clone();
    let rings = job.system.tiers[0].clone();
    job.system.tiers.push(rings);
    job
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_policy_reads_less_or_is_faster_than_the_bound(shape in small(1..30)) {
        let Some(job) = shape.job() else { return Ok(()) };
        let with_rings = with_rings_as_cache(&job);
        let least: u64 = by_bound(&with_rings, shape.epochs).pop().unwrap_or(0);
        let fastest = bound(&with_rings, shape.epochs).seconds.0;
        let compute = bound(&job, shape.epochs).perfect.0;
        for kind in PolicyKind::ALL {
            let Ok(plan) = plan(&kind, &job) else { continue };
            if kind == PolicyKind::Perfect || !plan.keeps_order() {
                continue;
            }
            let run = simulate(&job, &plan, shape.epochs, &mut |_, _| {});
            let read = run.outcome.bytes.source;
            prop_assert!(read >= least, "{} reads {read} of at least {least}", kind.name());
            prop_assert!(
                run.outcome.seconds >= fastest * (1.0 - 1e-9),
                "{} takes {} s of at least {fastest} s", kind.name(), run.outcome.seconds
            );
            // Without what was lost to the slowest rank, a run has still to compute and to read.
            let rest = run.outcome.seconds - run.outcome.straggling_seconds;
            let source = least as f64 / job.system.source.throughput.at(shape.nodes).0;
            let needed = f64::max(source, compute);
            prop_assert!(
                rest >= needed * (1.0 - 1e-9),
                "{} takes {rest} s without straggling, but needs {needed} s", kind.name()
            );
        }
    }
}
