//! How an epoch's samples are chosen and ordered: a permutation of all, a draw by weights, or a
//! mixture of parts of the dataset.
//!
//! Draws are those of `belady-control`'s samplers, dealt to ranks with a stride as torch's
//! `DistributedSampler` does; this file only turns what a scenario says into their weights.

use std::sync::Arc;

use belady_control::sampler::orders::{
    MixtureOrders, MixturePart, Orders, RankShare, Replacement, WeightedOrders,
};
use belady_control::sampler::permutation::Permutation;
use belady_control::sampler::{Order, SamplerError, Scheme};

use super::raw::{RawPart, RawTraining, RawWeights};
use super::validate::{choice, needed, whole};
use super::{ScenarioError, Training};

/// Above this the largest weight is so many times the smallest that nothing else is drawn.
const MOST_EXPONENT: f64 = 10.0;

/// An epoch's samples.
#[derive(Clone, Debug)]
pub enum Sampling {
    /// Every sample once, in this order.
    All(Order),
    /// So many an epoch, or as many as there are samples.
    Drawn { length: Option<u32>, by: Draw },
}

/// What a sample is drawn by.
#[derive(Clone, Debug, PartialEq)]
pub enum Draw {
    Weights { weights: Weights, replacement: Replacement },
    Parts(Vec<Part>),
}

/// How the samples' weights are spread.
#[derive(Clone, Debug, PartialEq)]
pub enum Weights {
    Uniform,
    /// The k-th heaviest sample weighs k^-exponent; which one that is depends on the seed.
    Zipf {
        exponent: f64,
    },
    /// Classes of these fractions of the dataset, laid end to end; each is drawn equally often.
    Classes {
        fractions: Vec<f64>,
    },
}

/// A part of the dataset: the samples that follow those of the part before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    pub fraction: f64,
    pub weight: f64,
}

/// Takes the keys of `[training]` that say what is drawn.
pub fn sampling(raw: &RawTraining, scheme: Scheme) -> Result<Sampling, ScenarioError> {
    #[derive(Clone)]
    enum Kind {
        All(Order),
        Weighted,
        Mixture,
    }
    let kind = match &raw.order {
        None => Kind::All(Order::Torch),
        Some(text) => choice(
            "training.order",
            text,
            &[
                ("torch", Kind::All(Order::Torch)),
                ("permutation", Kind::All(Order::Permutation)),
                ("sequential", Kind::All(Order::Sequential)),
                ("weighted", Kind::Weighted),
                ("mixture", Kind::Mixture),
            ],
        )?,
    };
    let given = [
        ("length", raw.length.is_some(), !matches!(kind, Kind::All(_)), "weighted` or `mixture"),
        ("replacement", raw.replacement.is_some(), matches!(kind, Kind::Weighted), "weighted"),
        ("weights", raw.weights.is_some(), matches!(kind, Kind::Weighted), "weighted"),
        ("part", !raw.part.is_empty(), matches!(kind, Kind::Mixture), "mixture"),
    ];
    if let Some((key, _, _, order)) = given.into_iter().find(|&(_, given, fits, _)| given && !fits)
    {
        return Err(ScenarioError::invalid(
            format!("training.{key}"),
            format!("is for `training.order` `{order}`; leave it out or set that order"),
        ));
    }
    let by = match kind {
        Kind::All(order) => return Ok(Sampling::All(order)),
        Kind::Weighted => Draw::Weights {
            weights: raw.weights.as_ref().map_or(Ok(Weights::Uniform), weights)?,
            replacement: match raw.replacement {
                Some(false) => Replacement::Without,
                Some(true) | None => Replacement::With,
            },
        },
        Kind::Mixture => Draw::Parts(parts(&raw.part)?),
    };
    if scheme != Scheme::Uniform {
        return Err(ScenarioError::invalid(
            "training.scheme",
            "has to be `uniform` where samples are drawn: they are dealt to ranks with a stride",
        ));
    }
    let length = raw.length.map(|length| whole("training.length", length, 1, u32::MAX.into()));
    Ok(Sampling::Drawn { length: length.transpose()?.map(|length| length as u32), by })
}

fn weights(raw: &RawWeights) -> Result<Weights, ScenarioError> {
    #[derive(Clone)]
    enum Kind {
        Uniform,
        Zipf,
        Classes,
    }
    let kind = needed(raw.kind.as_ref(), "training.weights.kind", ": uniform, zipf or classes")?;
    let kind = choice(
        "training.weights.kind",
        kind,
        &[("uniform", Kind::Uniform), ("zipf", Kind::Zipf), ("classes", Kind::Classes)],
    )?;
    let stray = [
        ("exponent", raw.exponent.is_some() && !matches!(kind, Kind::Zipf), "zipf"),
        ("fractions", raw.fractions.is_some() && !matches!(kind, Kind::Classes), "classes"),
    ];
    if let Some((key, _, kind)) = stray.into_iter().find(|&(_, stray, _)| stray) {
        return Err(ScenarioError::invalid(
            format!("training.weights.{key}"),
            format!("is for weights of kind `{kind}`; leave it out or set that kind"),
        ));
    }
    Ok(match kind {
        Kind::Uniform => Weights::Uniform,
        Kind::Zipf => {
            let exponent = raw.exponent.unwrap_or(1.0);
            if !(0.0..=MOST_EXPONENT).contains(&exponent) {
                return Err(ScenarioError::invalid(
                    "training.weights.exponent",
                    format!("is {exponent}; it must be from 0 to {MOST_EXPONENT}"),
                ));
            }
            Weights::Zipf { exponent }
        }
        Kind::Classes => {
            let key = "training.weights.fractions";
            let fractions = needed(raw.fractions.clone(), key, ", such as [0.9, 0.09, 0.01]")?;
            check_fractions(key, &fractions)?;
            Weights::Classes { fractions }
        }
    })
}

fn parts(raw: &[RawPart]) -> Result<Vec<Part>, ScenarioError> {
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
        Ok(Part { fraction, weight })
    });
    let parts = parts.collect::<Result<Vec<Part>, _>>()?;
    if parts.iter().all(|part| part.weight == 0.0) {
        let reason = "has no weight above 0, so nothing can be drawn";
        return Err(ScenarioError::invalid("training.part", reason));
    }
    let fractions: Vec<f64> = parts.iter().map(|part| part.fraction).collect();
    check_fractions("training.part", &fractions)?;
    Ok(parts)
}

/// Fractions of one dataset: each more than nothing, together at most all.
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
    /// Samples of all ranks in an epoch, before they are padded, cut or dropped.
    pub fn length(&self, samples: u32) -> u32 {
        match self {
            Self::All(_) | Self::Drawn { length: None, .. } => samples,
            Self::Drawn { length: Some(length), .. } => *length,
        }
    }

    /// The order of a job of so many samples and ranks.
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
                ScenarioError::invalid(key, format!("does not work: {error}"))
            }
        };
        let orders: Arc<dyn Orders> = match by {
            Draw::Weights { weights, replacement } => {
                let weights = weights.of(samples, seed);
                let orders = WeightedOrders::new(&weights, length, *replacement, seed, share);
                Arc::new(orders.map_err(refused("training.length"))?)
            }
            Draw::Parts(parts) => {
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

impl Weights {
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
        let classes = Weights::Classes { fractions: vec![0.9, 0.1] }.of(100, 0);
        let sum = |range: std::ops::Range<usize>| classes[range].iter().sum::<f64>();
        assert!((sum(0..90) - 1.0).abs() < 1e-9 && (sum(90..100) - 1.0).abs() < 1e-9);
        let mut zipf = Weights::Zipf { exponent: 2.0 }.of(50, 3);
        assert_ne!(zipf, Weights::Zipf { exponent: 2.0 }.of(50, 4));
        zipf.sort_by(|a, b| b.total_cmp(a));
        assert_eq!((zipf[0], zipf[1], zipf[9]), (1.0, 0.25, 0.01));
    }
}
