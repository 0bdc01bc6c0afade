//! The class `Engine`.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use belady_control::model::Bytes;
use belady_control::sampler::Order;
use belady_engine::metrics::{self, MetricsServer, exposition};
use belady_engine::{
    self as engine, EngineConfig, EngineError, JobConfig, Lend, Retry, RingKind, TierConfig,
};
use belady_node::RankLoader;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{self, wrong};
use crate::cluster::PyCluster;
use crate::dataset::PyDataset;
use crate::errors::running;
use crate::loader::PyLoader;
use crate::node::PyNodeEngine;
use crate::orders::PyOrders;
use crate::process::Home;
use crate::stats;
use crate::view::PyView;
use crate::wait::Unhurried;

/// Threads and cache tiers that jobs share.
#[pyclass(name = "Engine", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyEngine(Home<EngineParts>);

#[derive(Debug)]
struct EngineParts {
    /// Made when it is first used, unless it is used from the start.
    engine: OnceLock<Unhurried<engine::Engine>>,
    config: EngineConfig,
    servers: Mutex<Vec<MetricsServer>>,
    /// Holds the exceptions of a rendezvous in Python.
    cluster: Option<Py<PyCluster>>,
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (*, tiers=Vec::new(), threads=None, system=None, attempts=6, backoff=0.05, timeout=30.0, peers=None, on_demand=false),
        text_signature = "(*, tiers=(), threads=None, system=None, attempts=6, backoff=0.05, timeout=30.0, peers=None, on_demand=False)")]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        tiers: Vec<(Option<PathBuf>, u64)>,
        threads: Option<u32>,
        system: Option<PathBuf>,
        attempts: u32,
        backoff: f64,
        timeout: f64,
        peers: Option<Py<PyCluster>>,
        on_demand: bool,
    ) -> PyResult<Self> {
        if threads == Some(0) {
            return Err(PyValueError::new_err("threads must be at least 1, not 0"));
        }
        if attempts == 0 {
            return Err(PyValueError::new_err(
                "attempts must be at least 1, not 0: it includes the first",
            ));
        }
        let retry = Retry {
            attempts,
            backoff: arguments::seconds("backoff", backoff)?,
            timeout: Some(arguments::seconds("timeout", timeout)?)
                .filter(|limit| !limit.is_zero())
                .ok_or_else(|| PyValueError::new_err("timeout must be longer than 0 seconds"))?,
        };
        let system = system.map(|path| belady_scenario::system_file(&path));
        let system = system.transpose().map_err(wrong)?;
        let serving_threads = system.as_ref().and_then(|file| file.serving_threads);
        let system = system.map(|file| file.system);
        let config = EngineConfig {
            threads,
            tiers: tiers.into_iter().map(tier).collect(),
            system,
            retry,
            peers: peers.as_ref().map(|peers| peers.get().native()).transpose()?,
            serving_threads,
            ..EngineConfig::default()
        };
        let inner = EngineParts {
            engine: OnceLock::new(),
            config,
            servers: Mutex::default(),
            cluster: peers,
        };
        if !on_demand {
            inner.engine(py)?;
        }
        Ok(Self(Home::new(inner)))
    }

    #[pyo3(signature = (dataset, orders, *, epochs=None, staging=512 << 20, staging_grows=false, next_epoch=None,
        policy="belady", bad_samples="raise", writable=true, shared=false, cache_share=1.0,
        trace=None, peers=true, node=None, job=0),
        text_signature = "($self, dataset, orders, *, epochs=None, staging=536870912, staging_grows=False, next_epoch=None, policy='belady', bad_samples='raise', writable=True, shared=False, cache_share=1.0, trace=None, peers=True, node=None, job=0)")]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)]
    fn start(
        &self,
        py: Python<'_>,
        dataset: &Bound<'_, PyDataset>,
        orders: &Bound<'_, PyOrders>,
        epochs: Option<u32>,
        staging: u64,
        staging_grows: bool,
        next_epoch: Option<u64>,
        policy: &str,
        bad_samples: &str,
        writable: bool,
        shared: bool,
        cache_share: f64,
        trace: Option<PathBuf>,
        peers: bool,
        node: Option<Bound<'_, PyNodeEngine>>,
        job: u32,
    ) -> PyResult<PyLoader> {
        let inner = self.0.get("Engine")?;
        let listed = &dataset.get().0;
        if !(0.0..=1.0).contains(&cache_share) {
            return Err(PyValueError::new_err(format!(
                "cache_share must be from 0 to 1, not {cache_share}"
            )));
        }
        let number = job;
        let job = JobConfig {
            name: listed.name(),
            epochs,
            staging: Bytes(staging),
            staging_grows,
            next_epoch: next_epoch.map(Bytes),
            policy: engine::policy(policy).map_err(wrong)?,
            bad_samples: arguments::bad_samples("bad_samples", bad_samples)?,
            lend: if writable { Lend::Slots } else { Lend::ReadOnly },
            ring: if shared { RingKind::Shared } else { RingKind::Private },
            cache_share,
            trace,
            ..JobConfig::new(listed.source.get("Dataset")?.clone())
        };
        if let Some(node) = node {
            let (provider, feed) = orders.get().provide(py)?;
            let loader = node.get().start(py, number, &job, &listed.recipe, provider)?;
            return Ok(PyLoader::new(loader, listed.clone(), orders, feed, writable));
        }
        let engine = inner.engine(py)?;
        if let Some(cluster) = &inner.cluster
            && peers
            && orders.get().is_known_to(cluster.get())?
        {
            cluster.get().gather(py)?;
        }
        // Last, since this starts the callback's thread.
        let (provider, feed) = orders.get().provide(py)?;
        let provider = if peers { provider } else { PyOrders::alone(provider) };
        let job = JobConfig { order: Order::Provided(provider), ..job };
        let started = py.detach(|| {
            let started = engine.start(&job);
            if let (Err(_), Some(feed)) = (&started, &feed) {
                feed.stop();
            }
            started
        });
        let loader = started.map_err(|error| match (&error, &inner.cluster) {
            (EngineError::Rendezvous(why), Some(cluster)) => cluster.get().rendezvous_error(why),
            _ => running(py, &error),
        })?;
        Ok(PyLoader::new(RankLoader::Embedded(loader), listed.clone(), orders, feed, writable))
    }

    fn view(&self, py: Python<'_>, dataset: &Bound<'_, PyDataset>) -> PyResult<PyView> {
        let inner = self.0.get("Engine")?;
        PyView::new(inner.engine(py)?, dataset.get().0.clone())
    }

    /// Frees the memory that is retained for the next loader of a dataset.
    fn free_memory(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(engine) = self.0.get("Engine")?.engine.get() {
            py.detach(|| engine.free_retained());
        }
        Ok(())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::figures(py, &self.0.get("Engine")?.engine(py)?.metrics().snapshot())
    }

    fn metrics_text(&self, py: Python<'_>) -> PyResult<String> {
        Ok(exposition::text(&self.0.get("Engine")?.engine(py)?.metrics().snapshot()))
    }

    /// Serves metrics in Prometheus' format, and returns the address it listens on.
    #[pyo3(signature = (address, node=None), text_signature = "($self, address, node=None)")]
    fn serve_metrics(
        &self,
        py: Python<'_>,
        address: &str,
        node: Option<Bound<'_, PyNodeEngine>>,
    ) -> PyResult<String> {
        let inner = self.0.get("Engine")?;
        let variable = belady_base::environment::METRICS_TOKEN;
        let token =
            variable.value().and_then(|token| token.into_string().ok()).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "metrics at {address} need a token: set {} to the token that scrapers send",
                    variable.name
                ))
            })?;
        let served = match node {
            Some(node) => metrics::serve_text(address, &token, node.get().exposition()?),
            None => metrics::serve(address, &token, inner.engine(py)?.metrics().clone()),
        };
        let server = served.map_err(|error| {
            PyOSError::new_err(format!("cannot serve metrics at {address}: {error}"))
        })?;
        let address = server.address().to_string();
        inner.servers.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        Ok(address)
    }

    #[getter]
    fn threads(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.0.get("Engine")?.engine(py)?.threads())
    }
}

impl EngineParts {
    fn engine(&self, py: Python<'_>) -> PyResult<&engine::Engine> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let made = py.detach(|| engine::Engine::new(self.config.clone()));
        let made = Unhurried::new(made.map_err(|error| running(py, &error))?);
        Ok(self.engine.get_or_init(|| made))
    }
}

fn tier((directory, quota): (Option<PathBuf>, u64)) -> TierConfig {
    let capacity = Bytes(quota);
    match directory {
        None => TierConfig::Ram { capacity },
        Some(directory) => TierConfig::Disk { directory, capacity },
    }
}
