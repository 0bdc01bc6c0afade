//! What carries requests between nodes.
//!
//! The primitive is a multi-get in the order of the request. A call blocks the thread that makes it
//! until it is answered or the deadline has passed, and bytes go straight to where they are wanted.
//! Any number of threads may call at once.

use std::ops::Deref;
use std::time::Instant;

use belady_data::memory::Memory;
use belady_data::sync::Arc;
use belady_data::tier::{Pinned, Tier};

use crate::desk::{Channel, Desk};
use crate::{NodeId, PeerError, SampleId, TierId};

/// A sample that is wanted from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub sample: SampleId,
    /// Nobody needs the peer's copy after this.
    pub last_use: bool,
}

/// Samples that are wanted from a peer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub channel: Channel,
    /// The epoch that uses them: before it begins, what is not there may still be on its way.
    pub epoch: u32,
    pub asks: &'a [Ask],
}

/// What became of one sample of a request, as the one who asked sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The bytes are in their slot. Whether they are the right ones is for the asker to see:
    /// this is what they should add up to ([`crate::digest`]), and the version of the file that they
    /// are of ([`belady_data::source::Version::changed`]).
    Here { digest: u64, version: i64 },
    /// It does not have it and does not expect it.
    NotHere,
    /// It does not have it, and it may still come.
    NotYet,
    /// It has too much to do; ask again, or elsewhere.
    Busy,
}

/// Takes what is answered, in the order of the request.
pub trait Receive {
    /// Where the bytes of the `at`th sample go, exactly as long as it is. Asked for only if they come;
    /// written to only until [`Receive::answered`] is called for it, or the call has returned.
    fn slot(&mut self, at: usize) -> &mut [u8];

    /// The `at`th sample is answered. Not called for samples that the call did not come to.
    fn answered(&mut self, at: usize, answer: Answer);
}

/// A sample that another node is to keep.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    pub sample: SampleId,
    pub tier: TierId,
    /// The epoch that leaves it: it waits for the next one.
    pub epoch: u32,
    pub digest: u64,
    /// Of the file that the bytes are of.
    pub version: i64,
    pub bytes: &'a [u8],
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is there now, or was before.
    Stored,
    /// There is no room for it yet; try again.
    NoRoom,
    /// It cannot be taken: the tier is gone, the bytes did not add up, or they are of another version
    /// of the file than the receiver has.
    Refused,
}

/// What a node tells others without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The first so many steps of the run are loaded here ([`crate::protocol::pace`]).
    Loaded { steps: u64 },
    /// All of this epoch is staged here, and what others were to keep of it is with them.
    EpochDone { epoch: u32 },
    /// These were had from elsewhere for this epoch; the copies with the receiver are not needed any
    /// more.
    Released { epoch: u32, samples: Vec<SampleId> },
    /// The sender's job has ended, as it was meant to: it gives and takes nothing any more.
    Left,
}

/// What became of one sample of a request, as the one who serves it says it.
#[derive(Debug)]
pub enum Reply {
    Here { bytes: Payload, digest: u64, version: i64 },
    NotHere,
    NotYet,
    Busy,
}

/// Bytes to be sent: lent from a tier's own memory, or copied out of it.
#[derive(Debug)]
pub enum Payload {
    Lent(Lent),
    Copied(Memory),
}

/// A pinned sample; it is given back when this is dropped.
#[derive(Debug)]
pub struct Lent {
    tier: Arc<dyn Tier>,
    sample: SampleId,
    pinned: Pinned,
}

impl Lent {
    /// A sample of a tier that can lend it.
    pub fn pin(tier: &Arc<dyn Tier>, sample: SampleId) -> Option<Self> {
        let pinned = tier.pin(sample)?;
        Some(Self { tier: tier.clone(), sample, pinned })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.tier.unpin(self.sample);
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: it stays pinned, and does not change, as long as this is there.
            Self::Lent(lent) => unsafe {
                std::slice::from_raw_parts(lent.pinned.start, lent.pinned.length)
            },
            Self::Copied(bytes) => bytes,
        }
    }
}

/// Carries requests to other nodes, and brings theirs to this node's [`Desk`].
///
/// A call whose deadline passes has failed. Where the transport sees progress, the time of a call begins anew
/// while its bytes move: a large sample on a slow network takes what it takes, and a peer that is silent is
/// given up however much it was asked for.
///
/// After an error nobody knows whether the peer has heard of it. Each call may be made again.
pub trait Transport: Send + Sync + std::fmt::Debug {
    /// Asks a peer for samples. On `Ok` all were answered.
    fn get(
        &self,
        peer: NodeId,
        request: &Request<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError>;

    /// Gives samples to a peer to keep. On `Ok` there is one outcome for each.
    fn put(
        &self,
        peer: NodeId,
        channel: Channel,
        pushes: &[Push<'_>],
        deadline: Instant,
    ) -> Result<Vec<Taken>, PeerError>;

    /// Tells a peer something. On `Ok` it has heard it.
    fn tell(
        &self,
        peer: NodeId,
        channel: Channel,
        notice: &Notice,
        deadline: Instant,
    ) -> Result<(), PeerError>;

    /// Where requests of others arrive.
    fn desk(&self) -> &Arc<Desk>;

    /// Whether the time of a call begins anew while its bytes move. If not, the caller has to give a call
    /// the time that its bytes may take.
    fn sees_progress(&self) -> bool {
        true
    }

    /// Whether a peer runs on this machine.
    fn is_near(&self, _peer: NodeId) -> bool {
        false
    }

    /// Leaves the job: calls under way end with [`PeerError::Left`], nothing listens any more, and all
    /// threads of the transport are gone. Called once, when nobody needs it any more.
    fn close(&self);
}
