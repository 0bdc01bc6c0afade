//! The options of `belady read`.

use std::path::PathBuf;
use std::sync::Arc;

use belady_control::model::{Bytes, Rate, Seconds};
use belady_control::policy::PolicyKind;
use belady_data::source::{Freshness, ThrottleSpec};
use belady_transform::{Chain, TransformStep};
use clap::{Args, ValueEnum};

use crate::dataset::DatasetArgs;
use crate::peers::PeerArgs;
use crate::usage::{count, seed};

/// The options of `belady read`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate flag")]
pub struct ReadArgs {
    #[command(flatten)]
    pub dataset: DatasetArgs,
    /// Samples in a batch
    #[arg(long, value_name = "B", default_value = "64", value_parser = batch,
          allow_negative_numbers = true)]
    pub batch: u32,
    /// Number of epochs
    #[arg(long, value_name = "E", default_value = "1", value_parser = epochs,
          allow_negative_numbers = true)]
    pub epochs: u32,
    /// Seed of the order
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = seed,
          allow_negative_numbers = true)]
    pub seed: u64,
    /// Order of the samples in an epoch
    #[arg(long, value_enum, default_value_t = OrderName::Torch)]
    pub order: OrderName,
    /// Leave out an incomplete last batch
    #[arg(long)]
    pub drop_last: bool,
    /// Staging buffer of this process [default: from the system file, else its share of 512 MiB for
    /// all processes of the machine]
    #[arg(long, value_name = "SIZE")]
    pub staging: Option<Bytes>,
    /// Threads that read samples, or `auto`
    #[arg(long, value_name = "N", default_value = "auto", value_parser = threads,
          allow_negative_numbers = true)]
    pub threads: ThreadsArg,
    /// A cache, such as ram:2GiB or /local/cache:20GiB; can be repeated, fastest first [default:
    /// from the system file]
    #[arg(long, value_name = "PLACE:SIZE", value_parser = cache)]
    pub cache: Vec<CacheArg>,
    /// Policy that decides where samples are cached, with options such as
    /// lobster,tau=5ms,threads=false
    #[arg(long, value_name = "P[,OPTION=VALUE]", default_value = "belady", value_parser = policy)]
    pub policy: PolicyKind,
    /// System file with the machine's throughputs, as the [cluster] tables of a scenario [default:
    /// BELADY_SYSTEM]
    #[arg(long, value_name = "FILE.toml")]
    pub system: Option<PathBuf>,
    /// Limit the dataset's throughput, such as "1:66MB/s,4:146MB/s,latency:2ms"
    #[arg(long, value_name = "SPEC")]
    pub throttle: Option<ThrottleSpec>,
    /// Compute on each batch for its bytes / RATE, as training does
    #[arg(long, value_name = "RATE", value_parser = consume)]
    pub consume: Option<Rate>,
    /// Transform samples, with a thread a core: a JSON list of steps, as `as_json()` of a transform
    /// gives it, or a file that has one
    #[arg(long, value_name = "STEPS", value_parser = transform, conflicts_with = "checksum")]
    pub transform: Option<TransformArg>,
    /// Lend samples of the RAM cache instead of copying them
    #[arg(long)]
    pub lend: bool,
    /// Bypass the page cache for uncached data on local disks [default: for datasets larger than
    /// half of the memory]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub direct: Option<bool>,
    /// When caches are compared with the dataset's files: at the `start` of a run, in every
    /// `epoch`, or `never`, for files that do not change
    #[arg(long, value_name = "WHEN", default_value = "start", value_parser = freshness)]
    pub freshness: Freshness,
    /// What to do with samples that cannot be read
    #[arg(long, value_enum, default_value_t = BadSamplesArg::Raise)]
    pub bad_samples: BadSamplesArg,
    /// Abandon a read of the dataset after this time
    #[arg(long, value_name = "TIME", value_parser = read_timeout)]
    pub read_timeout: Option<Seconds>,
    /// Number of retries of a failed read
    #[arg(long, value_name = "N", value_parser = retries)]
    pub retries: Option<u32>,
    /// Record the policy's inputs and decisions in this file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Serve metrics at http://ADDRESS:PORT/metrics to clients that send the token in
    /// BELADY_METRICS_TOKEN; the k-th process of a machine uses PORT + k, counted from 0
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    #[command(flatten)]
    pub peers: PeerArgs,
    /// Ranks of this process, such as the GPUs of a machine: each has a consumer and a staging
    /// buffer, and all share the caches and the threads
    #[arg(long, value_name = "N", default_value = "1", value_parser = local_ranks,
          allow_negative_numbers = true)]
    pub local_ranks: u32,
    /// End every step together with all other ranks, as training does
    #[arg(long)]
    pub barrier: bool,
    /// Print a checksum of all delivered samples, to compare runs
    #[arg(long)]
    pub checksum: bool,
    /// Print one JSON object instead of the summary
    #[arg(long)]
    pub json: bool,
}

/// The value of `--order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// Exactly the order of torch's DistributedSampler
    Torch,
    /// A keyed permutation that needs no memory
    Permutation,
    /// The order of the files
    Sequential,
}

/// The value of `--bad-samples`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BadSamplesArg {
    /// End the run
    Raise,
    /// Leave them out of their batches
    Skip,
    /// Repeat another sample of the batch instead
    Replace,
}

/// The value of `--threads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadsArg {
    Auto,
    Exactly(u32),
}

/// The value of `--cache`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheArg {
    /// `None` is RAM.
    pub directory: Option<PathBuf>,
    pub capacity: Bytes,
}

/// The value of `--transform`.
#[derive(Clone, Debug)]
pub struct TransformArg(Arc<Chain>);

impl TransformArg {
    /// Returns the chain of steps.
    pub fn chain(&self) -> Arc<Chain> {
        Arc::clone(&self.0)
    }
}

fn transform(text: &str) -> Result<TransformArg, String> {
    let steps = if text.trim_start().starts_with('[') {
        text.to_owned()
    } else {
        let cannot = |error| format!("cannot read the steps in {text}: {error}");
        std::fs::read_to_string(text).map_err(cannot)?
    };
    let steps = TransformStep::list(&steps).map_err(|error| error.to_string())?;
    Chain::new(steps).map(|chain| TransformArg(Arc::new(chain))).map_err(|error| error.to_string())
}

fn batch(text: &str) -> Result<u32, String> {
    count(text, "the batch", u64::from(u32::MAX))
}

fn epochs(text: &str) -> Result<u32, String> {
    // The summary has a line for every epoch.
    count(text, "the number of epochs", 1_000_000)
}

fn local_ranks(text: &str) -> Result<u32, String> {
    count(text, "the number of ranks of this process", 1024)
}

/// Parses a number of threads, for all commands.
pub fn threads(text: &str) -> Result<ThreadsArg, String> {
    if text == "auto" {
        return Ok(ThreadsArg::Auto);
    }
    count(text, "the number of threads", 4096)
        .map(ThreadsArg::Exactly)
        .map_err(|sentence| format!("{sentence}, or `auto`"))
}

fn freshness(text: &str) -> Result<Freshness, String> {
    text.parse()
}

fn retries(text: &str) -> Result<u32, String> {
    if text == "0" { Ok(0) } else { count(text, "the number of retries", 1000) }
}

/// Parses a cache's place and size, for all commands.
pub fn cache(text: &str) -> Result<CacheArg, String> {
    // The last colon: a directory's name may contain others.
    let (place, size) = text
        .rsplit_once(':')
        .filter(|(place, _)| !place.is_empty())
        .ok_or("a cache is a place and a size, such as ram:2GiB or /local/cache:20GiB")?;
    let capacity: Bytes =
        size.parse().map_err(|error| format!("the size of the cache `{place}`: {error}"))?;
    if capacity == Bytes::ZERO {
        return Err(format!("the cache `{place}` has size 0: make it larger or leave it out"));
    }
    let directory = (place != "ram").then(|| PathBuf::from(place));
    Ok(CacheArg { directory, capacity })
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    belady_engine::policy(text).map_err(|error| error.to_string())
}

fn consume(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|error| format!("{error}"))?;
    if rate.0 < 1.0 { Err("the rate must be at least 1 B/s".to_owned()) } else { Ok(rate) }
}

fn read_timeout(text: &str) -> Result<Seconds, String> {
    let time: Seconds = text.parse().map_err(|error| format!("{error}"))?;
    if (0.001..=86_400.0).contains(&time.0) {
        Ok(time)
    } else {
        Err("the time must be between 1 ms and 24 h".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_colon_separates_place_and_size() {
        let ram = cache("ram:2GiB").unwrap();
        assert_eq!(ram, CacheArg { directory: None, capacity: Bytes(2 << 30) });
        let disk = cache("/a:b/c:20 GB").unwrap();
        assert_eq!(disk.directory, Some(PathBuf::from("/a:b/c")));
        assert_eq!(disk.capacity, Bytes(20_000_000_000));
        // A directory named `ram` can be given as a path.
        assert_eq!(cache("./ram:1MB").unwrap().directory, Some(PathBuf::from("./ram")));
    }

    #[test]
    fn an_invalid_option_is_refused_with_its_reason() {
        for (refused, part) in [
            (cache("ram").unwrap_err(), "a place and a size"),
            (cache(":2GiB").unwrap_err(), "a place and a size"),
            (cache("ram:2 apples").unwrap_err(), "`apples`"),
            (cache("/x:0").unwrap_err(), "size 0"),
            (threads("0").unwrap_err(), "at least 1, or `auto`"),
            (threads("many").unwrap_err(), "whole number"),
            (policy("perfect").unwrap_err(), "simulator only"),
            (policy("belandy").unwrap_err(), "no policy `belandy`"),
            (policy("lobster,tau=soon").unwrap_err(), "`tau` of `lobster` is `soon`"),
            (policy("lobster,taw=1s").unwrap_err(), "which has threads, eviction, tau"),
            (consume("0 MB/s").unwrap_err(), "at least 1 B/s"),
            (consume("fast").unwrap_err(), "number"),
            (read_timeout("0s").unwrap_err(), "between"),
            (retries("-1").unwrap_err(), "at least 1"),
        ] {
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn every_policy_of_the_engine_is_accepted_by_name() {
        let named = |name: &str| policy(name).is_ok_and(|kind| kind.name() == name);
        assert!(belady_engine::POLICIES.into_iter().all(named));
    }

    #[test]
    fn a_policy_has_the_options_that_are_given() {
        let still = policy("lobster,tau=5ms,threads=false").unwrap();
        let tau = Seconds(0.005);
        assert_eq!(still, PolicyKind::Lobster { threads: false, eviction: true, tau });
    }
}
