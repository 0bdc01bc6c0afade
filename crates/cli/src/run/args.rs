//! The options of `belady run`.

use std::ffi::OsString;
use std::path::PathBuf;

use belady_transparent::{LevelConfig, Revalidate, TransparentConfig};
use clap::{Args, ValueEnum};

use crate::read::{CacheArg, cache};
use crate::usage::{UsageError, count};

/// The default of `--threads`: a shared file system is faster with several readers.
const THREADS: &str = "8";

/// The options of `belady run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The directory whose files are copied
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Where copies are stored, such as /local/nvme:100GiB or ram:8GiB; can be repeated, fastest
    /// first
    #[arg(long, value_name = "PLACE:SIZE", value_parser = cache, required = true)]
    cache: Vec<CacheArg>,
    /// When a copy is compared with its file
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Start)]
    revalidate: When,
    /// A list of files in the order of reading, one per line, to be copied ahead of the reader
    #[arg(long, value_name = "FILE", conflicts_with = "learn")]
    order: Option<PathBuf>,
    /// Learn the order of the first epoch, and copy ahead if the next epoch starts in the same
    /// order
    #[arg(long)]
    learn: bool,
    /// Threads that copy files
    #[arg(long, value_name = "N", default_value = THREADS, value_parser = threads,
          allow_negative_numbers = true)]
    threads: u32,
    /// Print a report to standard error after the program has ended
    #[arg(long)]
    pub report: bool,
    /// Write the report as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub report_json: Option<PathBuf>,
    /// Serve metrics at http://ADDRESS:PORT/metrics to clients that send the token in
    /// BELADY_METRICS_TOKEN
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// Once in a run, at its first use
    Start,
    /// At every opening
    Open,
    /// Never, for files that do not change
    Never,
}

fn threads(text: &str) -> Result<u32, String> {
    count(text, "the number of threads", 4096)
}

impl RunArgs {
    /// Returns the configuration of the job.
    ///
    /// # Errors
    /// If RAM is given more than once.
    pub fn config(&self) -> Result<TransparentConfig, UsageError> {
        if self.cache.iter().filter(|cache| cache.directory.is_none()).count() > 1 {
            return Err(UsageError::new(
                "--cache ram is given more than once: give it once, with the total size",
            ));
        }
        Ok(TransparentConfig {
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

fn level(cache: &CacheArg) -> LevelConfig {
    let quota = cache.capacity;
    match cache.directory.clone() {
        None => LevelConfig::Ram { quota },
        Some(path) => LevelConfig::Directory { path, quota },
    }
}
