//! The consumers, and what they are promised.

use std::time::Duration;

use belady_control::policy::NodeId;

use crate::message::Bytes;
use crate::network::DEADLINE;
use crate::node::{Batch, Consumer, PATIENCE};
use crate::scenario::{Consumers, LARGEST};
use crate::world::{Happening, World};

/// Pauses between two requests, and messages in flight.
const MARGIN: Duration = Duration::from_millis(300);

impl World {
    /// Does everything that a node can do now.
    pub fn advance(&mut self, node: NodeId) {
        self.stage(node);
        self.set_out(node);
        self.end_steps(node);
        self.consume(node);
        self.stage(node);
        self.tell(node);
        let push_queue = self.nodes[node as usize].push_queue.bytes();
        self.outcome.largest_push_queue = self.outcome.largest_push_queue.max(push_queue);
        let limit = self.scenario.push_queue.max(LARGEST);
        assert!(push_queue <= limit, "an push_queue has {push_queue} of {limit} bytes");
    }

    fn consume(&mut self, node: NodeId) {
        let steps = self.steps();
        let at = self.nodes[node as usize].consuming;
        if self.nodes[node as usize].consumer == Consumer::Blocked {
            let others = self.nodes.iter().zip(&self.finished).filter(|(other, _)| other.alive);
            let together = self.scenario.consumers == Consumers::Together;
            if at == steps {
                self.nodes[node as usize].consumer = Consumer::Done;
                self.outcome.done_at[node as usize] = self.now;
            } else if !together || others.map(|(_, &finished)| finished).min() >= Some(at) {
                self.nodes[node as usize].consumer = Consumer::Waiting { since: self.now };
                self.end_steps(node);
            }
        }
        let Consumer::Waiting { since } = self.nodes[node as usize].consumer else { return };
        if self.nodes[node as usize].ended <= at {
            return;
        }
        let Some(batch) = self.nodes[node as usize].ring.pop_front() else {
            self.fail("a batch that has ended is not there")
        };
        self.check(node, &batch, since);
        self.nodes[node as usize].consumer = Consumer::Computing;
        let (low, high) = self.scenario.compute[node as usize];
        let at = self.now + self.random.micros(low, high);
        let life = self.nodes[node as usize].life;
        self.schedule(at, Happening::Computed { node, life });
    }

    /// The promise: the right samples in the right order, the right bytes, no endless wait.
    fn check(&mut self, node: NodeId, batch: &Batch, since: Duration) {
        let scenario = self.scenario.clone();
        let expected = self.nodes[node as usize].samples(&scenario, batch.step);
        let got: Vec<_> = batch.items.iter().map(|item| item.sample).collect();
        if batch.step != self.nodes[node as usize].consuming || got != expected {
            self.fail(&format!("rank {node} got {got:?} instead of {expected:?}"));
        }
        for item in &batch.items {
            if item.bytes != Some(Bytes::of(item.sample)) {
                self.fail(&format!("rank {node} got wrong bytes of sample {}", item.sample));
            }
        }
        let wait = self.now.saturating_sub(since);
        self.outcome.longest_wait = self.outcome.longest_wait.max(wait);
        // Patience for the epoch to begin, for a sample that may arrive, for other nodes to load
        // the step, and for space in the push queue; a request in flight, and another one; then the
        // source.
        let bound = 4 * PATIENCE + 2 * DEADLINE + MARGIN + self.longest_read;
        let bound = bound + std::mem::take(&mut self.nodes[node as usize].stopped_for);
        if wait > bound {
            self.fail(&format!("rank {node} has waited {wait:?} for a batch, more than {bound:?}"));
        }
    }

    pub fn computed(&mut self, node: NodeId) {
        let consumer = &mut self.nodes[node as usize];
        consumer.consumer = Consumer::Blocked;
        consumer.consuming += 1;
        self.finished[node as usize] = consumer.consuming;
        self.advance(node);
        self.unblock();
    }

    /// Starts a step for consumers that have waited for others.
    pub fn unblock(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].alive && self.nodes[node].consumer == Consumer::Blocked {
                self.advance(node as NodeId);
            }
        }
    }
}
