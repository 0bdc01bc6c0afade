//! A batch that is being transformed.
//!
//! Threads claim its samples one by one. Who finishes the last one puts the batch together.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use belady_control::model::Bytes;
use belady_control::sampler::Step;
use belady_data::SampleId;
use belady_data::sync::atomic::{AtomicUsize, Ordering};
use belady_data::sync::{Arc, Mutex, lock};
use belady_transform::{Array, Draw, Scratch, TransformError};

use super::field::{Field, Parts, Value};
use super::made::{Column, Failed, Made, Rows};
use super::pool::{ALIGN, Block, Pool};
use crate::EngineError;
use crate::config::BadSamples;
use crate::loader::Batch;
use crate::metrics::Metrics;
use crate::parcel::Missing;

/// What is done with every batch.
#[derive(Debug)]
pub struct Recipe {
    pub fields: Vec<Field>,
    pub seed: u64,
    pub first: Step,
    pub repeats: bool,
    pub on_error: BadSamples,
}

impl Recipe {
    /// What is drawn for the sample at a place of a batch.
    fn draw(&self, step: Step, sample: SampleId, place: u32) -> Draw {
        let epoch = self.first.epoch.wrapping_add(step.epoch);
        let draw = Draw { seed: self.seed, epoch, sample };
        if !self.repeats {
            return draw;
        }
        let before = if step.epoch == 0 { self.first.iteration } else { 0 };
        draw.at_place(before.wrapping_add(step.iteration), place)
    }
}

/// A batch that is being transformed.
#[derive(Debug)]
pub struct Work {
    recipe: Arc<Recipe>,
    step: Step,
    samples: Box<[SampleId]>,
    /// Where each lies in the raw batch, which has places for skipped ones too.
    places: Box<[u32]>,
    read_bytes: u64,
    missing: Missing,
    /// Gone when all is transformed.
    raw: Mutex<Option<Arc<Batch>>>,
    block: Option<Arc<Block>>,
    /// By field: where its rows begin and how long one is, if it has rows.
    layout: Box<[Option<(usize, usize)>]>,
    next: AtomicUsize,
    left: AtomicUsize,
    outcomes: Box<[Mutex<Outcome>]>,
    done: Mutex<Option<Result<Made, EngineError>>>,
}

/// What became of a sample: the values that have no place in a row, or why there is nothing.
#[derive(Debug)]
enum Outcome {
    Pending,
    Good(Vec<Value>),
    Failed(TransformError),
}

impl Work {
    pub fn new(recipe: &Arc<Recipe>, raw: Batch, pool: &Arc<Pool>) -> Result<Self, EngineError> {
        let there = (0..raw.len()).filter_map(|at| raw.get(at).map(|sample| (at, sample)));
        let mut read_bytes = 0;
        let (places, samples): (Vec<u32>, Vec<SampleId>) = there
            .map(|(at, sample)| {
                read_bytes += sample.bytes().len() as u64;
                (at as u32, sample.id)
            })
            .unzip();
        let count = samples.len();
        let (layout, bytes) = lay_out(&recipe.fields, count)?;
        let block = if bytes == 0 {
            None
        } else {
            let block = pool.take(bytes);
            Some(Arc::new(block.ok_or(EngineError::NoMemory { bytes: Bytes(bytes as u64) })?))
        };
        let work = Self {
            recipe: recipe.clone(),
            step: raw.step(),
            samples: samples.into(),
            places: places.into(),
            read_bytes,
            missing: raw.missing().clone(),
            raw: Mutex::new(Some(Arc::new(raw))),
            block,
            layout,
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(count),
            outcomes: (0..count).map(|_| Mutex::new(Outcome::Pending)).collect(),
            done: Mutex::default(),
        };
        if count == 0 {
            work.finish();
        }
        Ok(work)
    }

    pub fn step(&self) -> Step {
        self.step
    }

    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Samples that are not transformed yet.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Whether there are samples that nobody has claimed.
    pub fn is_claimable(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.len()
    }

    /// What it became, once, when it is done.
    pub fn take(&self) -> Option<Result<Made, EngineError>> {
        lock(&self.done).take()
    }

    pub fn is_done(&self) -> bool {
        lock(&self.done).is_some()
    }

    /// Claims and transforms samples as long as there are any. Whether the batch is done by that.
    pub fn run(&self, scratch: &mut Scratch, metrics: &Metrics, stop: impl Fn() -> bool) -> bool {
        let Some(raw) = lock(&self.raw).clone() else { return false };
        let mut began = Instant::now();
        loop {
            let position = self.next.fetch_add(1, Ordering::Relaxed);
            if position >= self.len() || stop() {
                return false;
            }
            let outcome = self.transform(&raw, position, scratch);
            let now = Instant::now();
            metrics.transformed(now - began, matches!(outcome, Outcome::Failed(_)));
            began = now;
            *lock(&self.outcomes[position]) = outcome;
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                drop(raw);
                self.finish();
                return true;
            }
        }
    }

    fn transform(&self, raw: &Batch, position: usize, scratch: &mut Scratch) -> Outcome {
        let transform = AssertUnwindSafe(|| self.transform_fields(raw, position, scratch));
        match catch_unwind(transform) {
            Ok(Ok(values)) => Outcome::Good(values),
            Ok(Err(error)) => Outcome::Failed(error),
            Err(panic) => {
                // It may have been left in any state.
                *scratch = Scratch::default();
                Outcome::Failed(defect(panic.as_ref()))
            }
        }
    }

    fn transform_fields(
        &self,
        raw: &Batch,
        position: usize,
        scratch: &mut Scratch,
    ) -> Result<Vec<Value>, TransformError> {
        let sample = raw.get(self.places[position] as usize);
        let mut parts = Parts::new(sample.map(|sample| sample.bytes()).unwrap_or_default());
        let draw = self.recipe.draw(self.step, self.samples[position], self.places[position]);
        let mut values = Vec::new();
        for (field, place) in self.recipe.fields.iter().zip(&self.layout) {
            let row = match (place, &self.block) {
                (&Some((start, length)), Some(block)) => {
                    // SAFETY: this row is this sample's, which one thread has claimed.
                    Some(unsafe { block.part(start + position * length, length) })
                }
                (Some(_), None) => Some(&mut [][..]),
                (None, _) => None,
            };
            values.extend(field.run(&mut parts, draw, scratch, row)?);
        }
        Ok(values)
    }

    /// Puts the batch together. Called once, when no thread works on it any more.
    fn finish(&self) {
        drop(lock(&self.raw).take());
        let mut good = Vec::with_capacity(self.len());
        let mut failures = Vec::new();
        for (position, outcome) in self.outcomes.iter().enumerate() {
            match std::mem::replace(&mut *lock(outcome), Outcome::Pending) {
                Outcome::Good(values) => good.push(Some(values)),
                Outcome::Failed(error) => {
                    good.push(None);
                    failures.push(Failed { position: position as u32, error });
                }
                Outcome::Pending => unreachable!("all samples of the batch are transformed"),
            }
        }
        let made = self.put_together(good, failures);
        *lock(&self.done) = Some(made);
    }

    fn put_together(
        &self,
        good: Vec<Option<Vec<Value>>>,
        failures: Vec<Failed>,
    ) -> Result<Made, EngineError> {
        if self.recipe.on_error == BadSamples::Raise
            && let Some(Failed { position, error }) = failures.first()
        {
            let sample = self.samples[*position as usize];
            return Err(EngineError::BadTransform { sample, error: error.clone() });
        }
        let kept = (!failures.is_empty()).then(|| {
            let is_good = |position: usize| good[position].is_some();
            kept_positions(self.len(), is_good, self.recipe.on_error)
        });
        let rows = kept.as_ref().map_or(self.len(), Vec::len);
        let mut loose = loose_columns(good, kept.as_deref()).into_iter();
        let columns = self.recipe.fields.iter().zip(&self.layout).map(|(field, place)| {
            let output = field.transform.as_ref().map(|transform| transform.output());
            if let (&Some((offset, length)), Some((output, dtype))) =
                (place, output.and_then(|output| Some((output, output.dtype?))))
            {
                self.move_rows(offset, length, kept.as_deref().unwrap_or_default());
                let row = output.shape.iter().flatten().copied();
                return Column::Rows(Rows {
                    dtype,
                    shape: std::iter::once(rows).chain(row).collect(),
                    offset,
                    bytes: rows * length,
                });
            }
            let values = loose.next().unwrap_or_default();
            let settled = output.and_then(|output| output.shape.as_deref());
            settled.and_then(|row| stacked(row, &values)).unwrap_or(Column::Loose(values))
        });
        Ok(Made {
            step: self.step,
            samples: self.samples.clone(),
            columns: columns.collect(),
            kept,
            failures,
            block: self.block.clone(),
            read_bytes: self.read_bytes,
            missing: self.missing.clone(),
        })
    }

    /// Brings the rows that are kept to their places. A row that goes down is not needed where it
    /// was by any later one; one that takes the place of a failed one stays where it is too.
    fn move_rows(&self, start: usize, length: usize, kept: &[u32]) {
        let Some(block) = &self.block else { return };
        // SAFETY: nobody transforms any more, and nobody has been given the batch yet.
        let rows = unsafe { block.part(start, self.len() * length) };
        for (to, &from) in kept.iter().enumerate() {
            let from = from as usize;
            if from != to {
                rows.copy_within(from * length..(from + 1) * length, to * length);
            }
        }
    }
}

/// By field where its rows begin and how long one is; and how much memory that takes.
#[allow(clippy::type_complexity)]
fn lay_out(
    fields: &[Field],
    samples: usize,
) -> Result<(Box<[Option<(usize, usize)>]>, usize), EngineError> {
    let mut end = 0_usize;
    let mut place = |field: &Field| {
        let Some(length) = field.row_bytes() else { return Ok(None) };
        let start = end;
        let rows =
            length.checked_mul(samples).and_then(|rows| rows.checked_next_multiple_of(ALIGN));
        let next = rows.and_then(|rows| start.checked_add(rows));
        end = next.ok_or(EngineError::NoMemory { bytes: Bytes(u64::MAX) })?;
        Ok(Some((start, length)))
    };
    let layout = fields.iter().map(&mut place).collect::<Result<_, EngineError>>()?;
    Ok((layout, end))
}

/// Which samples make up the batch: without failed ones, or with the next good one instead; for
/// those at the end with the first one.
fn kept_positions(
    samples: usize,
    is_good: impl Fn(usize) -> bool,
    on_error: BadSamples,
) -> Vec<u32> {
    let mut kept: Vec<u32> = (0..samples).filter(|&at| is_good(at)).map(|at| at as u32).collect();
    if on_error != BadSamples::Replace || kept.is_empty() {
        return kept;
    }
    let mut next = kept[0];
    kept = (0..samples)
        .rev()
        .map(|at| {
            next = if is_good(at) { at as u32 } else { next };
            next
        })
        .collect();
    kept.reverse();
    kept
}

/// Values by field instead of by sample.
fn loose_columns(good: Vec<Option<Vec<Value>>>, kept: Option<&[u32]>) -> Vec<Vec<Value>> {
    let fields = good.iter().flatten().map(Vec::len).next().unwrap_or(0);
    let samples: Vec<Vec<Value>> = match kept {
        None => good.into_iter().flatten().collect(),
        Some(kept) => kept.iter().filter_map(|&at| good[at as usize].clone()).collect(),
    };
    let mut columns: Vec<Vec<Value>> = Vec::new();
    columns.resize_with(fields, || Vec::with_capacity(samples.len()));
    for sample in samples {
        for (column, value) in columns.iter_mut().zip(sample) {
            column.push(value);
        }
    }
    columns
}

/// Rows of a shape that the chain settles, where it leaves open what kind of numbers they have; none
/// if samples have different kinds.
fn stacked(row: &[usize], values: &[Value]) -> Option<Column> {
    let arrays = values.iter().map(|value| match value {
        Value::Array(array) if array.shape == row => Some(array),
        _ => None,
    });
    let arrays: Vec<&Array> = arrays.collect::<Option<_>>()?;
    let dtype = arrays.first()?.dtype;
    if arrays.iter().any(|array| array.dtype != dtype) {
        return None;
    }
    let shape = std::iter::once(arrays.len()).chain(row.iter().copied()).collect();
    let bytes = arrays.iter().flat_map(|array| &array.bytes).copied().collect();
    Some(Column::Stacked(Array { dtype, shape, bytes }))
}

fn defect(panic: &(dyn Any + Send)) -> TransformError {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    TransformError(format!("the transform ended with a panic, a defect of belady: {text}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rule of `kept_positions` in python/belady/decode.py.
    fn naive(good: &[bool], replace: bool) -> Vec<u32> {
        let kept: Vec<u32> = (0..good.len() as u32).filter(|&at| good[at as usize]).collect();
        if !replace || kept.is_empty() {
            return kept;
        }
        let next = |at| kept.iter().copied().find(|&other| other >= at).unwrap_or(kept[0]);
        (0..good.len() as u32).map(next).collect()
    }

    proptest! {
        #[test]
        fn failed_samples_are_left_out_or_replaced(good in prop::collection::vec(any::<bool>(), 0..40)) {
            for (on_error, replace) in [(BadSamples::Skip, false), (BadSamples::Replace, true)] {
                let kept = kept_positions(good.len(), |at| good[at], on_error);
                prop_assert_eq!(kept, naive(&good, replace));
            }
        }
    }
}
