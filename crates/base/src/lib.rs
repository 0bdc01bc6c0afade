//! The foundation that all other crates of belady share.
//!
//! | module | what it provides |
//! |---|---|
//! | [`units`] | quantities with a unit: bytes, seconds, rates |
//! | [`mod@format`] | numbers for people: grouped thousands, units |
//! | [`sync`] | locks, atomics and the futex, with one switch for a schedule explorer |
//! | [`fork`] | descriptors, locks and mappings that forked children do not inherit |
//! | [`memory`] | memory for samples, outside of ring and tiers |
//! | [`shared_memory`] | memory that other processes can map |
//! | [`open_files`] | the process's limit of descriptors, which reads and sockets share |
//! | [`splitmix`] | the seeded random generator |
//! | [`heartbeat`] | how a slow call shows the watchdog that it makes progress |
//! | [`environment`] | the environment variables that belady reads |
//! | [`logging`] | warnings on standard error, rate-limited, beside progress bars |
//!
//! Nothing here knows of datasets, tiers or policies, so the transparent mode links this crate
//! without the data path or the control path.

pub mod environment;
pub mod fork;
pub mod format;
pub mod heartbeat;
pub mod logging;
pub mod memory;
pub mod open_files;
pub mod shared_memory;
pub mod splitmix;
pub mod sync;
pub mod units;

/// The number of a sample in its dataset's listing, from 0.
pub type SampleId = u32;
