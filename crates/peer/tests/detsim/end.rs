//! The end of a step: what it frees is let go, what it keeps goes into tiers here or to others.

use belady_control::policy::{Keep, NodeId, Place, PolicyKind};
use belady_peer::Taken;
use belady_peer::protocol::outbox::Parcel;
use belady_peer::protocol::pace::Turn;

use crate::node::{Batch, Consumer, PATIENCE, step_of};
use crate::world::World;

impl World {
    /// Ends all steps that may end. What they free goes as soon as that, in order; what they keep may
    /// have to wait for room in the outbox, and with it the batch.
    pub fn end_steps(&mut self, id: NodeId) {
        self.count_loaded(id);
        let mut offered = false;
        while let Some(at) = self.may_end(id, self.nodes[id as usize].let_go) {
            let node = &mut self.nodes[id as usize];
            node.outbox.offer(node.let_go);
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

    /// The place in the ring of a step that may end.
    fn may_end(&mut self, id: NodeId, step: u64) -> Option<usize> {
        let node = &mut self.nodes[id as usize];
        let at = node.ring.iter().position(|batch| batch.step == step)?;
        if !node.ring[at].is_loaded() {
            return None;
        }
        let loaded_at = *node.ring[at].loaded_at.get_or_insert(self.now);
        let starved = node.starved(step, loaded_at, self.now);
        let health = &node.health;
        match node.pace.may_end(step, starved, |other| health.is_up(other)) {
            Turn::Wait => {
                self.wake_when_starved(id);
                return None;
            }
            Turn::End => {}
            Turn::Hurry => self.outcome.given_up += 1,
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
        node.herald.loaded(let_go + loaded);
        node.pace.told(id, let_go + loaded, 0);
    }

    /// Epochs are done when their last step has ended and nothing of them waits.
    pub fn count_done(&mut self, id: NodeId) {
        let iterations = u64::from(self.scenario.job.stream.iterations());
        let node = &mut self.nodes[id as usize];
        while node.ended >= (u64::from(node.done) + 1) * iterations
            && node.outbox.is_done_with(node.done)
        {
            node.ledger.done(id, node.done);
            node.herald.done(node.done);
            node.done += 1;
        }
    }

    /// Puts what a step leaves where it belongs, as far as there is room. If there is for all, or it
    /// `starves`, the step ends.
    pub fn keep(&mut self, id: NodeId, step: u64, starves: bool) {
        let mut batch = self.batch(id, step).clone();
        let lacks = self.keep_all(id, &mut batch, starves);
        *self.batch(id, step) = batch;
        let node = &mut self.nodes[id as usize];
        match lacks {
            Some(bytes) => node.outbox.lacks_room(step, bytes),
            None if node.ended == step => node.ended += 1,
            None => self.fail("steps do not end in order"),
        }
    }

    /// The bytes of the first that there is no room for.
    fn keep_all(&mut self, id: NodeId, batch: &mut Batch, starves: bool) -> Option<u64> {
        let epoch = step_of(&self.scenario, batch.step).epoch;
        while let Some(&Keep { sample, node, tier }) = batch.keeps.get(batch.kept) {
            let size = self.scenario.job.sizes.get(sample);
            let item = batch.items.iter().find(|item| item.sample == sample);
            let Some(bytes) = item.and_then(|item| item.bytes) else {
                self.fail("a batch keeps what it does not have");
            };
            let parcel = Parcel { sample, tier, epoch, size, bytes };
            let kept = if node == id {
                self.put(id, &parcel)
            } else if self.nodes[id as usize].takes_part(node)
                && !self.nodes[id as usize].outbox.is_late(node)
            {
                Taken::NoRoom
            } else {
                self.outcome.dropped += 1;
                Taken::Refused
            };
            if kept == Taken::NoRoom {
                let outbox = &mut self.nodes[id as usize].outbox;
                if outbox.add(node, parcel, self.now).is_err() {
                    // What this node keeps itself is not waited for: policies that do not go in step
                    // may have no room for it ever.
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
            if let Place::Local(tier) = item.from
                && item.last_use
                && let Some(shelf) = node.shelf(tier)
            {
                shelf.evict(item.sample);
            }
        }
        for evict in &batch.evictions {
            if let Some(shelf) = node.shelf(evict.tier)
                && shelf.claims.may_go(evict.sample, epoch)
            {
                shelf.evict(evict.sample);
            }
        }
    }

    /// Puts a sample into a tier of a node.
    pub fn put(&mut self, id: NodeId, parcel: &Parcel<crate::message::Bytes>) -> Taken {
        let trouble = self.trouble();
        if self.dice.once_in(trouble.bad_tier) {
            return self.dice.one_of(&[Taken::NoRoom, Taken::Refused]);
        }
        let done = self.nodes[id as usize].all_done();
        let Parcel { sample, tier, epoch, size, bytes } = *parcel;
        let now = self.now;
        for shelf in &mut self.nodes[id as usize].shelves {
            // Whoever brings it may do so because what is here has gone bad.
            if shelf.get(sample).is_some_and(|there| !there.add_up()) {
                shelf.evict(sample);
            }
        }
        let Some(shelf) = self.nodes[id as usize].shelf(tier) else { return Taken::Refused };
        shelf.put(sample, size, bytes, epoch, done, now)
    }
}

/// What should have stayed where it was, and was not there, is put there again. What moves on leaves at
/// most a copy behind, on which nobody counts.
fn heal(id: NodeId, batch: &mut Batch) {
    for item in &batch.items {
        let (node, tier) = match item.from {
            Place::Local(tier) => (id, tier),
            Place::Peer(peer, tier) => (peer, tier),
            Place::Source => continue,
        };
        let moves = batch.keeps.iter().any(|keep| keep.sample == item.sample);
        if item.missed && !item.last_use && !moves {
            batch.keeps.push(Keep { sample: item.sample, node, tier });
        }
    }
}
