//! The engine of a node, which serves all ranks of a job there.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use belady_control::sampler::OrderProvider;
use belady_engine::metrics::{VitalsPublisher, exposition, publish_at};
use belady_engine::{JobConfig, Retry};
use belady_node::{
    DatasetRecipe, EngineSpec, JobPlace, NodeConnection, NodeError, NodesSpec, RankLoader, RawPath,
    ServerOptions,
};
use belady_peer::TcpAccess;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cluster::PyCluster;
use crate::errors::{BeladyError, running};
use crate::process::Home;
use crate::stats;
use crate::wait::{Unhurried, patiently};

/// The longest time that engines of nodes wait for each other. The ranks have met just before; what
/// differs is how long nodes take to open their caches.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// The connection of this process to the engine of its node.
#[pyclass(name = "NodeConnection", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyNodeConnection(Home<ConnectionParts>);

#[derive(Debug)]
struct ConnectionParts {
    connection: Arc<NodeConnection>,
    /// The nodes of the job, if it has several.
    nodes: OnceLock<NodesSpec>,
}

#[pymethods]
impl PyNodeConnection {
    /// Connects to the engine at a socket.
    #[new]
    fn new(py: Python<'_>, socket: PathBuf) -> PyResult<Self> {
        let opened = patiently(py, move || NodeConnection::open(&socket), |_| Ok(()))?;
        let connection = Arc::new(opened.map_err(failed)?);
        Ok(Self(Home::new(ConnectionParts { connection, nodes: OnceLock::new() })))
    }

    #[getter]
    fn socket(&self) -> OsString {
        self.0.connection.socket().into()
    }

    /// Tells the engine which node of the job it serves; the ranks of the job are numbered node
    /// after node. Returns where the engine of node 0 listens for the others.
    fn meet(
        &self,
        py: Python<'_>,
        cluster: &Bound<'_, PyCluster>,
        run: u64,
        node: u32,
        nodes: u32,
        numbering: Vec<u32>,
    ) -> PyResult<Option<String>> {
        let ConnectionParts { connection, nodes: known } = self.0.get("NodeConnection")?;
        let (native, limit) = (cluster.get().native()?, cluster.get().limit()?);
        let over_mpi = || BeladyError::new_err("engines of several nodes meet over TCP alone");
        let access = absolute(native.tcp.clone().ok_or_else(over_mpi)?);
        let limit_ns = limit.min(LONGEST_WAIT).as_nanos() as u64;
        let spec = NodesSpec { run, node, nodes, numbering, access, limit_ns };
        let meeting = py.detach(|| connection.meet(&spec)).map_err(failed)?;
        known.get_or_init(|| spec);
        Ok(meeting)
    }

    /// Waits until the engine has met those of the other nodes, where that of node 0 listens.
    fn join(&self, py: Python<'_>, meeting: String) -> PyResult<()> {
        let ConnectionParts { connection, nodes } = self.0.get("NodeConnection")?;
        let Some(nodes) = nodes.get().cloned() else { return Ok(()) };
        let connection = connection.clone();
        let joined = patiently(py, move || connection.join(&nodes, &meeting), |_| Ok(()))?;
        joined.map_err(failed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: NodeError) -> PyErr {
    BeladyError::new_err(error.to_string())
}

/// The engine may run in another directory.
fn absolute(mut access: TcpAccess) -> TcpAccess {
    if let Some(tls) = &mut access.tls {
        for path in [&mut tls.certificate, &mut tls.key, &mut tls.authority] {
            // It fails for the empty path alone.
            *path = std::path::absolute(&*path).unwrap_or_default();
        }
    }
    access
}

/// One engine of the node's process, and this process's place among those that share it.
#[pyclass(name = "NodeEngine", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyNodeEngine {
    connection: Home<Arc<NodeConnection>>,
    spec: EngineSpec,
    place: JobPlace,
    /// Reports the engine to `belady top`, from the first rank of the node.
    _vitals: Option<Home<Unhurried<VitalsPublisher>>>,
}

#[pymethods]
impl PyNodeEngine {
    /// `tiers` have the quotas of the whole node; `number` counts the engines of this process.
    #[new]
    #[pyo3(signature = (connection, *, run, number, rank, ranks, tiers, threads=None, system=None,
        attempts=6, timeout=30.0, cluster=None))]
    #[expect(clippy::too_many_arguments, reason = "an engine and its place")]
    fn new(
        connection: &Bound<'_, PyNodeConnection>,
        run: u64,
        number: u32,
        rank: u32,
        ranks: u32,
        tiers: Vec<(Option<PathBuf>, u64)>,
        threads: Option<u32>,
        system: Option<PathBuf>,
        attempts: u32,
        timeout: f64,
        cluster: Option<Bound<'_, PyCluster>>,
    ) -> PyResult<Self> {
        let path = |path: PathBuf| RawPath::absolute(&path);
        let tier = |(place, quota): (Option<PathBuf>, u64)| (place.map(path), quota);
        let timeout = crate::arguments::seconds("timeout", timeout)?;
        let spec = EngineSpec {
            tiers: tiers.into_iter().map(tier).collect(),
            threads,
            system: system.map(path),
            attempts,
            backoff_ns: Retry::default().backoff.as_nanos() as u64,
            timeout_ns: timeout.as_nanos() as u64,
        };
        let place = JobPlace { run, engine: number, job: 0, rank, ranks };
        let connection = connection.get().0.get("NodeConnection")?.connection.clone();
        let cluster = cluster.filter(|_| rank == 0).map(|cluster| cluster.get().native());
        let vitals = cluster.transpose()?.map(|cluster| {
            let connection = connection.clone();
            // Zeros once the engine has ended.
            publish_at(&cluster, move || connection.metrics(run, number).unwrap_or_default())
        });
        let vitals = vitals.transpose()?.map(|publisher| Home::new(Unhurried::new(publisher)));
        Ok(Self { connection: Home::new(connection), spec, place, _vitals: vitals })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let connection = self.connection.get("NodeEngine")?;
        let metrics = py.detach(|| connection.metrics(self.place.run, self.place.engine));
        stats::figures(py, &metrics.unwrap_or_default())
    }

    fn metrics_text(&self, py: Python<'_>) -> PyResult<String> {
        let text = self.exposition()?;
        Ok(py.detach(text))
    }
}

impl PyNodeEngine {
    /// Starts a job together with the other ranks of the node.
    pub fn start(
        &self,
        py: Python<'_>,
        number: u32,
        config: &JobConfig,
        recipe: &Arc<DatasetRecipe>,
        orders: Arc<dyn OrderProvider>,
    ) -> PyResult<RankLoader> {
        let connection = self.connection.get("NodeEngine")?.clone();
        let place = JobPlace { job: number, ..self.place };
        let (spec, config, recipe) = (self.spec.clone(), config.clone(), recipe.clone());
        // It waits for the other ranks.
        let start = move || connection.start(place, &spec, &config, &recipe, orders);
        let started = patiently(py, start, |_| Ok(()))?;
        started.map(RankLoader::Node).map_err(|error| running(py, &error))
    }

    /// Returns what gives the engine's metrics as Prometheus text.
    pub fn exposition(&self) -> PyResult<impl Fn() -> String + Send + Sync + 'static> {
        let connection = self.connection.get("NodeEngine")?.clone();
        let place = self.place;
        Ok(move || {
            // Zeros once the engine has ended.
            let metrics = connection.metrics(place.run, place.engine).unwrap_or_default();
            exposition::text(&metrics)
        })
    }
}

/// Starts the process of a node engine: `program` with the arguments and the path of its socket.
/// Returns that path.
#[pyfunction]
pub fn start_node(
    py: Python<'_>,
    name: &str,
    program: PathBuf,
    arguments: Vec<String>,
) -> PyResult<OsString> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let launched = py.detach(|| belady_node::launch(name, &program, &arguments, Stdio::inherit()));
    let launched = launched.map_err(|error| PyOSError::new_err(error.to_string()))?;
    Ok(launched.socket.into())
}

/// Serves the ranks of this node at the socket that is the standard input, until the last one has
/// gone, and removes the socket's path.
#[pyfunction]
pub fn serve_node(py: Python<'_>, socket: PathBuf) -> PyResult<()> {
    let served = py.detach(|| belady_node::serve_stdin(&socket, ServerOptions::default()));
    served.map_err(BeladyError::new_err)
}

/// The socket of the engine that outlives jobs, if one runs.
#[pyfunction]
pub fn shared_node(py: Python<'_>) -> Option<OsString> {
    py.detach(|| {
        let socket = belady_node::directory::socket(belady_node::directory::SHARED).ok()?;
        let running = belady_node::directory::running().ok()?;
        running.contains(&socket).then(|| socket.into())
    })
}
