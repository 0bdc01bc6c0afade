//! What the model believes of this machine as long as nobody has said or measured it.

use belady_control::model::{Bytes, Curve, Pipeline, Rate, Readers, Sharing, Source, System, Tier};

/// A shared file system as one client sees it: only its order of magnitude matters, since
/// measured rates replace it after the first reads.
const SOURCE: Rate = Rate(100e6);
/// One thread copying memory, and one reading a local SSD.
const MEMORY: Rate = Rate(10e9);
const DISK: Rate = Rate(1e9);
/// Faster than anything, where nobody said how fast the consumer is.
const UNBOUNDED: Rate = Rate(1e12);

/// One node with one consumer.
pub fn default_system(staging: Bytes, threads: u32, tiers: &[(String, Bytes)]) -> System {
    let tier = |name: String, capacity, threads: u32, rate: Rate| Tier {
        name,
        capacity,
        by_node: vec![],
        threads,
        read: Curve::flat(rate * f64::from(threads)),
        write: Curve::flat(rate * f64::from(threads)),
    };
    let mut all = vec![tier("staging".into(), staging, threads, MEMORY)];
    all.extend(tiers.iter().map(|(name, capacity)| {
        let rate = if name == "ram" { MEMORY } else { DISK };
        tier(name.clone(), *capacity, threads.div_ceil(2), rate)
    }));
    System {
        nodes: 1,
        ranks_per_node: 1,
        compute: UNBOUNDED,
        preprocess: UNBOUNDED,
        network: UNBOUNDED,
        source: Source {
            throughput: Curve::flat(SOURCE),
            link: UNBOUNDED,
            sharing: Sharing::Aggregate,
            readers: Readers::Threads,
        },
        tiers: all,
        pipeline: Pipeline::Overlapped,
    }
}

/// The same system for all nodes of a job, whose tiers have room for so many bytes: by node and tier.
pub fn of_nodes(mut system: System, rooms: &[Vec<u64>]) -> System {
    system.nodes = rooms.len() as u32;
    for (at, tier) in system.tiers.iter_mut().skip(1).enumerate() {
        let by_node: Vec<Bytes> = rooms.iter().map(|room| Bytes(room[at])).collect();
        tier.capacity = by_node.iter().copied().min().unwrap_or(Bytes::ZERO);
        let differ = by_node.iter().any(|&room| room != tier.capacity);
        tier.by_node = if differ { by_node } else { vec![] };
    }
    system
}

/// The described system with the tiers that the engine really has: rates of the file where it
/// has such a tier, defaults where not.
pub fn known_system(
    described: Option<&System>,
    staging: Bytes,
    threads: u32,
    tiers: &[(String, Bytes)],
) -> System {
    let default = default_system(staging, threads, tiers);
    let Some(described) = described else { return default };
    let tiers =
        default.tiers.into_iter().enumerate().map(|(at, tier)| match described.tiers.get(at) {
            Some(known) => Tier {
                read: known.read.clone(),
                write: known.write.clone(),
                threads: known.threads,
                ..tier
            },
            None => tier,
        });
    System { tiers: tiers.collect(), nodes: 1, ranks_per_node: 1, ..described.clone() }
}
