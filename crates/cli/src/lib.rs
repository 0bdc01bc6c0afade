//! The `belady` command: only glue between arguments and the crates that do the work.
//!
//! A library, so that the Python package can carry the command; the binary only calls [`run`].
#![forbid(unsafe_code)]

mod analyze;
mod cache;
mod dataset;
pub mod environment;
pub mod logging;
mod ls;
mod metrics;
mod peers;
mod read;
mod run;
mod simulate;
mod text;
mod top;
mod usage;

use std::ffi::OsString;

use belady_data::source::OpenError;
use belady_data::tier::disk::ManageError;
use belady_engine::EngineError;
use belady_sim::scenario::ScenarioError;
use belady_transparent::program::ProgramError;
use clap::{Parser, Subcommand};
use usage::UsageError;

/// Feeds machine-learning training from the right place at the right time.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run policies on a described cluster in virtual time
    Simulate(simulate::SimulateArgs),
    /// Show how often and how far apart a run reads its samples
    Analyze(analyze::AnalyzeArgs),
    /// Read a dataset as training would, and measure it
    Read(Box<read::ReadArgs>),
    /// Run a program that reads files, and keep copies of them near
    Run(run::RunArgs),
    /// Show what a dataset holds
    Ls(ls::LsArgs),
    /// Look after the caches in a directory
    #[command(subcommand)]
    Cache(cache::CacheCommand),
    /// Watch all nodes of a running job
    Top(top::TopArgs),
    /// Show the environment variables that Belady reads
    #[command(after_help = environment::help())]
    Environment,
}

/// Runs the command with these arguments, the first of which is its name; the exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let command = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command,
        Err(answer) => {
            // Help is an answer as well. If nobody reads it, there is nobody to tell.
            let _ = answer.print();
            return answer.exit_code() as u8;
        }
    };
    // The errors of the program that `belady run` starts are its own.
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
        Command::Top(args) => top::run(&args).map(done),
        Command::Environment => environment::run().map(done),
    };
    logging::finish();
    match result {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) => {
            eprintln!("error: {error:#}");
            status(&error)
        }
    }
}

/// 2 is a mistake in what was asked for, as from the argument parser itself.
fn status(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<ProgramError>() {
        Some(error) => error.exit_code(),
        None if asked_wrongly(error) => 2,
        None => 1,
    }
}

fn asked_wrongly(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<ScenarioError>() || cause.is::<UsageError>())
        || error.downcast_ref::<OpenError>().is_some_and(|error| {
            // Storage that fails is not the user's mistake.
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

/// `belady ... | head` is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
