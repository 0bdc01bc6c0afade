//! The `belady` command: it parses arguments, calls the other crates and prints their results.
//!
//! It is a library so that the Python package can contain the command; the binary calls [`run`].
#![forbid(unsafe_code)]

mod analyze;
mod cache;
mod dataset;
mod ls;
mod metrics;
mod node;
mod peers;
mod read;
mod run;
mod simulate;
mod text;
mod top;
mod usage;

use std::ffi::OsString;
use std::io::Write as _;

use belady_base::{environment, logging};
use belady_data::source::OpenError;
use belady_data::tier::disk::ManageError;
use belady_engine::EngineError;
use belady_scenario::ScenarioError;
use belady_transparent::program::ProgramError;
use clap::{Parser, Subcommand};
use usage::UsageError;

/// Caches and prefetches training data from its known future accesses.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Simulate policies on a described cluster
    Simulate(simulate::SimulateArgs),
    /// Show how often a run reads each sample, and at what distance
    Analyze(analyze::AnalyzeArgs),
    /// Read a dataset as training does, and measure it
    Read(Box<read::ReadArgs>),
    /// Run a program and serve the files that it reads from local copies
    Run(run::RunArgs),
    /// Show a dataset's samples, sizes and classes
    Ls(ls::LsArgs),
    /// List, verify, fill and clear the caches in a directory
    #[command(subcommand)]
    Cache(cache::CacheCommand),
    /// Start, show and stop the engine that the programs of this node share
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Show the nodes of a running job, live
    Top(top::TopArgs),
    /// Show the environment variables that Belady reads
    #[command(after_help = environment::help())]
    Environment,
}

/// Runs the command and returns its exit status. The first argument is the command's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let command = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command,
        Err(answer) => {
            // `answer` is an error or a help text. A closed output is ignored.
            let _ = answer.print();
            return answer.exit_code() as u8;
        }
    };
    // Under `belady run`, standard error belongs to the program.
    if !matches!(command, Command::Run(_)) {
        logging::start();
    }
    let done = |()| 0;
    let result = match command {
        Command::Simulate(args) => simulate::run(&args).map(done),
        Command::Analyze(args) => analyze::run(args).map(done),
        Command::Read(args) => read::run(&args).map(done),
        Command::Run(args) => run::run(&args),
        Command::Ls(args) => ls::run(&args).map(done),
        Command::Cache(command) => cache::run(&command).map(done),
        Command::Node(command) => node::run(&command).map(done),
        Command::Top(args) => top::run(&args).map(done),
        Command::Environment => list_environment().map(done),
    };
    logging::finish();
    match result {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            eprintln!("error: {}", sentence(&error));
            status(&error)
        }
    }
}

/// Returns an error and its causes as one line. A cause that the message before it quotes already is
/// left out.
fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.ends_with(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

/// Prints each variable with its value and its meaning.
fn list_environment() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for variable in environment::ALL {
        writeln!(out, "{}={}\n    {}", variable.name, variable.shown(), variable.meaning)?;
    }
    Ok(())
}

/// Returns the exit status of an error: 2 for wrong usage, as from the argument parser.
fn status(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<ProgramError>() {
        Some(error) => error.exit_code(),
        None if is_usage_error(error) => 2,
        None => 1,
    }
}

fn is_usage_error(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<ScenarioError>() || cause.is::<UsageError>())
        || error.downcast_ref::<OpenError>().is_some_and(|error| {
            // Failing storage is not a usage error.
            !matches!(error, OpenError::Unreadable { .. } | OpenError::Index { .. })
        })
        || error.downcast_ref::<EngineError>().is_some_and(|error| {
            matches!(
                error,
                EngineError::StagingTooSmall { .. }
                    | EngineError::SimulatorOnly(..)
                    | EngineError::Policy(_)
                    | EngineError::Sampler(_)
            )
        })
        || error
            .downcast_ref::<ManageError>()
            .is_some_and(|error| !matches!(error, ManageError::Io { .. } | ManageError::InUse(_)))
}

/// Returns whether the reader of standard output has closed it, as in `belady ... | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
