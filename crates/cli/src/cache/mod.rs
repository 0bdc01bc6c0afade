//! `belady cache`: lists, verifies, fills and clears the caches in a directory.
//!
//! A directory can hold caches of several datasets and of both kinds ([`contents`]).

mod contents;
mod fill;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use self::contents::{CacheKind, CachedDataset, CheckedCache};
use crate::text::{bytes, grouped, table};
use belady_base::logging;

/// The subcommands of `belady cache`.
#[derive(Clone, Debug, Subcommand)]
pub enum CacheCommand {
    /// List the caches in a directory
    Ls(DirectoryArgs),
    /// Read every cached sample and file, and remove damaged ones
    Verify(DirectoryArgs),
    /// Copy a dataset into a cache before a job needs it
    Fill(fill::FillArgs),
    /// Remove caches
    Clear(ClearArgs),
}

/// The options of `belady cache ls` and `belady cache verify`.
#[derive(Args, Clone, Debug)]
pub struct DirectoryArgs {
    /// The directory, as in --cache DIR:SIZE
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// The options of `belady cache clear`.
#[derive(Args, Clone, Debug)]
pub struct ClearArgs {
    #[command(flatten)]
    at: DirectoryArgs,
    /// Remove only the cache with this fingerprint, as `belady cache ls` shows it
    #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint)]
    only: Option<u64>,
}

fn fingerprint(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16)
        .map_err(|_| "a fingerprint has up to 16 digits from 0 to f; see `belady cache ls`".into())
}

/// Runs a subcommand.
pub fn run(command: &CacheCommand) -> anyhow::Result<()> {
    match command {
        CacheCommand::Ls(args) => ls(args),
        CacheCommand::Verify(args) => verify(args),
        CacheCommand::Fill(args) => fill::run(args),
        CacheCommand::Clear(args) => clear(args),
    }
}

/// Prints a text. Not `println`, which panics if the reader of a pipe has closed it.
fn print(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

fn print_json(value: &Value) -> anyhow::Result<()> {
    print(&format!("{value:#}\n"))
}

fn ls(args: &DirectoryArgs) -> anyhow::Result<()> {
    let caches = contents::list(&args.directory)?;
    if args.json {
        return print_json(&caches.iter().map(cache_json).collect());
    }
    if caches.is_empty() {
        return print(&format!("{} holds no caches\n", args.directory.display()));
    }
    let headings = ["dataset", "fingerprint", "kind", "count", "bytes", "on disk", "used", "state"];
    let rows: Vec<Vec<String>> = caches.iter().map(row).collect();
    print(&table(&headings, &rows))
}

fn shown(name: &str) -> String {
    if name.is_empty() { "?" } else { name }.to_owned()
}

fn row(cache: &CachedDataset) -> Vec<String> {
    let state = match cache {
        CachedDataset { version_ok: false, .. } => "unreadable",
        CachedDataset { in_use: true, .. } => "in use",
        _ => "idle",
    };
    vec![
        shown(&cache.name),
        format!("{:016x}", cache.fingerprint),
        cache.kind.name().to_owned(),
        grouped(cache.count as f64, 0),
        bytes(cache.bytes),
        bytes(cache.on_disk),
        ago(cache.last_used, SystemTime::now()),
        state.to_owned(),
    ]
}

fn cache_json(cache: &CachedDataset) -> Value {
    let since = cache.last_used.duration_since(SystemTime::UNIX_EPOCH);
    let mut value = json!({
        "dataset": cache.name,
        "kind": cache.kind.name(),
        "fingerprint": format!("{:016x}", cache.fingerprint),
        "bytes": cache.bytes,
        "on_disk": cache.on_disk,
        "last_used": since.map_or(0, |since| since.as_secs()),
        "in_use": cache.in_use,
        "version_ok": cache.version_ok,
    });
    value[cache.kind.name()] = cache.count.into();
    if let Some(dataset) = &cache.dataset {
        value["path"] = dataset.to_string_lossy().into();
    }
    value
}

/// Formats the time since `then` in the largest unit that fits.
fn ago(then: SystemTime, now: SystemTime) -> String {
    let seconds = now.duration_since(then).map_or(0, |since| since.as_secs());
    match seconds {
        0..60 => "just now".to_owned(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn verify(args: &DirectoryArgs) -> anyhow::Result<()> {
    let bar = logging::progress(ProgressBar::new(0));
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent:>3} % {eta}") {
        bar.set_style(style);
    }
    let checked = contents::verify(&args.directory, &mut |checked, of| {
        bar.set_length(of);
        bar.set_position(checked);
    });
    bar.finish_and_clear();
    let checked = checked?;
    if args.json {
        print_json(&checked.iter().map(checked_json).collect())?;
    } else {
        let rows: Vec<Vec<String>> = checked.iter().map(checked_row).collect();
        print(&table(&["dataset", "fingerprint", "kind", "good", "damaged", ""], &rows))?;
    }
    for kind in [CacheKind::Samples, CacheKind::Files] {
        let of_kind = checked.iter().filter(|cache| cache.kind == kind);
        let damaged: u64 = of_kind.map(|cache| cache.damaged).sum();
        let kind = kind.name();
        anyhow::ensure!(damaged == 0, "{damaged} {kind} were damaged; a job reads them again");
    }
    let unchecked = checked.iter().find_map(|cache| cache.problem.as_ref());
    match unchecked {
        Some(problem) => anyhow::bail!("a cache could not be verified: {problem}"),
        None => Ok(()),
    }
}

fn checked_row(cache: &CheckedCache) -> Vec<String> {
    let note = match cache {
        CheckedCache { problem: Some(problem), .. } => problem.clone(),
        CheckedCache { damaged: 0, .. } => String::new(),
        CheckedCache { dropped: true, .. } => "removed".to_owned(),
        CheckedCache { dropped: false, .. } => "in use, not removed".to_owned(),
    };
    vec![
        shown(&cache.name),
        format!("{:016x}", cache.fingerprint),
        cache.kind.name().to_owned(),
        grouped(cache.good as f64, 0),
        grouped(cache.damaged as f64, 0),
        note,
    ]
}

fn checked_json(cache: &CheckedCache) -> Value {
    json!({
        "dataset": cache.name,
        "kind": cache.kind.name(),
        "fingerprint": format!("{:016x}", cache.fingerprint),
        "good": cache.good,
        "damaged": cache.damaged,
        "dropped": cache.dropped,
        "problem": cache.problem,
    })
}

fn clear(args: &ClearArgs) -> anyhow::Result<()> {
    let removed = contents::clear(&args.at.directory, args.only)?;
    if args.at.json {
        return print_json(&removed.iter().map(cache_json).collect());
    }
    let freed: u64 = removed.iter().map(|cache| cache.on_disk).sum();
    let caches = if removed.len() == 1 { "cache" } else { "caches" };
    print(&format!("removed {} {caches}, {} freed\n", removed.len(), bytes(freed)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_shown_in_the_largest_unit() {
        let now = SystemTime::now();
        let before = |seconds| ago(now - Duration::from_secs(seconds), now);
        assert_eq!(before(5), "just now");
        assert_eq!(before(125), "2 min ago");
        assert_eq!(before(90_000), "25 h ago");
        assert_eq!(before(200_000), "2 days ago");
        assert_eq!(ago(now + Duration::from_hours(1), now), "just now");
    }

    #[test]
    fn fingerprints_are_read_as_shown() {
        assert_eq!(fingerprint("00ff"), Ok(255));
        assert!(fingerprint("xyz").is_err() && fingerprint("12345678901234567").is_err());
    }
}
