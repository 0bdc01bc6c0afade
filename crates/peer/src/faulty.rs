//! A transport that injects faults, as networks have them over a long enough time.
//!
//! The seed, the peer and the number of earlier calls to it alone decide whether and how a call
//! fails. Only the digest reveals a corrupted sample.

use std::io;
use std::time::{Duration, Instant};

use belady_base::sync::Arc;
use belady_base::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::dispatcher::Dispatcher;
use crate::message::{Answer, Channel, GetRequest, Notice, Push, PushOutcome, Receive};
use crate::transport::Transport;
use crate::{NodeId, PeerError};

/// A fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFault {
    /// The connection ends before the request is sent.
    Error,
    /// The call is delayed, perhaps beyond its deadline.
    Delay,
    /// A bit of a sample is flipped.
    Corrupt,
    /// The peer handles the request, and its answer or the end of it is lost.
    Drop,
}

impl PeerFault {
    /// All faults.
    pub const ALL: [Self; 4] = [Self::Error, Self::Delay, Self::Corrupt, Self::Drop];
}

/// How often faults are injected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFaults {
    /// The share of calls with each fault, in the order of [`PeerFault::ALL`]; at most 1 in total.
    pub rates: [f64; 4],
    /// The longest delay; no delay goes beyond the call's deadline.
    pub delay: Duration,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// A transport that injects faults into the calls of another.
#[derive(Debug)]
pub struct FaultyTransport {
    inner: Arc<dyn Transport>,
    faults: PeerFaults,
    /// The number of calls to each peer.
    calls: Vec<AtomicU64>,
    met: [AtomicU64; 4],
}

impl FaultyTransport {
    /// Wraps a transport of a job with this many nodes.
    pub fn new(inner: Arc<dyn Transport>, nodes: u32, faults: PeerFaults) -> Arc<Self> {
        let calls = (0..nodes).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { inner, faults, calls, met: PeerFault::ALL.map(|_| AtomicU64::new(0)) })
    }

    /// Returns how many calls had this fault so far.
    pub fn count(&self, fault: PeerFault) -> u64 {
        self.met[fault as usize].load(Ordering::Relaxed)
    }

    /// Returns the fault of the next call to a peer, and a random number for its details.
    fn next_fault(&self, peer: NodeId) -> (Option<PeerFault>, u64) {
        let Some(calls) = self.calls.get(peer as usize) else { return (None, 0) };
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let number = (u128::from(peer) << 64 | u128::from(call)).to_le_bytes();
        let draw = xxh3_64_with_seed(&number, self.faults.seed);
        // In [0, 1).
        let mut rest = (draw >> 11) as f64 / 2f64.powi(53);
        for (fault, rate) in PeerFault::ALL.into_iter().zip(self.faults.rates) {
            if rest < rate {
                self.met[fault as usize].fetch_add(1, Ordering::Relaxed);
                // The draw is small for the first fault, so the details get a number of their own.
                return (Some(fault), xxh3_64_with_seed(&number, draw));
            }
            rest -= rate;
        }
        (None, 0)
    }

    /// Fails or delays a call, or does nothing.
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

/// Flips a bit, unless there is none.
fn corrupt(bytes: &mut [u8], draw: u64) {
    if !bytes.is_empty() {
        let at = (draw >> 3) % bytes.len() as u64;
        bytes[at as usize] ^= 1 << (draw % 8);
    }
}

/// Passes on what arrives, with a flipped bit in the `wrong`th sample.
struct CorruptedReceiver<'a> {
    into: &'a mut dyn Receive,
    wrong: u64,
    draw: u64,
}

impl Receive for CorruptedReceiver<'_> {
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

/// Passes on the first answers and discards the rest.
struct TruncatedReceiver<'a> {
    into: &'a mut dyn Receive,
    before: usize,
    /// Memory for the bytes that are discarded.
    nowhere: Vec<u8>,
}

impl Receive for TruncatedReceiver<'_> {
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
        request: &GetRequest<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        let asks = request.asks.len().max(1) as u64;
        match self.begin(peer, deadline)? {
            (Some(PeerFault::Corrupt), draw) => {
                let mut wrong = CorruptedReceiver { into, wrong: draw % asks, draw };
                self.inner.get(peer, request, deadline, &mut wrong)
            }
            (Some(PeerFault::Drop), draw) => {
                let before = (draw % asks) as usize;
                let mut cut = TruncatedReceiver { into, before, nowhere: vec![] };
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
    ) -> Result<Vec<PushOutcome>, PeerError> {
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

    fn dispatcher(&self) -> &Arc<Dispatcher> {
        self.inner.dispatcher()
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
    use crate::conformance::{self, CHANNEL, TestHandler};
    use crate::memory::MemoryTransport;
    use crate::message::Ask;

    fn network(nodes: u32, faults: &PeerFaults) -> Vec<Arc<FaultyTransport>> {
        let wrap = |node| FaultyTransport::new(node, nodes, faults.clone());
        MemoryTransport::network(nodes).into_iter().map(|node| wrap(node)).collect()
    }

    #[test]
    fn a_faulty_transport_without_faults_conforms() {
        conformance::all(&|nodes| {
            let nodes = network(nodes, &PeerFaults::default()).into_iter();
            nodes.map(|node| node as Arc<dyn Transport>).collect()
        });
    }

    /// Samples of 1 KiB, and the answers.
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

    /// The outcomes of calls that ask for three samples each.
    fn outcomes(seed: u64) -> (Vec<(usize, usize, bool)>, [u64; 4]) {
        let rates = [0.1, 0.1, 0.2, 0.2];
        let nodes = network(2, &PeerFaults { rates, delay: Duration::from_nanos(1), seed });
        let server: Arc<dyn Transport> = nodes[1].clone();
        let _handler = TestHandler::register(&server);
        let asks = [0, 2, 8].map(|sample| Ask { sample, last_use: false });
        let request = GetRequest { channel: CHANNEL, epoch: 0, asks: &asks };
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
    fn faults_occur_at_their_rates_and_repeat_for_a_seed() {
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
