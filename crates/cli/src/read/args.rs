//! The options of `belady read`, as typed.

use std::path::PathBuf;

use belady_control::model::{Bytes, Rate, Seconds};
use belady_control::policy::PolicyKind;
use belady_data::source::{Freshness, ThrottleSpec};
use belady_engine::POLICIES;
use clap::{Args, ValueEnum};

use crate::dataset::DatasetArgs;
use crate::peers::PeerArgs;
use crate::usage::count;

#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct ReadArgs {
    #[command(flatten)]
    pub dataset: DatasetArgs,
    /// Samples in a batch
    #[arg(long, value_name = "B", default_value = "64", value_parser = batch,
          allow_negative_numbers = true)]
    pub batch: u32,
    /// How often to go through the dataset
    #[arg(long, value_name = "E", default_value = "1", value_parser = epochs,
          allow_negative_numbers = true)]
    pub epochs: u32,
    /// Decides the order
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// How an epoch is shuffled
    #[arg(long, value_enum, default_value_t = OrderName::Torch)]
    pub order: OrderName,
    /// Leave out an incomplete last batch
    #[arg(long)]
    pub drop_last: bool,
    /// The staging buffer of this process [default: that of the system file, else its part of 512 MiB
    /// for all processes of the machine]
    #[arg(long, value_name = "SIZE")]
    pub staging: Option<Bytes>,
    /// Threads that load, or `auto`
    #[arg(long, value_name = "N", default_value = "auto", value_parser = threads,
          allow_negative_numbers = true)]
    pub threads: Threads,
    /// A cache, such as ram:2GiB or /local/cache:20GiB; several, fastest first [default: those
    /// of the system file]
    #[arg(long, value_name = "PLACE:SIZE", value_parser = cache)]
    pub cache: Vec<Cache>,
    /// What decides where samples are kept
    #[arg(long, value_name = "P", default_value = "belady", value_parser = policy)]
    pub policy: PolicyKind,
    /// What the machine can do, as [cluster] tables of a scenario
    #[arg(long, value_name = "FILE.toml")]
    pub system: Option<PathBuf>,
    /// Make the dataset slow, such as "1:66MB/s,4:146MB/s,latency:2ms"
    #[arg(long, value_name = "SPEC")]
    pub throttle: Option<ThrottleSpec>,
    /// Take this long over each batch, as training would: bytes of the batch / RATE
    #[arg(long, value_name = "RATE", value_parser = consume)]
    pub consume: Option<Rate>,
    /// Take samples in RAM from there without a copy
    #[arg(long)]
    pub lend: bool,
    /// Whether to read past the page cache what that does not hold, on local disks [default: for
    /// datasets larger than half of the memory]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub direct: Option<bool>,
    /// When what caches hold is compared with the dataset's files: at the `start` of a run, in every
    /// `epoch`, or `never`, for files that do not change
    #[arg(long, value_name = "WHEN", default_value = "start", value_parser = freshness)]
    pub freshness: Freshness,
    /// What becomes of samples that cannot be read
    #[arg(long, value_enum, default_value_t = BadSamples::Raise)]
    pub bad_samples: BadSamples,
    /// Give a read of the dataset up after this time
    #[arg(long, value_name = "TIME", value_parser = read_timeout)]
    pub read_timeout: Option<Seconds>,
    /// How often a failed read is tried again
    #[arg(long, value_name = "N", value_parser = retries)]
    pub retries: Option<u32>,
    /// Record what the policy was told and answered
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Offer metrics at http://ADDRESS:PORT/metrics to clients that send the token in BELADY_METRICS_TOKEN; the
    /// k-th of several processes on a machine at PORT + k
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    #[command(flatten)]
    pub peers: PeerArgs,
    /// End every step together with all other ranks, as training does
    #[arg(long, requires = "ranks")]
    pub barrier: bool,
    /// Add up all that comes, to compare runs
    #[arg(long)]
    pub checksum: bool,
    /// Print one JSON object instead of the summary
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// Bit for bit what torch's DistributedSampler gives
    Torch,
    /// A keyed permutation that needs no memory
    Permutation,
    /// As the samples lie
    Sequential,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BadSamples {
    /// The run ends
    Raise,
    /// Batches come without them
    Skip,
    /// Another sample of the batch takes their place
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    Auto,
    Exactly(u32),
}

/// A cache as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// `None` is RAM.
    pub directory: Option<PathBuf>,
    pub capacity: Bytes,
}

fn batch(text: &str) -> Result<u32, String> {
    count(text, "the batch", u64::from(u32::MAX))
}

fn epochs(text: &str) -> Result<u32, String> {
    // Every epoch has a line in the summary.
    count(text, "the number of epochs", 1_000_000)
}

fn threads(text: &str) -> Result<Threads, String> {
    if text == "auto" {
        return Ok(Threads::Auto);
    }
    // More threads than any storage has use for.
    count(text, "the number of threads", 4096)
        .map(Threads::Exactly)
        .map_err(|sentence| format!("{sentence}, or `auto`"))
}

fn freshness(text: &str) -> Result<Freshness, String> {
    text.parse()
}

fn retries(text: &str) -> Result<u32, String> {
    if text == "0" { Ok(0) } else { count(text, "the number of retries", 1000) }
}

/// A place and a size, as every command takes them.
pub fn cache(text: &str) -> Result<Cache, String> {
    // The last one: a directory's name may have colons too.
    let (place, size) = text
        .rsplit_once(':')
        .filter(|(place, _)| !place.is_empty())
        .ok_or("a cache is a place and a size, such as ram:2GiB or /local/cache:20GiB")?;
    let capacity: Bytes =
        size.parse().map_err(|error| format!("the size of the cache `{place}`: {error}"))?;
    if capacity == Bytes::ZERO {
        return Err(format!("the cache `{place}` has no room; leave it out or make it larger"));
    }
    let directory = (place != "ram").then(|| PathBuf::from(place));
    Ok(Cache { directory, capacity })
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    let known = PolicyKind::by_name(text);
    known.filter(|kind| POLICIES.contains(&kind.name())).ok_or_else(|| {
        let list = POLICIES.join(", ");
        match known {
            Some(_) => format!("`{text}` exists in the simulator only; use one of {list}"),
            None => format!("there is no policy `{text}`; use one of {list}"),
        }
    })
}

fn consume(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|error| format!("{error}"))?;
    if rate.0 < 1.0 { Err("the rate must be at least 1 B/s".to_owned()) } else { Ok(rate) }
}

fn read_timeout(text: &str) -> Result<Seconds, String> {
    let time: Seconds = text.parse().map_err(|error| format!("{error}"))?;
    // A day: whoever waits longer does not want a timeout.
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
    fn the_last_colon_of_a_cache_separates() {
        let ram = cache("ram:2GiB").unwrap();
        assert_eq!(ram, Cache { directory: None, capacity: Bytes(2 << 30) });
        let disk = cache("/a:b/c:20 GB").unwrap();
        assert_eq!(disk.directory, Some(PathBuf::from("/a:b/c")));
        assert_eq!(disk.capacity, Bytes(20_000_000_000));
        // A directory may be called so too, if it is named as one.
        assert_eq!(cache("./ram:1MB").unwrap().directory, Some(PathBuf::from("./ram")));
    }

    #[test]
    fn nonsense_is_refused_in_a_sentence() {
        for (refused, part) in [
            (cache("ram").unwrap_err(), "a place and a size"),
            (cache(":2GiB").unwrap_err(), "a place and a size"),
            (cache("ram:2 apples").unwrap_err(), "`apples`"),
            (cache("/x:0").unwrap_err(), "no room"),
            (threads("0").unwrap_err(), "at least 1, or `auto`"),
            (threads("many").unwrap_err(), "whole number"),
            (policy("perfect").unwrap_err(), "simulator only"),
            (policy("belandy").unwrap_err(), "no policy `belandy`"),
            (consume("0 MB/s").unwrap_err(), "at least 1 B/s"),
            (consume("fast").unwrap_err(), "number"),
            (read_timeout("0s").unwrap_err(), "between"),
            (retries("-1").unwrap_err(), "at least 1"),
        ] {
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn every_policy_of_the_engine_has_its_name() {
        assert!(POLICIES.iter().all(|name| policy(name).is_ok_and(|kind| kind.name() == *name)));
    }
}
