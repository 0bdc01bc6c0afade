//! The source: all nodes share it, one read at a time, in turn.

use std::collections::VecDeque;
use std::time::Duration;

use belady_control::policy::NodeId;

use crate::message::Bytes;
use crate::node::step_of;
use crate::world::{Happening, World};

/// How many times longer a slow source takes.
const SLOW: u32 = 10;

/// A sample to read from the source.
#[derive(Clone, Copy)]
pub struct Read {
    life: u32,
    step: u64,
    item: usize,
    since: Duration,
}

impl World {
    /// Reads items of a batch.
    pub fn read_source(&mut self, node: NodeId, step: u64, items: Vec<usize>) {
        if items.is_empty() {
            return;
        }
        let epoch = step_of(&self.scenario, step).epoch as usize;
        self.outcome.source_reads[epoch] += items.len() as u64;
        let idle = self.reads.iter().all(VecDeque::is_empty);
        let life = self.nodes[node as usize].life;
        for item in items {
            self.reads[node as usize].push_back(Read { life, step, item, since: self.now });
        }
        if idle {
            self.schedule(self.now + self.source_time(), Happening::Read { node });
        }
    }

    fn source_time(&self) -> Duration {
        self.scenario.source * if self.slow_source { SLOW } else { 1 }
    }

    /// The source has served a node, and serves the next one that waits.
    pub fn served(&mut self, node: NodeId) {
        if let Some(Read { life, step, item, since }) = self.reads[node as usize].pop_front() {
            self.longest_read = self.longest_read.max(self.now.saturating_sub(since));
            if self.lives(node, life) {
                let item = self.item(node, step, item);
                item.bytes = Some(Bytes::of(item.sample));
                if self.nodes[node as usize].stopped_until <= self.now {
                    self.advance(node);
                }
            }
        }
        let count = self.nodes.len() as NodeId;
        let mut others = (1..=count).map(|after| (node + after) % count);
        if let Some(node) = others.find(|&other| !self.reads[other as usize].is_empty()) {
            self.schedule(self.now + self.source_time(), Happening::Read { node });
        }
    }
}
