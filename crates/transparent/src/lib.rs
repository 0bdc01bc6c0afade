//! Transparent mode: what `belady run` does around an unmodified program.
//!
//! The program's processes load the shim (`crates/shim`), which opens copies of files where there
//! are any, and requests the missing ones. This crate is the launcher, which makes the copies.
//!
//! ```text
//! prepare     checks the configuration before the program starts
//! level       directories with copies and their quotas (quota); one in memory (ram)
//! scan        the copies on the levels when a job begins; their metadata (metadata)
//! job         a job as a whole; its threads (workers) and what they do (task_queue, copy)
//! copy_store  all copies of a job, and their records on the shared board
//! dataset_watch  changes of the dataset by processes without the library
//! order       which file the program opens next, if known (--order, --learn); used by prefetch
//! program     the program as a child process: its start, its signals, its status
//! stored_copies  `belady cache`
//! ```
//!
//! Levels are directories. The copy of `DATASET/train/a.jpg` is the plain file `LEVEL/<name and
//! hash of the dataset>/files/train/a.jpg`. A file appears there by a rename when it is complete,
//! so the directory is its own index.

mod config;
mod copy;
mod copy_store;
mod dataset_watch;
mod error;
mod files;
mod job;
mod level;
pub mod library;
mod metadata;
mod order;
mod prefetch;
mod prepare;
pub mod program;
mod quota;
mod ram;
mod report;
mod scan;
pub mod stored_copies;
mod task_queue;
#[cfg(test)]
mod tests;
mod workers;

pub use belady_board::{Revalidate, Totals};
pub use config::{LevelConfig, TransparentConfig};
pub use error::PrepareError;
pub use job::TransparentJob;
pub use library::LibraryError;
pub use order::{FileOrderError, PrefetchTally};
pub use report::{CopyTotals, LevelReport, TransparentReport};
