//! The simulated world: policies of `belady-control` in virtual time.
//!
//! A [scenario](belady_scenario) describes a job and a cluster. [`run`] runs each of its policies
//! in the [`world`] and returns an [`outcome`] each. [`bound`] computes the least that any policy
//! needs. [`report`] shows the outcomes.
#![forbid(unsafe_code)]

pub mod bound;
pub mod outcome;
pub mod report;
pub mod run;
pub mod world;
