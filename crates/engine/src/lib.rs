//! The engine: the real world around the policies.
//!
//! ```text
//! epochs ──▶ planner ──▶ parcels ──▶ loading threads ──▶ in order: let go, keep ──▶ consumer
//!   plan      policy      ring        tiers, source        tiers                     batches
//! ```
//!
//! A [`planner`] goes through the access stream ahead of the consumer and asks the policy what
//! to do. Everything it decides is in logical time. [`load`] and [`keep`] carry it out with
//! the threads of the [`pool`], and [`flights`] see to it that a sample which is wanted
//! several times at once is read once. [`build`] wires it all together. A [`transformed`] stage may
//! stand between the loader and its consumer.

mod brain;
mod build;
mod cache;
mod compare;
mod config;
mod epochs;
mod error;
mod flights;
mod hangs;
mod horizon;
mod keep;
mod load;
mod loader;
pub mod metrics;
mod outlook;
mod parcel;
mod parking;
mod peers;
mod planner;
mod pool;
mod prefetch;
mod rates;
mod run;
mod system;
pub mod trace;
mod transformed;
mod view;

pub use build::{Engine, POLICIES, staging_needed};
pub use config::{
    BadSamples, EngineConfig, JobConfig, Lend, NODE_STAGING, PeerPatience, Retry, Ring, TierConfig,
    share_of_staging,
};
pub use error::EngineError;
pub use loader::{Batch, Loader, Next, Sample, SharedRegion};
pub use outlook::Outlook;
pub use transformed::{
    Block, Column, Failed, Field, Made, OnGone, Parts, Rows, Transform, TransformConfig,
    Transformed, Value,
};
pub use view::View;

/// The program in the guide is compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/engine.md")]
struct Guide;
