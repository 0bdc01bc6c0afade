//! Options as typed become options as validated. Each check names the key it
//! speaks of; the first that fails ends it.

use std::path::Path;

use belady_control::model::curve::CurveError;
use belady_control::model::{
    Bytes, Curve, Pipeline, Rate, Readers, Seconds, Sharing, Source, System, Tier,
};
use belady_control::policy::{Availability, PolicyKind};
use belady_control::sampler::Scheme;

use super::dataset::{Dataset, Distribution, Origin, Synthetic};
use super::raw::{
    Quantity, RawCapacity, RawCluster, RawCurve, RawDataset, RawPoint, RawPolicy, RawScenario,
    RawSource, RawTier, RawTraining, Whole,
};
use super::schema::nearest;
use super::{MOST_BYTES, PolicySpec, Scenario, ScenarioError, Training, order, system_file};

/// Far more than any machine has; keeps per-rank and per-thread state allocatable.
const MOST_RANKS: i64 = 1 << 20;
/// A node's number and one for nobody have to fit two bytes in the simulator's indices.
const MOST_NODES: i64 = u16::MAX as i64 - 1;
/// Readers that the source's curve is tabled for.
const MOST_READERS: i64 = 1 << 24;
/// Every epoch has a line in the outcome.
const MOST_EPOCHS: i64 = 1_000_000;
/// Steps of a run are numbered by `u32`; so many take days to simulate.
const MOST_STEPS: u64 = 1 << 31;
pub const MOST_THREADS: i64 = 1 << 16;
/// Tiers are numbered by `u8`; nobody has more kinds of storage than this.
const MOST_TIERS: usize = 16;
const MOST_SAMPLES: i64 = u32::MAX as i64;
/// Below this a simulated run outlasts any number of seconds worth printing.
const SLOWEST: Rate = Rate(1.0);

pub fn scenario(raw: RawScenario, name: &str, folder: &Path) -> Result<Scenario, ScenarioError> {
    let dataset = dataset(&raw.dataset, folder)?;
    let training = training(&raw.training)?;
    system_file::check_local(&raw.cluster)?;
    let system = system(raw.cluster)?;
    let policies = policies(raw.policy, &system)?;
    let ranks = system.ranks();
    match training.scheme {
        Scheme::Uniform | Scheme::Parts if training.batch % ranks != 0 => {
            return Err(ScenarioError::invalid(
                "training.batch",
                format!(
                    "is {}, which {ranks} ranks cannot share equally: make it a multiple of \
                     {ranks}, or choose the scheme `contiguous`",
                    training.batch
                ),
            ));
        }
        Scheme::Contiguous | Scheme::Imbalanced if training.batch < ranks => {
            return Err(ScenarioError::invalid(
                "training.batch",
                format!("is {}, fewer than the {ranks} ranks that share it", training.batch),
            ));
        }
        _ => {}
    }
    if let Origin::Synthetic(synthetic) = &dataset.origin {
        sample_count(synthetic.samples, &dataset, &training)?;
    }
    let name = raw.name.filter(|name| !name.trim().is_empty()).unwrap_or_else(|| name.to_owned());
    Ok(Scenario { name, dataset, training, system, policies })
}

/// What depends on how many samples there are, which a directory only tells later.
pub fn sample_count(
    samples: u32,
    dataset: &Dataset,
    training: &Training,
) -> Result<(), ScenarioError> {
    let length = training.sampling.length(samples);
    if training.drop_last && training.batch > length {
        return Err(ScenarioError::invalid(
            "training.batch",
            format!(
                "is {}, but an epoch has {length} samples: with `drop_last` no batch is left",
                training.batch
            ),
        ));
    }
    let steps = u64::from(length.div_ceil(training.batch)) * u64::from(training.epochs);
    if steps > MOST_STEPS {
        return Err(ScenarioError::invalid(
            "training.epochs",
            format!("is {}, which makes {steps} steps; {MOST_STEPS} is the most", training.epochs),
        ));
    }
    if let Some(files) = dataset.files.filter(|&files| files > samples) {
        return Err(ScenarioError::invalid(
            "dataset.files",
            format!("is {files}, more files than the {samples} samples in them"),
        ));
    }
    Ok(())
}

fn dataset(raw: &RawDataset, folder: &Path) -> Result<Dataset, ScenarioError> {
    let files = raw
        .files
        .map(|files| whole("dataset.files", files, 1, MOST_SAMPLES))
        .transpose()?
        .map(|files| files as u32);
    let read_size = raw.read_size.map(|Quantity(size)| size);
    if read_size == Some(Bytes::ZERO) {
        return Err(ScenarioError::invalid("dataset.read_size", "must be at least 1 byte"));
    }
    let origin = match &raw.path {
        Some(path) => {
            let given = [
                ("samples", raw.samples.is_some()),
                ("mean", raw.mean.is_some()),
                ("stddev", raw.stddev.is_some()),
                ("distribution", raw.distribution.is_some()),
                ("min", raw.min.is_some()),
                ("max", raw.max.is_some()),
                ("total", raw.total.is_some()),
                ("clamp", raw.clamp.is_some()),
            ];
            if let Some((key, _)) = given.into_iter().find(|&(_, given)| given) {
                return Err(ScenarioError::invalid(
                    format!("dataset.{key}"),
                    "contradicts `dataset.path`: sizes are either drawn or those of real files",
                ));
            }
            Origin::Directory(folder.join(path))
        }
        None => Origin::Synthetic(synthetic(raw)?),
    };
    Ok(Dataset { origin, files, read_size })
}

fn synthetic(raw: &RawDataset) -> Result<Synthetic, ScenarioError> {
    let bytes = |quantity: &Option<Quantity<Bytes>>| quantity.as_ref().map(|&Quantity(size)| size);
    let samples = needed(raw.samples, "dataset.samples", " (or give `dataset.path`)")?;
    let samples = whole("dataset.samples", samples, 1, MOST_SAMPLES)? as u32;
    let (min, max, total) = (bytes(&raw.min), bytes(&raw.max), bytes(&raw.total));
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        return Err(ScenarioError::invalid(
            "dataset.min",
            format!("is {min}, more than `dataset.max`, which is {max}"),
        ));
    }
    if max == Some(Bytes::ZERO) {
        return Err(ScenarioError::invalid("dataset.max", "must be at least 1 byte"));
    }
    let mean = match (bytes(&raw.mean), total) {
        (Some(mean), _) => mean,
        (None, Some(total)) => Bytes(total.0 / u64::from(samples)),
        (None, None) => {
            let hint = " (or give `dataset.total`, or `dataset.path`)";
            return Err(ScenarioError::Missing { key: "dataset.mean".to_owned(), hint });
        }
    };
    if let Some(total) = total.filter(|total| total.0 < u64::from(samples)) {
        return Err(ScenarioError::invalid(
            "dataset.total",
            format!("is {total}: less than a byte for each of {samples} samples"),
        ));
    }
    if mean == Bytes::ZERO {
        return Err(ScenarioError::invalid("dataset.mean", "must be at least 1 byte"));
    }
    let stddev = bytes(&raw.stddev).unwrap_or(Bytes::ZERO);
    let typed = raw
        .distribution
        .as_ref()
        .map(|text| {
            choice(
                "dataset.distribution",
                text,
                &[
                    ("normal", Distribution::Normal),
                    ("lognormal", Distribution::Lognormal),
                    ("uniform", Distribution::Uniform),
                    ("constant", Distribution::Constant),
                ],
            )
        })
        .transpose()?;
    let distribution = match typed {
        Some(Distribution::Constant) if stddev > Bytes::ZERO => {
            return Err(ScenarioError::invalid(
                "dataset.stddev",
                format!("is {stddev}, but `dataset.distribution` is \"constant\""),
            ));
        }
        _ if stddev == Bytes::ZERO => Distribution::Constant,
        other => other.unwrap_or(Distribution::Normal),
    };
    let clamp = raw.clamp.unwrap_or(false);
    // Clipping moves the mean to a bound; redrawing cannot, nor can a constant move.
    if !clamp || distribution == Distribution::Constant {
        if let Some(min) = min.filter(|&min| min > mean) {
            return Err(ScenarioError::invalid(
                "dataset.min",
                format!("is {min}, more than the mean, which is {mean}"),
            ));
        }
        if let Some(max) = max.filter(|&max| max < mean) {
            return Err(ScenarioError::invalid(
                "dataset.max",
                format!("is {max}, less than the mean, which is {mean}"),
            ));
        }
    }
    // Clipping leaves the total to the draws, so what bounds them bounds the total.
    let largest = u128::from(mean.0.max(stddev.0)) * u128::from(samples);
    let most = largest.max(u128::from(total.unwrap_or_default().0));
    if most.saturating_mul(64) > MOST_BYTES {
        return Err(ScenarioError::invalid(
            if total.is_some_and(|total| u128::from(total.0) == most) {
                "dataset.total"
            } else if mean >= stddev {
                "dataset.mean"
            } else {
                "dataset.stddev"
            },
            "makes a dataset of more than 64 PiB",
        ));
    }
    Ok(Synthetic { samples, mean, stddev, distribution, min, max, total, clamp })
}

fn training(raw: &RawTraining) -> Result<Training, ScenarioError> {
    let epochs = needed(raw.epochs, "training.epochs", ": a simulation has to end")?;
    let batch = needed(raw.batch, "training.batch", "")?;
    let scheme = raw.scheme.as_ref().map_or(Ok(Scheme::Uniform), |text| {
        choice(
            "training.scheme",
            text,
            &[
                ("uniform", Scheme::Uniform),
                ("parts", Scheme::Parts),
                ("contiguous", Scheme::Contiguous),
                ("whole", Scheme::Whole),
                ("imbalanced", Scheme::Imbalanced),
            ],
        )
    })?;
    Ok(Training {
        epochs: whole("training.epochs", epochs, 1, MOST_EPOCHS)? as u32,
        batch: whole("training.batch", batch, 1, u32::MAX.into())? as u32,
        drop_last: raw.drop_last.unwrap_or(false),
        sampler_drop_last: raw.sampler_drop_last.unwrap_or(false),
        scheme,
        sampling: order::sampling(raw, scheme)?,
        seed: whole("training.seed", raw.seed.unwrap_or(Whole(0)), 0, i64::MAX)? as u64,
    })
}

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
        compute: rate("cluster.compute", raw.compute)?,
        preprocess: rate("cluster.preprocess", raw.preprocess)?,
        network: rate("cluster.network", raw.network)?,
        source: source(raw.source)?,
        tiers: tiers(raw.tier, nodes as u32)?,
        pipeline,
    };
    let held = |tier: &Tier| -> u128 {
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

fn source(raw: RawSource) -> Result<Source, ScenarioError> {
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
    Ok(Source {
        link: rate("cluster.source.link", raw.link)?,
        sharing,
        readers,
        throughput: curve("cluster.source.throughput", raw.throughput)?,
    })
}

/// Tier 0 stays; of the others those without capacity are left out, so that a
/// sweep can take a tier away.
fn tiers(raw: Vec<RawTier>, nodes: u32) -> Result<Vec<Tier>, ScenarioError> {
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
                format!("is `{name}`: `--set` could not name it; use a word without dots"),
            ));
        }
        if names.contains(&name) {
            return Err(ScenarioError::invalid(at("name"), format!("is `{name}` a second time")));
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
        tiers.push(Tier { name, capacity, by_node, threads, read, write });
    }
    Ok(tiers)
}

/// What every node has at the least, and what each has where they differ. A list that is shorter
/// than the number of nodes is repeated.
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

fn policies(raw: Vec<RawPolicy>, system: &System) -> Result<Vec<PolicySpec>, ScenarioError> {
    if raw.is_empty() {
        return Ok(PolicyKind::ALL.into_iter().map(PolicySpec::from).collect());
    }
    let mut specs: Vec<PolicySpec> = Vec::with_capacity(raw.len());
    for (index, raw) in raw.into_iter().enumerate() {
        let spec = policy(index, raw, system)?;
        if specs.iter().any(|other| other.label == spec.label) {
            return Err(ScenarioError::invalid(
                format!("policy.{index}.label"),
                format!("is `{}` a second time: give each its own label", spec.label),
            ));
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn policy(index: usize, raw: RawPolicy, system: &System) -> Result<PolicySpec, ScenarioError> {
    let name = needed(raw.name, &format!("policy.{index}.name"), "")?;
    let default = policy_by_name(&format!("policy.{index}.name"), &name)?;
    let label = raw.label.unwrap_or_else(|| name.clone());
    let at = |key: &str| format!("policy.{label}.{key}");
    // Each arm takes the options its policy has; one that is left is not its own.
    let mut options = Options {
        in_order: raw.in_order,
        cleanup_read: raw.cleanup_read,
        availability: raw.availability,
        threads: raw.threads,
        eviction: raw.eviction,
        tau: raw.tau,
        loading_threads: raw.loading_threads,
    };
    let kind = match default {
        PolicyKind::Staging { loading_threads } => PolicyKind::Staging {
            loading_threads: match options.loading_threads.take() {
                None => loading_threads,
                Some(threads) => {
                    let most = i64::from(system.staging_threads());
                    Some(whole(&at("loading_threads"), threads, 1, most)? as u32)
                }
            },
        },
        PolicyKind::Nopfs { in_order, cleanup_read, availability } => PolicyKind::Nopfs {
            in_order: options.in_order.take().unwrap_or(in_order),
            cleanup_read: options.cleanup_read.take().unwrap_or(cleanup_read),
            availability: options.availability.take().map_or(Ok(availability), |text| {
                choice(
                    &at("availability"),
                    &text,
                    &[("heuristic", Availability::Heuristic), ("known", Availability::Known)],
                )
            })?,
        },
        PolicyKind::Lobster { threads, eviction, tau } => PolicyKind::Lobster {
            threads: options.threads.take().unwrap_or(threads),
            eviction: options.eviction.take().unwrap_or(eviction),
            tau: options.tau.take().map_or(tau, |Quantity(tau)| tau),
        },
        other => other,
    };
    match options.left() {
        Some(key) => Err(ScenarioError::invalid(at(key), format!("is not an option of `{name}`"))),
        None => Ok(PolicySpec { kind, label }),
    }
}

struct Options {
    in_order: Option<bool>,
    cleanup_read: Option<bool>,
    availability: Option<String>,
    threads: Option<bool>,
    eviction: Option<bool>,
    tau: Option<Quantity<Seconds>>,
    loading_threads: Option<Whole>,
}

impl Options {
    fn left(&self) -> Option<&'static str> {
        [
            ("in_order", self.in_order.is_some()),
            ("cleanup_read", self.cleanup_read.is_some()),
            ("availability", self.availability.is_some()),
            ("threads", self.threads.is_some()),
            ("eviction", self.eviction.is_some()),
            ("tau", self.tau.is_some()),
            ("loading_threads", self.loading_threads.is_some()),
        ]
        .into_iter()
        .find_map(|(key, given)| given.then_some(key))
    }
}

pub fn policy_by_name(key: &str, name: &str) -> Result<PolicyKind, ScenarioError> {
    PolicyKind::by_name(name).ok_or_else(|| {
        let known = PolicyKind::ALL.into_iter().chain(PolicyKind::ON_REQUEST);
        let names: Vec<&str> = known.map(|kind| kind.name()).collect();
        ScenarioError::UnknownPolicy {
            key: key.to_owned(),
            name: name.to_owned(),
            nearest: nearest(name, names).map_or("belady", |(name, _)| name).to_owned(),
        }
    })
}

pub fn needed<T>(value: Option<T>, key: &str, hint: &'static str) -> Result<T, ScenarioError> {
    value.ok_or_else(|| ScenarioError::Missing { key: key.to_owned(), hint })
}

pub fn whole(key: &str, Whole(value): Whole, min: i64, max: i64) -> Result<i64, ScenarioError> {
    if value < min {
        return Err(ScenarioError::invalid(key, format!("is {value}; it must be at least {min}")));
    }
    if value > max {
        return Err(ScenarioError::invalid(key, format!("is {value}; it must be at most {max}")));
    }
    Ok(value)
}

fn rate(key: &str, value: Option<Quantity<Rate>>) -> Result<Rate, ScenarioError> {
    let Quantity(rate) = needed(value, key, "")?;
    if rate < SLOWEST {
        return Err(ScenarioError::invalid(key, format!("is {rate}; it must be at least 1 B/s")));
    }
    Ok(rate)
}

fn curve(key: &str, points: Option<RawCurve>) -> Result<Curve, ScenarioError> {
    let points = needed(points, key, "")?
        .into_iter()
        .map(|RawPoint(count, value)| {
            let count = whole(key, count, 1, u32::MAX.into())? as u32;
            Ok((count, rate(key, Some(value))?))
        })
        .collect::<Result<Vec<_>, ScenarioError>>()?;
    Curve::new(points).map_err(|error: CurveError| ScenarioError::invalid(key, error.to_string()))
}

pub fn choice<T: Clone>(key: &str, text: &str, values: &[(&str, T)]) -> Result<T, ScenarioError> {
    if let Some((_, value)) = values.iter().find(|(name, _)| *name == text) {
        return Ok(value.clone());
    }
    let names: Vec<&str> = values.iter().map(|&(name, _)| name).collect();
    let near = nearest(text, names.iter().copied()).map_or("", |(name, _)| name);
    Err(ScenarioError::invalid(
        key,
        format!("is `{text}`; did you mean `{near}`? It takes one of {}", names.join(", ")),
    ))
}
