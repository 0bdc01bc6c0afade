//! Faults beside those of the network: crashes, cut links, a slow source.

use std::time::Duration;

use belady_control::policy::NodeId;

use crate::node::{Node, step_of};
use crate::scenario::{Away, FaultRates};
use crate::world::{Happening, World};

impl World {
    /// How often each fault occurs now: faults end when all consumers have reached some epoch.
    pub fn fault_rates(&self) -> FaultRates {
        let faults = self.scenario.faults;
        let slowest = self.finished.iter().min().copied().unwrap_or(0);
        if step_of(&self.scenario, slowest).epoch < faults.epochs {
            faults
        } else {
            FaultRates::NONE
        }
    }

    pub fn incident(&mut self) {
        if self.fault_rates().incidents == 0 {
            return;
        }
        let count = self.nodes.len() as u64;
        let node = self.random.between(0, count - 1) as NodeId;
        match self.random.between(0, 3) {
            0 => {
                let living = self.nodes.iter().filter(|node| node.alive).count();
                let victim = &mut self.nodes[node as usize];
                if !victim.alive || living < 2 {
                    return;
                }
                victim.alive = false;
                self.outcome.crashes += 1;
                let back = self.now + self.random.micros(1_000, 3_000_000);
                let warm = self.random.once_in(2);
                self.schedule(back, Happening::Restart { node, warm, from_start: false });
                self.unblock();
            }
            1 | 2 => {
                let other = self.random.between(0, count - 1) as NodeId;
                for (from, to) in [(node, other), (other, node)] {
                    // Sometimes only one way.
                    if self.random.once_in(4) {
                        continue;
                    }
                    let at = self.link(from, to);
                    self.cut[at] = true;
                    let until = self.now + self.random.micros(1_000, 4_000_000);
                    self.schedule(until, Happening::Heal { from, to });
                }
            }
            _ => {
                self.slow_source = true;
                let until = self.now + self.random.micros(1_000, 1_000_000);
                self.schedule(until, Happening::SourceRecovers);
            }
        }
    }

    /// Makes nodes disappear, and return after 1 to 30 s.
    pub fn absence(&mut self) {
        if self.fault_rates().absences == 0 {
            return;
        }
        let count = self.nodes.len() as u64;
        let node = self.random.between(0, count - 1) as NodeId;
        let until = self.now + self.random.micros(1_000_000, 30_000_000);
        match self.random.between(0, 3) {
            0 => self.stop(node, until),
            1 => {
                // Several at once, for different times.
                self.stop(node, until);
                let other = self.random.between(0, count - 1) as NodeId;
                let until = self.now + self.random.micros(1_000_000, 30_000_000);
                self.stop(other, until);
            }
            2 => {
                for other in 0..count as NodeId {
                    self.cut_until(node, other, until);
                    self.cut_until(other, node, until);
                }
            }
            _ => {
                let other = self.random.between(0, count - 1) as NodeId;
                self.cut_until(node, other, until);
            }
        }
    }

    /// Stops the process of a node: its events wait.
    fn stop(&mut self, node: NodeId, until: Duration) {
        let stopped = &mut self.nodes[node as usize];
        if !stopped.alive || stopped.stopped_until > self.now {
            return;
        }
        stopped.stopped_until = until;
        stopped.stopped_for += until.saturating_sub(self.now);
        let life = stopped.life;
        self.schedule(until, Happening::Continue { node, life });
    }

    fn cut_until(&mut self, from: NodeId, to: NodeId, until: Duration) {
        let at = self.link(from, to);
        self.cut[at] = true;
        self.schedule(until, Happening::Heal { from, to });
    }

    pub fn goes_away(&mut self, away: Away) {
        let Away { node, until, killed, .. } = away;
        if !killed {
            return self.stop(node, until);
        }
        self.nodes[node as usize].alive = false;
        self.schedule(until, Happening::Restart { node, warm: false, from_start: true });
    }

    /// Restarts the node with the epoch of its consumer, or with the first.
    pub fn restart(&mut self, node: NodeId, warm: bool, from_start: bool) {
        let old = &self.nodes[node as usize];
        let iterations = u64::from(self.scenario.job.stream.iterations());
        let first = old.consuming.min(self.steps() - 1) / iterations * iterations;
        let first = if from_start { 0 } else { first };
        let life = old.life + 1;
        let samples = self.scenario.job.sizes.len();
        let mut shelves = self.empty_shelves(node);
        if warm && shelves.len() > 1 {
            // Memory is lost, the disk is not.
            shelves[1] = old.shelves[1].clone().warm(samples);
        }
        self.nodes[node as usize] = Node::new(node, life, &self.scenario, first, shelves);
        self.finished[node as usize] = first;
        self.advance(node);
    }
}
