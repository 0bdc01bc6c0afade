//! What nodes say to each other.

use belady_control::policy::NodeId;
use belady_peer::protocol::outbox::{Admitted, Due};
use belady_peer::{Notice, Taken};

use crate::message::{Call, Envelope, Message};
use crate::world::{Happening, World};

/// Bytes of one call that gives samples away.
const CALL: u64 = 500;
/// A peer that is down is looked at again.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);

impl World {
    /// Tells the others what they do not know.
    pub fn tell(&mut self, id: NodeId) {
        for peer in 0..self.nodes.len() as NodeId {
            let node = &mut self.nodes[id as usize];
            if peer == id || !node.herald.has_news(peer) {
                continue;
            }
            if !node.health.may_ask(peer, self.now) {
                self.wake(id, self.now + LOOK);
            } else if let Some(notice) = node.herald.next(peer) {
                self.call(id, Call::Tell { peer }, Message::Tell { notice });
            }
        }
    }

    /// Looks after the outbox of a node, as the engine does: when a batch is offered, a call has ended, or
    /// it is time, and at no other time.
    pub fn look_after(&mut self, id: NodeId) {
        loop {
            let node = &mut self.nodes[id as usize];
            let (health, pace) = (&node.health, &node.pace);
            let takes_part = |peer| health.is_up(peer) && pace.is_in_step(peer);
            let dropped = node.outbox.expire(self.now, takes_part).len();
            self.outcome.dropped += dropped as u64;
            match self.admit(id) {
                Some(Admitted::HasRoom(step)) => self.keep(id, step, false),
                Some(Admitted::Starves(step)) => self.keep(id, step, true),
                None => break,
            }
        }
        let Due { calls, again } = self.nodes[id as usize].outbox.due(self.now, CALL);
        let timer = &mut self.nodes[id as usize].outbox_timer;
        if let Some(at) = again.filter(|again| timer.is_none_or(|timer| *again < timer)) {
            *timer = Some(at);
            let life = self.nodes[id as usize].life;
            self.schedule(at, Happening::LookAfter { node: id, life });
        }
        for (peer, parcels) in calls {
            if peer == id {
                let taken: Vec<_> = parcels.iter().map(|parcel| self.put(id, parcel)).collect();
                self.taken(id, peer, &taken);
            } else {
                self.call(id, Call::Put { peer }, Message::Put { parcels });
            }
        }
        self.count_done(id);
    }

    fn admit(&mut self, id: NodeId) -> Option<Admitted<u64>> {
        let node = &mut self.nodes[id as usize];
        let step = *node.outbox.waiting().next()?;
        let let_go_at = node.ring.iter().find(|batch| batch.step == step)?.let_go_at;
        let starved = node.starved(step, let_go_at, self.now);
        node.outbox.admit(|_| starved)
    }

    fn taken(&mut self, id: NodeId, peer: NodeId, taken: &[Taken]) {
        let dropped = self.nodes[id as usize].outbox.taken(peer, self.now, taken);
        self.outcome.dropped += dropped.len() as u64;
        if peer != id {
            let stored = taken.iter().filter(|&&taken| taken == Taken::Stored).count();
            self.outcome.pushed += stored as u64;
        }
        self.look_after(id);
    }

    /// Something has come from a peer, so it is there; perhaps again.
    pub fn heard(&mut self, envelope: &Envelope) {
        let node = &mut self.nodes[envelope.to as usize];
        let was_down = node.health.is_there(envelope.from);
        let life = &mut node.lives[envelope.from as usize];
        if *life != 0 && *life < envelope.life {
            node.pace.restarted(envelope.from);
            node.ledger.restarted(envelope.from);
        }
        if was_down || *life < envelope.life {
            *life = envelope.life.max(*life);
            node.herald.forget(envelope.from);
        }
    }

    pub fn take(&mut self, envelope: Envelope) {
        let Envelope { from, to: id, call, message, .. } = envelope;
        let answer = match message {
            Message::Get { epoch, asks } => {
                let replies = asks.iter().map(|&ask| self.serve(id, epoch, ask, false)).collect();
                Message::Got { replies }
            }
            Message::Put { parcels } => {
                let over = |epoch| self.nodes[id as usize].ledger.is_over(id, epoch);
                let over: Vec<_> = parcels.iter().map(|parcel| over(parcel.epoch + 1)).collect();
                let taken = parcels
                    .iter()
                    .zip(over)
                    .map(|(parcel, over)| if over { Taken::Refused } else { self.put(id, parcel) });
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
                node.pace.told(from, steps, node.asked());
            }
            Notice::EpochDone { epoch } => node.ledger.done(from, epoch),
            Notice::Released { .. } | Notice::Left => {}
        }
    }

    fn answer(&mut self, id: NodeId, call: u64, answer: Message) {
        // What was given up before, or comes twice, is no answer any more.
        let Some(call) = self.nodes[id as usize].calls.remove(&call) else { return };
        match (call, answer) {
            (Call::Get { peer, step, items }, Message::Got { replies }) => {
                self.answered(id, peer, step, &items, replies);
            }
            (Call::Put { peer }, Message::Taken { taken }) => self.taken(id, peer, &taken),
            (Call::Tell { peer }, Message::Heard) => {
                self.nodes[id as usize].herald.ended(peer, true);
            }
            (call, answer) => self.fail(&format!("{answer:?} does not answer {call:?}")),
        }
    }

    /// A call has not been answered.
    pub fn call_failed(&mut self, id: NodeId, call: u64) {
        let Some(call) = self.nodes[id as usize].calls.remove(&call) else { return };
        self.nodes[id as usize].health.failed(call.peer(), self.now, true);
        match call {
            Call::Get { step, items, .. } => self.elsewhere(id, step, items),
            Call::Put { peer } => {
                let dropped = self.nodes[id as usize].outbox.failed(peer, self.now).len();
                self.outcome.dropped += dropped as u64;
                self.look_after(id);
            }
            Call::Tell { peer } => self.nodes[id as usize].herald.ended(peer, false),
        }
    }
}
