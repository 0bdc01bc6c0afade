//! The simulated world: policies of `belady-control` in virtual time.
#![forbid(unsafe_code)]

pub mod outcome;
pub mod report;
