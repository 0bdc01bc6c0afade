//! A dataset in files, and a node engine on a thread of the test.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::orders::RankOrders;
use belady_control::sampler::{Order, OrderProvider, Scheme, StreamConfig};
use belady_data::source::{ListingProgress, OpenOptions, Snapshots, Source, open_for_sharing};
use belady_engine::{Batch, Delivery, EngineError, JobConfig};
use belady_node::{
    DatasetRecipe, EngineSpec, JobPlace, NodeConnection, NodeLoader, ServerOptions, serve,
};

/// Returns the bytes of a sample.
pub fn bytes_of(sample: u32) -> Vec<u8> {
    (0..100 + u64::from(sample) * 37 % 900).map(|at| (at * 31 + u64::from(sample)) as u8).collect()
}

/// A dataset of files, one sample each.
pub struct Files {
    _folder: tempfile::TempDir,
    pub recipe: DatasetRecipe,
    pub source: Arc<dyn Source>,
}

impl Files {
    pub fn new(samples: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for sample in 0..samples {
            std::fs::write(folder.path().join(format!("{sample:06}.bin")), bytes_of(sample))
                .unwrap();
        }
        let options = OpenOptions {
            format: Some("flat".parse().unwrap()),
            snapshots: Snapshots::Off,
            ..OpenOptions::default()
        };
        let opened = open_for_sharing(folder.path(), &options, &ListingProgress::default());
        let (source, listed) = opened.unwrap();
        let source: Arc<dyn Source> = source.into();
        let recipe = DatasetRecipe::Listed {
            source: source.clone(),
            path: folder.path().to_owned(),
            options,
            listed,
            throttle: None,
        };
        Self { _folder: folder, recipe, source }
    }

    pub fn total(&self) -> u64 {
        self.source.catalog().sizes().total().0
    }

    pub fn job(&self, epochs: u32) -> JobConfig {
        JobConfig {
            epochs: Some(epochs),
            staging: Bytes(64 << 10),
            ..JobConfig::new(self.source.clone())
        }
    }
}

/// A node engine that runs in this process.
pub struct Server {
    _folder: tempfile::TempDir,
    pub socket: PathBuf,
    thread: JoinHandle<Result<(), String>>,
}

impl Server {
    pub fn new(options: ServerOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("node.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = std::thread::spawn(move || serve(&listener, options));
        Self { _folder: folder, socket, thread }
    }

    /// Waits until the engine ends, as it does when no rank is left.
    pub fn end(self) {
        self.thread.join().unwrap().unwrap();
    }
}

pub fn spec(cache: u64) -> EngineSpec {
    EngineSpec {
        tiers: vec![(None, cache)],
        threads: Some(4),
        system: None,
        attempts: 3,
        backoff_ns: 1_000_000,
        timeout_ns: 30_000_000_000,
    }
}

pub fn orders(samples: u32, rank: u32, ranks: u32, batch: u32) -> Arc<RankOrders> {
    let config = StreamConfig {
        samples,
        ranks,
        batch: 1,
        order: Order::Torch,
        scheme: Scheme::Uniform,
        seed: 3,
        sampler_drop_last: false,
        drop_last: false,
    };
    Arc::new(RankOrders::new(rank, batch, config).unwrap())
}

/// Returns what a rank is to get.
pub fn expected(orders: &RankOrders, epochs: u32) -> Vec<Vec<u32>> {
    let epoch = |epoch| orders.epoch(epoch).unwrap().unwrap();
    (0..epochs)
        .flat_map(|at| epoch(at).batches().iter().map(|batch| batch.to_vec()).collect::<Vec<_>>())
        .collect()
}

/// Starts one rank's part of a job.
#[allow(dead_code, reason = "not every test file needs it")]
pub fn start(
    socket: &Path,
    files: &Files,
    spec: &EngineSpec,
    job: &JobConfig,
    place: JobPlace,
    batch: u32,
) -> Result<(NodeConnection, NodeLoader), EngineError> {
    let connection = NodeConnection::open(socket).unwrap();
    let orders = orders(files.source.catalog().len(), place.rank, place.ranks, batch);
    let loader = connection.start(place, spec, job, &files.recipe, orders)?;
    Ok((connection, loader))
}

pub fn place(rank: u32, ranks: u32) -> JobPlace {
    JobPlace { run: 1, engine: 0, job: 0, rank, ranks }
}

pub fn next(loader: &mut NodeLoader) -> Result<Option<Batch>, EngineError> {
    loop {
        match loader.next_batch_timeout(Duration::from_secs(5))? {
            Delivery::Batch(batch) => return Ok(Some(batch)),
            Delivery::Ended => return Ok(None),
            Delivery::TimedOut => {}
        }
    }
}

/// Returns the samples of a batch, and checks their bytes.
pub fn checked(batch: &Batch) -> Vec<u32> {
    for sample in batch.iter() {
        assert_eq!(sample.bytes(), bytes_of(sample.id), "sample {}", sample.id);
    }
    batch.iter().map(|sample| sample.id).collect()
}
