//! Checks the `[cluster]` tables of scenario and system files.

use belady_control::model::{
    Bytes, ComputeCost, Pipeline, Portfolio, PreprocessModel, Rate, Readers, Seconds, Sharing,
    SourceModel, System, TierModel,
};

use super::checks::{choice, curve, needed, rate, whole};
use super::raw::{
    Quantity, RawCapacity, RawCluster, RawPreprocess, RawSnapshot, RawSource, RawThroughput,
    RawTier, Whole,
};
use super::{MOST_BYTES, ScenarioError};

/// A rate that no device reaches, for devices whose rate is not given.
pub const UNBOUNDED: Rate = Rate(1e15);

/// Far more than any machine has; keeps per-rank and per-thread state allocatable.
const MOST_RANKS: i64 = 1 << 20;
/// A node's number, and one for none, have to fit two bytes in the simulator's indices.
const MOST_NODES: i64 = u16::MAX as i64 - 1;
/// The simulator makes a table of the source's rate for each number of readers.
const MOST_READERS: i64 = 1 << 24;
const MOST_THREADS: i64 = 1 << 16;
/// As long as a gigabyte takes at the slowest rate.
const LONGEST_COMPUTE: Seconds = Seconds(1e9);
/// Tiers are numbered by `u8`; no machine has more kinds of storage than this.
const MOST_TIERS: usize = 16;

/// Returns the system that the tables describe.
pub fn system(raw: RawCluster) -> Result<System, ScenarioError> {
    let nodes = needed(raw.nodes, "cluster.nodes", "")?;
    let nodes = whole("cluster.nodes", nodes, 1, MOST_NODES)?;
    let ranks_per_node = raw.ranks_per_node.unwrap_or(Whole(1));
    let ranks_per_node = whole("cluster.ranks_per_node", ranks_per_node, 1, MOST_RANKS)?;
    if nodes * ranks_per_node > MOST_RANKS {
        return Err(ScenarioError::invalid(
            "cluster.ranks_per_node",
            format!(
                "is {ranks_per_node}, which on {nodes} nodes makes more than {MOST_RANKS} ranks"
            ),
        ));
    }
    let pipeline = raw.pipeline.map_or(Ok(Pipeline::Overlapped), |text| {
        choice(
            "cluster.pipeline",
            &text,
            &[("overlapped", Pipeline::Overlapped), ("serial", Pipeline::Serial)],
        )
    })?;
    let system = System {
        nodes: nodes as u32,
        ranks_per_node: ranks_per_node as u32,
        compute: compute(raw.compute, raw.compute_per_sample)?,
        preprocess: preprocess(raw.preprocess)?,
        network: rate("cluster.network", raw.network)?,
        source: source(raw.source)?,
        tiers: tiers(raw.tier, nodes as u32)?,
        pipeline,
    };
    let held = |tier: &TierModel| -> u128 {
        (0..system.nodes).map(|node| u128::from(tier.capacity_of(node).0)).sum()
    };
    if system.tiers.iter().map(held).sum::<u128>() > MOST_BYTES {
        return Err(ScenarioError::invalid(
            "cluster.tier",
            "holds more than 4 EiB over all nodes: check the capacities",
        ));
    }
    let threads: i64 = system.tiers.iter().map(|tier| i64::from(tier.threads)).sum();
    if threads * nodes > MOST_READERS {
        return Err(ScenarioError::invalid(
            "cluster.tier",
            format!("has {threads} threads a node, over all nodes more than {MOST_READERS}"),
        ));
    }
    Ok(system)
}

/// Bytes take no time where only the time of a sample is given.
fn compute(
    of_bytes: Option<Quantity<Rate>>,
    per_sample: Option<Quantity<Seconds>>,
) -> Result<ComputeCost, ScenarioError> {
    let key = "cluster.compute_per_sample";
    let Some(Quantity(per_sample)) = per_sample else {
        let hint = " (or give `cluster.compute_per_sample`)";
        let of_bytes = needed(of_bytes, "cluster.compute", hint)?;
        return rate("cluster.compute", Some(of_bytes)).map(ComputeCost::from);
    };
    if per_sample <= Seconds::ZERO {
        return Err(ScenarioError::invalid(key, "is zero; leave it out where only bytes count"));
    }
    if per_sample > LONGEST_COMPUTE {
        let reason = format!("is {} s; it must be at most {} s", per_sample.0, LONGEST_COMPUTE.0);
        return Err(ScenarioError::invalid(key, reason));
    }
    let of_bytes = of_bytes.map(|given| rate("cluster.compute", Some(given))).transpose()?;
    Ok(ComputeCost { rate: of_bytes.unwrap_or(Rate(f64::INFINITY)), per_sample })
}

fn preprocess(raw: Option<RawPreprocess>) -> Result<PreprocessModel, ScenarioError> {
    let key = "cluster.preprocess";
    let list = match needed(raw, key, "")? {
        RawPreprocess::PerThread(beta) => return rate(key, Some(beta)).map(PreprocessModel::from),
        RawPreprocess::Measured(list) => list,
    };
    let throughput = |(index, raw): (usize, RawThroughput)| {
        let at = |name: &str| format!("{key}.{index}.{name}");
        let Quantity(size) = needed(raw.size, &at("size"), "")?;
        Ok((size, curve(&at("throughput"), raw.throughput)?))
    };
    let models = list.into_iter().enumerate().map(throughput).collect::<Result<_, _>>()?;
    Portfolio::new(models)
        .map(PreprocessModel::Measured)
        .map_err(|error| ScenarioError::invalid(key, error.to_string()))
}

fn source(raw: RawSource) -> Result<SourceModel, ScenarioError> {
    let sharing = raw.sharing.map_or(Ok(Sharing::Aggregate), |text| {
        choice(
            "cluster.source.sharing",
            &text,
            &[("aggregate", Sharing::Aggregate), ("per-thread", Sharing::PerThread)],
        )
    })?;
    let readers = raw.readers.map_or(Ok(Readers::Nodes), |text| {
        choice(
            "cluster.source.readers",
            &text,
            &[("nodes", Readers::Nodes), ("threads", Readers::Threads)],
        )
    })?;
    Ok(SourceModel {
        link: rate("cluster.source.link", raw.link)?,
        sharing,
        readers,
        throughput: curve("cluster.source.throughput", raw.throughput)?,
    })
}

/// Tier 0 stays; of the others those without capacity are left out, so that a
/// sweep can take a tier away.
fn tiers(raw: Vec<RawTier>, nodes: u32) -> Result<Vec<TierModel>, ScenarioError> {
    if raw.is_empty() {
        let hint = ": tier 0 is the staging buffer, and no job runs without it";
        return Err(ScenarioError::Missing { key: "cluster.tier".to_owned(), hint });
    }
    if raw.len() > MOST_TIERS {
        return Err(ScenarioError::invalid(
            "cluster.tier",
            format!("has {} tiers; {MOST_TIERS} is the most", raw.len()),
        ));
    }
    let mut tiers = Vec::with_capacity(raw.len());
    let mut names: Vec<String> = Vec::with_capacity(raw.len());
    for (index, raw) in raw.into_iter().enumerate() {
        let at = |key: &str| format!("cluster.tier.{index}.{key}");
        let name = needed(raw.name, &at("name"), "")?;
        if name.is_empty() || name.contains('.') || name.parse::<usize>().is_ok() {
            return Err(ScenarioError::invalid(
                at("name"),
                format!("is `{name}`, which `--set` cannot address; use a word without dots"),
            ));
        }
        if names.contains(&name) {
            return Err(ScenarioError::invalid(
                at("name"),
                format!("is `{name}`, which another tier has already"),
            ));
        }
        names.push(name.clone());
        let at = |key: &str| format!("cluster.tier.{name}.{key}");
        let capacity = needed(raw.capacity, &at("capacity"), "")?;
        let (capacity, by_node) = capacities(&at("capacity"), capacity, nodes)?;
        let threads = needed(raw.threads, &at("threads"), "")?;
        let threads = whole(&at("threads"), threads, 1, MOST_THREADS)? as u32;
        let read = curve(&at("read"), raw.read)?;
        let write = match raw.write {
            None => read.clone(),
            write => curve(&at("write"), write)?,
        };
        if capacity == Bytes::ZERO && (index == 0 || by_node.is_empty()) {
            if index == 0 {
                return Err(ScenarioError::invalid(
                    at("capacity"),
                    "is zero: tier 0 is the staging buffer, through which every sample passes",
                ));
            }
            continue;
        }
        tiers.push(TierModel { name, capacity, by_node, threads, read, write });
    }
    Ok(tiers)
}

/// Returns the smallest capacity of all nodes, and each node's where they differ. A list that is
/// shorter than the number of nodes is repeated.
fn capacities(
    key: &str,
    raw: RawCapacity,
    nodes: u32,
) -> Result<(Bytes, Vec<Bytes>), ScenarioError> {
    let list = match raw {
        RawCapacity::Every(capacity) => return Ok((capacity, vec![])),
        RawCapacity::ByNode(list) => list,
    };
    if list.len() > nodes as usize {
        let reason =
            format!("lists {} capacities for {nodes} nodes; give one for each", list.len());
        return Err(ScenarioError::invalid(key, reason));
    }
    let by_node: Vec<Bytes> = list.iter().copied().cycle().take(nodes as usize).collect();
    let Some(&least) = by_node.iter().min() else {
        let reason = "is an empty list; give one capacity for each node";
        return Err(ScenarioError::invalid(key, reason));
    };
    let alike = by_node.iter().all(|&capacity| capacity == least);
    Ok((least, if alike { vec![] } else { by_node }))
}

/// Returns the threads that look up samples for other nodes. HDMLP calls the key
/// `distributed_threads`.
pub fn serving_threads(raw: &RawCluster) -> Result<Option<u32>, ScenarioError> {
    let (ours, theirs) = ("cluster.serving_threads", "cluster.distributed_threads");
    let checked = |key, given: Option<Whole>| {
        given.map(|threads| whole(key, threads, 1, MOST_THREADS)).transpose()
    };
    let (one, other) =
        (checked(ours, raw.serving_threads)?, checked(theirs, raw.distributed_threads)?);
    match (one, other) {
        (Some(one), Some(other)) if one != other => Err(ScenarioError::invalid(
            theirs,
            format!("is {other}, but `{ours}`, another name of it, is {one}; give one of them"),
        )),
        _ => Ok(one.or(other).map(|threads| threads as u32)),
    }
}

/// Checks the keys that only the engine on a real machine uses.
pub fn check_local(raw: &RawCluster) -> Result<(), ScenarioError> {
    serving_threads(raw)?;
    let empty = |path: &str| path.trim().is_empty();
    if matches!(&raw.snapshot, Some(RawSnapshot::In(directory)) if empty(directory)) {
        return Err(ScenarioError::invalid(
            "cluster.snapshot",
            "is empty; give a directory, or true or false",
        ));
    }
    for (index, tier) in raw.tier.iter().enumerate() {
        let Some(path) = &tier.path else { continue };
        let name = tier.name.clone().unwrap_or_else(|| index.to_string());
        let key = format!("cluster.tier.{name}.path");
        if index == 0 {
            return Err(ScenarioError::invalid(
                key,
                "is not allowed: the first tier is the staging buffer, which is in RAM",
            ));
        }
        if empty(path) {
            return Err(ScenarioError::invalid(key, "is empty; leave it out for a tier in RAM"));
        }
    }
    Ok(())
}
