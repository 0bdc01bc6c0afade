//! Runs the steps of a chain that work on numbers.
//!
//! Most work in place. Only another dtype moves the numbers, and they have to be moved once out
//! of the sample. The last move goes straight into the sample's place in the batch; earlier ones
//! go to and fro between two spare pieces of memory.

use super::Spare;
use crate::array::Dtype;
use crate::flow::{Flow, Tensor};
use crate::npy::Npy;
use crate::numbers::{self, Channels};
use crate::step::Step;

/// Where the numbers are before the first step.
#[derive(Debug)]
pub enum Start<'a> {
    /// In a sample, as we have them.
    Plain(&'a [u8]),
    /// In a file of another order.
    Npy(&'a Npy<'a>),
    /// Where [`Numbers::destination`] said.
    There(Place),
}

/// Where numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Sample,
    Spare(usize),
    Into,
}

/// The steps that are left, and what flows into each and out of the last.
#[derive(Debug)]
pub struct Numbers<'a> {
    pub steps: &'a [Step],
    pub flows: &'a [Flow],
    pub spare: &'a mut Spare,
    pub into: &'a mut [u8],
}

impl Numbers<'_> {
    /// Where numbers go that are moved before this step, from there.
    pub fn destination(&self, step: usize, from: Place) -> Place {
        let flows = &self.flows[step..];
        let moves_later = flows.windows(2).any(|two| dtype(&two[0]) != dtype(&two[1]));
        match (moves_later, from) {
            (false, _) => Place::Into,
            (true, Place::Spare(0)) => Place::Spare(1),
            (true, _) => Place::Spare(0),
        }
    }

    pub fn run(mut self, start: &Start<'_>) {
        let (mut at, sample) = self.begin(start);
        for step in 0..self.steps.len() {
            at = self.step(step, at, sample);
        }
        if at != Place::Into {
            self.move_to(Place::Into, at, sample);
        }
    }

    fn begin<'s>(&mut self, start: &Start<'s>) -> (Place, &'s [u8]) {
        match *start {
            Start::Plain(sample) => (Place::Sample, sample),
            Start::There(place) => (place, &[]),
            Start::Npy(npy) => {
                if let Some(sample) = npy.plain() {
                    return (Place::Sample, sample);
                }
                let place = self.destination(0, Place::Sample);
                npy.copy(self.room(place, npy.byte_len()));
                (place, &[])
            }
        }
    }

    /// Does one step; gives where the numbers are then.
    fn step(&mut self, step: usize, at: Place, sample: &[u8]) -> Place {
        let Flow::Tensor(tensor) = &self.flows[step] else { return at };
        let Some(dtype) = tensor.dtype else { return at };
        match &self.steps[step] {
            Step::ToDtype { dtype: wanted } if *wanted != dtype => {
                self.convert(step, at, sample, dtype, *wanted)
            }
            Step::Normalize { mean, std } => {
                let channels = channels(tensor, mean.len());
                self.in_place(step, at, sample, |n| {
                    numbers::normalize(n, dtype, channels, mean, std);
                })
            }
            Step::ScaleShift { scale, shift } => {
                let channels = channels(tensor, scale.len().max(shift.len()));
                self.in_place(step, at, sample, |n| {
                    numbers::scale_shift(n, dtype, channels, scale, shift);
                })
            }
            Step::Log { offset } => {
                self.in_place(step, at, sample, |n| numbers::log(n, dtype, *offset))
            }
            _ => at,
        }
    }

    fn convert(
        &mut self,
        step: usize,
        at: Place,
        sample: &[u8],
        from: Dtype,
        wanted: Dtype,
    ) -> Place {
        let place = self.destination(step + 1, at);
        let held = self.hold(at);
        let numbers = if at == Place::Sample { sample } else { &held };
        let length = numbers.len() / from.size() * wanted.size();
        numbers::convert(numbers, from, self.room(place, length), wanted);
        self.give_back(at, held);
        place
    }

    fn in_place(
        &mut self,
        step: usize,
        at: Place,
        sample: &[u8],
        work: impl FnOnce(&mut [u8]),
    ) -> Place {
        let place = if at == Place::Sample { self.destination(step, at) } else { at };
        if at != place {
            self.move_to(place, at, sample);
        }
        match place {
            Place::Spare(which) => work(&mut self.spare[which]),
            Place::Into | Place::Sample => work(self.into),
        }
        place
    }

    fn move_to(&mut self, place: Place, at: Place, sample: &[u8]) {
        let held = self.hold(at);
        let numbers = if at == Place::Sample { sample } else { &held };
        self.room(place, numbers.len()).copy_from_slice(numbers);
        self.give_back(at, held);
    }

    /// Takes a spare piece away, so that it can be read while another is written.
    fn hold(&mut self, at: Place) -> Vec<u8> {
        match at {
            Place::Spare(which) => std::mem::take(&mut self.spare[which]),
            Place::Sample | Place::Into => Vec::new(),
        }
    }

    fn give_back(&mut self, at: Place, held: Vec<u8>) {
        if let Place::Spare(which) = at {
            self.spare[which] = held;
        }
    }

    pub fn room(&mut self, place: Place, length: usize) -> &mut [u8] {
        match place {
            Place::Spare(which) => {
                self.spare[which].resize(length, 0);
                &mut self.spare[which]
            }
            Place::Into | Place::Sample => self.into,
        }
    }
}

fn dtype(flow: &Flow) -> Option<Dtype> {
    match flow {
        Flow::Tensor(tensor) => tensor.dtype,
        Flow::Image(_) | Flow::Bytes => Some(Dtype::Uint8),
    }
}

/// How the channels of `factors` factors lie in a tensor whose shape is known.
fn channels(tensor: &Tensor, factors: usize) -> Channels {
    let extents = tensor.shape.as_deref().unwrap_or_default();
    let after = if factors == 1 { 0 } else { tensor.channel_axis(factors) + 1 };
    let inner = extents.iter().skip(after).flatten().product();
    Channels { count: factors, inner }
}
