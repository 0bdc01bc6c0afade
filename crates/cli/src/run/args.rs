//! The options of `belady run`, as typed.

use std::ffi::OsString;
use std::path::PathBuf;

use belady_transparent::{JobConfig, LevelConfig, Revalidate};
use clap::{Args, ValueEnum};

use crate::read::{Cache, cache};
use crate::usage::{UsageError, count};

/// A shared file system gives more to several readers than to one; the program reads there too.
const THREADS: &str = "8";

#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The directory whose files get copies
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Where copies may lie, such as /local/nvme:100GiB or ram:8GiB; several, fastest first
    #[arg(long, value_name = "PLACE:SIZE", value_parser = cache, required = true)]
    cache: Vec<Cache>,
    /// When a copy is compared with its file
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Start)]
    revalidate: When,
    /// Names of files in the order in which they will be read, one a line: copied ahead of the reader
    #[arg(long, value_name = "FILE", conflicts_with = "learn")]
    order: Option<PathBuf>,
    /// Learn the order of the first epoch, and copy ahead where the next begins the same way
    #[arg(long)]
    learn: bool,
    /// Threads that copy
    #[arg(long, value_name = "N", default_value = THREADS, value_parser = threads,
          allow_negative_numbers = true)]
    threads: u32,
    /// Tell what came of it when the program has ended
    #[arg(long)]
    pub report: bool,
    /// Likewise as JSON, into a file
    #[arg(long, value_name = "FILE")]
    pub report_json: Option<PathBuf>,
    /// Offer metrics at http://ADDRESS:PORT/metrics to who sends the token in
    /// BELADY_METRICS_TOKEN
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// Once in a run, when it is first used
    Start,
    /// Each time it is opened
    Open,
    /// The files never change
    Never,
}

fn threads(text: &str) -> Result<u32, String> {
    // More threads than any storage has use for.
    count(text, "the number of threads", 4096)
}

impl RunArgs {
    pub fn config(&self) -> Result<JobConfig, UsageError> {
        if self.cache.iter().filter(|cache| cache.directory.is_none()).count() > 1 {
            return Err(UsageError::new("--cache ram is there twice: give it once, with the sum"));
        }
        Ok(JobConfig {
            dataset: self.data.clone(),
            levels: self.cache.iter().map(level).collect(),
            revalidate: match self.revalidate {
                When::Start => Revalidate::Start,
                When::Open => Revalidate::Open,
                When::Never => Revalidate::Never,
            },
            threads: self.threads as usize,
            order: self.order.clone(),
            learn: self.learn,
        })
    }
}

fn level(cache: &Cache) -> LevelConfig {
    let quota = cache.capacity;
    match cache.directory.clone() {
        None => LevelConfig::Ram { quota },
        Some(path) => LevelConfig::Directory { path, quota },
    }
}
