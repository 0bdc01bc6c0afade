//! Preloading tiers before the run, and prefetching into them during it.

use belady_control::model::{Pipeline, PreprocessWork, Sharing};
use belady_control::policy::{Event, NodeId, Staging, TierId};
use belady_control::sampler::SampleId;

use super::SimWorld;
use super::servers::{ServerId, ServerWork};
use super::stations::{Cause, device_seconds, seconds};

/// The token of background work; the server identifies the prefetcher.
pub const PREFETCH: u32 = u32::MAX;
/// Samples of one background fetch: enough to amortise the event, few enough for fine-grained
/// progress.
const PREFETCH_BATCH: usize = 64;

#[derive(Debug)]
pub struct SimPrefetcher {
    pub node: NodeId,
    pub tier: TierId,
    pub server: ServerId,
    pub busy: bool,
    pub samples: Vec<SampleId>,
}

impl SimWorld {
    /// Fills the tiers before the first step.
    pub fn preload(&mut self) {
        let preload = self.plan.preload();
        let tiers = self.job.system.tiers.len();
        let mut written: f64 = 0.0;
        for (node, list) in preload.nodes.iter().enumerate() {
            let mut bytes = vec![0.0; tiers];
            let mut work = vec![PreprocessWork::default(); tiers];
            for &(sample, tier) in list {
                let size = self.job.sizes.get(sample);
                self.store.put(node as NodeId, tier, sample, size);
                bytes[tier as usize] += size as f64;
                self.job.system.preprocess.add(&mut work[tier as usize], size);
                if !preload.free {
                    self.meter.source_read(0, sample, size, true);
                }
            }
            if preload.free {
                continue;
            }
            for (tier, &bytes) in bytes.iter().enumerate().skip(1) {
                if bytes > 0.0 {
                    if self.rates.sharing == Sharing::Aggregate {
                        let device = &mut self.stations[node].devices[tier];
                        written = written.max(device.serve(0.0, bytes / self.rates.write[tier]));
                    }
                    let server = self.prefetchers[node * (tiers - 1) + tier - 1].server;
                    let threads = self.servers.threads(server);
                    let prepare = match self.rates.pipeline {
                        Pipeline::Serial => self.job.system.preparing_time(&work[tier], threads).0,
                        Pipeline::Overlapped => 0.0,
                    };
                    let work = ServerWork {
                        token: Some(PREFETCH),
                        source_bytes: bytes,
                        then_seconds: prepare,
                    };
                    self.servers.submit(0.0, server, work);
                }
            }
        }
        while let Some(at) = self.servers.next_event() {
            self.servers.step();
            self.now = at;
        }
        self.now = self.now.max(written);
        self.meter.preloaded(self.now);
    }

    pub fn wake_prefetchers(&mut self) {
        if self.staging == Staging::Instant {
            return;
        }
        for index in 0..self.prefetchers.len() {
            if !self.prefetchers[index].busy {
                self.ask_prefetcher(index, self.now);
            }
        }
    }

    fn ask_prefetcher(&mut self, index: usize, now: f64) {
        let SimPrefetcher { node, tier, server, .. } = self.prefetchers[index];
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        let event = Event::Idle { tier, limit: PREFETCH_BATCH };
        self.policies[node as usize].on(seconds(now), event, &mut actions);
        self.apply_evictions(node, &actions);
        self.prefetchers[index].busy = !actions.fetches.is_empty();
        if self.prefetchers[index].busy {
            let mut source_bytes = 0;
            let mut samples = std::mem::take(&mut self.prefetchers[index].samples);
            samples.clear();
            for fetch in &actions.fetches {
                let bytes = self.job.sizes.get(fetch.sample);
                source_bytes += bytes;
                self.meter.source_read(self.epoch, fetch.sample, bytes, false);
                samples.push(fetch.sample);
            }
            let work = ServerWork {
                token: Some(PREFETCH),
                source_bytes: source_bytes as f64,
                then_seconds: 0.0,
            };
            self.prefetchers[index].samples = samples;
            self.servers.submit(now, server, work);
        }
        self.actions = actions;
    }

    /// Handles the arrival of a background fetch.
    pub fn fetched(&mut self, index: usize, now: f64) {
        let SimPrefetcher { node, tier, .. } = self.prefetchers[index];
        let samples = std::mem::take(&mut self.prefetchers[index].samples);
        let mut actions = std::mem::take(&mut self.actions);
        for &sample in &samples {
            let bytes = self.job.sizes.get(sample);
            if self.store.put(node, tier, sample, bytes) && self.rates.sharing == Sharing::Aggregate
            {
                let device = &mut self.stations[node as usize].devices[tier as usize];
                device.serve(now, device_seconds(bytes, &self.rates.write, tier));
            }
            // Policies that do not wait for fetches pay nothing for a lookup.
            let awaiting = !self.awaiting.is_empty();
            let steps = awaiting.then(|| self.awaiting.remove(&(node, tier, sample))).flatten();
            for id in steps.unwrap_or_default() {
                let staged = &mut self.staged_steps[id as usize];
                staged.awaited -= 1;
                staged.ready.take(now, Cause::Source);
            }
            actions.clear();
            let event = Event::Fetched { tier, sample };
            self.policies[node as usize].on(seconds(now), event, &mut actions);
            self.apply_evictions(node, &actions);
        }
        self.actions = actions;
        self.prefetchers[index].samples = samples;
        self.ask_prefetcher(index, now);
    }
}
