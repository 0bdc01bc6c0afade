//! Messages on the virtual network, and calls that wait for an answer.

use belady_peer::protocol::push_queue::QueuedPush;
use belady_peer::{Ask, NodeId, Notice, PushOutcome, SampleId};

/// A sample's bytes, few enough for a number, and their digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub value: u64,
    pub digest: u64,
}

impl Bytes {
    /// The bytes of the source.
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
    Put { pushes: Vec<QueuedPush<Bytes>> },
    Taken { taken: Vec<PushOutcome> },
    Tell { notice: Notice },
    Heard,
}

/// A message in flight. `call` ties an answer to its request.
#[derive(Clone, Debug)]
pub struct Envelope {
    pub from: NodeId,
    /// Which process of the sender: a restarted one has reconnected.
    pub life: u32,
    pub to: NodeId,
    pub call: u64,
    pub message: Message,
}

/// A request that is not answered yet.
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
