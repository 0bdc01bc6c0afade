//! What is said between rendezvous clients and the server, once both have proved that they have the
//! key. Everything is bounded: names and values here, the length of a message where it is read.

use serde::{Deserialize, Serialize};

use crate::NodeId;

pub use crate::rendezvous::LONGEST_VALUE;
/// The longest name of an exchange, in bytes.
pub const LONGEST_NAME: usize = 256;
/// Bytes of the length before a message. Eight, since the values of many ranks together may exceed
/// 4 GiB.
pub const LENGTH: usize = 8;
/// The longest message to the server: a name, a value, and what tells them apart.
pub const TO_SERVER: usize = LONGEST_VALUE + LONGEST_NAME + 64;

/// Returns the length of the longest message to a client of a job with `size` ranks.
pub fn to_client(size: u32) -> usize {
    (size as usize).saturating_mul(LONGEST_VALUE + 8).saturating_add(LONGEST_NAME + 64)
}

/// What each side says of itself when it proves that it has the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RendezvousHello {
    pub job: String,
    pub size: u32,
    pub who: ClientKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientKind {
    /// A rank of the job. A restarted process has another `life`.
    Rank { rank: NodeId, life: u64 },
    /// A process outside the job that has the key and reads what ranks gave.
    Observer,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RendezvousMessage {
    /// To the server: a rank's value for an exchange, and whether it waits for those of the others.
    Give { name: String, waits: bool, value: Vec<u8> },
    /// To the server: asks for the values of an exchange.
    Ask { name: String },
    /// To the server: asks for the values of an exchange, and for every later change.
    Watch { name: String },
    /// To the server: asks which ranks have not given to an exchange.
    AskMissing { name: String },
    /// To the server: this rank no longer needs an exchange, even after a restart.
    Release { name: String },
    /// To a restarted server: traces of exchanges that are over ([`super::table::trace_of`]).
    WereOver { traces: Vec<u64> },
    /// Heartbeat, in both directions.
    Here,
    /// From the server: the client is accepted.
    Welcome,
    /// From the server: the client is refused, and whether it may try again.
    Refused { again: bool, sentence: String },
    /// From the server: the values of an exchange by rank.
    Values { name: String, values: Vec<Option<Vec<u8>>> },
    /// From the server: ranks that have not given to an exchange yet.
    Missing { name: String, missing: Vec<NodeId> },
    /// From the server: it no longer waits for these ranks.
    GivenUp { name: String, missing: Vec<NodeId> },
    /// From the server: all ranks released the exchange before this rank gave to it.
    Over { name: String },
    /// From the server: a rank has given a new value.
    Changed { name: String, rank: NodeId, value: Vec<u8> },
}

impl RendezvousHello {
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Returns `None` for bytes that [`Self::to_bytes`] did not make.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        decode(bytes)
    }
}

/// Decodes all of `bytes`.
fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

impl RendezvousMessage {
    /// Returns the message with its length before it.
    pub fn to_frame(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(self).unwrap_or_default();
        [&(body.len() as u64).to_le_bytes()[..], &body].concat()
    }

    /// Decodes what follows a length; `None` if it is not a message, or exceeds a limit.
    pub fn from_body(body: &[u8]) -> Option<Self> {
        decode(body).filter(Self::is_within_limits)
    }

    fn is_within_limits(&self) -> bool {
        let fits = |value: &[u8]| value.len() <= LONGEST_VALUE;
        let (name, fits) = match self {
            Self::Give { name, value, .. } | Self::Changed { name, value, .. } => {
                (name, fits(value))
            }
            Self::Values { name, values } => (name, values.iter().flatten().all(|it| fits(it))),
            Self::Refused { sentence, .. } => return fits(sentence.as_bytes()),
            Self::Ask { name }
            | Self::Watch { name }
            | Self::AskMissing { name }
            | Self::Release { name }
            | Self::Over { name }
            | Self::Missing { name, .. }
            | Self::GivenUp { name, .. } => (name, true),
            Self::WereOver { .. } | Self::Here | Self::Welcome => return true,
        };
        fits && name.len() <= LONGEST_NAME
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..20)
    }

    fn ranks() -> impl Strategy<Value = Vec<NodeId>> {
        prop::collection::vec(any::<u32>(), 0..5)
    }

    pub fn message() -> impl Strategy<Value = RendezvousMessage> {
        let name = || "[a-z ]{0,8}";
        prop_oneof![
            (name(), any::<bool>(), value())
                .prop_map(|(name, waits, value)| RendezvousMessage::Give { name, waits, value }),
            name().prop_map(|name| RendezvousMessage::Ask { name }),
            name().prop_map(|name| RendezvousMessage::Watch { name }),
            name().prop_map(|name| RendezvousMessage::AskMissing { name }),
            (name(), ranks())
                .prop_map(|(name, missing)| RendezvousMessage::GivenUp { name, missing }),
            (name(), ranks())
                .prop_map(|(name, missing)| RendezvousMessage::Missing { name, missing }),
            name().prop_map(|name| RendezvousMessage::Release { name }),
            name().prop_map(|name| RendezvousMessage::Over { name }),
            prop::collection::vec(any::<u64>(), 0..5)
                .prop_map(|traces| RendezvousMessage::WereOver { traces }),
            Just(RendezvousMessage::Here),
            Just(RendezvousMessage::Welcome),
            (any::<bool>(), name())
                .prop_map(|(again, sentence)| RendezvousMessage::Refused { again, sentence }),
            (name(), prop::collection::vec(prop::option::of(value()), 0..5))
                .prop_map(|(name, values)| RendezvousMessage::Values { name, values }),
            (name(), any::<u32>(), value())
                .prop_map(|(name, rank, value)| RendezvousMessage::Changed { name, rank, value }),
        ]
    }

    proptest! {
        #[test]
        fn a_message_is_decoded_as_it_was_encoded(message in message()) {
            let frame = message.to_frame();
            prop_assert_eq!(RendezvousMessage::from_body(&frame[LENGTH..]), Some(message.clone()));
            for cut in LENGTH..frame.len() {
                prop_assert_ne!(RendezvousMessage::from_body(&frame[LENGTH..cut]), Some(message.clone()));
            }
        }

        #[test]
        fn decoding_any_bytes_ends(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = (RendezvousMessage::from_body(&bytes), RendezvousHello::from_bytes(&bytes));
        }

        #[test]
        fn a_hello_is_decoded_as_it_was_encoded(
            job in "[a-z 0-9.]{0,40}", size in any::<u32>(),
            rank in prop::option::of((any::<u32>(), any::<u64>()))
        ) {
            let who = rank.map_or(ClientKind::Observer, |(rank, life)| ClientKind::Rank { rank, life });
            let hello = RendezvousHello { job, size, who };
            prop_assert_eq!(RendezvousHello::from_bytes(&hello.to_bytes()), Some(hello));
        }
    }

    #[test]
    fn names_and_values_beyond_the_limits_are_refused() {
        let decoded = |name: usize, value: usize| {
            let (name, value) = ("x".repeat(name), vec![1; value]);
            let message = RendezvousMessage::Give { name, waits: true, value };
            RendezvousMessage::from_body(&message.to_frame()[LENGTH..]).is_some()
        };
        assert!(decoded(LONGEST_NAME, LONGEST_VALUE));
        assert!(!decoded(LONGEST_NAME + 1, 0) && !decoded(0, LONGEST_VALUE + 1));
    }
}
