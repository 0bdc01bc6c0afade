//! The messages between nodes.

use belady_control::policy::NodeId;
use belady_peer::protocol::push_queue::{Admitted, Due};
use belady_peer::{Notice, PushOutcome};

use crate::message::{Call, Envelope, Message};
use crate::world::{Happening, World};

/// Bytes of one call with pushes.
const CALL: u64 = 500;
/// The interval of checks on a peer that is down.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);

impl World {
    /// Sends progress that the other nodes do not know.
    pub fn tell(&mut self, id: NodeId) {
        for peer in 0..self.nodes.len() as NodeId {
            let node = &mut self.nodes[id as usize];
            if peer == id || !node.notifier.has_news(peer) {
                continue;
            }
            if !node.health.may_ask(peer, self.now) {
                self.wake(id, self.now + LOOK);
            } else if let Some(notice) = node.notifier.next(peer) {
                self.call(id, Call::Tell { peer }, Message::Tell { notice });
            }
        }
    }

    /// Services the push queue of a node, as the engine does: when a batch is offered, a call has
    /// ended, or it is time, and at no other time.
    pub fn look_after(&mut self, id: NodeId) {
        loop {
            let node = &mut self.nodes[id as usize];
            let (health, fence) = (&node.health, &node.fence);
            let takes_part = |peer| health.is_up(peer) && fence.is_in_step(peer);
            let dropped = node.push_queue.expire(self.now, takes_part).len();
            self.outcome.dropped += dropped as u64;
            match self.admit(id) {
                Some(Admitted::HasSpace(step)) => self.keep(id, step, false),
                Some(Admitted::Starves(step)) => self.keep(id, step, true),
                None => break,
            }
        }
        let Due { calls, again } = self.nodes[id as usize].push_queue.due(self.now, CALL);
        let timer = &mut self.nodes[id as usize].push_timer;
        if let Some(at) = again.filter(|again| timer.is_none_or(|timer| *again < timer)) {
            *timer = Some(at);
            let life = self.nodes[id as usize].life;
            self.schedule(at, Happening::LookAfter { node: id, life });
        }
        for (peer, pushes) in calls {
            if peer == id {
                let taken: Vec<_> = pushes.iter().map(|push| self.put(id, push)).collect();
                self.taken(id, peer, &taken);
            } else {
                self.call(id, Call::Put { peer }, Message::Put { pushes });
            }
        }
        self.count_done(id);
    }

    fn admit(&mut self, id: NodeId) -> Option<Admitted<u64>> {
        let node = &mut self.nodes[id as usize];
        let step = *node.push_queue.waiting().next()?;
        let let_go_at = node.ring.iter().find(|batch| batch.step == step)?.let_go_at;
        let starved = node.starved(step, let_go_at, self.now);
        node.push_queue.admit(|_| starved)
    }

    fn taken(&mut self, id: NodeId, peer: NodeId, taken: &[PushOutcome]) {
        let dropped = self.nodes[id as usize].push_queue.taken(peer, self.now, taken);
        self.outcome.dropped += dropped.len() as u64;
        if peer != id {
            let stored = taken.iter().filter(|&&taken| taken == PushOutcome::Stored).count();
            self.outcome.pushed += stored as u64;
        }
        self.look_after(id);
    }

    /// Records that a peer is up, perhaps again, since something has arrived from it.
    pub fn heard(&mut self, envelope: &Envelope) {
        let node = &mut self.nodes[envelope.to as usize];
        let was_down = node.health.is_there(envelope.from);
        let life = &mut node.lives[envelope.from as usize];
        if *life != 0 && *life < envelope.life {
            node.fence.restarted(envelope.from);
            node.progress.restarted(envelope.from);
        }
        if was_down || *life < envelope.life {
            *life = envelope.life.max(*life);
            node.notifier.forget(envelope.from);
        }
    }

    pub fn take(&mut self, envelope: Envelope) {
        let Envelope { from, to: id, call, message, .. } = envelope;
        let answer = match message {
            Message::Get { epoch, asks } => {
                let replies = asks.iter().map(|&ask| self.serve(id, epoch, ask, false)).collect();
                Message::Got { replies }
            }
            Message::Put { pushes } => {
                let over = |epoch| self.nodes[id as usize].progress.is_over(id, epoch);
                let over: Vec<_> = pushes.iter().map(|push| over(push.epoch + 1)).collect();
                let taken = pushes.iter().zip(over).map(|(push, over)| {
                    if over { PushOutcome::Refused } else { self.put(id, push) }
                });
                Message::Taken { taken: taken.collect() }
            }
            Message::Tell { notice } => {
                self.told(id, from, &notice);
                Message::Heard
            }
            answer => return self.answer(id, call, answer),
        };
        let life = self.nodes[id as usize].life;
        self.send(Envelope { from: id, life, to: from, call, message: answer });
    }

    fn told(&mut self, id: NodeId, from: NodeId, notice: &Notice) {
        let node = &mut self.nodes[id as usize];
        match *notice {
            Notice::Loaded { steps } => {
                node.fence.told(from, steps, node.asked());
            }
            Notice::EpochDone { epoch } => node.progress.done(from, epoch),
            Notice::Released { .. } | Notice::Left => {}
        }
    }

    fn answer(&mut self, id: NodeId, call: u64, answer: Message) {
        // What was given up before, or arrives twice, is not an answer any more.
        let Some(call) = self.nodes[id as usize].calls.remove(&call) else { return };
        match (call, answer) {
            (Call::Get { peer, step, items }, Message::Got { replies }) => {
                self.answered(id, peer, step, &items, replies);
            }
            (Call::Put { peer }, Message::Taken { taken }) => self.taken(id, peer, &taken),
            (Call::Tell { peer }, Message::Heard) => {
                self.nodes[id as usize].notifier.ended(peer, true);
            }
            (call, answer) => self.fail(&format!("{answer:?} does not answer {call:?}")),
        }
    }

    /// Handles a call that was not answered.
    pub fn call_failed(&mut self, id: NodeId, call: u64) {
        let Some(call) = self.nodes[id as usize].calls.remove(&call) else { return };
        self.nodes[id as usize].health.failed(call.peer(), self.now, true);
        match call {
            Call::Get { step, items, .. } => self.elsewhere(id, step, items),
            Call::Put { peer } => {
                let dropped = self.nodes[id as usize].push_queue.failed(peer, self.now).len();
                self.outcome.dropped += dropped as u64;
                self.look_after(id);
            }
            Call::Tell { peer } => self.nodes[id as usize].notifier.ended(peer, false),
        }
    }
}
