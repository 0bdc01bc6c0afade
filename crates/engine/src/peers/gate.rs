//! Limits how many requests to one peer are under way, so that a slow peer does not block all
//! threads.

use std::collections::VecDeque;

use belady_base::sync::Arc;
use belady_peer::NodeId;

use crate::pending::PendingBatch;

/// Requests under way to one peer: two hide each other's round trips, four use a connection each.
const AT_ONCE: u32 = 4;

/// A request for items of a batch that one peer has.
#[derive(Debug)]
pub struct PeerRequest {
    pub batch: Arc<PendingBatch>,
    pub peer: NodeId,
    pub items: Vec<u32>,
    /// How often the items were asked for.
    pub asked: u32,
}

/// The requests to one peer.
#[derive(Debug, Default)]
pub struct RequestGate {
    under_way: u32,
    pub(super) waiting: VecDeque<PeerRequest>,
}

impl RequestGate {
    /// Returns how many requests there are, under way or waiting.
    pub fn len(&self) -> usize {
        self.under_way as usize + self.waiting.len()
    }

    /// Returns a request that may go now. One that exceeds the limit waits for the end of another
    /// one.
    pub fn admit(&mut self, request: PeerRequest) -> Option<PeerRequest> {
        if self.under_way >= AT_ONCE {
            self.waiting.push_back(request);
            return None;
        }
        self.under_way += 1;
        Some(request)
    }

    /// Ends a request, and returns the next one that may go.
    pub fn end(&mut self) -> Option<PeerRequest> {
        let next = self.waiting.pop_front();
        self.under_way -= u32::from(next.is_none());
        next
    }

    pub(super) fn close(&mut self) {
        self.waiting.clear();
    }
}
