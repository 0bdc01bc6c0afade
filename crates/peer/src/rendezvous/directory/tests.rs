use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

const LONG: Duration = Duration::from_mins(1);

fn options(rank: u32, limit: Duration) -> DirectoryOptions {
    let listen = Some(Ipv4Addr::LOCALHOST.into());
    DirectoryOptions {
        world: JobWorld { rank, size: 2 },
        job: "test".into(),
        key: None,
        limit,
        listen,
    }
}

fn exchange(ranks: &[Arc<dyn Rendezvous>; 2], name: &str) -> Vec<Vec<u8>> {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| ranks[1].exchange(name, &[1]).unwrap());
        let all = ranks[0].exchange(name, &[0]).unwrap();
        assert_eq!(other.join().unwrap(), all);
        all
    })
}

fn address_file(directory: &Path) -> Option<PathBuf> {
    let own = std::fs::read_dir(directory).unwrap().next()?.unwrap().path();
    Some(own.join("meeting")).filter(|file| file.exists())
}

/// Writes the address file of an earlier run, as a killed process leaves it.
fn leave_behind(path: &Path, contents: &[u8]) {
    make_private(path.parent().unwrap()).unwrap();
    std::fs::write(path, contents).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn ranks_find_each_other_by_a_file_that_only_their_user_can_read() {
    let directory = tempfile::tempdir().unwrap();
    let late = start(directory.path(), options(1, LONG)).unwrap();
    let ranks = [start(directory.path(), options(0, LONG)).unwrap(), late];
    assert_eq!(exchange(&ranks, "a"), [[0], [1]]);
    let path = address_file(directory.path()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    let key = ranks[0].key().unwrap();
    assert!(ranks[1].key().unwrap() == key);
    drop(ranks);
    assert_eq!(address_file(directory.path()), None, "nothing is left behind");
}

#[test]
fn an_address_file_of_an_earlier_run_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(directory.path(), options(0, LONG)).unwrap();
    let path = address_file(directory.path()).unwrap();
    let stale = std::fs::read(&path).unwrap();
    drop(first);
    // As a killed process leaves it; another program may listen there by now.
    let AddressRecord { address, key, .. } =
        AddressRecord::parse(std::str::from_utf8(&stale).unwrap()).unwrap();
    let stranger = tcp::TcpRendezvousOptions {
        world: JobWorld { rank: 0, size: 2 },
        job: "other".into(),
        key: JobKey::random().unwrap(),
        limit: LONG,
    };
    let _stranger = tcp::start(&address, stranger).unwrap();
    leave_behind(&path, &stale);
    let early = start(directory.path(), options(1, LONG)).unwrap();
    let ranks = [start(directory.path(), options(0, LONG)).unwrap(), early];
    assert_eq!(exchange(&ranks, "a"), [[0], [1]]);
    assert!(ranks[0].key().unwrap() == key, "ranks that outlived rank 0 still have it");
    assert_ne!(std::fs::read(&path).unwrap(), stale);
}

#[test]
fn rank_0_started_again_is_found_at_its_new_port() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(directory.path(), options(0, LONG)).unwrap();
    let ranks = [first, start(directory.path(), options(1, LONG)).unwrap()];
    exchange(&ranks, "a");
    let [first, other] = ranks;
    let path = address_file(directory.path()).unwrap();
    let left = std::fs::read_to_string(&path).unwrap();
    drop(first);
    leave_behind(&path, left.as_bytes());
    let again = start(directory.path(), options(0, LONG)).unwrap();
    assert_eq!(again.exchange("a", &[5]).unwrap(), [[5], [1]]);
    assert_eq!(exchange(&[again, other], "b"), [[0], [1]]);
}

#[test]
fn a_job_that_runs_already_is_not_joined_by_another_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let _first = start(directory.path(), options(0, LONG)).unwrap();
    let error = start(directory.path(), options(0, LONG)).unwrap_err().to_string();
    assert!(
        error.contains("job `test` meets at 127.0.0.1:") && error.contains("BELADY_JOB"),
        "{error}"
    );
    let other = DirectoryOptions { job: "other".into(), ..options(0, LONG) };
    assert!(start(directory.path(), other).is_ok());
}

#[test]
fn a_file_that_other_users_may_read_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), options(0, LONG)).unwrap();
    let path = address_file(directory.path()).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let client = start(directory.path(), options(1, Duration::from_secs(1))).unwrap();
    let error = client.exchange("a", &[]).unwrap_err().to_string();
    assert!(
        error.contains("rank 0 of 2 did not come") && error.contains("only you can read"),
        "{error}"
    );
    drop(server);
    let own = path.parent().unwrap();
    std::fs::create_dir_all(own).unwrap();
    std::fs::set_permissions(own, Permissions::from_mode(0o755)).unwrap();
    let error = start(directory.path(), options(0, LONG)).unwrap_err().to_string();
    assert!(error.contains("other users may enter"), "{error}");
}

#[test]
fn the_error_names_a_directory_without_an_address_file() {
    let directory = tempfile::tempdir().unwrap();
    let client = start(directory.path(), options(1, Duration::from_secs(1))).unwrap();
    let error = client.exchange("a", &[]).unwrap_err().to_string();
    assert!(error.contains("all ranks must see this directory"), "{error}");
}

#[test]
fn a_job_is_found_beside_files_of_killed_jobs() {
    let directory = tempfile::tempdir().unwrap();
    let named = |job: &str| DirectoryOptions { job: job.into(), ..options(0, LONG) };
    let killed = start(directory.path(), named("killed")).unwrap();
    let path = address_file(directory.path()).unwrap();
    let left = std::fs::read_to_string(&path).unwrap();
    drop(killed);
    leave_behind(&path, left.as_bytes());
    let runs = start(directory.path(), named("runs")).unwrap();
    let (_, key) = find(directory.path(), None).unwrap();
    assert!(key == runs.key().unwrap());

    let _second = start(directory.path(), named("second")).unwrap();
    let error = find(directory.path(), None).unwrap_err().to_string();
    assert!(error.contains("2 jobs meet in") && error.contains("`runs`, `second`"), "{error}");
    let unnamed = start(directory.path(), named("")).unwrap();
    let (_, key) = find(directory.path(), None).unwrap();
    assert!(key == unnamed.key().unwrap(), "as processes find it without BELADY_JOB");
}
