//! The side of a connection that serves: it takes requests to the desk and brings replies back.
//!
//! Replies go out in chunks, straight from the memory that tiers lend. A chunk is lent only while it is
//! written, so a peer that reads slowly holds on to little, and one that does not read at all is given
//! up after [`super::STALL`].

use std::io::{IoSlice, Read, Write};
use std::time::Duration;

use belady_data::memory::Memory;

use super::frame::{self, Coming, Head, Kind, Writer};
use super::shared::Budget;
use super::socket::write_all;
use super::wire::{Reader, TalkError};
use crate::NodeId;
use crate::desk::{Channel, Desk};
use crate::transport::{Answer, Ask, Push, Reply, Request, Taken};

/// Bytes of a chunk of replies, after which none is added.
const CHUNK: usize = 1 << 20;
/// Requests are short.
const AHEAD: usize = 4 << 10;
/// Pushes together no larger than this are received into memory that the connection keeps.
const KEPT: usize = 2 << 20;
/// Larger ones wait so long for memory, in which others are received; then there is no room.
const WAIT: Duration = Duration::from_secs(2);

/// What one connection needs to serve.
#[derive(Debug)]
pub struct Conversation<'a, S> {
    reader: Reader<S>,
    writer: Writer,
    body: Vec<u8>,
    asks: Vec<Ask>,
    kept: Vec<u8>,
    desk: &'a Desk,
    memory: &'a Budget,
    /// Who asks.
    from: NodeId,
}

impl<'a, S: Read + Write> Conversation<'a, S> {
    pub fn new(stream: S, from: NodeId, desk: &'a Desk, memory: &'a Budget) -> Self {
        Self {
            reader: Reader::new(stream, AHEAD),
            writer: Writer::default(),
            body: vec![],
            asks: vec![],
            kept: vec![],
            desk,
            memory,
            from,
        }
    }

    /// A word without anything else.
    pub fn say(&mut self, kind: Kind) -> Result<(), TalkError> {
        self.writer.begin();
        let frame = self.writer.end(kind, 0, 0);
        Ok(write_all(&mut self.reader.stream, &mut [IoSlice::new(frame)])?)
    }

    /// Serves until the other side ends the connection.
    pub fn serve(&mut self) -> Result<(), TalkError> {
        while self.reader.is_there()? {
            let head = self.reader.read_frame(&mut self.body)?;
            match head.kind {
                Kind::Get => self.get(&head)?,
                Kind::Put => self.put(&head)?,
                Kind::Tell => {
                    let notice = frame::notice(&head, &self.body)?;
                    self.desk.told(self.from, Channel(head.channel), &notice);
                    self.say(Kind::Heard)?;
                }
                kind => return Err(TalkError::Other(format!("{kind:?}, which is no request"))),
            }
        }
        Ok(())
    }

    fn get(&mut self, head: &Head) -> Result<(), TalkError> {
        frame::asks(head, &self.body, &mut self.asks)?;
        let (channel, epoch) = (Channel(head.channel), head.epoch);
        let mut replies = vec![];
        let mut at = 0;
        while at < self.asks.len() {
            let asks = &self.asks[at..];
            self.desk.get(self.from, &Request { channel, epoch, asks }, CHUNK, &mut replies);
            replies.truncate(asks.len());
            if replies.is_empty() {
                // A job that cannot even say that it is busy.
                replies.push(Reply::Busy);
            }
            at += replies.len();
            reply(&mut self.reader.stream, &mut self.writer, &replies)?;
            // What was lent goes back before more is lent.
            replies.clear();
        }
        Ok(())
    }

    fn put(&mut self, head: &Head) -> Result<(), TalkError> {
        let (coming, bytes) = frame::pushes(head, &self.body)?;
        let channel = Channel(head.channel);
        let declined = |push: &Coming| self.desk.declines(channel, push.sample, push.length);
        if let Some(taken) = coming.iter().find_map(declined) {
            return self.refuse(&coming, bytes, taken);
        }
        // Of one sample that there is, or of few small ones.
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (share, mut large);
        let room = if length <= KEPT {
            let kept = self.kept.len().max(length);
            self.kept.resize(kept, 0);
            &mut self.kept[..length]
        } else {
            share = self.memory.take(length, WAIT);
            let memory = share.as_ref().and_then(|_| Memory::try_zeroed(length));
            let Some(memory) = memory else {
                return self.refuse(&coming, bytes, Taken::NoRoom);
            };
            large = memory;
            &mut large[..]
        };
        self.reader.read_exact(room)?;
        let mut rest = &*room;
        let pushes = coming.iter().map(|push| {
            // They are as long as the room together.
            let (bytes, later) = rest.split_at(push.length as usize);
            rest = later;
            Push {
                sample: push.sample,
                tier: push.tier,
                epoch: head.epoch,
                digest: push.digest,
                version: push.version,
                bytes,
            }
        });
        let pushes: Vec<_> = pushes.collect();
        let mut taken = self.desk.put(self.from, channel, &pushes);
        taken.resize(pushes.len(), Taken::Refused);
        self.answer_pushes(&taken)
    }

    /// Passes over pushes that cannot be taken.
    fn refuse(&mut self, coming: &[Coming], bytes: u64, taken: Taken) -> Result<(), TalkError> {
        self.reader.skip(bytes)?;
        self.answer_pushes(&vec![taken; coming.len()])
    }

    fn answer_pushes(&mut self, taken: &[Taken]) -> Result<(), TalkError> {
        self.writer.begin();
        for &taken in taken {
            self.writer.taken(taken);
        }
        let frame = self.writer.end(Kind::Taken, 0, 0);
        Ok(write_all(&mut self.reader.stream, &mut [IoSlice::new(frame)])?)
    }
}

/// Writes one chunk.
fn reply<S: Write>(
    stream: &mut S,
    writer: &mut Writer,
    replies: &[Reply],
) -> Result<(), TalkError> {
    writer.begin();
    for reply in replies {
        match reply {
            &Reply::Here { ref bytes, digest, version } => {
                writer.reply(bytes.len() as u64, Answer::Here { digest, version });
            }
            Reply::NotHere => writer.reply(0, Answer::NotHere),
            Reply::NotYet => writer.reply(0, Answer::NotYet),
            Reply::Busy => writer.reply(0, Answer::Busy),
        }
    }
    let mut pieces = Vec::with_capacity(replies.len() + 1);
    pieces.push(IoSlice::new(writer.end(Kind::Replies, 0, 0)));
    pieces.extend(replies.iter().filter_map(|reply| match reply {
        Reply::Here { bytes, .. } => Some(IoSlice::new(bytes)),
        _ => None,
    }));
    Ok(write_all(stream, &mut pieces)?)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Weak;

    use belady_data::sync::Arc;

    use super::*;
    use crate::desk::Serve;
    use crate::transport::Notice;

    /// What a peer has said, and what it is answered.
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

    impl Serve for Nothing {
        fn get(&self, _: NodeId, _: &Request<'_>, _: usize, _: &mut Vec<Reply>) {}

        fn put(&self, _: NodeId, _: &[Push<'_>], _: &mut Vec<Taken>) {}

        fn told(&self, _: NodeId, _: &Notice) {}
    }

    #[test]
    fn a_push_to_a_job_that_is_not_there_takes_no_memory() {
        let bytes = vec![1; KEPT + 1];
        let mut writer = Writer::default();
        writer.begin();
        writer.push(&Push { sample: 3, tier: 1, epoch: 0, digest: 0, version: 0, bytes: &bytes });
        let said = [writer.end(Kind::Put, 7, 0), &bytes].concat();
        let desk: Arc<Desk> = Arc::default();
        // The last job of this process has ended.
        drop(desk.open(Channel(7), Weak::<Nothing>::new()));
        let memory = Budget::new(1);
        let _none_is_left = memory.take(1, Duration::ZERO).unwrap();
        let peer = Peer(io::Cursor::new(said), vec![]);
        let mut conversation = Conversation::new(peer, 0, &desk, &memory);
        conversation.serve().unwrap();
        let mut answer = Reader::new(&conversation.reader.stream.1[..], AHEAD);
        let (mut body, mut taken) = (vec![], vec![]);
        let head = answer.read_frame(&mut body).unwrap();
        frame::taken(&head, &body, 1, &mut taken).unwrap();
        assert_eq!(taken, [Taken::Refused], "it is not looked whether there is memory");
    }
}
