//! The one thread that talks to MPI.
//!
//! It goes in rounds: sends what it is told to, begins to receive what has come, and brings what is
//! there to those who wait for it or serve it. It never waits inside of MPI, which would burn a core
//! and could wait for ever; and it is alone, since many threads in MPI get in each other's way. If
//! there was nothing to do for some rounds it sleeps between them, shortly while something is
//! on its way.
//!
//! Two nodes may send each other large messages at the same time: nobody waits for a message to be
//! gone before it receives. And nobody leaves while another may still ask: a node that has its
//! answers comes to a barrier and goes on serving until all have come.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use belady_data::sync::Arc;

use super::calls::End;
use super::comm::{Answered, Cargo, Comm, Outgoing, Part, Received, Tag};
use super::flights::{Flights, Result};
use super::gathering::{Gathering, Underway};
use super::serve::Queue;
use super::shared::Shared;
use super::wire;

/// Messages that are accepted in one round, so that others get their turn.
const ACCEPT: usize = 16;
/// How long it goes on without sleeping when nothing has happened: as an answer takes on a fast link.
const EAGER: Duration = Duration::from_micros(100);
/// As long again for each so many bytes that are on their way. MPI moves them only when it is called,
/// piece by piece, and does not tell how far it is: who sleeps between the pieces gets a tenth of the
/// speed. This is a tenth of the speed of memory.
const BYTES_WHILE_EAGER: usize = 50_000;
/// Sleeps while something is on its way or expected.
const SHORT: Duration = Duration::from_micros(50);
/// Sleeps while nothing is: a request of another node waits so long for its answer, and a thousand
/// rounds a second take 2 to 5 % of a core.
const LONG: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    /// For requests and their answers, and for leaving.
    talk: Comm,
    /// For large samples, each tagged by its call.
    bulk: Comm,
    /// For exchanges. An exchange that some rank never comes to does not get in the way of leaving.
    meet: Comm,
    sends: Flights<Cargo>,
    receives: Flights<Received>,
    parts: Flights<Part>,
    gatherings: VecDeque<Gathering>,
    underway: Option<Underway>,
    leave: bool,
    barrier: Option<Flights<()>>,
    /// When it may sleep, if nothing has happened since that was found out.
    eager_until: Option<Instant>,
}

impl Progress {
    pub fn new(shared: Arc<Shared>, talk: Comm, bulk: Comm, meet: Comm) -> Self {
        Self {
            shared,
            talk,
            bulk,
            meet,
            sends: Flights::default(),
            receives: Flights::default(),
            parts: Flights::default(),
            gatherings: VecDeque::new(),
            underway: None,
            leave: false,
            barrier: None,
            eager_until: None,
        }
    }

    /// Until all have left, or MPI fails.
    pub fn run(mut self) {
        let outcome = loop {
            match self.round() {
                Ok(false) => {}
                Ok(true) => break End::Left,
                Err(failure) => {
                    tracing::error!("peers are lost: {failure}");
                    break End::Failed(failure.to_string());
                }
            }
        };
        let shared = self.shared.clone();
        if matches!(outcome, End::Failed(_)) || self.underway.is_some() {
            // MPI is not to be called any more, or not done with it.
            std::mem::forget((self.talk, self.bulk, self.meet));
        } else {
            // Before the end is told, since MPI itself may end right after.
            drop((self.talk, self.bulk, self.meet));
        }
        shared.ended(&outcome);
    }

    /// True at the end.
    fn round(&mut self) -> Result<bool> {
        let patience = self.patience();
        let orders = self.shared.orders(patience);
        self.leave |= orders.leave;
        let mut busy = !orders.send.is_empty() || !orders.gather.is_empty();
        self.gatherings.extend(orders.gather);
        for message in orders.send {
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

    /// How long to wait for orders.
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
            || self.underway.is_some()
            || self.barrier.is_some()
            || self.shared.calls.are_open();
        if expects { SHORT } else { LONG }
    }

    fn eagerness(&self) -> Duration {
        let sent: usize = self.sends.iter().map(|cargo| cargo.bytes().len()).sum();
        let received: usize = self.receives.iter().map(|received| received.message.len()).sum();
        let parts: usize = self.parts.iter().map(|part| part.length).sum();
        EAGER * (1 + (sent + received + parts) / BYTES_WHILE_EAGER) as u32
    }

    /// Begins to receive what has come, except for requests while too many wait.
    fn accept(&mut self) -> Result<bool> {
        let mut accepted = 0;
        while accepted < ACCEPT {
            let asks = self.shared.inbox.has_room(Queue::Asks);
            let pushes = self.shared.inbox.has_room(Queue::Pushes);
            let found = match (asks, pushes) {
                (true, true) => self.receive(None)?,
                (true, false) => self.receive(Some(Tag::Reply))? || self.receive(Some(Tag::Ask))?,
                (false, true) => {
                    self.receive(Some(Tag::Reply))? || self.receive(Some(Tag::Push))?
                }
                (false, false) => self.receive(Some(Tag::Reply))?,
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

    fn send(&mut self, message: Outgoing) -> Result<()> {
        let Outgoing { to, tag, head, large } = message;
        let call = wire::call(&head).unwrap_or_default();
        let head = if tag == Tag::Reply { Cargo::Reply(head) } else { Cargo::Request(head) };
        self.talk.send(to, tag as i32, head, &mut self.sends)?;
        for bytes in large {
            self.bulk.send(to, bulk_tag(call), Cargo::Large(bytes), &mut self.sends)?;
        }
        Ok(())
    }

    /// Brings what has come to where it belongs, and lets go what has gone.
    fn deliver(&mut self) -> Result<bool> {
        let shared = &self.shared;
        let mut replies = vec![];
        let mut busy = self.receives.landed(|received| {
            if received.tag == Tag::Ask as i32 {
                shared.inbox.arrived(Queue::Asks, received);
            } else if received.tag == Tag::Push as i32 {
                shared.inbox.arrived(Queue::Pushes, received);
            } else {
                replies.push(received);
            }
        })?;
        for reply in replies {
            self.answer(reply)?;
        }
        let shared = &self.shared;
        busy |= self.parts.landed(|part| {
            // Nobody else has it: all of it is there.
            if let Some(answer) = Arc::into_inner(part.answer) {
                shared.calls.answered(answer);
            }
        })?;
        busy |= self.sends.landed(|sent| {
            if !matches!(sent, Cargo::Request(_)) {
                shared.inbox.replied(sent.bytes().len());
            }
        })?;
        Ok(busy)
    }

    /// A reply is there; large samples may follow it.
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
        if let Some(underway) = &mut self.underway {
            let done = underway.advance(&self.meet)?;
            if done {
                self.underway = None;
            }
            return Ok(done);
        }
        let Some(gathering) = self.gatherings.pop_front() else { return Ok(false) };
        self.underway = Some(Underway::begin(gathering, &self.meet)?);
        Ok(true)
    }

    fn has_left(&mut self) -> Result<bool> {
        let quiet = self.sends.is_empty() && self.receives.is_empty() && self.parts.is_empty();
        match &mut self.barrier {
            None if self.leave && quiet && !self.shared.calls.are_open() => {
                let mut barrier = Flights::default();
                self.talk.barrier(&mut barrier)?;
                self.barrier = Some(barrier);
                Ok(false)
            }
            None => Ok(false),
            Some(barrier) => {
                barrier.landed(|()| {})?;
                Ok(quiet && barrier.is_empty())
            }
        }
    }
}

/// Of the calls to one peer that are open at the same time, no two have the same: they are few, and
/// every MPI has so many tags.
fn bulk_tag(call: u64) -> i32 {
    (call & 0x7fff) as i32
}
