//! `belady node`: one engine for all jobs of a node, in a process that outlives them.
//!
//! `start` starts this program again as `serve`, which listens at a socket that only this user can
//! reach. Programs that use the Python package find it there.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use belady_engine::Retry;
use belady_node::{
    EngineSpec, NodeConnection, NodeStatus, RawPath, ServerOptions, directory, launch, serve_stdin,
};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::read::{CacheArg, ThreadsArg, cache, threads};
use crate::text::{bytes, grouped, percent, table};
use crate::usage::UsageError;

/// The subcommands of `belady node`.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeCommand {
    /// Start an engine that the programs of this user share until it is stopped
    Start(EngineArgs),
    /// Show the engines of this user on this machine, and their jobs
    Status(StatusArgs),
    /// Stop the engine; programs that use it continue with engines of their own
    Stop,
    /// Serve at the socket that is the standard input
    #[command(hide = true)]
    Serve(ServeArgs),
}

/// The options of `belady node start`.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// A cache of the node, such as ram:40GiB or /local/nvme:500GiB; can be repeated, fastest first
    #[arg(long, value_name = "PLACE:SIZE", value_parser = cache, required = true)]
    cache: Vec<CacheArg>,
    /// Threads that load: a number, or `auto` for four a core
    #[arg(long, value_name = "N", default_value = "auto", value_parser = threads)]
    threads: ThreadsArg,
    /// A system file that describes the machine
    #[arg(long, value_name = "FILE")]
    system: Option<PathBuf>,
}

/// The options of `belady node status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// The options of `belady node serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// The path of the socket
    socket: PathBuf,
}

/// Runs a subcommand.
pub fn run(command: &NodeCommand) -> anyhow::Result<()> {
    match command {
        NodeCommand::Start(args) => start(args),
        NodeCommand::Status(args) => status(args),
        NodeCommand::Stop => stop(),
        NodeCommand::Serve(args) => {
            let engine = Some(spec(&args.engine));
            serve_stdin(&args.socket, ServerOptions { stays: true, engine })
                .map_err(anyhow::Error::msg)
        }
    }
}

fn spec(args: &EngineArgs) -> EngineSpec {
    let retry = Retry::default();
    let tier =
        |cache: &CacheArg| (cache.directory.as_deref().map(RawPath::absolute), cache.capacity.0);
    EngineSpec {
        tiers: args.cache.iter().map(tier).collect(),
        threads: match args.threads {
            ThreadsArg::Auto => None,
            ThreadsArg::Exactly(threads) => Some(threads),
        },
        system: args.system.as_deref().map(RawPath::absolute),
        attempts: retry.attempts,
        backoff_ns: retry.backoff.as_nanos() as u64,
        timeout_ns: retry.timeout.as_nanos() as u64,
    }
}

fn start(args: &EngineArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.system {
        belady_scenario::system_file(path)?;
    }
    let socket = directory::socket(directory::SHARED)?;
    if directory::running()?.contains(&socket) {
        let running = NodeConnection::open(&socket)?.status()?;
        return Err(UsageError::new(format!(
            "an engine of this node runs already, process {}: stop it first (belady node stop)",
            running.pid
        ))
        .into());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut arguments = vec!["node".to_owned(), "serve".to_owned()];
    for cache in &args.cache {
        let place = cache.directory.as_deref().map(std::path::absolute).transpose()?;
        let place = place.map_or_else(|| "ram".to_owned(), |place| place.display().to_string());
        arguments.extend(["--cache".to_owned(), format!("{place}:{} B", cache.capacity.0)]);
    }
    if let ThreadsArg::Exactly(threads) = args.threads {
        arguments.extend(["--threads".to_owned(), threads.to_string()]);
    }
    if let Some(system) = &args.system {
        let system = std::path::absolute(system)?;
        arguments.extend(["--system".to_owned(), system.display().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Not this terminal, which it outlives.
    let log = socket.with_extension("log");
    let messages = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let launched = launch(directory::SHARED, &program, &arguments, messages.into())?;
    // It has read its options when it answers.
    let running = NodeConnection::open(&launched.socket).and_then(|node| node.status());
    let running = running.with_context(|| {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        format!("the engine has ended at once: {}", said.trim())
    })?;
    print(&format!("started process {}; its messages are in {}\n", running.pid, log.display()))
}

fn stop() -> anyhow::Result<()> {
    let socket = directory::socket(directory::SHARED)?;
    if !directory::running()?.contains(&socket) {
        return Err(
            UsageError::new("no engine of this node runs: belady node start starts one").into()
        );
    }
    let node = NodeConnection::open(&socket)?;
    let pid = node.status()?.pid;
    node.stop()?;
    print(&format!("stopped process {pid}\n"))
}

fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let mut found = vec![];
    for socket in directory::running()? {
        // One that ends at this moment is none.
        if let Ok(status) = NodeConnection::open(&socket).and_then(|node| node.status()) {
            found.push(status);
        }
    }
    if args.json {
        let all: Vec<_> = found.iter().map(status_json).collect();
        return print(&format!("{:#}\n", json!(all)));
    }
    if found.is_empty() {
        return print("no engine of this user runs on this machine\n");
    }
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    print(&table(
        &["process", "stays", "programs", "jobs", "ranks", "delivered", "source", "hits"],
        &rows,
    ))
}

fn row(status: &NodeStatus) -> Vec<String> {
    let sum = |of: fn(&belady_engine::metrics::MetricsSnapshot) -> u64| {
        status.engines.iter().map(of).sum::<u64>()
    };
    let ranks: u32 = status.jobs.iter().map(|(_, ranks)| ranks).sum();
    let hits = match status.engines.as_slice() {
        [one] => percent(one.hit_ratio()),
        _ => "-".to_owned(),
    };
    vec![
        status.pid.to_string(),
        if status.stays { "yes" } else { "no" }.to_owned(),
        status.processes.saturating_sub(1).to_string(),
        status.jobs.len().to_string(),
        ranks.to_string(),
        grouped(sum(|engine| engine.delivered.samples) as f64, 0),
        bytes(sum(|engine| engine.source.bytes)),
        hits,
    ]
}

fn status_json(status: &NodeStatus) -> serde_json::Value {
    let job = |(name, ranks): &(String, u32)| json!({ "dataset": name, "ranks": ranks });
    json!({
        "pid": status.pid,
        "stays": status.stays,
        // This command is connected too.
        "programs": status.processes.saturating_sub(1),
        "jobs": status.jobs.iter().map(job).collect::<Vec<_>>(),
        "engines": status.engines,
    })
}

/// Prints a text. Not `println`, which panics if the reader of a pipe has closed it.
fn print(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
