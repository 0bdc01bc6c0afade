//! Finds the rendezvous that the environment names.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use belady_base::sync::Arc;

use super::interface::Bind;
use super::launcher::{LaunchInfo, Variables};
use super::{
    Rendezvous, RendezvousAddress, RendezvousError, directory, hosts, keys, launcher, tcp,
};
use crate::JobKey;

/// What the user asks for, beyond what the environment says.
#[derive(Clone, Debug)]
pub struct FindOptions {
    /// The job's key. `None`: that of the environment, if it has one.
    pub key: Option<JobKey>,
    /// Where rank 0 listens in a directory rendezvous. In others it listens at the rendezvous
    /// address.
    pub listen: Option<Bind>,
    /// How long ranks wait for each other.
    pub limit: Duration,
}

impl Default for FindOptions {
    fn default() -> Self {
        Self { key: None, listen: None, limit: tcp::LIMIT }
    }
}

/// Starts the rendezvous with the other processes of this job, if the environment names any.
///
/// With a key, ranks connect to where rank 0 runs. Without one they use a private directory of the
/// user, which all nodes of most clusters share, and the processes of one machine do anyway.
pub fn find(
    variables: &Variables,
    options: FindOptions,
) -> Result<Option<Arc<dyn Rendezvous>>, RendezvousError> {
    let Some(found) = launcher::find(variables, &hosts::is_this_machine)? else {
        return Ok(None);
    };
    if found.world.size == 1 {
        return Ok(None);
    }
    start(variables, options, found).map(Some)
}

fn start(
    variables: &Variables,
    options: FindOptions,
    found: LaunchInfo,
) -> Result<Arc<dyn Rendezvous>, RendezvousError> {
    let LaunchInfo { launcher, world, job, address, is_given, all_here } = found;
    let FindOptions { key, listen, limit } = options;
    let listen = listen.map(|listen| listen.address()).transpose()?;
    let key = match key {
        Some(key) => Some(key),
        None => keys::given(variables)?,
    };
    let by_directory = |directory: PathBuf, key| {
        // A directory that the user names belongs to the job. In the user's own directory,
        // processes of a job without a name that one program has started on one machine are told
        // apart by that program.
        let unnamed = || {
            let parent = || format!("started by {}", std::os::unix::process::parent_id());
            if is_given { String::new() } else { parent() }
        };
        let job = job.clone().unwrap_or_else(unnamed);
        let here = all_here.then_some(IpAddr::from(Ipv4Addr::LOCALHOST));
        let listen = listen.or(here);
        directory::start(&directory, directory::DirectoryOptions { world, job, key, limit, listen })
    };
    match (address, key) {
        (Some(RendezvousAddress::Directory(directory)), key) => by_directory(directory, key),
        (Some(address @ RendezvousAddress::Server { .. }), Some(key)) => {
            let job = job.unwrap_or_default();
            tcp::start(&address, tcp::TcpRendezvousOptions { world, job, key, limit })
        }
        (Some(address), None) if is_given => Err(keys::missing(&address)),
        (address, None) if all_here || job.is_some() => match private_directory(variables) {
            Some(directory) => by_directory(directory, None),
            None => Err(address.as_ref().map_or_else(|| nowhere(launcher), keys::missing)),
        },
        _ => Err(nowhere(launcher)),
    }
}

fn nowhere(launcher: &str) -> RendezvousError {
    RendezvousError::Other(format!(
        "{launcher} does not say where rank 0 runs: set BELADY_MEET to HOST:PORT of rank 0 and \
         BELADY_KEY, or BELADY_MEET to a directory that all ranks share"
    ))
}

fn private_directory(variables: &Variables) -> Option<PathBuf> {
    let get = |name| variables.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = get("XDG_CACHE_HOME").or_else(|| Some(get("HOME")?.join(".cache")))?;
    Some(cache.join("belady/meetings"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::free;

    fn variables(rank: u32, more: &[(&str, &str)]) -> Variables {
        let rank = rank.to_string();
        let pairs = [("BELADY_RANK", rank.as_str()), ("BELADY_RANKS", "2")];
        let pairs = pairs.iter().chain(more);
        pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn both(more: &[(&str, &str)]) -> [Arc<dyn Rendezvous>; 2] {
        both_with(more, &FindOptions::default())
    }

    fn both_with(more: &[(&str, &str)], options: &FindOptions) -> [Arc<dyn Rendezvous>; 2] {
        let start = |rank| find(&variables(rank, more), options.clone()).unwrap().unwrap();
        let ranks = [start(0), start(1)];
        std::thread::scope(|scope| {
            let other = scope.spawn(|| ranks[1].exchange("a", &[1]).unwrap());
            assert_eq!(ranks[0].exchange("a", &[0]).unwrap(), [[0], [1]]);
            other.join().unwrap();
        });
        ranks
    }

    fn sentence(more: &[(&str, &str)]) -> String {
        find(&variables(0, more), FindOptions::default()).unwrap_err().to_string()
    }

    #[test]
    fn a_rendezvous_address_and_a_key_are_enough() {
        let (place, key) = (free().to_string(), JobKey::random().unwrap());
        both(&[("BELADY_MEET", &place), ("BELADY_KEY", &key.to_text())]);
        let refused = sentence(&[("BELADY_MEET", &place)]);
        assert!(
            refused.contains("needs a key") && refused.contains("BELADY_KEY_FILE"),
            "{refused}"
        );
    }

    #[test]
    fn a_bind_address_does_not_move_the_rendezvous_server() {
        let (place, key) = (free().to_string(), JobKey::random().unwrap());
        let listen = Some("127.0.0.2".into());
        let options =
            FindOptions { listen, limit: Duration::from_secs(20), ..FindOptions::default() };
        let ranks = both_with(&[("BELADY_MEET", &place), ("BELADY_KEY", &key.to_text())], &options);
        assert_eq!(ranks[0].interface().unwrap().to_string(), "127.0.0.1");
    }

    #[test]
    fn a_rendezvous_by_a_directory_needs_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let ranks = both(&[("BELADY_MEET", path), ("BELADY_JOB", "mine")]);
        assert!(ranks[0].key() == ranks[1].key());
    }

    /// Processes of several machines, or of several shells, have no common parent.
    #[test]
    fn processes_of_different_parents_meet_in_a_directory_that_the_user_names() {
        let directory = tempfile::tempdir().unwrap();
        let _meets = both(&[("BELADY_MEET", directory.path().to_str().unwrap())]);
        directory::find(directory.path(), Some("")).unwrap();
        directory::find(directory.path(), None).unwrap();
    }

    #[test]
    fn processes_of_one_machine_need_no_configuration() {
        let home = tempfile::tempdir().unwrap();
        let of = |rank: u32| -> Variables {
            let rank = rank.to_string();
            let home = home.path().to_str().unwrap();
            let pairs = [
                ("HOME", home),
                ("OMPI_COMM_WORLD_RANK", rank.as_str()),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ("OMPI_MCA_ess_base_jobid", "17"),
            ];
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let ranks: Vec<_> =
            (0..2).map(|rank| find(&of(rank), FindOptions::default()).unwrap().unwrap()).collect();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| ranks[1].exchange("a", &[1]).unwrap());
            assert_eq!(ranks[0].exchange("a", &[0]).unwrap(), [[0], [1]]);
            other.join().unwrap();
        });
        assert!(ranks[0].interface().unwrap().is_loopback(), "nothing else listens");
    }

    #[test]
    fn a_single_process_needs_no_rendezvous_and_several_without_an_address_fail() {
        assert!(find(&Variables::new(), FindOptions::default()).unwrap().is_none());
        let one = Variables::from([
            ("BELADY_RANK".to_owned(), "0".to_owned()),
            ("BELADY_RANKS".to_owned(), "1".to_owned()),
        ]);
        assert!(find(&one, FindOptions::default()).unwrap().is_none());
        assert!(sentence(&[]).contains("does not say where rank 0 runs: set BELADY_MEET"));
    }
}
