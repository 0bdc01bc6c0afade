//! Changes of files reach the source and drop the copy.

use std::fs;

use belady_board::Revalidate;

use crate::stage::{Received, Stage};

/// Returns a list of functions in the probe.
fn functions(list: &str) -> Vec<String> {
    let (_, rest) = include_str!("changes.c").split_once(list).unwrap();
    let (names, _) = rest.split_once("};").unwrap();
    names.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Creates a dataset with the probe's files.
fn stage() -> (Stage, Vec<String>) {
    let by_path = functions("paths[] = {");
    let by_descriptor = functions("descriptors[] = {");
    assert!(by_path.len() > 30 && by_descriptor.len() > 5);
    let relative = by_path.iter().map(|name| format!("sub/{name}.relative"));
    let descriptors = by_descriptor.iter().map(|name| format!("{name}.descriptor"));
    let names: Vec<String> = by_path.iter().cloned().chain(relative).chain(descriptors).collect();
    let stage = Stage::new(Revalidate::Start);
    for name in &names {
        fs::write(stage.source(name), format!("source of {name}")).unwrap();
    }
    (stage, names)
}

/// Returns the files whose change this libc or file system does not allow.
fn failed<'a>(printed: &str, names: &'a [String]) -> Vec<&'a String> {
    let did_fail = |name: &&String| {
        let (function, label) =
            name.trim_start_matches("sub/").split_once('.').unwrap_or((name, "absolute"));
        printed.contains(&format!("{function} {label} = -1 "))
    };
    names.iter().filter(did_fail).collect()
}

#[test]
fn changes_reach_the_source_and_drop_the_copy() {
    let (untouched, _) = stage();
    let native = untouched.native("changes");
    let (mut stage, names) = stage();
    for name in &names {
        stage.copy(name, true);
    }
    stage.copy("plain", true);
    let preloaded = stage.preloaded("changes");
    for (native, preloaded) in native.lines().zip(preloaded.lines()) {
        let is_before = native.starts_with("before:");
        assert_eq!(preloaded.contains("'copied"), is_before || native.contains(" descriptor ="));
        assert_eq!(preloaded.replace("copied", "source"), native);
    }
    assert_eq!(native.lines().count(), preloaded.lines().count());
    let live: Vec<&String> = names.iter().filter(|name| stage.entry(name).is_some()).collect();
    assert_eq!(live, failed(&native, &names));
    assert!(stage.entry("plain").unwrap().is_validated());
    let dropped =
        stage.received().iter().filter(|received| **received == Received::Dropped).count();
    assert_eq!(dropped, names.len() - live.len());
}

#[test]
fn a_file_opened_for_writing_gets_no_copy_in_this_run() {
    let (mut stage, _) = stage();
    stage.copy("open", true);
    stage.preloaded("changes");
    stage.copy("open", true);
    assert!(stage.entry("open").is_none());
    let wanted = stage.received();
    assert!(!wanted.contains(&Received::Want("open".into())));
    assert!(wanted.contains(&Received::Want("chmod".into())));
}

#[test]
fn writes_through_another_name_of_a_copy_reach_the_source() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", true);
    stage.copy("sub/deep", true);
    assert_eq!(
        stage.preloaded("reopened"),
        "reopened read 7 'WRITTEN'\nalias read 16 'WRITTENof sub/de'\n"
    );
    assert_eq!(fs::read_to_string(stage.source("plain")).unwrap(), "WRITTEN");
    assert!(stage.entry("plain").is_none() && stage.entry("sub/deep").is_none());
}

#[test]
fn names_of_a_copys_descriptor_stand_for_the_source() {
    let native = Stage::new(Revalidate::Start).native("named");
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", true);
    assert_eq!(stage.preloaded("named"), native);
    assert!(native.contains("linkat 0\n") && native.contains("truncate 0\n"), "{native}");
    assert!(native.contains("size 3 links 2\n"), "{native}");
    assert!(stage.entry("plain").is_none());
}

#[test]
fn a_file_that_was_replaced_outside_is_not_read_from_its_copy_after_the_job_writes_to_it() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", true);
    stage.copy("sub/deep", true);
    // As an editor does: other files of the same names.
    for name in ["plain", "sub/deep"] {
        let other = stage.path("other");
        fs::write(&other, "new").unwrap();
        fs::rename(other, stage.source(name)).unwrap();
    }
    assert_eq!(stage.preloaded("appended"), "plain read 4 'new+'\ndeep read 3 'new'\n");
    assert!(stage.entry("plain").is_none() && stage.entry("sub/deep").is_none());
}

#[test]
fn a_renamed_directory_is_not_served_from_copies() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", true);
    stage.copy("sub/deep", true);
    let expected = "before read 16 'copied of sub/de'
before read 16 'copied of sub/de'
open gone = -1 errno 2
moved read 16 'source of sub/de'
moved read 16 'source of sub/de'
plain read 15 'copied of plain'
";
    assert_eq!(stage.preloaded("moved"), expected);
    assert!(stage.entry("sub/deep").is_none());
    assert!(stage.entry("plain").is_some());
}

#[test]
fn a_source_removed_by_another_process_drops_its_copy() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", true);
    fs::remove_file(stage.source("plain")).unwrap();
    assert_eq!(stage.preloaded("gone"), stage.native("gone"));
    assert_eq!(stage.received(), [Received::Dropped]);
}

#[test]
fn a_changed_link_is_followed_to_its_new_target() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("link", true);
    stage.copy("sublink/deep", true);
    let expected = "before read 15 'copied of plain'
before read 16 'copied of sublin'
link read 16 'source of nocopy'
sublink read 16 'source of other/'
";
    let expected = expected.replace("copied of sublin", "copied of sub/de");
    assert_eq!(stage.preloaded("relinked"), expected);
}

#[test]
fn changes_through_a_third_name_of_the_dataset_drop_the_copy() {
    let mut stage = Stage::new(Revalidate::Start);
    std::os::unix::fs::symlink("data", stage.path("data-door")).unwrap();
    stage.copy("plain", true);
    stage.copy("sub/deep", true);
    let expected = "before read 15 'copied of plain'
after read 16 'source of nocopy'
open removed = -1 errno 2
";
    let snapshot = stage.board.change_snapshot();
    assert_eq!(stage.preloaded("side-door"), expected);
    // So a copy in flight is compared before it is used.
    assert_ne!(stage.board.change_snapshot(), snapshot);
    assert!(stage.entry("plain").is_none() && stage.entry("sub/deep").is_none());
}

#[test]
fn a_copy_whose_source_grew_while_it_was_open_has_its_own_size() {
    let mut stage = Stage::new(Revalidate::Start);
    stage.copy("plain", true);
    assert_eq!(stage.preloaded("grown"), "all of it\n");
}
