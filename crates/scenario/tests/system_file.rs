//! System files as users meet them.

use std::path::{Path, PathBuf};

use belady_control::model::{Bytes, Rate};
use belady_scenario::{Scenario, Snapshot, SystemFile, system_file};

const SHORT: &str = r#"
[cluster.source]
throughput = [[1, "66 MB/s"], [4, "146 MB/s"]]
[[cluster.tier]]
name = "staging"
capacity = "512 MiB"
threads = 4
read = [[4, "10 GB/s"]]
[[cluster.tier]]
name = "ram"
capacity = "2 GiB"
threads = 2
read = [[2, "8 GB/s"]]
[[cluster.tier]]
name = "ssd"
capacity = "20 GiB"
threads = 2
read = [[1, "1 GB/s"], [2, "2 GB/s"]]
write = [[2, "1 GB/s"]]
path = "cache"
"#;

fn read(text: &str) -> (Result<SystemFile, String>, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("system.toml");
    std::fs::write(&path, text).expect("a small file");
    (system_file(&path).map_err(|error| error.to_string()), folder.path().to_owned())
}

#[track_caller]
fn says(from: &str, to: &str, parts: &[&str]) {
    assert!(SHORT.contains(from), "{from}");
    let error = read(&SHORT.replacen(from, to, 1)).0.expect_err("should not work");
    for part in [&["system.toml"], parts].concat() {
        assert!(error.contains(part), "expected {part:?} in: {error}");
    }
}

#[test]
fn the_cluster_alone_is_enough() {
    let (file, folder) = read(SHORT);
    let SystemFile { system, tier_paths, snapshot, .. } = file.expect("valid");
    assert_eq!((system.nodes, system.ranks_per_node), (1, 1));
    assert!(system.compute.rate.0 > 1e14 && system.source.link.0 > 1e14);
    assert_eq!(system.source.throughput.at(4), Rate(146e6));
    assert_eq!(system.tiers[2].write_rate(), Rate(1e9));
    assert_eq!(system.tiers[1].capacity, Bytes(2 << 30));
    assert_eq!(tier_paths, [None, None, Some(folder.join("cache"))]);
    assert_eq!(snapshot, None);
}

#[test]
fn a_system_file_sets_the_snapshot_directory() {
    let with = |keys: &str| read(&format!("[cluster]\n{keys}\n{SHORT}"));
    let (file, folder) = with("serving_threads = 3\nsnapshot = \"lists\"");
    let file = file.expect("valid");
    assert_eq!(file.snapshot, Some(Snapshot::In(folder.join("lists"))));
    assert_eq!(file.serving_threads, Some(3));
    let threads = |keys: &str| with(keys).0.expect("valid").serving_threads;
    assert_eq!(threads("distributed_threads = 2"), Some(2), "as HDMLP calls it");
    assert_eq!(threads("distributed_threads = 2\nserving_threads = 2"), Some(2));
    assert_eq!(threads(""), None);
    assert_eq!(with("snapshot = false").0.expect("valid").snapshot, Some(Snapshot::Off));
    assert_eq!(with("snapshot = true").0.expect("valid").snapshot, Some(Snapshot::On));
    let refused = |keys: &str| with(keys).0.expect_err(keys);
    assert!(refused("snapshot = 3").contains("`cluster.snapshot` cannot be used: expected true"));
    assert!(refused("snapshot = \"\"").contains("`cluster.snapshot` is empty"));
    assert!(refused("serving_threads = 0").contains("`cluster.serving_threads` is 0"));
    let two = refused("distributed_threads = 2\nserving_threads = 3");
    assert!(
        two.contains("`cluster.distributed_threads` is 2, but `cluster.serving_threads`"),
        "{two}"
    );
}

#[test]
fn mistakes_name_the_file_and_the_key() {
    says("path = ", "paht = ", &["`cluster.tier.ssd.paht`", "`cluster.tier.ssd.path`"]);
    says("path = \"cache\"", "path = \" \"", &["`cluster.tier.ssd.path` is empty"]);
    says("threads = 4", "threads = 4\npath = \"x\"", &["`cluster.tier.staging.path`", "RAM"]);
    says("throughput", "#", &["`cluster.source.throughput` is missing"]);
    says("threads = 2", "threads = -2", &["`cluster.tier.ram.threads` is -2"]);
    let missing = system_file(Path::new("/no/such/file.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read /no/such/file.toml: "), "{missing}");
}

#[test]
fn a_tier_without_capacity_is_left_out_with_its_path() {
    let (file, _) = read(&SHORT.replace("2 GiB", "0"));
    let file = file.expect("valid");
    assert_eq!(file.system.tiers.len(), 2);
    assert!(file.tier_paths[1].as_ref().is_some_and(|path| path.ends_with("cache")));
}

#[test]
fn every_shipped_scenario_is_a_system_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut seen = 0;
    let folders = [folder.join("classes"), folder];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("scenarios"));
    for path in entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()) {
        let file = system_file(&path).unwrap_or_else(|error| panic!("{error}"));
        let scenario = Scenario::load(&path, &[]).expect("a scenario");
        assert_eq!(file.system, scenario.system);
        assert_eq!(file.tier_paths.len(), file.system.tiers.len());
        seen += 1;
    }
    assert!(seen > 25);
}

#[test]
fn the_simulator_checks_and_ignores_keys_for_real_machines() {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../scenarios/hdmlp-4.toml"
    ))
    .expect("a shipped scenario");
    let plain = Scenario::from_str(&text, &[]).expect("valid");
    let set = |set: &str| belady_scenario::Set::parse(set).expect("KEY=VALUE");
    let sets = ["cluster.serving_threads=2", "cluster.snapshot=false", "cluster.tier.1.path=/x"];
    let told = Scenario::from_str(&text, &sets.map(set)).expect("still valid");
    assert_eq!(told.system, plain.system);
    let wrong = Scenario::from_str(&text, &[set("cluster.serving_threads=0")]).unwrap_err();
    assert!(wrong.to_string().contains("`cluster.serving_threads`"));
}
