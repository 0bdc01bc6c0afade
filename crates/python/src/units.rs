//! Parses and formats sizes and policies.

use belady_control::model::Bytes;
use pyo3::prelude::*;

use crate::arguments::wrong;

/// The bytes of a size such as "40GiB" or "500 GB".
#[pyfunction]
pub fn parse_size(text: &str) -> PyResult<u64> {
    text.parse::<Bytes>().map(|bytes| bytes.0).map_err(wrong)
}

/// A policy such as "lobster,tau=5ms,eviction=true": its name, and the options that are not as by
/// default.
#[pyfunction]
pub fn policy(text: &str) -> PyResult<String> {
    belady_engine::policy(text).map(|policy| policy.to_string()).map_err(wrong)
}

/// A number of bytes for messages, such as "42.95 GB".
#[pyfunction]
pub fn format_size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}
