//! A transformed batch.

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_control::sampler::Step;
use belady_transform::{Array, Dtype, TransformError};

use super::field::Value;
use super::memory::OutputBlock;
use crate::job::SkippedSamples;

/// A transformed batch. Its memory returns to the pool when the last clone of `block` is dropped.
#[derive(Debug)]
pub struct OutputBatch {
    /// The batch's epoch and iteration.
    pub step: Step,
    /// The samples that were read, failed ones included.
    pub samples: Box<[SampleId]>,
    /// The positions of the samples in the columns; `None` for all, in order.
    pub kept: Option<Vec<u32>>,
    /// The samples that could not be transformed.
    pub failures: Vec<FailedSample>,
    /// One column a field.
    pub columns: Vec<OutputColumn>,
    /// The memory of all [`RowArray`]s; `None` if there are none.
    pub block: Option<Arc<OutputBlock>>,
    /// The bytes that were read for the batch.
    pub read_bytes: u64,
    /// Samples that could not be read, and so are not in the batch.
    pub skipped: SkippedSamples,
}

/// A sample that could not be transformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSample {
    /// Its position in [`OutputBatch::samples`].
    pub position: u32,
    /// Why.
    pub error: TransformError,
}

/// The values of one field.
#[derive(Debug)]
pub enum OutputColumn {
    /// One array in the batch's block.
    Rows(RowArray),
    /// One array in memory of its own: the type of its numbers was not known before.
    Stacked(Array),
    /// One value for each sample.
    Loose(Vec<Value>),
}

/// An array of equally shaped rows, one for each sample, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowArray {
    /// The type of the numbers.
    pub dtype: Dtype,
    /// The shape of the whole array; the number of rows comes first.
    pub shape: Vec<usize>,
    /// Its offset in the block, a multiple of 64.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
}

impl OutputBatch {
    /// Returns the number of rows of its columns.
    pub fn rows(&self) -> usize {
        self.kept.as_ref().map_or(self.samples.len(), Vec::len)
    }

    /// Returns the bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        let loose = |column: &OutputColumn| match column {
            OutputColumn::Rows(_) => 0,
            OutputColumn::Stacked(array) => array.bytes.len(),
            OutputColumn::Loose(values) => values.iter().map(Value::bytes).sum(),
        };
        self.block.as_ref().map_or(0, |block| block.len())
            + self.columns.iter().map(loose).sum::<usize>()
    }
}

impl Value {
    /// Returns its length in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Array(array) => array.bytes.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}
