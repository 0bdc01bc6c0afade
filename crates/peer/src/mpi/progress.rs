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
use std::time::Duration;

use belady_data::sync::Arc;

use super::calls::End;
use super::comm::{Comm, Outgoing, Received, Tag};
use super::flights::{Flights, Result};
use super::gathering::{Gathering, Underway};
use super::serve::Queue;
use super::shared::Shared;
use super::wire;

/// Messages that are accepted in one round, so that others get their turn.
const ACCEPT: usize = 16;
/// Rounds without anything to do before it sleeps: some tens of microseconds, as long as an answer
/// takes on a fast link.
const EAGER: u32 = 64;
/// Sleeps while something is on its way: MPI moves it only when it is called.
const SHORT: Duration = Duration::from_micros(50);
/// Sleeps while nothing is: a request of another node waits so long for its answer, and a thousand
/// rounds a second take less than a hundredth of a core.
const LONG: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    /// For requests and their answers, and for leaving.
    talk: Comm,
    /// For exchanges. An exchange that some rank never comes to does not get in the way of leaving.
    meet: Comm,
    sends: Flights<Outgoing>,
    receives: Flights<Received>,
    gatherings: VecDeque<Gathering>,
    underway: Option<Underway>,
    leave: bool,
    barrier: Option<Flights<()>>,
    idle: u32,
}

impl Progress {
    pub fn new(shared: Arc<Shared>, talk: Comm, meet: Comm) -> Self {
        Self {
            shared,
            talk,
            meet,
            sends: Flights::default(),
            receives: Flights::default(),
            gatherings: VecDeque::new(),
            underway: None,
            leave: false,
            barrier: None,
            idle: 0,
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
            std::mem::forget((self.talk, self.meet));
        } else {
            // Before the end is told, since MPI itself may end right after.
            drop((self.talk, self.meet));
        }
        shared.ended(&outcome);
    }

    /// True at the end.
    fn round(&mut self) -> Result<bool> {
        let orders = self.shared.orders(self.patience());
        self.leave |= orders.leave;
        let mut busy = !orders.send.is_empty() || !orders.gather.is_empty();
        self.gatherings.extend(orders.gather);
        for message in orders.send {
            self.talk.send(message, &mut self.sends)?;
        }
        busy |= self.accept()?;
        busy |= self.deliver()?;
        busy |= self.gather()?;
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
        self.has_left()
    }

    /// How long to wait for orders.
    fn patience(&self) -> Duration {
        if self.idle < EAGER {
            if self.idle > 0 {
                std::thread::yield_now();
            }
            return Duration::ZERO;
        }
        let under_way = !self.sends.is_empty()
            || !self.receives.is_empty()
            || self.underway.is_some()
            || self.barrier.is_some()
            || self.shared.calls.are_open();
        if under_way { SHORT } else { LONG }
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

    /// Brings what has come to where it belongs, and lets go what has gone.
    fn deliver(&mut self) -> Result<bool> {
        let shared = &self.shared;
        let received = self.receives.landed(|received| {
            if received.tag == Tag::Ask as i32 {
                shared.inbox.arrived(Queue::Asks, received);
            } else if received.tag == Tag::Push as i32 {
                shared.inbox.arrived(Queue::Pushes, received);
            } else if let Some(call) = wire::call(&received.message) {
                shared.calls.answered(received.from, call, received.message);
            }
        })?;
        let sent = self.sends.landed(|sent| {
            if sent.tag == Tag::Reply {
                shared.inbox.replied(sent.length());
            }
        })?;
        Ok(received || sent)
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
        let quiet = self.sends.is_empty() && self.receives.is_empty();
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
