//! A list of steps that has been checked.

use crate::array::{Array, Output};
use crate::draw::Draw;
use crate::error::{ChainError, TransformError};
use crate::scratch::Scratch;
use crate::step::Step;

/// A list of steps that fit together.
#[derive(Clone, Debug)]
pub struct Chain {
    steps: Vec<Step>,
    output: Output,
}

impl Chain {
    /// Checks that every step can work on what the one before it gives.
    pub fn new(steps: Vec<Step>) -> Result<Self, ChainError> {
        let Some(Step::Raw { dtype, shape }) = steps.first() else {
            let name = steps.first().map_or("nothing", Step::name);
            return Err(ChainError { index: 1, name, problem: "is not built yet".into() });
        };
        let output = Output { dtype: *dtype, shape: shape.iter().copied().collect() };
        Ok(Self { steps, output })
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What comes out.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// Transforms a sample into `into`, which is as long as [`Output::bytes`] says; for chains
    /// whose results are all of one shape.
    pub fn run_into(
        &self,
        sample: &[u8],
        _draw: Draw,
        _scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        if sample.len() != into.len() {
            let text =
                format!("it has {} bytes, where {} make the array", sample.len(), into.len());
            return Err(TransformError(text));
        }
        into.copy_from_slice(sample);
        Ok(())
    }

    /// Transforms a sample into memory of its own.
    pub fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        let shape = self.output.shape.clone().unwrap_or_else(|| vec![sample.len()]);
        let mut bytes = vec![0; self.output.bytes().unwrap_or(sample.len())];
        self.run_into(sample, draw, scratch, &mut bytes)?;
        Ok(Array { dtype: self.output.dtype, shape, bytes })
    }
}
