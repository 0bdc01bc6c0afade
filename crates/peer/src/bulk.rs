//! Data of each rank that grows with the dataset. An exchange at the rendezvous carries little, so
//! such data goes over the transport, in pieces, from each rank to those that ask for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use belady_base::memory::Memory;
use belady_base::sync::{Arc, Mutex, lock};

use crate::dispatcher::{Handler, Registration};
use crate::message::{
    Answer, Ask, Channel, GetReply, GetRequest, Notice, Payload, Push, PushOutcome, Receive,
};
use crate::{Cluster, NodeId, PeerError, SampleId, digest};

/// Bytes of a piece: large enough that the cost of a request does not matter.
pub const PIECE: usize = 1 << 20;
/// Pieces in one request.
const TOGETHER: usize = 4;
/// A peer that has sent no piece for this long is skipped. The time of all peers starts when the
/// first one is asked.
const PATIENCE: Duration = Duration::from_secs(20);
/// A peer that is asked only after that time has passed is asked once, with this limit.
const LATE: Duration = Duration::from_secs(1);
/// Peers asked at once: silent ones do not delay the others, and threads stay few.
const PEERS: usize = 32;
/// The pause before a failed peer is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// The data of this rank, which it serves until this is dropped.
#[derive(Debug)]
pub struct Bulk {
    channel: Channel,
    _serving: Registration,
    _held: Arc<OfferedBytes>,
}

#[derive(Debug)]
struct OfferedBytes(Vec<u8>);

/// Returns the range of the `at`th piece of `length` bytes; empty if there are fewer pieces.
pub fn piece_range(at: u32, length: usize) -> std::ops::Range<usize> {
    let start = (at as usize).saturating_mul(PIECE).min(length);
    start..start.saturating_add(PIECE).min(length)
}

impl Bulk {
    /// Serves bytes to the other ranks. Every rank calls this in the same order, if only with no
    /// bytes.
    pub fn offer(cluster: &Cluster, bytes: Vec<u8>) -> Self {
        let (channel, held) = (cluster.next_channel(), Arc::new(OfferedBytes(bytes)));
        let job: Arc<dyn Handler> = held.clone();
        let serving = cluster.transport.dispatcher().register(channel, Arc::downgrade(&job));
        Self { channel, _serving: serving, _held: held }
    }

    /// Fetches what other ranks offer, which they have offered by now: `wanted` names ranks and the
    /// lengths of their data. Returns `None` for a rank whose data does not arrive.
    pub fn of_all(&self, cluster: &Cluster, wanted: &[(NodeId, usize)]) -> Vec<Option<Vec<u8>>> {
        let (began, next) = (Instant::now(), AtomicUsize::new(0));
        let came: Vec<_> = wanted.iter().map(|_| Mutex::new(None)).collect();
        let ask_in_turn = || {
            let turn = || next.fetch_add(1, Ordering::Relaxed);
            while let Some((&(peer, length), place)) = wanted.iter().zip(&came).nth(turn()) {
                *lock(place) = self.of(cluster, peer, length, began);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..wanted.len().min(PEERS) {
                // If no thread can be started, fewer peers are asked at once.
                let _ = std::thread::Builder::new().spawn_scoped(scope, ask_in_turn);
            }
            ask_in_turn();
        });
        came.into_iter().map(|place| lock(&place).take()).collect()
    }

    fn of(
        &self,
        cluster: &Cluster,
        peer: NodeId,
        length: usize,
        mut heard: Instant,
    ) -> Option<Vec<u8>> {
        let mut bytes = vec![];
        bytes.try_reserve_exact(length).ok()?;
        while bytes.len() < length {
            let before = bytes.len();
            let deadline = (heard + PATIENCE).max(Instant::now() + LATE);
            let asked = self.ask(cluster, peer, length, deadline, &mut bytes);
            match asked {
                _ if bytes.len() > before => heard = Instant::now(),
                Ok(()) => return None,
                Err(error) if error.is_final() || heard.elapsed() >= PATIENCE => {
                    tracing::warn!(peer, %error, "a peer has not sent what its caches hold");
                    return None;
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        Some(bytes)
    }

    /// Asks for the next pieces, and appends those that arrive intact and in sequence.
    fn ask(
        &self,
        cluster: &Cluster,
        peer: NodeId,
        length: usize,
        deadline: Instant,
        bytes: &mut Vec<u8>,
    ) -> Result<(), PeerError> {
        let first = (bytes.len() / PIECE) as u32;
        let ranges = (first..).take(TOGETHER).map(|at| piece_range(at, length));
        let pieces: Vec<Vec<u8>> =
            ranges.take_while(|it| !it.is_empty()).map(|it| vec![0; it.len()]).collect();
        let asks: Vec<Ask> = (first..)
            .zip(&pieces)
            .map(|(piece, _)| Ask { sample: piece, last_use: false })
            .collect();
        let mut into = ReceivedPieces { pieces, came: 0 };
        let request = GetRequest { channel: self.channel, epoch: 0, asks: &asks };
        let got = cluster.transport.get(peer, &request, deadline, &mut into);
        into.pieces[..into.came].iter().for_each(|piece| bytes.extend_from_slice(piece));
        got
    }
}

/// The pieces of a request; the first `came` of them have arrived intact.
struct ReceivedPieces {
    pieces: Vec<Vec<u8>>,
    came: usize,
}

impl Receive for ReceivedPieces {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        &mut self.pieces[at]
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        if let Answer::Here { digest: right, .. } = answer
            && at == self.came
            && digest(&self.pieces[at]) == right
        {
            self.came += 1;
        }
    }
}

impl Handler for OfferedBytes {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, limit: usize, replies: &mut Vec<GetReply>) {
        let mut bytes = 0;
        for &Ask { sample, .. } in request.asks {
            let piece = &self.0[piece_range(sample, self.0.len())];
            bytes += piece.len();
            replies.push(if piece.is_empty() { GetReply::NotHere } else { here(piece) });
            if bytes > limit {
                return;
            }
        }
    }

    fn wants(&self, _: SampleId, _: u64) -> bool {
        false
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        taken.extend(pushes.iter().map(|_| PushOutcome::Refused));
    }

    fn told(&self, _: NodeId, _: &Notice) {}
}

pub fn here(bytes: &[u8]) -> GetReply {
    let digest = digest(bytes);
    GetReply::Here { bytes: Payload::Copied(Memory::from(bytes)), digest, version: 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use belady_base::sync::Condvar;

    use super::*;
    use crate::memory::MemoryTransport;
    use crate::rendezvous::InProcessRendezvous;
    use crate::transport::Transport;

    fn clusters(size: u32) -> Vec<Cluster> {
        let rendezvous = InProcessRendezvous::new(size, Duration::from_mins(1));
        let ranks = (0..).zip(MemoryTransport::network(size));
        ranks.map(|(rank, transport)| Cluster::new(rendezvous.member(rank), transport)).collect()
    }

    fn one(bulk: &Bulk, cluster: &Cluster, peer: NodeId, length: usize) -> Option<Vec<u8>> {
        bulk.of_all(cluster, &[(peer, length)]).remove(0)
    }

    #[test]
    fn data_of_any_length_arrives_complete() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE, 12_500_000] {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 3) as u8).collect();
            let clusters = clusters(2);
            let offered: Vec<Bulk> =
                clusters.iter().map(|cluster| Bulk::offer(cluster, bytes.clone())).collect();
            assert!(one(&offered[1], &clusters[1], 0, length).unwrap() == bytes, "{length}");
        }
    }

    #[test]
    fn a_rank_that_has_less_or_is_gone_is_skipped() {
        let clusters = clusters(3);
        let mine = Bulk::offer(&clusters[0], vec![]);
        let theirs = Bulk::offer(&clusters[1], vec![7; 10]);
        assert_eq!(one(&mine, &clusters[0], 1, 10), Some(vec![7; 10]));
        assert_eq!(one(&mine, &clusters[0], 1, 2 * PIECE), None);
        drop(theirs);
        assert_eq!(one(&mine, &clusters[0], 1, 10), None);
        clusters[0].transport.close();
        assert_eq!(one(&mine, &clusters[0], 2, 10), None);
    }

    /// A network whose ranks are silent until `all` of them are waited for at once.
    #[derive(Debug)]
    struct Silent {
        inner: Arc<MemoryTransport>,
        all: u32,
        waited_for: Mutex<u32>,
        asked: Condvar,
    }

    impl Transport for Silent {
        fn get(
            &self,
            peer: NodeId,
            request: &GetRequest<'_>,
            deadline: Instant,
            into: &mut dyn Receive,
        ) -> Result<(), PeerError> {
            let mut waited_for = lock(&self.waited_for);
            *waited_for += 1;
            self.asked.notify_all();
            let limit = deadline.saturating_duration_since(Instant::now());
            let few = |waited_for: &mut u32| *waited_for < self.all;
            let waited = self.asked.wait_timeout_while(waited_for, limit, few);
            let (mut waited_for, silence) = waited.unwrap_or_else(PoisonError::into_inner);
            if silence.timed_out() {
                *waited_for -= 1;
                return Err(PeerError::TimedOut { peer, limit });
            }
            drop(waited_for);
            self.inner.get(peer, request, deadline, into)
        }

        fn put(
            &self,
            peer: NodeId,
            channel: Channel,
            pushes: &[Push<'_>],
            deadline: Instant,
        ) -> Result<Vec<PushOutcome>, PeerError> {
            self.inner.put(peer, channel, pushes, deadline)
        }

        fn tell(
            &self,
            peer: NodeId,
            channel: Channel,
            notice: &Notice,
            deadline: Instant,
        ) -> Result<(), PeerError> {
            self.inner.tell(peer, channel, notice, deadline)
        }

        fn dispatcher(&self) -> &Arc<crate::dispatcher::Dispatcher> {
            self.inner.dispatcher()
        }

        fn close(&self) {
            self.inner.close();
        }
    }

    #[test]
    fn silent_ranks_are_waited_for_side_by_side() {
        let (rendezvous, network) =
            (InProcessRendezvous::new(5, Duration::from_mins(1)), MemoryTransport::network(5));
        let cluster = |(rank, inner)| {
            let (waited_for, asked) = (Mutex::default(), Condvar::new());
            let transport = Silent { inner, all: 4, waited_for, asked };
            Cluster::new(rendezvous.member(rank), Arc::new(transport))
        };
        let clusters: Vec<Cluster> = (0..).zip(network).map(cluster).collect();
        let offered: Vec<Bulk> =
            clusters.iter().map(|cluster| Bulk::offer(cluster, vec![7; 10])).collect();
        let heard = offered[0].of_all(&clusters[0], &[(1, 10), (2, 10), (3, 10), (4, 10)]);
        assert_eq!(heard, vec![Some(vec![7; 10]); 4]);
    }
}
