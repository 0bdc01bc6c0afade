//! Options as typed: the shape of a scenario file and nothing else. Everything may be missing and
//! any number may be absurd; `validate` checks them.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use belady_control::model::{Bytes, Rate, Seconds};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_path_to_error::Segment;

use super::ScenarioError;

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawScenario {
    pub name: Option<String>,
    pub dataset: RawDataset,
    pub training: RawTraining,
    pub cluster: RawCluster,
    pub policy: Vec<RawPolicy>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawDataset {
    pub samples: Option<Whole>,
    pub mean: Option<Quantity<Bytes>>,
    pub stddev: Option<Quantity<Bytes>>,
    pub distribution: Option<String>,
    pub min: Option<Quantity<Bytes>>,
    pub max: Option<Quantity<Bytes>>,
    pub total: Option<Quantity<Bytes>>,
    pub clamp: Option<bool>,
    pub path: Option<String>,
    pub files: Option<Whole>,
    pub read_size: Option<Quantity<Bytes>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawTraining {
    pub epochs: Option<Whole>,
    pub batch: Option<Whole>,
    pub drop_last: Option<bool>,
    pub sampler_drop_last: Option<bool>,
    pub scheme: Option<String>,
    pub order: Option<String>,
    pub length: Option<Whole>,
    pub replacement: Option<bool>,
    pub weights: Option<RawWeights>,
    pub part: Vec<RawPart>,
    pub seed: Option<Whole>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawWeights {
    pub kind: Option<String>,
    pub exponent: Option<f64>,
    pub fractions: Option<Vec<f64>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawPart {
    pub fraction: Option<f64>,
    pub weight: Option<f64>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawCluster {
    pub nodes: Option<Whole>,
    pub ranks_per_node: Option<Whole>,
    pub compute: Option<Quantity<Rate>>,
    pub compute_per_sample: Option<Quantity<Seconds>>,
    pub preprocess: Option<RawPreprocess>,
    pub network: Option<Quantity<Rate>>,
    pub pipeline: Option<String>,
    pub serving_threads: Option<Whole>,
    pub distributed_threads: Option<Whole>,
    pub snapshot: Option<RawSnapshot>,
    pub source: RawSource,
    pub tier: Vec<RawTier>,
}

/// What the preprocessing threads of a node do together with samples of one size.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawThroughput {
    pub size: Option<Quantity<Bytes>>,
    pub throughput: Option<RawCurve>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawSource {
    pub link: Option<Quantity<Rate>>,
    pub sharing: Option<String>,
    pub readers: Option<String>,
    pub throughput: Option<RawCurve>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct RawTier {
    pub name: Option<String>,
    pub capacity: Option<RawCapacity>,
    pub threads: Option<Whole>,
    pub read: Option<RawCurve>,
    pub write: Option<RawCurve>,
    pub path: Option<String>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, expecting = "a table")]
pub struct RawPolicy {
    pub name: Option<String>,
    pub label: Option<String>,
    /// The other keys, which the policy knows.
    #[serde(flatten)]
    pub options: toml::Table,
}

/// `[[count, rate], ...]`.
pub type RawCurve = Vec<RawPoint>;

#[derive(Debug, serde::Deserialize)]
#[serde(expecting = "a pair such as [2, \"86 MB/s\"]")]
pub struct RawPoint(pub Whole, pub Quantity<Rate>);

/// Whether the list of a dataset's files is kept, or where.
#[derive(Debug, serde::Deserialize)]
#[serde(untagged, expecting = "expected true, false or a directory")]
pub enum RawSnapshot {
    Kept(bool),
    In(String),
}

/// The rate of each thread, or throughputs by sample size and thread count.
#[derive(Debug)]
pub enum RawPreprocess {
    PerThread(Quantity<Rate>),
    Measured(Vec<RawThroughput>),
}

/// One capacity for every node, or one for each.
#[derive(Clone, Debug)]
pub enum RawCapacity {
    Every(Bytes),
    ByNode(Vec<Bytes>),
}

/// A whole number of any size and sign; its range is checked where its key is known.
#[derive(Clone, Copy, Debug)]
pub struct Whole(pub i64);

/// A number with a unit, as a string. Sizes may also be plain numbers of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Quantity<T>(pub T);

/// A quantity with a unit, and how error messages describe it.
pub trait Unit: FromStr<Err: fmt::Display> {
    const EXPECTED: &'static str;

    fn from_whole(_number: u64) -> Option<Self> {
        None
    }
}

impl Unit for Bytes {
    const EXPECTED: &'static str = "a size such as \"3 MB\"";

    fn from_whole(number: u64) -> Option<Self> {
        Some(Self(number))
    }
}

impl Unit for Rate {
    const EXPECTED: &'static str = "a rate such as \"100 MB/s\"";
}

impl Unit for Seconds {
    const EXPECTED: &'static str = "a duration such as \"250 ms\"";
}

impl<'de, T: Unit> Deserialize<'de> for Quantity<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor<T>(PhantomData<T>);
        impl<T: Unit> Visitor<'_> for QuantityVisitor<T> {
            type Value = Quantity<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map(Quantity).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                u64::try_from(number)
                    .ok()
                    .and_then(T::from_whole)
                    .map(Quantity)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(QuantityVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for RawCapacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CapacityVisitor;
        impl<'de> Visitor<'de> for CapacityVisitor {
            type Value = RawCapacity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}, or a list of them, one for each node", Bytes::EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawCapacity, E> {
                text.parse().map(RawCapacity::Every).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<RawCapacity, E> {
                let bytes = u64::try_from(number).map(|bytes| RawCapacity::Every(Bytes(bytes)));
                bytes.map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<RawCapacity, A::Error> {
                let mut capacities = vec![];
                while let Some(Quantity(bytes)) = list.next_element()? {
                    capacities.push(bytes);
                }
                Ok(RawCapacity::ByNode(capacities))
            }
        }
        deserializer.deserialize_any(CapacityVisitor)
    }
}

impl<'de> Deserialize<'de> for RawPreprocess {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PreprocessVisitor;
        impl<'de> Visitor<'de> for PreprocessVisitor {
            type Value = RawPreprocess;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}, or tables of `size` and `throughput`", Rate::EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawPreprocess, E> {
                let rate = text.parse().map_err(E::custom)?;
                Ok(RawPreprocess::PerThread(Quantity(rate)))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<RawPreprocess, A::Error> {
                let mut throughputs = vec![];
                while let Some(throughput) = list.next_element()? {
                    throughputs.push(throughput);
                }
                Ok(RawPreprocess::Measured(throughputs))
            }
        }
        deserializer.deserialize_any(PreprocessVisitor)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor;
        impl Visitor<'_> for WholeVisitor {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Whole, E> {
                Ok(Whole(number))
            }
        }
        deserializer.deserialize_any(WholeVisitor)
    }
}

impl RawScenario {
    pub fn from_table(table: toml::Table) -> Result<Self, ScenarioError> {
        let table = toml::Value::Table(table);
        serde_path_to_error::deserialize(table.clone()).map_err(|error| {
            let key = key_of(error.path(), &table);
            ScenarioError::invalid(key, format!("cannot be used: {}", error.inner().message()))
        })
    }
}

/// Returns the dotted key of a value, with elements of arrays by their label or name, as `--set`
/// addresses them.
fn key_of(path: &serde_path_to_error::Path, table: &toml::Value) -> String {
    let mut value = Some(table);
    let mut key = Vec::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => {
                value = value.and_then(|array| array.get(index));
                let text = |name| value.and_then(|element| element.get(name)?.as_str());
                let name = text("label").or_else(|| text("name"));
                key.push(name.map_or_else(|| index.to_string(), str::to_owned));
            }
            Segment::Map { key: name } => {
                value = value.and_then(|table| table.get(name));
                key.push(name.clone());
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    key.join(".")
}
