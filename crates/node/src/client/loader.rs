//! Takes the batches of one rank from a node engine, without a copy.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use belady_base::shared_memory::SharedMapping;
use belady_base::sync::Arc;
use belady_data::source::Source;
use belady_engine::{
    Batch, BatchOwner, DeliveredBytes, Delivery, EngineError, MappedMemory, MappedPlace,
    SharedRegion, SkippedSamples,
};

use super::job::{NodeJob, RankMemory};
use super::monitor::NodeMonitor;
use super::transformed::NodeTransformed;
use crate::message::{FromRank, RingBatchPlaces, SamplePlace, ToRank};
use crate::spec::TransformRecipe;

/// A wait that takes this long is told to the engine, which may know why no batch comes.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// Delivers the batches of one rank, in order. Batches stay valid when it is dropped.
#[derive(Debug)]
pub struct NodeLoader {
    pub(super) job: Arc<NodeJob>,
    memory: Arc<RankMemory>,
    source: Arc<dyn Source>,
    has_begun: bool,
    pub(super) waits: MessageWait,
}

/// The wait for the next message of an engine.
#[derive(Debug, Default)]
pub struct MessageWait {
    /// How long the caller has waited for the batch that it asked for last.
    waited: Duration,
    is_told: bool,
    has_ended: bool,
}

impl MessageWait {
    /// Returns the next message if it comes within `patience`; `None` if it does not.
    pub fn next(
        &mut self,
        job: &NodeJob,
        patience: Duration,
    ) -> Result<Option<crate::connection::Received<ToRank>>, EngineError> {
        if self.has_ended {
            return Ok(Some((ToRank::Ended, vec![])));
        }
        let began = Instant::now();
        let deadline = began.checked_add(patience);
        let is_there = loop {
            let left =
                deadline.map_or(TELL_AFTER, |end| end.saturating_duration_since(Instant::now()));
            if job.data.wait(left.min(TELL_AFTER)).map_err(|error| job.lost(&error))? {
                break true;
            }
            if !self.is_told && self.waited + began.elapsed() >= TELL_AFTER {
                self.is_told = true;
                job.send(&FromRank::Waiting(true));
            }
            if deadline.is_some_and(|end| Instant::now() >= end) {
                break false;
            }
        };
        self.waited += began.elapsed();
        if !is_there {
            return Ok(None);
        }
        let received = job.receive()?;
        if std::mem::take(&mut self.is_told) {
            job.send(&FromRank::Waiting(false));
        }
        let waited_ns = std::mem::take(&mut self.waited).as_nanos() as u64;
        self.has_ended = matches!(received.0, ToRank::Ended);
        if !self.has_ended {
            job.send(&FromRank::Taken { waited_ns });
        }
        Ok(Some(received))
    }
}

impl NodeLoader {
    pub(super) fn new(job: Arc<NodeJob>, memory: Arc<RankMemory>, source: Arc<dyn Source>) -> Self {
        Self { job, memory, source, has_begun: false, waits: MessageWait::default() }
    }

    /// Returns the next batch if it comes within `patience`. Repeated calls count as one wait.
    ///
    /// # Errors
    /// An error about one sample takes the place of its batch; the next call returns the batch
    /// after it. Any other error ends the job.
    pub fn next_batch_timeout(&mut self, patience: Duration) -> Result<Delivery, EngineError> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.job.send(&FromRank::Begin(None));
        }
        match self.waits.next(&self.job, patience)? {
            None => Ok(Delivery::TimedOut),
            Some((ToRank::Ended, _)) => Ok(Delivery::Ended),
            Some((ToRank::Failed { class, text }, _)) => Err(self.job.reported(class, text)),
            Some((ToRank::Batch(places), _)) => self.batch(places).map(Delivery::Batch),
            Some(_) => Err(self.job.lost(&std::io::ErrorKind::InvalidData.into())),
        }
    }

    fn batch(&self, places: RingBatchPlaces) -> Result<Batch, EngineError> {
        let mut own = vec![];
        let mut samples = vec![];
        for place in places.samples {
            samples.push(match place {
                None => None,
                Some(SamplePlace::Ring { sample, offset, length }) => {
                    let place = (MappedMemory::Ring, offset, length);
                    Some(self.mapped(sample, Some(&self.memory.ring), place)?)
                }
                Some(SamplePlace::Tier { tier, sample, offset, length }) => {
                    let place = (MappedMemory::Tier(tier), offset, length);
                    Some(self.mapped(sample, self.memory.tier(tier), place)?)
                }
                Some(SamplePlace::Here { sample, bytes }) => {
                    let (start, length) = (bytes.as_ptr(), bytes.len());
                    own.push(bytes);
                    Some(DeliveredBytes {
                        id: sample,
                        start,
                        length,
                        is_in_slot: false,
                        mapped: None,
                    })
                }
            });
        }
        let skipped = SkippedSamples::from_texts(places.skipped);
        skipped.report();
        let owner = Arc::new(HeldPlaces {
            number: places.number,
            _own: own,
            _memory: self.memory.clone(),
            job: self.job.clone(),
        });
        let (step, source) = (places.step.into(), self.source.clone());
        // SAFETY: the engine keeps what it has sent until the owner releases it, and does not write
        // to it; the owner holds the mapping and the samples that came in the message.
        Ok(unsafe { Batch::of_owner(step, samples, skipped, source, owner) })
    }

    /// Returns where a sample is in memory of the engine.
    fn mapped(
        &self,
        id: u32,
        map: Option<&SharedMapping>,
        (memory, offset, length): (MappedMemory, u64, u64),
    ) -> Result<DeliveredBytes, EngineError> {
        let (offset, length) = (offset as usize, length as usize);
        let invalid = || self.job.lost(&std::io::ErrorKind::InvalidData.into());
        let map = map.ok_or_else(invalid)?;
        if offset.checked_add(length).is_none_or(|end| end > map.len()) {
            return Err(invalid());
        }
        // SAFETY: within the mapping, as was checked.
        let start = unsafe { map.start().as_ptr().add(offset) }.cast_const();
        let (is_in_slot, mapped) =
            (memory == MappedMemory::Ring, Some(MappedPlace { memory, offset }));
        Ok(DeliveredBytes { id, start, length, is_in_slot, mapped })
    }

    /// Returns the memory of the ring, for worker processes.
    pub fn shared_memory(&self) -> SharedRegion<'_> {
        let ring = &self.memory.ring;
        SharedRegion { fd: ring.as_fd(), length: ring.len() }
    }

    /// Returns a monitor of the job, which other threads can use while this one waits for a batch.
    pub fn monitor(&self) -> NodeMonitor {
        NodeMonitor(self.job.clone())
    }

    /// Lets the engine transform the batches.
    ///
    /// # Errors
    /// If the chains cannot be sent.
    pub fn transformed(
        self,
        recipe: &TransformRecipe,
        on_gone: Option<belady_engine::OnGone>,
    ) -> Result<NodeTransformed, EngineError> {
        NodeTransformed::new(self, recipe, on_gone)
    }
}

impl Drop for NodeLoader {
    fn drop(&mut self) {
        self.job.leave();
    }
}

/// A batch of this rank, in memory of the engine.
#[derive(Debug)]
struct HeldPlaces {
    number: u64,
    _own: Vec<Vec<u8>>,
    _memory: Arc<RankMemory>,
    job: Arc<NodeJob>,
}

impl BatchOwner for HeldPlaces {}

impl Drop for HeldPlaces {
    fn drop(&mut self) {
        self.job.send(&FromRank::Release(self.number));
    }
}
