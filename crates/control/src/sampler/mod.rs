//! Who reads which sample when: the order of each epoch and how its batches are
//! dealt out to ranks.
//!
//! An [`AccessStream`] is a pure function of its [`StreamConfig`]; every node
//! computes the same one. Asked for an epoch it takes an *order* (torch's
//! [`torch::randperm`], the index-free [`Permutation`], the user's own list) and
//! lets a [`Scheme`] cut it into one local batch for each rank and iteration
//! ([`Deal`]). The [`EpochOrder`] it returns is what simulator and engine loop
//! over. Where an order of F entries is too much, [`AccessStream::locate`] and
//! [`AccessStream::permutation`] answer without one.
//!
//! Orders that cannot be computed at any time, or whose epochs differ in length, come
//! through [`orders`]: one rank's list for one epoch after the other.

mod deal;
mod dice;
mod epoch;
mod marks;
pub mod mt19937;
pub mod orders;
pub mod permutation;
mod stream;
pub mod torch;

pub use deal::{Batch, Deal, Scheme, Slot};
pub use epoch::EpochOrder;
pub use orders::{Cut, EpochList, OrderError, Orders, RankPlace};
pub use permutation::Permutation;
pub use stream::{AccessStream, Order, SamplerError, StreamConfig};

/// A sample's index in the dataset.
pub type SampleId = u32;

/// One iteration of one epoch: the logical time in which plans speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    pub epoch: u32,
    pub iteration: u32,
}
