//! A batch that is being transformed.
//!
//! Threads claim its samples one by one. The thread that finishes the last one assembles the batch.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use belady_base::SampleId;
use belady_base::sync::atomic::{AtomicUsize, Ordering};
use belady_base::sync::{Arc, Mutex, lock};
use belady_control::model::Bytes;
use belady_control::sampler::Step;
use belady_transform::{Array, Draw, Scratch, TransformError};

use super::field::{FieldSpec, SampleParts, Value};
use super::memory::{ALIGN, BlockPool, OutputBlock};
use super::output::{FailedSample, OutputBatch, OutputColumn, RowArray};
use crate::EngineError;
use crate::config::BadSamples;
use crate::deliver::Batch;
use crate::job::{SkippedSamples, ThreadMeter};
use crate::metrics::Metrics;

/// The transform of every batch.
#[derive(Debug)]
pub struct Recipe {
    pub fields: Vec<FieldSpec>,
    pub seed: u64,
    pub first: Step,
    pub repeats: bool,
    pub on_error: BadSamples,
}

impl Recipe {
    /// Returns the random draws of the sample at a position of a batch.
    fn draw(&self, step: Step, sample: SampleId, position: u32) -> Draw {
        let epoch = self.first.epoch.wrapping_add(step.epoch);
        let draw = Draw { seed: self.seed, epoch, sample };
        if !self.repeats {
            return draw;
        }
        let before = if step.epoch == 0 { self.first.iteration } else { 0 };
        draw.at_place(before.wrapping_add(step.iteration), position)
    }
}

/// A batch that is being transformed.
#[derive(Debug)]
pub struct BatchTransform {
    recipe: Arc<Recipe>,
    step: Step,
    samples: Box<[SampleId]>,
    /// The index of each in the raw batch, which counts skipped ones too.
    indices: Box<[u32]>,
    read_bytes: u64,
    skipped: SkippedSamples,
    /// `None` when all samples are transformed.
    raw: Mutex<Option<Arc<Batch>>>,
    block: Option<Arc<OutputBlock>>,
    /// By field: the offset of its rows and the length of one, if it has rows.
    layout: Box<[Option<(usize, usize)>]>,
    next: AtomicUsize,
    left: AtomicUsize,
    outcomes: Box<[Mutex<SampleOutcome>]>,
    done: Mutex<Option<Result<OutputBatch, EngineError>>>,
}

/// The outcome of a sample: the values that are not in rows, or the error.
#[derive(Debug)]
enum SampleOutcome {
    Pending,
    Good(Vec<Value>),
    Failed(TransformError),
}

impl BatchTransform {
    pub fn new(
        recipe: &Arc<Recipe>,
        raw: Batch,
        pool: &Arc<BlockPool>,
    ) -> Result<Self, EngineError> {
        let there = (0..raw.len()).filter_map(|at| raw.get(at).map(|sample| (at, sample)));
        let mut read_bytes = 0;
        let (indices, samples): (Vec<u32>, Vec<SampleId>) = there
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
            indices: indices.into(),
            read_bytes,
            skipped: raw.skipped().clone(),
            raw: Mutex::new(Some(Arc::new(raw))),
            block,
            layout,
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(count),
            outcomes: (0..count).map(|_| Mutex::new(SampleOutcome::Pending)).collect(),
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

    /// Returns the number of samples that are not transformed yet.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Returns whether there are samples that no thread has claimed.
    pub fn is_claimable(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.len()
    }

    /// Returns the output batch, once, when it is done.
    pub fn take(&self) -> Option<Result<OutputBatch, EngineError>> {
        lock(&self.done).take()
    }

    pub fn is_done(&self) -> bool {
        lock(&self.done).is_some()
    }

    /// Claims and transforms samples until all are claimed or it is to `stop`; returns whether the
    /// batch is done now.
    pub fn run(
        &self,
        scratch: &mut Scratch,
        metrics: &Metrics,
        meter: &ThreadMeter,
        stop: impl Fn() -> bool,
    ) -> bool {
        let Some(raw) = lock(&self.raw).clone() else { return false };
        let mut tally = meter.transform();
        let mut began = Instant::now();
        while !stop() {
            let position = self.next.fetch_add(1, Ordering::Relaxed);
            if position >= self.len() {
                break;
            }
            let outcome = self.transform(&raw, position, scratch);
            let now = Instant::now();
            metrics.transformed(now - began, matches!(outcome, SampleOutcome::Failed(_)));
            let sample = raw.get(self.indices[position] as usize);
            tally.count(sample.map_or(0, |sample| sample.bytes().len() as u64), now - began);
            began = now;
            *lock(&self.outcomes[position]) = outcome;
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                drop(raw);
                // Before the consumer gets the batch, so that what it has got is counted.
                drop(tally);
                self.finish();
                return true;
            }
        }
        false
    }

    fn transform(&self, raw: &Batch, position: usize, scratch: &mut Scratch) -> SampleOutcome {
        let transform = AssertUnwindSafe(|| self.transform_fields(raw, position, scratch));
        match catch_unwind(transform) {
            Ok(Ok(values)) => SampleOutcome::Good(values),
            Ok(Err(error)) => SampleOutcome::Failed(error),
            Err(panic) => {
                // The panic may have left it in any state.
                *scratch = Scratch::default();
                SampleOutcome::Failed(defect(panic.as_ref()))
            }
        }
    }

    fn transform_fields(
        &self,
        raw: &Batch,
        position: usize,
        scratch: &mut Scratch,
    ) -> Result<Vec<Value>, TransformError> {
        let sample = raw.get(self.indices[position] as usize);
        let mut parts = SampleParts::new(sample.map(|sample| sample.bytes()).unwrap_or_default());
        let draw = self.recipe.draw(self.step, self.samples[position], self.indices[position]);
        let mut values = Vec::new();
        for (field, rows) in self.recipe.fields.iter().zip(&self.layout) {
            let row = match (rows, &self.block) {
                (&Some((start, length)), Some(block)) => {
                    // SAFETY: the row belongs to this sample, which one thread has claimed.
                    Some(unsafe { block.part(start + position * length, length) })
                }
                (Some(_), None) => Some(&mut [][..]),
                (None, _) => None,
            };
            values.extend(field.run(&mut parts, draw, scratch, row)?);
        }
        Ok(values)
    }

    /// Assembles the batch. Called once, after the last sample.
    fn finish(&self) {
        drop(lock(&self.raw).take());
        let mut good = Vec::with_capacity(self.len());
        let mut failures = Vec::new();
        for (position, outcome) in self.outcomes.iter().enumerate() {
            match std::mem::replace(&mut *lock(outcome), SampleOutcome::Pending) {
                SampleOutcome::Good(values) => good.push(Some(values)),
                SampleOutcome::Failed(error) => {
                    good.push(None);
                    failures.push(FailedSample { position: position as u32, error });
                }
                SampleOutcome::Pending => unreachable!("all samples of the batch are transformed"),
            }
        }
        *lock(&self.done) = Some(self.assemble(good, failures));
    }

    fn assemble(
        &self,
        good: Vec<Option<Vec<Value>>>,
        failures: Vec<FailedSample>,
    ) -> Result<OutputBatch, EngineError> {
        if self.recipe.on_error == BadSamples::Raise
            && let Some(FailedSample { position, error }) = failures.first()
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
        let columns = self.recipe.fields.iter().zip(&self.layout).map(|(field, rows_at)| {
            let output = field.transform.as_ref().map(|transform| transform.output());
            if let (&Some((offset, length)), Some((output, dtype))) =
                (rows_at, output.and_then(|output| Some((output, output.dtype?))))
            {
                self.move_rows(offset, length, kept.as_deref().unwrap_or_default());
                let row = output.shape.iter().flatten().copied();
                return OutputColumn::Rows(RowArray {
                    dtype,
                    shape: std::iter::once(rows).chain(row).collect(),
                    offset,
                    bytes: rows * length,
                });
            }
            let values = loose.next().unwrap_or_default();
            let settled = output.and_then(|output| output.shape.as_deref());
            settled.and_then(|row| stacked(row, &values)).unwrap_or(OutputColumn::Loose(values))
        });
        Ok(OutputBatch {
            step: self.step,
            samples: self.samples.clone(),
            columns: columns.collect(),
            kept,
            failures,
            block: self.block.clone(),
            read_bytes: self.read_bytes,
            skipped: self.skipped.clone(),
        })
    }

    /// Moves the rows that are kept to their final positions. A row that moves down is not needed
    /// at its old position by a later one; a row that replaces a failed one is copied.
    fn move_rows(&self, start: usize, length: usize, kept: &[u32]) {
        let Some(block) = &self.block else { return };
        // SAFETY: all samples are transformed, and the batch is not delivered yet.
        let rows = unsafe { block.part(start, self.len() * length) };
        for (to, &from) in kept.iter().enumerate() {
            let from = from as usize;
            if from != to {
                rows.copy_within(from * length..(from + 1) * length, to * length);
            }
        }
    }
}

/// Returns by field the offset of its rows and the length of one, and the bytes of all fields.
#[allow(clippy::type_complexity)]
fn lay_out(
    fields: &[FieldSpec],
    samples: usize,
) -> Result<(Box<[Option<(usize, usize)>]>, usize), EngineError> {
    let mut end = 0_usize;
    let mut place = |field: &FieldSpec| {
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

/// Returns the samples of the batch: without failed ones, or with the next good one in their place;
/// at the end of the batch, with the first good one.
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

/// Transposes values from samples to fields.
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

/// Stacks rows whose shape is known, but whose type of numbers is not; returns `None` if the types
/// differ.
fn stacked(row: &[usize], values: &[Value]) -> Option<OutputColumn> {
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
    Some(OutputColumn::Stacked(Array { dtype, shape, bytes }))
}

fn defect(panic: &(dyn Any + Send)) -> TransformError {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    TransformError(format!("the transform panicked, which is a defect of belady: {text}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The reference: `kept_positions` in python/belady/_pipeline/decode.py.
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
