//! The same work by the plainest means, to measure belady against.
//!
//! | command | is |
//! |---|---|
//! | `memcpy` | blocks copied from a large buffer into a ring, in random order |
//! | `pread-pool` | threads that open, read and close shuffled files, in no order |
//! | `reader` | threads that read ahead, and a consumer of fixed rate that gets samples in order |
//! | `dataset` | makes the files that all of them read |
//!
//! Each prints one JSON object with the seconds, CPU-seconds, samples and bytes it took.

mod dataset;
mod memcpy;
mod ordered;
mod pool;
mod random;
mod reader;
mod report;

use belady_control::model::{Bytes, Rate};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "baselines", about = "The plainest way to do the same work")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copy blocks from a large buffer into a ring, in random order
    Memcpy(memcpy::Options),
    /// Open, read and close shuffled files on several threads, in no order
    PreadPool(pool::Options),
    /// Read ahead on several threads and deliver in order to a consumer of fixed rate
    Reader(reader::Options),
    /// Make files of given sizes; the same options make the same bytes
    Dataset(dataset::Options),
}

fn parse_bytes(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|error| format!("{error}"))?;
    if rate.0 > 0.0 { Ok(rate) } else { Err(format!("`{text}` has to be above zero")) }
}

fn main() -> anyhow::Result<()> {
    match Options::parse().command {
        Command::Memcpy(options) => memcpy::run(&options)?.print(),
        Command::PreadPool(options) => pool::run(&options)?.print(),
        Command::Reader(options) => reader::run(&options)?.print(),
        Command::Dataset(options) => dataset::run(&options)?.print(),
    }
}
