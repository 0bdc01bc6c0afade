//! The calling side of a connection.

use std::borrow::Cow;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use belady_base::sync::Arc;

use super::frame;
use super::socket::{Descriptor, Limit, Moving, hang_up, write_all};
use super::stream::{PeerStream, StreamReader, TalkError};
use crate::message::{Answer, Channel, GetRequest, Notice, Push, PushOutcome, Receive};
use crate::wire::WireMessage;

/// Bytes to read ahead: some dozens of small samples.
const AHEAD: usize = 64 << 10;

/// A connection on which this node makes calls.
#[derive(Debug)]
pub struct Connection {
    reader: StreamReader<PeerStream>,
    /// The last frame that was written, or the last body that was read.
    buffer: Vec<u8>,
    /// The peer's incarnation.
    pub incarnation: u64,
    descriptor: Arc<Descriptor>,
    process: u32,
    /// The peer has answered something in this call.
    pub answered: bool,
}

impl Connection {
    pub fn new(wire: PeerStream, descriptor: Arc<Descriptor>) -> Self {
        Self {
            reader: StreamReader::new(wire, AHEAD),
            buffer: vec![],
            incarnation: 0,
            descriptor,
            process: std::process::id(),
            answered: false,
        }
    }

    pub fn wire(&mut self) -> &mut PeerStream {
        &mut self.reader.stream
    }

    /// Starts a call, which fails when no byte has moved for `patience`, or since `began`.
    pub fn begin(&mut self, began: Instant, patience: Duration) {
        self.answered = false;
        self.wire().set_limit(Limit::Moving(Moving::since(began, patience)));
    }

    /// Sends a message and the bytes of samples after it.
    fn send<'a>(
        &mut self,
        message: &WireMessage<'_>,
        samples: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<(), TalkError> {
        frame::write(&mut self.buffer, message);
        let mut pieces = Vec::with_capacity(samples.len() + 1);
        pieces.push(IoSlice::new(&self.buffer));
        for bytes in samples {
            pieces.push(IoSlice::new(bytes));
        }
        Ok(write_all(&mut self.reader.stream, &mut pieces)?)
    }

    fn receive(&mut self) -> Result<WireMessage<'static>, TalkError> {
        let message = self.reader.read_message(&mut self.buffer)?;
        self.answered = true;
        Ok(message)
    }

    /// Reads the peer's first message, and returns whether the peer serves this connection: it
    /// refuses one too many.
    pub fn is_welcome(&mut self) -> Result<bool, TalkError> {
        match self.reader.read_message(&mut self.buffer)? {
            WireMessage::Welcome => Ok(true),
            WireMessage::Full => Ok(false),
            _ => Err(TalkError::Other("a first message that is not a welcome".to_owned())),
        }
    }

    pub fn get(
        &mut self,
        request: &GetRequest<'_>,
        into: &mut dyn Receive,
    ) -> Result<(), TalkError> {
        let &GetRequest { channel, epoch, asks } = request;
        let mut first = 0;
        for asks in asks.chunks(frame::ASKS) {
            let message = WireMessage::Get { channel, epoch, asks: asks.into() };
            self.send(&message, [].into_iter())?;
            let mut done = 0;
            while done < asks.len() {
                done += self.receive_replies(first + done, asks.len() - done, into)?;
            }
            first += asks.len();
        }
        Ok(())
    }

    /// Receives one frame of replies, to the samples from `first` on, of which `open` are
    /// unanswered.
    fn receive_replies(
        &mut self,
        first: usize,
        open: usize,
        into: &mut dyn Receive,
    ) -> Result<usize, TalkError> {
        let WireMessage::Replies(replies) = self.receive()? else { return Err(unfit()) };
        if replies.is_empty() || replies.len() > open {
            return Err(TalkError::Other(format!("{} replies to {open} asks", replies.len())));
        }
        for (at, reply) in (first..).zip(&replies) {
            let answer = reply.answer();
            if let Answer::Here { .. } = answer {
                let slot = into.slot(at);
                if slot.len() as u64 != reply.length() {
                    let what = format!("{} bytes instead of {}", reply.length(), slot.len());
                    return Err(TalkError::Other(what));
                }
                self.reader.read_exact(slot)?;
            }
            into.answered(at, answer);
        }
        Ok(replies.len())
    }

    pub fn put(
        &mut self,
        channel: Channel,
        pushes: &[Push<'_>],
        outcomes: &mut Vec<PushOutcome>,
    ) -> Result<(), TalkError> {
        let mut rest = pushes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(in_one_frame(rest));
            let headers = now.iter().map(Into::into).collect();
            let message = WireMessage::Put { channel, pushes: headers };
            self.send(&message, now.iter().map(|push| push.bytes))?;
            match self.receive()? {
                WireMessage::Outcomes(taken) if taken.len() == now.len() => {
                    outcomes.extend(&*taken);
                }
                _ => return Err(unfit()),
            }
            rest = later;
        }
        Ok(())
    }

    pub fn tell(&mut self, channel: Channel, notice: &Notice) -> Result<(), TalkError> {
        let Notice::Released { epoch, samples } = notice else {
            return self.tell_one(channel, Cow::Borrowed(notice));
        };
        for samples in samples.chunks(frame::NAMES) {
            let part = Notice::Released { epoch: *epoch, samples: samples.to_vec() };
            self.tell_one(channel, Cow::Owned(part))?;
        }
        Ok(())
    }

    fn tell_one(&mut self, channel: Channel, notice: Cow<'_, Notice>) -> Result<(), TalkError> {
        self.send(&WireMessage::Tell { channel, notice }, [].into_iter())?;
        if self.receive()? == WireMessage::Heard { Ok(()) } else { Err(unfit()) }
    }
}

fn unfit() -> TalkError {
    TalkError::Other("a reply that does not fit the request".to_owned())
}

/// Returns how many of the pushes go into one frame: some small ones, or one large one.
fn in_one_frame(pushes: &[Push<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |push: &&Push<'_>| {
        bytes += push.bytes.len();
        bytes <= frame::TOGETHER
    };
    pushes.iter().take(frame::PUSHES).take_while(fits).count().max(1)
}

/// Ends the connection for both ends, even if a forked child has a copy; the child itself must not.
impl Drop for Connection {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            hang_up(&self.descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::frame::TOGETHER;
    use super::*;

    #[test]
    fn a_frame_of_pushes_is_limited_in_number_and_size() {
        let bytes = vec![0; 2 * TOGETHER];
        let push = |length| Push {
            sample: 1,
            tier: 0,
            epoch: 0,
            digest: 0,
            version: 0,
            bytes: &bytes[..length],
        };
        assert_eq!(in_one_frame(&[push(0)]), 1);
        assert_eq!(in_one_frame(&vec![push(1); frame::PUSHES + 1]), frame::PUSHES);
        assert_eq!(in_one_frame(&[push(TOGETHER - 1), push(1), push(1)]), 2);
        assert_eq!(in_one_frame(&[push(1), push(2 * TOGETHER), push(1)]), 1);
        assert_eq!(in_one_frame(&[push(2 * TOGETHER), push(1)]), 1);
    }
}
