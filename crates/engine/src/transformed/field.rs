//! What is taken of a sample, and what is done to it.

use belady_data::source::example::{self, Feature, Values};
use belady_data::source::webdataset::{self, Member};
use belady_data::sync::Arc;
use belady_transform::{Array, Chain, Draw, Dtype, Output, Scratch, Step, TransformError};

const NO_NUMBERS: &str =
    "it is bytes, and the chain begins with numbers; put Raw, Numpy or Decode first";

/// Something that makes arrays of bytes.
pub trait Transform: std::fmt::Debug + Send + Sync {
    fn output(&self) -> &Output;

    /// Into memory of the length that the output says; for results of one shape.
    fn run_into(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError>;

    /// Into memory of its own.
    fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError>;

    /// Of the numbers that a part of a sample has, if it [takes](Self::takes) them.
    fn run_array(
        &self,
        numbers: &Array,
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        self.run(&numbers.bytes, draw, scratch)
    }

    /// What it begins with.
    fn takes(&self) -> Takes {
        Takes::Bytes
    }
}

/// What a transform begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Bytes,
    /// Numbers as people write them.
    Text,
    /// Numbers as they are.
    Numbers,
}

impl Transform for Chain {
    fn output(&self) -> &Output {
        self.output()
    }

    fn run_into(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        self.run_into(sample, draw, scratch, into)
    }

    fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        self.run(sample, draw, scratch)
    }

    fn run_array(
        &self,
        numbers: &Array,
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        self.run_array(numbers, draw, scratch)
    }

    fn takes(&self) -> Takes {
        match self.steps().first() {
            _ if !self.reads_samples() => Takes::Numbers,
            Some(Step::Int | Step::Float) => Takes::Text,
            _ => Takes::Bytes,
        }
    }
}

/// A column of a batch: a part of each sample, transformed.
#[derive(Clone, Debug)]
pub struct Field {
    /// A member of a WebDataset sample (`jpg`), or a feature of a `tf.train.Example`; the first
    /// that is there of several (`jpg;png`). `None` for the whole sample.
    pub part: Option<String>,
    /// `None` for the bytes as they are.
    pub transform: Option<Arc<dyn Transform>>,
}

impl Field {
    pub fn new(part: Option<String>, chain: Option<Chain>) -> Self {
        Self { part, transform: chain.map(|chain| Arc::new(chain) as Arc<dyn Transform>) }
    }

    /// Bytes of a row, where all results are of one shape.
    pub fn row_bytes(&self) -> Option<usize> {
        self.transform.as_ref()?.output().bytes()
    }

    /// Transforms its part of a sample: into `row`, or else what comes back.
    pub fn run(
        &self,
        parts: &mut Parts<'_>,
        draw: Draw,
        scratch: &mut Scratch,
        row: Option<&mut [u8]>,
    ) -> Result<Option<Value>, TransformError> {
        let piece = match &self.part {
            None => Piece::Bytes(parts.sample),
            Some(part) => parts.piece(part)?,
        };
        let Some(transform) = &self.transform else { return Ok(Some(piece.value())) };
        let named = |error: TransformError| match &self.part {
            None => error,
            Some(part) => TransformError(format!("{part}: {error}")),
        };
        let text;
        let bytes: &[u8] = match (&piece, transform.takes()) {
            (Piece::Bytes(_), Takes::Numbers) => {
                return Err(named(TransformError(NO_NUMBERS.into())));
            }
            (Piece::Numbers(array), Takes::Numbers) => {
                let made = transform.run_array(array, draw, scratch).map_err(named)?;
                return Ok(placed(made, row));
            }
            (Piece::Numbers(array), Takes::Text) => {
                text = only_number(array).map_err(named)?;
                text.as_bytes()
            }
            (Piece::Numbers(array), Takes::Bytes) => &array.bytes,
            (Piece::Bytes(bytes), _) => bytes,
        };
        match row {
            Some(row) => transform.run_into(bytes, draw, scratch, row).map(|()| None),
            None => transform.run(bytes, draw, scratch).map(|array| Some(Value::Array(array))),
        }
        .map_err(named)
    }
}

/// Puts a result into its row, which is as long as the output says.
fn placed(made: Array, row: Option<&mut [u8]>) -> Option<Value> {
    let Some(row) = row else { return Some(Value::Array(made)) };
    row.copy_from_slice(&made.bytes);
    None
}

/// A result in memory of its own.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Array(Array),
    Bytes(Vec<u8>),
}

/// A part of a sample.
enum Piece<'a> {
    Bytes(&'a [u8]),
    /// The numbers of a feature: int64 or float32, one extent.
    Numbers(Array),
}

impl Piece<'_> {
    fn value(self) -> Value {
        match self {
            Self::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
            Self::Numbers(array) => Value::Array(array),
        }
    }
}

/// A sample that is taken apart once, when the first part is wanted.
#[derive(Debug)]
pub struct Parts<'a> {
    sample: &'a [u8],
    taken: Option<Taken<'a>>,
}

#[derive(Debug)]
enum Taken<'a> {
    Members(Vec<Member>),
    Features(Vec<Feature<'a>>),
}

impl<'a> Parts<'a> {
    pub fn new(sample: &'a [u8]) -> Self {
        Self { sample, taken: None }
    }

    fn piece(&mut self, part: &str) -> Result<Piece<'a>, TransformError> {
        let taken = match self.taken.take() {
            Some(taken) => taken,
            None => take_apart(self.sample)?,
        };
        let taken = self.taken.insert(taken);
        let mut names = part.split(';').map(str::trim);
        match taken {
            Taken::Members(members) => {
                let named = |name: &str| members.iter().find(|member| member.name == name);
                let found = names.find_map(named).ok_or_else(|| {
                    missing("member", part, members.iter().map(|member| &*member.name))
                })?;
                let bytes = self.sample.get(found.range.clone()).unwrap_or_default();
                Ok(Piece::Bytes(bytes))
            }
            Taken::Features(features) => {
                let found = names.find_map(|name| example::find(features, name));
                let found = found.ok_or_else(|| {
                    missing("feature", part, features.iter().map(|feature| feature.name))
                })?;
                piece_of(found.values().map_err(said)?, part)
            }
        }
    }
}

/// A WebDataset sample is a small tar archive, which has its checksums; anything else with parts
/// is a `tf.train.Example`.
fn take_apart(sample: &[u8]) -> Result<Taken<'_>, TransformError> {
    let calls_itself_tar = sample.get(257..262) == Some(b"ustar");
    match webdataset::members(sample) {
        Ok(members) if !members.is_empty() || calls_itself_tar => Ok(Taken::Members(members)),
        Err(flaw) if calls_itself_tar => Err(said(flaw)),
        Ok(_) | Err(_) => example::features(sample).map(Taken::Features).map_err(|error| {
            TransformError(format!(
                "it has no parts: it is no member of a WebDataset, and {error}; leave the part's \
                 name out to get all of it"
            ))
        }),
    }
}

/// One value of bytes, or all numbers.
fn piece_of<'a>(values: Values<'a>, part: &str) -> Result<Piece<'a>, TransformError> {
    match values {
        Values::Bytes(values) => match values[..] {
            [value] => Ok(Piece::Bytes(value)),
            _ => Err(TransformError(format!(
                "its feature {part} has {} values, where one is needed",
                values.len()
            ))),
        },
        Values::Ints(values) => Ok(Piece::Numbers(Array {
            dtype: Dtype::Int64,
            shape: vec![values.len()],
            bytes: values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        })),
        Values::Floats(values) => Ok(Piece::Numbers(Array {
            dtype: Dtype::Float32,
            shape: vec![values.len()],
            bytes: values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        })),
    }
}

/// The one number of a feature, as text.
fn only_number(array: &Array) -> Result<String, TransformError> {
    let bytes = &array.bytes[..];
    let text = match array.dtype {
        Dtype::Float32 => bytes.try_into().ok().map(|word| f32::from_ne_bytes(word).to_string()),
        _ => bytes.try_into().ok().map(|word| i64::from_ne_bytes(word).to_string()),
    };
    text.ok_or_else(|| {
        TransformError(format!("it has {} numbers, where one is needed", array.shape[0]))
    })
}

fn missing<'a>(what: &str, wanted: &str, there: impl Iterator<Item = &'a str>) -> TransformError {
    let there = there.take(10).collect::<Vec<_>>().join(", ");
    TransformError(format!("it has no {what} {wanted}; it has {there}"))
}

fn said(error: impl std::fmt::Display) -> TransformError {
    TransformError(error.to_string())
}

#[cfg(test)]
mod tests;
