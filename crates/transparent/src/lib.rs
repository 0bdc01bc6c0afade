//! What `belady run` does around a program that nobody may change.
//!
//! The program's processes have the library of `crates/shim` in them, which hands out copies of
//! files where there are any, and asks for those that are missing. Here they are made.
//!
//! ```text
//! prepare   all that can be wrong, before the program starts
//! level     directories with copies and their quotas (used); one in memory (ram)
//! catalogue what lies there when a run begins; what is written beside a copy (meta)
//! job       a run as a whole; its threads, of which one listens to the program (work, tasks, copy)
//! shelf     all copies of the run, and what the board says of them
//! order     which file the program opens next, if it is known (--order, --learn); fetched by `ahead`
//! program   the program as a child: its start, its signals, its status
//! stored    `belady cache`
//! ```
//!
//! Levels are directories. The copy of `DATASET/train/a.jpg` is the plain file
//! `LEVEL/<name and hash of the dataset>/files/train/a.jpg`, so the directory is itself the catalogue:
//! a file appears there when it is whole, by a rename.

mod ahead;
mod catalogue;
mod config;
mod copy;
mod error;
mod job;
mod level;
pub mod library;
mod meta;
mod order;
mod prepare;
pub mod program;
mod ram;
mod report;
mod shelf;
pub mod stored;
mod tasks;
#[cfg(test)]
mod tests;
mod used;
mod work;

pub use belady_board::{Revalidate, Totals};
pub use config::{JobConfig, LevelConfig};
pub use error::PrepareError;
pub use job::Job;
pub use library::LibraryError;
pub use order::{OrderError, Tally as AheadTally};
pub use report::{Copied, LevelReport, Report};
