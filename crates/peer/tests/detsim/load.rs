//! Staging and loading: from the policy's answer to a complete batch.

use belady_control::policy::{LoadFrom, NodeId};
use belady_peer::protocol::retry::RetryDecision;
use belady_peer::{Answer, Ask};

use crate::message::{Bytes, Call, Message, Reply};
use crate::node::step_of;
use crate::world::{Happening, World};

impl World {
    pub fn stage(&mut self, id: NodeId) {
        let steps = self.steps();
        loop {
            let node = &mut self.nodes[id as usize];
            if node.ring.len() as u64 >= self.scenario.ring[id as usize] || node.next >= steps {
                return;
            }
            let batch = node.decide(&self.scenario, self.now);
            node.next += 1;
            let (step, count) = (batch.step, batch.items.len());
            let epoch = step_of(&self.scenario, step).epoch as usize;
            let planned = batch.items.iter().filter(|item| item.from == LoadFrom::Source).count();
            self.outcome.planned_reads[epoch] += planned as u64;
            self.nodes[id as usize].ring.push_back(batch);
            self.seek(id, step, (0..count).collect());
        }
    }

    /// Loads items of batches that have waited for the epoch to begin.
    pub fn set_out(&mut self, id: NodeId) {
        let steps = self.nodes[id as usize].not_begun.iter().map(|&(step, _)| step);
        let Some(first) = steps.min() else { return };
        if !self.has_begun(id, first) {
            return self.wake_when_starved(id);
        }
        for (step, items) in std::mem::take(&mut self.nodes[id as usize].not_begun) {
            self.seek(id, step, items);
        }
    }

    /// Returns whether the cached samples of a step's epoch may be asked for.
    fn has_begun(&mut self, id: NodeId, step: u64) -> bool {
        let iterations = u64::from(self.scenario.job.stream.iterations());
        let first = step / iterations * iterations;
        let staged_at = self.batch(id, step).staged_at;
        let node = &mut self.nodes[id as usize];
        let starved = node.starved(step, staged_at, self.now);
        let health = &node.health;
        node.fence.may_begin(first, starved, |other| health.is_up(other))
    }

    /// Loads items of a batch.
    pub fn seek(&mut self, id: NodeId, step: u64, items: Vec<usize>) {
        let begun = self.has_begun(id, step);
        let (mut from_source, mut local, mut not_begun) = (vec![], vec![], vec![]);
        let mut peers: Vec<Vec<usize>> = vec![vec![]; self.nodes.len()];
        for at in items {
            match self.item(id, step, at).from {
                LoadFrom::Source => from_source.push(at),
                _ if !begun => not_begun.push(at),
                LoadFrom::Local(_) => local.push(at),
                LoadFrom::Peer(peer, _) => peers[peer as usize].push(at),
            }
        }
        if !not_begun.is_empty() {
            self.nodes[id as usize].not_begun.push((step, not_begun));
            self.wake_when_starved(id);
        }
        for (peer, items) in (0..).zip(peers) {
            if items.is_empty() {
                continue;
            }
            if self.nodes[id as usize].health.may_ask(peer, self.now) {
                self.ask(id, peer, step, items);
            } else {
                self.elsewhere(id, step, items);
            }
        }
        let replies = local.iter().map(|&at| self.look_here(id, step, at)).collect();
        self.answered(id, id, step, &local, replies);
        self.read_source(id, step, from_source);
    }

    fn ask(&mut self, id: NodeId, peer: NodeId, step: u64, items: Vec<usize>) {
        let epoch = step_of(&self.scenario, step).epoch;
        let asks = items.iter().map(|&at| {
            let item = self.item(id, step, at);
            Ask { sample: item.sample, last_use: item.last_use }
        });
        let message = Message::Get { epoch, asks: asks.collect() };
        self.call(id, Call::Get { peer, step, items }, message);
    }

    /// Answers for a sample of this node's own: others may be about to put it here.
    fn look_here(&mut self, id: NodeId, step: u64, at: usize) -> Reply {
        let (sample, last_use) = {
            let item = self.item(id, step, at);
            (item.sample, item.last_use)
        };
        let epoch = step_of(&self.scenario, step).epoch;
        let faults = self.fault_rates();
        if self.random.once_in(faults.bad_tier) {
            let tier = self.random.between(0, self.nodes[id as usize].shelves.len() as u64 - 1);
            self.nodes[id as usize].shelves[tier as usize].go_bad(&mut self.random);
        }
        self.serve(id, epoch, Ask { sample, last_use: false }, last_use)
    }

    /// Returns a node's answer for a sample. `waits`: its release comes with the end of the step.
    pub fn serve(&mut self, id: NodeId, epoch: u32, ask: Ask, waits: bool) -> Reply {
        let node = &mut self.nodes[id as usize];
        let bytes = node.held(ask.sample);
        match bytes {
            Some(bytes) => {
                for tier in &mut node.shelves {
                    if tier.get(ask.sample).is_none() {
                    } else if ask.last_use {
                        tier.claims.release(ask.sample, epoch);
                    } else if !waits {
                        tier.claims.stays(ask.sample, epoch);
                    }
                }
                Reply::Here(bytes)
            }
            None if node.progress.may_come(epoch, |other| node.takes_part(other)) => Reply::NotYet,
            None => Reply::NotHere,
        }
    }

    /// Handles answers to items of a batch, from a peer or from this node itself.
    pub fn answered(
        &mut self,
        id: NodeId,
        peer: NodeId,
        step: u64,
        items: &[usize],
        replies: Vec<Reply>,
    ) {
        let patience = self.nodes[id as usize].fence.patience();
        let takes_part = self.nodes[id as usize].takes_part(peer);
        let (mut missing, mut again, mut pause) = (vec![], vec![], None);
        for (&at, reply) in items.iter().zip(replies) {
            let now = self.now;
            let (asked, since) = {
                let item = self.item(id, step, at);
                if item.asked == 0 {
                    item.since = now;
                }
                item.asked += 1;
                (item.asked, item.since)
            };
            let starved = self.nodes[id as usize].starved(step, since, now);
            let answer = match reply {
                Reply::Here(bytes) if bytes.add_up() => {
                    self.arrived(id, step, at, bytes);
                    continue;
                }
                // A peer that lies has nothing.
                Reply::Here(_) | Reply::NotHere => Answer::NotHere,
                // What it does not have, it will not have in time.
                Reply::NotYet if !takes_part => Answer::NotHere,
                Reply::NotYet => Answer::NotYet,
            };
            match patience.after(answer, asked, starved) {
                RetryDecision::AskAgain(after) => {
                    pause = pause.max(Some(after));
                    again.push(at);
                }
                RetryDecision::Elsewhere | RetryDecision::Take => missing.push(at),
            }
        }
        if let Some(pause) = pause {
            let life = self.nodes[id as usize].life;
            let what = Happening::AskAgain { node: id, life, step, items: again };
            self.schedule(self.now + pause, what);
        }
        self.elsewhere(id, step, missing);
    }

    fn arrived(&mut self, id: NodeId, step: u64, at: usize, bytes: Bytes) {
        let item = self.item(id, step, at);
        item.bytes = Some(bytes);
        if matches!(item.from, LoadFrom::Peer(..)) {
            self.outcome.peer_reads += 1;
        }
    }

    pub fn elsewhere(&mut self, id: NodeId, step: u64, items: Vec<usize>) {
        for &at in &items {
            self.item(id, step, at).missed = true;
        }
        self.read_source(id, step, items);
    }
}
