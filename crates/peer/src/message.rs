//! The requests and replies that nodes exchange, independent of the transport.

use std::ops::Deref;

use belady_base::memory::Memory;
use belady_base::sync::Arc;
use belady_data::tier::{Pinned, Tier};
use serde::{Deserialize, Serialize};

use crate::{SampleId, TierId};

/// The number of a job of this process, the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Channel(pub u32);

/// A request for one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The sample.
    pub sample: SampleId,
    /// No node needs the peer's copy after this use.
    pub last_use: bool,
}

/// A request for samples.
#[derive(Clone, Copy, Debug)]
pub struct GetRequest<'a> {
    /// The job that serves them.
    pub channel: Channel,
    /// The epoch that uses them. Before it starts, a missing sample may still arrive.
    pub epoch: u32,
    /// The samples, in the order of the answers.
    pub asks: &'a [Ask],
}

/// The outcome for one sample of a request, as the caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The bytes are in their slot. The caller checks them against their digest ([`crate::digest`])
    /// and the version of their file ([`belady_data::source::Version::changed`]).
    Here {
        /// The digest that the bytes should have.
        digest: u64,
        /// The version of their file.
        version: i64,
    },
    /// The peer does not have it and does not expect it.
    NotHere,
    /// The peer does not have it yet.
    NotYet,
    /// The peer is overloaded; ask again, or elsewhere.
    Busy,
}

/// Receives the answers to a request, in its order.
pub trait Receive {
    /// Returns where the bytes of the `at`th sample go, exactly as long as the sample. Called only
    /// if bytes arrive; they are written before [`Receive::answered`] is called for it, or the call
    /// returns.
    fn slot(&mut self, at: usize) -> &mut [u8];

    /// Called when the `at`th sample is answered; never for samples that a failed call did not
    /// reach.
    fn answered(&mut self, at: usize, answer: Answer);
}

/// A sample that another node should keep.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// The sample.
    pub sample: SampleId,
    /// The tier that the receiver should put it into.
    pub tier: TierId,
    /// The epoch that leaves it; the next one uses it.
    pub epoch: u32,
    /// The digest of its bytes.
    pub digest: u64,
    /// The version of the file that the bytes are from.
    pub version: i64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushOutcome {
    /// The receiver stores it, or has stored it before.
    Stored,
    /// There is no space for it yet; try again.
    NoSpace,
    /// The receiver cannot accept it: the tier is gone, the digest does not match, or the receiver
    /// has another version of the file.
    Refused,
}

/// A message that a node sends without a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The sender has loaded the first `steps` steps of the run ([`crate::protocol::step_fence`]).
    Loaded {
        /// How many steps are loaded.
        steps: u64,
    },
    /// The sender has staged all of this epoch, and the others have accepted what it pushed of it.
    EpochDone {
        /// The epoch.
        epoch: u32,
    },
    /// The sender got these samples elsewhere for this epoch and no longer needs the receiver's
    /// copies.
    Released {
        /// The epoch that used them.
        epoch: u32,
        /// The samples.
        samples: Vec<SampleId>,
    },
    /// The sender's job has ended normally: it sends and accepts nothing any more.
    Left,
}

/// The outcome for one sample of a request, as the handler gives it.
#[derive(Debug)]
pub enum GetReply {
    /// The handler has it.
    Here {
        /// Its bytes.
        bytes: Payload,
        /// Their digest.
        digest: u64,
        /// The version of their file.
        version: i64,
    },
    /// As [`Answer::NotHere`].
    NotHere,
    /// As [`Answer::NotYet`].
    NotYet,
    /// As [`Answer::Busy`].
    Busy,
}

/// Bytes to send: pinned in a tier's memory, or copied.
#[derive(Debug)]
pub enum Payload {
    /// Pinned in a tier.
    Pinned(PinnedSample),
    /// Copied.
    Copied(Memory),
}

/// A pinned sample; dropping it releases the pin.
#[derive(Debug)]
pub struct PinnedSample {
    tier: Arc<dyn Tier>,
    sample: SampleId,
    pinned: Pinned,
}

impl PinnedSample {
    /// Pins a sample, if it is there and the tier can pin.
    pub fn pin(tier: &Arc<dyn Tier>, sample: SampleId) -> Option<Self> {
        let pinned = tier.pin(sample)?;
        Some(Self { tier: tier.clone(), sample, pinned })
    }
}

impl Drop for PinnedSample {
    fn drop(&mut self) {
        self.tier.unpin(self.sample);
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: the bytes stay pinned and unchanged as long as `self` exists.
            Self::Pinned(lent) => unsafe {
                std::slice::from_raw_parts(lent.pinned.start, lent.pinned.length)
            },
            Self::Copied(bytes) => bytes,
        }
    }
}
