//! Messages on a connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belady_base::fork::OwnDescriptor;
use belady_base::open_files;
use belady_base::sync::Arc;

use super::messages::{LENGTH, RendezvousMessage};

/// A connection that forked children do not inherit: while a child runs, the other end would not
/// notice that this process has ended.
pub type Connection = OwnDescriptor<TcpStream>;

/// Wraps a connection, at a descriptor outside of those for reads if there is one. Idle connections
/// are closed first; without this connection there is no job.
pub fn own(stream: TcpStream) -> io::Result<Connection> {
    let descriptor = OwnedFd::from(stream);
    if open_files::is_for_reads(&descriptor) {
        open_files::close_idle();
    }
    OwnDescriptor::of(TcpStream::from(open_files::moved_down_or_kept(descriptor)))
}

/// Reads messages from a connection. Memory grows with the bytes that arrive, not with the length
/// that the other side announces.
#[derive(Debug)]
pub struct Frames {
    stream: Arc<Connection>,
    longest: usize,
    /// Bytes that have arrived.
    came: Vec<u8>,
    /// When the last byte arrived: a long message on a slow link is not silence.
    heard: Instant,
}

/// Enough time to read what has arrived already.
const AT_ONCE: Duration = Duration::from_millis(1);

impl Frames {
    pub fn new(stream: impl Into<Arc<Connection>>, longest: usize) -> Self {
        Self { stream: stream.into(), longest, came: vec![], heard: Instant::now() }
    }

    pub fn stream(&self) -> &Arc<Connection> {
        &self.stream
    }

    pub fn say(&mut self, message: &RendezvousMessage) -> io::Result<()> {
        (&**self.stream).write_all(&message.to_frame())
    }

    pub fn set_longest(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// Returns how long no byte has arrived.
    pub fn silent_for(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Returns the next message, however long it takes to arrive; `None` once the other side is
    /// silent for `silence`.
    pub fn next_unless_silent(
        &mut self,
        silence: Duration,
    ) -> io::Result<Option<RendezvousMessage>> {
        loop {
            let left = silence.saturating_sub(self.silent_for()).max(AT_ONCE);
            match self.next(left)? {
                None if self.silent_for() < silence => {}
                heard => return Ok(heard),
            }
        }
    }

    /// Returns the next message; `None` if it does not arrive in time.
    pub fn next(&mut self, within: Duration) -> io::Result<Option<RendezvousMessage>> {
        let until = Instant::now() + within;
        loop {
            if let Some(message) = self.complete()? {
                return Ok(Some(message));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut piece = [0; 16 << 10];
            match (&**self.stream).read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.heard = Instant::now();
                    self.came.extend_from_slice(&piece[..read]);
                }
                Err(error) if is_time_over(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns a message that has arrived completely.
    fn complete(&mut self) -> io::Result<Option<RendezvousMessage>> {
        let Some((length, rest)) = self.came.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let garbled = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if length > self.longest {
            return Err(garbled("a message exceeds the limit"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = RendezvousMessage::from_body(body)
            .ok_or_else(|| garbled("a message cannot be decoded"))?;
        self.came.drain(..LENGTH + length);
        Ok(Some(message))
    }
}

fn is_time_over(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection with one deadline for all reads and writes, however slowly bytes arrive.
#[derive(Debug)]
pub struct DeadlineStream<'a> {
    pub stream: &'a TcpStream,
    pub until: Instant,
}

impl DeadlineStream<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        let outcome = self.stream.read(into);
        outcome.map_err(|it| if is_time_over(&it) { io::ErrorKind::TimedOut.into() } else { it })
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use proptest::prelude::*;

    use super::super::messages::TO_SERVER;
    use super::super::messages::tests::message;
    use super::*;

    proptest! {
        #[test]
        fn messages_survive_any_fragmentation(
            messages in prop::collection::vec(message(), 1..6), cuts in prop::collection::vec(1usize..30, 1..8)
        ) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut frames = Frames::new(own(listener.accept().unwrap().0).unwrap(), 4096);
            let bytes: Vec<u8> = messages.iter().flat_map(RendezvousMessage::to_frame).collect();
            let (mut at, mut got) = (0, vec![]);
            for cut in cuts.iter().cycle() {
                if at == bytes.len() {
                    break;
                }
                let end = bytes.len().min(at + cut);
                writer.write_all(&bytes[at..end]).unwrap();
                at = end;
                if cut % 2 == 0 {
                    got.extend(frames.next(Duration::from_micros(1)).unwrap());
                }
            }
            while got.len() < messages.len() {
                got.extend(frames.next(Duration::from_mins(1)).unwrap());
            }
            prop_assert_eq!(got, messages);
            drop(writer);
            prop_assert!(frames.next(Duration::from_mins(1)).is_err());
        }
    }

    #[test]
    fn a_message_with_a_huge_length_is_refused_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut frames = Frames::new(own(listener.accept().unwrap().0).unwrap(), TO_SERVER);
        writer.write_all(&u64::MAX.to_le_bytes()).unwrap();
        let error = frames.next(Duration::from_mins(1)).unwrap_err();
        assert!(error.to_string().contains("exceeds the limit"));
    }
}
