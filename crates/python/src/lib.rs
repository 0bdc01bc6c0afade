//! The module `belady._native`: the engine as Python sees it.
//!
//! It only translates. What is decided here is how Python's rules are kept:
//!
//! - *Waiting* lets other threads run and looks for signals many times a second ([`patience`]),
//!   so Ctrl-C works.
//! - *Memory* is lent with its owner inside ([`memory`]): a buffer stays valid as long as anyone
//!   holds it, also when loader, batch and sample are gone. What lies in a cache is never lent
//!   to someone who may write.
//! - *Forked children* have neither the parent's threads nor a say in its memory ([`process`]).
//! - *Python code* runs on Python's own threads only ([`orders`]), so an interpreter that ends
//!   never finds a thread of ours in its way.
//!
//! Nothing here relies on the global lock, so the module runs without it too.
#![allow(
    clippy::needless_pass_by_value,
    reason = "what Python hands over is a value of ours, and Python's own interface asks for it"
)]

mod array;
mod batch;
mod buffer;
mod caches;
mod chain;
mod cluster;
mod command;
mod dataset;
mod dlpack;
mod engine;
mod errors;
mod loader;
mod made;
mod memory;
mod orders;
mod patience;
mod process;
mod sample;
mod share;
mod stacked;
mod stats;
mod transformer;
mod view;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::caches::clear_caches;
    #[pymodule_export]
    use super::chain::{Chain, part};
    #[pymodule_export]
    use super::cluster::{Cluster, meeting_place};
    #[pymodule_export]
    use super::command::{finish_log, run_command};
    #[pymodule_export]
    use super::dataset::Dataset;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::errors::{BeladyError, SampleError, StalledError};
    #[pymodule_export]
    use super::loader::Loader;
    #[pymodule_export]
    use super::made::Made;
    #[pymodule_export]
    use super::orders::Orders;
    #[pymodule_export]
    use super::sample::Sample;
    #[pymodule_export]
    use super::share::{Share, Windows};
    #[pymodule_export]
    use super::stacked::Stacked;
    #[pymodule_export]
    use super::transformer::Transformer;
    #[pymodule_export]
    use super::view::View;
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        belady::logging::start();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
