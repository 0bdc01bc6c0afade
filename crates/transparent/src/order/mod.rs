//! Clairvoyance for a program that nobody may change: which file it opens next.
//!
//! The order in which a program reads comes from a file (`--order`), or from its first epoch
//! (`--learn`). With an order in force, files are fetched before they are opened; and those that no
//! level has room for pass through a *window*, a small part of the first level: they come shortly
//! before they are read, and go when they were.
//!
//! ```text
//! what was opened ─▶ learner ─▶ order in force ─▶ follower ─▶ planner ─▶ fetch, let go
//!   messages of the program      (learner.rs)     (follower.rs)  window.rs   (prefetcher.rs)
//!   counters of the board                         where it reads  what passes
//!   (watch.rs)                                    what is next    through
//! ```
//!
//! All but the thread in `prefetcher.rs` is pure: it is told what happened, and answers with what is
//! to be done. Nothing here is needed for a program to read the right bytes. If the order is wrong,
//! only files are fetched that nobody wants, never more than the window has room for.
//!
//! Several processes of a program read at once, so files are never opened exactly in order.
//! [`tolerance`] says how far from its place a file may be opened.

mod follower;
mod index;
mod learner;
mod lease;
mod list;
mod names;
mod planner;
mod prefetcher;
mod watch;
mod window;
mod world;

pub use follower::Ahead;

pub use list::{Order, OrderError};
pub use prefetcher::{Notes, Plan, Prefetcher, PrefetcherConfig};
pub use window::window_room;
pub use world::{Hands, Outcome, Sight, Standing, Tally, Wish};

/// How many places from its own a file may be opened. 4096 is what 16 processes with two batches of
/// 128 each are apart at most.
fn tolerance(files: usize) -> usize {
    (files / 4).min(4096)
}

/// As many files tell where a reader is. Fewer may be an accident: a list of labels is opened now and then.
fn evidence(files: usize) -> usize {
    (files / 8).clamp(2, 32)
}
