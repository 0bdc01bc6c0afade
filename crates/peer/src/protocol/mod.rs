//! What nodes send each other, and how a node reacts to answers and to silence: pure code to which
//! time is passed in. The engine runs it with threads and sockets, and a simulation of many nodes
//! on a virtual network runs it with a seeded random generator.
//!
//! - [`claims`]: until which epoch a sample in a tier of this node is needed.
//! - [`epoch_progress`]: which epochs nodes have finished, and so whether a missing sample may
//!   arrive.
//! - [`health`]: which peers may be asked.
//! - [`progress_notifier`]: which progress other nodes still have to be told.
//! - [`push_queue`]: samples that wait to be pushed to other nodes.
//! - [`retry`]: what to do with a sample after an answer.
//! - [`step_fence`]: when a step may end, so that no node fills space that others have not freed.

pub mod claims;
pub mod epoch_progress;
pub mod health;
pub mod progress_notifier;
pub mod push_queue;
pub mod retry;
pub mod step_fence;
