//! What is said between nodes, and what a node makes of answers and of silence: pure, in a time that
//! is passed in. The engine does it with threads and sockets; a simulation of many nodes on a virtual
//! network does it with a dice.
//!
//! - [`claims`]: what lies here, and until when somebody counts on it.
//! - [`health`]: which peers may be asked.
//! - [`herald`]: what others have yet to be told.
//! - [`ledger`]: how far others are, and so whether what is not here may still come.
//! - [`outbox`]: what waits to be given to others.
//! - [`pace`]: when a step may end, so that nobody fills room that others have not freed.
//! - [`seek`]: what to do with a sample after an answer.

pub mod claims;
pub mod health;
pub mod herald;
pub mod ledger;
pub mod outbox;
pub mod pace;
pub mod seek;
