//! What others ask of this node, and the threads that answer it.
//!
//! The thread that talks to MPI must not wait for a tier, so it only brings requests here and takes
//! the replies away. It stops to fetch requests while there are many, and those who serve wait
//! while many replies are on their way: a slow tier or a slow peer costs time, never memory.
//! Pushes have a queue and a thread of their own, so that writing them does not hold up those who
//! read.

use std::collections::VecDeque;
use std::sync::PoisonError;

use belady_data::sync::{Condvar, Mutex, lock};

use super::comm::{Outgoing, Received, Tag};
use super::wire::{self, Asked};
use crate::desk::Desk;
use crate::transport::Request;

/// Requests that wait, in bytes. One more may come.
const INBOX: usize = 32 << 20;
/// Replies on their way, in bytes. One of each thread may come on top.
const REPLIES: usize = 64 << 20;

/// What a thread works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Asks,
    Pushes,
}

/// A thread for each. Two read, so that one that waits for a disk does not hold up the other.
pub const THREADS: [Queue; 3] = [Queue::Asks, Queue::Asks, Queue::Pushes];

#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<State>,
    /// There is something to do, or nothing will be any more.
    work: Condvar,
    /// Replies have gone.
    gone: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queues: [VecDeque<Received>; 2],
    held: [usize; 2],
    replies: usize,
    ended: bool,
}

impl Inbox {
    /// Whether requests of this kind are to be fetched.
    pub fn has_room(&self, queue: Queue) -> bool {
        lock(&self.state).held[queue as usize] < INBOX
    }

    pub fn arrived(&self, queue: Queue, request: Received) {
        let mut state = lock(&self.state);
        state.held[queue as usize] += request.message.len();
        state.queues[queue as usize].push_back(request);
        drop(state);
        // All, since a thread of the other queue may be the one that wakes.
        self.work.notify_all();
    }

    /// A reply of so many bytes has left this node.
    pub fn replied(&self, bytes: usize) {
        lock(&self.state).replies -= bytes;
        self.gone.notify_all();
    }

    /// Nothing is served any more.
    pub fn end(&self) {
        lock(&self.state).ended = true;
        self.work.notify_all();
        self.gone.notify_all();
    }

    fn next(&self, queue: Queue) -> Option<Received> {
        let nothing = |state: &mut State| !state.ended && state.queues[queue as usize].is_empty();
        let waited = self.work.wait_while(lock(&self.state), nothing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return None;
        }
        state.queues[queue as usize].pop_front()
    }

    /// A request was answered by so many bytes: waits until they may go.
    fn answered(&self, queue: Queue, request: usize, reply: usize) {
        let mut state = lock(&self.state);
        state.held[queue as usize] -= request;
        let full = |state: &mut State| !state.ended && state.replies >= REPLIES;
        let waited = self.gone.wait_while(state, full);
        state = waited.unwrap_or_else(PoisonError::into_inner);
        state.replies += reply;
    }

    /// Serves until the end.
    pub fn serve(&self, queue: Queue, desk: &Desk, send: impl Fn(Outgoing)) {
        while let Some(request) = self.next(queue) {
            let reply = answer(desk, &request);
            let length = request.message.len();
            drop(request);
            self.answered(queue, length, reply.length());
            send(reply);
        }
    }
}

fn answer(desk: &Desk, request: &Received) -> Outgoing {
    let from = request.from;
    let call = wire::call(&request.message).unwrap_or_default();
    let (head, large) = match wire::asked(&request.message) {
        Some(Asked::Get { channel, epoch, asks }) => {
            let mut replies = Vec::with_capacity(asks.len());
            let asked = Request { channel, epoch, asks: &asks };
            desk.get(from, &asked, wire::BYTES, &mut replies);
            replies.truncate(asks.len());
            wire::got(call, replies)
        }
        Some(Asked::Put { channel, pushes }) => {
            (wire::taken(call, &desk.put(from, channel, &pushes)), vec![])
        }
        Some(Asked::Told { channel, notice }) => {
            desk.told(from, channel, &notice);
            (wire::heard(call), vec![])
        }
        // Too short for an answer to a get or a put: the caller sees that.
        None => {
            tracing::warn!(rank = from, "a request that makes no sense");
            (wire::heard(call), vec![])
        }
    };
    Outgoing { to: from, tag: Tag::Reply, head, large }
}
