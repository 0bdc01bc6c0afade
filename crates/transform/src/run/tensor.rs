//! Runs the steps of a chain that work on numbers.
//!
//! Most steps work in place. Only another dtype moves the numbers, and they move once out of the
//! sample. The last move goes straight into the sample's row of the batch; earlier ones alternate
//! between two spare buffers.

use super::Spare;
use crate::array::Dtype;
use crate::flow::{Flow, TensorSpec};
use crate::npy::Npy;
use crate::numbers::{self, Channels};
use crate::step::TransformStep;

/// The numbers before the first step.
#[derive(Debug)]
pub enum Start<'a> {
    /// In a sample, in C order and the machine's byte order.
    Plain(&'a [u8]),
    /// In a NumPy file of any order.
    Npy(&'a Npy<'a>),
    /// In the buffer that [`Numbers::destination`] returned.
    In(NumberBuffer),
}

/// A buffer with numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberBuffer {
    Sample,
    Spare(usize),
    Into,
}

/// The remaining steps, their inputs, and the output of the last.
#[derive(Debug)]
pub struct Numbers<'a> {
    pub steps: &'a [TransformStep],
    pub flows: &'a [Flow],
    pub spare: &'a mut Spare,
    pub into: &'a mut [u8],
}

impl Numbers<'_> {
    /// Returns the buffer to move numbers to before this step.
    pub fn destination(&self, step: usize, from: NumberBuffer) -> NumberBuffer {
        let flows = &self.flows[step..];
        let moves_later = flows.windows(2).any(|two| dtype(&two[0]) != dtype(&two[1]));
        match (moves_later, from) {
            (false, _) => NumberBuffer::Into,
            (true, NumberBuffer::Spare(0)) => NumberBuffer::Spare(1),
            (true, _) => NumberBuffer::Spare(0),
        }
    }

    /// Runs the steps.
    pub fn run(mut self, start: &Start<'_>) {
        let (mut at, sample) = self.begin(start);
        for step in 0..self.steps.len() {
            at = self.step(step, at, sample);
        }
        if at != NumberBuffer::Into {
            self.move_to(NumberBuffer::Into, at, sample);
        }
    }

    fn begin<'s>(&mut self, start: &Start<'s>) -> (NumberBuffer, &'s [u8]) {
        match *start {
            Start::Plain(sample) => (NumberBuffer::Sample, sample),
            Start::In(place) => (place, &[]),
            Start::Npy(npy) => {
                if let Some(sample) = npy.plain() {
                    return (NumberBuffer::Sample, sample);
                }
                let place = self.destination(0, NumberBuffer::Sample);
                npy.copy(self.buffer(place, npy.byte_len()));
                (place, &[])
            }
        }
    }

    /// Runs one step. Returns the buffer of the numbers afterwards.
    fn step(&mut self, step: usize, at: NumberBuffer, sample: &[u8]) -> NumberBuffer {
        let Flow::Tensor(tensor) = &self.flows[step] else { return at };
        let Some(dtype) = tensor.dtype else { return at };
        match &self.steps[step] {
            TransformStep::ToDtype { dtype: wanted } if *wanted != dtype => {
                self.convert(step, at, sample, dtype, *wanted)
            }
            TransformStep::Normalize { mean, std } => {
                let channels = channels(tensor, mean.len());
                self.in_place(step, at, sample, |n| {
                    numbers::normalize(n, dtype, channels, mean, std);
                })
            }
            TransformStep::ScaleShift { scale, shift } => {
                let channels = channels(tensor, scale.len().max(shift.len()));
                self.in_place(step, at, sample, |n| {
                    numbers::scale_shift(n, dtype, channels, scale, shift);
                })
            }
            TransformStep::Log { offset } => {
                self.in_place(step, at, sample, |n| numbers::log(n, dtype, *offset))
            }
            _ => at,
        }
    }

    fn convert(
        &mut self,
        step: usize,
        at: NumberBuffer,
        sample: &[u8],
        from: Dtype,
        wanted: Dtype,
    ) -> NumberBuffer {
        let place = self.destination(step + 1, at);
        let held = self.take(at);
        let numbers = if at == NumberBuffer::Sample { sample } else { &held };
        let length = numbers.len() / from.size() * wanted.size();
        numbers::convert(numbers, from, self.buffer(place, length), wanted);
        self.put_back(at, held);
        place
    }

    fn in_place(
        &mut self,
        step: usize,
        at: NumberBuffer,
        sample: &[u8],
        work: impl FnOnce(&mut [u8]),
    ) -> NumberBuffer {
        let place = if at == NumberBuffer::Sample { self.destination(step, at) } else { at };
        if at != place {
            self.move_to(place, at, sample);
        }
        match place {
            NumberBuffer::Spare(which) => work(&mut self.spare[which]),
            NumberBuffer::Into | NumberBuffer::Sample => work(self.into),
        }
        place
    }

    fn move_to(&mut self, place: NumberBuffer, at: NumberBuffer, sample: &[u8]) {
        let held = self.take(at);
        let numbers = if at == NumberBuffer::Sample { sample } else { &held };
        self.buffer(place, numbers.len()).copy_from_slice(numbers);
        self.put_back(at, held);
    }

    /// Takes a spare buffer, so that it can be read while another one is written.
    fn take(&mut self, at: NumberBuffer) -> Vec<u8> {
        match at {
            NumberBuffer::Spare(which) => std::mem::take(&mut self.spare[which]),
            NumberBuffer::Sample | NumberBuffer::Into => Vec::new(),
        }
    }

    fn put_back(&mut self, at: NumberBuffer, held: Vec<u8>) {
        if let NumberBuffer::Spare(which) = at {
            self.spare[which] = held;
        }
    }

    /// Returns a buffer with this length.
    pub fn buffer(&mut self, place: NumberBuffer, length: usize) -> &mut [u8] {
        match place {
            NumberBuffer::Spare(which) => {
                self.spare[which].resize(length, 0);
                &mut self.spare[which]
            }
            NumberBuffer::Into | NumberBuffer::Sample => self.into,
        }
    }
}

fn dtype(flow: &Flow) -> Option<Dtype> {
    match flow {
        Flow::Tensor(tensor) => tensor.dtype,
        Flow::Image(_) | Flow::Bytes => Some(Dtype::Uint8),
    }
}

/// Returns the layout of the channels of `factors` factors in a tensor of known shape.
fn channels(tensor: &TensorSpec, factors: usize) -> Channels {
    let extents = tensor.shape.as_deref().unwrap_or_default();
    let after = if factors == 1 { 0 } else { tensor.channel_axis(factors) + 1 };
    let inner = extents.iter().skip(after).flatten().product();
    Channels { count: factors, inner }
}
