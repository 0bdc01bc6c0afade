//! Messages over a Unix socket, with descriptors.
//!
//! A message is its length in four bytes and its content as postcard writes it. Descriptors travel
//! with the length.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use belady_base::fork::OwnDescriptor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most descriptors of one message: the sockets of a job and the memory of its catalogs.
pub const MOST_DESCRIPTORS: usize = 64;
/// The longest message. Orders of some hundred million samples fit.
const LONGEST: usize = 1 << 30;
/// Memory is reserved in pieces, as the bytes arrive.
const PIECE: usize = 1 << 20;

/// One end of a socket. Forked children do not inherit it.
#[derive(Debug)]
pub struct Connection(OwnDescriptor<UnixStream>);

/// A message and its descriptors.
pub type Received<T> = (T, Vec<OwnedFd>);

impl Connection {
    /// Takes over a socket that this process has just opened.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        Ok(Self(OwnDescriptor::of(stream)?))
    }

    /// Returns a connection and the socket of its other end.
    pub fn pair() -> io::Result<(Self, UnixStream)> {
        let (here, there) = UnixStream::pair()?;
        Ok((Self::new(here)?, there))
    }

    /// Returns whether this process opened the socket, and is not a fork of that process.
    pub fn is_ours(&self) -> bool {
        self.0.is_ours()
    }

    /// Sends a message. Several threads may not send at once.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.send_with(message, &[])
    }

    /// Sends a message with descriptors.
    pub fn send_with(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut bytes = vec![0; 4];
        bytes = postcard::to_extend(message, bytes).map_err(io::Error::other)?;
        let length = bytes.len() - 4;
        if length > LONGEST {
            return Err(io::Error::other(format!("a message of {length} bytes is too long")));
        }
        bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        let sent = if descriptors.is_empty() { 0 } else { self.send_first(&bytes, descriptors)? };
        (&*self.0).write_all(&bytes[sent..])
    }

    fn send_first(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        let parts = [IoSlice::new(bytes)];
        Ok(sendmsg(&*self.0, &parts, &mut control, SendFlags::NOSIGNAL)?)
    }

    /// Waits for a message; `None` at the end of the connection.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<Received<T>>> {
        let (mut length, mut got, mut descriptors) = ([0; 4], 0, vec![]);
        while got < length.len() {
            let read = self.receive_first(&mut length[got..], &mut descriptors)?;
            match read {
                0 if got == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => got += read,
            }
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(io::Error::other(format!("a message claims {length} bytes")));
        }
        let mut bytes = vec![];
        while bytes.len() < length {
            let from = bytes.len();
            bytes.resize(length.min(from + PIECE), 0);
            (&*self.0).read_exact(&mut bytes[from..])?;
        }
        let message = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        Ok(Some((message, descriptors)))
    }

    fn receive_first(&self, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(bytes)];
        let received = loop {
            match recvmsg(&*self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                done => break done?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        Ok(received.bytes)
    }

    /// Waits until a message or the end of the connection has come; returns whether it has.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let limit = Timespec {
            tv_sec: patience.as_secs().cast_signed(),
            tv_nsec: patience.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&*self.0, PollFlags::IN)];
        match poll(&mut polled, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Seek;

    use proptest::prelude::*;

    use super::*;

    fn pair() -> (Connection, Connection) {
        let (here, there) = Connection::pair().unwrap();
        (here, Connection::new(there).unwrap())
    }

    #[test]
    fn a_message_brings_its_descriptors() {
        let (here, there) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"contents").unwrap();
        here.send_with(&("first", 7_u64), &[file.as_fd()]).unwrap();
        here.send(&("second", 8_u64)).unwrap();
        let ((text, number), mut files): Received<(String, u64)> =
            there.receive().unwrap().unwrap();
        assert_eq!((text.as_str(), number, files.len()), ("first", 7, 1));
        let mut file = File::from(files.remove(0));
        file.rewind().unwrap();
        let mut contents = String::new();
        file.read_to_string(&mut contents).unwrap();
        assert_eq!(contents, "contents");
        let (second, files): Received<(String, u64)> = there.receive().unwrap().unwrap();
        assert_eq!((second, files.len()), (("second".to_owned(), 8), 0));
    }

    #[test]
    fn the_end_of_a_connection_is_no_message() {
        let (here, there) = pair();
        assert!(!there.wait(Duration::from_millis(1)).unwrap());
        drop(here);
        assert!(there.wait(Duration::from_mins(1)).unwrap());
        assert!(there.receive::<u32>().unwrap().is_none());
    }

    #[test]
    fn a_message_that_is_cut_is_an_error() {
        let (here, there) = pair();
        (&*here.0).write_all(&[5, 0, 0, 0, 1]).unwrap();
        drop(here);
        assert_eq!(there.receive::<Vec<u8>>().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: Vec<u8>) {
            let (here, there) = pair();
            (&*here.0).write_all(&bytes).unwrap();
            drop(here);
            while let Ok(Some(_)) = there.receive::<crate::message::ToEngine>() {}
        }
    }
}
