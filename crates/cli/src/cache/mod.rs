//! `belady cache`: looking after the caches in a directory. A directory may hold those of
//! several datasets, and of both kinds ([`held`]).

mod fill;
mod held;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use self::held::{Checked, Held, Kind};
use crate::logging;
use crate::text::{bytes, grouped, table};

#[derive(Clone, Debug, Subcommand)]
pub enum CacheCommand {
    /// Show which datasets' samples and files a directory holds
    Ls(DirectoryArgs),
    /// Read every sample and file, and let go of those that are damaged
    Verify(DirectoryArgs),
    /// Copy a dataset into a cache before a job needs it
    Fill(fill::FillArgs),
    /// Remove caches
    Clear(ClearArgs),
}

#[derive(Args, Clone, Debug)]
pub struct DirectoryArgs {
    /// The directory, as in --cache DIR:SIZE
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print JSON instead
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
pub struct ClearArgs {
    #[command(flatten)]
    at: DirectoryArgs,
    /// Only the cache with this fingerprint, as `belady cache ls` shows it
    #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint)]
    only: Option<u64>,
}

fn fingerprint(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16)
        .map_err(|_| "a fingerprint has up to 16 digits from 0 to f; see `belady cache ls`".into())
}

pub fn run(command: &CacheCommand) -> anyhow::Result<()> {
    match command {
        CacheCommand::Ls(args) => ls(args),
        CacheCommand::Verify(args) => verify(args),
        CacheCommand::Fill(args) => fill::run(args),
        CacheCommand::Clear(args) => clear(args),
    }
}

/// Not `println`, which panics when the reader of a pipe has gone.
fn print(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

fn print_json(value: &Value) -> anyhow::Result<()> {
    print(&format!("{value:#}\n"))
}

fn ls(args: &DirectoryArgs) -> anyhow::Result<()> {
    let caches = held::list(&args.directory)?;
    if args.json {
        return print_json(&caches.iter().map(held_json).collect());
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

fn row(cache: &Held) -> Vec<String> {
    let state = match cache {
        Held { version_ok: false, .. } => "unreadable",
        Held { in_use: true, .. } => "in use",
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

fn held_json(cache: &Held) -> Value {
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

/// How long ago, in the largest unit that fits.
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
    let checked = held::verify(&args.directory, &mut |checked, of| {
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
    for kind in [Kind::Samples, Kind::Files] {
        let of_kind = checked.iter().filter(|cache| cache.kind == kind);
        let damaged: u64 = of_kind.map(|cache| cache.damaged).sum();
        let kind = kind.name();
        anyhow::ensure!(damaged == 0, "{damaged} {kind} were damaged; a job reads them anew");
    }
    let unchecked = checked.iter().find_map(|cache| cache.problem.as_ref());
    match unchecked {
        Some(problem) => anyhow::bail!("a cache could not be checked: {problem}"),
        None => Ok(()),
    }
}

fn checked_row(cache: &Checked) -> Vec<String> {
    let note = match cache {
        Checked { problem: Some(problem), .. } => problem.clone(),
        Checked { damaged: 0, .. } => String::new(),
        Checked { dropped: true, .. } => "let go".to_owned(),
        Checked { dropped: false, .. } => "in use, so still there".to_owned(),
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

fn checked_json(cache: &Checked) -> Value {
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
    let removed = held::clear(&args.at.directory, args.only)?;
    if args.at.json {
        return print_json(&removed.iter().map(held_json).collect());
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
    fn times_are_told_in_the_largest_unit() {
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
