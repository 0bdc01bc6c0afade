//! A connected socket, with a limit on how long it is waited for.
//!
//! Sockets block, and the kernel has a time limit for each single call. Here the limit is that of a
//! whole conversation: the kernel's is set anew when it has become too long, which is seldom.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use belady_data::fork::Own;
use belady_data::sync::Arc;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// The kernel takes no more pieces at once.
const PIECES: usize = 1024;
/// The kernel's limits are no finer, and zero would be none.
const SHORTEST: Duration = Duration::from_millis(1);
/// A silent machine is noticed after about a minute.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// How long is waited.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// For everything until then.
    Until(Instant),
    /// For each single call.
    Each(Duration),
    /// For everything, as long as bytes move.
    Moving(Moving),
}

/// Bytes a second that count as moving. A network on which a call is slower is down: what is wanted comes
/// sooner from the source.
const SLOWEST: f64 = 64e3;

/// How a call is getting on.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    began: Instant,
    /// It has failed when nothing has moved for so long.
    patience: Duration,
    /// When something moved last.
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

/// The descriptor of a connection. A forked child does not get it: the other end would not see that this
/// process has ended for as long as the child runs.
pub type Descriptor = Own<OwnedFd>;

/// One end of a connection.
#[derive(Debug)]
pub struct Socket {
    descriptor: Arc<Descriptor>,
    limit: Limit,
    /// What the kernel was told to wait at most, in a receive and in a send.
    told: [Duration; 2],
}

/// A socket that is not connected yet.
pub fn open(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

impl Socket {
    pub fn new(descriptor: Arc<Descriptor>, limit: Limit) -> Self {
        Self { descriptor, limit, told: [Duration::ZERO; 2] }
    }

    /// Connects a socket that is fresh.
    pub fn connect(mut self, to: SocketAddr) -> io::Result<Self> {
        self.arm(Timeout::Send)?;
        self.connected(rustix::net::connect(&self.descriptor, &to))?;
        self.prepare_tcp()?;
        Ok(self)
    }

    /// Connects a fresh socket to one in the file system.
    pub fn connect_unix(mut self, to: &Path) -> io::Result<Self> {
        self.arm(Timeout::Send)?;
        self.connected(rustix::net::connect(&self.descriptor, &SocketAddrUnix::new(to)?))?;
        Ok(self)
    }

    fn connected(&self, outcome: Result<(), Errno>) -> io::Result<()> {
        match outcome {
            // How the kernel says that the time has passed.
            Err(Errno::INPROGRESS | Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
            // The kernel goes on in the background, and the next call waits for it.
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

    /// Small frames go at once, and a machine that is gone is noticed.
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

    /// Makes the kernel wait about as long as is left.
    fn arm(&mut self, which: Timeout) -> io::Result<()> {
        let left = self.left()?;
        let told = &mut self.told[side(which)];
        // A little too long is fine, and too short is found out in time.
        let is_right = *told <= left + left / 16 + SHORTEST && *told >= left / 2;
        if !is_right || told.is_zero() {
            *told = left.max(SHORTEST);
            sockopt::set_socket_timeout(&self.descriptor, which, Some(*told))?;
        }
        Ok(())
    }

    /// What a call of the kernel that has not succeeded means: `Ok` is to call again.
    fn missed(&mut self, which: Timeout, error: Errno) -> io::Result<()> {
        match error {
            Errno::INTR => Ok(()),
            Errno::AGAIN => {
                // What is left is told anew, or there is nothing left.
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

/// Where in `told` it is.
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

    /// The kernel waits for all of it, instead of us for each part.
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

/// Ends a connection at both ends, whoever waits for it and whoever else has the descriptor.
pub fn hang_up(descriptor: &Descriptor) {
    // One that is not connected cannot be ended, and need not be.
    let _ = rustix::net::shutdown(descriptor, Shutdown::Both);
}

/// Writes all pieces, as few calls as can be.
pub fn write_all<S: Write + ?Sized>(
    stream: &mut S,
    mut pieces: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // Empty pieces at the front would look like an end.
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
