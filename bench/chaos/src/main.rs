//! Runs four nodes as processes and injects every kind of fault.
//!
//! `chaos run` starts the nodes ([`node`]) and passes all their connections through [`proxy`],
//! which cuts and delays links and flips bits. It also kills nodes with SIGKILL and restarts them,
//! damages their disk tiers, and fills their disks ([`faults`]). A fault counts when the victim's
//! own counters show it ([`run`]). Each node checks what it gets: its list of every epoch, and the
//! bytes of every sample.

mod faults;
mod job;
mod node;
mod proxy;
mod random;
mod run;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

#[derive(Debug, Parser)]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Runs nodes and injects faults
    Run(RunArgs),
    /// One node; `run` starts it
    Node(NodeArgs),
}

#[derive(Args, Clone, Debug)]
struct RunArgs {
    /// How many runs, one after another
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    #[arg(long, default_value_t = 10)]
    epochs: u32,
    /// Faults that a run must have seen
    #[arg(long, default_value_t = 50)]
    faults: usize,
}

#[derive(Args, Clone, Debug)]
struct NodeArgs {
    #[arg(long)]
    rank: u32,
    /// How often it was started before
    #[arg(long)]
    life: u32,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    epochs: u32,
    /// The directory for the rendezvous and for status files
    #[arg(long)]
    directory: PathBuf,
    /// The directory of its disk tier
    #[arg(long)]
    disk: PathBuf,
    /// Ports of the proxies to the nodes, by rank
    #[arg(long, value_delimiter = ',')]
    proxies: Vec<u16>,
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match Command::parse().what {
        What::Run(args) => run::all(&args),
        What::Node(args) => node::take_part(&args),
    }
}
