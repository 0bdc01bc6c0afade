//! Staging rings: the steps that are on their way to the consumers.
//!
//! A ring serves one rank, or all ranks of a node where their threads are pooled. Its entries are
//! [`StagedStep`]s: the local batches of one step for all ranks of the ring. A step's space is
//! reserved as a whole, and all of it becomes ready at once, since pooled threads take the ranks'
//! samples in turn.

use std::collections::VecDeque;
use std::ops::Range;

use belady_control::policy::{NodeId, RankId, Staging, TierId};
use belady_control::sampler::{Order, SampleId, Scheme, Step};

use super::SimWorld;
use super::servers::ServerId;
use super::stations::{Cause, Latest};

/// One rank's local batch.
#[derive(Debug, Default)]
pub struct RankBatch {
    pub rank: RankId,
    pub samples: Vec<SampleId>,
    pub bytes: u64,
    pub source_bytes: u64,
    /// Seconds to consume it.
    pub compute: f64,
}

/// The batches of one step for all ranks of a ring.
#[derive(Debug, Default)]
pub struct StagedStep {
    pub step: u64,
    pub parts: Vec<RankBatch>,
    pub bytes: u64,
    /// Copies to evict when the step is done.
    pub releases: Vec<(NodeId, TierId, SampleId)>,
    /// When the stations are done; the server may take longer.
    pub ready: Latest,
    pub loaded: bool,
    /// Loads that wait for a background fetch.
    pub awaited: u32,
    /// What took the server longest.
    pub server_cause: Cause,
}

impl StagedStep {
    /// Whether all of its samples are loaded.
    pub fn is_ready(&self) -> bool {
        self.loaded && self.awaited == 0
    }
}

pub type StagedStepId = u32;

#[derive(Debug)]
pub struct StagingRing {
    pub node: NodeId,
    pub ranks: Range<RankId>,
    pub server: ServerId,
    pub capacity: u64,
    pub used: u64,
    /// The next step to stage, and its entry if it was drawn already.
    pub next: u64,
    pub waiting: Option<StagedStepId>,
    pub staged: VecDeque<StagedStepId>,
}

impl SimWorld {
    /// Stages steps while rings have space, all rings in turn, so that no ring queues its far
    /// future before another's near one.
    pub fn fill_rings(&mut self, current: u64, steps: u64) {
        let reach = match self.staging {
            Staging::Instant | Staging::OnDemand => current + 1,
            // Less than an epoch ahead, so that a sample is in at most two rings and two orders are
            // enough. An epoch of one step is staged while the one before is consumed.
            Staging::Ahead => (current + self.iterations.max(2)).min(steps),
        };
        loop {
            // An epoch is staged once all rings have staged the one before: a policy may take
            // samples from another node's ring.
            let slowest = self.rings.iter().map(|ring| ring.next).min().unwrap_or(0);
            let epoch_end = (slowest / self.iterations + 1) * self.iterations;
            // Where an epoch may repeat samples, the same holds for steps.
            let end = if self.draws_samples() { slowest + 1 } else { epoch_end };
            let mut admitted = false;
            for ring in 0..self.rings.len() {
                if self.rings[ring].next >= reach.min(end) {
                    continue;
                }
                let id = match self.rings[ring].waiting.take() {
                    Some(id) => id,
                    None => self.draw(ring),
                };
                let entered = &mut self.rings[ring];
                let bytes = self.staged_steps[id as usize].bytes;
                if entered.used + bytes > entered.capacity && !entered.staged.is_empty() {
                    entered.waiting = Some(id);
                    continue;
                }
                entered.next += 1;
                entered.staged.push_back(id);
                self.deepest = self.deepest.max(entered.staged.len() as u64);
                self.stage(ring, id);
                self.rings[ring].used += self.staged_steps[id as usize].bytes;
                admitted = true;
            }
            if !admitted {
                self.first_fill = self.first_fill.min(self.deepest);
                return;
            }
        }
    }

    /// Returns whether samples of this step may still be in a ring when the next epoch is staged.
    /// Only then the ring index is needed: within an epoch a sample is used once, unless every rank
    /// gets the whole batch or samples are drawn.
    pub fn ring_matters(&self, step: Step) -> bool {
        let Step { epoch, iteration } = step;
        // Until the rings are full for the first time their reach is not known.
        let first_fill = epoch == 0 && u64::from(iteration) < self.first_fill;
        // Twice as far as they have ever reached, since batches differ in size.
        let near_end = u64::from(iteration) + 2 * self.deepest >= self.iterations;
        let whole = self.job.stream.config().scheme == Scheme::Whole;
        first_fill || near_end || whole || self.draws_samples()
    }

    /// Returns whether an epoch may use a sample more than once, on any rank.
    fn draws_samples(&self) -> bool {
        matches!(self.job.stream.config().order, Order::Provided(_) | Order::Given(_))
    }

    /// Takes the next step's batches from the access stream.
    fn draw(&mut self, ring: usize) -> StagedStepId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.staged_steps.push(StagedStep::default());
            self.staged_steps.len() as StagedStepId - 1
        });
        let number = self.rings[ring].next;
        let step = self.step_of(number);
        if self.order.as_ref().is_none_or(|(epoch, _)| *epoch != step.epoch) {
            self.order = self.epoch_orders.get(step.epoch).map(|order| (step.epoch, order));
        }
        let ranks = self.rings[ring].ranks.clone();
        let staged = &mut self.staged_steps[id as usize];
        staged.step = number;
        staged.bytes = 0;
        staged.parts.resize_with(ranks.len(), RankBatch::default);
        for (part, rank) in staged.parts.iter_mut().zip(ranks) {
            part.rank = rank;
            part.samples.clear();
            if let Some((_, order)) = &self.order {
                part.samples.extend(order.batch(rank, step.iteration));
            }
            part.bytes = part.samples.iter().map(|&sample| self.job.sizes.get(sample)).sum();
            staged.bytes += part.bytes;
        }
        id
    }
}
