//! What `belady run` does around a program that nobody may change.
//!
//! The program's processes have the library of `crates/shim` in them, which hands out copies of
//! files where there are any, and asks for those that are missing. Here they are made.
//!
//! Levels are directories. The copy of `DATASET/train/a.jpg` is the plain file
//! `LEVEL/<name and hash of the dataset>/files/train/a.jpg`, so the directory is itself the catalogue:
//! a file appears there when it is whole, by a rename.

mod config;
pub mod order;
mod report;

pub use belady_board::{Revalidate, Totals};
pub use config::{JobConfig, LevelConfig};
pub use report::{Copied, LevelReport, Report};
