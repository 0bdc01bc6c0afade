//! Four nodes as processes, and everything that can go wrong between them.
//!
//! `chaos run` starts the nodes ([`node`]) and lets all their connections pass through [`proxy`], which
//! cuts and delays links and flips bits. It also kills nodes with SIGKILL and starts them again, damages
//! what lies in their disk tiers, and fills their disks ([`faults`]). A fault counts when the victim's
//! own counters show it ([`run`]). Each node checks what it is given: its list of every epoch, and the
//! bytes of every sample.

mod dice;
mod faults;
mod job;
mod node;
mod proxy;
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
    /// Runs nodes and breaks things
    Run(RunArgs),
    /// One node; `run` starts it
    Node(NodeArgs),
}

#[derive(Args, Clone, Debug)]
struct RunArgs {
    /// Runs, one after another
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
    /// Where all nodes meet, and tell how they are
    #[arg(long)]
    directory: PathBuf,
    /// Where its disk tier is
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
