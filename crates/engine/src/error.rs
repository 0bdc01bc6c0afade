//! The errors of the engine.

use std::path::PathBuf;
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::policy::{PolicyError, Unsupported};
use belady_control::sampler::{OrderError, SamplerError};
use belady_data::source::ReadError;
use belady_data::stage::RingError;
use belady_peer::RendezvousError;
use belady_transform::TransformError;
use serde::{Deserialize, Serialize};

/// What a program does about an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorClass {
    /// A sample cannot be read.
    Sample {
        /// The sample's number in the dataset.
        sample: u32,
        /// Its file.
        path: PathBuf,
    },
    /// A sample cannot be transformed.
    Transform {
        /// The sample's number in the dataset.
        sample: u32,
        /// The cause, without the sample.
        cause: String,
    },
    /// Storage does not answer, or the caller holds all batches.
    Stalled,
    /// The job cannot work as it is configured.
    Configuration,
    /// A file cannot be written.
    File,
    /// The process of the engine has ended; another engine can go on.
    Lost,
    /// Anything else.
    Other,
}

/// Why a job cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Two of the largest batches do not fit into the staging buffer.
    #[error(
        "the staging buffer of {given} is too small: two of the largest batches need {needed}; \
         enlarge it or reduce the batch of {batch} samples"
    )]
    StagingTooSmall {
        /// The size of the buffer.
        given: Bytes,
        /// The size that is needed.
        needed: Bytes,
        /// The batch size.
        batch: u32,
    },
    /// There is no such policy or option.
    #[error(transparent)]
    UnknownPolicy(#[from] PolicyError),
    /// The engine cannot run the policy; the second field lists those that it can.
    #[error("the policy `{0}` exists in the simulator only: choose one of {1}")]
    SimulatorOnly(&'static str, String),
    /// The policy cannot run this job.
    #[error(transparent)]
    Policy(#[from] Unsupported),
    /// The access stream is invalid.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// A provided order has failed.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A run without an end has no more batches.
    #[error(
        "the order has given {epochs} epochs in a row without a batch, and the run has no end: \
         check that the sampler is not empty"
    )]
    EmptyEpochs {
        /// The number of empty epochs.
        epochs: u32,
    },
    /// The ring cannot be made.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The system refuses a thread.
    #[error("cannot start a thread: {0}; raise the limit of threads (ulimit -u)")]
    Threads(std::io::Error),
    /// A sample cannot be read.
    #[error(
        "{error} (tried {attempts} times); to go on without it, let bad samples be skipped or \
         replaced"
    )]
    BadSample {
        /// Names the sample, the file and the cause.
        error: ReadError,
        /// The number of attempts.
        attempts: u32,
    },
    /// A sample cannot be transformed.
    #[error(
        "cannot transform sample {sample}: {error}; to go on without it, let bad samples be \
         skipped or replaced"
    )]
    BadTransform {
        /// The sample's number in the dataset.
        sample: u32,
        /// The cause.
        error: TransformError,
    },
    /// There is no memory for a batch's arrays.
    #[error("no memory is left for a batch of {bytes}: reduce the batch or its arrays")]
    NoMemory {
        /// The size of the batch.
        bytes: Bytes,
    },
    /// Too many reads of the source hang.
    #[error(
        "{hung} reads of the source have not returned after {limit:?} each, the last one of sample \
         {sample}: check the storage"
    )]
    SourceHangs {
        /// The number of hung threads.
        hung: u32,
        /// The time limit of a read.
        limit: Duration,
        /// The sample of the last read.
        sample: u32,
    },
    /// Too many calls of tiers hang.
    #[error(
        "{hung} reads and writes have not returned after {limit:?} each, the last one in cache \
         tier {tier}: check its disk"
    )]
    TierHangs {
        /// The number of hung threads.
        hung: u32,
        /// The time limit of a call.
        limit: Duration,
        /// The tier of the last call.
        tier: u8,
    },
    /// The consumer holds all batches that fit, and waits for another one.
    #[error(
        "cannot stage a batch: the caller holds all {batches} batches that the staging buffer has \
         space for; drop batches after use or enlarge the buffer"
    )]
    AllLent {
        /// The number of batches that the caller holds.
        batches: u32,
    },
    /// The trace cannot be created.
    #[error("cannot write the trace to {}: {error}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The rendezvous has failed.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The ranks do not agree.
    #[error("{0}")]
    Peers(String),
    /// The engine runs in another process, which has reported an error.
    #[error("{text}")]
    Reported {
        /// Which kind of error it is.
        class: ErrorClass,
        /// The error.
        text: String,
    },
    /// The job has failed before.
    #[error("the run has ended with an error that was reported before: start it again")]
    Stopped,
    /// A thread of the engine has panicked.
    #[error(
        "a thread of belady panicked, which is a defect of belady: please report it; no wrong \
         sample was delivered, and the caches remain usable"
    )]
    Defect,
}

impl EngineError {
    /// Returns what a program does about the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::BadSample { error, .. } => {
                ErrorClass::Sample { sample: error.sample(), path: error.path().to_owned() }
            }
            Self::BadTransform { sample, error } => {
                ErrorClass::Transform { sample: *sample, cause: error.to_string() }
            }
            Self::SourceHangs { .. } | Self::AllLent { .. } => ErrorClass::Stalled,
            Self::StagingTooSmall { .. }
            | Self::UnknownPolicy(_)
            | Self::SimulatorOnly(..)
            | Self::Policy(_)
            | Self::Sampler(_)
            | Self::Order(_)
            | Self::EmptyEpochs { .. } => ErrorClass::Configuration,
            Self::Trace { .. } => ErrorClass::File,
            Self::Reported { class, .. } => class.clone(),
            Self::Ring(_)
            | Self::Threads(_)
            | Self::NoMemory { .. }
            | Self::TierHangs { .. }
            | Self::Rendezvous(_)
            | Self::Peers(_)
            | Self::Stopped
            | Self::Defect => ErrorClass::Other,
        }
    }
}
