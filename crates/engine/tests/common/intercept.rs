//! A transport whose calls a test delays or fails.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use belady_peer::{
    Channel, Dispatcher, GetRequest, NodeId, Notice, PeerError, Push, PushOutcome, Receive,
    Transport,
};

/// A call to a peer.
#[derive(Clone, Copy)]
pub enum Call<'a> {
    Get(&'a GetRequest<'a>),
    Put(&'a [Push<'a>]),
    Tell,
}

/// Intercepts calls to a peer and its answers. The caller gets the returned error.
pub trait Intercept: Send + Sync + Debug {
    fn before(&self, peer: NodeId, call: Call<'_>, deadline: Instant) -> Result<(), PeerError>;

    fn after(&self, _peer: NodeId, _deadline: Instant) -> Result<(), PeerError> {
        Ok(())
    }
}

#[derive(Debug)]
pub struct Intercepted<I> {
    pub inner: Arc<dyn Transport>,
    pub by: I,
}

impl<I: Intercept> Intercepted<I> {
    fn call<T>(
        &self,
        peer: NodeId,
        call: Call<'_>,
        deadline: Instant,
        make: impl FnOnce() -> Result<T, PeerError>,
    ) -> Result<T, PeerError> {
        self.by.before(peer, call, deadline)?;
        let answer = make();
        self.by.after(peer, deadline)?;
        answer
    }
}

impl<I: Intercept> Transport for Intercepted<I> {
    /// A delayed call moves nothing.
    fn sees_progress(&self) -> bool {
        false
    }

    fn get(
        &self,
        peer: NodeId,
        request: &GetRequest<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        let get = || self.inner.get(peer, request, deadline, into);
        self.call(peer, Call::Get(request), deadline, get)
    }

    fn put(
        &self,
        peer: NodeId,
        channel: Channel,
        pushes: &[Push<'_>],
        deadline: Instant,
    ) -> Result<Vec<PushOutcome>, PeerError> {
        let put = || self.inner.put(peer, channel, pushes, deadline);
        self.call(peer, Call::Put(pushes), deadline, put)
    }

    fn tell(
        &self,
        peer: NodeId,
        channel: Channel,
        notice: &Notice,
        deadline: Instant,
    ) -> Result<(), PeerError> {
        let tell = || self.inner.tell(peer, channel, notice, deadline);
        self.call(peer, Call::Tell, deadline, tell)
    }

    fn dispatcher(&self) -> &Arc<Dispatcher> {
        self.inner.dispatcher()
    }

    fn close(&self) {
        self.inner.close();
    }
}
