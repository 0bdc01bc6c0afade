//! Other processes of the same job: who they are, and where all of them meet.
//!
//! What is typed comes before what the environment says, in the same words: an option stands for the
//! variable that says the same.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use belady_peer::meet::environment::{self, Found, Variables};
use belady_peer::meet::interface::Bind;
use belady_peer::meet::{Place, file, keys, point};
use belady_peer::{Cluster, JoinOptions, join};
use clap::{Args, ValueEnum};

use crate::usage::{UsageError, count};

/// How long ranks wait for each other: as long as a batch system takes to start all of a job.
const LIMIT: Duration = Duration::from_mins(5);

#[derive(Args, Clone, Debug)]
pub struct PeerArgs {
    /// Be one of N processes whose caches are one; `auto` for as many as were started together
    #[arg(long, value_name = "N|auto", value_parser = ranks, allow_negative_numbers = true)]
    ranks: Option<Ranks>,
    /// Which of them, counted from 0 [default: as torchrun, mpirun, srun, ... say]
    #[arg(long, value_name = "R", requires = "ranks")]
    rank: Option<u32>,
    /// Where they meet: the HOST:PORT of rank 0, or a directory that all see [default: BELADY_MEET,
    /// else as torchrun, srun, ... say]
    #[arg(long, value_name = "PLACE", requires = "ranks")]
    meet: Option<String>,
    /// A file with the job's key, which only you can read [default: BELADY_KEY, BELADY_KEY_FILE]
    #[arg(long, value_name = "FILE", requires = "ranks")]
    key_file: Option<PathBuf>,
    /// The address or interface at which others ask this process for samples [default: BELADY_BIND,
    /// else the one that leads to the meeting]
    #[arg(long, value_name = "ADDRESS|INTERFACE", requires = "ranks")]
    bind: Option<String>,
    /// What carries samples from process to process
    #[arg(long, value_enum, default_value_t = Carrier::Tcp, requires = "ranks")]
    transport: Carrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Carrier {
    /// Connections of our own; needs a key
    Tcp,
    /// MPI, under mpirun
    Mpi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranks {
    Auto,
    Exactly(u32),
}

fn ranks(text: &str) -> Result<Ranks, String> {
    if text == "auto" {
        return Ok(Ranks::Auto);
    }
    // More processes than any job has.
    count(text, "the number of ranks", 1 << 20)
        .map(Ranks::Exactly)
        .map_err(|sentence| format!("{sentence}, or `auto`"))
}

impl PeerArgs {
    /// The others, once all have come; `None` if this process is to be alone.
    pub fn join(&self) -> anyhow::Result<Option<Arc<Cluster>>> {
        let Some(ranks) = self.ranks else { return Ok(None) };
        if let (Ranks::Exactly(ranks), Some(rank)) = (ranks, self.rank)
            && rank >= ranks
        {
            bail!("--rank {rank} is not below --ranks {ranks}; ranks are counted from 0");
        }
        if self.transport == Carrier::Mpi {
            return over_mpi(ranks);
        }
        let variables = self.over(environment::of_this_process());
        let found = found(&variables, ranks)?;
        if found.world.size == 1 {
            return Ok(None);
        }
        over_tcp(&variables, found).map(Some)
    }

    /// The environment, with what was typed instead of what is there.
    fn over(&self, mut variables: Variables) -> Variables {
        let mut set = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                variables.insert(name.to_owned(), value);
            }
        };
        let ranks = match self.ranks {
            Some(Ranks::Exactly(ranks)) if self.rank.is_some() => Some(ranks.to_string()),
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

fn over_tcp(variables: &Variables, found: Found) -> anyhow::Result<Arc<Cluster>> {
    let bind = variables.get("BELADY_BIND").filter(|bind| !bind.is_empty());
    let bind: Option<Bind> = bind.map(|bind| bind.parse()).transpose()?;
    let listen = bind.as_ref().map(Bind::address).transpose()?;
    let given = keys::given(variables)?;
    let key = given.clone();
    let place = found.place.context(UsageError::new(
        "the ranks have no place to meet: give --meet HOST:PORT with the host of rank 0",
    ))?;
    let (world, job, limit) = (found.world, found.job.unwrap_or_default(), LIMIT);
    let meet = match &place {
        Place::Directory(directory) => {
            file::meet(directory, file::Options { world, job, key, limit, listen })?
        }
        Place::Point { .. } => {
            let key = key.ok_or_else(|| keys::missing(&place))?;
            point::meet(&place, point::Options { world, job, key, limit })?
        }
    };
    let options = JoinOptions { key: given, bind, ..JoinOptions::default() };
    Ok(Arc::new(join(meet, options)?))
}

fn found(variables: &Variables, ranks: Ranks) -> anyhow::Result<Found> {
    let found = environment::find(variables, &|_| false)?;
    let found = found.ok_or_else(|| {
        UsageError::new(
            "nobody says which rank this process is: give --rank, or start it with torchrun, \
             mpirun or srun",
        )
    })?;
    let size = found.world.size;
    match ranks {
        Ranks::Exactly(ranks) if ranks != size => Err(UsageError::new(format!(
            "--ranks {ranks} was asked for and {} has started {size}",
            found.starter
        ))
        .into()),
        _ => Ok(found),
    }
}

/// mpirun says who and where the others are.
#[cfg(feature = "mpi")]
fn over_mpi(ranks: Ranks) -> anyhow::Result<Option<Arc<Cluster>>> {
    use belady_peer::Transport;
    use belady_peer::mpi::{MpiConfig, MpiTransport};

    let transport = MpiTransport::start(MpiConfig::default())?;
    let meet = transport.meet();
    let size = meet.world().size;
    let cluster = Arc::new(Cluster::new(meet, transport as Arc<dyn Transport>));
    match ranks {
        Ranks::Exactly(ranks) if ranks != size => Err(UsageError::new(format!(
            "--ranks {ranks} was asked for and MPI has started {size}"
        ))
        .into()),
        _ => Ok((size > 1).then_some(cluster)),
    }
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(_ranks: Ranks) -> anyhow::Result<Option<Arc<Cluster>>> {
    Err(UsageError::new(
        "this belady was built without MPI: build it with `cargo build --release -p belady \
         --features mpi`",
    )
    .into())
}
