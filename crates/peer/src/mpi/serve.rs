//! Requests of other nodes, and the threads that handle them.
//!
//! The progress thread must not wait for a tier, so it only queues requests here and sends the
//! replies. It accepts no requests while many are queued, and serving threads wait while many
//! replies are in flight: a slow tier or peer costs time, never memory. Pushes have a queue and a
//! thread of their own, so that writing them does not delay reads.

use std::collections::VecDeque;
use std::sync::PoisonError;

use belady_base::sync::{Condvar, Mutex, lock};

use super::comm::{OutgoingMessage, Received, Tag};
use super::wire;
use crate::dispatcher::Dispatcher;
use crate::message::GetRequest;
use crate::wire::WireMessage;

/// The most bytes of queued requests, apart from one more request.
const INBOX: usize = 32 << 20;
/// The most bytes of replies in flight, apart from one more of each thread.
const REPLIES: usize = 64 << 20;

/// The queues of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeQueue {
    Asks,
    Pushes,
}

/// One thread for each entry. Two threads read, so that one that waits for a disk does not block
/// the other.
pub const THREADS: [ServeQueue; 3] = [ServeQueue::Asks, ServeQueue::Asks, ServeQueue::Pushes];

#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<InboxState>,
    /// A request was queued, or the end has come.
    work: Condvar,
    /// Replies were sent.
    gone: Condvar,
}

#[derive(Debug, Default)]
struct InboxState {
    queues: [VecDeque<Received>; 2],
    held: [usize; 2],
    replies: usize,
    ended: bool,
}

impl Inbox {
    /// Returns whether requests of this kind should be accepted.
    pub fn has_room(&self, queue: ServeQueue) -> bool {
        lock(&self.state).held[queue as usize] < INBOX
    }

    pub fn arrived(&self, queue: ServeQueue, request: Received) {
        let mut state = lock(&self.state);
        state.held[queue as usize] += request.message.len();
        state.queues[queue as usize].push_back(request);
        drop(state);
        // All, since a thread of the other queue might wake otherwise.
        self.work.notify_all();
    }

    /// Records that a reply of this length was sent.
    pub fn replied(&self, bytes: usize) {
        lock(&self.state).replies -= bytes;
        self.gone.notify_all();
    }

    /// Ends serving.
    pub fn end(&self) {
        lock(&self.state).ended = true;
        self.work.notify_all();
        self.gone.notify_all();
    }

    fn next(&self, queue: ServeQueue) -> Option<Received> {
        let nothing =
            |state: &mut InboxState| !state.ended && state.queues[queue as usize].is_empty();
        let waited = self.work.wait_while(lock(&self.state), nothing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return None;
        }
        state.queues[queue as usize].pop_front()
    }

    /// Records that a request was handled, and waits until its reply may be sent.
    fn answered(&self, queue: ServeQueue, request: usize, reply: usize) {
        let mut state = lock(&self.state);
        state.held[queue as usize] -= request;
        let full = |state: &mut InboxState| !state.ended && state.replies >= REPLIES;
        let waited = self.gone.wait_while(state, full);
        state = waited.unwrap_or_else(PoisonError::into_inner);
        state.replies += reply;
    }

    /// Serves until the end.
    pub fn serve(
        &self,
        queue: ServeQueue,
        dispatcher: &Dispatcher,
        send: impl Fn(OutgoingMessage),
    ) {
        while let Some(request) = self.next(queue) {
            let reply = answer(dispatcher, &request);
            let length = request.message.len();
            drop(request);
            self.answered(queue, length, reply.length());
            send(reply);
        }
    }
}

fn answer(dispatcher: &Dispatcher, request: &Received) -> OutgoingMessage {
    let from = request.from;
    let call = wire::call(&request.message).unwrap_or_default();
    let reply = |message: &WireMessage<'_>| (wire::message(call, message, 0), vec![]);
    let (head, large) = match wire::read(&request.message) {
        Some((WireMessage::Get { channel, epoch, asks }, [])) => {
            let mut replies = Vec::with_capacity(asks.len());
            let asked = GetRequest { channel, epoch, asks: &asks };
            dispatcher.get(from, &asked, wire::BYTES, &mut replies);
            replies.truncate(asks.len());
            wire::got(call, replies)
        }
        Some((WireMessage::Put { channel, pushes }, bytes)) => {
            let outcomes = wire::split(&pushes, bytes)
                .map(|pushes| dispatcher.put(from, channel, &pushes))
                .unwrap_or_default();
            reply(&WireMessage::Outcomes(outcomes.into()))
        }
        Some((WireMessage::Tell { channel, notice }, [])) => {
            dispatcher.told(from, channel, &notice);
            reply(&WireMessage::Heard)
        }
        // The caller of a get or a put sees that this does not answer it.
        _ => {
            tracing::warn!(rank = from, "received a request that cannot be decoded");
            reply(&WireMessage::Heard)
        }
    };
    OutgoingMessage { to: from, tag: Tag::GetReply, head, large }
}
