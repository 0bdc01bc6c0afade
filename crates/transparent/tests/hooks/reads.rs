//! Opening files for reading, and asking about them.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use belady_board::{Revalidate, VARIABLE};

use crate::stage::{Stage, Told, output, probe};

const COPIED: [&str; 4] = ["plain", "sub/deep", "link", "sublink/deep"];
/// Names by which the probe reaches a file that has a copy, where it can be told from the name.
const HITS: &str = "given real slashes deep cwd cwd-dot cwd-up cwd-up-link link link-directory";
const HITS_AT: &str = "at at-deep at-link at-absolute closed-absolute";

/// With copies of all files but `nocopy`. The files were read before, so that reading does not change
/// the time of the last access any more.
fn stage(revalidate: Revalidate, is_proved: bool) -> (Stage, String) {
    let mut stage = Stage::new(revalidate);
    stage.native("reads");
    let native = stage.native("reads");
    for name in COPIED {
        stage.copy(name, is_proved);
    }
    (stage, native)
}

fn assert_same(native: &str, preloaded: &str) {
    for (native, preloaded) in native.lines().zip(preloaded.lines()) {
        assert_eq!(preloaded.replace("copied", "source"), native);
    }
    assert_eq!(native.lines().count(), preloaded.lines().count());
}

/// The labels of the lines that begin with `function` and tell of copied bytes.
fn hits<'a>(printed: &'a str, function: &str, suffix: &str) -> BTreeSet<&'a str> {
    let is_hit = |line: &&str| line.contains("'copied");
    let of_function = printed.lines().filter_map(|line| line.strip_prefix(function));
    of_function
        .filter(is_hit)
        .filter_map(|line| line.trim_start().split_once(" = "))
        .filter_map(|(label, _)| label.strip_suffix(suffix))
        .collect()
}

#[test]
fn nothing_can_be_told_apart_but_the_bytes_of_copies() {
    let (mut stage, native) = stage(Revalidate::Start, true);
    let preloaded = stage.preloaded("reads");
    assert_same(&native, &preloaded);

    let plain: BTreeSet<&str> = HITS.split(' ').collect();
    let at: BTreeSet<&str> = plain.iter().copied().chain(HITS_AT.split(' ')).collect();
    let unlinked = |names: &BTreeSet<&'static str>| -> BTreeSet<&'static str> {
        names.iter().copied().filter(|name| !name.ends_with("link")).collect()
    };
    for function in ["open ", "open64 ", "__open_2 ", "__open64_2 "] {
        assert_eq!(hits(&preloaded, function, " 0"), plain, "{function}");
        assert_eq!(hits(&preloaded, function, " 2000000"), plain, "{function}");
        assert_eq!(hits(&preloaded, function, " 400000"), unlinked(&plain), "{function}");
    }
    for function in ["openat ", "openat64 ", "__openat_2 ", "__openat64_2 "] {
        assert_eq!(hits(&preloaded, function, " 0"), at, "{function}");
    }
    for function in ["fopen ", "fopen64 ", "freopen ", "freopen64 "] {
        for mode in [" 'r'", " 'rb'", " 're'", " 'rm'"] {
            assert_eq!(hits(&preloaded, function, mode), plain, "{function}");
        }
    }
    let wanted: BTreeSet<Told> = stage.told().into_iter().collect();
    assert_eq!(wanted, BTreeSet::from([Told::Want("nocopy".into())]));
    let level = stage.board.head().totals(Some(0));
    assert!(level.opens > 100 && level.stats > 100 && level.bytes > 1000, "{level:?}");
    assert!(COPIED.into_iter().all(|name| stage.entry(name).is_some()));
}

#[test]
fn copies_of_an_earlier_run_are_compared_once() {
    let (mut stage, native) = stage(Revalidate::Start, false);
    assert!(!stage.entry("plain").unwrap().is_proved());
    let preloaded = stage.preloaded("reads");
    assert_same(&native, &preloaded);
    assert_eq!(hits(&preloaded, "open ", " 0").len(), HITS.split(' ').count());
    assert!(COPIED.into_iter().all(|name| stage.entry(name).unwrap().is_proved()));
    assert!(!stage.told().contains(&Told::Dropped));
}

#[test]
fn with_revalidate_open_the_source_is_asked_each_time() {
    let (stage, native) = stage(Revalidate::Open, true);
    let preloaded = stage.preloaded("reads");
    assert_same(&native, &preloaded);
    assert_eq!(hits(&preloaded, "open ", " 0").len(), HITS.split(' ').count());
    assert_eq!(stage.board.head().totals(Some(0)).stats, 0);
}

#[test]
fn a_source_that_changed_is_not_served_from_its_copy() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", false);
    let file = fs::File::options().write(true).open(stage.source("plain")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(77)).unwrap();
    assert_eq!(stage.preloaded("plain"), stage.native("plain"));
    assert!(stage.entry("plain").is_none());
    assert_eq!(stage.told(), [Told::Dropped, Told::Want("plain".into())]);
}

#[test]
fn a_copy_that_was_taken_away_is_not_missed() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", true);
    fs::remove_file(stage.path("level/set/files/plain")).unwrap();
    assert_eq!(stage.preloaded("plain"), stage.native("plain"));
    // It is no longer answered for, and a new one is welcome.
    assert!(stage.entry("plain").is_none());
    assert_eq!(stage.told(), [Told::Dropped, Told::Want("plain".into())]);
}

#[test]
fn a_file_that_became_a_link_is_told_as_one() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", false);
    fs::remove_file(stage.source("plain")).unwrap();
    std::os::unix::fs::symlink("nocopy", stage.source("plain")).unwrap();
    assert_eq!(stage.preloaded("kind"), stage.native("kind"));
}

#[test]
fn nobody_asks_for_files_that_no_level_has_room_for() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.refuse("plain");
    assert_eq!(stage.preloaded("plain"), stage.native("plain"));
    assert_eq!(stage.told(), []);
    assert_eq!(stage.board.head().totals(None).opens, 1);
    assert_eq!(stage.entry("plain").unwrap().opens(), 1);
}

#[test]
fn without_its_variable_or_with_nonsense_the_library_does_nothing() {
    let (stage, native) = stage(Revalidate::Start, true);
    let other = Stage::new(Revalidate::Start).attach();
    let dead = format!("999999999:3:4:{}:5", stage.board.head().token);
    let values = [None, Some(""), Some("nonsense"), Some("1:2:3"), Some(&other), Some(&dead)];
    for value in values {
        let mut command = stage.command(&probe(stage.base.path()), "reads");
        command.env("LD_PRELOAD", &stage.library).env_remove(VARIABLE);
        if let Some(value) = value {
            command.env(VARIABLE, value);
        }
        assert_eq!(output(&mut command), native, "{value:?}");
    }
}
