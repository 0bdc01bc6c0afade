//! What travels on the virtual network, and what waits for an answer.

use belady_peer::protocol::outbox::Parcel;
use belady_peer::{Ask, NodeId, Notice, SampleId, Taken};

/// A sample's bytes: so few that they fit into a number, and what they should add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub value: u64,
    pub digest: u64,
}

impl Bytes {
    /// As the source has them.
    pub fn of(sample: SampleId) -> Self {
        let value = u64::from(sample).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x55;
        Self { value, digest: belady_peer::digest(&value.to_le_bytes()) }
    }

    pub fn garbled(self) -> Self {
        Self { value: self.value ^ 1, ..self }
    }

    pub fn add_up(self) -> bool {
        belady_peer::digest(&self.value.to_le_bytes()) == self.digest
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Reply {
    Here(Bytes),
    NotHere,
    NotYet,
}

#[derive(Clone, Debug)]
pub enum Message {
    Get { epoch: u32, asks: Vec<Ask> },
    Got { replies: Vec<Reply> },
    Put { parcels: Vec<Parcel<Bytes>> },
    Taken { taken: Vec<Taken> },
    Tell { notice: Notice },
    Heard,
}

/// A message on its way. `call` ties an answer to its question.
#[derive(Clone, Debug)]
pub struct Envelope {
    pub from: NodeId,
    /// Which life of the sender: one who was restarted has connected anew.
    pub life: u32,
    pub to: NodeId,
    pub call: u64,
    pub message: Message,
}

/// What a node has asked and not heard of.
#[derive(Clone, Debug)]
pub enum Call {
    Get { peer: NodeId, step: u64, items: Vec<usize> },
    Put { peer: NodeId },
    Tell { peer: NodeId },
}

impl Call {
    pub fn peer(&self) -> NodeId {
        match *self {
            Self::Get { peer, .. } | Self::Put { peer } | Self::Tell { peer } => peer,
        }
    }
}
