//! A slow file system over a folder, for end-to-end benchmarks.
//!
//! ```text
//! slowfs SOURCE MOUNTPOINT --throughput "1:66MB/s,2:86MB/s,3:129MB/s,4:146MB/s" --latency 1ms
//! ```
//!
//! A read-only pass-through in user space. A request comes from the kernel to a worker
//! ([`fs`]), is admitted to the link that all readers share ([`link`]), and is answered when the
//! link has served it ([`pacer`]). Reads use direct I/O, so that they bypass the machine's page
//! cache, unless `--page-cache` is given.
//!
//! It counts the kernel's requests ([`stats`]): `cat MOUNTPOINT/.slowfs-stats` at any time.
//! SIGTERM or SIGINT unmounts it; SIGUSR1 divides its throughput by `--slowness`, SIGUSR2 restores it.

mod fs;
mod handles;
mod inodes;
mod link;
mod pacer;
mod signals;
mod stats;

use std::ffi::CString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use belady_control::model::{Curve, Rate, Seconds};
use clap::Parser;
use fuser::{Config, MountOption, Session, SessionACL};

use crate::fs::{Metadata, SlowFs};
use crate::link::LinkConfig;
use crate::pacer::Pacer;
use crate::stats::Stats;

#[derive(Debug, Parser)]
#[command(name = "slowfs", about = "A read-only view of a folder, at the speed of a table")]
struct Options {
    /// The folder to show
    source: PathBuf,
    /// An empty folder to show it in
    mountpoint: PathBuf,
    /// t(γ): what all reads in flight get together, by their number; linear in between and
    /// constant outside
    #[arg(long, value_name = "1:RATE,2:RATE,...", value_parser = parse_throughput)]
    throughput: Curve,
    /// How long a read waits before it is served
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_time)]
    latency: Seconds,
    /// How long every other request takes
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_time)]
    metadata_latency: Seconds,
    /// For how long the kernel may answer for names and attributes by itself; longer than any
    /// benchmark unless given, so that it asks for each once. `0s`: it asks each time, and each
    /// is counted
    #[arg(long, value_name = "TIME", default_value = "86400s", value_parser = parse_time)]
    metadata_cache: Seconds,
    /// For how long the link keeps the place of a reader that will ask again
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_time)]
    turnaround: Seconds,
    /// Let the kernel cache what was read
    #[arg(long)]
    page_cache: bool,
    /// Write the counters there after unmounting
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// What SIGUSR1 divides the throughput by
    #[arg(long, value_name = "TIMES", default_value_t = 4.0)]
    slowness: f64,
    /// Threads that take requests from the kernel
    #[arg(long, default_value_t = 8)]
    threads: usize,
}

/// The highest priority of `nice`.
const FIRST: i32 = -20;

fn parse_time(text: &str) -> Result<Seconds, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn parse_throughput(text: &str) -> Result<Curve, String> {
    let mut points = Vec::new();
    for pair in text.split(',') {
        let (readers, rate) =
            pair.split_once(':').ok_or_else(|| format!("`{pair}` is not READERS:RATE"))?;
        let readers = readers
            .trim()
            .parse()
            .map_err(|_| format!("`{readers}` in `{pair}` is not a number of readers"))?;
        let rate: Rate = rate.parse().map_err(|error| format!("{error}"))?;
        points.push((readers, rate));
    }
    Curve::new(points).map_err(|error| format!("the table {error}"))
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    ensure!(options.threads > 0, "--threads has to be at least 1");
    ensure!(options.slowness >= 1.0, "--slowness has to be at least 1");
    let source = options
        .source
        .canonicalize()
        .with_context(|| format!("cannot show {}", options.source.display()))?;
    if !source.is_dir() {
        bail!("cannot show {}, which is not a folder", source.display());
    }
    // Before any thread starts, since threads inherit what is blocked.
    signals::block();
    // It stands for another machine, which does not wait for programs on this one. Without the
    // permission it runs at normal priority.
    let _ = rustix::process::setpriority_process(None, FIRST);
    let stats = Arc::new(Stats::default());
    let link = LinkConfig {
        throughput: options.throughput,
        latency: options.latency.0,
        turnaround: options.turnaround.0,
    };
    let pacer = Pacer::start(link).context("cannot start a thread")?;
    let metadata = Metadata {
        latency: Duration::from_secs_f64(options.metadata_latency.0),
        keep: Duration::from_secs_f64(options.metadata_cache.0),
    };
    let dial = pacer.dial();
    let fs = SlowFs::new(source, pacer, Arc::clone(&stats), metadata, options.page_cache);
    let mut session = Session::new(fs, &options.mountpoint, &mount_config(options.threads))
        .with_context(|| {
            format!(
                "cannot mount at {}; it has to be an empty folder, and /dev/fuse has to exist",
                options.mountpoint.display()
            )
        })?;
    let unmounter = session.unmount_callable();
    let mountpoint = CString::new(options.mountpoint.canonicalize()?.as_os_str().as_bytes())?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || signals::obey(&mountpoint, unmounter, &dial, options.slowness))
        .context("cannot start a thread")?;
    match session.run() {
        // The kernel ends the connection of what was unmounted; a thread that reads it at that
        // moment gets this error.
        Err(error) if signals::was_told() && error.kind() == ErrorKind::ConnectionAborted => {}
        ended => ended.context("the connection to the kernel broke")?,
    }
    match options.stats {
        Some(path) => std::fs::write(&path, stats.to_json())
            .with_context(|| format!("cannot write the counters to {}", path.display())),
        None => Ok(()),
    }
}

fn mount_config(threads: usize) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoAtime,
        MountOption::FSName("slowfs".into()),
        MountOption::DefaultPermissions,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_parsed_with_and_without_blanks() {
        let curve = parse_throughput("1:66MB/s, 4:146 MB/s").unwrap();
        assert_eq!(curve.at(1).0, 66e6);
        assert_eq!(curve.at(4).0, 146e6);
    }

    #[test]
    fn an_invalid_throughput_is_quoted_in_the_error() {
        for (text, expected) in [
            ("66MB/s", "`66MB/s` is not READERS:RATE"),
            ("x:66MB/s", "`x` in `x:66MB/s` is not a number of readers"),
            ("1:66MB", "unknown unit"),
            ("1:0MB/s", "rate of zero"),
            ("0:1MB/s", "counts start at 1"),
            ("1:1MB/s,1:2MB/s", "twice"),
        ] {
            let error = parse_throughput(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
