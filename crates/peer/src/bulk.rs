//! What ranks tell each other that grows with the dataset: a meeting carries little, so it goes over the
//! transport, in pieces, from each rank to those who ask for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use belady_data::memory::Memory;
use belady_data::sync::{Arc, Mutex, lock};

use crate::desk::{Channel, Serve, Serving};
use crate::transport::{Answer, Ask, Notice, Payload, Push, Receive, Reply, Request, Taken};
use crate::{Cluster, NodeId, PeerError, SampleId, digest};

/// Bytes of a piece: large enough that requests cost nothing beside it.
pub const PIECE: usize = 1 << 20;
/// Pieces asked for at once.
const TOGETHER: usize = 4;
/// A peer from which no piece has come for so long is passed over. The time of all peers runs from the
/// moment at which the first one is asked.
const PATIENCE: Duration = Duration::from_secs(20);
/// A peer whose turn comes when that time has passed already is asked once, with this limit.
const LATE: Duration = Duration::from_secs(1);
/// Peers asked at once: silent ones do not keep the others waiting, and threads stay few.
const PEERS: usize = 32;
/// Before a peer that has failed is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// What this rank has to tell, as long as this is there.
#[derive(Debug)]
pub struct Bulk {
    channel: Channel,
    _serving: Serving,
    _held: Arc<Held>,
}

#[derive(Debug)]
struct Held(Vec<u8>);

/// Where the `at`th piece of so many bytes lies; empty if there are fewer.
pub fn piece_range(at: u32, length: usize) -> std::ops::Range<usize> {
    let start = (at as usize).saturating_mul(PIECE).min(length);
    start..start.saturating_add(PIECE).min(length)
}

impl Bulk {
    /// Holds bytes ready for the others. Every rank offers something in the same order, be it nothing.
    pub fn offer(cluster: &Cluster, bytes: Vec<u8>) -> Self {
        let (channel, held) = (cluster.next_channel(), Arc::new(Held(bytes)));
        let job: Arc<dyn Serve> = held.clone();
        let serving = cluster.transport.desk().open(channel, Arc::downgrade(&job));
        Self { channel, _serving: serving, _held: held }
    }

    /// What other ranks hold ready, which have offered it by now: of each so many bytes. `None` for a
    /// rank whose bytes do not come.
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
                // Where there is no thread to be had, fewer are asked at once.
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
                    tracing::warn!(peer, %error, "a peer does not say what its caches hold");
                    return None;
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        Some(bytes)
    }

    /// Asks for the next pieces; those that come right, in a row, are added.
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
        let mut into = Row { pieces, came: 0 };
        let request = Request { channel: self.channel, epoch: 0, asks: &asks };
        let got = cluster.transport.get(peer, &request, deadline, &mut into);
        into.pieces[..into.came].iter().for_each(|piece| bytes.extend_from_slice(piece));
        got
    }
}

/// Pieces that came right, in a row.
struct Row {
    pieces: Vec<Vec<u8>>,
    came: usize,
}

impl Receive for Row {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        &mut self.pieces[at]
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        let is_right = matches!(answer, Answer::Here { digest: right, .. } if digest(&self.pieces[at]) == right);
        self.came += usize::from(is_right && at == self.came);
    }
}

impl Serve for Held {
    fn get(&self, _: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
        let mut bytes = 0;
        for &Ask { sample, .. } in request.asks {
            let piece = &self.0[piece_range(sample, self.0.len())];
            bytes += piece.len();
            replies.push(if piece.is_empty() { Reply::NotHere } else { here(piece) });
            if bytes > limit {
                return;
            }
        }
    }

    fn wants(&self, _: SampleId, _: u64) -> bool {
        false
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        taken.extend(pushes.iter().map(|_| Taken::Refused));
    }

    fn told(&self, _: NodeId, _: &Notice) {}
}

pub fn here(bytes: &[u8]) -> Reply {
    let digest = digest(bytes);
    Reply::Here { bytes: Payload::Copied(Memory::from(bytes)), digest, version: 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use belady_data::sync::Condvar;

    use super::*;
    use crate::meet::Hall;
    use crate::memory::MemoryTransport;
    use crate::transport::Transport;

    fn clusters(size: u32) -> Vec<Cluster> {
        let hall = Hall::new(size, Duration::from_mins(1));
        let ranks = (0..).zip(MemoryTransport::network(size));
        ranks.map(|(rank, transport)| Cluster::new(hall.seat(rank), transport)).collect()
    }

    fn one(bulk: &Bulk, cluster: &Cluster, peer: NodeId, length: usize) -> Option<Vec<u8>> {
        bulk.of_all(cluster, &[(peer, length)]).remove(0)
    }

    #[test]
    fn what_a_rank_holds_ready_comes_whole_whatever_its_length() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE, 12_500_000] {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 3) as u8).collect();
            let clusters = clusters(2);
            let offered: Vec<Bulk> =
                clusters.iter().map(|cluster| Bulk::offer(cluster, bytes.clone())).collect();
            assert!(one(&offered[1], &clusters[1], 0, length).unwrap() == bytes, "{length}");
        }
    }

    #[test]
    fn a_rank_that_has_less_or_is_gone_is_passed_over() {
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

    /// A network on which ranks are silent until so many of them are waited for at once.
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
            request: &Request<'_>,
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
        ) -> Result<Vec<Taken>, PeerError> {
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

        fn desk(&self) -> &Arc<crate::desk::Desk> {
            self.inner.desk()
        }

        fn close(&self) {
            self.inner.close();
        }
    }

    #[test]
    fn silent_ranks_are_waited_for_side_by_side() {
        let (hall, network) = (Hall::new(5, Duration::from_mins(1)), MemoryTransport::network(5));
        let cluster = |(rank, inner)| {
            let (waited_for, asked) = (Mutex::default(), Condvar::new());
            let transport = Silent { inner, all: 4, waited_for, asked };
            Cluster::new(hall.seat(rank), Arc::new(transport))
        };
        let clusters: Vec<Cluster> = (0..).zip(network).map(cluster).collect();
        let offered: Vec<Bulk> =
            clusters.iter().map(|cluster| Bulk::offer(cluster, vec![7; 10])).collect();
        let heard = offered[0].of_all(&clusters[0], &[(1, 10), (2, 10), (3, 10), (4, 10)]);
        assert_eq!(heard, vec![Some(vec![7; 10]); 4]);
    }
}
