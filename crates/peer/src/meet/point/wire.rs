//! What is said at a meeting point, once both sides have proved that they have the key. Everything is
//! bounded: names and values here, the length of a message where it is read.

use crate::NodeId;

pub use crate::meet::LONGEST_VALUE;
pub const LONGEST_NAME: usize = 256;
/// Bytes of the length before a message. Eight: what many ranks gave together may exceed 4 GiB.
pub const LENGTH: usize = 8;
/// The longest message to rank 0: a name, a value, and what tells them apart.
pub const TO_HOST: usize = LONGEST_VALUE + LONGEST_NAME + 64;

/// The longest message to one of so many ranks.
pub fn to_guest(size: u32) -> usize {
    (size as usize).saturating_mul(LONGEST_VALUE + 8).saturating_add(LONGEST_NAME + 64)
}

/// Who comes, or who is there, as it says itself when it proves that it has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub job: String,
    pub size: u32,
    pub who: Who,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A rank of the job. A process that was started again has another `life`.
    Rank { rank: NodeId, life: u64 },
    /// Somebody with the key who wants to know something.
    Visitor,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What a rank gives to an exchange; whether it waits for what the others give.
    Give { name: String, waits: bool, value: Vec<u8> },
    /// Wants to know what has been given.
    Ask { name: String },
    /// Wants to know what has been given, and whatever changes.
    Watch { name: String },
    /// Wants to know which ranks have not given to an exchange.
    AskMissing { name: String },
    /// Needs what was given to an exchange no more; a process in its place after a restart does not
    /// either.
    Release { name: String },
    /// Traces of exchanges that are over ([`super::table::trace_of`]), for a rank 0 that was started
    /// again.
    WereOver { traces: Vec<u64> },
    /// Is there.
    Here,
    /// May stay.
    Welcome,
    /// May not stay; whether it may try again.
    Refused { again: bool, sentence: String },
    /// What has been given to an exchange, by rank.
    Book { name: String, values: Vec<Option<Vec<u8>>> },
    /// Ranks that have not given to an exchange yet.
    Missing { name: String, missing: Vec<NodeId> },
    /// Rank 0 does not wait any longer for these.
    GivenUp { name: String, missing: Vec<NodeId> },
    /// All ranks have released the exchange before this rank gave to it.
    Over { name: String },
    /// What a rank has given anew.
    Changed { name: String, rank: NodeId, value: Vec<u8> },
}

impl Hello {
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, rank, life) = match self.who {
            Who::Rank { rank, life } => (1, rank, life),
            Who::Visitor => (0, 0, 0),
        };
        let mut out = vec![kind];
        out.extend(rank.to_le_bytes());
        out.extend(life.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        put(&mut out, self.job.as_bytes());
        out
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest(bytes);
        let kind = rest.byte()?;
        let (rank, life) = (rest.u32()?, u64::from_le_bytes(rest.array()?));
        let who = match kind {
            0 => Who::Visitor,
            1 => Who::Rank { rank, life },
            _ => return None,
        };
        let (size, job) = (rest.u32()?, rest.text()?);
        rest.0.is_empty().then_some(Self { job, size, who })
    }
}

impl Message {
    /// With its length before it.
    pub fn to_frame(&self) -> Vec<u8> {
        let mut out = vec![0; LENGTH];
        match self {
            Self::Give { name, waits, value } => {
                out.extend([0, u8::from(*waits)]);
                put(&mut out, name.as_bytes());
                put(&mut out, value);
            }
            Self::Ask { name } => {
                out.push(1);
                put(&mut out, name.as_bytes());
            }
            Self::Watch { name } => {
                out.push(2);
                put(&mut out, name.as_bytes());
            }
            Self::Release { name } => {
                out.push(11);
                put(&mut out, name.as_bytes());
            }
            Self::Over { name } => {
                out.push(12);
                put(&mut out, name.as_bytes());
            }
            Self::WereOver { traces } => {
                out.push(13);
                put(&mut out, &traces.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>());
            }
            Self::Here => out.push(3),
            Self::Welcome => out.push(4),
            Self::Refused { again, sentence } => {
                out.extend([5, u8::from(*again)]);
                put(&mut out, sentence.as_bytes());
            }
            Self::Book { name, values } => {
                out.push(6);
                put(&mut out, name.as_bytes());
                out.extend((values.len() as u32).to_le_bytes());
                for value in values {
                    out.push(u8::from(value.is_some()));
                    put(&mut out, value.as_deref().unwrap_or_default());
                }
            }
            Self::GivenUp { name, missing } => {
                out.push(8);
                put(&mut out, name.as_bytes());
                put_ranks(&mut out, missing);
            }
            Self::AskMissing { name } => {
                out.push(9);
                put(&mut out, name.as_bytes());
            }
            Self::Missing { name, missing } => {
                out.push(10);
                put(&mut out, name.as_bytes());
                put_ranks(&mut out, missing);
            }
            Self::Changed { name, rank, value } => {
                out.push(7);
                out.extend(rank.to_le_bytes());
                put(&mut out, name.as_bytes());
                put(&mut out, value);
            }
        }
        let length = (out.len() - LENGTH) as u64;
        out[..LENGTH].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// `None` if these bytes, which follow a length, are no message.
    pub fn from_body(body: &[u8]) -> Option<Self> {
        let mut rest = Rest(body);
        let message = match rest.byte()? {
            0 => {
                let waits = rest.flag()?;
                Self::Give { waits, name: rest.name()?, value: rest.value()? }
            }
            1 => Self::Ask { name: rest.name()? },
            2 => Self::Watch { name: rest.name()? },
            3 => Self::Here,
            4 => Self::Welcome,
            5 => Self::Refused { again: rest.flag()?, sentence: rest.text()? },
            6 => {
                let (name, count) = (rest.name()?, rest.u32()?);
                // Each takes five bytes at least, so a count cannot ask for more memory than came.
                if count as usize > rest.0.len() / 5 {
                    return None;
                }
                let values = (0..count).map(|_| {
                    let is_there = rest.flag()?;
                    rest.value().map(|value| is_there.then_some(value))
                });
                Self::Book { name, values: values.collect::<Option<_>>()? }
            }
            7 => {
                let rank = rest.u32()?;
                Self::Changed { rank, name: rest.name()?, value: rest.value()? }
            }
            8 => Self::GivenUp { name: rest.name()?, missing: rest.ranks()? },
            9 => Self::AskMissing { name: rest.name()? },
            10 => Self::Missing { name: rest.name()?, missing: rest.ranks()? },
            11 => Self::Release { name: rest.name()? },
            12 => Self::Over { name: rest.name()? },
            13 => {
                let traces = rest.value()?;
                let (traces, []) = traces.as_chunks::<8>() else { return None };
                Self::WereOver { traces: traces.iter().map(|it| u64::from_le_bytes(*it)).collect() }
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

fn put_ranks(out: &mut Vec<u8>, ranks: &[NodeId]) {
    let bytes = ranks.iter().flat_map(|rank| rank.to_le_bytes());
    put(out, &bytes.collect::<Vec<u8>>());
}

/// What has not been read yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let length = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        (length <= LONGEST_VALUE).then(|| bytes.to_vec())
    }

    fn ranks(&mut self) -> Option<Vec<NodeId>> {
        let bytes = self.value()?;
        let (ranks, []) = bytes.as_chunks::<4>() else { return None };
        Some(ranks.iter().map(|rank| NodeId::from_le_bytes(*rank)).collect())
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.value()?).ok()
    }

    fn name(&mut self) -> Option<String> {
        self.text().filter(|name| name.len() <= LONGEST_NAME)
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

    pub fn message() -> impl Strategy<Value = Message> {
        let name = || "[a-z ]{0,8}";
        prop_oneof![
            (name(), any::<bool>(), value()).prop_map(|(name, waits, value)| Message::Give {
                name,
                waits,
                value
            }),
            name().prop_map(|name| Message::Ask { name }),
            name().prop_map(|name| Message::Watch { name }),
            name().prop_map(|name| Message::AskMissing { name }),
            (name(), ranks()).prop_map(|(name, missing)| Message::GivenUp { name, missing }),
            (name(), ranks()).prop_map(|(name, missing)| Message::Missing { name, missing }),
            name().prop_map(|name| Message::Release { name }),
            name().prop_map(|name| Message::Over { name }),
            prop::collection::vec(any::<u64>(), 0..5)
                .prop_map(|traces| Message::WereOver { traces }),
            Just(Message::Here),
            Just(Message::Welcome),
            (any::<bool>(), name())
                .prop_map(|(again, sentence)| Message::Refused { again, sentence }),
            (name(), prop::collection::vec(prop::option::of(value()), 0..5))
                .prop_map(|(name, values)| Message::Book { name, values }),
            (name(), any::<u32>(), value()).prop_map(|(name, rank, value)| Message::Changed {
                name,
                rank,
                value
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_understood(message in message()) {
            let frame = message.to_frame();
            prop_assert_eq!(Message::from_body(&frame[LENGTH..]), Some(message.clone()));
            for cut in LENGTH..frame.len() {
                prop_assert_ne!(Message::from_body(&frame[LENGTH..cut]), Some(message.clone()));
            }
        }

        #[test]
        fn garbage_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = (Message::from_body(&bytes), Hello::from_bytes(&bytes));
        }

        #[test]
        fn a_hello_is_understood(
            job in "[a-z 0-9.]{0,40}", size in any::<u32>(),
            rank in prop::option::of((any::<u32>(), any::<u64>()))
        ) {
            let who = rank.map_or(Who::Visitor, |(rank, life)| Who::Rank { rank, life });
            let hello = Hello { job, size, who };
            prop_assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
        }
    }
}
