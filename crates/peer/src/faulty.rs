//! Makes a transport unreliable, as networks are over a long enough time.
//!
//! Whether and how a call fails is decided by the seed, the peer and how many calls to it there were
//! before, and by nothing else. Bytes that change on their way are the fault that nobody notices but
//! the one who checks their digest.

use std::io;
use std::time::{Duration, Instant};

use belady_data::sync::Arc;
use belady_data::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::desk::{Channel, Desk};
use crate::transport::{Answer, Notice, Push, Receive, Request, Taken, Transport};
use crate::{NodeId, PeerError};

/// What may go wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFault {
    /// The connection ends before anything is said.
    Error,
    /// It takes longer; perhaps too long.
    Delay,
    /// A bit of a sample is flipped.
    Corrupt,
    /// The peer does what it was asked to, and its answer, or the end of it, is lost.
    Drop,
}

impl PeerFault {
    pub const ALL: [Self; 4] = [Self::Error, Self::Delay, Self::Corrupt, Self::Drop];
}

/// How unreliable a transport is to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFaults {
    /// Which share of the calls meets each fault, in the order of [`PeerFault::ALL`]; together at most 1.
    pub rates: [f64; 4],
    /// The longest delay, which does not go past the deadline of the call.
    pub delay: Duration,
    pub seed: u64,
}

/// An unreliable transport.
#[derive(Debug)]
pub struct FaultyTransport {
    inner: Arc<dyn Transport>,
    faults: PeerFaults,
    /// Calls to each peer.
    calls: Vec<AtomicU64>,
    met: [AtomicU64; 4],
}

impl FaultyTransport {
    /// For a job of so many nodes.
    pub fn new(inner: Arc<dyn Transport>, nodes: u32, faults: PeerFaults) -> Arc<Self> {
        let calls = (0..nodes).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { inner, faults, calls, met: PeerFault::ALL.map(|_| AtomicU64::new(0)) })
    }

    /// How many calls have met this fault so far.
    pub fn count(&self, fault: PeerFault) -> u64 {
        self.met[fault as usize].load(Ordering::Relaxed)
    }

    /// What happens to the next call to a peer, and a number that decides the rest.
    fn next_fault(&self, peer: NodeId) -> (Option<PeerFault>, u64) {
        let Some(calls) = self.calls.get(peer as usize) else { return (None, 0) };
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let number = (u128::from(peer) << 64 | u128::from(call)).to_le_bytes();
        let draw = xxh3_64_with_seed(&number, self.faults.seed);
        // From 0 to 1, 1 left out.
        let mut rest = (draw >> 11) as f64 / 2f64.powi(53);
        for (fault, rate) in PeerFault::ALL.into_iter().zip(self.faults.rates) {
            if rest < rate {
                self.met[fault as usize].fetch_add(1, Ordering::Relaxed);
                // The draw is small for the first fault: what decides the rest is drawn anew.
                return (Some(fault), xxh3_64_with_seed(&number, draw));
            }
            rest -= rate;
        }
        (None, 0)
    }

    /// What a call begins with: it fails, or takes its time, or neither.
    fn begin(
        &self,
        peer: NodeId,
        deadline: Instant,
    ) -> Result<(Option<PeerFault>, u64), PeerError> {
        let (fault, draw) = self.next_fault(peer);
        match fault {
            Some(PeerFault::Error) => return Err(lost(peer)),
            Some(PeerFault::Delay) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let share = (draw >> 11) as f64 / 2f64.powi(53);
                std::thread::sleep(self.faults.delay.mul_f64(share).min(left));
            }
            _ => {}
        }
        Ok((fault, draw))
    }
}

fn lost(peer: NodeId) -> PeerError {
    PeerError::Closed { peer, error: io::ErrorKind::ConnectionReset.into() }
}

/// Flips a bit, if there is one.
fn corrupt(bytes: &mut [u8], draw: u64) {
    if !bytes.is_empty() {
        let at = (draw >> 3) % bytes.len() as u64;
        bytes[at as usize] ^= 1 << (draw % 8);
    }
}

/// Hands on what comes, with a flipped bit in the `wrong`th sample that comes.
struct Corrupted<'a> {
    into: &'a mut dyn Receive,
    wrong: u64,
    draw: u64,
}

impl Receive for Corrupted<'_> {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        self.into.slot(at)
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        if matches!(answer, Answer::Here { .. }) {
            if self.wrong == 0 {
                corrupt(self.into.slot(at), self.draw);
            }
            self.wrong = self.wrong.wrapping_sub(1);
        }
        self.into.answered(at, answer);
    }
}

/// Hands on the first answers, and then nothing.
struct Cut<'a> {
    into: &'a mut dyn Receive,
    before: usize,
    /// Where the rest goes.
    nowhere: Vec<u8>,
}

impl Receive for Cut<'_> {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        let slot = self.into.slot(at);
        if at < self.before {
            return slot;
        }
        self.nowhere.resize(slot.len(), 0);
        &mut self.nowhere
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        if at < self.before {
            self.into.answered(at, answer);
        }
    }
}

impl Transport for FaultyTransport {
    fn get(
        &self,
        peer: NodeId,
        request: &Request<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        let asks = request.asks.len().max(1) as u64;
        match self.begin(peer, deadline)? {
            (Some(PeerFault::Corrupt), draw) => {
                let mut wrong = Corrupted { into, wrong: draw % asks, draw };
                self.inner.get(peer, request, deadline, &mut wrong)
            }
            (Some(PeerFault::Drop), draw) => {
                let before = (draw % asks) as usize;
                let mut cut = Cut { into, before, nowhere: vec![] };
                self.inner.get(peer, request, deadline, &mut cut)?;
                Err(lost(peer))
            }
            _ => self.inner.get(peer, request, deadline, into),
        }
    }

    fn put(
        &self,
        peer: NodeId,
        channel: Channel,
        pushes: &[Push<'_>],
        deadline: Instant,
    ) -> Result<Vec<Taken>, PeerError> {
        match self.begin(peer, deadline)? {
            (Some(PeerFault::Corrupt), draw) if !pushes.is_empty() => {
                let which = (draw % pushes.len() as u64) as usize;
                let mut bytes = pushes[which].bytes.to_vec();
                corrupt(&mut bytes, draw);
                let mut pushes = pushes.to_vec();
                pushes[which].bytes = &bytes;
                self.inner.put(peer, channel, &pushes, deadline)
            }
            (Some(PeerFault::Drop), _) => {
                self.inner.put(peer, channel, pushes, deadline)?;
                Err(lost(peer))
            }
            _ => self.inner.put(peer, channel, pushes, deadline),
        }
    }

    fn tell(
        &self,
        peer: NodeId,
        channel: Channel,
        notice: &Notice,
        deadline: Instant,
    ) -> Result<(), PeerError> {
        let (fault, _) = self.begin(peer, deadline)?;
        self.inner.tell(peer, channel, notice, deadline)?;
        if fault == Some(PeerFault::Drop) { Err(lost(peer)) } else { Ok(()) }
    }

    fn desk(&self) -> &Arc<Desk> {
        self.inner.desk()
    }

    fn sees_progress(&self) -> bool {
        self.inner.sees_progress()
    }

    fn is_near(&self, peer: NodeId) -> bool {
        self.inner.is_near(peer)
    }

    fn close(&self) {
        self.inner.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, CHANNEL, Shop};
    use crate::memory::MemoryTransport;
    use crate::transport::Ask;

    fn network(nodes: u32, faults: &PeerFaults) -> Vec<Arc<FaultyTransport>> {
        let wrap = |node| FaultyTransport::new(node, nodes, faults.clone());
        MemoryTransport::network(nodes).into_iter().map(|node| wrap(node)).collect()
    }

    #[test]
    fn without_faults_it_is_as_any_transport() {
        conformance::all(&|nodes| {
            let nodes = network(nodes, &PeerFaults::default()).into_iter();
            nodes.map(|node| node as Arc<dyn Transport>).collect()
        });
    }

    /// Samples of 1 KiB, and what was answered.
    struct Slots(Vec<[u8; 1024]>, Vec<Answer>);

    impl Receive for Slots {
        fn slot(&mut self, at: usize) -> &mut [u8] {
            &mut self.0[at]
        }

        fn answered(&mut self, at: usize, answer: Answer) {
            assert_eq!(at, self.1.len());
            self.1.push(answer);
        }
    }

    /// What happens to calls that ask for three samples each.
    fn outcomes(seed: u64) -> (Vec<(usize, usize, bool)>, [u64; 4]) {
        let rates = [0.1, 0.1, 0.2, 0.2];
        let nodes = network(2, &PeerFaults { rates, delay: Duration::from_nanos(1), seed });
        let server: Arc<dyn Transport> = nodes[1].clone();
        let _shop = Shop::open(&server);
        let asks = [0, 2, 8].map(|sample| Ask { sample, last_use: false });
        let request = Request { channel: CHANNEL, epoch: 0, asks: &asks };
        let outcome = |_| {
            let mut slots = Slots(vec![[0; 1024]; 3], vec![]);
            let deadline = Instant::now() + Duration::from_mins(1);
            let got = nodes[0].get(1, &request, deadline, &mut slots);
            let right = |(slot, answer): &(&[u8; 1024], &Answer)| matches!(**answer, Answer::Here { digest, .. } if digest == crate::digest(*slot));
            let right = slots.0.iter().zip(&slots.1).filter(right).count();
            (slots.1.len(), right, got.is_ok())
        };
        ((0..1000).map(outcome).collect(), PeerFault::ALL.map(|fault| nodes[0].count(fault)))
    }

    #[test]
    fn it_fails_as_often_as_told_in_every_way_and_the_same_for_the_same_seed() {
        let (all, [errors, delays, corrupted, dropped]) = outcomes(3);
        assert_eq!(outcomes(3).0, all);
        assert_ne!(outcomes(4).0, all);
        for (count, expected) in [(errors, 100), (delays, 100), (corrupted, 200), (dropped, 200)] {
            assert!(count.abs_diff(expected) < 60, "{count} of about {expected}");
        }
        let count = |wanted: fn(&(usize, usize, bool)) -> bool| {
            all.iter().filter(|outcome| wanted(outcome)).count() as u64
        };
        assert_eq!(count(|&(_, _, ok)| !ok), errors + dropped);
        assert_eq!(count(|&(answered, right, ok)| ok && answered == 3 && right == 2), corrupted);
        assert_eq!(count(|&(answered, right, _)| answered - right > 1), 0);
        assert!(count(|&(answered, _, ok)| !ok && answered == 2) > 20, "lost in the midst");
    }
}
