//! Staging rings: what is on its way to the consumers, and how far ahead it reaches.
//!
//! A ring serves one rank, or all ranks of a node where their threads are pooled. What
//! enters it is a *parcel*: the local batches of one step for all ranks of the ring. Its
//! space is reserved as a whole, and all of it becomes ready at once, since pooled
//! threads take the ranks' samples in turn.

use std::collections::VecDeque;
use std::ops::Range;

use belady_control::policy::{NodeId, RankId, Staging, TierId};
use belady_control::sampler::{Order, SampleId, Scheme, Step};

use super::World;
use super::machine::ServerId;
use super::stations::{Cause, Latest};

/// One rank's local batch.
#[derive(Debug, Default)]
pub struct Part {
    pub rank: RankId,
    pub samples: Vec<SampleId>,
    pub bytes: u64,
    pub source_bytes: u64,
    /// Seconds to consume it.
    pub compute: f64,
}

/// The batches of one step for all ranks of a ring.
#[derive(Debug, Default)]
pub struct Parcel {
    pub step: u64,
    pub parts: Vec<Part>,
    pub bytes: u64,
    /// Copies that may go when the step is done.
    pub releases: Vec<(NodeId, TierId, SampleId)>,
    /// What the stations say; the server may take longer.
    pub ready: Latest,
    pub loaded: bool,
    /// What the server's part of the work mostly was.
    pub server_cause: Cause,
}

pub type ParcelId = u32;

#[derive(Debug)]
pub struct Ring {
    pub node: NodeId,
    pub ranks: Range<RankId>,
    pub server: ServerId,
    pub capacity: u64,
    pub used: u64,
    /// The next step to stage, and its parcel if that was drawn already.
    pub next: u64,
    pub waiting: Option<ParcelId>,
    pub staged: VecDeque<ParcelId>,
}

impl World {
    /// Lets every ring take in parcels while it has room, all rings in turn so that
    /// nobody queues its far future before another's near one.
    pub fn fill_rings(&mut self, current: u64, steps: u64) {
        let reach = match self.staging {
            Staging::Instant | Staging::OnDemand => current + 1,
            // Less than an epoch ahead: then a sample is in at most two rings, and two
            // orders are enough. An epoch of one step is staged while the one before is consumed.
            Staging::Ahead => (current + self.iterations.max(2)).min(steps),
        };
        loop {
            // An epoch is staged once all have staged the one before: what a policy takes
            // from another node's ring must be there.
            let slowest = self.rings.iter().map(|ring| ring.next).min().unwrap_or(0);
            let epoch_end = (slowest / self.iterations + 1) * self.iterations;
            // Where samples come several times an epoch, so is a step.
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
                let bytes = self.parcels[id as usize].bytes;
                if entered.used + bytes > entered.capacity && !entered.staged.is_empty() {
                    entered.waiting = Some(id);
                    continue;
                }
                entered.next += 1;
                entered.staged.push_back(id);
                self.deepest = self.deepest.max(entered.staged.len() as u64);
                self.stage(ring, id);
                self.rings[ring].used += self.parcels[id as usize].bytes;
                admitted = true;
            }
            if !admitted {
                self.first_fill = self.first_fill.min(self.deepest);
                return;
            }
        }
    }

    /// Whether samples of this step may still be in a ring when the next epoch is staged.
    /// Only then does it matter who has them there: within an epoch a sample is used once,
    /// unless every rank gets the whole batch or samples are drawn.
    pub fn ring_matters(&self, step: Step) -> bool {
        let Step { epoch, iteration } = step;
        // Until the rings are full for the first time nobody knows how far they reach.
        let first_fill = epoch == 0 && u64::from(iteration) < self.first_fill;
        // Twice as far as they have ever reached, since batches differ in size.
        let near_end = u64::from(iteration) + 2 * self.deepest >= self.iterations;
        let whole = self.job.stream.config().scheme == Scheme::Whole;
        first_fill || near_end || whole || self.draws_samples()
    }

    /// Whether an epoch may use a sample more than once, on any rank.
    fn draws_samples(&self) -> bool {
        matches!(self.job.stream.config().order, Order::Provided(_) | Order::Given(_))
    }

    /// Takes the next step's batches from the access stream.
    fn draw(&mut self, ring: usize) -> ParcelId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.parcels.push(Parcel::default());
            self.parcels.len() as ParcelId - 1
        });
        let number = self.rings[ring].next;
        let step = self.step_of(number);
        if self.order.as_ref().is_none_or(|(epoch, _)| *epoch != step.epoch) {
            self.order = self.orders.get(step.epoch).map(|order| (step.epoch, order));
        }
        let ranks = self.rings[ring].ranks.clone();
        let parcel = &mut self.parcels[id as usize];
        parcel.step = number;
        parcel.bytes = 0;
        parcel.parts.resize_with(ranks.len(), Part::default);
        for (part, rank) in parcel.parts.iter_mut().zip(ranks) {
            part.rank = rank;
            part.samples.clear();
            if let Some((_, order)) = &self.order {
                part.samples.extend(order.batch(rank, step.iteration));
            }
            part.bytes = part.samples.iter().map(|&sample| self.job.sizes.get(sample)).sum();
            parcel.bytes += part.bytes;
        }
        id
    }
}
