//! The data path: source → tier → stage, stations that move bytes and decide nothing.
//!
//! | module | station |
//! |---|---|
//! | [`source`] | where the dataset rests: read-only, shared, slow |
//! | [`tier`] | storage class j ≥ 1: RAM and local disk with a quota |
//! | [`stage`] | class 0: the ordered ring that a consumer takes batches from |
//!
//! Each has one trait or type that the engine knows, and one suite that every
//! implementation passes. Unusual outcomes (a miss, a full tier, a ring without room) are
//! values; errors name what failed.

mod file;
pub mod fork;
pub mod memory;
pub mod open_files;
pub mod signs;
pub mod source;
pub mod sparse;
pub mod stage;
pub mod sync;
pub mod tier;

pub use belady_control::sampler::SampleId;
