//! The model's description of this machine, from a system file or from defaults.

use belady_control::model::{
    Bytes, Curve, Pipeline, Rate, Readers, Sharing, SourceModel, System, TierModel,
};

/// A shared file system as one client sees it: only its order of magnitude matters, since
/// measured rates replace it after the first reads.
const SOURCE: Rate = Rate(100e6);
/// One thread copying memory, and one reading a local SSD.
const MEMORY: Rate = Rate(10e9);
const DISK: Rate = Rate(1e9);
/// Faster than anything, for rates that are not given.
const UNBOUNDED: Rate = Rate(1e12);

/// Returns the default system: one node with one consumer.
pub fn default_system(staging: Bytes, threads: u32, tiers: &[(String, Bytes)]) -> System {
    let tier = |name: String, capacity, threads: u32, rate: Rate| TierModel {
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
        compute: UNBOUNDED.into(),
        preprocess: UNBOUNDED.into(),
        network: UNBOUNDED,
        source: SourceModel {
            throughput: Curve::flat(SOURCE),
            link: UNBOUNDED,
            sharing: Sharing::Aggregate,
            readers: Readers::Threads,
        },
        tiers: all,
        pipeline: Pipeline::Overlapped,
    }
}

/// Returns the system of all nodes of a job, given the capacities by node and tier.
pub fn of_nodes(mut system: System, capacities: &[Vec<u64>]) -> System {
    system.nodes = capacities.len() as u32;
    for (at, tier) in system.tiers.iter_mut().skip(1).enumerate() {
        let by_node: Vec<Bytes> = capacities.iter().map(|of_node| Bytes(of_node[at])).collect();
        tier.capacity = by_node.iter().copied().min().unwrap_or(Bytes::ZERO);
        let differ = by_node.iter().any(|&capacity| capacity != tier.capacity);
        tier.by_node = if differ { by_node } else { vec![] };
    }
    system
}

/// Returns the described system with the tiers that the engine has: with the described rates where
/// the description has such a tier, with defaults elsewhere.
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
            Some(known) => TierModel {
                read: known.read.clone(),
                write: known.write.clone(),
                threads: known.threads,
                ..tier
            },
            None => tier,
        });
    System { tiers: tiers.collect(), nodes: 1, ranks_per_node: 1, ..described.clone() }
}
