//! The fields of a batch: a part of each sample, and its transform.

use belady_base::sync::Arc;
use belady_data::source::tf_example::{self, Feature, Values};
use belady_data::source::webdataset::{self, Member};
use belady_transform::{Array, Chain, Draw, Dtype, Output, Scratch, TransformError, TransformStep};

const NO_NUMBERS: &str =
    "it is bytes, but the chain begins with numbers: put Raw, Numpy or Decode first";

/// Makes an array from the bytes of a sample.
pub trait Transform: std::fmt::Debug + Send + Sync {
    /// Describes the result.
    fn output(&self) -> &Output;

    /// Transforms a sample into memory of the output's length, for results of one shape.
    fn run_into(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError>;

    /// Transforms a sample into new memory.
    fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError>;

    /// Transforms the numbers of a part of a sample, if it [takes](Self::takes) numbers.
    fn run_array(
        &self,
        numbers: &Array,
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        self.run(&numbers.bytes, draw, scratch)
    }

    /// Returns what it begins with.
    fn takes(&self) -> Takes {
        Takes::Bytes
    }
}

/// What a transform begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Bytes.
    Bytes,
    /// Numbers as text.
    Text,
    /// Arrays of numbers.
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
            Some(TransformStep::Int | TransformStep::Float) => Takes::Text,
            _ => Takes::Bytes,
        }
    }
}

/// A column of a batch: a part of each sample, transformed.
#[derive(Clone, Debug)]
pub struct FieldSpec {
    /// A member of a WebDataset sample (`jpg`), or a feature of a `tf.train.Example`; of several
    /// (`jpg;png`), the first that exists. `None` for the whole sample.
    pub part: Option<String>,
    /// `None` for the unchanged bytes.
    pub transform: Option<Arc<dyn Transform>>,
}

impl FieldSpec {
    /// Returns a field that runs a chain.
    pub fn new(part: Option<String>, chain: Option<Chain>) -> Self {
        Self { part, transform: chain.map(|chain| Arc::new(chain) as Arc<dyn Transform>) }
    }

    /// Returns the bytes of a row, if all results have one shape.
    pub fn row_bytes(&self) -> Option<usize> {
        self.transform.as_ref()?.output().bytes()
    }

    /// Transforms its part of a sample: into `row`, or into the returned value.
    ///
    /// # Errors
    /// Fails if the sample lacks the part, or the transform fails.
    pub fn run(
        &self,
        parts: &mut SampleParts<'_>,
        draw: Draw,
        scratch: &mut Scratch,
        row: Option<&mut [u8]>,
    ) -> Result<Option<Value>, TransformError> {
        let piece = match &self.part {
            None => SamplePart::Bytes(parts.sample),
            Some(part) => parts.piece(part)?,
        };
        let Some(transform) = &self.transform else { return Ok(Some(piece.value())) };
        let named = |error: TransformError| match &self.part {
            None => error,
            Some(part) => TransformError(format!("{part}: {error}")),
        };
        let text;
        let bytes: &[u8] = match (&piece, transform.takes()) {
            (SamplePart::Bytes(_), Takes::Numbers) => {
                return Err(named(TransformError(NO_NUMBERS.into())));
            }
            (SamplePart::Numbers(array), Takes::Numbers) => {
                let result = transform.run_array(array, draw, scratch).map_err(named)?;
                return Ok(placed(result, row));
            }
            (SamplePart::Numbers(array), Takes::Text) => {
                text = only_number(array).map_err(named)?;
                text.as_bytes()
            }
            (SamplePart::Numbers(array), Takes::Bytes) => &array.bytes,
            (SamplePart::Bytes(bytes), _) => bytes,
        };
        match row {
            Some(row) => transform.run_into(bytes, draw, scratch, row).map(|()| None),
            None => transform.run(bytes, draw, scratch).map(|array| Some(Value::Array(array))),
        }
        .map_err(named)
    }
}

/// Copies a result to its row, which has the output's length.
fn placed(result: Array, row: Option<&mut [u8]>) -> Option<Value> {
    let Some(row) = row else { return Some(Value::Array(result)) };
    row.copy_from_slice(&result.bytes);
    None
}

/// A value in memory of its own.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Numbers.
    Array(Array),
    /// Unchanged bytes.
    Bytes(Vec<u8>),
}

/// A part of a sample.
enum SamplePart<'a> {
    Bytes(&'a [u8]),
    /// The numbers of a feature: int64 or float32, one dimension.
    Numbers(Array),
}

impl SamplePart<'_> {
    fn value(self) -> Value {
        match self {
            Self::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
            Self::Numbers(array) => Value::Array(array),
        }
    }
}

/// A sample that is parsed once, when the first part is needed.
#[derive(Debug)]
pub struct SampleParts<'a> {
    sample: &'a [u8],
    parsed: Option<ParsedParts<'a>>,
}

#[derive(Debug)]
enum ParsedParts<'a> {
    Members(Vec<Member>),
    Features(Vec<Feature<'a>>),
}

impl<'a> SampleParts<'a> {
    /// Prepares a sample.
    pub fn new(sample: &'a [u8]) -> Self {
        Self { sample, parsed: None }
    }

    fn piece(&mut self, part: &str) -> Result<SamplePart<'a>, TransformError> {
        let parsed = match self.parsed.take() {
            Some(parsed) => parsed,
            None => parse(self.sample)?,
        };
        let parsed = self.parsed.insert(parsed);
        let mut names = part.split(';').map(str::trim);
        match parsed {
            ParsedParts::Members(members) => {
                let named = |name: &str| members.iter().find(|member| member.name == name);
                let found = names.find_map(named).ok_or_else(|| {
                    missing("member", part, members.iter().map(|member| &*member.name))
                })?;
                let bytes = self.sample.get(found.range.clone()).unwrap_or_default();
                Ok(SamplePart::Bytes(bytes))
            }
            ParsedParts::Features(features) => {
                let found = names.find_map(|name| tf_example::find(features, name));
                let found = found.ok_or_else(|| {
                    missing("feature", part, features.iter().map(|feature| feature.name))
                })?;
                piece_of(found.values().map_err(as_error)?, part)
            }
        }
    }
}

/// A WebDataset sample is a small tar archive, which has its checksums; anything else with parts
/// is a `tf.train.Example`.
fn parse(sample: &[u8]) -> Result<ParsedParts<'_>, TransformError> {
    let has_tar_magic = sample.get(257..262) == Some(b"ustar");
    match webdataset::members(sample) {
        Ok(members) if !members.is_empty() || has_tar_magic => Ok(ParsedParts::Members(members)),
        Err(flaw) if has_tar_magic => Err(as_error(flaw)),
        Ok(_) | Err(_) => tf_example::features(sample).map(ParsedParts::Features).map_err(|error| {
            TransformError(format!(
                "it has no parts: it is not a WebDataset sample, and {error}; leave out the part's \
                 name to get the whole sample"
            ))
        }),
    }
}

/// Returns the one value of a bytes feature, or all numbers.
fn piece_of<'a>(values: Values<'a>, part: &str) -> Result<SamplePart<'a>, TransformError> {
    match values {
        Values::Bytes(values) => match values[..] {
            [value] => Ok(SamplePart::Bytes(value)),
            _ => Err(TransformError(format!(
                "its feature {part} has {} values, but one is needed",
                values.len()
            ))),
        },
        Values::Ints(values) => Ok(SamplePart::Numbers(Array {
            dtype: Dtype::Int64,
            shape: vec![values.len()],
            bytes: values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        })),
        Values::Floats(values) => Ok(SamplePart::Numbers(Array {
            dtype: Dtype::Float32,
            shape: vec![values.len()],
            bytes: values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        })),
    }
}

/// Returns the only number of a feature, as text.
fn only_number(array: &Array) -> Result<String, TransformError> {
    let bytes = &array.bytes[..];
    let text = match array.dtype {
        Dtype::Float32 => bytes.try_into().ok().map(|word| f32::from_ne_bytes(word).to_string()),
        _ => bytes.try_into().ok().map(|word| i64::from_ne_bytes(word).to_string()),
    };
    text.ok_or_else(|| {
        TransformError(format!("it has {} numbers, but one is needed", array.shape[0]))
    })
}

fn missing<'a>(what: &str, wanted: &str, present: impl Iterator<Item = &'a str>) -> TransformError {
    let present = present.take(10).collect::<Vec<_>>().join(", ");
    TransformError(format!("it has no {what} {wanted}; it has {present}"))
}

fn as_error(error: impl std::fmt::Display) -> TransformError {
    TransformError(error.to_string())
}

#[cfg(test)]
mod tests;
