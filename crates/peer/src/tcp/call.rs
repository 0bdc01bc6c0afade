//! The side of a connection that asks.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use belady_data::sync::Arc;

use super::frame::{self, Kind, Writer};
use super::socket::{Descriptor, Limit, Moving, hang_up, write_all};
use super::wire::{Reader, TalkError, Wire};
use crate::desk::Channel;
use crate::transport::{Answer, Notice, Push, Receive, Request, Taken};

/// Read ahead: some dozens of small samples.
const AHEAD: usize = 64 << 10;

/// A connection on which this node asks.
#[derive(Debug)]
pub struct Connection {
    reader: Reader<Wire>,
    writer: Writer,
    /// The last body that was read.
    body: Vec<u8>,
    /// Of the peer.
    pub incarnation: u64,
    descriptor: Arc<Descriptor>,
    process: u32,
    /// Something was answered in this conversation.
    pub answered: bool,
}

impl Connection {
    pub fn new(wire: Wire, descriptor: Arc<Descriptor>) -> Self {
        Self {
            reader: Reader::new(wire, AHEAD),
            writer: Writer::default(),
            body: vec![],
            incarnation: 0,
            descriptor,
            process: std::process::id(),
            answered: false,
        }
    }

    pub fn wire(&mut self) -> &mut Wire {
        &mut self.reader.stream
    }

    /// What follows has failed when nothing has moved for so long, or since it began.
    pub fn begin(&mut self, began: Instant, patience: Duration) {
        self.answered = false;
        self.wire().set_limit(Limit::Moving(Moving::since(began, patience)));
    }

    fn receive(&mut self, kind: Kind) -> Result<frame::Head, TalkError> {
        let head = self.reader.read_frame(&mut self.body)?;
        self.answered = true;
        if head.kind != kind {
            return Err(TalkError::Other(format!("{:?} where {kind:?} was due", head.kind)));
        }
        Ok(head)
    }

    /// Whether the peer takes this connection: the first that it says. False: it has too many.
    pub fn is_welcome(&mut self) -> Result<bool, TalkError> {
        let head = self.reader.read_frame(&mut self.body)?;
        match head.kind {
            Kind::Welcome => Ok(true),
            Kind::Full => Ok(false),
            kind => Err(TalkError::Other(format!("{kind:?} as its first word"))),
        }
    }

    pub fn get(&mut self, request: &Request<'_>, into: &mut dyn Receive) -> Result<(), TalkError> {
        let mut first = 0;
        for asks in request.asks.chunks(frame::ASKS) {
            self.writer.begin();
            for &ask in asks {
                self.writer.ask(ask);
            }
            let frame = self.writer.end(Kind::Get, request.channel.0, request.epoch);
            write_all(&mut self.reader.stream, &mut [IoSlice::new(frame)])?;
            let mut done = 0;
            while done < asks.len() {
                done += self.receive_replies(first + done, asks.len() - done, into)?;
            }
            first += asks.len();
        }
        Ok(())
    }

    /// One frame of replies, to samples from `first` on, of which `open` are to be answered.
    fn receive_replies(
        &mut self,
        first: usize,
        open: usize,
        into: &mut dyn Receive,
    ) -> Result<usize, TalkError> {
        let head = self.receive(Kind::Replies)?;
        let count = frame::replies(&head, &self.body, open)?;
        for at in 0..count {
            let (length, answer) = frame::reply(&self.body, at)?;
            if let Answer::Here { .. } = answer {
                let slot = into.slot(first + at);
                if slot.len() as u64 != length {
                    let what = format!("{length} bytes instead of {}", slot.len());
                    return Err(TalkError::Other(what));
                }
                self.reader.read_exact(slot)?;
            }
            into.answered(first + at, answer);
        }
        Ok(count)
    }

    pub fn put(
        &mut self,
        channel: Channel,
        pushes: &[Push<'_>],
        outcomes: &mut Vec<Taken>,
    ) -> Result<(), TalkError> {
        let mut rest = pushes;
        while let Some(first) = rest.first() {
            let (now, later) = rest.split_at(in_one_frame(rest));
            self.writer.begin();
            for push in now {
                self.writer.push(push);
            }
            let mut pieces = Vec::with_capacity(now.len() + 1);
            pieces.push(IoSlice::new(self.writer.end(Kind::Put, channel.0, first.epoch)));
            pieces.extend(now.iter().map(|push| IoSlice::new(push.bytes)));
            write_all(&mut self.reader.stream, &mut pieces)?;
            let head = self.receive(Kind::Taken)?;
            frame::taken(&head, &self.body, now.len(), outcomes)?;
            rest = later;
        }
        Ok(())
    }

    pub fn tell(&mut self, channel: Channel, notice: &Notice) -> Result<(), TalkError> {
        match notice {
            Notice::Released { epoch, samples } => {
                for samples in samples.chunks(frame::NAMES) {
                    self.tell_one(
                        channel,
                        &Notice::Released { epoch: *epoch, samples: samples.to_vec() },
                    )?;
                }
                Ok(())
            }
            Notice::EpochDone { .. } | Notice::Loaded { .. } | Notice::Left => {
                self.tell_one(channel, notice)
            }
        }
    }

    fn tell_one(&mut self, channel: Channel, notice: &Notice) -> Result<(), TalkError> {
        self.writer.begin();
        self.writer.notice(notice);
        let frame = self.writer.end(Kind::Tell, channel.0, 0);
        write_all(&mut self.reader.stream, &mut [IoSlice::new(frame)])?;
        self.receive(Kind::Heard).map(drop)
    }
}

/// How many pushes go together: those of one epoch, few or one that is large.
fn in_one_frame(pushes: &[Push<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |push: &&Push<'_>| {
        bytes += push.bytes.len();
        bytes <= frame::TOGETHER && push.epoch == pushes[0].epoch
    };
    pushes.iter().take(frame::PUSHES).take_while(fits).count().max(1)
}

/// Ends it at both ends, also where a forked child has it too; but the child must not do that.
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
    fn pushes_go_together_until_they_are_too_many_or_too_large() {
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
