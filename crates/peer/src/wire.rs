//! Requests and replies as bytes, the same for every transport.
//!
//! A [`WireMessage`] names samples and says how long they are; postcard encodes it. The bytes of
//! the samples follow it, one after the other: they are never encoded or copied here. TCP puts a
//! [frame](crate::tcp::frame) around a message; MPI keeps messages whole by itself.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::message::{Answer, Ask, Channel, GetReply, Notice, Push, PushOutcome};
use crate::{SampleId, TierId};

/// What one node sends to another, apart from the bytes of samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireMessage<'a> {
    /// Asks for samples.
    Get {
        /// The job that serves them.
        channel: Channel,
        /// The epoch that uses them.
        epoch: u32,
        /// The samples, in the order of the replies.
        asks: Cow<'a, [Ask]>,
    },
    /// Gives samples to keep; their bytes follow.
    Put {
        /// The job that keeps them.
        channel: Channel,
        /// One for each sample.
        pushes: Vec<PushHeader>,
    },
    /// Tells something.
    Tell {
        /// The job that is told.
        channel: Channel,
        /// What it is told.
        notice: Cow<'a, Notice>,
    },
    /// Answers the next samples of a get; the bytes of those that are here follow.
    Replies(Vec<ReplyHeader>),
    /// Answers a put.
    Outcomes(Cow<'a, [PushOutcome]>),
    /// Answers a notice.
    Heard,
    /// The first message of the node that accepts a connection: requests may follow.
    Welcome,
    /// The first message of a node that already serves too many connections of the peer.
    Full,
}

/// A pushed sample without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushHeader {
    /// The sample.
    pub sample: SampleId,
    /// The tier that the receiver should put it into.
    pub tier: TierId,
    /// The epoch that leaves it.
    pub epoch: u32,
    /// How many bytes follow.
    pub length: u64,
    /// Their digest.
    #[serde(with = "postcard::fixint::le")]
    pub digest: u64,
    /// The version of the file that they are from.
    pub version: i64,
}

impl From<&Push<'_>> for PushHeader {
    fn from(push: &Push<'_>) -> Self {
        let &Push { sample, tier, epoch, digest, version, bytes } = push;
        Self { sample, tier, epoch, length: bytes.len() as u64, digest, version }
    }
}

impl PushHeader {
    /// Returns the push with these bytes.
    pub fn with(self, bytes: &[u8]) -> Push<'_> {
        let Self { sample, tier, epoch, digest, version, .. } = self;
        Push { sample, tier, epoch, digest, version, bytes }
    }
}

/// The reply to one ask without the sample's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyHeader {
    /// The bytes follow.
    Here {
        /// How many bytes follow.
        length: u64,
        /// Their digest.
        #[serde(with = "postcard::fixint::le")]
        digest: u64,
        /// The version of the file that they are from.
        version: i64,
    },
    /// As [`Answer::NotHere`].
    NotHere,
    /// As [`Answer::NotYet`].
    NotYet,
    /// As [`Answer::Busy`].
    Busy,
}

impl From<&GetReply> for ReplyHeader {
    fn from(reply: &GetReply) -> Self {
        match *reply {
            GetReply::Here { ref bytes, digest, version } => {
                Self::Here { length: bytes.len() as u64, digest, version }
            }
            GetReply::NotHere => Self::NotHere,
            GetReply::NotYet => Self::NotYet,
            GetReply::Busy => Self::Busy,
        }
    }
}

impl ReplyHeader {
    /// Returns how many bytes follow.
    pub fn length(self) -> u64 {
        if let Self::Here { length, .. } = self { length } else { 0 }
    }

    /// Returns what the caller is told.
    pub fn answer(self) -> Answer {
        match self {
            Self::Here { digest, version, .. } => Answer::Here { digest, version },
            Self::NotHere => Answer::NotHere,
            Self::NotYet => Answer::NotYet,
            Self::Busy => Answer::Busy,
        }
    }
}

impl WireMessage<'_> {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let written = postcard::to_io(self, out);
        debug_assert!(written.is_ok(), "a vector takes all bytes");
    }
}

impl WireMessage<'static> {
    /// Reads a message, and returns the bytes after it; `None` if there is no whole message.
    ///
    /// Takes no more memory than a small multiple of the bytes that are there, whatever they say.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        postcard::take_from_bytes(bytes).ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
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

    fn push_headers() -> impl Strategy<Value = PushHeader> {
        any::<(u32, u8, u32, u64, u64, i64)>().prop_map(
            |(sample, tier, epoch, length, digest, version)| PushHeader {
                sample,
                tier,
                epoch,
                length,
                digest,
                version,
            },
        )
    }

    fn reply_headers() -> impl Strategy<Value = ReplyHeader> {
        prop_oneof![
            any::<(u64, u64, i64)>().prop_map(|(length, digest, version)| ReplyHeader::Here {
                length,
                digest,
                version
            }),
            Just(ReplyHeader::NotHere),
            Just(ReplyHeader::NotYet),
            Just(ReplyHeader::Busy),
        ]
    }

    pub fn messages() -> impl Strategy<Value = WireMessage<'static>> {
        let asks = vec(any::<(u32, bool)>(), 0..50).prop_map(|asks| {
            asks.into_iter().map(|(sample, last_use)| Ask { sample, last_use }).collect::<Vec<_>>()
        });
        let outcomes = prop_oneof![
            Just(PushOutcome::Stored),
            Just(PushOutcome::NoSpace),
            Just(PushOutcome::Refused)
        ];
        let channel = || any::<u32>().prop_map(Channel);
        prop_oneof![
            (channel(), any::<u32>(), asks).prop_map(|(channel, epoch, asks)| WireMessage::Get {
                channel,
                epoch,
                asks: asks.into()
            }),
            (channel(), vec(push_headers(), 0..50))
                .prop_map(|(channel, pushes)| WireMessage::Put { channel, pushes }),
            (channel(), notices()).prop_map(|(channel, notice)| WireMessage::Tell {
                channel,
                notice: Cow::Owned(notice)
            }),
            vec(reply_headers(), 0..50).prop_map(WireMessage::Replies),
            vec(outcomes, 0..50).prop_map(|outcomes| WireMessage::Outcomes(outcomes.into())),
            Just(WireMessage::Heard),
            Just(WireMessage::Welcome),
            Just(WireMessage::Full),
        ]
    }

    proptest! {
        #[test]
        fn a_message_is_decoded_as_it_was_encoded(
            message in messages(), after in vec(any::<u8>(), 0..9),
        ) {
            let mut bytes = vec![];
            message.encode(&mut bytes);
            for cut in 0..bytes.len() {
                prop_assert!(WireMessage::decode(&bytes[..cut]).is_none());
            }
            bytes.extend(&after);
            prop_assert_eq!(WireMessage::decode(&bytes), Some((message, &after[..])));
        }

        #[test]
        fn decoding_any_bytes_ends(bytes in vec(any::<u8>(), 0..100)) {
            let _ = WireMessage::decode(&bytes);
        }
    }
}
