//! The control path: sampler → access stream → model → policy → actions.
//!
//! Everything here is pure. Nothing reads a clock, a file, a socket or a
//! thread's state: time is passed in, bytes are never touched. The engine and
//! the simulator each build a world around this crate, so what is simulated is
//! what runs.
//!
//! Read it in the order of the path: [`sampler`] says which rank reads which
//! sample when, [`access`] counts and looks ahead in that stream, [`model`] says
//! what an action costs on a given system, [`policy`] decides.
#![forbid(unsafe_code)]

pub mod access;
pub mod bits;
pub mod job;
pub mod model;
mod packed;
pub mod policy;
pub mod sampler;

pub use job::{Job, Sizes};
