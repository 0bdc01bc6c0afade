//! The transport: carries requests between nodes.
//!
//! The primitive is a multi-get in the order of the request. A call blocks its thread until it is
//! answered or the deadline passes, and bytes go straight to their destination. Any number of
//! threads may call at once.

use std::time::Instant;

use belady_base::sync::Arc;

use crate::dispatcher::Dispatcher;
use crate::message::{Channel, GetRequest, Notice, Push, PushOutcome, Receive};
use crate::{NodeId, PeerError};

/// Carries requests to other nodes, and those of other nodes to this node's [`Dispatcher`].
///
/// A call whose deadline passes has failed. Where the transport sees progress, the time starts anew
/// whenever bytes move: a large sample on a slow network may take long, while a silent peer is
/// given up, however much was asked of it.
///
/// After an error it is unknown whether the peer has handled the request. Every call may be
/// repeated.
pub trait Transport: Send + Sync + std::fmt::Debug {
    /// Asks a peer for samples. On `Ok` all are answered.
    fn get(
        &self,
        peer: NodeId,
        request: &GetRequest<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError>;

    /// Pushes samples to a peer. On `Ok` there is one outcome for each.
    fn put(
        &self,
        peer: NodeId,
        channel: Channel,
        pushes: &[Push<'_>],
        deadline: Instant,
    ) -> Result<Vec<PushOutcome>, PeerError>;

    /// Sends a notice to a peer. On `Ok` the peer has received it.
    fn tell(
        &self,
        peer: NodeId,
        channel: Channel,
        notice: &Notice,
        deadline: Instant,
    ) -> Result<(), PeerError>;

    /// Returns the dispatcher of requests that other nodes make.
    fn dispatcher(&self) -> &Arc<Dispatcher>;

    /// Returns whether a call's time starts anew while its bytes move. If not, the caller has to
    /// allow for the time that the bytes take.
    fn sees_progress(&self) -> bool {
        true
    }

    /// Returns whether a peer runs on this machine.
    fn is_near(&self, _peer: NodeId) -> bool {
        false
    }

    /// Leaves the job: calls in flight end with [`PeerError::Left`], nothing listens any more, and
    /// the transport's threads end. Called once, when the transport is no longer needed.
    fn close(&self);
}
