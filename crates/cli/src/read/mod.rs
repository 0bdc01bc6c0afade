//! `belady read`: the loader without Python, measured.
//!
//! [`args`] is what can be asked for, [`plan`] what it means together with the system file.
//! [`loader`] starts the engine on it. The loop here takes batches as training would
//! ([`pace`]), and notes what came ([`order`]) and how long it took ([`report`]).

mod args;
mod barrier;
mod loader;
mod order;
mod pace;
mod plan;
mod process;
mod progress;
mod report;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
pub use args::ReadArgs;
use belady_control::sampler::Step;
use belady_data::source::{Source, Throttled};
use belady_engine::metrics::{Metrics, MetricsServer, MetricsSnapshot, serve};

use self::loader::{Batch, Loader};
use self::order::OrderCheck;
use self::pace::Pace;
use self::plan::{MetricsPort, Plan};
use self::report::{EpochReport, Report};

pub fn run(args: &ReadArgs) -> anyhow::Result<()> {
    let plan = Plan::new(args)?;
    let start = Instant::now();
    let source = open(args, &plan)?;
    let stream = plan.stream(args, source.catalog().len())?;
    let opened = source.operations();
    let mut loader = Loader::start(args, &plan, source)?;
    let metrics = loader.metrics();
    // The engine is at work already: the first epoch's figures begin with nothing.
    let tiers = vec![String::new(); plan.caches.len()];
    let mut nothing = Metrics::new(&tiers).snapshot();
    nothing.operations = opened.into();
    let _server = plan.metrics.as_ref().map(|port| offer(port, &metrics)).transpose()?;
    let mut run = Run::new(start, stream.iterations(), nothing);
    {
        let samples = stream.deal().entries();
        let _progress = progress::Progress::start(Arc::clone(&metrics), args.epochs, samples);
        run.consume(&mut loader, args, &metrics)?;
    }
    let engine = metrics.snapshot();
    let report = Report {
        policy: args.policy.name(),
        caches: plan.caches.clone(),
        epochs: run.epochs,
        first_batch_seconds: run.first_batch_seconds,
        wall_seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: process::cpu_seconds(),
        peak_rss: process::peak_rss(),
        anonymous_peak: run.anonymous_peak.max(process::anonymous()),
        // Last: making the orders again takes time and memory that are not the run's.
        order_ok: run.order.holds(&stream, args.epochs, engine.bad.skipped, engine.bad.replaced),
        engine,
    };
    // Not `println`, which panics when the reader of a pipe has gone.
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        out.write_all(report.text().as_bytes())?;
    }
    anyhow::ensure!(report.order_ok, "batches did not come in the promised order");
    Ok(())
}

/// The dataset, made slow if that was asked for.
fn open(args: &ReadArgs, plan: &Plan) -> anyhow::Result<Arc<dyn Source>> {
    let options = args.dataset.options(args.direct, plan.snapshot.as_ref())?;
    let source = args.dataset.open(&options)?;
    Ok(match &args.throttle {
        None => Arc::from(source),
        Some(spec) => Arc::new(Throttled::new(source, spec.clone(), args.seed)),
    })
}

fn offer(port: &MetricsPort, metrics: &Arc<Metrics>) -> anyhow::Result<MetricsServer> {
    let server = serve(port.address.as_str(), &port.token, Arc::clone(metrics))
        .with_context(|| format!("cannot offer metrics at {}", port.address))?;
    // With port 0 only the system knows which one it is.
    eprintln!("metrics at http://{}/metrics", server.address());
    Ok(server)
}

/// A run so far.
struct Run {
    start: Instant,
    /// Batches of an epoch.
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

impl Run {
    fn new(start: Instant, iterations: u32, before: MetricsSnapshot) -> Self {
        Self {
            start,
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

    /// Takes every batch there is.
    fn consume(
        &mut self,
        loader: &mut Loader,
        args: &ReadArgs,
        metrics: &Metrics,
    ) -> anyhow::Result<()> {
        let mut pace = args.consume.map(Pace::new);
        loop {
            let asked = Instant::now();
            let Some(batch) = loader.next()? else { return Ok(()) };
            let had = Instant::now();
            if self.epochs.is_empty() && self.samples == 0 {
                self.first_batch_seconds = (had - self.start).as_secs_f64();
            }
            let step = batch.step();
            let bytes = self.note(step, &batch);
            if let Some(pace) = &mut pace {
                let end = pace.until(bytes, asked, had);
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
            }
            drop(batch);
            if step.iteration + 1 == self.iterations {
                self.end_epoch(step.epoch, metrics);
            }
        }
    }

    /// Notes what came, and tells its bytes.
    fn note(&mut self, step: Step, batch: &Batch) -> u64 {
        let mut bytes = 0;
        let samples = batch.samples().map(|(sample, size)| {
            self.samples += 1;
            bytes += size;
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
            engine: &seen - &self.at_epoch_start,
        });
        (self.epoch_start, self.at_epoch_start) = (now, seen);
        self.anonymous_peak = self.anonymous_peak.max(process::anonymous());
    }
}
