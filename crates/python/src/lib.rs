//! The module `belady._native`: the Python interface of the engine.
//!
//! It converts arguments, results and errors, and follows Python's rules:
//!
//! - *Waiting* releases the interpreter and checks for signals many times a second (`wait`), so
//!   Ctrl-C works.
//! - *Memory* is lent together with its owner (`memory`): a buffer stays valid as long as it is
//!   referenced, also after loader, batch and sample are dropped. Bytes of a cache are never lent
//!   writable.
//! - *Forked children* use neither the parent's threads nor its memory (`process`).
//! - *Python code* runs only on threads that Python started (`orders`), so no thread of the
//!   engine delays an interpreter that exits.
//!
//! Nothing here relies on the global lock, so the module also runs without it.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 passes extracted arguments by value")]

mod arguments;
mod array;
mod batch;
mod buffer;
mod caches;
mod chain;
mod cluster;
mod dataset;
mod decode_split;
mod dlpack;
mod engine;
mod errors;
mod loader;
mod log;
mod memory;
mod node;
mod open_dataset;
mod orders;
mod output_batch;
mod process;
mod sample;
mod stacked;
mod stats;
mod transformer;
mod units;
mod view;
mod wait;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::array::PyArray;
    #[pymodule_export]
    use super::batch::PyBatch;
    #[pymodule_export]
    use super::caches::clear_caches;
    #[pymodule_export]
    use super::chain::{PyChain, sample_part};
    #[pymodule_export]
    use super::cluster::{PyCluster, launcher, rendezvous_address};
    #[pymodule_export]
    use super::dataset::PyDataset;
    #[pymodule_export]
    use super::decode_split::{PyDecodeSplit, PyDecodeWindows};
    #[pymodule_export]
    use super::engine::PyEngine;
    #[pymodule_export]
    use super::errors::{BeladyError, NodeLostError, SampleError, StalledError};
    #[pymodule_export]
    use super::loader::PyLoader;
    #[pymodule_export]
    use super::log::{PyLogLimiter, finish_log};
    #[pymodule_export]
    use super::node::{PyNodeConnection, PyNodeEngine, serve_node, shared_node, start_node};
    #[pymodule_export]
    use super::orders::{PyGeneratorState, PyOrders, randperm_words};
    #[pymodule_export]
    use super::output_batch::PyOutputBatch;
    #[pymodule_export]
    use super::sample::PySample;
    #[pymodule_export]
    use super::stacked::PyStacked;
    #[pymodule_export]
    use super::transformer::PyTransformer;
    #[pymodule_export]
    use super::units::{format_size, parse_size, policy};
    #[pymodule_export]
    use super::view::PyView;
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        belady_base::logging::start();
        module.add("POLICIES", belady_engine::POLICIES.to_vec())?;
        module.add("SCHEMES", super::orders::schemes().to_vec())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
