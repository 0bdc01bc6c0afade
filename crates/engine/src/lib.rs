//! The real world around the policies.

pub mod metrics;
