//! One rank of a job: reads its messages, and sends its batches.
//!
//! A few batches are sent before the rank has asked for them ([`AHEAD`]), so that a rank that asks
//! finds the next batch in its socket. What is sent stays held until the rank releases it, or its
//! connection ends: a rank that has closed its loader may still hold batches.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;

use belady_base::sync::{Arc, Condvar, Mutex, lock};
use belady_control::sampler::Step;
use belady_engine::{
    Batch, Delivery, EngineError, ErrorClass, Loader, LoaderMonitor, MappedMemory, MappedPlace,
    OutputBatch, OutputColumn, Transformed, Value,
};

use super::run::RunMember;
use super::{NodeServer, gathering};
use crate::message::{
    Attachment, BlockPlace, ColumnPlace, FromRank, OutputPlaces, Query, Reply, RingBatchPlaces,
    SamplePlace, TierFigures, ToRank, WireArray, WireValue,
};
use crate::message_socket::MessageSocket;
use crate::spec::TransformSpec;

/// Batches that are sent before the rank asks: one while it takes another.
const AHEAD: u32 = 2;
/// How often a thread that waits for a batch checks whether the rank has gone.
const TICK: Duration = Duration::from_millis(50);

/// What the two threads of a lane share.
#[derive(Debug)]
struct RankLane {
    data: Arc<MessageSocket>,
    state: Mutex<LaneState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Batches that may be sent.
    credits: u32,
    /// What was sent and not taken: step, samples and bytes; `None` for errors.
    sent: VecDeque<Option<(Step, u64, u64)>>,
    /// What the rank holds, by number.
    held: HashMap<u64, HeldBatch>,
    has_left: bool,
}

/// Keeps the memory of a batch that a rank holds.
#[derive(Debug)]
#[expect(dead_code, reason = "dropping it releases the batch")]
enum HeldBatch {
    Ring(Batch),
    Output(Option<Arc<belady_engine::OutputBlock>>),
}

/// Lists a lane in the status of the process while this exists.
struct ListedLane<'a> {
    server: &'a NodeServer,
    key: crate::message::NodeJobId,
}

impl Drop for ListedLane<'_> {
    fn drop(&mut self) {
        let mut lanes = lock(&self.server.lanes);
        if let Some(at) = lanes.iter().position(|(key, _)| *key == self.key) {
            lanes.swap_remove(at);
        }
    }
}

/// Serves a rank from its attachment to the end of its connection.
pub fn run(server: &Arc<NodeServer>, attachment: Attachment, descriptors: Vec<OwnedFd>) {
    let mut descriptors = descriptors.into_iter();
    let mut connection =
        || descriptors.next().and_then(|fd| MessageSocket::new(UnixStream::from(fd)).ok());
    let (Some(data), Some(replies), Some(orders)) = (connection(), connection(), connection())
    else {
        return;
    };
    let (key, name) = (attachment.place, attachment.job.name().to_owned());
    lock(&server.lanes).push((key, name));
    let _listed = ListedLane { server, key };
    // The last rank to come starts the job.
    let member = RunMember::new(server, key.run);
    let started = gathering::attach(server, attachment, orders, descriptors.collect());
    drop(member);
    // The sender is gone if the rank attached once more, or all ranks have gone.
    let Ok(started) = started.recv() else { return };
    let loader = match started {
        Ok(loader) => loader,
        Err((class, text)) => {
            // The rank may have gone.
            let _ = data.send(&ToRank::Failed { class, text });
            return;
        }
    };
    let monitor = loader.monitor();
    if send_started(&data, &loader).is_err() {
        return;
    }
    let lane = Arc::new(RankLane {
        data: Arc::new(data),
        state: Mutex::new(LaneState { credits: AHEAD, ..LaneState::default() }),
        changed: Condvar::new(),
    });
    lane.serve(loader, &monitor, &replies);
    let held = std::mem::take(&mut lock(&lane.state).held);
    drop(held);
}

/// Sends the memory in which the rank finds its batches.
fn send_started(data: &MessageSocket, loader: &Loader) -> std::io::Result<()> {
    let ring = loader.shared_memory().ok_or(std::io::ErrorKind::NotFound)?;
    let (mut tiers, mut descriptors) = (vec![], vec![ring.fd]);
    for tier in loader.shared_tiers() {
        tiers.push(tier.map(|memory| memory.length as u64));
        descriptors.extend(tier.map(|memory| memory.fd));
    }
    data.send_with(&ToRank::Started { length: ring.length as u64, tiers }, &descriptors)
}

impl RankLane {
    /// Reads the rank's messages until its connection ends.
    fn serve(self: &Arc<Self>, loader: Loader, monitor: &LoaderMonitor, replies: &MessageSocket) {
        let mut loader = Some(loader);
        let mut sender = None;
        while let Ok(Some((message, _))) = self.data.receive() {
            match message {
                FromRank::Begin(transform) => {
                    let Some(loader) = loader.take() else { continue };
                    sender = self.begin(loader, transform);
                }
                FromRank::Taken { waited_ns } => self.taken(monitor, waited_ns),
                FromRank::Waiting(waits) => monitor.set_waiting(waits),
                FromRank::Release(number) => {
                    let released = lock(&self.state).held.remove(&number);
                    drop(released);
                }
                FromRank::BeginEpoch(epoch) => monitor.begin_epoch(epoch),
                FromRank::EndEpoch => monitor.end_epoch(),
                FromRank::Query(query) => {
                    if replies.send(&answer(query, monitor)).is_err() {
                        break;
                    }
                }
                FromRank::Leave => {
                    self.leave();
                    loader = None;
                    join(sender.take());
                    if self.data.send(&ToRank::Left).is_err() {
                        break;
                    }
                }
            }
        }
        self.leave();
        drop(loader);
        join(sender);
    }

    fn begin(
        self: &Arc<Self>,
        mut loader: Loader,
        transform: Option<TransformSpec>,
    ) -> Option<JoinHandle<()>> {
        let lane = self.clone();
        let thread = std::thread::Builder::new().name("belady-send".into());
        let spawned = match transform {
            None => {
                loader.feed_stage();
                thread.spawn(move || lane.send_batches(loader))
            }
            Some(spec) => match transformed(loader, spec) {
                Ok(stage) => thread.spawn(move || lane.send_outputs(&stage)),
                Err(error) => {
                    self.fail(&error);
                    return None;
                }
            },
        };
        spawned.map_err(|error| self.fail(&EngineError::Threads(error))).ok()
    }

    fn fail(&self, error: &EngineError) {
        // The rank may have gone.
        let _ = self.data.send(&ToRank::Failed { class: error.class(), text: error.to_string() });
    }

    /// The rank has got the oldest batch that was sent.
    fn taken(&self, monitor: &LoaderMonitor, waited_ns: u64) {
        let mut state = lock(&self.state);
        state.credits += 1;
        let taken = state.sent.pop_front();
        drop(state);
        self.changed.notify_all();
        if let Some(Some((step, samples, bytes))) = taken {
            monitor.delivered(step, Duration::from_nanos(waited_ns), samples, bytes);
        }
    }

    fn leave(&self) {
        lock(&self.state).has_left = true;
        self.changed.notify_all();
    }

    /// Waits until a batch may be sent; returns false when the rank has gone.
    fn wait_for_credit(&self) -> bool {
        let mut state = lock(&self.state);
        while state.credits == 0 && !state.has_left {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.credits = state.credits.saturating_sub(1);
        !state.has_left
    }

    fn has_left(&self) -> bool {
        lock(&self.state).has_left
    }

    /// Sends the batches of a job as they are.
    fn send_batches(&self, mut loader: Loader) {
        for number in 0.. {
            if !self.wait_for_credit() {
                return;
            }
            let next = self.next(|| loader.next_batch_timeout(TICK));
            let Some(next) = next else { return };
            let sent = match next {
                Ok(Some(batch)) => self.send_batch(number, batch),
                Ok(None) => self.data.send(&ToRank::Ended),
                Err(error) => self.send_error(&error),
            };
            if sent.is_err() {
                return;
            }
        }
    }

    /// Sends the transformed batches of a job.
    fn send_outputs(&self, stage: &Transformed) {
        let mut known = HashSet::new();
        for number in 0.. {
            if !self.wait_for_credit() {
                return;
            }
            let Some(next) = self.next(|| stage.next_batch_timeout(TICK)) else { return };
            let sent = match next {
                Ok(Some(batch)) => self.send_output(number, batch, &mut known),
                Ok(None) => self.data.send(&ToRank::Ended),
                Err(error) => self.send_error(&error),
            };
            if sent.is_err() {
                return;
            }
        }
    }

    /// Waits for a batch, an error or the end (`Ok(None)`); `None` when the rank has gone.
    fn next<T>(
        &self,
        mut poll: impl FnMut() -> Result<Delivery<T>, EngineError>,
    ) -> Option<Result<Option<T>, EngineError>> {
        loop {
            match poll() {
                Ok(Delivery::TimedOut) if self.has_left() => return None,
                Ok(Delivery::TimedOut) => {}
                Ok(Delivery::Batch(batch)) => return Some(Ok(Some(batch))),
                Ok(Delivery::Ended) => return Some(Ok(None)),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn send_error(&self, error: &EngineError) -> std::io::Result<()> {
        lock(&self.state).sent.push_back(None);
        self.data.send(&ToRank::Failed { class: error.class(), text: error.to_string() })
    }

    fn send_batch(&self, number: u64, batch: Batch) -> std::io::Result<()> {
        let place = |index| {
            let sample = batch.get(index)?;
            let (sample, bytes) = (sample.id, sample.bytes());
            let length = bytes.len() as u64;
            let Some(MappedPlace { memory, offset }) = batch.places()[index]?.mapped else {
                return Some(SamplePlace::Here { sample, bytes: bytes.to_vec() });
            };
            let offset = offset as u64;
            Some(match memory {
                MappedMemory::Ring => SamplePlace::Ring { sample, offset, length },
                MappedMemory::Tier(tier) => SamplePlace::Tier { tier, sample, offset, length },
            })
        };
        let message = ToRank::Batch(RingBatchPlaces {
            number,
            step: batch.step().into(),
            samples: (0..batch.len()).map(place).collect(),
            skipped: batch.skipped().texts().map(str::to_owned).collect(),
        });
        let samples = batch.iter().count() as u64;
        let bytes = batch.iter().map(|sample| sample.bytes().len() as u64).sum();
        let step = batch.step();
        self.hold(number, (step, samples, bytes), HeldBatch::Ring(batch));
        self.data.send(&message)
    }

    fn send_output(
        &self,
        number: u64,
        batch: OutputBatch,
        known: &mut HashSet<u64>,
    ) -> std::io::Result<()> {
        let memory = batch.block.as_ref().and_then(|block| block.shared_memory());
        let block = memory.map(|memory| {
            let address = memory.start().as_ptr() as u64;
            let is_new = known.insert(address);
            BlockPlace { memory: address, length: memory.len() as u64, is_new }
        });
        let figures = (batch.step, batch.samples.len() as u64, batch.read_bytes);
        let held = batch.block.clone();
        let message = ToRank::Output(OutputPlaces {
            number,
            step: batch.step.into(),
            samples: batch.samples.to_vec(),
            kept: batch.kept,
            failures: batch
                .failures
                .into_iter()
                .map(|failed| (failed.position, failed.error.to_string()))
                .collect(),
            columns: batch.columns.into_iter().map(column).collect(),
            block,
            read_bytes: batch.read_bytes,
            skipped: batch.skipped.texts().map(str::to_owned).collect(),
        });
        self.hold(number, figures, HeldBatch::Output(held.clone()));
        let memory = held.as_ref().and_then(|block| block.shared_memory());
        let descriptor = memory.filter(|_| block.is_some_and(|block| block.is_new));
        let descriptors: Vec<BorrowedFd<'_>> =
            descriptor.iter().map(|memory| memory.as_fd()).collect();
        self.data.send_with(&message, &descriptors)
    }

    fn hold(&self, number: u64, figures: (Step, u64, u64), held: HeldBatch) {
        let mut state = lock(&self.state);
        state.held.insert(number, held);
        state.sent.push_back(Some(figures));
    }
}

fn join(sender: Option<JoinHandle<()>>) {
    if let Some(sender) = sender {
        // A panic of it was reported.
        let _ = sender.join();
    }
}

fn transformed(loader: Loader, spec: TransformSpec) -> Result<Transformed, EngineError> {
    let recipe = spec.recipe();
    let recipe =
        recipe.map_err(|text| EngineError::Reported { class: ErrorClass::Configuration, text })?;
    let mut config = recipe.config();
    config.is_shared = true;
    Transformed::new(loader, config)
}

fn answer(query: Query, monitor: &LoaderMonitor) -> Reply {
    match query {
        Query::WaitingFor => Reply::WaitingFor(monitor.waiting_for()),
        Query::Metrics => {
            let tiers = monitor.tiers().into_iter().map(|tier| TierFigures {
                capacity: tier.capacity.0,
                used: tier.used.0,
                samples: tier.samples,
                degraded: tier.degraded,
            });
            Reply::Metrics(Box::new(monitor.metrics().snapshot()), tiers.collect())
        }
    }
}

fn column(column: OutputColumn) -> ColumnPlace {
    match column {
        OutputColumn::Rows(rows) => ColumnPlace::Rows {
            dtype: rows.dtype,
            shape: rows.shape,
            offset: rows.offset,
            bytes: rows.bytes,
        },
        OutputColumn::Stacked(array) => ColumnPlace::Stacked(array.into()),
        OutputColumn::Loose(values) => {
            let value = |value| match value {
                Value::Array(array) => WireValue::Array(array.into()),
                Value::Bytes(bytes) => WireValue::Bytes(bytes),
            };
            ColumnPlace::Loose(values.into_iter().map(value).collect())
        }
    }
}

impl From<belady_transform::Array> for WireArray {
    fn from(array: belady_transform::Array) -> Self {
        Self { dtype: array.dtype, shape: array.shape, bytes: array.bytes }
    }
}

impl From<WireArray> for belady_transform::Array {
    fn from(array: WireArray) -> Self {
        Self { dtype: array.dtype, shape: array.shape, bytes: array.bytes }
    }
}
