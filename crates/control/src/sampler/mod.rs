//! Which rank reads which sample when: the order of each epoch and how its batches are split
//! over ranks.
//!
//! An [`AccessStream`] is a pure function of its [`StreamConfig`]; every node computes the same
//! one. For an epoch it takes an *order* (torch's [`torch::randperm`], the index-free
//! [`Permutation`], the user's list), and a [`Scheme`] splits the order into one local batch for
//! each rank and iteration ([`BatchLayout`]). Simulator and engine loop over the resulting
//! [`EpochOrder`]. [`AccessStream::locate`] and [`AccessStream::permutation`] answer without an
//! order of F entries in memory.
//!
//! Orders that cannot be computed at any time, or whose epochs differ in length, come through
//! [`orders`]: one rank's list for one epoch after the other.

mod checkpoints;
mod epoch_order;
pub mod mt19937;
pub mod orders;
pub mod permutation;
mod scheme;
mod stream;
pub mod torch;
mod weighted_draw;

pub use epoch_order::EpochOrder;
pub use orders::{Batching, EpochList, OrderError, OrderProvider, RankPlace};
pub use permutation::Permutation;
pub use scheme::{BatchLayout, BatchSlot, LocalBatch, Scheme};
pub use stream::{AccessStream, Order, SamplerError, StreamConfig};

pub use belady_base::SampleId;

/// One iteration of one epoch: the logical time in which plans speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    /// From 0.
    pub epoch: u32,
    /// Within the epoch, from 0.
    pub iteration: u32,
}
