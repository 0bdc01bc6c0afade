//! Where the atomics of tables come from, so that a schedule explorer needs one switch. With it there is no
//! mapped memory, in which its atomics would not fit.

#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic::{AtomicU64, Ordering};
