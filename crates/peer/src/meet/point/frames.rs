//! Messages on a connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belady_data::fork::Own;
use belady_data::open_files;
use belady_data::sync::Arc;

use super::wire::{LENGTH, Message};

/// A connection that a forked child does not get: the other end would not see that this process has ended
/// for as long as the child runs.
pub type Connection = Own<TcpStream>;

/// Makes it one, at a descriptor that reads can do without if there is one. Idle connections go
/// first; without this one there is no job.
pub fn own(stream: TcpStream) -> io::Result<Connection> {
    let descriptor = OwnedFd::from(stream);
    if open_files::is_for_reads(&descriptor) {
        open_files::let_go();
    }
    Own::of(TcpStream::from(open_files::moved_down_or_kept(descriptor)))
}

/// Reads messages off a connection. Memory is taken as bytes come, not as somebody says they will.
#[derive(Debug)]
pub struct Frames {
    stream: Arc<Connection>,
    longest: usize,
    /// Bytes that have come.
    came: Vec<u8>,
    /// When the last of them came: a long message on a slow link is no silence.
    heard: Instant,
}

/// Enough to take what has come already.
const AT_ONCE: Duration = Duration::from_millis(1);

impl Frames {
    pub fn new(stream: impl Into<Arc<Connection>>, longest: usize) -> Self {
        Self { stream: stream.into(), longest, came: vec![], heard: Instant::now() }
    }

    pub fn stream(&self) -> &Arc<Connection> {
        &self.stream
    }

    pub fn say(&mut self, message: &Message) -> io::Result<()> {
        (&**self.stream).write_all(&message.to_frame())
    }

    pub fn set_longest(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// For how long not a byte has come.
    pub fn silent_for(&self) -> Duration {
        self.heard.elapsed()
    }

    /// The next message, however long it takes to come; `None` once the other side is silent.
    pub fn next_unless_silent(&mut self, silence: Duration) -> io::Result<Option<Message>> {
        loop {
            let left = silence.saturating_sub(self.silent_for()).max(AT_ONCE);
            match self.next(left)? {
                None if self.silent_for() < silence => {}
                heard => return Ok(heard),
            }
        }
    }

    /// The next message; `None` if it does not come within this time.
    pub fn next(&mut self, within: Duration) -> io::Result<Option<Message>> {
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

    /// A message that has come as a whole.
    fn complete(&mut self) -> io::Result<Option<Message>> {
        let Some((length, rest)) = self.came.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let garbled = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if length > self.longest {
            return Err(garbled("a message is longer than any may be"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = Message::from_body(body).ok_or_else(|| garbled("this is no message"))?;
        self.came.drain(..LENGTH + length);
        Ok(Some(message))
    }
}

fn is_time_over(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection of which everything must be over by some time, however slowly bytes drip.
#[derive(Debug)]
pub struct Hurried<'a> {
    pub stream: &'a TcpStream,
    pub until: Instant,
}

impl Hurried<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Hurried<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        let outcome = self.stream.read(into);
        outcome.map_err(|it| if is_time_over(&it) { io::ErrorKind::TimedOut.into() } else { it })
    }
}

impl Write for Hurried<'_> {
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

    use super::super::wire::TO_HOST;
    use super::super::wire::tests::message;
    use super::*;

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_they_were_cut(
            messages in prop::collection::vec(message(), 1..6), cuts in prop::collection::vec(1usize..30, 1..8)
        ) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut frames = Frames::new(own(listener.accept().unwrap().0).unwrap(), 4096);
            let bytes: Vec<u8> = messages.iter().flat_map(Message::to_frame).collect();
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
    fn a_message_that_says_it_is_huge_is_refused_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut frames = Frames::new(own(listener.accept().unwrap().0).unwrap(), TO_HOST);
        writer.write_all(&u64::MAX.to_le_bytes()).unwrap();
        let error = frames.next(Duration::from_mins(1)).unwrap_err();
        assert!(error.to_string().contains("longer than any may be"));
    }
}
