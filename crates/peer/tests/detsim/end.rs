//! The end of a step: what it frees is evicted, what it keeps goes into tiers here or on other
//! nodes.

use belady_control::policy::{Keep, LoadFrom, NodeId, PolicyKind};
use belady_peer::PushOutcome;
use belady_peer::protocol::push_queue::QueuedPush;
use belady_peer::protocol::step_fence::FenceDecision;

use crate::node::{Batch, Consumer, PATIENCE, step_of};
use crate::world::World;

impl World {
    /// Ends all steps that may end. What they free is evicted at once, in order; what they keep may
    /// have to wait for space in the push queue, and the batch with it.
    pub fn end_steps(&mut self, id: NodeId) {
        self.count_loaded(id);
        let mut offered = false;
        while let Some(at) = self.may_end(id, self.nodes[id as usize].let_go) {
            let node = &mut self.nodes[id as usize];
            node.push_queue.offer(node.let_go);
            node.let_go += 1;
            offered = true;
            let mut batch = node.ring[at].clone();
            batch.let_go_at = self.now;
            self.let_go(id, &batch);
            if self.scenario.policy == PolicyKind::Belady {
                heal(id, &mut batch);
            }
            self.nodes[id as usize].ring[at] = batch;
        }
        if offered {
            self.look_after(id);
        }
        self.count_done(id);
    }

    /// Returns the position in the ring of a step that may end.
    fn may_end(&mut self, id: NodeId, step: u64) -> Option<usize> {
        let node = &mut self.nodes[id as usize];
        let at = node.ring.iter().position(|batch| batch.step == step)?;
        if !node.ring[at].is_loaded() {
            return None;
        }
        let loaded_at = *node.ring[at].loaded_at.get_or_insert(self.now);
        let starved = node.starved(step, loaded_at, self.now);
        let health = &node.health;
        match node.fence.may_end(step, starved, |other| health.is_up(other)) {
            FenceDecision::Wait => {
                self.wake_when_starved(id);
                return None;
            }
            FenceDecision::End => {}
            FenceDecision::Hurry => self.outcome.given_up += 1,
        }
        Some(at)
    }

    pub fn wake_when_starved(&mut self, id: NodeId) {
        if let Consumer::Waiting { .. } = self.nodes[id as usize].consumer {
            self.wake(id, self.now + PATIENCE / 20);
        }
    }

    fn count_loaded(&mut self, id: NodeId) {
        let node = &mut self.nodes[id as usize];
        let let_go = node.let_go;
        let ahead = node.ring.iter().filter(|batch| batch.step >= let_go);
        let loaded = ahead.take_while(|batch| batch.is_loaded()).count() as u64;
        node.notifier.loaded(let_go + loaded);
        node.fence.told(id, let_go + loaded, 0);
    }

    /// Epochs are done when their last step has ended and nothing of them waits.
    pub fn count_done(&mut self, id: NodeId) {
        let iterations = u64::from(self.scenario.job.stream.iterations());
        let node = &mut self.nodes[id as usize];
        while node.ended >= (u64::from(node.done) + 1) * iterations
            && node.push_queue.is_done_with(node.done)
        {
            node.progress.done(id, node.done);
            node.notifier.done(node.done);
            node.done += 1;
        }
    }

    /// Puts what a step leaves into tiers or the queue, as far as there is space. If there is for
    /// all, or the step `starves`, it ends.
    pub fn keep(&mut self, id: NodeId, step: u64, starves: bool) {
        let mut batch = self.batch(id, step).clone();
        let lacks = self.keep_all(id, &mut batch, starves);
        *self.batch(id, step) = batch;
        let node = &mut self.nodes[id as usize];
        match lacks {
            Some(bytes) => node.push_queue.lacks_space(step, bytes),
            None if node.ended == step => node.ended += 1,
            None => self.fail("steps do not end in order"),
        }
    }

    /// The bytes of the first one that lacks space.
    fn keep_all(&mut self, id: NodeId, batch: &mut Batch, starves: bool) -> Option<u64> {
        let epoch = step_of(&self.scenario, batch.step).epoch;
        while let Some(&Keep { sample, node, tier }) = batch.keeps.get(batch.kept) {
            let size = self.scenario.job.sizes.get(sample);
            let item = batch.items.iter().find(|item| item.sample == sample);
            let Some(bytes) = item.and_then(|item| item.bytes) else {
                self.fail("a batch keeps what it does not have");
            };
            let push = QueuedPush { sample, tier, epoch, size, bytes };
            let kept = if node == id {
                self.put(id, &push)
            } else if self.nodes[id as usize].takes_part(node)
                && !self.nodes[id as usize].push_queue.is_late(node)
            {
                PushOutcome::NoSpace
            } else {
                self.outcome.dropped += 1;
                PushOutcome::Refused
            };
            if kept == PushOutcome::NoSpace {
                let push_queue = &mut self.nodes[id as usize].push_queue;
                if push_queue.add(node, push, self.now).is_err() {
                    // What this node keeps itself is not waited for: policies that do not go in
                    // step may never have space for it.
                    if !starves && node != id {
                        return Some(size);
                    }
                    self.outcome.dropped += 1;
                }
            }
            batch.kept += 1;
        }
        None
    }

    fn let_go(&mut self, id: NodeId, batch: &Batch) {
        let epoch = step_of(&self.scenario, batch.step).epoch;
        let node = &mut self.nodes[id as usize];
        for item in &batch.items {
            if let LoadFrom::Local(tier) = item.from
                && item.last_use
                && let Some(tier) = node.tier(tier)
            {
                tier.evict(item.sample);
            }
        }
        for evict in &batch.evictions {
            if let Some(tier) = node.tier(evict.tier)
                && tier.claims.may_go(evict.sample, epoch)
            {
                tier.evict(evict.sample);
            }
        }
    }

    /// Puts a sample into a tier of a node.
    pub fn put(&mut self, id: NodeId, push: &QueuedPush<crate::message::Bytes>) -> PushOutcome {
        let faults = self.fault_rates();
        if self.random.once_in(faults.bad_tier) {
            return self.random.one_of(&[PushOutcome::NoSpace, PushOutcome::Refused]);
        }
        let done = self.nodes[id as usize].all_done();
        let QueuedPush { sample, tier, epoch, size, bytes } = *push;
        let now = self.now;
        for tier in &mut self.nodes[id as usize].shelves {
            // The sender may push it because the copy here is damaged.
            if tier.get(sample).is_some_and(|there| !there.add_up()) {
                tier.evict(sample);
            }
        }
        let Some(tier) = self.nodes[id as usize].tier(tier) else { return PushOutcome::Refused };
        tier.put(sample, size, bytes, epoch, done, now)
    }
}

/// Puts back a sample that should have stayed where it was, and was missing. One that moves on
/// leaves at most a copy behind that has no claim.
fn heal(id: NodeId, batch: &mut Batch) {
    for item in &batch.items {
        let (node, tier) = match item.from {
            LoadFrom::Local(tier) => (id, tier),
            LoadFrom::Peer(peer, tier) => (peer, tier),
            LoadFrom::Source => continue,
        };
        let moves = batch.keeps.iter().any(|keep| keep.sample == item.sample);
        if item.missed && !item.last_use && !moves {
            batch.keeps.push(Keep { sample: item.sample, node, tier });
        }
    }
}
