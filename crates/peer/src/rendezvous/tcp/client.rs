//! The client's side of a rendezvous, on every rank but 0.
//!
//! A thread holds the connection to the server. When the connection breaks, the thread connects
//! again and gives again all that this process ever gave, so a restarted server knows as much as
//! the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, Condvar, Mutex, MutexGuard, lock};

use super::connect::{ConnectFailure, connect_to};
use super::frames::{Connection, Frames};
use super::messages::{ClientKind, LONGEST_VALUE, RendezvousHello, RendezvousMessage, to_client};
use super::table::trace_of;
use super::{HANDSHAKE, NAME_PATIENCE, RendezvousJob, WRITING, tell_missing};
use crate::rendezvous::wait_messages::WaitMessages;
use crate::rendezvous::{JobWorld, Rendezvous, RendezvousAddress, RendezvousError, Watcher};
use crate::{JobKey, NodeId};

/// Pauses between attempts to reach the server; they double.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The interval of heartbeats.
const BEAT: Duration = Duration::from_secs(2);
/// Traces in one message.
const TRACES: usize = LONGEST_VALUE / 16;

/// How to find the server.
pub struct ServerLocator {
    /// Returns the server's address and the key; called for every attempt.
    pub locate: Box<dyn Fn() -> Result<(RendezvousAddress, JobKey), ConnectFailure> + Send + Sync>,
    /// The address may be out of date, so that another program listens there.
    pub may_change: bool,
    /// The name of the rendezvous in messages, before the first connection.
    pub name: String,
}

/// The client's side of a rendezvous.
#[derive(Debug)]
pub struct RendezvousClient {
    shared: Arc<ClientShared>,
}

struct ClientShared {
    job: RendezvousJob,
    locator: ServerLocator,
    hello: RendezvousHello,
    state: Mutex<ClientState>,
    changed: Condvar,
}

#[derive(Default)]
struct ClientState {
    /// What this process gave, and whether it still waits for the other ranks.
    given: BTreeMap<String, (Vec<u8>, bool)>,
    /// Exchanges that this process has released, until the server says that all ranks have.
    released: BTreeSet<String>,
    /// Values of exchanges, from the server.
    values: BTreeMap<String, Vec<Option<Vec<u8>>>>,
    /// Ranks that the server misses at exchanges, as far as it was asked.
    missing: BTreeMap<String, Vec<NodeId>>,
    /// Exchanges that the server has given up, and the ranks that it missed.
    given_up: BTreeMap<String, Vec<NodeId>>,
    /// Traces of exchanges that all ranks have released.
    over: BTreeSet<u64>,
    watchers: Vec<(String, Watcher)>,
    /// The connection, while there is one.
    stream: Option<Arc<Connection>>,
    /// The address and key of the last connection.
    connected_to: Option<(RendezvousAddress, JobKey)>,
    interface: Option<IpAddr>,
    failure: Option<ConnectFailure>,
    /// Since when the host's name cannot be resolved.
    unknown_since: Option<Instant>,
    is_over: Option<RendezvousError>,
    is_closed: bool,
}

impl RendezvousClient {
    pub fn start(locator: ServerLocator, job: RendezvousJob) -> Result<Self, RendezvousError> {
        let JobWorld { rank, size } = job.world;
        let who = ClientKind::Rank { rank, life: super::new_life()? };
        let hello = RendezvousHello { job: job.name.clone(), size, who };
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(ClientShared { job, locator, hello, state, changed });
        let running = shared.clone();
        std::thread::Builder::new()
            .name("belady-rdzv".into())
            .spawn(move || running.run())
            .map_err(|error| RendezvousError::Other(format!("cannot start a thread: {error}")))?;
        Ok(Self { shared })
    }
}

impl ClientShared {
    fn run(&self) {
        let mut pause = FIRST_PAUSE;
        let mut was_there = false;
        loop {
            match self.connect() {
                Ok(mut frames) => {
                    (was_there, pause) = (true, FIRST_PAUSE);
                    let why = self.listen(&mut frames);
                    let mut state = lock(&self.state);
                    state.stream = None;
                    self.changed.notify_all();
                    state.failure =
                        Some(ConnectFailure::Temporary(format!("the connection was lost: {why}")));
                    if !self.job.may_restart {
                        let (ended, what) = (vec![0], "the next values".to_owned());
                        state.is_over = Some(RendezvousError::Ended { ended, what });
                    }
                }
                Err(failure) => self.record(failure, was_there),
            }
            let state = lock(&self.state);
            let goes_on = |state: &mut ClientState| !state.is_closed && state.is_over.is_none();
            let waited = self.changed.wait_timeout_while(state, pause, goes_on);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if !goes_on(&mut state) {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Records a failure. A client that was connected before keeps trying, whatever happens.
    fn record(&self, failure: ConnectFailure, was_there: bool) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let since = match failure {
            ConnectFailure::UnknownHost(_) => Some(state.unknown_since.unwrap_or(now)),
            _ => None,
        };
        state.unknown_since = since;
        let timed_out = since.is_some_and(|since| now - since >= NAME_PATIENCE);
        let is_over = match failure {
            ConnectFailure::Temporary(_) => false,
            ConnectFailure::UnknownHost(_) => timed_out,
            ConnectFailure::WrongServer(_) => !self.locator.may_change,
            ConnectFailure::Permanent(_) => true,
        };
        if is_over && !was_there {
            state.is_over = Some(RendezvousError::Other(failure.sentence().to_owned()));
            self.changed.notify_all();
        }
        state.failure = Some(failure);
    }

    /// Connects, and gives again all that this process gave.
    fn connect(&self) -> Result<Frames, ConnectFailure> {
        let (place, key) = (self.locator.locate)()?;
        let mut frames = connect_to(&place, &key, &self.hello)?;
        frames.set_longest(to_client(self.job.world.size));
        let lost = |error: io::Error| ConnectFailure::Temporary(error.to_string());
        let stream = frames.stream().clone();
        stream.set_write_timeout(Some(WRITING)).map_err(lost)?;
        let mut state = lock(&self.state);
        let traces: Vec<u64> = state.over.iter().copied().collect();
        for traces in traces.chunks(TRACES) {
            let were_over = RendezvousMessage::WereOver { traces: traces.to_vec() };
            (&**stream).write_all(&were_over.to_frame()).map_err(lost)?;
        }
        for (name, (value, waits)) in &state.given {
            let (name, value) = (name.clone(), value.clone());
            let give = RendezvousMessage::Give { name, waits: *waits, value };
            (&**stream).write_all(&give.to_frame()).map_err(lost)?;
        }
        for name in &state.released {
            let release = RendezvousMessage::Release { name: name.clone() };
            (&**stream).write_all(&release.to_frame()).map_err(lost)?;
        }
        for (name, _) in &state.watchers {
            let watch = RendezvousMessage::Watch { name: name.clone() };
            (&**stream).write_all(&watch.to_frame()).map_err(lost)?;
        }
        state.interface = stream.local_addr().ok().map(|it| it.ip());
        state.connected_to = Some((place, key));
        (state.failure, state.unknown_since) = (None, None);
        if state.is_closed {
            let _ = stream.shutdown(Shutdown::Both);
        }
        state.stream = Some(stream);
        self.changed.notify_all();
        Ok(frames)
    }

    /// Handles the server's messages until the connection breaks; returns why it did.
    fn listen(&self, frames: &mut Frames) -> String {
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
                lock(&self.state).say(&RendezvousMessage::Here);
            }
        }
    }

    fn hear(&self, message: RendezvousMessage) {
        let (name, values) = match message {
            RendezvousMessage::Values { name, values } => {
                lock(&self.state).values.insert(name.clone(), values.clone());
                self.changed.notify_all();
                (name, (0..).zip(values).filter_map(|(rank, it)| Some((rank, it?))).collect())
            }
            RendezvousMessage::Changed { name, rank, value } => (name, vec![(rank, value)]),
            RendezvousMessage::GivenUp { name, missing } => {
                lock(&self.state).given_up.insert(name, missing);
                return self.changed.notify_all();
            }
            RendezvousMessage::Missing { name, missing } => {
                lock(&self.state).missing.insert(name, missing);
                return self.changed.notify_all();
            }
            RendezvousMessage::Over { name } => {
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

    /// Waits until a condition holds, the time is over, or the rendezvous has failed.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, ClientState>,
        until: Instant,
        is_so: impl Fn(&ClientState) -> bool,
    ) -> MutexGuard<'a, ClientState> {
        let left = until.saturating_duration_since(Instant::now());
        let goes_on = |state: &mut ClientState| state.is_over.is_none() && !is_so(state);
        let waited = self.changed.wait_timeout_while(state, left, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until an exchange is complete or given up, and logs from time to time which ranks are
    /// missing.
    fn wait_for<'a>(
        &self,
        mut state: MutexGuard<'a, ClientState>,
        name: &str,
        is_decided: impl Fn(&ClientState) -> bool,
    ) -> MutexGuard<'a, ClientState> {
        let began = Instant::now();
        let (until, mut wait_messages) = (began + self.job.limit, WaitMessages::new(began));
        let is_settled = |state: &ClientState| is_decided(state) || state.is_over.is_some();
        loop {
            let now = Instant::now();
            state = self.wait(state, now + wait_messages.pause(now, until), &is_decided);
            if is_settled(&state) {
                return state;
            }
            let now = Instant::now();
            // Only the server knows which ranks are missing.
            state.missing.remove(name);
            state.say(&RendezvousMessage::AskMissing { name: name.to_owned() });
            state = self.wait(state, now + HANDSHAKE, |state| {
                state.stream.is_none() || is_decided(state) || state.missing.contains_key(name)
            });
            if is_settled(&state) || now >= until {
                return state;
            }
            if let Some(waited) = wait_messages.is_due(now) {
                let (missing, place) = self.missing_ranks(&state, name);
                tell_missing(&missing, self.job.world.size, name, &place, waited);
            }
        }
    }

    /// Returns the ranks that are missing at an exchange, and where they are missing.
    fn missing_ranks(&self, state: &ClientState, name: &str) -> (Vec<NodeId>, String) {
        let place = state.connected_to.as_ref().map(|(place, _)| place.to_string());
        let place = place.unwrap_or_else(|| self.locator.name.clone());
        let missing = state.given_up.get(name).or_else(|| state.missing.get(name));
        match (missing, &state.failure) {
            (Some(missing), _) => (missing.clone(), place),
            (None, Some(failure)) => (vec![0], format!("{place} ({})", failure.sentence())),
            (None, None) => (vec![0], place),
        }
    }

    /// Returns the error of an exchange that did not complete in time.
    fn timed_out(&self, state: &mut ClientState, name: &str) -> RendezvousError {
        let (missing, place) = self.missing_ranks(state, name);
        let is_given_up = state.given_up.remove(name).is_some();
        state.missing.remove(name);
        let RendezvousJob { world, limit, may_restart, .. } = self.job;
        if is_given_up && !may_restart {
            return RendezvousError::Ended { ended: missing, what: name.to_owned() };
        }
        RendezvousError::Missing { missing, size: world.size, what: name.to_owned(), place, limit }
    }
}

impl ClientState {
    /// Sends a message if there is a connection. After a reconnect everything is sent again.
    fn say(&mut self, message: &RendezvousMessage) {
        if let Some(stream) = &self.stream
            && (&***stream).write_all(&message.to_frame()).is_err()
        {
            let _ = stream.shutdown(Shutdown::Both);
            self.stream = None;
        }
    }

    /// Returns the values of an exchange if it is complete and includes this rank's last value.
    fn complete(&self, name: &str, rank: NodeId) -> Option<Vec<Vec<u8>>> {
        let values = self.values.get(name)?;
        let (mine, _) = self.given.get(name)?;
        if values.get(rank as usize)?.as_ref() != Some(mine) {
            return None;
        }
        values.iter().cloned().collect()
    }
}

impl Rendezvous for RendezvousClient {
    fn world(&self) -> JobWorld {
        self.shared.job.world
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        super::check(name, mine)?;
        let shared = &*self.shared;
        let rank = shared.job.world.rank;
        let mut state = lock(&shared.state);
        state.values.remove(name);
        state.given_up.remove(name);
        state.given.insert(name.to_owned(), (mine.to_vec(), true));
        state.say(&RendezvousMessage::Give {
            name: name.to_owned(),
            waits: true,
            value: mine.to_vec(),
        });
        let is_over = |state: &ClientState| state.over.contains(&trace_of(name));
        let is_decided = |state: &ClientState| {
            state.complete(name, rank).is_some()
                || state.given_up.contains_key(name)
                || is_over(state)
        };
        state = shared.wait_for(state, name, is_decided);
        if let Some(all) = state.complete(name, rank) {
            state.values.remove(name);
            state.missing.remove(name);
            if let Some((_, waits)) = state.given.get_mut(name) {
                *waits = false;
            }
            return Ok(all);
        }
        if is_over(&state) {
            state.given.remove(name);
            return Err(RendezvousError::Over(name.to_owned()));
        }
        Err(state.is_over.clone().unwrap_or_else(|| shared.timed_out(&mut state, name)))
    }

    fn post(&self, name: &str, word: &[u8]) {
        if super::check(name, word).is_err() {
            return;
        }
        let mut state = lock(&self.shared.state);
        state.given.insert(name.to_owned(), (word.to_vec(), false));
        state.say(&RendezvousMessage::Give {
            name: name.to_owned(),
            waits: false,
            value: word.to_vec(),
        });
    }

    fn release(&self, name: &str) {
        let mut state = lock(&self.shared.state);
        state.released.insert(name.to_owned());
        state.say(&RendezvousMessage::Release { name: name.to_owned() });
    }

    fn key(&self) -> Option<JobKey> {
        lock(&self.shared.state).connected_to.as_ref().map(|(_, key)| key.clone())
    }

    fn interface(&self) -> Option<IpAddr> {
        lock(&self.shared.state).interface
    }

    fn watch(&self, name: &str, changed: Watcher) {
        let mut state = lock(&self.shared.state);
        state.watchers.push((name.to_owned(), changed));
        state.say(&RendezvousMessage::Watch { name: name.to_owned() });
    }
}

impl Drop for RendezvousClient {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.is_closed = true;
        if let Some(stream) = state.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }
}

impl std::fmt::Debug for ClientShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("ClientShared")
            .field("world", &self.job.world)
            .field("is_there", &state.stream.is_some())
            .finish_non_exhaustive()
    }
}
