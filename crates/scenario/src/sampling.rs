//! How an epoch's samples are chosen and ordered: a permutation of all, a draw by weights, or a
//! mixture of parts of the dataset.
//!
//! The draws are those of `belady-control`'s samplers, strided over ranks as torch's
//! `DistributedSampler` does. This file only turns the keys of a scenario into their weights.

use std::sync::Arc;

use belady_control::sampler::orders::{
    MixtureOrders, MixturePart, OrderProvider, RankShare, Replacement, WeightedOrders,
};
use belady_control::sampler::permutation::Permutation;
use belady_control::sampler::{Order, SamplerError, Scheme};

use super::checks::{choice, needed, whole};
use super::raw::{RawPart, RawTraining, RawWeights};
use super::{ScenarioError, Training};

/// Above this the largest weight is so many times the smallest that nothing else is drawn.
const MOST_EXPONENT: f64 = 10.0;

/// An epoch's samples.
#[derive(Clone, Debug)]
pub enum Sampling {
    /// Every sample once, in this order.
    All(Order),
    /// Samples drawn at random.
    Drawn {
        /// How many an epoch; as many as the dataset has unless given.
        length: Option<u32>,
        /// How they are drawn.
        by: DrawBy,
    },
}

/// How samples are drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum DrawBy {
    /// Each with a probability in proportion to its weight.
    Weights {
        /// Of all samples.
        weights: SampleWeights,
        /// Whether a sample can be drawn again in an epoch.
        replacement: Replacement,
    },
    /// Each from a part of the dataset that is drawn by weight.
    Parts(Vec<DatasetPart>),
}

/// How the samples' weights are spread.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleWeights {
    /// All alike.
    Uniform,
    /// The k-th heaviest sample weighs k^-exponent; which one that is depends on the seed.
    Zipf {
        /// 0 weighs all samples alike.
        exponent: f64,
    },
    /// Classes of these fractions of the dataset, laid end to end; each is drawn equally often.
    Classes {
        /// Of the dataset, by class.
        fractions: Vec<f64>,
    },
}

/// A part of the dataset: the samples that follow those of the part before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatasetPart {
    /// Of the dataset.
    pub fraction: f64,
    /// In proportion to the others'.
    pub weight: f64,
}

/// Checks the keys of `[training]` that define what is drawn.
pub fn sampling(raw: &RawTraining, scheme: Scheme) -> Result<Sampling, ScenarioError> {
    #[derive(Clone)]
    enum OrderChoice {
        All(Order),
        Weighted,
        Mixture,
    }
    let kind = match &raw.order {
        None => OrderChoice::All(Order::Torch),
        Some(text) => choice(
            "training.order",
            text,
            &[
                ("torch", OrderChoice::All(Order::Torch)),
                ("permutation", OrderChoice::All(Order::Permutation)),
                ("sequential", OrderChoice::All(Order::Sequential)),
                ("weighted", OrderChoice::Weighted),
                ("mixture", OrderChoice::Mixture),
            ],
        )?,
    };
    let weighted = matches!(kind, OrderChoice::Weighted);
    let mixture = matches!(kind, OrderChoice::Mixture);
    let given = [
        ("length", raw.length.is_some(), weighted || mixture, "weighted` or `mixture"),
        ("replacement", raw.replacement.is_some(), weighted, "weighted"),
        ("weights", raw.weights.is_some(), weighted, "weighted"),
        ("part", !raw.part.is_empty(), mixture, "mixture"),
    ];
    if let Some((key, _, _, order)) = given.into_iter().find(|&(_, given, fits, _)| given && !fits)
    {
        return Err(ScenarioError::invalid(
            format!("training.{key}"),
            format!("is for `training.order` `{order}`; leave it out or set that order"),
        ));
    }
    let by = match kind {
        OrderChoice::All(order) => return Ok(Sampling::All(order)),
        OrderChoice::Weighted => DrawBy::Weights {
            weights: raw.weights.as_ref().map_or(Ok(SampleWeights::Uniform), weights)?,
            replacement: match raw.replacement {
                Some(false) => Replacement::Without,
                Some(true) | None => Replacement::With,
            },
        },
        OrderChoice::Mixture => DrawBy::Parts(parts(&raw.part)?),
    };
    if scheme != Scheme::Uniform {
        return Err(ScenarioError::invalid(
            "training.scheme",
            "must be `uniform` where samples are drawn: draws are strided over ranks",
        ));
    }
    let length = raw.length.map(|length| whole("training.length", length, 1, u32::MAX.into()));
    Ok(Sampling::Drawn { length: length.transpose()?.map(|length| length as u32), by })
}

fn weights(raw: &RawWeights) -> Result<SampleWeights, ScenarioError> {
    #[derive(Clone)]
    enum WeightsChoice {
        Uniform,
        Zipf,
        Classes,
    }
    let kind = needed(raw.kind.as_ref(), "training.weights.kind", ": uniform, zipf or classes")?;
    let kind = choice(
        "training.weights.kind",
        kind,
        &[
            ("uniform", WeightsChoice::Uniform),
            ("zipf", WeightsChoice::Zipf),
            ("classes", WeightsChoice::Classes),
        ],
    )?;
    let (zipf, classes) =
        (matches!(kind, WeightsChoice::Zipf), matches!(kind, WeightsChoice::Classes));
    let stray = [
        ("exponent", raw.exponent.is_some() && !zipf, "zipf"),
        ("fractions", raw.fractions.is_some() && !classes, "classes"),
    ];
    if let Some((key, _, kind)) = stray.into_iter().find(|&(_, stray, _)| stray) {
        return Err(ScenarioError::invalid(
            format!("training.weights.{key}"),
            format!("is for weights of kind `{kind}`; leave it out or set that kind"),
        ));
    }
    Ok(match kind {
        WeightsChoice::Uniform => SampleWeights::Uniform,
        WeightsChoice::Zipf => {
            let exponent = raw.exponent.unwrap_or(1.0);
            if !(0.0..=MOST_EXPONENT).contains(&exponent) {
                return Err(ScenarioError::invalid(
                    "training.weights.exponent",
                    format!("is {exponent}; it must be from 0 to {MOST_EXPONENT}"),
                ));
            }
            SampleWeights::Zipf { exponent }
        }
        WeightsChoice::Classes => {
            let key = "training.weights.fractions";
            let fractions = needed(raw.fractions.clone(), key, ", such as [0.9, 0.09, 0.01]")?;
            check_fractions(key, &fractions)?;
            SampleWeights::Classes { fractions }
        }
    })
}

fn parts(raw: &[RawPart]) -> Result<Vec<DatasetPart>, ScenarioError> {
    if raw.is_empty() {
        let hint = ": a mixture needs at least one, each with a `fraction` and a `weight`";
        return Err(ScenarioError::Missing { key: "training.part".to_owned(), hint });
    }
    let parts = raw.iter().enumerate().map(|(at, raw)| {
        let key = format!("training.part.{at}.weight");
        let weight = raw.weight.unwrap_or(1.0);
        if !weight.is_finite() || weight < 0.0 {
            let reason = format!("is {weight}; a weight is a number that is not negative");
            return Err(ScenarioError::invalid(key, reason));
        }
        let fraction =
            needed(raw.fraction, &format!("training.part.{at}.fraction"), " (of the dataset)")?;
        Ok(DatasetPart { fraction, weight })
    });
    let parts = parts.collect::<Result<Vec<DatasetPart>, _>>()?;
    if parts.iter().all(|part| part.weight == 0.0) {
        let reason = "has no weight above 0, so nothing can be drawn";
        return Err(ScenarioError::invalid("training.part", reason));
    }
    let fractions: Vec<f64> = parts.iter().map(|part| part.fraction).collect();
    check_fractions("training.part", &fractions)?;
    Ok(parts)
}

/// Checks fractions of one dataset: each above 0, together at most 1.
fn check_fractions(key: &str, fractions: &[f64]) -> Result<(), ScenarioError> {
    if let Some(fraction) = fractions.iter().find(|&&one| !(one > 0.0 && one <= 1.0)) {
        let reason = format!("has a fraction of {fraction}; a fraction is above 0 and at most 1");
        return Err(ScenarioError::invalid(key, reason));
    }
    let sum: f64 = fractions.iter().sum();
    if fractions.is_empty() || sum > 1.0 + 1e-9 {
        let reason =
            format!("has fractions that sum to {sum}; they must sum to at most 1, and not 0");
        return Err(ScenarioError::invalid(key, reason));
    }
    Ok(())
}

impl Sampling {
    /// Returns the samples of all ranks in an epoch, before padding and dropping.
    pub fn length(&self, samples: u32) -> u32 {
        match self {
            Self::All(_) | Self::Drawn { length: None, .. } => samples,
            Self::Drawn { length: Some(length), .. } => *length,
        }
    }

    /// Returns the order of a job.
    ///
    /// # Errors
    /// If the draws are impossible with that many samples or ranks.
    pub fn order(
        &self,
        training: &Training,
        samples: u32,
        ranks: u32,
    ) -> Result<Order, ScenarioError> {
        let by = match self {
            Self::All(order) => return Ok(order.clone()),
            Self::Drawn { by, .. } => by,
        };
        let share = RankShare {
            rank: 0,
            ranks,
            batch: training.batch / ranks,
            sampler_drop_last: training.sampler_drop_last,
            drop_last: training.drop_last,
        };
        let length = self.length(samples);
        if training.sampler_drop_last && length < ranks {
            let reason = format!("leaves nothing of {length} samples for {ranks} ranks");
            return Err(ScenarioError::invalid("training.sampler_drop_last", reason));
        }
        let seed = training.seed;
        let refused = |key: &'static str| {
            move |error: SamplerError| {
                ScenarioError::invalid(key, format!("cannot be used: {error}"))
            }
        };
        let orders: Arc<dyn OrderProvider> = match by {
            DrawBy::Weights { weights, replacement } => {
                let weights = weights.of(samples, seed);
                let orders = WeightedOrders::new(&weights, length, *replacement, seed, share);
                Arc::new(orders.map_err(refused("training.length"))?)
            }
            DrawBy::Parts(parts) => {
                let counts = counts(parts.iter().map(|part| part.fraction), samples);
                let parts: Vec<MixturePart> = counts
                    .zip(parts)
                    .map(|(samples, part)| MixturePart { samples, weight: part.weight })
                    .collect();
                let orders = MixtureOrders::new(&parts, length, seed, share);
                Arc::new(orders.map_err(refused("training.part"))?)
            }
        };
        Ok(Order::Provided(orders))
    }
}

impl SampleWeights {
    /// The weight of each sample.
    fn of(&self, samples: u32, seed: u64) -> Vec<f64> {
        match self {
            Self::Uniform => vec![1.0; samples as usize],
            Self::Zipf { exponent } => {
                let places = Permutation::new(u64::from(samples), seed, 0);
                (0..u64::from(samples))
                    .map(|sample| (1.0 + places.forward(sample) as f64).powf(-exponent))
                    .collect()
            }
            Self::Classes { fractions } => {
                let mut weights = vec![0.0; samples as usize];
                let mut first = 0;
                for count in counts(fractions.iter().copied(), samples) {
                    let class = &mut weights[first..first + count as usize];
                    class.fill(1.0 / f64::from(count.max(1)));
                    first += count as usize;
                }
                weights
            }
        }
    }
}

/// Fractions as counts of samples; they end where the sum of the fractions ends.
fn counts(fractions: impl Iterator<Item = f64>, samples: u32) -> impl Iterator<Item = u32> {
    let (mut sum, mut before) = (0.0, 0);
    fractions.map(move |fraction| {
        sum += fraction;
        let end = ((sum * f64::from(samples)).round() as u32).min(samples);
        let count = end - before;
        before = end;
        count
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_cover_the_dataset_without_gap_or_overlap() {
        let of = |fractions: &[f64], samples| {
            counts(fractions.iter().copied(), samples).collect::<Vec<_>>()
        };
        assert_eq!(of(&[0.5, 0.25, 0.25], 10), [5, 3, 2]);
        assert_eq!(of(&[1.0 / 3.0; 3], 100).iter().sum::<u32>(), 100);
        assert_eq!(of(&[0.1], 10), [1]);
    }

    #[test]
    fn classes_weigh_alike_and_zipf_follows_its_exponent() {
        let classes = SampleWeights::Classes { fractions: vec![0.9, 0.1] }.of(100, 0);
        let sum = |range: std::ops::Range<usize>| classes[range].iter().sum::<f64>();
        assert!((sum(0..90) - 1.0).abs() < 1e-9 && (sum(90..100) - 1.0).abs() < 1e-9);
        let mut zipf = SampleWeights::Zipf { exponent: 2.0 }.of(50, 3);
        assert_ne!(zipf, SampleWeights::Zipf { exponent: 2.0 }.of(50, 4));
        zipf.sort_by(|a, b| b.total_cmp(a));
        assert_eq!((zipf[0], zipf[1], zipf[9]), (1.0, 0.25, 0.01));
    }
}
