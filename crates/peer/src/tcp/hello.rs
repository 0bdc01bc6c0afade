//! What nodes say of themselves when they connect, covered by the proof of the key.

use std::io::{Read, Write};

use serde::{Deserialize, Serialize};

use super::address::Address;
use crate::NodeId;
use crate::auth::{AuthError, Role, prove};
use crate::key::JobKey;
use crate::rendezvous::JobWorld;

/// The first bytes of every hello, which tell it from those of other protocols.
const TAG: &[u8; 4] = b"node";

/// A node's identity and address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerHello {
    pub job: u64,
    pub world: JobWorld,
    pub address: Address,
}

/// Why a node is refused. Each text is the rest of a sentence that names it.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error("its hello is invalid: it has another version, or listens for another purpose")]
    NoHello,
    #[error(
        "it belongs to another job with the same key: give each job a key and a port of its own"
    )]
    OtherJob,
    #[error("it counts {theirs} ranks and this one {ours}: start all with the same number")]
    OtherSize { theirs: u32, ours: u32 },
    #[error("it says that it is rank {0}: two ranks were given one address, or one rank twice")]
    OtherRank(NodeId),
    #[error("the two ends do not share one TLS session: another program relays the connection")]
    OtherSession,
}

impl PeerHello {
    /// Returns the hello as bytes, for a connection with this binding.
    fn to_bytes(&self, binding: &[u8; 32]) -> Vec<u8> {
        postcard::to_stdvec(&(TAG, binding, self)).unwrap_or_default()
    }

    /// Returns the hello and the binding of the connection that it was made for.
    fn from_bytes(bytes: &[u8]) -> Option<(Self, [u8; 32])> {
        let (tag, binding, hello) =
            postcard::from_bytes::<([u8; 4], [u8; 32], Self)>(bytes).ok()?;
        (tag == *TAG).then_some((hello, binding))
    }

    /// Checks that another node belongs to the same job.
    fn check(&self, other: &Self) -> Result<(), HelloError> {
        let (ours, theirs) = (self.world.size, other.world.size);
        if other.job != self.job {
            return Err(HelloError::OtherJob);
        }
        if theirs != ours {
            return Err(HelloError::OtherSize { theirs, ours });
        }
        let is_double = other.world.rank == self.world.rank && other.address != self.address;
        if other.world.rank >= ours || is_double {
            return Err(HelloError::OtherRank(other.world.rank));
        }
        Ok(())
    }
}

/// Exchanges proofs of the key and hellos on a connection with this binding; returns the other's
/// hello.
pub fn greet<S: Read + Write + ?Sized>(
    stream: &mut S,
    binding: [u8; 32],
    key: &JobKey,
    role: Role,
    mine: &PeerHello,
) -> Result<PeerHello, HelloError> {
    let said = prove(stream, key, role, &mine.to_bytes(&binding))?;
    let (theirs, bound) = PeerHello::from_bytes(&said).ok_or(HelloError::NoHello)?;
    mine.check(&theirs)?;
    if bound != binding {
        return Err(HelloError::OtherSession);
    }
    Ok(theirs)
}
