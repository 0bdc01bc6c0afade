//! A cache tier of a simulated node: a hard quota, and faults.

use std::collections::BTreeMap;
use std::time::Duration;

use belady_peer::protocol::claims::Claims;
use belady_peer::{PushOutcome, SampleId};

use crate::message::Bytes;
use crate::random::Random;

#[derive(Clone, Debug)]
pub struct SimTier {
    held: BTreeMap<SampleId, (u64, Bytes)>,
    used: u64,
    capacity: u64,
    pub claims: Claims,
}

impl SimTier {
    pub fn new(capacity: u64, samples: u32) -> Self {
        Self { held: BTreeMap::new(), used: 0, capacity, claims: Claims::new(samples) }
    }

    /// Returns the tier after a restart: its claims are lost.
    pub fn warm(self, samples: u32) -> Self {
        Self { claims: Claims::new(samples), ..self }
    }

    pub fn get(&self, sample: SampleId) -> Option<Bytes> {
        self.held.get(&sample).map(|&(_, bytes)| bytes)
    }

    /// Puts a sample of an epoch; `done` epochs are over on all nodes.
    pub fn put(
        &mut self,
        sample: SampleId,
        size: u64,
        bytes: Bytes,
        epoch: u32,
        done: u32,
        now: Duration,
    ) -> PushOutcome {
        if !bytes.add_up() {
            return PushOutcome::Refused;
        }
        if !self.held.contains_key(&sample) {
            if !self.make_room(sample, size, done, now) {
                return PushOutcome::NoSpace;
            }
            self.used += size;
            self.held.insert(sample, (size, bytes));
        }
        assert!(self.used <= self.capacity, "a quota is exceeded");
        self.claims.put(sample, epoch);
        PushOutcome::Stored
    }

    fn make_room(&mut self, sample: SampleId, size: u64, done: u32, now: Duration) -> bool {
        while self.used + size > self.capacity {
            let held = &self.held;
            let holds = |sample| held.contains_key(&sample);
            let victim = match self.claims.released(holds) {
                None if self.claims.lacks_room(sample, now) => self.claims.forgotten(done, holds),
                released => released,
            };
            let Some(victim) = victim else { return false };
            self.evict(victim);
        }
        true
    }

    pub fn evict(&mut self, sample: SampleId) {
        if let Some((size, _)) = self.held.remove(&sample) {
            self.used -= size;
        }
        self.claims.gone(sample);
    }

    /// Loses a sample, or flips one of its bits.
    pub fn go_bad(&mut self, random: &mut Random) {
        if self.held.is_empty() {
            return;
        }
        let at = random.between(0, self.held.len() as u64 - 1) as usize;
        let Some(sample) = self.held.keys().nth(at).copied() else { return };
        if random.once_in(2) {
            self.evict(sample);
        } else if let Some((_, bytes)) = self.held.get_mut(&sample) {
            *bytes = bytes.garbled();
        }
    }
}
