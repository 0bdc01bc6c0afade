//! What a node says of itself when it connects or is connected to, under the proof of the key.

use std::io::{Read, Write};

use super::address::Address;
use crate::NodeId;
use crate::auth::{AuthError, Role, prove};
use crate::key::Key;
use crate::meet::World;

/// First of every hello, so that one for another purpose is not mistaken for it.
const TAG: &[u8; 4] = b"node";

/// Who a node is, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub job: u64,
    pub world: World,
    pub address: Address,
}

/// Why a node is not spoken with. Each is the rest of a sentence that names it.
#[derive(Debug, thiserror::Error)]
pub enum Unwelcome {
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error("it does not say who it is: it is of another version, or listens for something else")]
    NoHello,
    #[error(
        "it belongs to another job with the same key: give each job a key and a port of its own"
    )]
    OtherJob,
    #[error("it counts {theirs} ranks and this one {ours}: start all with the same number")]
    OtherSize { theirs: u32, ours: u32 },
    #[error("it says that it is rank {0}: two ranks were given one address, or one rank twice")]
    OtherRank(NodeId),
    #[error("somebody sits between the two ends of the TLS session")]
    OtherSession,
}

impl Hello {
    /// As bytes, said on a connection with this binding.
    pub fn to_bytes(&self, binding: &[u8; 32]) -> Vec<u8> {
        let mut bytes = TAG.to_vec();
        bytes.extend(binding);
        bytes.extend(self.job.to_le_bytes());
        bytes.extend(self.world.size.to_le_bytes());
        bytes.extend(self.world.rank.to_le_bytes());
        bytes.extend(self.address.to_bytes());
        bytes
    }

    /// And the binding that it was said with.
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, [u8; 32])> {
        let (tag, bytes) = bytes.split_first_chunk()?;
        let (&binding, bytes) = bytes.split_first_chunk()?;
        let (&job, bytes) = bytes.split_first_chunk()?;
        let (&size, bytes) = bytes.split_first_chunk()?;
        let (&rank, bytes) = bytes.split_first_chunk()?;
        if tag != TAG {
            return None;
        }
        let world = World { rank: u32::from_le_bytes(rank), size: u32::from_le_bytes(size) };
        let address = Address::from_bytes(bytes)?;
        Some((Self { job: u64::from_le_bytes(job), world, address }, binding))
    }

    /// Whether another node is of the same job.
    fn check(&self, other: &Self) -> Result<(), Unwelcome> {
        let (ours, theirs) = (self.world.size, other.world.size);
        if other.job != self.job {
            return Err(Unwelcome::OtherJob);
        }
        if theirs != ours {
            return Err(Unwelcome::OtherSize { theirs, ours });
        }
        let is_double = other.world.rank == self.world.rank && other.address != self.address;
        if other.world.rank >= ours || is_double {
            return Err(Unwelcome::OtherRank(other.world.rank));
        }
        Ok(())
    }
}

/// Both prove that they have the key and say who they are, on a connection with this binding.
pub fn greet<S: Read + Write + ?Sized>(
    stream: &mut S,
    binding: [u8; 32],
    key: &Key,
    role: Role,
    mine: &Hello,
) -> Result<Hello, Unwelcome> {
    let said = prove(stream, key, role, &mine.to_bytes(&binding))?;
    let (theirs, bound) = Hello::from_bytes(&said).ok_or(Unwelcome::NoHello)?;
    mine.check(&theirs)?;
    if bound != binding {
        return Err(Unwelcome::OtherSession);
    }
    Ok(theirs)
}
