//! Prefetching for an unmodified program: which file it opens next.
//!
//! The order in which the program reads comes from a file (`--order`) or from its first epoch
//! (`--learn`). With an order in force, files are fetched before the program opens them. Files that
//! no level has space for get transient copies in the *window*, a small part of the first level:
//! they are fetched shortly before they are read and evicted afterwards.
//!
//! ```text
//! opened files ─▶ learner ─▶ order in force ─▶ follower ─▶ planner ─▶ fetch, evict
//!   the program's messages                     position     window.rs  (prefetcher)
//!   the board's counters                       in the order
//!   (open_counters.rs)
//! ```
//!
//! All modules but `prefetcher` and `lease` are pure: events in, actions out. Correct bytes do not
//! depend on them. If the order is wrong, files are fetched in vain, but never more than fit into
//! the window.
//!
//! Several processes of a program read at once, so files are not opened exactly in order.
//! [`tolerance`] limits how far from its position a file may be opened.

mod file_order;
mod follower;
mod index;
mod launcher;
mod learner;
mod lease;
mod names;
mod open_counters;
mod planner;
mod prefetcher;
mod window;

pub use file_order::{FileOrder, FileOrderError};
pub use follower::Lookahead;
pub use launcher::{BoardView, CopyFetcher, CopyState, FetchKind, FetchOutcome, PrefetchTally};
pub use prefetcher::{OrderPrefetcher, OrderSource, PrefetchEvents, PrefetcherConfig};
pub use window::window_bytes;

/// Returns how many positions from its own a file may be opened. 4096 is the distance of 16
/// processes with two batches of 128 each.
fn tolerance(files: usize) -> usize {
    (files / 4).min(4096)
}

/// Returns how many files are evidence of the reader's position. Fewer may be a coincidence:
/// programs open a list of labels now and then.
fn evidence(files: usize) -> usize {
    (files / 8).clamp(2, 32)
}
