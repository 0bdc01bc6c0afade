//! The engine: runs the policies with real bytes, threads and storage.
//!
//! ```text
//! plan ──────▶ fill ─────────────▶ retire ──────────────────▶ deliver
//! policy,      tiers, peers,       in order: evict, store,    batches to the consumer
//! ring space   source              publish
//! ```
//!
//! 1. `plan` goes through the access stream ahead of the consumer. It reserves a batch's space in
//!    the ring, and asks the policy where each sample comes from. The result is a `pending`
//!    batch.
//! 2. `fill` brings the samples of pending batches, in any order, on the threads of the `pool`.
//! 3. `retire` takes filled batches in order: it evicts what a step frees, stores what it keeps,
//!    and publishes the batch.
//! 4. `deliver` lends batches to the consumer. A `transform` stage may stand in between.
//!
//! A stage knows the next one as a value that it passes on, never by name: a pending batch reports
//! that it is complete. `job` is the state that stages share, `tiers` the caches of this node,
//! `peers` the other nodes. `build` wires everything.

mod build;
mod config;
mod deliver;
mod error;
mod fill;
mod job;
pub mod metrics;
mod peers;
mod pending;
mod plan;
mod policies;
mod pool;
mod retire;
mod tiers;
pub mod trace;
mod transform;
mod view;

pub use build::{Engine, staging_needed};
pub use config::{
    BadSamples, EngineConfig, JobConfig, Lend, NODE_STAGING, PeerPatience, Retry, RingKind,
    TierConfig, share_of_staging,
};
pub use deliver::{
    Batch, BatchOwner, DeliveredBytes, Delivery, Loader, LoaderMonitor, MappedMemory, MappedPlace,
    Sample, SharedRegion,
};
pub use error::{EngineError, ErrorClass};
pub use job::SkippedSamples;
pub use policies::{POLICIES, policy};
pub use transform::{
    BlockHome, BlockMemory, FailedSample, FieldSpec, OnGone, OutputBatch, OutputBlock,
    OutputColumn, RowArray, SampleParts, Transform, TransformConfig, Transformed, Value,
};
pub use view::View;

/// The program in the guide is compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/engine.md")]
struct Guide;
