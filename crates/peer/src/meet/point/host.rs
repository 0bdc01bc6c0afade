//! Rank 0's side of a meeting point: it listens, and keeps what all have given.
//!
//! Each connection has a thread that reads and one that writes, so nobody waits for a rank that is
//! slow. A connection has a few seconds to prove that it has the key; only a few may try at once.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_data::fork::Own;
use belady_data::open_files;
use belady_data::sync::{Arc, Condvar, Mutex, lock};

use super::frames::{Connection, Frames, Hurried, own};
use super::table::{Frame, Seat, Table};
use super::wire::{Hello, Message, TO_HOST, Who};
use super::{HANDSHAKE, Job, WRITING, tell_missing};
use crate::auth::{self, Role};
use crate::complaints::Complaints;
use crate::meet::file::Note;
use crate::meet::telling::Telling;
use crate::meet::{Meet, MeetError, Watcher, World};
use crate::{Key, NodeId};

/// Connections that have not proved themselves yet; more are turned away, and come again.
const STRANGERS: usize = 256;
/// A port may still be held by a process that is about to end.
const PORT_PATIENCE: Duration = Duration::from_secs(3);
/// Connection threads do little.
const STACK: usize = 256 << 10;

/// A meeting point.
#[derive(Debug)]
pub struct Host {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
    /// What leads the others here, and goes when this does.
    note: Option<Note>,
}

#[derive(Debug)]
struct Shared {
    job: Job,
    key: Key,
    hello: Vec<u8>,
    place: String,
    table: Mutex<Table>,
    given: Condvar,
    strangers: AtomicUsize,
    complaints: Complaints,
    connections: AtomicU64,
}

impl Host {
    /// Listens at one of these addresses, the first that this machine has.
    pub fn listen(
        addresses: &[SocketAddr],
        place: &str,
        key: Key,
        job: Job,
    ) -> Result<Self, MeetError> {
        open_files::raise_limit();
        let listener = bind(addresses, place)?;
        let cannot =
            |error: io::Error| MeetError::Other(format!("cannot listen at {place}: {error}"));
        let address = listener.local_addr().map_err(cannot)?;
        let size = job.world.size;
        afford(size, open_files::limit())?;
        let who = Who::Rank { rank: 0, life: super::new_life()? };
        let hello = Hello { job: job.name.clone(), size, who }.to_bytes();
        let shared = Arc::new(Shared {
            job,
            key,
            hello,
            place: place.to_owned(),
            table: Mutex::new(Table::new(size)),
            given: Condvar::new(),
            strangers: AtomicUsize::new(0),
            complaints: Complaints::default(),
            connections: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        let acceptor =
            spawn("belady-point", move || accepting.accept(&listener)).map_err(cannot)?;
        Ok(Self { shared, address, acceptor: Some(acceptor), note: None })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn keep(&mut self, note: Note) {
        self.note = Some(note);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).stack_size(STACK).spawn(work)
}

/// Every other rank has a connection here for as long as it runs, and reads need descriptors too.
fn afford(size: u32, limit: u64) -> Result<(), MeetError> {
    let needed = u64::from(size) + u64::from(size) / 3;
    if needed <= limit {
        return Ok(());
    }
    Err(MeetError::Other(format!(
        "rank 0 of {size} may have {limit} files open, which are too few for the others to meet there: \
         allow it {needed} at least (ulimit -n)"
    )))
}

fn bind(addresses: &[SocketAddr], place: &str) -> Result<Own<TcpListener>, MeetError> {
    let until = Instant::now() + PORT_PATIENCE;
    loop {
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpListener::bind(address).and_then(Own::of) {
                Ok(listener) => return Ok(listener),
                // Of several, the one that says most.
                Err(error) if failure.kind() == io::ErrorKind::AddrNotAvailable => failure = error,
                Err(_) => {}
            }
        }
        let kind = failure.kind();
        if kind == io::ErrorKind::AddrNotAvailable
            && let Some(everywhere) = everywhere(addresses)
        {
            tracing::warn!(
                "{place} is no address of this machine: rank 0 listens at {everywhere}, as is right for \
                 a virtual address or a service that leads here; if it is the address of another \
                 machine, start rank 0 there"
            );
            return bind(&[everywhere], place);
        }
        if kind == io::ErrorKind::AddrInUse && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        return Err(MeetError::Other(match kind {
            io::ErrorKind::AddrInUse => format!(
                "another program listens at {place} already, perhaps another job: give this job \
                 another port (BELADY_MEET)"
            ),
            _ => format!("rank 0 cannot listen at {place}: {failure}"),
        }));
    }
}

/// All interfaces at the port of addresses that this machine does not have; none if they are that already,
/// or the system picks the port, which then leads nowhere.
fn everywhere(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let first = addresses.first().filter(|first| first.port() != 0)?;
    let all_v6 = addresses.iter().all(SocketAddr::is_ipv6);
    let all: IpAddr =
        if all_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    (!first.ip().is_unspecified()).then_some((all, first.port()).into())
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if lock(&self.table).is_closed {
                return;
            }
            let Ok(stream) = stream.and_then(own) else {
                // No descriptors left, most likely; somebody will close some.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            if self.strangers.fetch_add(1, Ordering::AcqRel) >= STRANGERS {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let serving = self.clone();
            if spawn("belady-guest", move || serving.serve(stream)).is_err() {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// All of a connection's life.
    fn serve(self: &Arc<Self>, stream: Connection) {
        let stream = Arc::new(stream);
        let from = stream.peer_addr().map_or_else(|_| "nowhere".into(), |it| it.to_string());
        let _ = stream.set_nodelay(true);
        let proved = {
            let mut hurried = Hurried { stream: &stream, until: Instant::now() + HANDSHAKE };
            auth::prove(&mut hurried, &self.key, Role::Listens, &self.hello)
        };
        self.strangers.fetch_sub(1, Ordering::AcqRel);
        let hello = match proved.map(|hello| Hello::from_bytes(&hello)) {
            Ok(Some(hello)) => hello,
            Ok(None) => return self.note_refused(&from, "its hello is none"),
            Err(error) => return self.note_refused(&from, &error.to_string()),
        };
        let _ = stream.set_write_timeout(Some(WRITING));
        match hello.who {
            Who::Visitor => self.inform(stream),
            Who::Rank { rank, life } => match self.objection(&hello, rank) {
                Some(sentence) => self.refuse(&stream, &from, false, sentence),
                None => self.host(&stream, &from, rank, life),
            },
        }
    }

    fn note_refused(&self, from: &str, why: &str) {
        let refused = &mut lock(&self.table).refused;
        let count = refused.as_ref().map_or(0, |(count, _)| *count) + 1;
        *refused = Some((count, format!("{from}: {why}")));
        self.complaints.refused(from, &why);
    }

    fn refuse(&self, stream: &TcpStream, from: &str, again: bool, sentence: String) {
        self.note_refused(from, &sentence);
        let _ = (&*stream).write_all(&Message::Refused { again, sentence }.to_frame());
    }

    /// Why a rank may not stay at all.
    fn objection(&self, hello: &Hello, rank: NodeId) -> Option<String> {
        let Job { world, name: job, .. } = &self.job;
        let place = &self.place;
        if hello.job != *job {
            return Some(super::other_job(place, job, &hello.job));
        }
        if hello.size != world.size {
            return Some(format!(
                "rank {rank} counts {} ranks and rank 0 at {place} counts {}: start all with the \
                 same number",
                hello.size, world.size
            ));
        }
        (rank == 0 || rank >= world.size)
            .then(|| format!("a process comes to {place} as rank {rank}, which it cannot be"))
    }

    /// A rank that stays.
    fn host(self: &Arc<Self>, stream: &Arc<Connection>, from: &str, rank: NodeId, life: u64) {
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        match self.seat(stream, from, rank, life, connection) {
            Ok(()) => {}
            Err(Some(sentence)) => return self.refuse(stream, from, true, sentence),
            Err(None) => return,
        }
        self.listen_to(Frames::new(stream.clone(), TO_HOST), rank, connection);
        let mut table = lock(&self.table);
        if table.seats.get(&rank).is_some_and(|seat| seat.connection == connection) {
            table.seats.remove(&rank);
        }
        drop(table);
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Gives a rank its seat, unless somebody else sits there: whoever came first stays. Its own
    /// earlier connection, if it comes again, ends.
    fn seat(
        &self,
        stream: &Arc<Connection>,
        from: &str,
        rank: NodeId,
        life: u64,
        connection: u64,
    ) -> Result<(), Option<String>> {
        let mut table = lock(&self.table);
        if table.is_closed {
            return Err(None);
        }
        if let Some(other) = table.seats.get(&rank).filter(|other| other.life != life) {
            return Err(Some(format!(
                "rank {rank} is at {} already, from {}: two processes have the same rank, or two \
                 jobs meet here",
                self.place, other.from
            )));
        }
        let (out, frames) = mpsc::channel::<Frame>();
        let _ = out.send(Frame::from(Message::Welcome.to_frame()));
        let writing = stream.clone();
        let writer = spawn("belady-guest-out", move || write_all(&writing, &frames));
        let writer = Some(writer.map_err(|_| None)?);
        let (from, watches) = (from.to_owned(), std::collections::BTreeSet::new());
        table.seat(rank, Seat { life, connection, from, out, writer, watches });
        Ok(())
    }

    /// Takes what a rank says until it is gone.
    fn listen_to(&self, mut frames: Frames, rank: NodeId, connection: u64) {
        while let Ok(Some(message)) = frames.next_unless_silent(self.job.silence) {
            match message {
                Message::Give { name, waits, value } => self.give(rank, &name, value, waits),
                Message::Ask { name } => {
                    let table = lock(&self.table);
                    table.send(rank, &table.book(&name));
                }
                Message::AskMissing { name } => {
                    let table = lock(&self.table);
                    let missing = table.missing(&name);
                    table.send(rank, &Frame::from(Message::Missing { name, missing }.to_frame()));
                }
                Message::Watch { name } => {
                    let mut table = lock(&self.table);
                    table.send(rank, &table.book(&name));
                    let seat = table.seats.get_mut(&rank);
                    if let Some(seat) = seat.filter(|seat| seat.connection == connection) {
                        seat.watches.insert(name);
                    }
                }
                Message::Release { name } => lock(&self.table).release(rank, &name),
                Message::WereOver { traces } => {
                    lock(&self.table).were_over(rank, &traces);
                    self.given.notify_all();
                }
                Message::Here => {
                    lock(&self.table).send(rank, &Frame::from(Message::Here.to_frame()));
                }
                _ => return,
            }
        }
    }

    fn give(&self, rank: NodeId, name: &str, value: Vec<u8>, waits: bool) {
        let said = value.clone();
        let watchers = lock(&self.table).give(rank, name, value, waits);
        self.given.notify_all();
        for watcher in watchers {
            watcher(rank, &said);
        }
    }

    /// Answers somebody who only asks.
    fn inform(&self, stream: Arc<Connection>) {
        let mut out = &**stream.clone();
        let mut frames = Frames::new(stream, TO_HOST);
        let _ = out.write_all(&Message::Welcome.to_frame());
        let silence = self.job.silence;
        while let Ok(Some(Message::Ask { name })) = frames.next_unless_silent(silence) {
            let book = lock(&self.table).book(&name);
            if out.write_all(&book).is_err() {
                return;
            }
        }
    }

    /// Waits until all ranks have given to an exchange, and says from time to time which have not.
    fn wait_for(&self, name: &str) -> Result<Vec<Vec<u8>>, MeetError> {
        let Job { world: World { size, .. }, limit, .. } = self.job;
        let began = Instant::now();
        let (until, mut telling) = (began + limit, Telling::new(began));
        let mut table = lock(&self.table);
        loop {
            let pause = telling.pause(Instant::now(), until);
            let undecided =
                |table: &mut Table| table.complete(name).is_none() && !table.is_over(name);
            let waited = self.given.wait_timeout_while(table, pause, undecided);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
            if table.is_over(name) {
                return Err(MeetError::Over(name.to_owned()));
            }
            if let Some(all) = table.complete(name) {
                return Ok(all);
            }
            let now = Instant::now();
            let place = self.place_and_trouble(&table);
            if now >= until {
                let (missing, what) = (table.give_up(name), name.to_owned());
                return Err(MeetError::Missing { missing, size, what, place, limit });
            }
            if let Some(waited) = telling.is_due(now) {
                tell_missing(&table.missing(name), size, name, &place, waited);
            }
        }
    }

    /// Where this is, and what has gone wrong here with those who did not come.
    fn place_and_trouble(&self, table: &Table) -> String {
        match &table.refused {
            Some((count, why)) => {
                let word = if *count == 1 { "connection was" } else { "connections were" };
                format!("{} ({count} {word} refused, the last from {why})", self.place)
            }
            None => self.place.clone(),
        }
    }
}

/// Writes until nobody has anything to say any more, or the rank does not take it.
fn write_all(stream: &TcpStream, frames: &mpsc::Receiver<Frame>) {
    for frame in frames {
        if (&*stream).write_all(&frame).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

impl Meet for Host {
    fn world(&self) -> World {
        self.shared.job.world
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        super::check(name, mine)?;
        self.shared.give(0, name, mine.to_vec(), false);
        self.shared.wait_for(name)
    }

    fn post(&self, name: &str, word: &[u8]) {
        if super::check(name, word).is_ok() {
            self.shared.give(0, name, word.to_vec(), false);
        }
    }

    fn release(&self, name: &str) {
        lock(&self.shared.table).release(0, name);
    }

    fn key(&self) -> Option<Key> {
        Some(self.shared.key.clone())
    }

    fn interface(&self) -> Option<IpAddr> {
        Some(self.address.ip()).filter(|address| !address.is_unspecified())
    }

    fn watch(&self, name: &str, changed: Watcher) {
        lock(&self.shared.table).watchers.push((name.to_owned(), changed));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let seats = {
            let mut table = lock(&self.shared.table);
            table.is_closed = true;
            std::mem::take(&mut table.seats)
        };
        // What is on its way to the others still goes there.
        let finish = |seat: Seat| {
            drop(seat.out);
            seat.writer
        };
        let writers: Vec<_> = seats.into_values().filter_map(finish).collect();
        for writer in writers {
            let _ = writer.join();
        }
        // Wakes the acceptor, which then sees that it is over.
        let here = match self.address {
            at if !at.ip().is_unspecified() => at,
            SocketAddr::V4(at) => (Ipv4Addr::LOCALHOST, at.port()).into(),
            SocketAddr::V6(at) => (Ipv6Addr::LOCALHOST, at.port()).into(),
        };
        let woken = TcpStream::connect_timeout(&here, HANDSHAKE);
        if let (Ok(_), Some(acceptor)) = (woken, self.acceptor.take()) {
            let _ = acceptor.join();
        }
    }
}
