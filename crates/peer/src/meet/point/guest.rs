//! The side of those who come to a meeting point.
//!
//! A thread holds the connection to rank 0. When that breaks, it comes again and gives again all that
//! this process ever gave: a rank 0 that was started again then knows as much as the one before.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use belady_data::sync::{Arc, Condvar, Mutex, MutexGuard, lock};

use super::wire::{Frames, Hello, Hurried, LONGEST_NAME, Message, Who, to_guest};
use super::{HANDSHAKE, Job, NAME_PATIENCE, SILENCE, WRITING, other_job};
use crate::auth::{self, AuthError, Role};
use crate::meet::{Meet, MeetError, Place, Watcher, World};
use crate::{Key, NodeId};

/// Between attempts to reach rank 0; longer each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const CONNECTING: Duration = Duration::from_secs(5);
/// Says that it is there when it has said nothing for so long.
const BEAT: Duration = Duration::from_secs(2);

/// How to find rank 0.
pub struct Directions {
    /// Where to, and by which key: asked again for every attempt.
    pub ask: Box<dyn Fn() -> Result<(Place, Key), Trouble> + Send + Sync>,
    /// They may be out of date, so that somebody else is there.
    pub may_change: bool,
    /// What to call the place as long as nobody was there.
    pub name: String,
}

/// Why rank 0 could not be reached.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// That may change.
    ForNow(String),
    /// The name of its host is not known.
    NoSuchHost(String),
    /// Somebody is there who is none of this job.
    NotOurs(String),
    /// It does not want this process.
    ForGood(String),
}

impl Trouble {
    pub fn sentence(&self) -> &str {
        match self {
            Self::ForNow(it) | Self::NoSuchHost(it) | Self::NotOurs(it) | Self::ForGood(it) => it,
        }
    }
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
    /// Everything this process gave, and whether it still waits for what the others give.
    given: BTreeMap<String, (Vec<u8>, bool)>,
    /// What rank 0 told of exchanges.
    books: BTreeMap<String, Vec<Option<Vec<u8>>>>,
    watchers: Vec<(String, Watcher)>,
    /// While there is a connection.
    stream: Option<TcpStream>,
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
        let mut stream = frames.stream().try_clone().map_err(lost)?;
        stream.set_write_timeout(Some(WRITING)).map_err(lost)?;
        let mut state = lock(&self.state);
        for (name, (value, waits)) in &state.given {
            let (name, value) = (name.clone(), value.clone());
            let give = Message::Give { name, waits: *waits, value };
            stream.write_all(&give.to_frame()).map_err(lost)?;
        }
        for (name, _) in &state.watchers {
            let watch = Message::Watch { name: name.clone() };
            stream.write_all(&watch.to_frame()).map_err(lost)?;
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
        let (mut heard, mut said) = (Instant::now(), Instant::now());
        loop {
            match frames.next(BEAT) {
                Ok(Some(message)) => {
                    heard = Instant::now();
                    self.hear(message);
                }
                Ok(None) if heard.elapsed() >= SILENCE => return "rank 0 is silent".to_owned(),
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

    fn missing(&self, what: &str, missing: Vec<NodeId>, place: String) -> MeetError {
        let Job { world, limit, .. } = self.job;
        MeetError::Missing { missing, size: world.size, what: what.to_owned(), place, limit }
    }
}

impl State {
    /// Says something if there is a connection. If that breaks, all is said again on the next.
    fn say(&mut self, message: &Message) {
        if let Some(stream) = &mut self.stream
            && stream.write_all(&message.to_frame()).is_err()
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
        let Job { world: World { rank, .. }, limit, .. } = shared.job;
        let until = Instant::now() + limit;
        let mut state = lock(&shared.state);
        state.books.remove(name);
        state.given.insert(name.to_owned(), (mine.to_vec(), true));
        state.say(&Message::Give { name: name.to_owned(), waits: true, value: mine.to_vec() });
        state = shared.wait(state, until, |state| state.complete(name, rank).is_some());
        if state.complete(name, rank).is_none() && state.is_over.is_none() && state.stream.is_some()
        {
            // Who is missing, only rank 0 knows.
            state.books.remove(name);
            state.say(&Message::Ask { name: name.to_owned() });
            let until = Instant::now() + HANDSHAKE;
            state = shared.wait(state, until, |state| state.books.contains_key(name));
        }
        if let Some(all) = state.complete(name, rank) {
            state.books.remove(name);
            if let Some((_, waits)) = state.given.get_mut(name) {
                *waits = false;
            }
            return Ok(all);
        }
        if let Some(error) = &state.is_over {
            return Err(error.clone());
        }
        let place = state.came_by.as_ref().map(|(place, _)| place.to_string());
        let Some(book) = state.books.remove(name) else {
            let place = place.unwrap_or_else(|| shared.directions.name.clone());
            let trouble = state.trouble.as_ref().map(Trouble::sentence);
            let place = trouble.map_or(place.clone(), |trouble| format!("{place} ({trouble})"));
            return Err(shared.missing(name, vec![0], place));
        };
        let missing = (0..).zip(&book).filter(|(_, it)| it.is_none()).map(|(rank, _)| rank);
        Err(shared.missing(name, missing.collect(), place.unwrap_or_default()))
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

/// Goes to a meeting point, proves that it has the key, and is welcome there.
pub fn visit(place: &Place, key: &Key, hello: &Hello) -> Result<Frames, Trouble> {
    let until = Instant::now() + HANDSHAKE;
    let stream = connect(place)?;
    let _ = stream.set_nodelay(true);
    let mut hurried = Hurried { stream: &stream, until };
    let at = |what: &dyn std::fmt::Display| format!("the meeting point at {place}: {what}");
    let proved = auth::prove(&mut hurried, key, Role::Connects, &hello.to_bytes());
    let host = match proved {
        Ok(host) => Hello::from_bytes(&host),
        Err(error @ AuthError::Io(_)) => return Err(Trouble::ForNow(at(&error))),
        Err(error) => return Err(Trouble::NotOurs(at(&error))),
    };
    let host = host.ok_or_else(|| Trouble::ForGood(at(&"what it says of itself is no hello")))?;
    if hello.who != Who::Visitor && host.job != hello.job {
        return Err(Trouble::ForGood(other_job(&place.to_string(), &host.job, &hello.job)));
    }
    let mut frames = Frames::new(stream, LONGEST_NAME + (4 << 10));
    match frames.next(HANDSHAKE) {
        Ok(Some(Message::Welcome)) => {
            frames.set_longest(to_guest(host.size));
            Ok(frames)
        }
        Ok(Some(Message::Refused { again: true, sentence })) => Err(Trouble::ForNow(sentence)),
        Ok(Some(Message::Refused { again: false, sentence })) => Err(Trouble::ForGood(sentence)),
        Ok(Some(_)) => Err(Trouble::ForGood(at(&"it does not say what a meeting point says"))),
        Ok(None) => Err(Trouble::ForNow(at(&"it is silent"))),
        Err(error) => Err(Trouble::ForNow(at(&error))),
    }
}

fn connect(place: &Place) -> Result<TcpStream, Trouble> {
    let addresses = resolve(place)?;
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECTING) {
            // A port that nobody listens at may connect to itself, if it is one of those that the
            // system hands out.
            Ok(stream) if stream.local_addr().ok() == Some(address) => {}
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(Trouble::ForNow(format!("cannot connect to {place}: {failure}")))
}

pub(super) fn resolve(place: &Place) -> Result<Vec<SocketAddr>, Trouble> {
    let Place::Point { host, port } = place else {
        return Err(Trouble::ForGood(format!("{place} is no meeting point")));
    };
    let unknown = |why: String| {
        Trouble::NoSuchHost(format!(
            "the host `{host}` of the meeting point cannot be found: {why}; see whether its name is \
             right"
        ))
    };
    let addresses = (host.as_str(), *port).to_socket_addrs();
    let addresses: Vec<_> = addresses.map_err(|error| unknown(error.to_string()))?.collect();
    if addresses.is_empty() { Err(unknown("it has no address".into())) } else { Ok(addresses) }
}
