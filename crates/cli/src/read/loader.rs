//! The one file of the command that knows the engine.

use std::sync::Arc;
use std::time::Instant;

use belady_control::sampler::{AccessStream, EpochOrder, SampleId, Step};
use belady_data::source::{Source, Want};
use belady_engine::metrics::{Metrics, Served, Watch};

use super::args::ReadArgs;
use super::plan::Plan;

/// Reads batch after batch when asked, until the engine is there.
#[derive(Debug)]
pub struct Loader {
    source: Arc<dyn Source>,
    stream: AccessStream,
    order: EpochOrder,
    step: Step,
    epochs: u32,
    metrics: Arc<Metrics>,
    _watch: Watch,
}

impl Loader {
    pub fn start(args: &ReadArgs, plan: &Plan, source: Arc<dyn Source>) -> anyhow::Result<Self> {
        let names: Vec<String> = plan.caches.iter().map(|cache| format!("{cache:?}")).collect();
        let metrics = Arc::new(Metrics::new(&names));
        let stream = plan.stream(args, source.catalog().len())?;
        Ok(Self {
            order: stream.epoch(0),
            stream,
            step: Step { epoch: 0, iteration: 0 },
            epochs: args.epochs,
            _watch: metrics.watch(Arc::clone(&source)),
            metrics,
            source,
        })
    }

    pub fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        if self.step.epoch == self.epochs {
            return Ok(None);
        }
        let began = Instant::now();
        let step = self.step;
        let mut samples = vec![];
        for id in self.order.batch(0, step.iteration) {
            let mut bytes = vec![0; self.source.catalog().size(id) as usize];
            self.source.read(&mut [Want { sample: id, into: &mut bytes }])?;
            self.metrics.loaded(Served::Source, 1, bytes.len() as u64);
            samples.push((id, bytes));
        }
        self.step.iteration += 1;
        if self.step.iteration == self.stream.iterations() {
            self.step = Step { epoch: step.epoch + 1, iteration: 0 };
            self.order = self.stream.epoch(self.step.epoch);
        }
        let batch = Batch { step, samples };
        self.metrics.waited(began.elapsed(), step.iteration == 0 && step.epoch > 0);
        self.metrics.delivered(batch.len() as u64, batch.bytes());
        Ok(Some(batch))
    }

    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }
}

#[derive(Debug)]
pub struct Batch {
    step: Step,
    samples: Vec<(SampleId, Vec<u8>)>,
}

impl Batch {
    pub fn step(&self) -> Step {
        self.step
    }

    pub fn len(&self) -> usize {
        self.samples.len()
    }

    pub fn bytes(&self) -> u64 {
        self.samples.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    pub fn samples(&self) -> impl Iterator<Item = SampleId> {
        self.samples.iter().map(|&(id, _)| id)
    }
}
