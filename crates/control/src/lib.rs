//! The control path: sampler → access stream → model → policy → actions.
//!
//! Everything here is pure. Nothing reads a clock, a file or a socket: time is passed in, and
//! samples' bytes are never touched. The engine and the simulator each build a world around this
//! crate, so what is simulated is what runs.
//!
//! Read it in the order of the path: [`sampler`] computes which rank reads which sample when,
//! [`access`] counts in that stream, [`model`] gives the cost of an action on a given system,
//! [`policy`] decides.
#![forbid(unsafe_code)]

pub mod access;
pub mod bits;
pub mod job;
pub mod model;
mod packed;
pub mod policy;
pub mod sampler;

pub use job::{Job, Sizes};
