//! The simulated world: policies of `belady-control` in virtual time.
//!
//! A [`scenario`] describes a job and a cluster; [`run`] puts each of its policies into
//! the [`world`] and gives an [`outcome`] each; [`bound`] says what was possible at
//! all; [`report`] shows it.
#![forbid(unsafe_code)]

pub mod bound;
pub mod outcome;
pub mod report;
pub mod run;
pub mod scenario;
pub mod world;
