//! What ranks and their node engine send each other.
//!
//! A rank has one connection for all its jobs ([`ToEngine`], [`FromEngine`]), and for each job three
//! more: *data* ([`FromRank`], [`ToRank`]), *replies* to its queries ([`Reply`]), and *orders*, on
//! which the engine asks ([`OrderRequest`], [`OrderReply`]).

use belady_control::sampler::{Batching, EpochList, Step};
use belady_engine::ErrorClass;
use belady_engine::metrics::MetricsSnapshot;
use serde::{Deserialize, Serialize};

use crate::nodes::NodesSpec;
use crate::spec::{DatasetSpec, EngineSpec, JobSpec, TransformSpec};

/// Changes with every change of a message.
pub const PROTOCOL: u32 = 2;

/// From a rank, over the connection of all its jobs.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToEngine {
    /// The first message.
    Hello {
        protocol: u32,
        version: String,
    },
    /// A job. The descriptors are its sockets (data, replies, orders) and catalogs.
    Attach(Box<Attachment>),
    /// The nodes of a run, from the first rank of this node.
    Meet(Box<NodesSpec>),
    /// Where the engines of a run's nodes meet.
    Join {
        run: u64,
        meeting: String,
    },
    /// The metrics of an engine of a run.
    Metrics {
        run: u64,
        engine: u32,
    },
    Status,
    /// Ends the engine, with all of its jobs.
    Stop,
}

/// The engine's answers to [`ToEngine`].
#[derive(Debug, Serialize, Deserialize)]
pub enum FromEngine {
    Welcome {
        protocol: u32,
        version: String,
    },
    /// Where the others find the engine of node 0; `None` from the others.
    Meeting(Result<Option<String>, String>),
    Joined(Result<(), String>),
    /// `None` before the engine has had a job.
    Metrics(Option<Box<MetricsSnapshot>>),
    Status(NodeStatus),
    Stopping,
}

/// What a node engine does at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its process.
    pub pid: u32,
    /// Whether it stays when its last rank has gone.
    pub stays: bool,
    /// The processes that are connected.
    pub processes: u32,
    /// The datasets of running jobs, and how many ranks each has.
    pub jobs: Vec<(String, u32)>,
    /// The metrics of each engine.
    pub engines: Vec<MetricsSnapshot>,
}

/// One rank of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Attachment {
    pub place: NodeJobId,
    /// The rank among those of this node, and their number.
    pub rank: u32,
    pub ranks: u32,
    pub engine: EngineSpec,
    pub job: JobSpec,
    /// From local rank 0.
    pub dataset: Option<DatasetSpec>,
    pub orders: OrdersSpec,
}

/// Identifies a job: all of its ranks send the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeJobId {
    /// Drawn once for the processes of a run.
    pub run: u64,
    /// The number of the engine in each process, and of the job on it.
    pub engine: u32,
    pub job: u32,
}

/// What the engine knows of a job's orders without asking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrdersSpec {
    pub ahead: bool,
    pub largest_batch: Option<u32>,
    /// The number by which messages call the first epoch.
    pub first_epoch: u32,
}

/// From a rank, for one job.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromRank {
    /// Batches may be sent from now on: transformed, if a chain is given.
    Begin(Option<TransformSpec>),
    /// The oldest batch or error that was sent has been delivered, and the rank had waited for it.
    Taken {
        waited_ns: u64,
    },
    /// The rank waits for a batch, or no longer does.
    Waiting(bool),
    /// The last holder of a batch has dropped it.
    Release(u64),
    BeginEpoch(u32),
    EndEpoch,
    Query(Query),
    /// No more batches are wanted. Those that are held stay valid until the connection ends.
    Leave,
}

/// What a rank asks about its job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Query {
    Metrics,
    WaitingFor,
}

/// The answer to a [`Query`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Metrics(Box<MetricsSnapshot>, Vec<TierFigures>),
    WaitingFor(String),
}

/// The status of a tier.
#[derive(Debug, Serialize, Deserialize)]
pub struct TierFigures {
    pub capacity: u64,
    pub used: u64,
    pub samples: u64,
    pub degraded: Option<String>,
}

/// To a rank, for one job.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToRank {
    /// The job runs. The descriptors are the memory of the rank's ring and of the tiers that have
    /// shared memory.
    Started {
        length: u64,
        /// By tier; `None` if its memory cannot be mapped.
        tiers: Vec<Option<u64>>,
    },
    Batch(RingBatchPlaces),
    Output(OutputPlaces),
    /// Takes the place of a batch, or of all that would follow.
    Failed {
        class: ErrorClass,
        text: String,
    },
    Ended,
    /// The answer to [`FromRank::Leave`]: the job is over for this rank.
    Left,
}

/// A batch in the rank's ring.
#[derive(Debug, Serialize, Deserialize)]
pub struct RingBatchPlaces {
    /// The name under which it is released.
    pub number: u64,
    pub step: WireStep,
    /// `None` for samples that were skipped.
    pub samples: Vec<Option<SamplePlace>>,
    pub skipped: Vec<String>,
}

/// Where a sample is.
#[derive(Debug, Serialize, Deserialize)]
pub enum SamplePlace {
    /// In the ring.
    Ring { sample: u32, offset: u64, length: u64 },
    /// In the memory of a tier, which lends it.
    Tier { tier: u8, sample: u32, offset: u64, length: u64 },
    /// In this message.
    Here { sample: u32, bytes: Vec<u8> },
}

/// A transformed batch.
#[derive(Debug, Serialize, Deserialize)]
pub struct OutputPlaces {
    /// The name under which it is released.
    pub number: u64,
    pub step: WireStep,
    pub samples: Vec<u32>,
    pub kept: Option<Vec<u32>>,
    /// Position and reason.
    pub failures: Vec<(u32, String)>,
    pub columns: Vec<ColumnPlace>,
    /// Memory, and the bytes of it that are used. Memory that is sent for the first time comes as a
    /// descriptor.
    pub block: Option<BlockPlace>,
    pub read_bytes: u64,
    pub skipped: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BlockPlace {
    pub memory: u64,
    pub length: u64,
    pub is_new: bool,
}

/// The values of one field.
#[derive(Debug, Serialize, Deserialize)]
pub enum ColumnPlace {
    Rows { dtype: belady_transform::Dtype, shape: Vec<usize>, offset: usize, bytes: usize },
    Stacked(WireArray),
    Loose(Vec<WireValue>),
}

#[derive(Debug, Serialize, Deserialize)]
pub enum WireValue {
    Array(WireArray),
    Bytes(Vec<u8>),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct WireArray {
    pub dtype: belady_transform::Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WireStep {
    epoch: u32,
    iteration: u32,
}

impl From<Step> for WireStep {
    fn from(Step { epoch, iteration }: Step) -> Self {
        Self { epoch, iteration }
    }
}

impl From<WireStep> for Step {
    fn from(WireStep { epoch, iteration }: WireStep) -> Self {
        Self { epoch, iteration }
    }
}

/// Asks for what all ranks of the job read in an epoch.
#[derive(Debug, Serialize, Deserialize)]
pub struct OrderRequest {
    pub epoch: u32,
}

/// By rank; `None` after the last epoch; the text of an error.
pub type OrderReply = Result<Option<Vec<WireList>>, String>;

/// An [`EpochList`].
#[derive(Debug, Serialize, Deserialize)]
pub struct WireList {
    samples: Vec<u32>,
    batches: WireBatching,
}

#[derive(Debug, Serialize, Deserialize)]
enum WireBatching {
    Every { batch: u32, drop_last: bool },
    Ends(Vec<u32>),
}

impl From<EpochList> for WireList {
    fn from(EpochList { samples, batches }: EpochList) -> Self {
        let batches = match batches {
            Batching::Every { batch, drop_last } => WireBatching::Every { batch, drop_last },
            Batching::Ends(ends) => WireBatching::Ends(ends),
        };
        Self { samples, batches }
    }
}

impl From<WireList> for EpochList {
    fn from(WireList { samples, batches }: WireList) -> Self {
        let batches = match batches {
            WireBatching::Every { batch, drop_last } => Batching::Every { batch, drop_last },
            WireBatching::Ends(ends) => Batching::Ends(ends),
        };
        Self { samples, batches }
    }
}
