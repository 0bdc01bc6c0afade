//! Nodes in one process that call each other: for tests.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use belady_data::sync::Arc;

use crate::desk::{Channel, Desk};
use crate::transport::{Answer, Notice, Push, Receive, Reply, Request, Taken, Transport};
use crate::{NodeId, PeerError};

/// As much as one answer has at most, as on a real connection.
const ANSWER: usize = 1 << 20;

#[derive(Debug)]
struct Node {
    desk: Arc<Desk>,
    gone: AtomicBool,
}

/// One of several nodes in this process.
#[derive(Debug)]
pub struct MemoryTransport {
    nodes: Arc<[Node]>,
    rank: NodeId,
}

impl MemoryTransport {
    /// So many nodes that can reach each other.
    pub fn network(nodes: u32) -> Vec<Arc<Self>> {
        let node = |_| Node { desk: Arc::default(), gone: AtomicBool::new(false) };
        let all: Arc<[Node]> = (0..nodes).map(node).collect();
        (0..nodes).map(|rank| Arc::new(Self { nodes: all.clone(), rank })).collect()
    }

    fn peer(&self, peer: NodeId) -> Result<&Desk, PeerError> {
        if self.nodes[self.rank as usize].gone.load(Ordering::Acquire) {
            return Err(PeerError::Left);
        }
        let node = &self.nodes[peer as usize];
        if node.gone.load(Ordering::Acquire) {
            let (address, error) =
                (format!("node {peer}"), io::ErrorKind::ConnectionRefused.into());
            return Err(PeerError::Unreachable { peer, address, error });
        }
        Ok(&node.desk)
    }
}

impl Transport for MemoryTransport {
    fn get(
        &self,
        peer: NodeId,
        request: &Request<'_>,
        _deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        let mut replies = vec![];
        let mut at = 0;
        while at < request.asks.len() {
            replies.clear();
            let rest = Request { asks: &request.asks[at..], ..*request };
            self.peer(peer)?.get(self.rank, &rest, ANSWER, &mut replies);
            for reply in replies.drain(..) {
                let answer = match reply {
                    Reply::Here { bytes, digest, version } => {
                        let slot = into.slot(at);
                        if slot.len() != bytes.len() {
                            let what = format!("{} bytes instead of {}", bytes.len(), slot.len());
                            return Err(PeerError::Garbled { peer, what });
                        }
                        slot.copy_from_slice(&bytes);
                        Answer::Here { digest, version }
                    }
                    Reply::NotHere => Answer::NotHere,
                    Reply::NotYet => Answer::NotYet,
                    Reply::Busy => Answer::Busy,
                };
                into.answered(at, answer);
                at += 1;
            }
        }
        Ok(())
    }

    fn put(
        &self,
        peer: NodeId,
        channel: Channel,
        pushes: &[Push<'_>],
        _deadline: Instant,
    ) -> Result<Vec<Taken>, PeerError> {
        Ok(self.peer(peer)?.put(self.rank, channel, pushes))
    }

    fn tell(
        &self,
        peer: NodeId,
        channel: Channel,
        notice: &Notice,
        _deadline: Instant,
    ) -> Result<(), PeerError> {
        self.peer(peer)?.told(self.rank, channel, notice);
        Ok(())
    }

    fn desk(&self) -> &Arc<Desk> {
        &self.nodes[self.rank as usize].desk
    }

    fn is_near(&self, _peer: NodeId) -> bool {
        true
    }

    fn close(&self) {
        self.nodes[self.rank as usize].gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_what_every_transport_does() {
        crate::conformance::all(&|nodes| {
            let nodes = MemoryTransport::network(nodes).into_iter();
            nodes.map(|node| node as Arc<dyn Transport>).collect()
        });
    }
}
