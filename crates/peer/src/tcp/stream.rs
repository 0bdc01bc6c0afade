//! A connection with or without TLS, and a reader that reads ahead.

use std::io::{self, IoSlice, Read, Write};

use super::frame::{FrameError, FrameHeader, HEADER};
use super::socket::{Limit, Socket};
use super::tls::Session;
use crate::wire::WireMessage;

/// A connection with or without TLS.
#[derive(Debug)]
pub enum PeerStream {
    Plain(Socket),
    Tls(Box<Session>),
}

impl PeerStream {
    pub fn set_limit(&mut self, limit: Limit) {
        match self {
            Self::Plain(socket) => socket.set_limit(limit),
            Self::Tls(session) => session.socket.set_limit(limit),
        }
    }

    /// Returns a number that only the two ends of this connection know if it uses TLS, else zero.
    pub fn binding(&self) -> io::Result<[u8; 32]> {
        match self {
            Self::Plain(_) => Ok([0; 32]),
            Self::Tls(session) => session.binding(),
        }
    }
}

impl Read for PeerStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(session) => session.read(into),
        }
    }

    fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.read_exact(into),
            Self::Tls(session) => session.read_exact(into),
        }
    }
}

impl Write for PeerStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(session) => session.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write_vectored(pieces),
            Self::Tls(session) => session.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(session) => session.flush(),
        }
    }
}

/// Why a conversation cannot continue.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants mean")]
pub enum TalkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Other(String),
}

/// Reads ahead, so that one system call returns many small pieces; large ones go straight to their
/// destination.
#[derive(Debug)]
pub struct StreamReader<S> {
    pub stream: S,
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// How many bytes are read ahead now: few after a large piece, since another may follow, then
    /// more.
    window: usize,
}

/// Pieces of this size are not read ahead: copying them costs more than a system call.
const DIRECT: usize = 16 << 10;
/// A frame header and some entries.
const LITTLE: usize = 2 << 10;

impl<S: Read> StreamReader<S> {
    /// Creates a reader that reads `ahead` bytes ahead.
    pub fn new(stream: S, ahead: usize) -> Self {
        Self { stream, ahead: vec![0; ahead].into(), start: 0, end: 0, window: ahead.min(LITTLE) }
    }

    pub fn read_exact(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            if self.start == self.end {
                if into.len() >= DIRECT {
                    self.window = self.ahead.len().min(LITTLE);
                    return self.stream.read_exact(into);
                }
                self.fill()?;
            }
            let had = (self.end - self.start).min(into.len());
            let (now, later) = into.split_at_mut(had);
            now.copy_from_slice(&self.ahead[self.start..][..had]);
            self.start += had;
            into = later;
        }
        Ok(())
    }

    /// Reads at least one byte.
    fn fill(&mut self) -> io::Result<()> {
        (self.start, self.end) = (0, 0);
        match self.stream.read(&mut self.ahead[..self.window]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.end = count;
                if count == self.window {
                    self.window = self.ahead.len().min(2 * self.window);
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Skips bytes.
    pub fn skip(&mut self, mut bytes: u64) -> io::Result<()> {
        let mut piece = vec![0; DIRECT];
        while bytes > 0 {
            let now = usize::try_from(bytes).unwrap_or(usize::MAX).min(piece.len());
            self.read_exact(&mut piece[..now])?;
            bytes -= now as u64;
        }
        Ok(())
    }

    /// Waits until there is something to read; returns false when the other side has ended.
    pub fn is_there(&mut self) -> io::Result<bool> {
        while self.start == self.end {
            match self.fill() {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                other => other?,
            }
        }
        Ok(true)
    }

    /// Reads a frame; its body replaces what is in `body`.
    pub fn read_message(&mut self, body: &mut Vec<u8>) -> Result<WireMessage<'static>, TalkError> {
        let mut header = [0; HEADER];
        self.read_exact(&mut header)?;
        let header = FrameHeader::decode(&header)?;
        body.resize(header.body as usize, 0);
        self.read_exact(body)?;
        Ok(header.message(body)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns its bytes in pieces of these sizes.
    struct Pieces<'a>(&'a [u8], Vec<usize>);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = self.1.pop().unwrap_or(usize::MAX).min(into.len());
            self.0.read(&mut into[..most])
        }
    }

    proptest! {
        #[test]
        fn reading_ahead_loses_and_reorders_nothing(
            lengths in prop::collection::vec(prop_oneof![0..50usize, DIRECT - 2..DIRECT + 50], 0..9),
            pieces in prop::collection::vec(1..2 * DIRECT, 0..20),
            ahead in 1..2 * DIRECT,
        ) {
            let all: Vec<u8> = (0..lengths.iter().sum::<usize>()).map(|at| (at % 251) as u8).collect();
            let mut reader = StreamReader::new(Pieces(&all, pieces), ahead);
            let mut seen = vec![];
            for length in lengths {
                let mut part = vec![0; length];
                reader.read_exact(&mut part).unwrap();
                seen.extend(part);
            }
            prop_assert!(seen == all);
            prop_assert!(!reader.is_there().unwrap());
            prop_assert!(reader.read_exact(&mut [0]).is_err());
        }
    }
}
