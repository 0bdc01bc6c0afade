//! The options by which a process joins the other processes of its job.
//!
//! Each option takes precedence over the environment variable of the same meaning.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use belady_peer::rendezvous::interface::Bind;
use belady_peer::rendezvous::launcher::{self, LaunchInfo, Variables};
use belady_peer::rendezvous::{RendezvousAddress, directory, keys, tcp};
use belady_peer::{Cluster, JoinOptions, join};
use clap::{Args, ValueEnum};

use crate::usage::{UsageError, count};

/// The time that ranks wait for each other: a batch system may take minutes to start a job.
const LIMIT: Duration = Duration::from_mins(5);

/// The options of a job with several processes.
#[derive(Args, Clone, Debug)]
pub struct PeerArgs {
    /// Share the caches of N processes; `auto` takes N from the launcher
    #[arg(long, value_name = "N|auto", value_parser = ranks, allow_negative_numbers = true)]
    ranks: Option<RankCount>,
    /// The rank of this process, counted from 0 [default: from torchrun, mpirun, srun, ...]
    #[arg(long, value_name = "R", requires = "ranks")]
    rank: Option<u32>,
    /// The rendezvous address: HOST:PORT of rank 0, or a shared directory [default: BELADY_MEET,
    /// else from torchrun, srun, ...]
    #[arg(long, value_name = "PLACE", requires = "ranks")]
    meet: Option<String>,
    /// A file with the job's key, readable by you only [default: BELADY_KEY, BELADY_KEY_FILE]
    #[arg(long, value_name = "FILE", requires = "ranks")]
    key_file: Option<PathBuf>,
    /// The address or interface that serves samples to other processes [default: BELADY_BIND, else
    /// the one with the route to the rendezvous]
    #[arg(long, value_name = "ADDRESS|INTERFACE", requires = "ranks")]
    bind: Option<String>,
    /// The transport of samples between processes
    #[arg(long, value_enum, default_value_t = Carrier::Tcp, requires = "ranks")]
    transport: Carrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Carrier {
    /// TCP connections, authenticated with the job's key
    Tcp,
    /// MPI, under mpirun
    Mpi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankCount {
    Auto,
    Exactly(u32),
}

fn ranks(text: &str) -> Result<RankCount, String> {
    if text == "auto" {
        return Ok(RankCount::Auto);
    }
    count(text, "the number of ranks", 1 << 20)
        .map(RankCount::Exactly)
        .map_err(|sentence| format!("{sentence}, or `auto`"))
}

impl PeerArgs {
    /// Returns whether the command line asks for other processes.
    pub fn are_wanted(&self) -> bool {
        self.ranks.is_some()
    }

    /// Waits for all processes of the job and joins them; `None` without `--ranks`, or if this is
    /// the only process.
    pub fn join(&self) -> anyhow::Result<Option<Arc<Cluster>>> {
        let Some(ranks) = self.ranks else { return Ok(None) };
        if let (RankCount::Exactly(ranks), Some(rank)) = (ranks, self.rank)
            && rank >= ranks
        {
            return Err(UsageError::new(format!(
                "--rank {rank} must be below --ranks {ranks}: ranks are counted from 0"
            ))
            .into());
        }
        if self.transport == Carrier::Mpi {
            return over_mpi(ranks);
        }
        let variables = self.over(launcher::of_this_process());
        let found = found(&variables, ranks)?;
        if found.world.size == 1 {
            return Ok(None);
        }
        over_tcp(&variables, found).map(Some)
    }

    /// Replaces variables of the environment by the options that were given.
    fn over(&self, mut variables: Variables) -> Variables {
        let mut set = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                variables.insert(name.to_owned(), value);
            }
        };
        let ranks = match self.ranks {
            Some(RankCount::Exactly(ranks)) if self.rank.is_some() => Some(ranks.to_string()),
            _ => None,
        };
        set("BELADY_RANK", self.rank.map(|rank| rank.to_string()));
        set("BELADY_RANKS", ranks);
        set("BELADY_MEET", self.meet.clone());
        set("BELADY_BIND", self.bind.clone());
        if let Some(path) = &self.key_file {
            set("BELADY_KEY_FILE", Some(path.display().to_string()));
            variables.remove("BELADY_KEY");
        }
        variables
    }
}

fn over_tcp(variables: &Variables, found: LaunchInfo) -> anyhow::Result<Arc<Cluster>> {
    let bind = Bind::given(variables);
    let listen = bind.as_ref().map(Bind::address).transpose().map_err(UsageError::of)?;
    let given = keys::given(variables).map_err(UsageError::of)?;
    let key = given.clone();
    let place = found.address.context(UsageError::new(
        "the ranks have no rendezvous address: give --meet HOST:PORT with the host of rank 0",
    ))?;
    let (world, job, limit) = (found.world, found.job.unwrap_or_default(), LIMIT);
    let meet = match &place {
        RendezvousAddress::Directory(directory) => directory::start(
            directory,
            directory::DirectoryOptions { world, job, key, limit, listen },
        )?,
        RendezvousAddress::Server { .. } => {
            let key = key.ok_or_else(|| UsageError::of(keys::missing(&place)))?;
            tcp::start(&place, tcp::TcpRendezvousOptions { world, job, key, limit })?
        }
    };
    let options = JoinOptions { key: given, bind, ..JoinOptions::default() };
    Ok(Arc::new(join(meet, options)?))
}

fn found(variables: &Variables, ranks: RankCount) -> anyhow::Result<LaunchInfo> {
    let found = launcher::find(variables, &|_| false).map_err(UsageError::of)?;
    let found = found.ok_or_else(|| {
        UsageError::new(
            "the rank of this process is not known: give --rank, or start it with torchrun, \
             mpirun or srun",
        )
    })?;
    let size = found.world.size;
    match ranks {
        RankCount::Exactly(ranks) if ranks != size => Err(UsageError::new(format!(
            "--ranks {ranks} does not match the {size} processes that {} started",
            found.launcher
        ))
        .into()),
        _ => Ok(found),
    }
}

/// Joins the processes that mpirun started.
#[cfg(feature = "mpi")]
fn over_mpi(ranks: RankCount) -> anyhow::Result<Option<Arc<Cluster>>> {
    use belady_peer::Transport;
    use belady_peer::mpi::{MpiConfig, MpiTransport};

    let transport = MpiTransport::start(MpiConfig::default())?;
    let meet = transport.rendezvous();
    let size = meet.world().size;
    let cluster = Arc::new(Cluster::new(meet, transport as Arc<dyn Transport>));
    match ranks {
        RankCount::Exactly(ranks) if ranks != size => Err(UsageError::new(format!(
            "--ranks {ranks} does not match the {size} processes that MPI started"
        ))
        .into()),
        _ => Ok((size > 1).then_some(cluster)),
    }
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(_ranks: RankCount) -> anyhow::Result<Option<Arc<Cluster>>> {
    Err(UsageError::new(
        "this belady was built without MPI: build it with `cargo build --release -p belady \
         --features mpi`",
    )
    .into())
}
