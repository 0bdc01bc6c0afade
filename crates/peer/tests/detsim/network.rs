//! The network: calls, and messages that are lost, duplicated, delayed and garbled.

use std::time::Duration;

use belady_control::policy::NodeId;

use crate::message::{Call, Envelope, Message, Reply};
use crate::world::{Happening, World};

/// A call that is not answered in this time has failed.
pub const DEADLINE: Duration = Duration::from_secs(1);

impl World {
    pub fn link(&self, from: NodeId, to: NodeId) -> usize {
        from as usize * self.nodes.len() + to as usize
    }

    /// Calls a peer; the answer or the failure follows later.
    pub fn call(&mut self, node: NodeId, call: Call, message: Message) {
        self.numbers += 1;
        let (number, peer) = (self.numbers, call.peer());
        let life = self.nodes[node as usize].life;
        self.nodes[node as usize].calls.insert(number, call);
        self.schedule(self.now + DEADLINE, Happening::Fails { node, life, call: number });
        self.send(Envelope { from: node, life, to: peer, call: number, message });
    }

    pub fn send(&mut self, mut envelope: Envelope) {
        let faults = self.fault_rates();
        let (low, high) = self.scenario.latency;
        let cut = faults.can_cut() && self.cut[self.link(envelope.from, envelope.to)];
        if cut || self.random.once_in(faults.lost) {
            // Half of the time the end of the connection is noticed at once, else not at all.
            if self.random.once_in(2) {
                let at = self.now + self.random.micros(low, high);
                self.reset(&envelope, at);
            }
            return;
        }
        if self.random.once_in(faults.garbled) {
            garble(&mut envelope.message);
        }
        let times = if self.random.once_in(faults.doubled) { 2 } else { 1 };
        for _ in 0..times {
            let at = self.now + self.random.micros(low, high);
            self.schedule(at, Happening::Arrives(envelope.clone()));
        }
    }

    /// Tells the caller that there will be no answer.
    fn reset(&mut self, envelope: &Envelope, at: Duration) {
        let asks = matches!(
            envelope.message,
            Message::Get { .. } | Message::Put { .. } | Message::Tell { .. }
        );
        let node = if asks { envelope.from } else { envelope.to };
        let life = self.nodes[node as usize].life;
        self.schedule(at, Happening::Fails { node, life, call: envelope.call });
    }

    pub fn arrives(&mut self, envelope: Envelope) {
        if !self.nodes[envelope.to as usize].alive {
            let at = self.now + self.random.micros(10, 100);
            if self.random.once_in(2) {
                self.reset(&envelope, at);
            }
            return;
        }
        let to = envelope.to;
        self.heard(&envelope);
        self.take(envelope);
        self.advance(to);
    }
}

fn garble(message: &mut Message) {
    match message {
        Message::Got { replies } => {
            for reply in replies.iter_mut().take(1) {
                if let Reply::Here(bytes) = reply {
                    *bytes = bytes.garbled();
                }
            }
        }
        Message::Put { pushes } => {
            for push in pushes.iter_mut().take(1) {
                push.bytes = push.bytes.garbled();
            }
        }
        _ => {}
    }
}
