//! The simulated world: policies of `belady-control` in virtual time.
#![forbid(unsafe_code)]

pub mod bound;
pub mod outcome;
pub mod scenario;
pub mod world;
