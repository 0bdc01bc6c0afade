//! The thread that does what the planner says.
//!
//! It hears of opens in two ways: the launcher passes on what the program asks for ([`Notes::opened`]), and
//! it looks at the board's counters now and then. Fetching is the launcher's ([`Hands`]), which tells
//! what came of it ([`Notes::fetched`]).

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::follower::Ahead;
use super::lease::{Use, use_of};
use super::list::Order;
use super::names::{Name, Names};
use super::planner::{Action, Planner};
use super::watch::Watch;
use super::world::{Hands, Outcome, Sight, Tally};

/// The counters are looked at this often while files are opened; a fast reader opens a few dozen.
const BUSY: Duration = Duration::from_millis(5);
/// And this often when none were for a while.
const IDLE: Duration = Duration::from_millis(20);
/// A look may take this part of the time between two.
const SHARE: u32 = 50;
/// So many files that were let go are asked about at once whether somebody has them open.
const ASKED: usize = 64;

/// Which order is followed.
#[derive(Clone, Debug)]
pub enum Plan {
    /// This one.
    Follow(Order),
    /// That of the first epoch, or the one that an earlier run has learnt, if epochs begin that way.
    Learn(Option<Order>),
}

#[derive(Clone, Debug)]
pub struct PrefetcherConfig {
    pub plan: Plan,
    pub ahead: Ahead,
    /// Fetches at a time.
    pub fetches: usize,
    /// Bytes of the window, see [`super::window_room`].
    pub room: u64,
}

#[derive(Debug)]
enum Note {
    Opened(Box<[u8]>),
    Fetched(Box<[u8]>, Outcome),
    Stop,
}

/// Where the prefetcher is told what happens.
#[derive(Clone, Debug)]
pub struct Notes(Sender<Note>);

impl Notes {
    /// The program opened this file and there was no record of it on the board. Opens of others are on the
    /// board.
    pub fn opened(&self, name: &[u8]) {
        self.send(Note::Opened(name.into()));
    }

    /// What came of a fetch that [`Hands::fetch`] asked for.
    pub fn fetched(&self, name: &[u8], outcome: Outcome) {
        self.send(Note::Fetched(name.into(), outcome));
    }

    fn send(&self, note: Note) {
        // Nobody listens any more when the run is over.
        let _ = self.0.send(note);
    }
}

/// What came of it all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// For the next run, if something was learnt.
    pub learnt: Option<Order>,
    pub tally: Tally,
    /// Whether an order was in force at the end.
    pub was_following: bool,
}

#[derive(Debug)]
pub struct Prefetcher {
    notes: Notes,
    thread: JoinHandle<Summary>,
}

impl Prefetcher {
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(config: PrefetcherConfig, world: Arc<impl Sight + Hands>) -> io::Result<Self> {
        let (sender, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("belady-order".to_owned())
            .spawn(move || Thread::new(config, world).run(&inbox))?;
        Ok(Self { notes: Notes(sender), thread })
    }

    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// No fetch is begun any more. Copies in the window stay where they are.
    pub fn stop(self) -> Summary {
        self.notes.send(Note::Stop);
        self.thread.join().unwrap_or_default()
    }
}

struct Thread<W> {
    world: Arc<W>,
    names: Names,
    planner: Planner,
    watch: Watch,
    looked: Instant,
    pause: Duration,
    /// Let go, but perhaps still open somewhere.
    leaving: VecDeque<(Name, OwnedFd)>,
}

impl<W: Sight + Hands> Thread<W> {
    fn new(config: PrefetcherConfig, world: Arc<W>) -> Self {
        let PrefetcherConfig { plan, ahead, fetches, room } = config;
        let mut names = Names::default();
        let mut numbers = |order: Order| -> Vec<Name> {
            order.names.iter().map(|name| names.number(name)).collect()
        };
        let planner = match plan {
            Plan::Follow(order) => Planner::following(&numbers(order), ahead, fetches, room),
            Plan::Learn(earlier) => {
                Planner::learning(&numbers(earlier.unwrap_or_default()), ahead, fetches, room)
            }
        };
        let watch = Watch::default();
        Self {
            world,
            names,
            planner,
            watch,
            looked: Instant::now(),
            pause: Duration::ZERO,
            leaving: VecDeque::new(),
        }
    }

    fn run(mut self, inbox: &Receiver<Note>) -> Summary {
        loop {
            self.act();
            let rest = self.pause.saturating_sub(self.looked.elapsed());
            match inbox.recv_timeout(rest) {
                Ok(Note::Stop) | Err(RecvTimeoutError::Disconnected) => return self.summary(),
                Ok(note) => self.hear(note),
                Err(RecvTimeoutError::Timeout) => {}
            }
            for note in inbox.try_iter() {
                if matches!(note, Note::Stop) {
                    return self.summary();
                }
                self.hear(note);
            }
            if self.looked.elapsed() >= self.pause {
                self.look();
            }
        }
    }

    fn hear(&mut self, note: Note) {
        match note {
            Note::Opened(name) => self.planner.opened(vec![self.names.number(&name)]),
            Note::Fetched(name, outcome) => self.planner.fetched(self.names.number(&name), outcome),
            Note::Stop => {}
        }
    }

    fn look(&mut self) {
        let began = Instant::now();
        let Self { world, names, watch, .. } = self;
        let mut opened = vec![];
        let was_busy = watch.look(&**world, |record, times| {
            if let Some(name) = world.name(record) {
                opened.extend(std::iter::repeat_n(names.number(&name), times as usize));
            }
        });
        self.planner.opened(opened);
        self.ask_who_left();
        self.looked = Instant::now();
        let soonest = if was_busy { BUSY } else { (self.pause * 2).clamp(BUSY, IDLE) };
        self.pause = soonest.max(self.looked.duration_since(began) * SHARE);
    }

    fn act(&mut self) {
        loop {
            let Self { world, names, planner, .. } = self;
            let actions = planner.plan(|name| world.standing(names.text(name)));
            let mut is_let_go = false;
            for action in actions {
                match action {
                    Action::Fetch(name, wish) => self.world.fetch(self.names.text(name), wish),
                    Action::LetGo(name) => {
                        self.let_go(name);
                        is_let_go = true;
                    }
                }
            }
            if !is_let_go {
                return;
            }
        }
    }

    fn let_go(&mut self, name: Name) {
        match self.world.let_go(self.names.text(name)) {
            Some(copy) if use_of(&copy) == Use::Open => self.leaving.push_back((name, copy)),
            // Where the file system does not tell, it counts as free.
            _ => self.free(name),
        }
    }

    fn free(&mut self, name: Name) {
        let bytes = self.planner.gone(name);
        self.world.freed(self.names.text(name), bytes);
    }

    fn ask_who_left(&mut self) {
        for _ in 0..self.leaving.len().min(ASKED) {
            let Some((name, copy)) = self.leaving.pop_front() else { return };
            if use_of(&copy) == Use::Open {
                self.leaving.push_back((name, copy));
            } else {
                self.free(name);
            }
        }
    }

    fn summary(mut self) -> Summary {
        if self.planner.learnt().is_some() {
            // Copies that were opened since the last look are learnt too.
            self.look();
        }
        let order = |names: &[Name]| Order {
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
#[path = "prefetcher_tests.rs"]
mod tests;
