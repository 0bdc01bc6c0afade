//! Meeting as the environment says: from variables to a [`Meet`].

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use belady_data::sync::Arc;

use super::environment::{Found, Variables};
use super::interface::Bind;
use super::{Meet, MeetError, Place, environment, file, keys, list, point};
use crate::Key;

/// What the user wants, beyond what the environment says.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// `None`: that of the environment, if it has one.
    pub key: Option<Key>,
    /// Where rank 0 listens if the ranks meet by a directory, whose note says so. A meeting point is where
    /// its name says.
    pub listen: Option<Bind>,
    /// How long ranks wait for each other.
    pub limit: Duration,
}

impl Default for Wishes {
    fn default() -> Self {
        Self { key: None, listen: None, limit: point::LIMIT }
    }
}

/// Meets the other processes of this job, if the environment knows of any.
///
/// With a key, ranks meet where rank 0 runs. Without one they meet by a private directory of the user,
/// which is shared by all nodes of most clusters, and of course by the processes of one machine.
pub fn find(variables: &Variables, wishes: Wishes) -> Result<Option<Arc<dyn Meet>>, MeetError> {
    let Some(found) = environment::find(variables, &list::is_this_machine)? else {
        return Ok(None);
    };
    if found.world.size == 1 {
        return Ok(None);
    }
    meet(variables, wishes, found).map(Some)
}

fn meet(variables: &Variables, wishes: Wishes, found: Found) -> Result<Arc<dyn Meet>, MeetError> {
    let Found { starter, world, job, place, is_given, all_here } = found;
    let Wishes { key, listen, limit } = wishes;
    let listen = listen.map(|listen| listen.address()).transpose()?;
    let key = match key {
        Some(key) => Some(key),
        None => keys::given(variables)?,
    };
    let by_directory = |directory: PathBuf, key| {
        // A directory that was named is the job's own. In that of the user, processes that one program has
        // started on one machine, and that it has not named, know each other by it.
        let unnamed = || {
            let parent = || format!("started by {}", std::os::unix::process::parent_id());
            if is_given { String::new() } else { parent() }
        };
        let job = job.clone().unwrap_or_else(unnamed);
        let here = all_here.then_some(IpAddr::from(Ipv4Addr::LOCALHOST));
        let listen = listen.or(here);
        file::meet(&directory, file::Options { world, job, key, limit, listen })
    };
    match (place, key) {
        (Some(Place::Directory(directory)), key) => by_directory(directory, key),
        (Some(place @ Place::Point { .. }), Some(key)) => {
            let job = job.unwrap_or_default();
            point::meet(&place, point::Options { world, job, key, limit })
        }
        (Some(place), None) if is_given => Err(keys::missing(&place)),
        (place, None) if all_here || job.is_some() => match private_directory(variables) {
            Some(directory) => by_directory(directory, None),
            None => Err(place.as_ref().map_or_else(|| nowhere(starter), keys::missing)),
        },
        _ => Err(nowhere(starter)),
    }
}

fn nowhere(starter: &str) -> MeetError {
    MeetError::Other(format!(
        "{starter} does not say where rank 0 runs: set BELADY_MEET to HOST:PORT of rank 0 and \
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
    use crate::meet::free;

    fn variables(rank: u32, more: &[(&str, &str)]) -> Variables {
        let rank = rank.to_string();
        let pairs = [("BELADY_RANK", rank.as_str()), ("BELADY_RANKS", "2")];
        let pairs = pairs.iter().chain(more);
        pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn both(more: &[(&str, &str)]) -> [Arc<dyn Meet>; 2] {
        both_wishing(more, &Wishes::default())
    }

    fn both_wishing(more: &[(&str, &str)], wishes: &Wishes) -> [Arc<dyn Meet>; 2] {
        let meet = |rank| find(&variables(rank, more), wishes.clone()).unwrap().unwrap();
        let meets = [meet(0), meet(1)];
        std::thread::scope(|scope| {
            let other = scope.spawn(|| meets[1].exchange("a", &[1]).unwrap());
            assert_eq!(meets[0].exchange("a", &[0]).unwrap(), [[0], [1]]);
            other.join().unwrap();
        });
        meets
    }

    fn sentence(more: &[(&str, &str)]) -> String {
        find(&variables(0, more), Wishes::default()).unwrap_err().to_string()
    }

    #[test]
    fn a_place_and_a_key_are_enough() {
        let (place, key) = (free().to_string(), Key::random().unwrap());
        both(&[("BELADY_MEET", &place), ("BELADY_KEY", &key.to_text())]);
        let refused = sentence(&[("BELADY_MEET", &place)]);
        assert!(
            refused.contains("needs a key") && refused.contains("BELADY_KEY_FILE"),
            "{refused}"
        );
    }

    #[test]
    fn an_address_for_samples_does_not_move_the_meeting_point() {
        let (place, key) = (free().to_string(), Key::random().unwrap());
        let listen = Some("127.0.0.2".parse().unwrap());
        let wishes = Wishes { listen, limit: Duration::from_secs(20), ..Wishes::default() };
        let meets =
            both_wishing(&[("BELADY_MEET", &place), ("BELADY_KEY", &key.to_text())], &wishes);
        assert_eq!(meets[0].interface().unwrap().to_string(), "127.0.0.1");
    }

    #[test]
    fn a_directory_is_enough() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let meets = both(&[("BELADY_MEET", path), ("BELADY_JOB", "mine")]);
        assert!(meets[0].key() == meets[1].key());
    }

    /// Processes of several machines, or of several shells, have no parent in common.
    #[test]
    fn a_directory_that_was_named_is_enough_also_for_processes_of_different_parents() {
        let directory = tempfile::tempdir().unwrap();
        let _meets = both(&[("BELADY_MEET", directory.path().to_str().unwrap())]);
        file::find(directory.path(), Some("")).unwrap();
        file::find(directory.path(), None).unwrap();
    }

    #[test]
    fn processes_of_one_machine_meet_without_being_told_anything() {
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
        let meets: Vec<_> =
            (0..2).map(|rank| find(&of(rank), Wishes::default()).unwrap().unwrap()).collect();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| meets[1].exchange("a", &[1]).unwrap());
            assert_eq!(meets[0].exchange("a", &[0]).unwrap(), [[0], [1]]);
            other.join().unwrap();
        });
        assert!(meets[0].interface().unwrap().is_loopback(), "nothing else listens");
    }

    #[test]
    fn nobody_else_and_nowhere_to_meet() {
        assert!(find(&Variables::new(), Wishes::default()).unwrap().is_none());
        let one = Variables::from([
            ("BELADY_RANK".to_owned(), "0".to_owned()),
            ("BELADY_RANKS".to_owned(), "1".to_owned()),
        ]);
        assert!(find(&one, Wishes::default()).unwrap().is_none());
        assert!(sentence(&[]).contains("does not say where rank 0 runs: set BELADY_MEET"));
    }
}
