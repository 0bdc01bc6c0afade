//! The thread that carries out the planner's actions.
//!
//! It learns of opens in two ways: the launcher forwards the program's requests
//! ([`PrefetchEvents::opened`]), and the thread polls the board's counters. The launcher fetches
//! files ([`CopyFetcher`]) and reports the outcome ([`PrefetchEvents::fetched`]).

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::file_order::FileOrder;
use super::follower::Lookahead;
use super::launcher::{BoardView, CopyFetcher, FetchOutcome, PrefetchTally};
use super::lease::{FileUse, use_of};
use super::names::{NameId, NameTable};
use super::open_counters::OpenCounters;
use super::planner::{Action, FetchPlanner};

/// The polling interval while files are opened; a fast reader opens a few dozen in it.
const BUSY: Duration = Duration::from_millis(5);
/// The polling interval when none were opened for a while.
const IDLE: Duration = Duration::from_millis(20);
/// A poll takes at most 1 / `SHARE` of the time between two.
const SHARE: u32 = 50;
/// The most evicted copies that a poll checks for being open.
const MOST_CHECKS: usize = 64;

/// The order to follow.
#[derive(Clone, Debug)]
pub enum OrderSource {
    /// A given order.
    Follow(FileOrder),
    /// The order of the first epoch, or the one that an earlier run has learnt, while epochs begin
    /// that way.
    Learn(Option<FileOrder>),
}

/// The configuration of the prefetcher.
#[derive(Clone, Debug)]
pub struct PrefetcherConfig {
    pub order: OrderSource,
    pub lookahead: Lookahead,
    /// The most fetches in flight.
    pub fetches: usize,
    /// Bytes of the window, see [`super::window_bytes`].
    pub window: u64,
}

#[derive(Debug)]
enum PrefetchEvent {
    Opened(Box<[u8]>),
    Fetched(Box<[u8]>, FetchOutcome),
    Stop,
}

/// Sends events to the prefetcher.
#[derive(Clone, Debug)]
pub struct PrefetchEvents(Sender<PrefetchEvent>);

impl PrefetchEvents {
    /// Reports that the program opened a file without a record. The board counts opens of other
    /// files.
    pub fn opened(&self, name: &[u8]) {
        self.send(PrefetchEvent::Opened(name.into()));
    }

    /// Reports the outcome of a [`CopyFetcher::fetch`].
    pub fn fetched(&self, name: &[u8], outcome: FetchOutcome) {
        self.send(PrefetchEvent::Fetched(name.into(), outcome));
    }

    fn send(&self, event: PrefetchEvent) {
        // The thread has ended when the run is over.
        let _ = self.0.send(event);
    }
}

/// The result of prefetching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The order for the next run, if one was learnt.
    pub learnt: Option<FileOrder>,
    pub tally: PrefetchTally,
    /// Whether an order was in force at the end.
    pub was_following: bool,
}

/// The prefetching thread.
#[derive(Debug)]
pub struct OrderPrefetcher {
    events: PrefetchEvents,
    thread: JoinHandle<Summary>,
}

impl OrderPrefetcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        config: PrefetcherConfig,
        launcher: Arc<impl BoardView + CopyFetcher>,
    ) -> io::Result<Self> {
        let (sender, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("belady-order".to_owned())
            .spawn(move || Thread::new(config, launcher).run(&inbox))?;
        Ok(Self { events: PrefetchEvents(sender), thread })
    }

    /// Returns the sender of events.
    pub fn events(&self) -> &PrefetchEvents {
        &self.events
    }

    /// Stops the thread. Copies in the window stay where they are.
    pub fn stop(self) -> Summary {
        self.events.send(PrefetchEvent::Stop);
        self.thread.join().unwrap_or_default()
    }
}

struct Thread<L> {
    launcher: Arc<L>,
    names: NameTable,
    planner: FetchPlanner,
    counters: OpenCounters,
    polled: Instant,
    pause: Duration,
    /// Evicted copies that are still open.
    evicted: VecDeque<(NameId, OwnedFd)>,
}

impl<L: BoardView + CopyFetcher> Thread<L> {
    fn new(config: PrefetcherConfig, launcher: Arc<L>) -> Self {
        let PrefetcherConfig { order, lookahead, fetches, window } = config;
        let mut names = NameTable::default();
        let mut numbers = |order: FileOrder| -> Vec<NameId> {
            order.names.iter().map(|name| names.number(name)).collect()
        };
        let planner = match order {
            OrderSource::Follow(order) => {
                FetchPlanner::following(&numbers(order), lookahead, fetches, window)
            }
            OrderSource::Learn(earlier) => FetchPlanner::learning(
                &numbers(earlier.unwrap_or_default()),
                lookahead,
                fetches,
                window,
            ),
        };
        Self {
            launcher,
            names,
            planner,
            counters: OpenCounters::default(),
            polled: Instant::now(),
            pause: Duration::ZERO,
            evicted: VecDeque::new(),
        }
    }

    fn run(mut self, inbox: &Receiver<PrefetchEvent>) -> Summary {
        loop {
            self.act();
            let rest = self.pause.saturating_sub(self.polled.elapsed());
            match inbox.recv_timeout(rest) {
                Ok(PrefetchEvent::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    return self.summary();
                }
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            for event in inbox.try_iter() {
                if matches!(event, PrefetchEvent::Stop) {
                    return self.summary();
                }
                self.handle(event);
            }
            if self.polled.elapsed() >= self.pause {
                self.poll();
            }
        }
    }

    fn handle(&mut self, event: PrefetchEvent) {
        match event {
            PrefetchEvent::Opened(name) => self.planner.opened(vec![self.names.number(&name)]),
            PrefetchEvent::Fetched(name, outcome) => {
                self.planner.fetched(self.names.number(&name), outcome);
            }
            PrefetchEvent::Stop => {}
        }
    }

    fn poll(&mut self) {
        let began = Instant::now();
        let Self { launcher, names, counters, .. } = self;
        let mut opened = vec![];
        let was_busy = counters.poll(&**launcher, |record, times| {
            if let Some(name) = launcher.name(record) {
                opened.extend(std::iter::repeat_n(names.number(&name), times as usize));
            }
        });
        self.planner.opened(opened);
        self.check_evicted();
        self.polled = Instant::now();
        let soonest = if was_busy { BUSY } else { (self.pause * 2).clamp(BUSY, IDLE) };
        self.pause = soonest.max(self.polled.duration_since(began) * SHARE);
    }

    fn act(&mut self) {
        loop {
            let Self { launcher, names, planner, .. } = self;
            let actions = planner.plan(|name| launcher.copy_state(names.text(name)));
            let mut evicts = false;
            for action in actions {
                match action {
                    Action::Fetch(name, kind) => self.launcher.fetch(self.names.text(name), kind),
                    Action::Evict(name) => {
                        self.evict(name);
                        evicts = true;
                    }
                }
            }
            if !evicts {
                return;
            }
        }
    }

    fn evict(&mut self, name: NameId) {
        match self.launcher.evict(self.names.text(name)) {
            Some(copy) if use_of(&copy) == FileUse::Open => self.evicted.push_back((name, copy)),
            // Without leases the copy counts as closed.
            _ => self.release(name),
        }
    }

    fn release(&mut self, name: NameId) {
        let bytes = self.planner.released(name);
        self.launcher.release(self.names.text(name), bytes);
    }

    fn check_evicted(&mut self) {
        for _ in 0..self.evicted.len().min(MOST_CHECKS) {
            let Some((name, copy)) = self.evicted.pop_front() else { return };
            if use_of(&copy) == FileUse::Open {
                self.evicted.push_back((name, copy));
            } else {
                self.release(name);
            }
        }
    }

    fn summary(mut self) -> Summary {
        if self.planner.learnt().is_some() {
            // Includes copies that were opened since the last poll.
            self.poll();
        }
        let order = |names: &[NameId]| FileOrder {
            names: names.iter().map(|&name| self.names.text(name).into()).collect(),
        };
        Summary {
            learnt: self.planner.learnt().filter(|learnt| !learnt.is_empty()).map(order),
            tally: self.planner.tally,
            was_following: self.planner.is_following(),
        }
    }
}

#[cfg(test)]
mod tests;
