//! The `belady` command: only glue between arguments and the crates that do the work.
#![forbid(unsafe_code)]

mod analyze;
mod simulate;

use std::process::ExitCode;

use belady_sim::scenario::ScenarioError;
use clap::{Parser, Subcommand};

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
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Simulate(args) => simulate::run(&args),
        Command::Analyze(args) => analyze::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            // 2 is a mistake in what was asked for, as from the argument parser itself.
            let asked_wrongly = error.chain().any(<dyn std::error::Error>::is::<ScenarioError>)
                || error.is::<analyze::UsageError>();
            ExitCode::from(if asked_wrongly { 2 } else { 1 })
        }
    }
}

/// `belady ... | head` is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
