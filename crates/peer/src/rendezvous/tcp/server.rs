//! The server's side of a rendezvous, on rank 0: it listens, and keeps what all ranks have given.
//!
//! Each connection has a thread that reads and one that writes, so a slow rank delays no other. A
//! connection has a few seconds to prove that it has the key, and only a few may try at once.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_base::fork::OwnDescriptor;
use belady_base::open_files;
use belady_base::sync::{Arc, Condvar, Mutex, lock};

use super::frames::{Connection, DeadlineStream, Frames, own};
use super::messages::{ClientKind, RendezvousHello, RendezvousMessage, TO_SERVER};
use super::table::{ConnectedRank, ExchangeTable, Frame};
use super::{HANDSHAKE, RendezvousJob, WRITING, tell_missing};
use crate::auth::{self, Role};
use crate::rate_limited_log::RateLimitedLog;
use crate::rendezvous::address_file::AddressFile;
use crate::rendezvous::wait_messages::WaitMessages;
use crate::rendezvous::{JobWorld, Rendezvous, RendezvousError, Watcher};
use crate::{JobKey, NodeId};

/// Connections that may be unauthenticated at once; further ones are closed, and clients try again.
const UNAUTHENTICATED: usize = 256;
/// A process that is about to end may still hold the port.
const PORT_PATIENCE: Duration = Duration::from_secs(3);
/// The stack of connection threads, which do little.
const STACK: usize = 256 << 10;

/// The server's side of a rendezvous.
#[derive(Debug)]
pub struct RendezvousServer {
    shared: Arc<ServerShared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
    /// The file that leads clients here, removed together with the server.
    address_file: Option<AddressFile>,
}

#[derive(Debug)]
struct ServerShared {
    job: RendezvousJob,
    key: JobKey,
    hello: Vec<u8>,
    place: String,
    table: Mutex<ExchangeTable>,
    given: Condvar,
    unauthenticated: AtomicUsize,
    log: RateLimitedLog,
    connections: AtomicU64,
}

impl RendezvousServer {
    /// Listens at the first of these addresses that this machine has.
    pub fn listen(
        addresses: &[SocketAddr],
        place: &str,
        key: JobKey,
        job: RendezvousJob,
    ) -> Result<Self, RendezvousError> {
        open_files::raise_limit();
        let listener = bind(addresses, place)?;
        let cannot =
            |error: io::Error| RendezvousError::Other(format!("cannot listen at {place}: {error}"));
        let address = listener.local_addr().map_err(cannot)?;
        let size = job.world.size;
        afford(size, open_files::limit())?;
        let who = ClientKind::Rank { rank: 0, life: super::new_life()? };
        let hello = RendezvousHello { job: job.name.clone(), size, who }.to_bytes();
        let shared = Arc::new(ServerShared {
            job,
            key,
            hello,
            place: place.to_owned(),
            table: Mutex::new(ExchangeTable::new(size)),
            given: Condvar::new(),
            unauthenticated: AtomicUsize::new(0),
            log: RateLimitedLog::default(),
            connections: AtomicU64::new(0),
        });
        let accepting = shared.clone();
        let acceptor = spawn("belady-rdzv", move || accepting.accept(&listener)).map_err(cannot)?;
        Ok(Self { shared, address, acceptor: Some(acceptor), address_file: None })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set_address_file(&mut self, file: AddressFile) {
        self.address_file = Some(file);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).stack_size(STACK).spawn(work)
}

/// Checks that this process may open enough files: every other rank keeps a connection to it, and
/// reads need descriptors too.
fn afford(size: u32, limit: u64) -> Result<(), RendezvousError> {
    let needed = u64::from(size) + u64::from(size) / 3;
    if needed <= limit {
        return Ok(());
    }
    Err(RendezvousError::Other(format!(
        "rank 0 may open {limit} files, too few for the connections of {size} ranks: allow at \
         least {needed} (ulimit -n)"
    )))
}

fn bind(
    addresses: &[SocketAddr],
    place: &str,
) -> Result<OwnDescriptor<TcpListener>, RendezvousError> {
    let until = Instant::now() + PORT_PATIENCE;
    loop {
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpListener::bind(address).and_then(OwnDescriptor::of) {
                Ok(listener) => return Ok(listener),
                // Of several errors, the most specific one.
                Err(error) if failure.kind() == io::ErrorKind::AddrNotAvailable => failure = error,
                Err(_) => {}
            }
        }
        let kind = failure.kind();
        if kind == io::ErrorKind::AddrNotAvailable
            && let Some(everywhere) = everywhere(addresses)
        {
            tracing::warn!(
                "{place} is not an address of this machine, so rank 0 listens at {everywhere}; \
                 that is right for a virtual address or a service that leads here, otherwise start \
                 rank 0 on the machine with that address"
            );
            return bind(&[everywhere], place);
        }
        if kind == io::ErrorKind::AddrInUse && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        return Err(RendezvousError::Other(match kind {
            io::ErrorKind::AddrInUse => format!(
                "another program listens at {place} already, perhaps another job: give this job \
                 another port (BELADY_MEET)"
            ),
            _ => format!("rank 0 cannot listen at {place}: {failure}"),
        }));
    }
}

/// Returns the unspecified address with the port of addresses that this machine does not have;
/// `None` if they are unspecified already, or have no fixed port.
fn everywhere(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let first = addresses.first().filter(|first| first.port() != 0)?;
    let all_v6 = addresses.iter().all(SocketAddr::is_ipv6);
    let all: IpAddr =
        if all_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    (!first.ip().is_unspecified()).then_some((all, first.port()).into())
}

impl ServerShared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if lock(&self.table).is_closed {
                return;
            }
            let Ok(stream) = stream.and_then(own) else {
                // Most likely there are no descriptors left; others will be closed.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            if self.unauthenticated.fetch_add(1, Ordering::AcqRel) >= UNAUTHENTICATED {
                self.unauthenticated.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let serving = self.clone();
            if spawn("belady-client", move || serving.serve(stream)).is_err() {
                self.unauthenticated.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Serves a connection until it ends.
    fn serve(self: &Arc<Self>, stream: Connection) {
        let stream = Arc::new(stream);
        let from =
            stream.peer_addr().map_or_else(|_| "an unknown address".into(), |it| it.to_string());
        let _ = stream.set_nodelay(true);
        let proved = {
            let mut hurried = DeadlineStream { stream: &stream, until: Instant::now() + HANDSHAKE };
            auth::prove(&mut hurried, &self.key, Role::Listens, &self.hello)
        };
        self.unauthenticated.fetch_sub(1, Ordering::AcqRel);
        let hello = match proved.map(|hello| RendezvousHello::from_bytes(&hello)) {
            Ok(Some(hello)) => hello,
            Ok(None) => return self.note_refused(&from, "its hello is invalid"),
            Err(error) => return self.note_refused(&from, &error.to_string()),
        };
        let _ = stream.set_write_timeout(Some(WRITING));
        match hello.who {
            ClientKind::Observer => self.inform(stream),
            ClientKind::Rank { rank, life } => match self.objection(&hello, rank) {
                Some(sentence) => self.refuse(&stream, &from, false, sentence),
                None => self.serve_rank(&stream, &from, rank, life),
            },
        }
    }

    fn note_refused(&self, from: &str, why: &str) {
        let refused = &mut lock(&self.table).refused;
        let count = refused.as_ref().map_or(0, |(count, _)| *count) + 1;
        *refused = Some((count, format!("{from}: {why}")));
        self.log.refused(from, &why);
    }

    fn refuse(&self, stream: &TcpStream, from: &str, again: bool, sentence: String) {
        self.note_refused(from, &sentence);
        let _ = (&*stream).write_all(&RendezvousMessage::Refused { again, sentence }.to_frame());
    }

    /// Returns why a rank is refused for good.
    fn objection(&self, hello: &RendezvousHello, rank: NodeId) -> Option<String> {
        let RendezvousJob { world, name: job, .. } = &self.job;
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
        (rank == 0 || rank >= world.size).then(|| {
            format!("a process connects to {place} as rank {rank}, which no client can have")
        })
    }

    /// Serves a rank.
    fn serve_rank(self: &Arc<Self>, stream: &Arc<Connection>, from: &str, rank: NodeId, life: u64) {
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        match self.register(stream, from, rank, life, connection) {
            Ok(()) => {}
            Err(Some(sentence)) => return self.refuse(stream, from, true, sentence),
            Err(None) => return,
        }
        self.listen_to(Frames::new(stream.clone(), TO_SERVER), rank, connection);
        let mut table = lock(&self.table);
        if table
            .connected_ranks
            .get(&rank)
            .is_some_and(|connected| connected.connection == connection)
        {
            table.connected_ranks.remove(&rank);
            if !self.job.may_restart {
                table.rank_ended(rank);
            }
        }
        drop(table);
        self.given.notify_all();
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Registers a rank's connection, unless another process has the rank: the first one stays. An
    /// earlier connection of the same process ends.
    fn register(
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
        if let Some(other) = table.connected_ranks.get(&rank).filter(|other| other.life != life) {
            return Err(Some(format!(
                "rank {rank} is connected to {} already, from {}: two processes have the same \
                 rank, or two jobs use this address",
                self.place, other.from
            )));
        }
        let (out, frames) = mpsc::channel::<Frame>();
        let _ = out.send(Frame::from(RendezvousMessage::Welcome.to_frame()));
        let writing = stream.clone();
        let writer = spawn("belady-client-out", move || write_all(&writing, &frames));
        let writer = Some(writer.map_err(|_| None)?);
        let (from, watches) = (from.to_owned(), std::collections::BTreeSet::new());
        table.register(rank, ConnectedRank { life, connection, from, out, writer, watches });
        Ok(())
    }

    /// Handles a rank's messages until its connection ends.
    fn listen_to(&self, mut frames: Frames, rank: NodeId, connection: u64) {
        while let Ok(Some(message)) = frames.next_unless_silent(self.job.silence) {
            match message {
                RendezvousMessage::Give { name, waits, value } => {
                    self.give(rank, &name, value, waits);
                }
                RendezvousMessage::Ask { name } => {
                    let table = lock(&self.table);
                    table.send(rank, &table.values_frame(&name));
                }
                RendezvousMessage::AskMissing { name } => {
                    let table = lock(&self.table);
                    let missing = table.missing(&name);
                    table.send(
                        rank,
                        &Frame::from(RendezvousMessage::Missing { name, missing }.to_frame()),
                    );
                }
                RendezvousMessage::Watch { name } => {
                    let mut table = lock(&self.table);
                    table.send(rank, &table.values_frame(&name));
                    let connected = table.connected_ranks.get_mut(&rank);
                    if let Some(connected) =
                        connected.filter(|connected| connected.connection == connection)
                    {
                        connected.watches.insert(name);
                    }
                }
                RendezvousMessage::Release { name } => lock(&self.table).release(rank, &name),
                RendezvousMessage::WereOver { traces } => {
                    lock(&self.table).were_over(rank, &traces);
                    self.given.notify_all();
                }
                RendezvousMessage::Here => {
                    lock(&self.table).send(rank, &Frame::from(RendezvousMessage::Here.to_frame()));
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

    /// Answers a process outside of the job.
    fn inform(&self, stream: Arc<Connection>) {
        let mut out = &**stream.clone();
        let mut frames = Frames::new(stream, TO_SERVER);
        let _ = out.write_all(&RendezvousMessage::Welcome.to_frame());
        let silence = self.job.silence;
        while let Ok(Some(RendezvousMessage::Ask { name })) = frames.next_unless_silent(silence) {
            let values_frame = lock(&self.table).values_frame(&name);
            if out.write_all(&values_frame).is_err() {
                return;
            }
        }
    }

    /// Waits until all ranks have given to an exchange, and logs from time to time which have not.
    fn wait_for(&self, name: &str) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let RendezvousJob { world: JobWorld { size, .. }, limit, .. } = self.job;
        let began = Instant::now();
        let (until, mut wait_messages) = (began + limit, WaitMessages::new(began));
        let mut table = lock(&self.table);
        loop {
            let pause = wait_messages.pause(Instant::now(), until);
            let undecided = |table: &mut ExchangeTable| {
                table.complete(name).is_none()
                    && !table.is_over(name)
                    && table.gone_before(name).is_empty()
            };
            let waited = self.given.wait_timeout_while(table, pause, undecided);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
            if table.is_over(name) {
                return Err(RendezvousError::Over(name.to_owned()));
            }
            if let Some(all) = table.complete(name) {
                return Ok(all);
            }
            let ended = table.gone_before(name);
            if !ended.is_empty() {
                return Err(RendezvousError::Ended { ended, what: name.to_owned() });
            }
            let now = Instant::now();
            let place = self.place_and_refusals(&table);
            if now >= until {
                let (missing, what) = (table.give_up(name), name.to_owned());
                return Err(RendezvousError::Missing { missing, size, what, place, limit });
            }
            if let Some(waited) = wait_messages.is_due(now) {
                tell_missing(&table.missing(name), size, name, &place, waited);
            }
        }
    }

    /// Returns the address, and why connections were refused.
    fn place_and_refusals(&self, table: &ExchangeTable) -> String {
        match &table.refused {
            Some((count, why)) => {
                let word = if *count == 1 { "connection was" } else { "connections were" };
                format!("{} ({count} {word} refused, the last from {why})", self.place)
            }
            None => self.place.clone(),
        }
    }
}

/// Writes until there is nothing more to send, or the rank does not accept it.
fn write_all(stream: &TcpStream, frames: &mpsc::Receiver<Frame>) {
    for frame in frames {
        if (&*stream).write_all(&frame).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

impl Rendezvous for RendezvousServer {
    fn world(&self) -> JobWorld {
        self.shared.job.world
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
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

    fn key(&self) -> Option<JobKey> {
        Some(self.shared.key.clone())
    }

    fn interface(&self) -> Option<IpAddr> {
        Some(self.address.ip()).filter(|address| !address.is_unspecified())
    }

    fn watch(&self, name: &str, changed: Watcher) {
        lock(&self.shared.table).watchers.push((name.to_owned(), changed));
    }
}

impl Drop for RendezvousServer {
    fn drop(&mut self) {
        let connected_ranks = {
            let mut table = lock(&self.shared.table);
            table.is_closed = true;
            std::mem::take(&mut table.connected_ranks)
        };
        // Messages that are queued for other ranks are still sent.
        let finish = |connected: ConnectedRank| {
            drop(connected.out);
            connected.writer
        };
        let writers: Vec<_> = connected_ranks.into_values().filter_map(finish).collect();
        for writer in writers {
            let _ = writer.join();
        }
        // Wakes the acceptor, which then sees that the server is closed.
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
