//! Takes transformed batches from a node engine. Their arrays lie in memory that the engine has
//! sent, and that is used again when the last holder of a batch drops it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belady_base::shared_memory::SharedMapping;
use belady_base::sync::{Arc, Mutex, lock};
use belady_engine::{
    BlockHome, BlockMemory, Delivery, EngineError, ErrorClass, FailedSample, OnGone, OutputBatch,
    OutputBlock, OutputColumn, RowArray, SkippedSamples, Value,
};
use belady_transform::TransformError;

use super::job::NodeJob;
use super::loader::NodeLoader;
use super::monitor::NodeMonitor;
use crate::message::{BlockPlace, ColumnPlace, FromRank, OutputPlaces, ToRank, WireValue};
use crate::spec::TransformRecipe;

/// Delivers transformed batches, in order.
#[derive(Debug)]
pub struct NodeTransformed {
    loader: Mutex<NodeLoader>,
    monitor: NodeMonitor,
    blocks: Arc<NodeBlocks>,
    is_closed: AtomicBool,
}

/// The memory that the engine has sent, while no batch uses it.
struct NodeBlocks {
    job: Arc<NodeJob>,
    /// By the engine's name for it.
    free: Mutex<HashMap<u64, BlockMemory>>,
    on_gone: Option<OnGone>,
}

/// Takes back the memory of one batch.
#[derive(Debug)]
struct BorrowedBlock {
    /// The batch.
    number: u64,
    memory: u64,
    blocks: Arc<NodeBlocks>,
}

impl NodeTransformed {
    pub(super) fn new(
        loader: NodeLoader,
        recipe: &TransformRecipe,
        on_gone: Option<OnGone>,
    ) -> Result<Self, EngineError> {
        let spec = recipe.spec().map_err(|error| EngineError::Reported {
            class: ErrorClass::Configuration,
            text: error.to_string(),
        })?;
        loader.job.send(&FromRank::Begin(Some(spec)));
        let job = loader.job.clone();
        let blocks = Arc::new(NodeBlocks { job, free: Mutex::default(), on_gone });
        let monitor = loader.monitor();
        let (loader, is_closed) = (Mutex::new(loader), AtomicBool::new(false));
        Ok(Self { loader, monitor, blocks, is_closed })
    }

    /// Returns the next batch if it comes within `patience`.
    ///
    /// # Errors
    /// After an error about a sample, the next call returns the batch after it.
    pub fn next_batch_timeout(
        &self,
        patience: Duration,
    ) -> Result<Delivery<OutputBatch>, EngineError> {
        let mut loader = lock(&self.loader);
        if self.is_closed.load(Ordering::Acquire) {
            return Err(EngineError::Stopped);
        }
        let NodeLoader { job, waits, .. } = &mut *loader;
        match waits.next(job, patience)? {
            None => Ok(Delivery::TimedOut),
            Some((ToRank::Ended, _)) => Ok(Delivery::Ended),
            Some((ToRank::Failed { class, text }, _)) => Err(job.reported(class, text)),
            Some((ToRank::Output(places), files)) => {
                let batch = self.batch(places, files).map_err(|error| job.lost(&error))?;
                batch.skipped.report();
                Ok(Delivery::Batch(batch))
            }
            Some(_) => Err(job.lost(&io::ErrorKind::InvalidData.into())),
        }
    }

    fn batch(&self, places: OutputPlaces, files: Vec<OwnedFd>) -> io::Result<OutputBatch> {
        let block = if let Some(place) = places.block {
            Some(self.blocks.take(places.number, place, files)?)
        } else {
            self.blocks.job.send(&FromRank::Release(places.number));
            None
        };
        let length = block.as_ref().map_or(0, OutputBlock::len);
        let columns = places.columns.into_iter().map(|place| column(place, length));
        let failed = |(position, text)| FailedSample { position, error: TransformError(text) };
        Ok(OutputBatch {
            step: places.step.into(),
            samples: places.samples.into(),
            kept: places.kept,
            failures: places.failures.into_iter().map(failed).collect(),
            columns: columns.collect::<io::Result<_>>()?,
            block: block.map(Arc::new),
            read_bytes: places.read_bytes,
            skipped: SkippedSamples::from_texts(places.skipped),
        })
    }

    /// Returns what it waits for, as words that follow "waits for".
    pub fn waiting_for(&self) -> String {
        self.monitor.waiting_for()
    }

    /// Returns a monitor of the job behind the stage.
    pub fn monitor(&self) -> &NodeMonitor {
        &self.monitor
    }

    /// Ends the job for this rank. A thread that waits for a batch gets
    /// [`EngineError::Stopped`].
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let loader = lock(&self.loader);
        loader.job.leave();
    }
}

impl NodeBlocks {
    fn take(
        self: &Arc<Self>,
        number: u64,
        place: BlockPlace,
        mut files: Vec<OwnedFd>,
    ) -> io::Result<OutputBlock> {
        let memory = if place.is_new {
            let file = files.pop().ok_or_else(|| io::Error::other("it sent no memory"))?;
            BlockMemory::of(SharedMapping::attach(file, place.length as usize, true)?)
        } else {
            let known = lock(&self.free).remove(&place.memory);
            known.ok_or_else(|| io::Error::other("it sent memory that is in use"))?
        };
        let home = BorrowedBlock { number, memory: place.memory, blocks: self.clone() };
        Ok(OutputBlock::new(memory, Arc::new(home)))
    }
}

impl BlockHome for BorrowedBlock {
    fn give_back(&self, memory: BlockMemory) {
        lock(&self.blocks.free).insert(self.memory, memory);
        self.blocks.job.send(&FromRank::Release(self.number));
    }
}

impl std::fmt::Debug for NodeBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBlocks").field("job", &self.job).finish_non_exhaustive()
    }
}

impl Drop for NodeBlocks {
    fn drop(&mut self) {
        let free = std::mem::take(&mut *lock(&self.free));
        if let Some(OnGone(tell)) = &self.on_gone {
            for memory in free.values().filter(|memory| memory.is_announced()) {
                tell(memory.start().as_ptr() as usize, memory.len());
            }
        }
    }
}

fn column(place: ColumnPlace, block: usize) -> io::Result<OutputColumn> {
    Ok(match place {
        ColumnPlace::Rows { dtype, shape, offset, bytes } => {
            if offset.checked_add(bytes).is_none_or(|end| end > block) {
                return Err(io::Error::other("rows lie outside of their memory"));
            }
            OutputColumn::Rows(RowArray { dtype, shape, offset, bytes })
        }
        ColumnPlace::Stacked(array) => OutputColumn::Stacked(array.into()),
        ColumnPlace::Loose(values) => {
            let value = |value| match value {
                WireValue::Array(array) => Value::Array(array.into()),
                WireValue::Bytes(bytes) => Value::Bytes(bytes),
            };
            OutputColumn::Loose(values.into_iter().map(value).collect())
        }
    })
}
