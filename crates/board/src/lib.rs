//! The board: memory that `belady run` shares with the program it runs.
//!
//! The launcher (`crates/transparent`) writes on it which files of the dataset have a copy, and
//! what the source says of them. The library in the program's processes (`crates/shim`) looks
//! files up, asks for those that are missing, and notes what it did.
//!
//! ```text
//! head      who it belongs to, the dataset's names, the levels, counters          (head.rs)
//! written   files that the job has opened for writing                             (written.rs)
//! index     hash tables: a name, a source file or a copy -> its record            (index.rs)
//! records   a file each: where its copy is, and what stat says of the source      (record.rs)
//! ```
//!
//! What the library needs of this crate runs inside `open` and `stat` of any program, at any
//! time: it allocates nothing, takes no lock, calls the kernel without libc, and leaves errno
//! alone. Only the launcher adds records ([`Publisher`]), and a record never changes but for
//! its three counters; so readers need no lock, and see a file either as it is or not yet.
//!
//! Whatever a program has done to the memory, looking up stays inside of it.

#![cfg_attr(feature = "shuttle", allow(dead_code))]

#[cfg(not(feature = "shuttle"))]
mod board;
pub mod facts;
mod head;
mod index;
pub mod message;
pub mod path;
#[cfg(not(feature = "shuttle"))]
mod publisher;
mod record;
mod sync;
mod written;

#[cfg(not(feature = "shuttle"))]
pub use board::{Attach, Board, Config, LevelConfig};
pub use facts::Facts;
pub use head::{Counted, Revalidate, Totals};
pub use path::{Dataset, PathKey};
#[cfg(not(feature = "shuttle"))]
pub use publisher::{Full, Publisher};
pub use record::{Entry, FileId, Kind, NewRecord, Seen};

/// The environment variable that tells the library where the board is.
pub const VARIABLE: &str = "BELADY_RUN";
/// As many levels as a board has room for.
pub const MOST_LEVELS: usize = 8;
