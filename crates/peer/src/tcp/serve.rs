//! The serving side of a connection: passes requests to the dispatcher and writes the replies.
//!
//! Replies are written in chunks, straight from the memory of tiers. Samples are pinned only while
//! their chunk is written, so a peer that reads slowly pins little, and one that does not read at
//! all is given up after [`super::STALL`].

use std::io::{IoSlice, Read, Write};
use std::time::Duration;

use belady_base::memory::Memory;

use super::frame;
use super::shared::MemoryBudget;
use super::socket::write_all;
use super::stream::{StreamReader, TalkError};
use crate::NodeId;
use crate::dispatcher::Dispatcher;
use crate::message::{Ask, Channel, GetReply, GetRequest, PushOutcome};
use crate::wire::{PushHeader, WireMessage};

/// A chunk of replies ends when it exceeds this many bytes.
const CHUNK: usize = 1 << 20;
/// Bytes to read ahead: requests are short.
const AHEAD: usize = 4 << 10;
/// Pushes of up to this size are received into memory that the connection keeps.
const KEPT: usize = 2 << 20;
/// How long larger pushes wait for memory before the sender is told that there is no space.
const WAIT: Duration = Duration::from_secs(2);

/// A connection that is served.
#[derive(Debug)]
pub struct Conversation<'a, S> {
    reader: StreamReader<S>,
    /// The last frame that was written, or the last body that was read.
    buffer: Vec<u8>,
    kept: Vec<u8>,
    dispatcher: &'a Dispatcher,
    memory: &'a MemoryBudget,
    /// The rank at the other end.
    from: NodeId,
}

impl<'a, S: Read + Write> Conversation<'a, S> {
    pub fn new(
        stream: S,
        from: NodeId,
        dispatcher: &'a Dispatcher,
        memory: &'a MemoryBudget,
    ) -> Self {
        let reader = StreamReader::new(stream, AHEAD);
        Self { reader, buffer: vec![], kept: vec![], dispatcher, memory, from }
    }

    /// Sends a message without samples.
    pub fn say(&mut self, message: &WireMessage<'_>) -> Result<(), TalkError> {
        frame::write(&mut self.buffer, message);
        Ok(write_all(&mut self.reader.stream, &mut [IoSlice::new(&self.buffer)])?)
    }

    /// Serves until the other side ends the connection.
    pub fn serve(&mut self) -> Result<(), TalkError> {
        while self.reader.is_there()? {
            match self.reader.read_message(&mut self.buffer)? {
                WireMessage::Get { channel, epoch, asks } => self.get(channel, epoch, &asks)?,
                WireMessage::Put { channel, pushes } => self.put(channel, &pushes)?,
                WireMessage::Tell { channel, notice } => {
                    self.dispatcher.told(self.from, channel, &notice);
                    self.say(&WireMessage::Heard)?;
                }
                _ => return Err(TalkError::Other("a message that is not a request".to_owned())),
            }
        }
        Ok(())
    }

    fn get(&mut self, channel: Channel, epoch: u32, asks: &[Ask]) -> Result<(), TalkError> {
        if asks.len() > frame::ASKS {
            return Err(TalkError::Other(format!("{} asks in one request", asks.len())));
        }
        let mut replies = vec![];
        let mut at = 0;
        while at < asks.len() {
            let asks = &asks[at..];
            let request = GetRequest { channel, epoch, asks };
            self.dispatcher.get(self.from, &request, CHUNK, &mut replies);
            replies.truncate(asks.len());
            if replies.is_empty() {
                // The handler broke its promise to give at least one.
                replies.push(GetReply::Busy);
            }
            at += replies.len();
            self.reply(&replies)?;
            // Pins are released before more samples are pinned.
            replies.clear();
        }
        Ok(())
    }

    /// Writes one chunk of replies.
    fn reply(&mut self, replies: &[GetReply]) -> Result<(), TalkError> {
        let headers = replies.iter().map(Into::into).collect();
        frame::write(&mut self.buffer, &WireMessage::Replies(headers));
        let mut pieces = Vec::with_capacity(replies.len() + 1);
        pieces.push(IoSlice::new(&self.buffer));
        pieces.extend(replies.iter().filter_map(|reply| match reply {
            GetReply::Here { bytes, .. } => Some(IoSlice::new(bytes)),
            _ => None,
        }));
        Ok(write_all(&mut self.reader.stream, &mut pieces)?)
    }

    fn put(&mut self, channel: Channel, pushes: &[PushHeader]) -> Result<(), TalkError> {
        let sum = |sum: u64, push: &PushHeader| sum.checked_add(push.length);
        let bytes = pushes.iter().try_fold(0, sum).unwrap_or(u64::MAX);
        if pushes.len() > 1 && bytes > frame::TOGETHER as u64 {
            let what = format!("{} pushes of {bytes} bytes in one frame", pushes.len());
            return Err(TalkError::Other(what));
        }
        let declined =
            |push: &PushHeader| self.dispatcher.declines(channel, push.sample, push.length);
        if let Some(outcome) = pushes.iter().find_map(declined) {
            return self.refuse(pushes, bytes, outcome);
        }
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (share, mut large);
        let memory = if length <= KEPT {
            let kept = self.kept.len().max(length);
            self.kept.resize(kept, 0);
            &mut self.kept[..length]
        } else {
            share = self.memory.take(length, WAIT);
            let memory = share.as_ref().and_then(|_| Memory::try_zeroed(length));
            let Some(memory) = memory else {
                return self.refuse(pushes, bytes, PushOutcome::NoSpace);
            };
            large = memory;
            &mut large[..]
        };
        self.reader.read_exact(memory)?;
        let mut rest = &*memory;
        let pushes = pushes.iter().map(|push| {
            let (own, later) = rest.split_at(push.length as usize);
            rest = later;
            push.with(own)
        });
        let pushes: Vec<_> = pushes.collect();
        let mut outcomes = self.dispatcher.put(self.from, channel, &pushes);
        outcomes.resize(pushes.len(), PushOutcome::Refused);
        self.say(&WireMessage::Outcomes(outcomes.into()))
    }

    /// Skips the bytes of pushes that are not accepted.
    fn refuse(
        &mut self,
        pushes: &[PushHeader],
        bytes: u64,
        outcome: PushOutcome,
    ) -> Result<(), TalkError> {
        self.reader.skip(bytes)?;
        self.say(&WireMessage::Outcomes(vec![outcome; pushes.len()].into()))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Weak;

    use belady_base::sync::Arc;

    use super::*;
    use crate::dispatcher::Handler;
    use crate::message::{Notice, Push};

    /// A peer's requests, and the replies to it.
    struct Peer(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Peer {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Nothing;

    impl Handler for Nothing {
        fn get(&self, _: NodeId, _: &GetRequest<'_>, _: usize, _: &mut Vec<GetReply>) {}

        fn put(&self, _: NodeId, _: &[Push<'_>], _: &mut Vec<PushOutcome>) {}

        fn told(&self, _: NodeId, _: &Notice) {}
    }

    #[test]
    fn a_push_to_an_unknown_job_takes_no_memory() {
        let bytes = vec![1; KEPT + 1];
        let push = Push { sample: 3, tier: 1, epoch: 0, digest: 0, version: 0, bytes: &bytes };
        let mut said = vec![];
        let message = WireMessage::Put { channel: Channel(7), pushes: vec![(&push).into()] };
        frame::write(&mut said, &message);
        said.extend(&bytes);
        let dispatcher: Arc<Dispatcher> = Arc::default();
        // The last job of this process has ended.
        drop(dispatcher.register(Channel(7), Weak::<Nothing>::new()));
        let memory = MemoryBudget::new(1);
        let _none_is_left = memory.take(1, Duration::ZERO).unwrap();
        let peer = Peer(io::Cursor::new(said), vec![]);
        let mut conversation = Conversation::new(peer, 0, &dispatcher, &memory);
        conversation.serve().unwrap();
        let mut answer = StreamReader::new(&conversation.reader.stream.1[..], AHEAD);
        let outcomes = answer.read_message(&mut vec![]).unwrap();
        let refused = WireMessage::Outcomes(vec![PushOutcome::Refused].into());
        assert_eq!(outcomes, refused, "whether there is memory is not tried");
    }
}
