//! The atomics of the hash tables, behind one switch for a schedule explorer.
//!
//! With the switch on there is no mapped memory: shuttle's atomics are larger than a word.

#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic::{AtomicU64, Ordering};
