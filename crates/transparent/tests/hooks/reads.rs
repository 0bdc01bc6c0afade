//! Opening files for reading, and `stat`.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use belady_board::{Revalidate, VARIABLE};

use crate::stage::{Received, Stage, output, probe};

const COPIED: [&str; 4] = ["plain", "sub/deep", "link", "sublink/deep"];
/// Labels of the probe's paths that are recognised as files with a copy.
const HITS: &str = "given real slashes deep cwd cwd-dot cwd-up cwd-up-link link link-directory";
const HITS_AT: &str = "at at-deep at-link at-absolute closed-absolute";

/// Creates copies of all files but `nocopy`. Reads the files first, so that later reads do not
/// change their access times.
fn stage(revalidate: Revalidate, is_validated: bool) -> (Stage, String) {
    let mut stage = Stage::new(revalidate);
    stage.native("reads");
    let native = stage.native("reads");
    for name in COPIED {
        stage.copy(name, is_validated);
    }
    (stage, native)
}

fn assert_same(native: &str, preloaded: &str) {
    for (native, preloaded) in native.lines().zip(preloaded.lines()) {
        assert_eq!(preloaded.replace("copied", "source"), native);
    }
    assert_eq!(native.lines().count(), preloaded.lines().count());
}

/// Returns the labels of lines of `function` that show bytes of a copy.
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
fn only_the_bytes_of_copies_differ_with_the_shim() {
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
    let wanted: BTreeSet<Received> = stage.received().into_iter().collect();
    assert_eq!(wanted, BTreeSet::from([Received::Want("nocopy".into())]));
    let level = stage.board.header().totals(Some(0));
    assert!(level.opens > 100 && level.stats > 100 && level.bytes > 1000, "{level:?}");
    assert!(COPIED.into_iter().all(|name| stage.entry(name).is_some()));
}

#[test]
fn copies_of_an_earlier_run_are_compared_once() {
    let (mut stage, native) = stage(Revalidate::Start, false);
    assert!(!stage.entry("plain").unwrap().is_validated());
    let preloaded = stage.preloaded("reads");
    assert_same(&native, &preloaded);
    assert_eq!(hits(&preloaded, "open ", " 0").len(), HITS.split(' ').count());
    assert!(COPIED.into_iter().all(|name| stage.entry(name).unwrap().is_validated()));
    assert!(!stage.received().contains(&Received::Dropped));
}

#[test]
fn with_revalidate_open_each_open_asks_the_source() {
    let (stage, native) = stage(Revalidate::Open, true);
    let preloaded = stage.preloaded("reads");
    assert_same(&native, &preloaded);
    assert_eq!(hits(&preloaded, "open ", " 0").len(), HITS.split(' ').count());
    assert_eq!(stage.board.header().totals(Some(0)).stats, 0);
}

#[test]
fn a_changed_file_is_never_served_from_its_copy() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", false);
    let file = fs::File::options().write(true).open(stage.source("plain")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(77)).unwrap();
    assert_eq!(stage.preloaded("plain"), stage.native("plain"));
    assert!(stage.entry("plain").is_none());
    assert_eq!(stage.received(), [Received::Dropped, Received::Want("plain".into())]);
}

#[test]
fn without_its_copy_a_file_is_read_from_the_source() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", true);
    fs::remove_file(stage.path("level/set/files/plain")).unwrap();
    assert_eq!(stage.preloaded("plain"), stage.native("plain"));
    // The copy is dropped, and a new one requested.
    assert!(stage.entry("plain").is_none());
    assert_eq!(stage.received(), [Received::Dropped, Received::Want("plain".into())]);
}

#[test]
fn a_file_replaced_by_a_link_is_reported_as_a_link() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", false);
    fs::remove_file(stage.source("plain")).unwrap();
    std::os::unix::fs::symlink("nocopy", stage.source("plain")).unwrap();
    assert_eq!(stage.preloaded("kind"), stage.native("kind"));
}

#[test]
fn a_refused_file_is_not_requested_again() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.refuse("plain");
    assert_eq!(stage.preloaded("plain"), stage.native("plain"));
    assert_eq!(stage.received(), []);
    assert_eq!(stage.board.header().totals(None).opens, 1);
    assert_eq!(stage.entry("plain").unwrap().opens(), 1);
}

#[test]
fn without_a_valid_variable_the_shim_is_inactive() {
    let (stage, native) = stage(Revalidate::Start, true);
    let other = Stage::new(Revalidate::Start).attach();
    let dead = format!("999999999:3:4:{}:5", stage.board.header().token);
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
