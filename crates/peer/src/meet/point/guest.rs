//! The side of those who come to a meeting point.
//!
//! A thread holds the connection to rank 0. When that breaks, it comes again and gives again all that
//! this process ever gave: a rank 0 that was started again then knows as much as the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use belady_data::sync::{Arc, Condvar, Mutex, MutexGuard, lock};

use super::frames::{Connection, Frames};
use super::table::trace_of;
use super::way::{Trouble, visit};
use super::wire::{Hello, LONGEST_VALUE, Message, Who, to_guest};
use super::{HANDSHAKE, Job, NAME_PATIENCE, WRITING, tell_missing};
use crate::meet::telling::Telling;
use crate::meet::{Meet, MeetError, Place, Watcher, World};
use crate::{Key, NodeId};

/// Between attempts to reach rank 0; longer each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Says that it is there when it has said nothing for so long.
const BEAT: Duration = Duration::from_secs(2);
/// Traces that are told at once.
const TRACES: usize = LONGEST_VALUE / 8;

/// How to find rank 0.
pub struct Directions {
    /// Where to, and by which key: asked again for every attempt.
    pub ask: Box<dyn Fn() -> Result<(Place, Key), Trouble> + Send + Sync>,
    /// They may be out of date, so that somebody else is there.
    pub may_change: bool,
    /// What to call the place as long as nobody was there.
    pub name: String,
}

/// One who has come to a meeting point, or is on the way.
#[derive(Debug)]
pub struct Guest {
    shared: Arc<Shared>,
}

struct Shared {
    job: Job,
    directions: Directions,
    hello: Hello,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What this process gave, and whether it still waits for what the others give.
    given: BTreeMap<String, (Vec<u8>, bool)>,
    /// Exchanges that this process needs no more, until rank 0 says that nobody does.
    released: BTreeSet<String>,
    /// What rank 0 told of exchanges.
    books: BTreeMap<String, Vec<Option<Vec<u8>>>>,
    /// Whom rank 0 misses at exchanges, as far as it was asked.
    missing: BTreeMap<String, Vec<NodeId>>,
    /// Exchanges that rank 0 has given up, and whom it missed.
    given_up: BTreeMap<String, Vec<NodeId>>,
    /// Traces of exchanges that all ranks have released.
    over: BTreeSet<u64>,
    watchers: Vec<(String, Watcher)>,
    /// While there is a connection.
    stream: Option<Arc<Connection>>,
    /// The place and key that led there.
    came_by: Option<(Place, Key)>,
    interface: Option<IpAddr>,
    trouble: Option<Trouble>,
    /// The host's name has been unknown since.
    unknown_since: Option<Instant>,
    is_over: Option<MeetError>,
    is_closed: bool,
}

impl Guest {
    pub fn come(directions: Directions, job: Job) -> Result<Self, MeetError> {
        let World { rank, size } = job.world;
        let who = Who::Rank { rank, life: super::new_life()? };
        let hello = Hello { job: job.name.clone(), size, who };
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { job, directions, hello, state, changed });
        let running = shared.clone();
        std::thread::Builder::new()
            .name("belady-meet".into())
            .spawn(move || running.run())
            .map_err(|error| MeetError::Other(format!("cannot start a thread: {error}")))?;
        Ok(Self { shared })
    }
}

impl Shared {
    fn run(&self) {
        let mut pause = FIRST_PAUSE;
        let mut was_there = false;
        loop {
            match self.arrive() {
                Ok(mut frames) => {
                    (was_there, pause) = (true, FIRST_PAUSE);
                    let why = self.stay(&mut frames);
                    let mut state = lock(&self.state);
                    state.stream = None;
                    self.changed.notify_all();
                    state.trouble =
                        Some(Trouble::ForNow(format!("the connection was lost: {why}")));
                }
                Err(trouble) => self.note(trouble, was_there),
            }
            let state = lock(&self.state);
            let goes_on = |state: &mut State| !state.is_closed && state.is_over.is_none();
            let waited = self.changed.wait_timeout_while(state, pause, goes_on);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if !goes_on(&mut state) {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Remembers what went wrong. Who has been there before comes again whatever happens.
    fn note(&self, trouble: Trouble, was_there: bool) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let since = match trouble {
            Trouble::NoSuchHost(_) => Some(state.unknown_since.unwrap_or(now)),
            _ => None,
        };
        state.unknown_since = since;
        let in_vain = since.is_some_and(|since| now - since >= NAME_PATIENCE);
        let is_over = match trouble {
            Trouble::ForNow(_) => false,
            Trouble::NoSuchHost(_) => in_vain,
            Trouble::NotOurs(_) => !self.directions.may_change,
            Trouble::ForGood(_) => true,
        };
        if is_over && !was_there {
            state.is_over = Some(MeetError::Other(trouble.sentence().to_owned()));
            self.changed.notify_all();
        }
        state.trouble = Some(trouble);
    }

    /// Connects, and gives all that was given so far.
    fn arrive(&self) -> Result<Frames, Trouble> {
        let (place, key) = (self.directions.ask)()?;
        let mut frames = visit(&place, &key, &self.hello)?;
        frames.set_longest(to_guest(self.job.world.size));
        let lost = |error: io::Error| Trouble::ForNow(error.to_string());
        let stream = frames.stream().clone();
        stream.set_write_timeout(Some(WRITING)).map_err(lost)?;
        let mut state = lock(&self.state);
        let traces: Vec<u64> = state.over.iter().copied().collect();
        for traces in traces.chunks(TRACES) {
            let were_over = Message::WereOver { traces: traces.to_vec() };
            (&**stream).write_all(&were_over.to_frame()).map_err(lost)?;
        }
        for (name, (value, waits)) in &state.given {
            let (name, value) = (name.clone(), value.clone());
            let give = Message::Give { name, waits: *waits, value };
            (&**stream).write_all(&give.to_frame()).map_err(lost)?;
        }
        for name in &state.released {
            let release = Message::Release { name: name.clone() };
            (&**stream).write_all(&release.to_frame()).map_err(lost)?;
        }
        for (name, _) in &state.watchers {
            let watch = Message::Watch { name: name.clone() };
            (&**stream).write_all(&watch.to_frame()).map_err(lost)?;
        }
        state.interface = stream.local_addr().ok().map(|it| it.ip());
        state.came_by = Some((place, key));
        (state.trouble, state.unknown_since) = (None, None);
        if state.is_closed {
            let _ = stream.shutdown(Shutdown::Both);
        }
        state.stream = Some(stream);
        self.changed.notify_all();
        Ok(frames)
    }

    /// Hears what rank 0 says until the connection breaks; says why it did.
    fn stay(&self, frames: &mut Frames) -> String {
        let mut said = Instant::now();
        loop {
            match frames.next(BEAT.min(self.job.silence)) {
                Ok(Some(message)) => self.hear(message),
                Ok(None) if frames.silent_for() >= self.job.silence => {
                    return "rank 0 is silent".to_owned();
                }
                Ok(None) => {}
                Err(error) => return error.to_string(),
            }
            if said.elapsed() >= BEAT {
                said = Instant::now();
                lock(&self.state).say(&Message::Here);
            }
        }
    }

    fn hear(&self, message: Message) {
        let (name, values) = match message {
            Message::Book { name, values } => {
                lock(&self.state).books.insert(name.clone(), values.clone());
                self.changed.notify_all();
                (name, (0..).zip(values).filter_map(|(rank, it)| Some((rank, it?))).collect())
            }
            Message::Changed { name, rank, value } => (name, vec![(rank, value)]),
            Message::GivenUp { name, missing } => {
                lock(&self.state).given_up.insert(name, missing);
                return self.changed.notify_all();
            }
            Message::Missing { name, missing } => {
                lock(&self.state).missing.insert(name, missing);
                return self.changed.notify_all();
            }
            Message::Over { name } => {
                let mut state = lock(&self.state);
                state.given.remove(&name);
                state.released.remove(&name);
                state.over.insert(trace_of(&name));
                return self.changed.notify_all();
            }
            _ => return,
        };
        let watchers: Vec<Watcher> = {
            let state = lock(&self.state);
            let mine = state.watchers.iter().filter(|(watched, _)| *watched == name);
            mine.map(|(_, watcher)| watcher.clone()).collect()
        };
        for watcher in watchers {
            for (rank, value) in &values {
                if *rank != self.job.world.rank {
                    watcher(*rank, value);
                }
            }
        }
    }

    /// Waits until something is so, or the time is over, or there is no sense in waiting.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Instant,
        is_so: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let left = until.saturating_duration_since(Instant::now());
        let goes_on = |state: &mut State| state.is_over.is_none() && !is_so(state);
        let waited = self.changed.wait_timeout_while(state, left, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until an exchange has come about or was given up, and says from time to time whom it waits for.
    fn wait_for<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        name: &str,
        is_decided: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let began = Instant::now();
        let (until, mut telling) = (began + self.job.limit, Telling::new(began));
        let is_settled = |state: &State| is_decided(state) || state.is_over.is_some();
        loop {
            let now = Instant::now();
            state = self.wait(state, now + telling.pause(now, until), &is_decided);
            if is_settled(&state) {
                return state;
            }
            let now = Instant::now();
            // Who is missing, only rank 0 knows.
            state.missing.remove(name);
            state.say(&Message::AskMissing { name: name.to_owned() });
            state = self.wait(state, now + HANDSHAKE, |state| {
                state.stream.is_none() || is_decided(state) || state.missing.contains_key(name)
            });
            if is_settled(&state) || now >= until {
                return state;
            }
            if let Some(waited) = telling.is_due(now) {
                let (missing, place) = self.absent(&state, name);
                tell_missing(&missing, self.job.world.size, name, &place, waited);
            }
        }
    }

    /// Who has not come to an exchange, and where to.
    fn absent(&self, state: &State, name: &str) -> (Vec<NodeId>, String) {
        let place = state.came_by.as_ref().map(|(place, _)| place.to_string());
        let place = place.unwrap_or_else(|| self.directions.name.clone());
        let missing = state.given_up.get(name).or_else(|| state.missing.get(name));
        match (missing, &state.trouble) {
            (Some(missing), _) => (missing.clone(), place),
            (None, Some(trouble)) => (vec![0], format!("{place} ({})", trouble.sentence())),
            (None, None) => (vec![0], place),
        }
    }

    /// Why an exchange has not come about in time.
    fn in_vain(&self, state: &mut State, name: &str) -> MeetError {
        let (missing, place) = self.absent(state, name);
        state.given_up.remove(name);
        state.missing.remove(name);
        let Job { world, limit, .. } = self.job;
        MeetError::Missing { missing, size: world.size, what: name.to_owned(), place, limit }
    }
}

impl State {
    /// Says something if there is a connection. If that breaks, all is said again on the next.
    fn say(&mut self, message: &Message) {
        if let Some(stream) = &self.stream
            && (&***stream).write_all(&message.to_frame()).is_err()
        {
            let _ = stream.shutdown(Shutdown::Both);
            self.stream = None;
        }
    }

    /// What all gave to an exchange, if all have, and this rank what it gave last.
    fn complete(&self, name: &str, rank: NodeId) -> Option<Vec<Vec<u8>>> {
        let values = self.books.get(name)?;
        let (mine, _) = self.given.get(name)?;
        if values.get(rank as usize)?.as_ref() != Some(mine) {
            return None;
        }
        values.iter().cloned().collect()
    }
}

impl Meet for Guest {
    fn world(&self) -> World {
        self.shared.job.world
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        super::check(name, mine)?;
        let shared = &*self.shared;
        let rank = shared.job.world.rank;
        let mut state = lock(&shared.state);
        state.books.remove(name);
        state.given_up.remove(name);
        state.given.insert(name.to_owned(), (mine.to_vec(), true));
        state.say(&Message::Give { name: name.to_owned(), waits: true, value: mine.to_vec() });
        let is_over = |state: &State| state.over.contains(&trace_of(name));
        let is_decided = |state: &State| {
            state.complete(name, rank).is_some()
                || state.given_up.contains_key(name)
                || is_over(state)
        };
        state = shared.wait_for(state, name, is_decided);
        if let Some(all) = state.complete(name, rank) {
            state.books.remove(name);
            state.missing.remove(name);
            if let Some((_, waits)) = state.given.get_mut(name) {
                *waits = false;
            }
            return Ok(all);
        }
        if is_over(&state) {
            state.given.remove(name);
            return Err(MeetError::Over(name.to_owned()));
        }
        Err(state.is_over.clone().unwrap_or_else(|| shared.in_vain(&mut state, name)))
    }

    fn post(&self, name: &str, word: &[u8]) {
        if super::check(name, word).is_err() {
            return;
        }
        let mut state = lock(&self.shared.state);
        state.given.insert(name.to_owned(), (word.to_vec(), false));
        state.say(&Message::Give { name: name.to_owned(), waits: false, value: word.to_vec() });
    }

    fn release(&self, name: &str) {
        let mut state = lock(&self.shared.state);
        state.released.insert(name.to_owned());
        state.say(&Message::Release { name: name.to_owned() });
    }

    fn key(&self) -> Option<Key> {
        lock(&self.shared.state).came_by.as_ref().map(|(_, key)| key.clone())
    }

    fn interface(&self) -> Option<IpAddr> {
        lock(&self.shared.state).interface
    }

    fn watch(&self, name: &str, changed: Watcher) {
        let mut state = lock(&self.shared.state);
        state.watchers.push((name.to_owned(), changed));
        state.say(&Message::Watch { name: name.to_owned() });
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.is_closed = true;
        if let Some(stream) = state.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Shared")
            .field("world", &self.job.world)
            .field("is_there", &state.stream.is_some())
            .finish_non_exhaustive()
    }
}
