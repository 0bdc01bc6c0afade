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
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub use args::{CacheArg, ReadArgs, ThreadsArg, cache, threads};
use belady_base::sync::{Mutex, lock};
use belady_control::sampler::{AccessStream, Step};
use belady_data::source::{OpenOptions, Source, Throttled};
use belady_engine::metrics::{Metrics, MetricsServer, MetricsSnapshot, exposition};
use belady_peer::{Cluster, JobWorld};

use self::barrier::StepBarrier;
use self::checksum::Checksum;
use self::compute::ComputeModel;
use self::loader::{EngineLoader, ReadBatch};
use self::order::{Deviations, OrderCheck};
use self::plan::ReadPlan;
use self::report::{EpochReport, ReadReport};
use crate::usage::UsageError;

/// Runs the command.
pub fn run(args: &ReadArgs) -> anyhow::Result<()> {
    if args.barrier && args.local_ranks == 1 && !args.peers.are_wanted() {
        let why = "--barrier needs other ranks to wait for: add --ranks or --local-ranks";
        return Err(UsageError::new(why.to_owned()).into());
    }
    let plan = ReadPlan::new(args)?;
    let start = Instant::now();
    let cluster = args.peers.join()?;
    let world = cluster.as_ref().map_or(JobWorld { rank: 0, size: 1 }, |cluster| cluster.world());
    let source = open(args, &plan, cluster.as_deref())?;
    let stream = plan.stream(args, world, source.catalog().len())?;
    let opened = source.operations();
    let barrier = args.barrier.then(|| StepBarrier::new(args.local_ranks, cluster.as_ref()));
    let barrier = barrier.transpose()?;
    let loaders = EngineLoader::start(args, &plan, source, cluster.clone())?;
    let metrics = loaders[0].metrics();
    // The engine is running already, so the first epoch is measured from zero.
    let tiers = vec![String::new(); plan.caches.len()];
    let mut nothing = Metrics::new(&tiers).snapshot();
    nothing.operations = opened.into();
    let _server = serve(&plan, cluster.as_deref(), &metrics)?;
    let run = ReadRun::new(start, args, barrier, metrics.clone(), nothing);
    let seen = {
        let samples = stream.layout().entries() / u64::from(world.size);
        let _progress = progress::ProgressLine::start(Arc::clone(&metrics), args.epochs, samples);
        run.consume_all(loaders, stream.iterations())?
    };
    let engine = metrics.snapshot();
    let run = run.ledger.into_inner().unwrap_or_else(PoisonError::into_inner);
    let report = ReadReport {
        world,
        local_ranks: args.local_ranks,
        checksum: args.checksum.then(|| Checksum::of_ranks(seen.iter().map(|rank| rank.checksum))),
        policy: args.policy.to_string(),
        caches: plan.caches.clone(),
        epochs: run.epochs,
        first_batch_seconds: run.first_batch_seconds,
        wall_seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: process::cpu_seconds(),
        peak_rss: process::peak_rss(),
        anonymous_peak: run.anonymous_peak.max(process::anonymous()),
        // Last: computing the orders again takes time and memory that are not the run's.
        order_ok: in_order(seen, &stream, world, args, &engine),
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

/// Returns whether every local rank got its batches in the expected order.
fn in_order(
    seen: Vec<RankRun>,
    stream: &AccessStream,
    world: JobWorld,
    args: &ReadArgs,
    engine: &MetricsSnapshot,
) -> bool {
    let mut missing = Deviations::default();
    for (rank, seen) in (world.rank * args.local_ranks..).zip(seen) {
        match seen.order.deviations(stream, rank, args.epochs) {
            Some(deviations) => missing += deviations,
            None => return false,
        }
    }
    missing.are_excused_by(engine.bad.skipped, engine.bad.replaced)
}

/// A run: what the consumers of the local ranks share.
struct ReadRun<'a> {
    start: Instant,
    args: &'a ReadArgs,
    barrier: Option<StepBarrier>,
    metrics: Arc<Metrics>,
    ledger: Mutex<RunLedger>,
}

/// The measurements of a run.
struct RunLedger {
    /// By epoch that a rank has begun.
    sums: Vec<EpochSums>,
    epoch_start: Instant,
    at_epoch_start: MetricsSnapshot,
    epochs: Vec<EpochReport>,
    first_batch_seconds: f64,
    anonymous_peak: u64,
}

/// What the local ranks have consumed of an epoch.
#[derive(Clone, Default)]
struct EpochSums {
    samples: u64,
    bytes: u64,
    held: Duration,
    /// Ranks that have ended the epoch.
    ended: u32,
}

/// What one rank has consumed.
#[derive(Default)]
struct RankRun {
    order: OrderCheck,
    checksum: Checksum,
}

impl<'a> ReadRun<'a> {
    fn new(
        start: Instant,
        args: &'a ReadArgs,
        barrier: Option<StepBarrier>,
        metrics: Arc<Metrics>,
        before: MetricsSnapshot,
    ) -> Self {
        let ledger = Mutex::new(RunLedger {
            sums: vec![],
            epoch_start: Instant::now(),
            at_epoch_start: before,
            epochs: vec![],
            first_batch_seconds: 0.0,
            anonymous_peak: 0,
        });
        Self { start, args, barrier, metrics, ledger }
    }

    /// Consumes all batches of all local ranks, each on a thread.
    fn consume_all(
        &self,
        loaders: Vec<EngineLoader>,
        iterations: u32,
    ) -> anyhow::Result<Vec<RankRun>> {
        std::thread::scope(|scope| {
            let consume = |mut loader: EngineLoader| {
                scope.spawn(move || {
                    let seen = self.consume(&mut loader, iterations);
                    if let (Err(_), Some(barrier)) = (&seen, &self.barrier) {
                        barrier.give_up();
                    }
                    seen
                })
            };
            let ranks: Vec<_> = loaders.into_iter().map(consume).collect();
            let seen = ranks
                .into_iter()
                .map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            seen.collect()
        })
    }

    /// Consumes all batches of a rank.
    fn consume(&self, loader: &mut EngineLoader, iterations: u32) -> anyhow::Result<RankRun> {
        let mut compute = self.args.consume.map(ComputeModel::new);
        let mut seen = RankRun::default();
        loop {
            let asked = Instant::now();
            let Some(batch) = loader.next()? else { return Ok(seen) };
            let had = Instant::now();
            let step = batch.step();
            let (samples, bytes) = seen.note(step, &batch, self.args.checksum);
            if let Some(compute) = &mut compute {
                let end = compute.until(bytes, asked, had);
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
            }
            // As in training, where the batch is released after all ranks have their gradients:
            // what the engine sends on its release does not delay them.
            let held = self.end_step(compute.as_mut())?;
            drop(batch);
            let mut ledger = lock(&self.ledger);
            let sums = ledger.sums_of(step.epoch);
            (sums.samples, sums.bytes) = (sums.samples + samples, sums.bytes + bytes);
            sums.held += held;
            if step == (Step { epoch: 0, iteration: 0 }) && ledger.first_batch_seconds == 0.0 {
                ledger.first_batch_seconds = (had - self.start).as_secs_f64();
            }
            if step.iteration + 1 == iterations {
                let in_step = self.barrier.is_some() && self.args.local_ranks > 1;
                let steps = in_step.then_some(iterations);
                ledger.end_epoch(step.epoch, steps, self.args.local_ranks, &self.metrics);
            }
        }
    }

    /// Waits for the other ranks if `--barrier` is given; returns for how long.
    fn end_step(&self, compute: Option<&mut ComputeModel>) -> anyhow::Result<Duration> {
        let Some(barrier) = &self.barrier else { return Ok(Duration::ZERO) };
        let ended = Instant::now();
        barrier.pass()?;
        let now = Instant::now();
        if let Some(compute) = compute {
            compute.held_until(now);
        }
        Ok(now - ended)
    }
}

impl RankRun {
    /// Records a batch and returns its number of samples and bytes.
    fn note(&mut self, step: Step, batch: &ReadBatch, with_checksum: bool) -> (u64, u64) {
        let samples = batch.samples();
        if with_checksum {
            batch.add_to(&mut self.checksum);
        }
        let count = samples.len() as u64;
        self.order.took(step, samples.into_iter());
        (count, batch.bytes())
    }
}

impl RunLedger {
    fn sums_of(&mut self, epoch: u32) -> &mut EpochSums {
        let least = epoch as usize + 1;
        if self.sums.len() < least {
            self.sums.resize(least, EpochSums::default());
        }
        &mut self.sums[epoch as usize]
    }

    /// A rank has ended an epoch, which is over when all have.
    fn end_epoch(&mut self, epoch: u32, steps: Option<u32>, ranks: u32, metrics: &Metrics) {
        let sums = self.sums_of(epoch);
        sums.ended += 1;
        if sums.ended < ranks {
            return;
        }
        let EpochSums { samples, bytes, held, .. } = *sums;
        let (now, seen) = (Instant::now(), metrics.snapshot());
        self.epochs.push(EpochReport {
            epoch,
            seconds: (now - self.epoch_start).as_secs_f64(),
            samples,
            bytes,
            held_seconds: held.as_secs_f64() / f64::from(ranks),
            steps,
            engine: &seen - &self.at_epoch_start,
        });
        (self.epoch_start, self.at_epoch_start) = (now, seen);
        self.anonymous_peak = self.anonymous_peak.max(process::anonymous());
    }
}
