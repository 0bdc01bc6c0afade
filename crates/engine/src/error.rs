use std::path::PathBuf;
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::policy::Unsupported;
use belady_control::sampler::{OrderError, SamplerError};
use belady_data::source::ReadError;
use belady_data::stage::RingError;
use belady_peer::MeetError;
use belady_transform::TransformError;

/// Why a job cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(
        "the staging buffer of {given} is too small: two of the largest batches need {needed}; \
         make it larger or the batch of {batch} samples smaller"
    )]
    StagingTooSmall { given: Bytes, needed: Bytes, batch: u32 },
    #[error("the policy `{0}` exists in the simulator only; the engine runs {1}")]
    SimulatorOnly(&'static str, String),
    #[error(transparent)]
    Policy(#[from] Unsupported),
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(
        "the order has given {epochs} epochs in a row without a batch, and the run has no end; is \
         the sampler empty?"
    )]
    EmptyEpochs { epochs: u32 },
    #[error("cannot make the staging buffer: {0}")]
    Ring(#[from] RingError),
    #[error("no thread can be started: {0}")]
    Threads(std::io::Error),
    #[error(
        "{error} (tried {attempts} times); choose to skip or replace bad samples if the run \
         should go on without it"
    )]
    BadSample { error: ReadError, attempts: u32 },
    #[error(
        "sample {sample} cannot be transformed: {error}; choose to skip or replace bad samples if \
         the run should go on without it"
    )]
    BadTransform { sample: u32, error: TransformError },
    #[error("there is no memory for a batch of {bytes}; make batches or their arrays smaller")]
    NoMemory { bytes: Bytes },
    #[error(
        "{hung} reads of the source have not returned after {limit:?} each, the last of \
         sample {sample}; is the storage still there?"
    )]
    SourceHangs { hung: u32, limit: Duration, sample: u32 },
    #[error(
        "{hung} reads and writes have not returned after {limit:?} each, the last in cache tier \
         {tier}; is its disk still there?"
    )]
    TierHangs { hung: u32, limit: Duration, tier: u8 },
    #[error(
        "no batch can be staged: all {batches} that the buffer holds are still in use by the \
         caller; drop batches after use or make the staging buffer larger"
    )]
    AllLent { batches: u32 },
    #[error("cannot write the trace to {}: {error}", path.display())]
    Trace { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Meet(#[from] MeetError),
    /// What is wrong among the ranks.
    #[error("{0}")]
    Peers(String),
    #[error("the run has ended with the error that was reported before; start it again")]
    Stopped,
    #[error(
        "a thread of belady ended with a panic, which is a defect of belady; nothing wrong was \
         delivered, and what was cached can be used again"
    )]
    Defect,
}
