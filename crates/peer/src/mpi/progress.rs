//! The one thread that calls MPI.
//!
//! It works in rounds: it sends what it is told to, starts to receive what has arrived, and passes
//! completed messages to callers and serving threads. It never blocks in MPI, which would burn a
//! core and could last for ever. It is the only one, since several threads in MPI slow each other
//! down. After some rounds without work it sleeps between rounds, briefly while something is in
//! flight.
//!
//! Two nodes may send each other large messages at the same time: no node waits until a message is
//! sent before it receives. And no node leaves while another may still ask: a node whose calls are
//! answered enters a barrier, and serves until all have entered it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use belady_base::sync::Arc;

use super::calls::MpiEnd;
use super::collective::{Collective, RunningCollective};
use super::comm::{Answered, Comm, LargePart, OutgoingMessage, Received, SendBuffer, Tag};
use super::pending::{PendingRequests, Result};
use super::serve::ServeQueue;
use super::shared::MpiShared;
use super::wire;

/// Messages accepted in one round, so that other work gets its turn.
const ACCEPT: usize = 16;
/// How long the thread polls without sleeping after the last event: about the time of an answer on
/// a fast link.
const EAGER: Duration = Duration::from_micros(100);
/// As long again for each of these bytes in flight. MPI moves bytes only when it is called, piece
/// by piece, and does not tell how far it is; sleeping between pieces costs nine tenths of the
/// speed. The value is a tenth of the speed of memory.
const BYTES_WHILE_EAGER: usize = 50_000;
/// The sleep while something is in flight or expected.
const SHORT: Duration = Duration::from_micros(50);
/// The sleep while nothing is: a request of another node waits this long, and a thousand rounds a
/// second take 2 to 5 % of a core.
const LONG: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct MpiProgress {
    shared: Arc<MpiShared>,
    /// For requests and their answers, and for leaving.
    talk: Comm,
    /// For large samples, each tagged by its call.
    bulk: Comm,
    /// For exchanges. An exchange that some rank never makes does not block leaving.
    exchanges: Comm,
    sends: PendingRequests<SendBuffer>,
    receives: PendingRequests<Received>,
    parts: PendingRequests<LargePart>,
    collectives: VecDeque<Collective>,
    running: Option<RunningCollective>,
    leave: bool,
    barrier: Option<PendingRequests<()>>,
    /// When it may sleep, if nothing happens before.
    eager_until: Option<Instant>,
}

impl MpiProgress {
    pub fn new(shared: Arc<MpiShared>, talk: Comm, bulk: Comm, exchanges: Comm) -> Self {
        Self {
            shared,
            talk,
            bulk,
            exchanges,
            sends: PendingRequests::default(),
            receives: PendingRequests::default(),
            parts: PendingRequests::default(),
            collectives: VecDeque::new(),
            running: None,
            leave: false,
            barrier: None,
            eager_until: None,
        }
    }

    /// Runs until all ranks have left, or MPI fails.
    pub fn run(mut self) {
        let outcome = loop {
            match self.round() {
                Ok(false) => {}
                Ok(true) => break MpiEnd::Left,
                Err(failure) => {
                    tracing::error!("lost all peers: {failure}");
                    break MpiEnd::Failed(failure.to_string());
                }
            }
        };
        let shared = self.shared.clone();
        if matches!(outcome, MpiEnd::Failed(_)) || self.running.is_some() {
            // MPI must not be called any more, or still uses the communicators.
            std::mem::forget((self.talk, self.bulk, self.exchanges));
        } else {
            // Before the end is announced, since MPI itself may end right after.
            drop((self.talk, self.bulk, self.exchanges));
        }
        shared.ended(&outcome);
    }

    /// Returns true at the end.
    fn round(&mut self) -> Result<bool> {
        let patience = self.patience();
        let commands = self.shared.commands(patience);
        self.leave |= commands.leave;
        let mut busy = !commands.send.is_empty() || !commands.gather.is_empty();
        self.collectives.extend(commands.gather);
        for message in commands.send {
            self.send(message)?;
        }
        busy |= self.accept()?;
        busy |= self.deliver()?;
        busy |= self.gather()?;
        if busy {
            self.eager_until = None;
        }
        self.has_left()
    }

    /// Returns how long to wait for commands.
    fn patience(&mut self) -> Duration {
        let now = Instant::now();
        let until = match self.eager_until {
            Some(until) => until,
            None => *self.eager_until.insert(now + self.eagerness()),
        };
        if now < until {
            std::thread::yield_now();
            return Duration::ZERO;
        }
        let expects = !self.sends.is_empty()
            || !self.receives.is_empty()
            || !self.parts.is_empty()
            || self.running.is_some()
            || self.barrier.is_some()
            || self.shared.calls.are_open();
        if expects { SHORT } else { LONG }
    }

    fn eagerness(&self) -> Duration {
        let sent: usize = self.sends.iter().map(|buffer_sent| buffer_sent.bytes().len()).sum();
        let received: usize = self.receives.iter().map(|received| received.message.len()).sum();
        let parts: usize = self.parts.iter().map(|part| part.length).sum();
        EAGER * (1 + (sent + received + parts) / BYTES_WHILE_EAGER) as u32
    }

    /// Starts to receive what has arrived, except for requests while too many wait.
    fn accept(&mut self) -> Result<bool> {
        let mut accepted = 0;
        while accepted < ACCEPT {
            let asks = self.shared.inbox.has_room(ServeQueue::Asks);
            let pushes = self.shared.inbox.has_room(ServeQueue::Pushes);
            let found = match (asks, pushes) {
                (true, true) => self.receive(None)?,
                (true, false) => {
                    self.receive(Some(Tag::GetReply))? || self.receive(Some(Tag::Ask))?
                }
                (false, true) => {
                    self.receive(Some(Tag::GetReply))? || self.receive(Some(Tag::Push))?
                }
                (false, false) => self.receive(Some(Tag::GetReply))?,
            };
            if !found {
                break;
            }
            accepted += 1;
        }
        Ok(accepted > 0)
    }

    fn receive(&mut self, tag: Option<Tag>) -> Result<bool> {
        self.talk.receive(tag, &self.shared.buffers, &mut self.receives)
    }

    fn send(&mut self, message: OutgoingMessage) -> Result<()> {
        let OutgoingMessage { to, tag, head, large } = message;
        let call = wire::call(&head).unwrap_or_default();
        let head = if tag == Tag::GetReply {
            SendBuffer::GetReply(head)
        } else {
            SendBuffer::GetRequest(head)
        };
        self.talk.send(to, tag as i32, head, &mut self.sends)?;
        for bytes in large {
            self.bulk.send(to, bulk_tag(call), SendBuffer::Large(bytes), &mut self.sends)?;
        }
        Ok(())
    }

    /// Passes on what has arrived, and frees what was sent.
    fn deliver(&mut self) -> Result<bool> {
        let shared = &self.shared;
        let mut replies = vec![];
        let mut busy = self.receives.completed(|received| {
            if received.tag == Tag::Ask as i32 {
                shared.inbox.arrived(ServeQueue::Asks, received);
            } else if received.tag == Tag::Push as i32 {
                shared.inbox.arrived(ServeQueue::Pushes, received);
            } else {
                replies.push(received);
            }
        })?;
        for reply in replies {
            self.answer(reply)?;
        }
        let shared = &self.shared;
        busy |= self.parts.completed(|part| {
            // The last reference: the answer is complete.
            if let Some(answer) = Arc::into_inner(part.answer) {
                shared.calls.answered(answer);
            }
        })?;
        busy |= self.sends.completed(|sent| {
            if !matches!(sent, SendBuffer::GetRequest(_)) {
                shared.inbox.replied(sent.bytes().len());
            }
        })?;
        Ok(busy)
    }

    /// Handles a reply; large samples may follow it.
    fn answer(&mut self, reply: Received) -> Result<()> {
        let Some(call) = wire::call(&reply.message) else { return Ok(()) };
        let lengths = wire::large(&reply.message);
        let large = self.shared.buffers.take(lengths.iter().sum());
        let answer = Answered { from: reply.from, call, reply: reply.message, large };
        if lengths.is_empty() {
            self.shared.calls.answered(answer);
            return Ok(());
        }
        self.bulk.receive_large(bulk_tag(call), &lengths, answer, &mut self.parts)
    }

    /// One exchange after the other: MPI tells them apart by their order.
    fn gather(&mut self) -> Result<bool> {
        if let Some(running) = &mut self.running {
            let done = running.advance(&self.exchanges)?;
            if done {
                self.running = None;
            }
            return Ok(done);
        }
        let Some(collective) = self.collectives.pop_front() else { return Ok(false) };
        self.running = Some(RunningCollective::begin(collective, &self.exchanges)?);
        Ok(true)
    }

    fn has_left(&mut self) -> Result<bool> {
        let quiet = self.sends.is_empty() && self.receives.is_empty() && self.parts.is_empty();
        match &mut self.barrier {
            None if self.leave && quiet && !self.shared.calls.are_open() => {
                let mut barrier = PendingRequests::default();
                self.talk.barrier(&mut barrier)?;
                self.barrier = Some(barrier);
                Ok(false)
            }
            None => Ok(false),
            Some(barrier) => {
                barrier.completed(|()| {})?;
                Ok(quiet && barrier.is_empty())
            }
        }
    }
}

/// Returns the tag of a call's large samples. Open calls to one peer are few, so their tags differ,
/// and every MPI has this many tags.
fn bulk_tag(call: u64) -> i32 {
    (call & 0x7fff) as i32
}
