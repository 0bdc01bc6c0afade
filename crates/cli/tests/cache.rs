//! `belady cache` end to end.

mod common;

use common::{Folder, content, files_below};

#[test]
fn a_cache_is_filled_listed_verified_and_cleared() {
    let folder = Folder::new();
    folder.class_folders(40);
    let text = folder.text(&["cache", "fill", "cache", "photos", "--quota", "10MB"]);
    assert!(text.contains("stored 40 samples"), "{text}");
    assert!(text.contains("100.0 % of the dataset"), "{text}");
    let again = folder.json(&["cache", "fill", "cache", "photos", "--quota", "10MB", "--json"]);
    assert_eq!((&again["stored"], &again["present"]), (&0.into(), &40.into()));
    let listed = folder.json(&["cache", "ls", "cache", "--json"]);
    assert_eq!((&listed[0]["dataset"], &listed[0]["samples"]), (&"photos".into(), &40.into()));
    let table = folder.text(&["cache", "ls", "cache"]);
    assert!(table.contains("photos") && table.contains("idle"), "{table}");
    let verified = folder.json(&["cache", "verify", "cache", "--json"]);
    assert_eq!((&verified[0]["good"], &verified[0]["damaged"]), (&40.into(), &0.into()));
    let fingerprint = listed[0]["fingerprint"].as_str().expect("hexadecimal digits");
    folder.refuses(2, &["cache", "clear", "cache", "--only", "1234"], &["0000000000001234"]);
    let cleared = folder.text(&["cache", "clear", "cache", "--only", fingerprint]);
    assert!(cleared.starts_with("removed 1 cache, "), "{cleared}");
    assert!(folder.text(&["cache", "ls", "cache"]).contains("holds no caches"));
}

#[test]
fn a_cache_inside_its_dataset_adds_no_class_and_no_sample() {
    let folder = Folder::new();
    folder.class_folders(40);
    for _ in 0..2 {
        let fill = ["cache", "fill", "photos", "photos", "--quota", "10MB", "--json"];
        assert_eq!(folder.json(&fill)["samples"], 40);
        for format in ["folder", "flat"] {
            let listed = folder.json(&["ls", "photos", "--format", format, "--json"]);
            assert_eq!(listed["samples"], 40, "{listed}");
        }
    }
}

#[test]
fn a_job_with_a_filled_cache_does_not_read_the_source() {
    let folder = Folder::new();
    folder.write("records/a.bin", &content(1, 64 * 900));
    let filled = folder.json(&[
        "cache",
        "fill",
        "cache",
        "records",
        "--format",
        "records:64",
        "--quota",
        "5MB",
        "--json",
    ]);
    assert_eq!(filled["stored"], 900);
    let report = folder.json(&[
        "read",
        "records",
        "--format",
        "records:64",
        "--cache",
        "cache:5MB",
        "--batch",
        "32",
        "--staging",
        "1MB",
        "--json",
    ]);
    assert_eq!(report["order_ok"], true);
    assert_eq!(report["epochs"][0]["source_bytes"], 0, "{report}");
}

#[test]
fn filling_stops_at_the_quota() {
    let folder = Folder::new();
    for at in 0..50 {
        folder.write(&format!("flat/{at}.bin"), &content(at, 20_000));
    }
    let args = ["cache", "fill", "cache", "flat", "--format", "flat", "--quota", "500KB", "--json"];
    let filled = folder.json(&args);
    assert_eq!(filled["full"], true);
    let stored = filled["stored"].as_u64().expect("a number");
    assert!(stored > 10 && stored < 26, "{filled}");
    let taken: u64 = files_below(&folder.path("cache"))
        .iter()
        .map(|file| std::fs::metadata(file).expect("a file").len())
        .sum();
    assert!(taken <= 500_000, "{taken}");
}

#[test]
fn a_damaged_sample_is_found_and_removed() {
    let folder = Folder::new();
    folder.class_folders(20);
    folder.text(&["cache", "fill", "cache", "photos", "--quota", "5MB"]);
    let segment = files_below(&folder.path("cache"))
        .into_iter()
        .find(|file| {
            file.file_name().is_some_and(|name| name.to_string_lossy().contains("segment"))
        })
        .expect("a segment file");
    let mut bytes = std::fs::read(&segment).expect("the segment");
    let at = bytes.iter().position(|&byte| byte != 0).expect("something stored") + 500;
    bytes[at] ^= 1;
    std::fs::write(&segment, bytes).expect("a damaged segment");
    folder.refuses(1, &["cache", "verify", "cache"], &["1 samples were damaged"]);
    let again = folder.json(&["cache", "verify", "cache", "--json"]);
    assert_eq!((&again[0]["good"], &again[0]["damaged"]), (&19.into(), &0.into()));
}

#[test]
fn a_usage_error_is_one_sentence_that_names_the_option() {
    let folder = Folder::new();
    folder.class_folders(3);
    for (args, parts) in [
        (&["cache", "ls", "nothing"][..], &["nothing"][..]),
        (&["cache", "verify", "nothing"], &["nothing"]),
        (&["cache", "clear", "nothing"], &["nothing"]),
        (&["cache", "clear", "nothing", "--only", "xyz"], &["--only", "cache ls"]),
        (&["cache", "fill", "cache", "nothing", "--quota", "1MB"], &["nothing"]),
        (&["cache", "fill", "cache", "photos"], &["--quota"]),
        (&["cache", "fill", "cache", "photos", "--quota", "0"], &["--quota 0"]),
        (&["cache", "fill", "cache", "photos", "--quota", "big"], &["--quota", "big"]),
    ] {
        folder.refuses(2, args, parts);
    }
    assert!(!folder.path("cache").exists());
}
