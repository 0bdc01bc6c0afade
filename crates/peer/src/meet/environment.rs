//! What the program that started this process has told it, by environment variables: its rank, and
//! where the job may meet. A pure function of these variables.
//!
//! Asked in this order, and the first that knows decides: `BELADY_RANK` and `BELADY_RANKS`, torchrun and
//! Ray Train (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`), Open MPI (`OMPI_COMM_WORLD_*`), MPICH and its kin
//! (`PMI_*`), Slurm within `srun` (`SLURM_*`), JAX (`JAX_PROCESS_ID`), a host list (`BELADY_HOSTS`).
//! The rules for ranks are those of the Python package, `belady/distributed.py`.
//!
//! Where to meet is `BELADY_MEET` if it is set. Else it is where the starter says that rank 0 runs, at a
//! port that follows from what the job is called (`BELADY_JOB`, or what the starter calls it).

use std::collections::BTreeMap;

use super::list::Hosts;
use super::{MeetError, Place, World, nodelist, port_of};

/// Environment variables by name.
pub type Variables = BTreeMap<String, String>;

/// What is known of this process and its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Who knows the rank.
    pub starter: &'static str,
    pub world: World,
    /// What tells this job from others of the same user.
    pub job: Option<String>,
    pub place: Option<Place>,
    /// The place was given by the user, not found.
    pub is_given: bool,
    /// All ranks run on this machine.
    pub all_here: bool,
}

struct Starter {
    name: &'static str,
    rank: &'static str,
    size: &'static [&'static str],
    local_size: &'static str,
}

const STARTERS: [Starter; 6] = [
    Starter { name: "Belady", rank: "BELADY_RANK", size: &["BELADY_RANKS"], local_size: "" },
    Starter {
        name: "torchrun",
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local_size: "LOCAL_WORLD_SIZE",
    },
    Starter {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Starter { name: "PMI", rank: "PMI_RANK", size: &["PMI_SIZE"], local_size: "MPI_LOCALNRANKS" },
    Starter {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_size: "",
    },
    Starter {
        name: "JAX",
        rank: "JAX_PROCESS_ID",
        size: &["JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"],
        local_size: "",
    },
];

/// The variables of this process that are text.
pub fn of_this_process() -> Variables {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// What the variables say; `None` if they say nothing of several processes. `is_here` knows whether a
/// host is this machine.
pub fn find(
    variables: &Variables,
    is_here: &dyn Fn(&str) -> bool,
) -> Result<Option<Found>, MeetError> {
    let hosts = get(variables, "BELADY_HOSTS").map(Hosts::parse).transpose()?;
    let (starter, world, local_size) = match ask_all(variables)? {
        Some((starter, world)) => (starter.name, world, number(variables, starter.local_size).ok()),
        None => match &hosts {
            Some(hosts) => ("a host list", hosts.world(is_here)?, None),
            None => return Ok(None),
        },
    };
    let all_here = local_size == Some(world.size);
    let job = get(variables, "BELADY_JOB").map(str::to_owned).or_else(|| job(starter, variables));
    let given = get(variables, "BELADY_MEET").map(str::parse::<Place>).transpose()?;
    let given = given.or_else(|| hosts.as_ref().map(Hosts::place));
    let is_given = given.is_some();
    let found = || {
        let host = host(starter, variables);
        let host = host.or_else(|| all_here.then(|| "127.0.0.1".to_owned()))?;
        let port = port_of(job.as_deref().unwrap_or("belady"));
        Some(Place::Point { host, port })
    };
    let place = given.or_else(found);
    Ok(Some(Found { starter, world, job, place, is_given, all_here }))
}

fn get<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

fn ask_all(variables: &Variables) -> Result<Option<(&'static Starter, World)>, MeetError> {
    for starter in &STARTERS {
        if let Some(world) = ask(starter, variables)? {
            return Ok(Some((starter, world)));
        }
    }
    Ok(None)
}

fn ask(starter: &Starter, variables: &Variables) -> Result<Option<World>, MeetError> {
    let is_slurm = starter.name == "Slurm";
    let is_step = variables.contains_key("SLURM_STEP_ID");
    if is_slurm && variables.contains_key("SLURM_JOB_ID") && !is_step {
        // A batch script outside srun has the variables of rank 0, but is the only process.
        return Ok(None);
    }
    let size = starter.size.iter().find(|name| variables.contains_key(**name));
    let (rank, size) = match (variables.contains_key(starter.rank), size) {
        (false, None) => return Ok(None),
        // salloc sets the size for a shell that is no task.
        (false, Some(_)) if is_slurm => return Ok(None),
        (true, Some(size)) => (starter.rank, *size),
        (true, None) => return Err(half(starter, starter.rank, starter.size[0])),
        (false, Some(size)) => return Err(half(starter, size, starter.rank)),
    };
    let world = World { rank: number(variables, rank)?, size: number(variables, size)? };
    if world.rank >= world.size {
        return Err(MeetError::Other(format!(
            "{rank}={} and {size}={} contradict each other; a rank is below the number of processes",
            world.rank, world.size
        )));
    }
    Ok(Some(world))
}

fn half(starter: &Starter, have: &str, miss: &str) -> MeetError {
    MeetError::Other(format!(
        "{have} is set but {miss} is not; set both as {} does, or unset {have}",
        starter.name
    ))
}

fn number(variables: &Variables, name: &str) -> Result<u32, MeetError> {
    let text = variables.get(name).map(String::as_str).unwrap_or_default();
    text.trim().parse().map_err(|_| {
        MeetError::Other(format!(
            "{name} is \"{text}\", which is no number of processes; correct or unset it"
        ))
    })
}

/// What the starter calls the job: the same on all ranks, and another for every job.
fn job(starter: &str, variables: &Variables) -> Option<String> {
    let get = |name| get(variables, name);
    match starter {
        "torchrun" => {
            let (run, address) = (get("TORCHELASTIC_RUN_ID"), get("MASTER_ADDR"));
            run.or(address)?;
            let parts = [run, address, get("MASTER_PORT")].map(Option::unwrap_or_default);
            Some(format!("torchrun {}", parts.join(" ")))
        }
        "Slurm" => Some(format!("slurm {}.{}", get("SLURM_JOB_ID")?, get("SLURM_STEP_ID")?)),
        "Open MPI" | "PMI" => {
            let name = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
            // A step's number differs between mpirun's own node and the others.
            let name = name.or_else(|| get("SLURM_JOB_ID"));
            Some(format!("mpi {}", name?))
        }
        "JAX" => Some(format!("jax {}", get("JAX_COORDINATOR_ADDRESS")?)),
        _ => None,
    }
}

/// Where rank 0 runs.
fn host(starter: &str, variables: &Variables) -> Option<String> {
    let get = |name| get(variables, name);
    let first = |list: &str| nodelist::expand(list)?.into_iter().next();
    match starter {
        "torchrun" => get("MASTER_ADDR").map(str::to_owned),
        "Slurm" => get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST")).and_then(first),
        "JAX" => {
            let address = get("JAX_COORDINATOR_ADDRESS")?;
            let host = super::place::host_and_port(address).ok();
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

    fn found(pairs: &[(&str, &str)]) -> Option<Found> {
        find(&variables(pairs), &|name| name == "here").unwrap()
    }

    fn sentence(pairs: &[(&str, &str)]) -> String {
        find(&variables(pairs), &|_| false).unwrap_err().to_string()
    }

    fn point(found: &Found) -> (&str, u16) {
        match found.place.as_ref().unwrap() {
            Place::Point { host, port } => (host, *port),
            Place::Directory(_) => panic!("a directory"),
        }
    }

    #[test]
    fn torchrun_and_ray_train() {
        let all = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node01")];
        let all = [&all[..], &[("MASTER_PORT", "29500"), ("LOCAL_WORLD_SIZE", "4")]].concat();
        let found = found(&all).unwrap();
        assert_eq!((found.starter, found.world), ("torchrun", World { rank: 3, size: 8 }));
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
        assert_eq!(found(&many).unwrap().place, None, "nobody says where rank 0 runs");
        let slurm =
            [&many[..], &[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[3-4]")]].concat();
        assert_eq!(point(&found(&slurm).unwrap()).0, "n3");
    }

    #[test]
    fn mpich() {
        let mpi = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        let found = found(&mpi).unwrap();
        assert_eq!((found.starter, point(&found).0, &found.job), ("PMI", "127.0.0.1", &None));
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
        assert_eq!(found.world, World { rank: 2, size: 4 });
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
        assert_eq!((found.starter, point(&found).0), ("JAX", "10.0.0.5"));
    }

    #[test]
    fn what_the_user_says_comes_first() {
        let torch = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node01")];
        let given =
            [&torch[..], &[("BELADY_MEET", "node02:29700"), ("BELADY_JOB", "mine")]].concat();
        let at = found(&given).unwrap();
        assert!(
            point(&at) == ("node02", 29700) && at.is_given && at.job.as_deref() == Some("mine")
        );
        let ranked = [&given[..], &[("BELADY_RANK", "0"), ("BELADY_RANKS", "2")]].concat();
        assert_eq!(found(&ranked).unwrap().world, World { rank: 0, size: 2 });
        let hosts = [("BELADY_HOSTS", "there:29700,here")];
        let listed = found(&hosts).unwrap();
        assert!(listed.world == World { rank: 1, size: 2 } && point(&listed) == ("there", 29700));
        let both = [&torch[..], &hosts].concat();
        assert_eq!(found(&both).unwrap().world, World { rank: 3, size: 8 });
        let directory = found(&[&torch[..], &[("BELADY_MEET", "/home/me")]].concat()).unwrap();
        assert_eq!(directory.place, Some(Place::Directory("/home/me".into())));
    }

    #[test]
    fn what_contradicts_itself_is_an_error_in_one_sentence() {
        assert!(sentence(&[("RANK", "3")]).contains("RANK is set but WORLD_SIZE is not"));
        assert!(sentence(&[("PMI_SIZE", "3")]).contains("PMI_SIZE is set but PMI_RANK is not"));
        assert!(sentence(&[("RANK", "3"), ("WORLD_SIZE", "3")]).contains("contradict each other"));
        assert!(sentence(&[("RANK", "x"), ("WORLD_SIZE", "3")]).contains("RANK is \"x\""));
        let place = [("RANK", "0"), ("WORLD_SIZE", "3"), ("BELADY_MEET", "node")];
        assert!(sentence(&place).contains("HOST:PORT"));
        assert_eq!(found(&[("HOME", "/root")]), None);
    }

    proptest! {
        #[test]
        fn all_ranks_find_the_same_place(
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
            prop_assert!(first.place.is_some() && first.job.is_some());
            for rank in 0..size {
                prop_assert_eq!(of(rank), Found { world: World { rank, size }, ..first.clone() });
            }
        }

        #[test]
        fn any_values_are_read_without_harm(
            pairs in prop::collection::btree_map(
                prop::sample::select(vec![
                    "RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "SLURM_NTASKS", "PMI_RANK",
                    "SLURM_STEP_NODELIST", "SLURM_STEP_ID", "BELADY_MEET", "BELADY_HOSTS", "PMI_SIZE",
                    "JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES",
                ]).prop_map(str::to_owned),
                "[0-9a-z:/\\[\\], -]{0,8}", 0..14,
            )
        ) {
            let _ = find(&pairs, &|_| true);
        }
    }
}
