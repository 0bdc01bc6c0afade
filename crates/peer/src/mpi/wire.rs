//! The contents of MPI messages.
//!
//! A request is the number of its call, a [`WireMessage`] and the bytes of pushed samples; the
//! reply begins with the same number. Large samples of a reply follow as messages of their own,
//! which are nothing but their bytes: MPI takes them from where they lie and receives them as a
//! whole. Nothing that is read is trusted: a message that makes no sense is `None`.

use super::Payload;
use crate::message::{Answer, GetReply};
use crate::wire::{PushHeader, ReplyHeader, WireMessage};

/// Asks in one message: a few kilobytes.
pub const ASKS: usize = 1024;
/// Bytes of samples in one message. A single sample may be larger.
pub const BYTES: usize = 2 << 20;
/// The largest sample: MPI counts the bytes of a message in 31 bits, and the headers need some.
pub const SAMPLE: usize = i32::MAX as usize - (1 << 20);
/// Samples of this size and more are messages of their own: copying a smaller one costs less than a
/// message does.
const LARGE: usize = 16 << 10;
/// Samples that one notice names.
pub const RELEASED: usize = 1 << 20;
/// Bytes of a call's number.
const CALL: usize = 8;

/// Returns the message of a call; `more` is how many bytes follow.
pub fn message(call: u64, message: &WireMessage<'_>, more: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + more);
    out.extend(call.to_le_bytes());
    message.encode(&mut out);
    out
}

/// Returns the number of the call that a request or reply belongs to.
pub fn call(message: &[u8]) -> Option<u64> {
    message.first_chunk::<CALL>().map(|call| u64::from_le_bytes(*call))
}

/// Reads a request or reply, and returns the bytes of samples after it.
pub fn read(message: &[u8]) -> Option<(WireMessage<'static>, &[u8])> {
    WireMessage::decode(message.get(CALL..)?)
}

/// Splits the bytes after a put into its samples.
pub fn split<'a>(
    pushes: &[PushHeader],
    mut bytes: &'a [u8],
) -> Option<Vec<crate::message::Push<'a>>> {
    let pushes = pushes.iter().map(|push| {
        let (own, rest) = bytes.split_at_checked(usize::try_from(push.length).ok()?)?;
        bytes = rest;
        Some(push.with(own))
    });
    let pushes = pushes.collect::<Option<_>>()?;
    bytes.is_empty().then_some(pushes)
}

/// Returns the reply to a get: the headers with the small samples, and the large ones.
///
/// It has no more than [`BYTES`] and one sample; the caller asks again for the rest.
pub fn got(call: u64, mut replies: Vec<GetReply>) -> (Vec<u8>, Vec<Payload>) {
    let mut total = 0;
    let enough = replies.iter().position(|reply| {
        total += ReplyHeader::from(reply).length();
        total > BYTES as u64
    });
    replies.truncate(enough.map_or(replies.len(), |last| last + 1));
    for reply in &mut replies {
        if ReplyHeader::from(&*reply).length() > SAMPLE as u64 {
            // The caller reads it from the source.
            *reply = GetReply::NotHere;
        }
    }
    let headers: Vec<ReplyHeader> = replies.iter().map(ReplyHeader::from).collect();
    let mut out = message(call, &WireMessage::Replies(headers), 0);
    let mut large = vec![];
    for reply in replies {
        match reply {
            GetReply::Here { bytes, .. } if bytes.len() >= LARGE => large.push(bytes),
            GetReply::Here { bytes, .. } => out.extend_from_slice(&bytes),
            GetReply::NotHere | GetReply::NotYet | GetReply::Busy => {}
        }
    }
    (out, large)
}

/// Headers with their lengths.
type Described = Vec<(ReplyHeader, usize)>;

/// Returns the headers of a reply to a get with their lengths, and the bytes after them.
fn described(reply: &[u8]) -> Option<(Described, &[u8])> {
    let (WireMessage::Replies(headers), small) = read(reply)? else { return None };
    let sized = |header: ReplyHeader| {
        let length = usize::try_from(header.length()).ok().filter(|&length| length <= SAMPLE)?;
        Some((header, length))
    };
    Some((headers.into_iter().map(sized).collect::<Option<_>>()?, small))
}

/// Returns the lengths of the messages that come after a reply, in their order.
pub fn large(reply: &[u8]) -> Vec<usize> {
    let described = described(reply).map(|(described, _)| described).unwrap_or_default();
    let large: Vec<_> =
        described.into_iter().map(|(_, length)| length).filter(|&length| length >= LARGE).collect();
    // No rank sends more.
    if large.iter().sum::<usize>() > BYTES + SAMPLE { vec![] } else { large }
}

/// Returns the answer to each ask with its bytes; `large` has those that came after the reply.
pub fn read_got<'a>(reply: &'a [u8], mut large: &'a [u8]) -> Option<Vec<(Answer, &'a [u8])>> {
    let (described, mut small) = described(reply)?;
    let answers = described.into_iter().map(|(header, length)| {
        let from = if length < LARGE { &mut small } else { &mut large };
        Some((header.answer(), from.split_off(..length)?))
    });
    let answers = answers.collect::<Option<_>>()?;
    (small.is_empty() && large.is_empty()).then_some(answers)
}

#[cfg(test)]
mod tests {
    use belady_base::memory::Memory;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::message::{Channel, Push};

    /// Small and large samples.
    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..40, LARGE - 2..LARGE + 2]
    }

    proptest! {
        #[test]
        fn pushes_are_read_as_they_were_written(
            call_number: u64, epoch: u32, cut in any::<prop::sample::Index>(),
            pushes in vec((any::<(u32, u8)>(), any::<(u64, i64)>(), vec(any::<u8>(), 0..40)), 0..10),
        ) {
            let channel = Channel(7);
            let pushes: Vec<_> = pushes
                .iter()
                .map(|&((sample, tier), (digest, version), ref bytes)| Push {
                    sample, tier, epoch: sample ^ epoch, digest, version, bytes,
                })
                .collect();
            let put = WireMessage::Put { channel, pushes: pushes.iter().map(Into::into).collect() };
            let mut bytes = message(call_number, &put, 0);
            for push in &pushes {
                bytes.extend(push.bytes);
            }
            prop_assert_eq!(call(&bytes), Some(call_number));
            let read_pushes = |bytes| match read(bytes) {
                Some((WireMessage::Put { pushes, .. }, bytes)) => Some(format!("{:?}", split(&pushes, bytes)?)),
                _ => None,
            };
            prop_assert_eq!(read_pushes(&bytes), Some(format!("{pushes:?}")));
            prop_assert_eq!(read_pushes(&bytes[..cut.index(bytes.len())]), None);
        }

        #[test]
        fn samples_are_read_as_they_were_written(
            number: u64,
            answers in vec((0..4, any::<(u64, i64)>(), lengths(), any::<u8>()), 0..30),
        ) {
            let samples: Vec<_> = answers.iter().map(|&(.., length, byte)| vec![byte; length]).collect();
            let (mut replies, mut right) = (vec![], vec![]);
            for (&(kind, (digest, version), ..), bytes) in answers.iter().zip(&samples) {
                let (reply, answer) = match kind {
                    0 => {
                        let copied = Payload::Copied(Memory::from(&bytes[..]));
                        (GetReply::Here { bytes: copied, digest, version }, Answer::Here { digest, version })
                    }
                    1 => (GetReply::NotHere, Answer::NotHere),
                    2 => (GetReply::NotYet, Answer::NotYet),
                    _ => (GetReply::Busy, Answer::Busy),
                };
                replies.push(reply);
                right.push((answer, if kind == 0 { &bytes[..] } else { &[] }));
            }
            let (message, payloads) = got(number, replies);
            prop_assert_eq!(call(&message), Some(number));
            prop_assert_eq!(large(&message), payloads.iter().map(|bytes| bytes.len()).collect::<Vec<_>>());
            let after: Vec<u8> = payloads.iter().flat_map(|bytes| bytes.to_vec()).collect();
            prop_assert_eq!(read_got(&message, &after), Some(right));
        }

        #[test]
        fn reading_any_bytes_ends(noise in vec(any::<u8>(), 0..100), kind in 0u8..9) {
            let mut message = 7u64.to_le_bytes().to_vec();
            message.push(kind);
            message.extend(&noise);
            for message in [&noise, &message] {
                let _ = (read(message), read_got(message, &noise), large(message), call(message));
                if let Some((WireMessage::Put { pushes, .. }, bytes)) = read(message) {
                    let _ = split(&pushes, bytes);
                }
            }
        }
    }
}
