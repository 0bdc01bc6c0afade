//! Options as typed become options as validated. Each error names its key; the first one ends the
//! checks.

use std::path::Path;

use belady_control::model::Bytes;
use belady_control::sampler::Scheme;

use super::checks::{choice, needed, whole};
use super::dataset::{ScenarioDataset, SizeDistribution, SizeOrigin, SyntheticDataset};
use super::raw::{Quantity, RawDataset, RawScenario, RawTraining, Whole};
use super::{MOST_BYTES, Scenario, ScenarioError, Training, cluster, policies, sampling};

/// Every epoch has a line in the outcome.
const MOST_EPOCHS: i64 = 1_000_000;
/// Steps of a run are numbered by `u32`; so many take days to simulate.
const MOST_STEPS: u64 = 1 << 31;
const MOST_SAMPLES: i64 = u32::MAX as i64;

/// Returns the scenario that the tables describe.
pub fn scenario(raw: RawScenario, name: &str, folder: &Path) -> Result<Scenario, ScenarioError> {
    let dataset = dataset(&raw.dataset, folder)?;
    let training = training(&raw.training)?;
    cluster::check_local(&raw.cluster)?;
    let system = cluster::system(raw.cluster)?;
    let policies = policies::policies(raw.policy, &system)?;
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
    if let SizeOrigin::Synthetic(synthetic) = &dataset.origin {
        sample_count(synthetic.samples, &dataset, &training)?;
    }
    let name = raw.name.filter(|name| !name.trim().is_empty()).unwrap_or_else(|| name.to_owned());
    Ok(Scenario { name, dataset, training, system, policies })
}

/// Checks what depends on the number of samples, which is known late for a directory.
pub fn sample_count(
    samples: u32,
    dataset: &ScenarioDataset,
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

fn dataset(raw: &RawDataset, folder: &Path) -> Result<ScenarioDataset, ScenarioError> {
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
            SizeOrigin::Directory(folder.join(path))
        }
        None => SizeOrigin::Synthetic(synthetic(raw)?),
    };
    Ok(ScenarioDataset { origin, files, read_size })
}

fn synthetic(raw: &RawDataset) -> Result<SyntheticDataset, ScenarioError> {
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
                    ("normal", SizeDistribution::Normal),
                    ("lognormal", SizeDistribution::Lognormal),
                    ("uniform", SizeDistribution::Uniform),
                    ("constant", SizeDistribution::Constant),
                ],
            )
        })
        .transpose()?;
    let distribution = match typed {
        Some(SizeDistribution::Constant) if stddev > Bytes::ZERO => {
            return Err(ScenarioError::invalid(
                "dataset.stddev",
                format!("is {stddev}, but `dataset.distribution` is \"constant\""),
            ));
        }
        _ if stddev == Bytes::ZERO => SizeDistribution::Constant,
        other => other.unwrap_or(SizeDistribution::Normal),
    };
    let clamp = raw.clamp.unwrap_or(false);
    // Clipping moves the mean to a bound; redrawing cannot, nor can a constant move.
    if !clamp || distribution == SizeDistribution::Constant {
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
    Ok(SyntheticDataset { samples, mean, stddev, distribution, min, max, total, clamp })
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
        sampling: sampling::sampling(raw, scheme)?,
        seed: whole("training.seed", raw.seed.unwrap_or(Whole(0)), 0, i64::MAX)? as u64,
    })
}
