//! What the launcher of this process says in environment variables: the rank, and where the job's
//! rendezvous is. A pure function of these variables.
//!
//! The first of these that is set decides: `BELADY_RANK` and `BELADY_RANKS`, torchrun and Ray Train
//! (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`), Open MPI (`OMPI_COMM_WORLD_*`), MPICH and related ones
//! (`PMI_*`), Slurm within `srun` (`SLURM_*`), JAX (`JAX_PROCESS_ID`), a host list
//! (`BELADY_HOSTS`). [`launched`] adds this process's rank on its node; the Python package uses it.
//!
//! The rendezvous address is `BELADY_MEET` if it is set. Otherwise it is the host where rank 0 runs
//! according to the launcher, at a port that follows from the job's name (`BELADY_JOB`, or the
//! launcher's name for it).

use std::collections::BTreeMap;

use super::hosts::Hosts;
use super::{JobWorld, RendezvousAddress, RendezvousError, port_of, slurm_nodes};

/// Environment variables by name.
pub type Variables = BTreeMap<String, String>;

/// What the launcher says of this process and its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchInfo {
    /// The launcher that sets the rank.
    pub launcher: &'static str,
    /// This process's rank and the number of ranks.
    pub world: JobWorld,
    /// The job's name, which tells it from other jobs of the same user.
    pub job: Option<String>,
    /// The rendezvous address, if one is known.
    pub address: Option<RendezvousAddress>,
    /// The user gave the address; otherwise it follows from the launcher's variables.
    pub is_given: bool,
    /// All ranks run on this machine.
    pub all_here: bool,
}

/// A process among those of its job, and among those of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalWorld {
    /// Its rank, and the number of ranks.
    pub world: JobWorld,
    /// Its number among the job's processes on this node.
    pub local_rank: u32,
    /// The job's processes on this node; all of them where the launcher does not tell.
    pub local_size: u32,
}

struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
}

const LAUNCHERS: [Launcher; 6] = [
    Launcher {
        name: "Belady",
        rank: "BELADY_RANK",
        size: &["BELADY_RANKS"],
        local_rank: &[],
        local_size: &[],
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &["SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"],
    },
    Launcher {
        name: "JAX",
        rank: "JAX_PROCESS_ID",
        size: &["JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"],
        local_rank: &[],
        local_size: &[],
    },
];

/// Returns the variables of this process that are text.
pub fn of_this_process() -> Variables {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Reads the variables; `None` if they do not describe several processes. `is_here` says whether a
/// host is this machine.
pub fn find(
    variables: &Variables,
    is_here: &dyn Fn(&str) -> bool,
) -> Result<Option<LaunchInfo>, RendezvousError> {
    let hosts = get(variables, "BELADY_HOSTS").map(Hosts::parse).transpose()?;
    let (launcher, world, local_size) = match ask_all(variables)? {
        // Slurm's variables do not tell that the ranks of a step share one network address.
        Some((launcher, world)) if launcher.name == "Slurm" => (launcher.name, world, None),
        Some((launcher, world)) => {
            let name = present(variables, launcher.local_size);
            (launcher.name, world, name.and_then(|name| number(variables, name).ok()))
        }
        None => match &hosts {
            Some(hosts) => ("a host list", hosts.world(is_here)?, None),
            None => return Ok(None),
        },
    };
    let all_here = local_size == Some(world.size);
    let job = get(variables, "BELADY_JOB").map(str::to_owned).or_else(|| job(launcher, variables));
    let given = get(variables, "BELADY_MEET").map(str::parse::<RendezvousAddress>).transpose()?;
    let given = given.or_else(|| hosts.as_ref().map(Hosts::address));
    let is_given = given.is_some();
    let found = || {
        let host = host(launcher, variables);
        let host = host.or_else(|| all_here.then(|| "127.0.0.1".to_owned()))?;
        let port = port_of(job.as_deref().unwrap_or("belady"));
        Some(RendezvousAddress::Server { host, port })
    };
    let address = given.or_else(found);
    Ok(Some(LaunchInfo { launcher, world, job, address, is_given, all_here }))
}

/// Returns the rank that the launcher gave this process, in the job and on its node; `None` if no
/// launcher set one.
///
/// # Errors
/// If variables of one launcher contradict each other or one half of them is missing: a rank that
/// is guessed wrong trains on the wrong samples.
pub fn launched(variables: &Variables) -> Result<Option<LocalWorld>, RendezvousError> {
    let Some((launcher, world)) = ask_all(variables)? else { return Ok(None) };
    let size_name = present(variables, launcher.local_size);
    let local_size = match size_name {
        Some(name) if launcher.name == "Slurm" => tasks_of_this_node(variables, name)?,
        Some(name) => number(variables, name)?,
        None => world.size,
    };
    let size_name = size_name.unwrap_or("a world");
    if !(1..=world.size).contains(&local_size) {
        return Err(RendezvousError::Other(format!(
            "{size_name}={local_size} and a world of {} contradict each other; a node has at least one \
             process and at most all of them",
            world.size
        )));
    }
    let rank_name = present(variables, launcher.local_rank);
    let local_rank = match rank_name {
        Some(name) => number(variables, name)?,
        None => world.rank % local_size,
    };
    if local_rank >= local_size {
        return Err(RendezvousError::Other(format!(
            "{}={local_rank} and {size_name} of {local_size} contradict each other; a local rank is below \
             the number of processes on its node",
            rank_name.unwrap_or("a local rank")
        )));
    }
    Ok(Some(LocalWorld { world, local_rank, local_size }))
}

/// The first of these variables that is set.
fn present(variables: &Variables, names: &[&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| variables.contains_key(*name))
}

/// Reads this node's number from Slurm's list: "4(x2),3" is two nodes with four tasks each and one
/// with three. The largest number if Slurm does not tell which node this is: quotas are then too
/// small.
fn tasks_of_this_node(variables: &Variables, name: &str) -> Result<u32, RendezvousError> {
    let text = variables.get(name).map(String::as_str).unwrap_or_default();
    let node: Option<usize> = get(variables, "SLURM_NODEID").and_then(|node| node.parse().ok());
    let (mut at, mut largest) = (0, None);
    for part in text.split(',') {
        let (tasks, times) =
            part.trim().trim_end_matches(')').split_once("(x").unwrap_or((part, "1"));
        let parsed = tasks.trim().parse::<u32>().ok().zip(times.parse::<usize>().ok());
        let (tasks, times) = parsed.ok_or_else(|| no_number(name, text))?;
        if node.is_some_and(|node| (at..at + times).contains(&node)) {
            return Ok(tasks);
        }
        at = at.saturating_add(times);
        largest = largest.max(Some(tasks));
    }
    largest.ok_or_else(|| no_number(name, text))
}

fn get<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

fn ask_all(
    variables: &Variables,
) -> Result<Option<(&'static Launcher, JobWorld)>, RendezvousError> {
    for launcher in &LAUNCHERS {
        if let Some(world) = ask(launcher, variables)? {
            return Ok(Some((launcher, world)));
        }
    }
    Ok(None)
}

fn ask(launcher: &Launcher, variables: &Variables) -> Result<Option<JobWorld>, RendezvousError> {
    let is_slurm = launcher.name == "Slurm";
    let is_step = variables.contains_key("SLURM_STEP_ID");
    if is_slurm && variables.contains_key("SLURM_JOB_ID") && !is_step {
        // A batch script outside of srun has rank 0's variables, but is the only process.
        return Ok(None);
    }
    let size = present(variables, launcher.size);
    let (rank, size) = match (variables.contains_key(launcher.rank), size) {
        (false, None) => return Ok(None),
        // salloc sets the size for a shell that is not a task.
        (false, Some(_)) if is_slurm => return Ok(None),
        (true, Some(size)) => (launcher.rank, size),
        (true, None) => return Err(half(launcher, launcher.rank, launcher.size[0])),
        (false, Some(size)) => return Err(half(launcher, size, launcher.rank)),
    };
    let world = JobWorld { rank: number(variables, rank)?, size: number(variables, size)? };
    if world.rank >= world.size {
        return Err(RendezvousError::Other(format!(
            "{rank}={} and {size}={} contradict each other; a rank is below the number of \
             processes",
            world.rank, world.size
        )));
    }
    Ok(Some(world))
}

fn half(launcher: &Launcher, have: &str, miss: &str) -> RendezvousError {
    RendezvousError::Other(format!(
        "{have} is set but {miss} is not; set both as {} does, or unset {have}",
        launcher.name
    ))
}

fn number(variables: &Variables, name: &str) -> Result<u32, RendezvousError> {
    let text = variables.get(name).map(String::as_str).unwrap_or_default();
    text.trim().parse().map_err(|_| no_number(name, text))
}

fn no_number(name: &str, text: &str) -> RendezvousError {
    RendezvousError::Other(format!(
        "{name} is \"{text}\", which is not a number of processes; correct or unset it"
    ))
}

/// Returns the launcher's name of the job: the same on all ranks, different for every job.
fn job(launcher: &str, variables: &Variables) -> Option<String> {
    let get = |name| get(variables, name);
    match launcher {
        "torchrun" => {
            let (run, address) = (get("TORCHELASTIC_RUN_ID"), get("MASTER_ADDR"));
            run.or(address)?;
            let parts = [run, address, get("MASTER_PORT")].map(Option::unwrap_or_default);
            Some(format!("torchrun {}", parts.join(" ")))
        }
        "Slurm" => Some(format!("slurm {}.{}", get("SLURM_JOB_ID")?, get("SLURM_STEP_ID")?)),
        "Open MPI" | "PMI" => {
            let name = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
            // The step's number differs between mpirun's own node and the others.
            let name = name.or_else(|| get("SLURM_JOB_ID"));
            Some(format!("mpi {}", name?))
        }
        "JAX" => Some(format!("jax {}", get("JAX_COORDINATOR_ADDRESS")?)),
        _ => None,
    }
}

/// Returns the host of rank 0.
fn host(launcher: &str, variables: &Variables) -> Option<String> {
    let get = |name| get(variables, name);
    let first = |list: &str| slurm_nodes::expand(list)?.into_iter().next();
    match launcher {
        "torchrun" => get("MASTER_ADDR").map(str::to_owned),
        "Slurm" => get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST")).and_then(first),
        "JAX" => {
            let address = get("JAX_COORDINATOR_ADDRESS")?;
            let host = super::address::host_and_port(address).ok();
            host.map(|(host, _)| host)
        }
        "Open MPI" | "PMI" => get("SLURM_JOB_NODELIST").and_then(first),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn found(pairs: &[(&str, &str)]) -> Option<LaunchInfo> {
        find(&variables(pairs), &|name| name == "here").unwrap()
    }

    fn sentence(pairs: &[(&str, &str)]) -> String {
        find(&variables(pairs), &|_| false).unwrap_err().to_string()
    }

    fn point(found: &LaunchInfo) -> (&str, u16) {
        match found.address.as_ref().unwrap() {
            RendezvousAddress::Server { host, port } => (host, *port),
            RendezvousAddress::Directory(_) => panic!("a directory"),
        }
    }

    #[test]
    fn torchrun_and_ray_train() {
        let all = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node01")];
        let all = [&all[..], &[("MASTER_PORT", "29500"), ("LOCAL_WORLD_SIZE", "4")]].concat();
        let found = found(&all).unwrap();
        assert_eq!((found.launcher, found.world), ("torchrun", JobWorld { rank: 3, size: 8 }));
        let (host, port) = point(&found);
        assert!(host == "node01" && port != 29500, "torch's own store listens there");
        assert!(!found.all_here && !found.is_given);
    }

    #[test]
    fn all_ranks_of_open_mpi_on_one_machine_meet_on_it() {
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("OMPI_MCA_ess_base_jobid", "1835008001"),
        ];
        let here = found(&mpi).unwrap();
        assert_eq!(point(&here), ("127.0.0.1", port_of("mpi 1835008001")));
        assert!(here.all_here);
        let mut many = mpi;
        many[2].1 = "2";
        assert_eq!(found(&many).unwrap().address, None, "no variable says where rank 0 runs");
        let slurm =
            [&many[..], &[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[3-4]")]].concat();
        assert_eq!(point(&found(&slurm).unwrap()).0, "n3");
    }

    #[test]
    fn mpich() {
        let mpi = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        let found = found(&mpi).unwrap();
        assert_eq!((found.launcher, point(&found).0, &found.job), ("PMI", "127.0.0.1", &None));
    }

    #[test]
    fn slurm_within_srun_only() {
        let slurm = [
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_PROCID", "2"),
            ("SLURM_NTASKS", "64"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_JOB_NODELIST", "gpu[09-12],gpu[20-31]"),
            ("SLURM_STEP_NODELIST", "gpu[10-11]"),
        ];
        assert_eq!(found(&slurm), None, "the batch script");
        let found = found(&[&slurm[..], &[("SLURM_STEP_ID", "1")]].concat()).unwrap();
        assert_eq!(found.world, JobWorld { rank: 2, size: 4 });
        assert_eq!(point(&found), ("gpu10", port_of("slurm 4711.1")));
        assert_eq!(find(&variables(&[("SLURM_NTASKS", "4")]), &|_| true), Ok(None));
    }

    #[test]
    fn jax() {
        let jax = [
            ("JAX_PROCESS_ID", "1"),
            ("JAX_NUM_PROCESSES", "2"),
            ("JAX_COORDINATOR_ADDRESS", "10.0.0.5:1234"),
        ];
        let found = found(&jax).unwrap();
        assert_eq!((found.launcher, point(&found).0), ("JAX", "10.0.0.5"));
    }

    #[test]
    fn the_users_variables_take_precedence() {
        let torch = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node01")];
        let given =
            [&torch[..], &[("BELADY_MEET", "node02:29700"), ("BELADY_JOB", "mine")]].concat();
        let at = found(&given).unwrap();
        assert!(
            point(&at) == ("node02", 29700) && at.is_given && at.job.as_deref() == Some("mine")
        );
        let ranked = [&given[..], &[("BELADY_RANK", "0"), ("BELADY_RANKS", "2")]].concat();
        assert_eq!(found(&ranked).unwrap().world, JobWorld { rank: 0, size: 2 });
        let hosts = [("BELADY_HOSTS", "there:29700,here")];
        let listed = found(&hosts).unwrap();
        assert!(
            listed.world == JobWorld { rank: 1, size: 2 } && point(&listed) == ("there", 29700)
        );
        let both = [&torch[..], &hosts].concat();
        assert_eq!(found(&both).unwrap().world, JobWorld { rank: 3, size: 8 });
        let directory = found(&[&torch[..], &[("BELADY_MEET", "/home/me")]].concat()).unwrap();
        assert_eq!(directory.address, Some(RendezvousAddress::Directory("/home/me".into())));
    }

    #[test]
    fn contradicting_variables_are_an_error_in_one_sentence() {
        assert!(sentence(&[("RANK", "3")]).contains("RANK is set but WORLD_SIZE is not"));
        assert!(sentence(&[("PMI_SIZE", "3")]).contains("PMI_SIZE is set but PMI_RANK is not"));
        assert!(sentence(&[("RANK", "3"), ("WORLD_SIZE", "3")]).contains("contradict each other"));
        assert!(sentence(&[("RANK", "x"), ("WORLD_SIZE", "3")]).contains("RANK is \"x\""));
        let place = [("RANK", "0"), ("WORLD_SIZE", "3"), ("BELADY_MEET", "node")];
        assert!(sentence(&place).contains("HOST:PORT"));
        assert_eq!(found(&[("HOME", "/root")]), None);
    }

    fn local(pairs: &[(&str, &str)]) -> Result<Option<(u32, u32)>, RendezvousError> {
        let launched = launched(&variables(pairs))?;
        Ok(launched.map(|found| (found.local_rank, found.local_size)))
    }

    #[test]
    fn a_launcher_tells_the_place_on_the_node() {
        let torch = [("RANK", "5"), ("WORLD_SIZE", "8")];
        let node = [&torch[..], &[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")]].concat();
        assert_eq!(local(&node), Ok(Some((1, 4))));
        assert_eq!(local(&torch), Ok(Some((5, 8))), "all on this node, as far as it is known");
        assert_eq!(local(&[("HOME", "/root")]), Ok(None));
        for (name, value, words) in [
            ("LOCAL_RANK", "4", "LOCAL_RANK=4 and LOCAL_WORLD_SIZE of 4 contradict"),
            ("LOCAL_WORLD_SIZE", "9", "LOCAL_WORLD_SIZE=9 and a world of 8 contradict"),
            ("LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE=0 and a world of 8 contradict"),
            ("LOCAL_RANK", "x", "LOCAL_RANK is \"x\""),
        ] {
            let wrong = [&node[..], &[(name, value)]].concat();
            assert!(local(&wrong).unwrap_err().to_string().contains(words), "{name}={value}");
        }
    }

    #[test]
    fn slurm_counts_the_tasks_of_each_node() {
        let slurm = [("SLURM_PROCID", "6"), ("SLURM_NTASKS", "11"), ("SLURM_LOCALID", "2")];
        let of = |tasks, node: &str| {
            let more = [("SLURM_STEP_TASKS_PER_NODE", tasks), ("SLURM_NODEID", node)];
            local(&[&slurm[..], &more[..if node.is_empty() { 1 } else { 2 }]].concat())
        };
        for (node, tasks) in [("0", 3), ("1", 4), ("2", 4), ("3", 4), ("", 4)] {
            assert_eq!(of("3,4(x2)", node), Ok(Some((2, tasks))), "node {node}");
        }
        for broken in ["", "4(x", "4(xx),3", "four"] {
            assert!(of(broken, "0").is_err(), "{broken}");
        }
    }

    proptest! {
        #[test]
        fn all_ranks_find_the_same_address(
            at in 0usize..4, size in 1u32..20, host in "[a-z]{1,5}", id in "[0-9]{1,6}"
        ) {
            let of = |rank: u32| {
                let (rank, size) = (rank.to_string(), size.to_string());
                let pairs: Vec<(&str, &str)> = match at {
                    0 => vec![("RANK", &rank), ("WORLD_SIZE", &size), ("MASTER_ADDR", &host),
                              ("TORCHELASTIC_RUN_ID", &id)],
                    1 => vec![("OMPI_COMM_WORLD_RANK", &rank), ("OMPI_COMM_WORLD_SIZE", &size),
                              ("OMPI_COMM_WORLD_LOCAL_SIZE", &size), ("PMIX_NAMESPACE", &id)],
                    2 => vec![("SLURM_PROCID", &rank), ("SLURM_NTASKS", &size), ("SLURM_JOB_ID", &id),
                              ("SLURM_STEP_ID", "0"), ("SLURM_JOB_NODELIST", &host)],
                    _ => vec![("JAX_PROCESS_ID", &rank), ("JAX_PROCESS_COUNT", &size),
                              ("JAX_COORDINATOR_ADDRESS", &host)],
                };
                found(&pairs).unwrap()
            };
            let first = of(0);
            prop_assert!(first.address.is_some() && first.job.is_some());
            for rank in 0..size {
                prop_assert_eq!(of(rank), LaunchInfo { world: JobWorld { rank, size }, ..first.clone() });
            }
        }

        #[test]
        fn parsing_any_variables_ends(
            pairs in prop::collection::btree_map(
                prop::sample::select(vec![
                    "RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "SLURM_NTASKS", "PMI_RANK",
                    "SLURM_STEP_NODELIST", "SLURM_STEP_ID", "BELADY_MEET", "BELADY_HOSTS", "PMI_SIZE",
                    "JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "SLURM_NODEID",
                    "SLURM_STEP_TASKS_PER_NODE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                ]).prop_map(str::to_owned),
                "[0-9a-z:/()\\[\\], -]{0,8}", 0..18,
            )
        ) {
            let _ = find(&pairs, &|_| true);
            let _ = launched(&pairs);
        }
    }
}
