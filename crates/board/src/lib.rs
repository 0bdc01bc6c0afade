//! The shared board: memory that `belady run` shares with the processes of the program it runs.
//!
//! The launcher (`crates/transparent`) publishes which files of the dataset have a copy, together
//! with the source's `stat`. The library in the program's processes (`crates/shim`) looks files up,
//! requests copies of files that have none, and counts what it does.
//!
//! ```text
//! header         owner, the dataset's paths, the levels, counters                (header.rs)
//! written files  files that the job has opened for writing                       (written_files.rs)
//! index          hash tables: a path, a source file or a copy -> its record      (index.rs)
//! records        one per file: where its copy is, and the source's stat          (record.rs)
//! ```
//!
//! The shim calls this crate inside `open` and `stat` of any program, at any time, also in signal
//! handlers. Those functions allocate nothing, take no lock, call the kernel without libc, and
//! leave errno alone. Only the launcher adds records ([`BoardPublisher`]). After a record is
//! published only its three counters change, so readers need no lock.
//!
//! A program can overwrite the shared memory. Lookups stay inside the mapping whatever it contains.

#![cfg_attr(feature = "shuttle", allow(dead_code))]

#[cfg(not(feature = "shuttle"))]
mod attach;
#[cfg(not(feature = "shuttle"))]
mod board;
pub mod file_stat;
mod header;
mod index;
pub mod message;
pub mod path;
#[cfg(not(feature = "shuttle"))]
mod publisher;
mod record;
mod sync;
mod written_files;

#[cfg(not(feature = "shuttle"))]
pub use attach::Attach;
#[cfg(not(feature = "shuttle"))]
pub use board::{Board, BoardConfig, BoardLevelConfig};
pub use file_stat::{FileId, FileStat};
pub use header::{OpenCounter, Revalidate, Totals};
pub use path::{DatasetPaths, PathKey};
#[cfg(not(feature = "shuttle"))]
pub use publisher::{BoardFull, BoardPublisher};
pub use record::{ChangeSnapshot, NewRecord, RecordKind, RecordRef};

/// The environment variable that tells the shim where the board is.
pub const VARIABLE: &str = "BELADY_RUN";
/// The most levels that a board can have.
pub const MOST_LEVELS: usize = 8;
