//! A connected socket with a time limit.
//!
//! Sockets block, and the kernel limits the time of each single call. Here the limit is that of a
//! whole request: the kernel's is adjusted when it deviates too much, which is rare.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use belady_base::fork::OwnDescriptor;
use belady_base::sync::Arc;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// The kernel's limit on pieces in one call.
const PIECES: usize = 1024;
/// The kernel's limits are no finer, and zero would mean none.
const SHORTEST: Duration = Duration::from_millis(1);
/// A silent machine is noticed after about a minute.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// The time limit of a socket.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Everything has to end by then.
    Until(Instant),
    /// Each single call may take this long.
    Each(Duration),
    /// Everything may take as long as bytes move.
    Moving(Moving),
}

/// Bytes a second that count as progress. Over a slower network the source delivers sooner.
const SLOWEST: f64 = 64e3;

/// The progress of a call.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    began: Instant,
    /// The call fails when no byte has moved for this long.
    patience: Duration,
    /// When the last byte moved.
    last: Instant,
    bytes: u64,
}

impl Moving {
    pub fn since(began: Instant, patience: Duration) -> Self {
        Self { began, patience, last: began, bytes: 0 }
    }

    fn until(&self) -> Instant {
        let earned = Duration::from_secs_f64(self.bytes as f64 / SLOWEST);
        (self.last + self.patience).min(self.began + self.patience + earned)
    }
}

/// The descriptor of a connection, which forked children do not inherit: while a child runs, the
/// other end would not notice that this process has ended.
pub type Descriptor = OwnDescriptor<OwnedFd>;

/// One end of a connection.
#[derive(Debug)]
pub struct Socket {
    descriptor: Arc<Descriptor>,
    limit: Limit,
    /// The kernel's current limits of receives and sends.
    told: [Duration; 2],
}

/// Opens a socket without connecting it.
pub fn open(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

impl Socket {
    pub fn new(descriptor: Arc<Descriptor>, limit: Limit) -> Self {
        Self { descriptor, limit, told: [Duration::ZERO; 2] }
    }

    /// Connects a new socket.
    pub fn connect(mut self, to: SocketAddr) -> io::Result<Self> {
        self.arm(Timeout::Send)?;
        self.connected(rustix::net::connect(&self.descriptor, &to))?;
        self.prepare_tcp()?;
        Ok(self)
    }

    /// Connects a new socket to a Unix socket.
    pub fn connect_unix(mut self, to: &Path) -> io::Result<Self> {
        self.arm(Timeout::Send)?;
        self.connected(rustix::net::connect(&self.descriptor, &SocketAddrUnix::new(to)?))?;
        Ok(self)
    }

    fn connected(&self, outcome: Result<(), Errno>) -> io::Result<()> {
        match outcome {
            // The kernel's errors for a time limit.
            Err(Errno::INPROGRESS | Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
            // The kernel continues in the background.
            Err(Errno::INTR) => self.await_connection(),
            other => Ok(other?),
        }
    }

    fn await_connection(&self) -> io::Result<()> {
        let Limit::Until(until) = self.limit else { return Err(io::ErrorKind::Interrupted.into()) };
        let mut waited =
            [rustix::event::PollFd::new(&self.descriptor, rustix::event::PollFlags::OUT)];
        loop {
            let left = remaining(until)?;
            match rustix::event::poll(&mut waited, Some(&left.try_into().unwrap_or_default())) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(sockopt::socket_error(&self.descriptor)??),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends small frames without delay, and detects a peer that is gone.
    pub fn prepare_tcp(&self) -> io::Result<()> {
        sockopt::set_tcp_nodelay(&self.descriptor, true)?;
        let (idle, interval, count) = KEEPALIVE;
        sockopt::set_socket_keepalive(&self.descriptor, true)?;
        sockopt::set_tcp_keepidle(&self.descriptor, idle)?;
        sockopt::set_tcp_keepintvl(&self.descriptor, interval)?;
        sockopt::set_tcp_keepcnt(&self.descriptor, count)?;
        Ok(())
    }

    pub fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
    }

    fn left(&self) -> io::Result<Duration> {
        match self.limit {
            Limit::Until(until) => remaining(until),
            Limit::Each(each) => Ok(each),
            Limit::Moving(moving) => remaining(moving.until()),
        }
    }

    fn moved(&mut self, bytes: usize) {
        if let Limit::Moving(moving) = &mut self.limit {
            moving.last = Instant::now();
            moving.bytes += bytes as u64;
        }
    }

    /// Sets the kernel's limit to about the remaining time.
    fn arm(&mut self, which: Timeout) -> io::Result<()> {
        let left = self.left()?;
        let told = &mut self.told[side(which)];
        // Slightly too long is fine, and too short is noticed in time.
        let is_right = *told <= left + left / 16 + SHORTEST && *told >= left / 2;
        if !is_right || told.is_zero() {
            *told = left.max(SHORTEST);
            sockopt::set_socket_timeout(&self.descriptor, which, Some(*told))?;
        }
        Ok(())
    }

    /// Handles a failed system call: `Ok` means to repeat it.
    fn missed(&mut self, which: Timeout, error: Errno) -> io::Result<()> {
        match error {
            Errno::INTR => Ok(()),
            Errno::AGAIN => {
                // Sets the limit again, unless no time is left.
                self.told[side(which)] = Duration::ZERO;
                match self.limit {
                    Limit::Each(_) => Err(io::ErrorKind::TimedOut.into()),
                    Limit::Until(_) | Limit::Moving(_) => self.left().map(drop),
                }
            }
            error => Err(error.into()),
        }
    }

    fn receive(&mut self, into: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        loop {
            self.arm(Timeout::Recv)?;
            match rustix::net::recv(&self.descriptor, &mut *into, flags) {
                Ok((received, _)) => {
                    self.moved(received);
                    return Ok(received);
                }
                Err(error) => self.missed(Timeout::Recv, error)?,
            }
        }
    }
}

/// Returns the index into `told`.
fn side(which: Timeout) -> usize {
    usize::from(matches!(which, Timeout::Send))
}

fn remaining(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into, RecvFlags::empty())
    }

    /// The kernel waits for all bytes at once.
    fn read_exact(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.receive(into, RecvFlags::WAITALL)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                received => into = &mut into[received..],
            }
        }
        Ok(())
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let pieces = &pieces[..pieces.len().min(PIECES)];
        loop {
            self.arm(Timeout::Send)?;
            let mut nothing = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.descriptor, pieces, &mut nothing, flags) {
                Ok(sent) => {
                    self.moved(sent);
                    return Ok(sent);
                }
                Err(error) => self.missed(Timeout::Send, error)?,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Shuts a connection down for both ends, and for every process that has the descriptor.
pub fn hang_up(descriptor: &Descriptor) {
    // A socket that is not connected cannot be shut down, and need not be.
    let _ = rustix::net::shutdown(descriptor, Shutdown::Both);
}

/// Writes all pieces with as few calls as possible.
pub fn write_all<S: Write + ?Sized>(
    stream: &mut S,
    mut pieces: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // An empty piece at the front would look like the end of the stream.
    IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        match stream.write_vectored(pieces) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut pieces, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.flush()
}
