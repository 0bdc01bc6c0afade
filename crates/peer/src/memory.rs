//! Nodes in one process that call each other, for tests.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use belady_base::sync::Arc;

use crate::dispatcher::Dispatcher;
use crate::message::{Answer, Channel, GetReply, GetRequest, Notice, Push, PushOutcome, Receive};
use crate::transport::Transport;
use crate::{NodeId, PeerError};

/// The most bytes of one answer, as on a real connection.
const ANSWER: usize = 1 << 20;

#[derive(Debug)]
struct MemoryNode {
    dispatcher: Arc<Dispatcher>,
    gone: AtomicBool,
}

/// One of several nodes in this process.
#[derive(Debug)]
pub struct MemoryTransport {
    nodes: Arc<[MemoryNode]>,
    rank: NodeId,
}

impl MemoryTransport {
    /// Returns nodes that can reach each other.
    pub fn network(nodes: u32) -> Vec<Arc<Self>> {
        let node = |_| MemoryNode { dispatcher: Arc::default(), gone: AtomicBool::new(false) };
        let all: Arc<[MemoryNode]> = (0..nodes).map(node).collect();
        (0..nodes).map(|rank| Arc::new(Self { nodes: all.clone(), rank })).collect()
    }

    fn peer(&self, peer: NodeId) -> Result<&Dispatcher, PeerError> {
        if self.nodes[self.rank as usize].gone.load(Ordering::Acquire) {
            return Err(PeerError::Left);
        }
        let node = &self.nodes[peer as usize];
        if node.gone.load(Ordering::Acquire) {
            let (address, error) =
                (format!("node {peer}"), io::ErrorKind::ConnectionRefused.into());
            return Err(PeerError::Unreachable { peer, address, error });
        }
        Ok(&node.dispatcher)
    }
}

impl Transport for MemoryTransport {
    fn get(
        &self,
        peer: NodeId,
        request: &GetRequest<'_>,
        _deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        let mut replies = vec![];
        let mut at = 0;
        while at < request.asks.len() {
            replies.clear();
            let rest = GetRequest { asks: &request.asks[at..], ..*request };
            self.peer(peer)?.get(self.rank, &rest, ANSWER, &mut replies);
            for reply in replies.drain(..) {
                let answer = match reply {
                    GetReply::Here { bytes, digest, version } => {
                        let slot = into.slot(at);
                        if slot.len() != bytes.len() {
                            let what = format!("{} bytes instead of {}", bytes.len(), slot.len());
                            return Err(PeerError::Garbled { peer, what });
                        }
                        slot.copy_from_slice(&bytes);
                        Answer::Here { digest, version }
                    }
                    GetReply::NotHere => Answer::NotHere,
                    GetReply::NotYet => Answer::NotYet,
                    GetReply::Busy => Answer::Busy,
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
    ) -> Result<Vec<PushOutcome>, PeerError> {
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

    fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.nodes[self.rank as usize].dispatcher
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
    fn the_memory_transport_conforms() {
        crate::conformance::all(&|nodes| {
            let nodes = MemoryTransport::network(nodes).into_iter();
            nodes.map(|node| node as Arc<dyn Transport>).collect()
        });
    }
}
