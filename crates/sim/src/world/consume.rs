//! The end of a step: ranks' waits, evictions and what is kept.

use belady_control::model::Sharing;
use belady_control::policy::{Actions, Event, Keep, NodeId, Staging};

use super::SimWorld;
use super::background::PREFETCH;
use super::meter::StepTimes;
use super::stations::{Cause, device_seconds, seconds};

impl SimWorld {
    /// Runs the servers to their next event.
    fn advance(&mut self) {
        let Some(done) = self.servers.step() else { return };
        if done.token == PREFETCH {
            self.fetched((done.server - self.first_prefetcher) as usize, done.at);
        } else {
            let staged = &mut self.staged_steps[done.token as usize];
            staged.loaded = true;
            let cause = staged.server_cause;
            staged.ready.take(done.at, cause);
        }
    }

    /// All ranks consume their batch of `step`; the slowest ends it.
    pub fn consume(&mut self, step: u64) {
        for ring in 0..self.rings.len() {
            while let Some(&front) = self.rings[ring].staged.front()
                && !self.staged_steps[front as usize].is_ready()
            {
                if self.servers.next_event().is_none() {
                    // Cannot happen while every staged step is submitted; a violation beats a hang.
                    self.store.violation(format!("step {step} waits for nothing"));
                    let staged = &mut self.staged_steps[front as usize];
                    (staged.loaded, staged.awaited) = (true, 0);
                }
                self.advance();
            }
        }
        let begin = self.now;
        let on_demand = self.staging == Staging::OnDemand;
        let mut end = begin;
        let mut compute: f64 = 0.0;
        let (mut all_compute, mut all_finish) = (0.0, 0.0);
        let (mut slowest_wait, mut shortest) = (0.0f64, f64::INFINITY);
        let mut cause = Cause::Source;
        self.slow_bytes.clear();
        for ring in &self.rings {
            let Some(&front) = ring.staged.front() else { continue };
            let staged = &self.staged_steps[front as usize];
            let ready = staged.ready.at;
            for part in &staged.parts {
                let (wait, finish) = if on_demand {
                    ((ready - begin - part.compute).max(0.0), ready.max(begin))
                } else {
                    let wait = (ready - begin).max(0.0);
                    (wait, begin + wait + part.compute)
                };
                shortest = shortest.min(wait);
                compute = compute.max(part.compute);
                all_compute += part.compute;
                all_finish += finish - begin;
                if finish > end {
                    end = finish;
                    slowest_wait = wait;
                    cause = staged.ready.cause;
                }
                self.slow_bytes.push(part.source_bytes);
            }
        }
        while self.servers.next_event().is_some_and(|at| at <= end) {
            self.advance();
        }
        let ranks = self.slow_bytes.len().max(1) as f64;
        let busy = self.servers.clock.busy_until(end);
        let times = StepTimes {
            begin,
            end,
            compute,
            mean_compute: all_compute / ranks,
            mean_finish: all_finish / ranks,
            source_busy: busy - std::mem::replace(&mut self.source_busy, busy),
            slowest_wait,
            shortest_wait: if shortest.is_finite() { shortest } else { 0.0 },
            cause,
            slow_bytes: &self.slow_bytes,
        };
        self.meter.step(self.epoch, &times);
        self.now = end;
        self.retire(step);
    }

    /// Ends the step: evicts the copies that it used last, frees its space in the rings, and asks
    /// the policies what to keep.
    fn retire(&mut self, step: u64) {
        for ring in &self.rings {
            let Some(&front) = ring.staged.front() else { continue };
            for &(node, tier, sample) in &self.staged_steps[front as usize].releases {
                self.store.evict(node, tier, sample, self.job.sizes.get(sample));
            }
        }
        let at = self.step_of(step);
        let mut actions = std::mem::take(&mut self.actions);
        for ring in 0..self.rings.len() {
            let Some(id) = self.rings[ring].staged.pop_front() else { continue };
            let staged = std::mem::take(&mut self.staged_steps[id as usize]);
            let node = self.rings[ring].node;
            self.rings[ring].used -= staged.bytes;
            let parts = if self.staging == Staging::Instant { &[] } else { &staged.parts[..] };
            for part in parts {
                actions.clear();
                let event = Event::Consumed { rank: part.rank, step: at, samples: &part.samples };
                self.policies[node as usize].on(seconds(self.now), event, &mut actions);
                self.apply_evictions(node, &actions);
                if let Some(threads) = actions.threads.take() {
                    self.set_threads(node, threads);
                }
                for &keep in &actions.keeps {
                    if keep.node == node {
                        self.apply_keep(node, keep);
                    } else {
                        self.keeps.push((node, keep));
                    }
                }
                if self.ring_matters(at) {
                    for &sample in &part.samples {
                        self.store.rings.leave(node, at.epoch, sample);
                    }
                }
            }
            self.staged_steps[id as usize] = staged;
            self.free.push(id);
        }
        self.actions = actions;
        // After the evictions of all nodes: a node may keep a sample on another that evicted for
        // it.
        let mut keeps = std::mem::take(&mut self.keeps);
        for (node, keep) in keeps.drain(..) {
            self.apply_keep(node, keep);
        }
        self.keeps = keeps;
    }

    pub fn apply_evictions(&mut self, node: NodeId, actions: &Actions) {
        for evict in &actions.evictions {
            let bytes = self.job.sizes.get(evict.sample);
            self.store.evict(node, evict.tier, evict.sample, bytes);
        }
    }

    fn apply_keep(&mut self, from: NodeId, keep: Keep) {
        let bytes = self.job.sizes.get(keep.sample);
        if !self.store.put(keep.node, keep.tier, keep.sample, bytes) {
            return;
        }
        if keep.node != from {
            self.meter.pushed(bytes);
        }
        if self.rates.sharing == Sharing::Aggregate {
            let stations = &mut self.stations[keep.node as usize];
            let spent = device_seconds(bytes, &self.rates.write, keep.tier);
            stations.devices[keep.tier as usize].serve(self.now, spent);
            if keep.node != from {
                stations.network.serve(self.now, bytes as f64 / self.rates.network);
            }
        }
    }
}
