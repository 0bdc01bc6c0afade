//! `belady read`: runs and measures the loader without Python.
//!
//! [`args`] defines the options, and [`plan`] combines them with the system file. [`loader`] starts
//! the engine. The loop in this module consumes batches as training does ([`compute`]), checks
//! their order ([`order`]) and measures the run ([`report`]).

mod args;
mod barrier;
mod checksum;
mod compute;
mod loader;
mod order;
mod plan;
mod process;
mod progress;
mod report;

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use args::{CacheArg, ReadArgs, cache};
use belady_control::sampler::Step;
use belady_data::source::{OpenOptions, Source, Throttled};
use belady_engine::metrics::{Metrics, MetricsServer, MetricsSnapshot, exposition};
use belady_peer::{Cluster, JobWorld};

use self::barrier::Barrier;
use self::checksum::Checksum;
use self::compute::ComputeModel;
use self::loader::{EngineLoader, ReadBatch};
use self::order::OrderCheck;
use self::plan::ReadPlan;
use self::report::{EpochReport, ReadReport};

/// Runs the command.
pub fn run(args: &ReadArgs) -> anyhow::Result<()> {
    let plan = ReadPlan::new(args)?;
    let start = Instant::now();
    let cluster = args.peers.join()?;
    let world = cluster.as_ref().map_or(JobWorld { rank: 0, size: 1 }, |cluster| cluster.world());
    let source = open(args, &plan, cluster.as_deref())?;
    let stream = plan.stream(args, world, source.catalog().len())?;
    let opened = source.operations();
    let barrier = cluster.as_ref().filter(|_| args.barrier).map(Barrier::new).transpose()?;
    let mut loader = EngineLoader::start(args, &plan, source, cluster.clone())?;
    let metrics = loader.metrics();
    // The engine is running already, so the first epoch is measured from zero.
    let tiers = vec![String::new(); plan.caches.len()];
    let mut nothing = Metrics::new(&tiers).snapshot();
    nothing.operations = opened.into();
    let _server = serve(&plan, cluster.as_deref(), &metrics)?;
    let mut run = ReadRun::new(start, stream.iterations(), nothing);
    run.barrier = barrier;
    run.checksum = args.checksum.then(Checksum::default);
    {
        let samples = stream.layout().entries() / u64::from(world.size);
        let _progress = progress::ProgressLine::start(Arc::clone(&metrics), args.epochs, samples);
        run.consume(&mut loader, args, &metrics)?;
    }
    let engine = metrics.snapshot();
    let report = ReadReport {
        world,
        checksum: run.checksum,
        policy: args.policy.name(),
        caches: plan.caches.clone(),
        epochs: run.epochs,
        first_batch_seconds: run.first_batch_seconds,
        wall_seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: process::cpu_seconds(),
        peak_rss: process::peak_rss(),
        anonymous_peak: run.anonymous_peak.max(process::anonymous()),
        // Last: computing the orders again takes time and memory that are not the run's.
        order_ok: run.order.holds(
            &stream,
            world.rank,
            args.epochs,
            engine.bad.skipped,
            engine.bad.replaced,
        ),
        engine,
    };
    // Not `println`, which panics when the reader of a pipe has gone.
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        out.write_all(report.text().as_bytes())?;
    }
    anyhow::ensure!(report.order_ok, "the batches were not in the expected order");
    Ok(())
}

/// Serves metrics if `--metrics` is given.
fn serve(
    plan: &ReadPlan,
    cluster: Option<&Cluster>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Option<MetricsServer>> {
    let Some(port) = &plan.metrics else { return Ok(None) };
    let metrics = Arc::clone(metrics);
    let figures = move || exposition::text(&metrics.snapshot());
    let Some(cluster) = cluster else { return port.offer(figures).map(Some) };
    let (near, me) = (cluster.near(), cluster.world().rank);
    let place = near.iter().position(|&rank| rank == me).unwrap_or(0);
    Ok(port.try_offer(place, figures))
}

/// Opens the dataset, throttled if `--throttle` is given.
fn open(
    args: &ReadArgs,
    plan: &ReadPlan,
    cluster: Option<&Cluster>,
) -> anyhow::Result<Arc<dyn Source>> {
    let options = args.dataset.options(args.direct, plan.snapshot.as_ref());
    let options = OpenOptions { freshness: args.freshness, ..options };
    let source = match cluster {
        Some(cluster) => args.dataset.open_together(cluster, &options)?,
        None => Arc::from(args.dataset.open(&options)?),
    };
    Ok(match &args.throttle {
        None => source,
        Some(spec) => Arc::new(Throttled::new(source, spec.clone(), args.seed)),
    })
}

/// The state of a run.
struct ReadRun {
    start: Instant,
    barrier: Option<Barrier>,
    checksum: Option<Checksum>,
    held: Duration,
    /// The number of batches of an epoch.
    iterations: u32,
    epoch_start: Instant,
    at_epoch_start: MetricsSnapshot,
    samples: u64,
    bytes: u64,
    epochs: Vec<EpochReport>,
    order: OrderCheck,
    first_batch_seconds: f64,
    anonymous_peak: u64,
}

impl ReadRun {
    fn new(start: Instant, iterations: u32, before: MetricsSnapshot) -> Self {
        Self {
            start,
            barrier: None,
            checksum: None,
            held: Duration::ZERO,
            iterations,
            epoch_start: Instant::now(),
            at_epoch_start: before,
            samples: 0,
            bytes: 0,
            epochs: vec![],
            order: OrderCheck::default(),
            first_batch_seconds: 0.0,
            anonymous_peak: 0,
        }
    }

    /// Consumes all batches.
    fn consume(
        &mut self,
        loader: &mut EngineLoader,
        args: &ReadArgs,
        metrics: &Metrics,
    ) -> anyhow::Result<()> {
        let mut compute = args.consume.map(ComputeModel::new);
        loop {
            let asked = Instant::now();
            let Some(batch) = loader.next()? else { return Ok(()) };
            let had = Instant::now();
            if self.epochs.is_empty() && self.samples == 0 {
                self.first_batch_seconds = (had - self.start).as_secs_f64();
            }
            let step = batch.step();
            let bytes = self.note(step, &batch);
            if let Some(compute) = &mut compute {
                let end = compute.until(bytes, asked, had);
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
            }
            // As in training, where the batch is released after all ranks have their gradients:
            // what the engine sends on its release does not delay them.
            self.end_step(compute.as_mut())?;
            drop(batch);
            if step.iteration + 1 == self.iterations {
                self.end_epoch(step.epoch, metrics);
            }
        }
    }

    /// Waits for the other ranks if `--barrier` is given.
    fn end_step(&mut self, compute: Option<&mut ComputeModel>) -> anyhow::Result<()> {
        let Some(barrier) = &mut self.barrier else { return Ok(()) };
        let ended = Instant::now();
        barrier.pass()?;
        let now = Instant::now();
        self.held += now - ended;
        if let Some(compute) = compute {
            compute.held_until(now);
        }
        Ok(())
    }

    /// Records a batch and returns its number of bytes.
    fn note(&mut self, step: Step, batch: &ReadBatch) -> u64 {
        let mut bytes = 0;
        let samples = batch.samples().map(|(sample, content)| {
            self.samples += 1;
            bytes += content.len() as u64;
            if let Some(checksum) = &mut self.checksum {
                checksum.add(sample, content);
            }
            sample
        });
        self.order.took(step, samples);
        self.bytes += bytes;
        bytes
    }

    fn end_epoch(&mut self, epoch: u32, metrics: &Metrics) {
        let (now, seen) = (Instant::now(), metrics.snapshot());
        self.epochs.push(EpochReport {
            epoch,
            seconds: (now - self.epoch_start).as_secs_f64(),
            samples: std::mem::take(&mut self.samples),
            bytes: std::mem::take(&mut self.bytes),
            held_seconds: std::mem::take(&mut self.held).as_secs_f64(),
            engine: &seen - &self.at_epoch_start,
        });
        (self.epoch_start, self.at_epoch_start) = (now, seen);
        self.anonymous_peak = self.anonymous_peak.max(process::anonymous());
    }
}
