//! Whatever happens to a scenario file, reading it answers; it never panics.

use belady_scenario::dataset::SizeOrigin;
use belady_scenario::{Scenario, Set, Sweep};
use proptest::prelude::*;
use proptest::sample::select;

const FILES: [&str; 6] = [
    WEIGHTED,
    MIXTURE,
    include_str!("../../../scenarios/hdmlp-1.toml"),
    include_str!("../../../scenarios/nopfs-mnist.toml"),
    include_str!("../../../scenarios/lobster-imagenet-1k-1node.toml"),
    include_str!("../../../scenarios/monarch-100gib.toml"),
];

const WEIGHTED: &str = r#"
[dataset]
samples = 1000
mean = "10 KB"
[training]
epochs = 3
batch = 8
order = "weighted"
length = 700
replacement = false
[training.weights]
kind = "zipf"
exponent = 0.8
[cluster]
nodes = 2
compute = "100 MB/s"
preprocess = "200 MB/s"
network = "1 GB/s"
[cluster.source]
link = "500 MB/s"
throughput = [[1, "60 MB/s"]]
[[cluster.tier]]
name = "staging"
capacity = "100 MB"
threads = 4
read = [[4, "10 GB/s"]]
[[cluster.tier]]
name = "ram"
capacity = ["5 MB", 0]
threads = 2
read = [[2, "10 GB/s"]]
"#;

const MIXTURE: &str = r#"
[dataset]
samples = 1000
mean = "10 KB"
[training]
epochs = 3
batch = 8
order = "mixture"
[[training.part]]
fraction = 0.3
weight = 2
[[training.part]]
fraction = 0.7
[cluster]
nodes = 1
compute_per_sample = "2 ms"
network = "1 GB/s"
[cluster.source]
link = "500 MB/s"
throughput = [[1, "60 MB/s"]]
[[cluster.tier]]
name = "staging"
capacity = "100 MB"
threads = 4
read = [[4, "10 GB/s"]]
[[cluster.preprocess]]
size = "5 KB"
throughput = [[1, "200 MB/s"], [3, "400 MB/s"]]
[[cluster.preprocess]]
size = "50 KB"
throughput = [[1, "100 MB/s"]]
[[policy]]
name = "nopfs"
loading_threads = 1
preprocessing_threads = 1
"#;

/// The edges of what is allowed, and what is of another kind altogether.
const VALUES: &[&str] = &[
    "0",
    "-1",
    "1",
    "7",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "1e308",
    "nan",
    "-inf",
    "true",
    "\"\"",
    "\"-3 MB/s\"",
    "\"0 B\"",
    "\"1 B\"",
    "\"3 MB\"",
    "\"99999999999 PB\"",
    "\"1 B/s\"",
    "\"uniform\"",
    "\"constant\"",
    "\"whole\"",
    "\"weighted\"",
    "\"mixture\"",
    "\"zipf\"",
    "\"classes\"",
    "0.3",
    "[0.3, 0.7]",
    "[\"1 MB\", 0]",
    "[]",
    "[[]]",
    "[[1, \"1 MB/s\"]]",
    "{}",
    "1979-05-27",
];

const KEYS: &[&str] = &[
    "dataset.samples",
    "dataset.mean",
    "dataset.stddev",
    "dataset.min",
    "dataset.max",
    "dataset.total",
    "dataset.clamp",
    "dataset.distribution",
    "dataset.files",
    "training.epochs",
    "training.batch",
    "training.scheme",
    "training.seed",
    "training.order",
    "training.length",
    "training.replacement",
    "training.weights",
    "training.weights.kind",
    "training.weights.exponent",
    "training.weights.fractions",
    "training.part",
    "training.part.0.fraction",
    "training.part.1.weight",
    "cluster.nodes",
    "cluster.ranks_per_node",
    "cluster.serving_threads",
    "cluster.snapshot",
    "cluster.tier.1.path",
    "cluster.tier",
    "cluster.tier.0",
    "cluster.tier.ram.capacity",
    "cluster.tier.staging.capacity",
    "cluster.source",
    "cluster.source.throughput",
    "policy",
    "policy.0",
    "policy.nopfs.in_order",
];

#[derive(Clone, Debug)]
enum Edit {
    Delete,
    Repeat,
    Value(String),
    Insert(String),
    Cut,
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => select(VALUES).prop_map(str::to_owned),
        1 => any::<i64>().prop_map(|number| number.to_string()),
        1 => "\\PC{0,12}",
    ]
}

/// What to do to which line.
fn edit() -> impl Strategy<Value = (usize, Edit)> {
    let edit = prop_oneof![
        Just(Edit::Delete),
        Just(Edit::Repeat),
        value().prop_map(Edit::Value),
        "\\PC{0,20}".prop_map(Edit::Insert),
        Just(Edit::Cut),
    ];
    (0..1000_usize, edit)
}

fn apply(file: &str, edits: Vec<(usize, Edit)>) -> String {
    let said = |line: &&str| !line.starts_with('#') && !line.is_empty();
    let mut lines: Vec<String> = file.lines().filter(said).map(str::to_owned).collect();
    for (at, edit) in edits {
        let line = at % lines.len();
        match edit {
            Edit::Delete => drop(lines.remove(line)),
            Edit::Repeat => lines.push(lines[line].clone()),
            Edit::Value(value) => {
                let key = lines[line].split('=').next().unwrap_or_default();
                lines[line] = format!("{key}= {value}");
            }
            Edit::Insert(text) => lines.insert(line, text),
            Edit::Cut => lines[line] = lines[line].chars().take(at % 11).collect(),
        }
    }
    lines.join("\n")
}

/// Reads a scenario and makes its job. Drawing a billion samples is slow but no mistake:
/// such a dataset is read and not drawn.
fn read(text: &str, sets: &[Set]) {
    match Scenario::from_str(text, sets) {
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        Ok(scenario) => {
            if let SizeOrigin::Synthetic(dataset) = &scenario.dataset.origin
                && dataset.samples <= 2_000_000
                && let Err(error) = scenario.job()
            {
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn edited_files_never_panic(
        file in select(&FILES[..]),
        edits in prop::collection::vec(edit(), 0..4),
    ) {
        read(&apply(file, edits), &[]);
    }

    #[test]
    fn arguments_never_panic(
        file in select(&FILES[..]),
        key in prop_oneof![
            1 => "[a-z_.0-9]{0,24}",
            3 => select(KEYS).prop_map(str::to_owned),
        ],
        value in value(),
    ) {
        let text = format!("{key}={value}");
        let _ = Sweep::parse(&text);
        if let Ok(set) = Set::parse(&text) {
            read(file, &[set]);
        }
    }
}
