//! What a message has in it: numbers, the lowest byte first, and then the bytes of samples.
//!
//! A request begins with the number of the call and what it is; the reply to it begins with the same
//! number. Large samples of a reply follow in messages of their own, which are nothing but their
//! bytes: so MPI can take them from where they lie, and bring them over as a whole. MPI keeps
//! messages whole and says how long they are, so there are no frames here. Nothing that is read is
//! trusted: a message that makes no sense is `None`.

use super::Payload;
use crate::desk::Channel;
use crate::transport::{Answer, Ask, Notice, Push, Reply, Request, Taken};

/// Asks in one message: a few kilobytes.
pub const ASKS: usize = 1024;
/// Bytes of samples in one message. One sample may be more.
pub const BYTES: usize = 2 << 20;
/// The largest sample: MPI counts the bytes of a message in 31 bits, and what describes the samples
/// needs some of them.
pub const SAMPLE: usize = i32::MAX as usize - (1 << 20);
/// From here on a sample is a message of its own: a copy of less costs less than a message.
const LARGE: usize = 16 << 10;
/// Samples that one notice names.
const RELEASED: usize = 1 << 20;
/// Bytes that describe a push.
const PUSHED: usize = 33;

/// A request, as the one who serves it reads it.
#[derive(Debug)]
pub enum Asked<'a> {
    Get { channel: Channel, epoch: u32, asks: Vec<Ask> },
    Put { channel: Channel, pushes: Vec<Push<'a>> },
    Told { channel: Channel, notice: Notice },
}

const GET: u8 = 1;
const PUT: u8 = 2;
const EPOCH_DONE: u8 = 3;
const RELEASED_SAMPLES: u8 = 4;
const LOADED: u8 = 5;

const GOT: u8 = 6;
const TAKEN: u8 = 7;
const HEARD: u8 = 8;
const LEFT: u8 = 9;

const HERE: u8 = 1;
const NOT_HERE: u8 = 2;
const NOT_YET: u8 = 3;
const BUSY: u8 = 4;

const STORED: u8 = 1;
const NO_ROOM: u8 = 2;
const REFUSED: u8 = 3;

/// Of [`ASKS`] at most.
pub fn get(call: u64, request: &Request<'_>) -> Vec<u8> {
    let mut out = begin(call, GET, request.channel, 16 + 5 * request.asks.len());
    number(&mut out, request.epoch);
    number(&mut out, request.asks.len() as u32);
    for ask in request.asks {
        number(&mut out, ask.sample);
        out.push(ask.last_use.into());
    }
    out
}

pub fn put(call: u64, channel: Channel, pushes: &[Push<'_>]) -> Vec<u8> {
    let bytes: usize = pushes.iter().map(|push| push.bytes.len() + PUSHED).sum();
    let mut out = begin(call, PUT, channel, bytes);
    number(&mut out, pushes.len() as u32);
    for push in pushes {
        number(&mut out, push.sample);
        out.push(push.tier);
        number(&mut out, push.epoch);
        long(&mut out, push.digest);
        long(&mut out, push.version.cast_unsigned());
        long(&mut out, push.bytes.len() as u64);
    }
    for push in pushes {
        out.extend_from_slice(push.bytes);
    }
    out
}

/// A notice that names too many samples names the first of them: they are let go sooner than without
/// it, and nobody relies on it.
pub fn tell(call: u64, channel: Channel, notice: &Notice) -> Vec<u8> {
    match notice {
        Notice::Loaded { steps } => {
            let mut out = begin(call, LOADED, channel, 8);
            long(&mut out, *steps);
            out
        }
        Notice::EpochDone { epoch } => {
            let mut out = begin(call, EPOCH_DONE, channel, 4);
            number(&mut out, *epoch);
            out
        }
        Notice::Left => begin(call, LEFT, channel, 0),
        Notice::Released { epoch, samples } => {
            let samples = &samples[..samples.len().min(RELEASED)];
            let mut out = begin(call, RELEASED_SAMPLES, channel, 8 + 4 * samples.len());
            number(&mut out, *epoch);
            number(&mut out, samples.len() as u32);
            for &sample in samples {
                number(&mut out, sample);
            }
            out
        }
    }
}

fn begin(call: u64, kind: u8, channel: Channel, more: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(17 + more);
    long(&mut out, call);
    out.push(kind);
    number(&mut out, channel.0);
    out
}

fn number(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn long(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// The number of the call that a request or reply belongs to.
pub fn call(message: &[u8]) -> Option<u64> {
    Reader(message).long()
}

pub fn asked(message: &[u8]) -> Option<Asked<'_>> {
    let mut reader = Reader(message);
    reader.long()?;
    let kind = reader.byte()?;
    let channel = Channel(reader.number()?);
    let asked = match kind {
        GET => {
            let epoch = reader.number()?;
            let count = reader.count(5)?;
            let asks = (0..count)
                .map(|_| Some(Ask { sample: reader.number()?, last_use: reader.byte()? != 0 }))
                .collect::<Option<_>>()?;
            Asked::Get { channel, epoch, asks }
        }
        PUT => Asked::Put { channel, pushes: pushes(&mut reader)? },
        LOADED => Asked::Told { channel, notice: Notice::Loaded { steps: reader.long()? } },
        EPOCH_DONE => {
            Asked::Told { channel, notice: Notice::EpochDone { epoch: reader.number()? } }
        }
        LEFT => Asked::Told { channel, notice: Notice::Left },
        RELEASED_SAMPLES => {
            let epoch = reader.number()?;
            let count = reader.count(4)?;
            let samples = (0..count).map(|_| reader.number()).collect::<Option<_>>()?;
            Asked::Told { channel, notice: Notice::Released { epoch, samples } }
        }
        _ => return None,
    };
    reader.0.is_empty().then_some(asked)
}

fn pushes<'a>(reader: &mut Reader<'a>) -> Option<Vec<Push<'a>>> {
    let count = reader.count(PUSHED)?;
    let mut described = Reader(reader.take(PUSHED * count)?);
    (0..count)
        .map(|_| {
            let (sample, tier) = (described.number()?, described.byte()?);
            let epoch = described.number()?;
            let (digest, version) = (described.long()?, described.long()?.cast_signed());
            let length = described.long()?;
            let bytes = reader.take(usize::try_from(length).ok()?)?;
            Some(Push { sample, tier, epoch, digest, version, bytes })
        })
        .collect()
}

/// The reply to a get: what describes the samples with the small ones, and the large ones.
/// No more than [`BYTES`] and one sample: the caller comes again with the rest.
pub fn got(call: u64, mut replies: Vec<Reply>) -> (Vec<u8>, Vec<Payload>) {
    let mut bytes = 0;
    let enough = replies.iter().position(|reply| {
        bytes += if let Reply::Here { bytes, .. } = reply { bytes.len() } else { 0 };
        bytes > BYTES
    });
    replies.truncate(enough.map_or(replies.len(), |last| last + 1));
    let mut head = Vec::with_capacity(13 + 25 * replies.len());
    long(&mut head, call);
    head.push(GOT);
    number(&mut head, replies.len() as u32);
    let (mut small, mut large) = (vec![], vec![]);
    for reply in replies {
        match reply {
            // It is read from the source then.
            Reply::Here { bytes, .. } if bytes.len() > SAMPLE => head.push(NOT_HERE),
            Reply::Here { bytes, digest, version } => {
                head.push(HERE);
                long(&mut head, digest);
                long(&mut head, version.cast_unsigned());
                long(&mut head, bytes.len() as u64);
                if bytes.len() < LARGE { small.push(bytes) } else { large.push(bytes) }
            }
            Reply::NotHere => head.push(NOT_HERE),
            Reply::NotYet => head.push(NOT_YET),
            Reply::Busy => head.push(BUSY),
        }
    }
    for bytes in small {
        head.extend_from_slice(&bytes);
    }
    (head, large)
}

/// How long the messages are that come after a reply, in their order.
pub fn large(reply: &[u8]) -> Vec<usize> {
    let lengths = described(reply).map(|(described, _)| described).unwrap_or_default();
    let large: Vec<_> =
        lengths.into_iter().map(|(_, length)| length).filter(|&length| length >= LARGE).collect();
    // More than anybody sends.
    if large.iter().sum::<usize>() > BYTES + SAMPLE { vec![] } else { large }
}

/// What became of each sample, with its bytes: `large` has those that came after the reply.
pub fn read_got<'a>(reply: &'a [u8], large: &'a [u8]) -> Option<Vec<(Answer, &'a [u8])>> {
    let (described, small) = described(reply)?;
    let (mut small, mut large) = (Reader(small), Reader(large));
    let answers = described
        .into_iter()
        .map(|(answer, length)| {
            let bytes = if length < LARGE { small.take(length) } else { large.take(length) };
            Some((answer, bytes?))
        })
        .collect::<Option<_>>()?;
    (small.0.is_empty() && large.0.is_empty()).then_some(answers)
}

/// What became of each sample, and how long it is.
type Described = Vec<(Answer, usize)>;

/// What a reply says of each sample, and what comes after that.
fn described(reply: &[u8]) -> Option<(Described, &[u8])> {
    let mut reader = Reader(reply);
    reader.long()?;
    if reader.byte()? != GOT {
        return None;
    }
    let count = reader.count(1)?;
    let mut described = Vec::with_capacity(count);
    for _ in 0..count {
        described.push(match reader.byte()? {
            HERE => {
                let (digest, version) = (reader.long()?, reader.long()?.cast_signed());
                let length = usize::try_from(reader.long()?).ok()?;
                if length > SAMPLE {
                    return None;
                }
                (Answer::Here { digest, version }, length)
            }
            NOT_HERE => (Answer::NotHere, 0),
            NOT_YET => (Answer::NotYet, 0),
            BUSY => (Answer::Busy, 0),
            _ => return None,
        });
    }
    Some((described, reader.0))
}

/// The reply to a put.
pub fn taken(call: u64, taken: &[Taken]) -> Vec<u8> {
    let mut out = Vec::with_capacity(13 + taken.len());
    long(&mut out, call);
    out.push(TAKEN);
    number(&mut out, taken.len() as u32);
    out.extend(taken.iter().map(|taken| match taken {
        Taken::Stored => STORED,
        Taken::NoRoom => NO_ROOM,
        Taken::Refused => REFUSED,
    }));
    out
}

pub fn read_taken(message: &[u8]) -> Option<Vec<Taken>> {
    let mut reader = Reader(message);
    reader.long()?;
    if reader.byte()? != TAKEN {
        return None;
    }
    let count = reader.count(1)?;
    let taken = (0..count)
        .map(|_| match reader.byte()? {
            STORED => Some(Taken::Stored),
            NO_ROOM => Some(Taken::NoRoom),
            REFUSED => Some(Taken::Refused),
            _ => None,
        })
        .collect::<Option<_>>()?;
    reader.0.is_empty().then_some(taken)
}

/// The reply to a notice, and to what was not understood.
pub fn heard(call: u64) -> Vec<u8> {
    let mut out = call.to_le_bytes().to_vec();
    out.push(HEARD);
    out
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    fn long(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    /// How many there are, each of so many bytes at least: no more than there is room for.
    fn count(&mut self, each: usize) -> Option<usize> {
        let count = self.number()? as usize;
        (count <= self.0.len() / each).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use belady_data::memory::Memory;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn notices() -> impl Strategy<Value = Notice> {
        prop_oneof![
            any::<u64>().prop_map(|steps| Notice::Loaded { steps }),
            any::<u32>().prop_map(|epoch| Notice::EpochDone { epoch }),
            Just(Notice::Left),
            (any::<u32>(), vec(any::<u32>(), 0..20))
                .prop_map(|(epoch, samples)| Notice::Released { epoch, samples }),
        ]
    }

    /// Small and large ones.
    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..40, LARGE - 2..LARGE + 2]
    }

    proptest! {
        #[test]
        fn what_is_asked_is_read_as_it_was(
            call: u64, channel: u32, epoch: u32,
            asks in vec((any::<u32>(), any::<bool>()), 0..30),
            pushes in vec((any::<(u32, u8)>(), any::<(u64, i64)>(), vec(any::<u8>(), 0..40)), 0..10),
            notice in notices(),
        ) {
            let channel = Channel(channel);
            let asks: Vec<_> =
                asks.into_iter().map(|(sample, last_use)| Ask { sample, last_use }).collect();
            let message = get(call, &Request { channel, epoch, asks: &asks });
            prop_assert_eq!(super::call(&message), Some(call));
            let read = asked(&message);
            let right = matches!(&read, Some(Asked::Get { channel: c, epoch: e, asks: a })
                if (*c, *e, a) == (channel, epoch, &asks));
            prop_assert!(right, "{:?}", read);

            let lent: Vec<_> = pushes
                .iter()
                .map(|&((sample, tier), (digest, version), ref bytes)| Push {
                    sample, tier, epoch: sample ^ epoch, digest, version, bytes,
                })
                .collect();
            let message = put(call, channel, &lent);
            let read = asked(&message);
            let right = matches!(&read, Some(Asked::Put { channel: c, pushes: p })
                if *c == channel && format!("{p:?}") == format!("{lent:?}"));
            prop_assert!(right, "{:?}", read);

            let message = tell(call, channel, &notice);
            let read = asked(&message);
            let right = matches!(&read, Some(Asked::Told { channel: c, notice: n })
                if (*c, n) == (channel, &notice));
            prop_assert!(right, "{:?}", read);
        }

        #[test]
        fn what_is_answered_is_read_as_it_was(
            call: u64,
            answers in vec((0..4, any::<(u64, i64)>(), lengths(), any::<u8>()), 0..30),
            outcomes in vec(0usize..3, 0..30),
        ) {
            let samples: Vec<_> = answers.iter().map(|&(.., length, byte)| vec![byte; length]).collect();
            let (mut replies, mut right) = (vec![], vec![]);
            for (&(kind, (digest, version), ..), bytes) in answers.iter().zip(&samples) {
                let (reply, answer) = match kind {
                    0 => {
                        let copied = Payload::Copied(Memory::from(&bytes[..]));
                        (Reply::Here { bytes: copied, digest, version }, Answer::Here { digest, version })
                    }
                    1 => (Reply::NotHere, Answer::NotHere),
                    2 => (Reply::NotYet, Answer::NotYet),
                    _ => (Reply::Busy, Answer::Busy),
                };
                replies.push(reply);
                right.push((answer, if kind == 0 { &bytes[..] } else { &[] }));
            }
            let (message, payloads) = got(call, replies);
            prop_assert_eq!(super::call(&message), Some(call));
            prop_assert_eq!(large(&message), payloads.iter().map(|bytes| bytes.len()).collect::<Vec<_>>());
            let after: Vec<u8> = payloads.iter().flat_map(|bytes| bytes.to_vec()).collect();
            prop_assert_eq!(read_got(&message, &after), Some(right));

            let kinds = [Taken::Stored, Taken::NoRoom, Taken::Refused];
            let outcomes: Vec<_> = outcomes.into_iter().map(|kind| kinds[kind]).collect();
            prop_assert_eq!(read_taken(&taken(call, &outcomes)), Some(outcomes));
        }

        /// Whatever comes, and right messages that were cut or changed.
        #[test]
        fn nothing_that_comes_is_trusted(
            noise in vec(any::<u8>(), 0..100), kind in 0u8..7, count in 0u32..10, cut in 0usize..60,
        ) {
            let mut message = 7u64.to_le_bytes().to_vec();
            message.push(kind);
            message.extend(0u32.to_le_bytes());
            message.extend(count.to_le_bytes());
            message.extend(&noise);
            for message in [&noise, &message] {
                let _ = (asked(message), read_got(message, &noise), read_taken(message), large(message), super::call(message));
            }
            let bytes = [1, 2, 3];
            let push = Push { sample: 1, tier: 1, epoch: 1, digest: 1, version: 1, bytes: &bytes };
            let right = put(7, Channel(0), &[push, push]);
            prop_assert!(asked(&right[..cut.min(right.len() - 1)]).is_none());
        }
    }
}
