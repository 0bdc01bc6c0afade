//! A batch that is done.

use belady_control::sampler::Step;
use belady_data::SampleId;
use belady_data::sync::Arc;
use belady_transform::{Array, Dtype, TransformError};

use super::field::Value;
use super::pool::Block;
use crate::parcel::Missing;

/// A transformed batch. Its memory goes back to the pool when the last clone of `block` is dropped.
#[derive(Debug)]
pub struct Made {
    pub step: Step,
    /// The samples that were read, failed ones included.
    pub samples: Box<[SampleId]>,
    /// Which of them, by position, make up the columns; `None` for all, in order.
    pub kept: Option<Vec<u32>>,
    pub failures: Vec<Failed>,
    /// One a field.
    pub columns: Vec<Column>,
    /// Where [`Rows`] lie; `None` if there are none.
    pub block: Option<Arc<Block>>,
    /// How many bytes were read for it.
    pub read_bytes: u64,
    /// Samples that were not read, and so are not in it.
    pub(crate) missing: Missing,
}

/// A sample that could not be transformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub position: u32,
    pub error: TransformError,
}

/// What became of a field.
#[derive(Debug)]
pub enum Column {
    Rows(Rows),
    /// The same in memory of its own: what kind of numbers a row has was known only when it was made.
    Stacked(Array),
    /// One value a sample.
    Loose(Vec<Value>),
}

/// An array of equally shaped rows, one a sample, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub dtype: Dtype,
    /// Of all of it: the number of rows comes first.
    pub shape: Vec<usize>,
    /// Where it begins in the block: at a multiple of 64.
    pub offset: usize,
    pub bytes: usize,
}

impl Made {
    /// How many rows its columns have.
    pub fn rows(&self) -> usize {
        self.kept.as_ref().map_or(self.samples.len(), Vec::len)
    }

    /// Memory that it holds.
    pub fn bytes(&self) -> usize {
        let loose = |column: &Column| match column {
            Column::Rows(_) => 0,
            Column::Stacked(array) => array.bytes.len(),
            Column::Loose(values) => values.iter().map(Value::bytes).sum(),
        };
        self.block.as_ref().map_or(0, |block| block.len())
            + self.columns.iter().map(loose).sum::<usize>()
    }
}

impl Value {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Array(array) => array.bytes.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}
