//! `belady cache` on the copies of a run.

use crate::common::{Folder, files_below};
use crate::{READ_AND_WAIT, Running, belady, folder, let_end, sh};

/// Makes a folder whose cache holds copies of all files.
fn warm() -> Folder {
    let folder = folder();
    folder.text(&sh(&[], READ_AND_WAIT));
    folder
}

#[test]
fn copies_are_listed_verified_and_cleared() {
    let folder = warm();
    let listed = folder.json(&["cache", "ls", "cache", "--json"]);
    let held = &listed[0];
    assert_eq!((&held["dataset"], &held["kind"]), (&"photos".into(), &"files".into()), "{listed}");
    assert_eq!((&held["files"], &held["bytes"]), (&3.into(), &3003.into()));
    assert_eq!(held["in_use"], false);
    let real = folder.path("photos").canonicalize().expect("the dataset");
    assert_eq!(held["path"], real.to_string_lossy().as_ref());
    let table = folder.text(&["cache", "ls", "cache"]);
    assert!(table.contains("files") && table.contains("3.00 KB"), "{table}");
    let verified = folder.json(&["cache", "verify", "cache", "--json"]);
    assert_eq!((&verified[0]["good"], &verified[0]["damaged"]), (&3.into(), &0.into()));
    folder.refuses(2, &["cache", "clear", "cache", "--only", "1234"], &["0000000000001234"]);
    let fingerprint = held["fingerprint"].as_str().expect("hexadecimal digits");
    let cleared = folder.text(&["cache", "clear", "cache", "--only", fingerprint]);
    assert_eq!(cleared, "removed 1 cache, 3.00 KB freed\n");
    assert!(folder.text(&["cache", "ls", "cache"]).contains("holds no caches"));
    assert!(folder.path("photos/cat/0000.bin").exists());
    // The next run fills the cache again.
    folder.text(&sh(&[], READ_AND_WAIT));
    assert_eq!(folder.json(&["cache", "ls", "cache", "--json"])[0]["files"], 3);
}

#[test]
fn a_damaged_copy_is_found_and_removed() {
    let folder = warm();
    let copy = files_below(&folder.path("cache"))
        .into_iter()
        .find(|file| file.ends_with("files/dog/0001.bin"))
        .expect("a copy");
    let mut bytes = std::fs::read(&copy).expect("its bytes");
    bytes[500] ^= 1;
    std::fs::write(&copy, bytes).expect("a damaged copy");
    folder.refuses(1, &["cache", "verify", "cache"], &["1 files were damaged"]);
    assert!(!copy.exists());
    let again = folder.json(&["cache", "verify", "cache", "--json"]);
    assert_eq!((&again[0]["good"], &again[0]["damaged"]), (&2.into(), &0.into()));
}

#[test]
fn copies_in_use_are_not_cleared() {
    let folder = warm();
    let script = "echo ready; until [ -e end ]; do sleep 0.02; done; cat photos/*/* | wc -c";
    let mut running = Running::start(&mut belady(&folder, &sh(&[], script)));
    assert_eq!(running.line(), "ready");
    assert_eq!(folder.json(&["cache", "ls", "cache", "--json"])[0]["in_use"], true);
    assert!(folder.text(&["cache", "ls", "cache"]).contains("in use"));
    folder.refuses(1, &["cache", "clear", "cache"], &["is in use"]);
    let_end(&folder);
    let (text, status) = running.end();
    assert_eq!((text.trim(), status), ("3003", Some(0)));
    assert!(folder.text(&["cache", "clear", "cache"]).starts_with("removed 1 cache"));
}

#[test]
fn a_directory_can_hold_samples_and_files() {
    let folder = warm();
    folder.text(&["cache", "fill", "cache", "photos", "--quota", "1MB"]);
    let listed = folder.json(&["cache", "ls", "cache", "--json"]);
    let kinds: Vec<_> =
        listed.as_array().expect("a list").iter().map(|held| &held["kind"]).collect();
    assert_eq!(kinds, ["samples", "files"]);
    assert_eq!((&listed[0]["samples"], &listed[1]["files"]), (&3.into(), &3.into()));
    let verified = folder.json(&["cache", "verify", "cache", "--json"]);
    assert_eq!((&verified[0]["good"], &verified[1]["good"]), (&3.into(), &3.into()));
    let samples = listed[0]["fingerprint"].as_str().expect("hexadecimal digits");
    folder.text(&["cache", "clear", "cache", "--only", samples]);
    let left = folder.json(&["cache", "ls", "cache", "--json"]);
    assert_eq!((left.as_array().map(Vec::len), &left[0]["kind"]), (Some(1), &"files".into()));
    assert!(folder.text(&["cache", "clear", "cache"]).starts_with("removed 1 cache"));
    assert_eq!(folder.json(&["cache", "ls", "cache", "--json"]), serde_json::json!([]));
}
