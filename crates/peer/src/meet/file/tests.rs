use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use super::*;

const LONG: Duration = Duration::from_mins(1);

fn options(rank: u32, limit: Duration) -> Options {
    let listen = Some(Ipv4Addr::LOCALHOST.into());
    Options { world: World { rank, size: 2 }, job: "test".into(), key: None, limit, listen }
}

fn exchange(meets: &[Arc<dyn Meet>; 2], name: &str) -> Vec<Vec<u8>> {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| meets[1].exchange(name, &[1]).unwrap());
        let all = meets[0].exchange(name, &[0]).unwrap();
        assert_eq!(other.join().unwrap(), all);
        all
    })
}

fn note(directory: &Path) -> Option<PathBuf> {
    let own = std::fs::read_dir(directory).unwrap().next()?.unwrap().path();
    Some(own.join("meeting")).filter(|note| note.exists())
}

#[test]
fn ranks_find_each_other_by_a_note_that_only_they_can_read() {
    let directory = tempfile::tempdir().unwrap();
    let late = meet(directory.path(), options(1, LONG)).unwrap();
    let meets = [meet(directory.path(), options(0, LONG)).unwrap(), late];
    assert_eq!(exchange(&meets, "a"), [[0], [1]]);
    let path = note(directory.path()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
    let key = meets[0].key().unwrap();
    assert!(meets[1].key().unwrap() == key);
    drop(meets);
    assert_eq!(note(directory.path()), None, "nothing is left behind");
}

#[test]
fn a_note_of_an_earlier_run_is_not_taken_for_this_one() {
    let directory = tempfile::tempdir().unwrap();
    let first = meet(directory.path(), options(0, LONG)).unwrap();
    let path = note(directory.path()).unwrap();
    let stale = std::fs::read(&path).unwrap();
    drop(first);
    // As a killed process leaves it; somebody else may listen there by now.
    let Left { place, key, .. } = parse(std::str::from_utf8(&stale).unwrap()).unwrap();
    let stranger = point::Options {
        world: World { rank: 0, size: 2 },
        job: "other".into(),
        key: Key::random().unwrap(),
        limit: LONG,
    };
    let _stranger = point::meet(&place, stranger).unwrap();
    make_private(path.parent().unwrap()).unwrap();
    write(&path, std::str::from_utf8(&stale).unwrap()).unwrap();
    let early = meet(directory.path(), options(1, LONG)).unwrap();
    let meets = [meet(directory.path(), options(0, LONG)).unwrap(), early];
    assert_eq!(exchange(&meets, "a"), [[0], [1]]);
    assert!(meets[0].key().unwrap() == key, "ranks that outlived rank 0 still have it");
    assert_ne!(std::fs::read(&path).unwrap(), stale);
}

#[test]
fn rank_0_started_again_is_found_at_its_new_port() {
    let directory = tempfile::tempdir().unwrap();
    let first = meet(directory.path(), options(0, LONG)).unwrap();
    let meets = [first, meet(directory.path(), options(1, LONG)).unwrap()];
    exchange(&meets, "a");
    let [first, other] = meets;
    let path = note(directory.path()).unwrap();
    let left = std::fs::read_to_string(&path).unwrap();
    drop(first);
    make_private(path.parent().unwrap()).unwrap();
    write(&path, &left).unwrap();
    let again = meet(directory.path(), options(0, LONG)).unwrap();
    assert_eq!(again.exchange("a", &[5]).unwrap(), [[5], [1]]);
    assert_eq!(exchange(&[again, other], "b"), [[0], [1]]);
}

#[test]
fn a_job_that_runs_already_is_not_joined_by_another_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let _first = meet(directory.path(), options(0, LONG)).unwrap();
    let error = meet(directory.path(), options(0, LONG)).unwrap_err().to_string();
    assert!(
        error.contains("job `test` meets at 127.0.0.1:") && error.contains("BELADY_JOB"),
        "{error}"
    );
    let other = Options { job: "other".into(), ..options(0, LONG) };
    assert!(meet(directory.path(), other).is_ok());
}

#[test]
fn what_others_may_read_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let host = meet(directory.path(), options(0, LONG)).unwrap();
    let path = note(directory.path()).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let guest = meet(directory.path(), options(1, Duration::from_millis(300))).unwrap();
    let error = guest.exchange("a", &[]).unwrap_err().to_string();
    assert!(
        error.contains("rank 0 of 2 did not come") && error.contains("only you can read"),
        "{error}"
    );
    drop(host);
    let own = path.parent().unwrap();
    std::fs::create_dir_all(own).unwrap();
    std::fs::set_permissions(own, Permissions::from_mode(0o755)).unwrap();
    let error = meet(directory.path(), options(0, LONG)).unwrap_err().to_string();
    assert!(error.contains("others may enter"), "{error}");
}

#[test]
fn a_directory_without_a_note_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let guest = meet(directory.path(), options(1, Duration::from_millis(300))).unwrap();
    let error = guest.exchange("a", &[]).unwrap_err().to_string();
    assert!(error.contains("all ranks must see this directory"), "{error}");
}

#[test]
fn a_job_is_found_beside_notes_that_killed_ones_have_left() {
    let directory = tempfile::tempdir().unwrap();
    let named = |job: &str| Options { job: job.into(), ..options(0, LONG) };
    let killed = meet(directory.path(), named("killed")).unwrap();
    let path = note(directory.path()).unwrap();
    let left = std::fs::read_to_string(&path).unwrap();
    drop(killed);
    make_private(path.parent().unwrap()).unwrap();
    write(&path, &left).unwrap();
    let runs = meet(directory.path(), named("runs")).unwrap();
    let (_, key) = find(directory.path(), None).unwrap();
    assert!(key == runs.key().unwrap());

    let _second = meet(directory.path(), named("second")).unwrap();
    let error = find(directory.path(), None).unwrap_err().to_string();
    assert!(error.contains("2 jobs meet in") && error.contains("`runs`, `second`"), "{error}");
    let unnamed = meet(directory.path(), named("")).unwrap();
    let (_, key) = find(directory.path(), None).unwrap();
    assert!(key == unnamed.key().unwrap(), "as processes find it without BELADY_JOB");
}
