//! Scenario files as users meet them: every mistake is one sentence that names its
//! key, and every shipped file makes a job.

use std::path::{Path, PathBuf};

use belady_control::model::{Bytes, Pipeline, PreprocessWork, Rate, Readers, Seconds, Sharing};
use belady_control::policy::{Availability, PolicyKind};
use belady_control::sampler::Scheme;
use belady_scenario::{Scenario, ScenarioError, Set, Sweep};

const BASE: &str = r#"
name = "small"
[dataset]
samples = 10_000
mean = "0.027 MB"
stddev = "0.01 MB"
[training]
epochs = 10
batch = 100
drop_last = true
[cluster]
nodes = 4
compute = "100 MB/s"
preprocess = "200 MB/s"
network = "10000 MB/s"
[cluster.source]
link = "2000 MB/s"
throughput = [[1, "66 MB/s"], [4, "146 MB/s"]]
[[cluster.tier]]
name = "staging"
capacity = "1024 MB"
threads = 2
read = [[2, "21164 MB/s"]]
[[cluster.tier]]
name = "ram"
capacity = "51200 MB"
threads = 2
read = [[2, "21164 MB/s"]]
"#;

fn with(sets: &[&str]) -> Result<Scenario, ScenarioError> {
    let sets = sets.iter().map(|set| Set::parse(set)).collect::<Result<Vec<_>, _>>()?;
    Scenario::from_str(BASE, &sets)
}

/// These sets end in one sentence that has all the parts, be it at reading or at
/// drawing sizes.
#[track_caller]
fn says(sets: &[&str], parts: &[&str]) {
    let error = match with(sets) {
        Ok(scenario) => scenario.job().expect_err(&format!("{sets:?} should not work")),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(!text.contains('\n'), "one sentence: {text}");
    for part in parts {
        assert!(text.contains(part), "{sets:?}: expected {part:?} in: {text}");
    }
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

#[test]
fn missing_keys_have_defaults() {
    let scenario = Scenario::from_str(BASE, &[]).unwrap();
    let system = &scenario.system;
    assert_eq!(scenario.name, "small");
    assert_eq!((system.nodes, system.ranks_per_node), (4, 1));
    assert_eq!(system.pipeline, Pipeline::Overlapped);
    assert_eq!(system.source.sharing, Sharing::Aggregate);
    assert_eq!(system.source.readers, Readers::Nodes);
    assert_eq!(system.tiers[1].write, system.tiers[1].read);
    assert_eq!(scenario.training.scheme, Scheme::Uniform);
    assert!(!scenario.training.sampler_drop_last);
    let kinds: Vec<PolicyKind> = scenario.policies.iter().map(|spec| spec.kind).collect();
    assert_eq!(kinds, PolicyKind::ALL);
    let job = scenario.job().unwrap();
    assert_eq!(job.sizes.total(), Bytes(270_000_000));
    assert_eq!((job.epochs, job.packing.files), (Some(10), 10_000));
}

#[test]
fn set_reaches_tables_and_arrays() {
    let scenario = with(&[
        "name=other",
        "cluster.compute=5 GB/s",
        "cluster.source.sharing=per-thread",
        "cluster.tier.ram.capacity=64 GB",
        "cluster.tier.0.threads=8",
        "cluster.tier.ram.write=[[1, \"1 GB/s\"]]",
        "policy.nopfs.in_order=false",
        "policy.nopfs.availability=known",
        "policy.lobster.tau=5 ms",
    ])
    .unwrap();
    let tiers = &scenario.system.tiers;
    assert_eq!(scenario.name, "other");
    assert_eq!(scenario.system.compute, Rate(5e9).into());
    assert_eq!(scenario.system.source.sharing, Sharing::PerThread);
    assert_eq!((tiers[1].capacity, tiers[0].threads), (Bytes(64_000_000_000), 8));
    assert_eq!(tiers[1].write.at(1), Rate(1e9));
    // Giving one policy an option does not silence the others.
    assert_eq!(scenario.policies.len(), PolicyKind::ALL.len());
    let nopfs = PolicyKind::Nopfs {
        in_order: false,
        cleanup_read: false,
        availability: Availability::Known,
        duties: None,
    };
    assert!(scenario.policies.iter().any(|spec| spec.kind == nopfs));
}

#[test]
fn a_tier_without_capacity_is_left_out() {
    for set in ["cluster.tier.ram.capacity=0", "cluster.tier.1.capacity=0 GB"] {
        assert_eq!(with(&[set]).unwrap().system.tiers.len(), 1);
    }
    says(&["cluster.tier.staging.capacity=0"], &["`cluster.tier.staging.capacity`", "staging"]);
}

#[test]
fn sweeps_expand_to_sets() {
    let sweeps = ["cluster.nodes=1,2,4", "cluster.tier.ram.capacity=0,1 GB"];
    let sweeps: Vec<Sweep> = sweeps.iter().map(|text| Sweep::parse(text).unwrap()).collect();
    let nodes: Vec<u32> = Sweep::combinations(&sweeps)
        .iter()
        .map(|sets| Scenario::from_str(BASE, sets).unwrap().system.nodes)
        .collect();
    assert_eq!(nodes, [1, 1, 2, 2, 4, 4]);
}

#[test]
fn policies_of_one_name_are_told_apart_by_label() {
    let text = format!(
        "{BASE}\n[[policy]]\nname = \"lobster\"\n[[policy]]\nname = \"lobster\"\n\
         label = \"still\"\nthreads = false\n"
    );
    let set = Set::parse("policy.still.eviction=false").unwrap();
    let mut scenario = Scenario::from_str(&text, &[set]).unwrap();
    let off = |scenario: &Scenario, index: usize| {
        let kind = scenario.policies[index].kind;
        matches!(kind, PolicyKind::Lobster { threads: false, eviction: false, .. })
    };
    assert!(off(&scenario, 1) && !off(&scenario, 0));
    scenario.select(&["still", "belady"]).unwrap();
    let labels: Vec<&str> = scenario.policies.iter().map(|spec| spec.label.as_str()).collect();
    assert_eq!(labels, ["still", "belady"]);
    let still = "lobster,threads=false,eviction=false";
    scenario.select(&[still]).unwrap();
    assert_eq!(scenario.policies[0].label, still);
    assert!(off(&scenario, 0));
    let error = scenario.select(&["lobster,taw=5ms"]).unwrap_err().to_string();
    assert!(error.contains("`taw` is not an option of `lobster`"), "{error}");
    let many = scenario.select(&["staging,loading_threads=99"]).unwrap_err().to_string();
    assert!(many.contains("loading_threads` is 99"), "{many}");
    assert!(scenario.select(&["stil"]).unwrap_err().to_string().contains("`stil`"));
    let twice = format!("{BASE}\n[[policy]]\nname = \"lru\"\n[[policy]]\nname = \"lru\"\n");
    let error = Scenario::from_str(&twice, &[]).unwrap_err().to_string();
    assert!(error.contains("policy.1.label"), "{error}");
}

#[test]
fn unknown_keys_get_the_nearest() {
    says(&["cluster.noodes=4"], &["`cluster.noodes`", "`cluster.nodes`"]);
    says(&["cluster.source.share=x"], &["`cluster.source.share`", "`cluster.source.sharing`"]);
    let capacity = ["`cluster.tier.ram.capcity`", "`cluster.tier.ram.capacity`"];
    says(&["cluster.tier.ram.capcity=4"], &capacity);
    says(&["dataset.epochs=4"], &["`dataset.epochs`", "`training.epochs`"]);
    says(&["nodes=4"], &["`nodes`", "`cluster.nodes`"]);
    says(&["clutser.nodes=4"], &["`clutser`", "`cluster`"]);
    says(&["policy.lru.lable=x"], &["`policy.lru.lable`", "`policy.lru.label`"]);
    says(&["cluster.tier.rma.capacity=4"], &["`cluster.tier.rma`", "`cluster.tier.ram`"]);
    says(&["cluster.tier.7.capacity=4"], &["`cluster.tier.7`"]);
    says(&["cluster.nodes.x=4"], &["`cluster.nodes`"]);
}

#[test]
fn impossible_counts_name_their_key() {
    for key in [
        "cluster.nodes",
        "cluster.ranks_per_node",
        "training.epochs",
        "training.batch",
        "dataset.samples",
        "dataset.files",
        "cluster.tier.ram.threads",
    ] {
        let quoted = format!("`{key}`");
        says(&[&format!("{key}=0")], &[&quoted, "at least 1"]);
        says(&[&format!("{key}=-3")], &[&quoted, "at least 1"]);
        says(&[&format!("{key}=99999999999")], &[&quoted, "at most"]);
        says(&[&format!("{key}=many")], &[&quoted, "whole number"]);
        says(&[&format!("{key}=1.5")], &[&quoted, "whole number"]);
    }
    says(&["training.seed=-1"], &["`training.seed`"]);
}

#[test]
fn impossible_quantities_name_their_key() {
    for key in ["cluster.compute", "cluster.preprocess", "cluster.network", "cluster.source.link"] {
        let quoted = format!("`{key}`");
        says(&[&format!("{key}=-3 MB/s")], &[&quoted, "negative"]);
        says(&[&format!("{key}=0 MB/s")], &[&quoted]);
        says(&[&format!("{key}=3 MB")], &[&quoted, "unit"]);
        says(&[&format!("{key}=100")], &[&quoted, "MB/s"]);
        says(&[&format!("{key}=[]")], &[&quoted]);
    }
    says(&["dataset.mean=-3 MB"], &["`dataset.mean`", "negative"]);
    says(&["dataset.mean=0 MB"], &["`dataset.mean`"]);
    says(&["dataset.mean=9 PB"], &["`dataset.mean`"]);
    says(&["cluster.tier.ram.capacity=99999 PB"], &["`cluster.tier`"]);
}

#[test]
fn compute_and_preprocessing_have_two_forms_each() {
    let per_sample = with(&["cluster.compute_per_sample=2 ms"]).unwrap().system.compute;
    assert_eq!(per_sample.time(3, 200e6), Seconds(2.006));
    let constant = BASE.replace("compute = \"100 MB/s\"", "compute_per_sample = \"2 ms\"");
    let constant = Scenario::from_str(&constant, &[]).unwrap().system.compute;
    assert_eq!(constant.time(3, 200e6), Seconds(0.006));
    let table = |throughput: &str| format!("[{{ size = \"1 MB\", throughput = {throughput} }}]");
    let table = table("[[1, \"10 MB/s\"], [3, \"20 MB/s\"]]");
    let system = with(&[&format!("cluster.preprocess={table}")]).unwrap().system;
    let mut work = PreprocessWork::default();
    system.preprocess.add(&mut work, 30_000_000);
    let times = [1.0, 2.0, 99.0].map(|threads| system.preparing_time(&work, threads));
    assert_eq!(times, [3.0, 2.0, 1.5].map(Seconds));

    says(&["cluster.compute_per_sample=0 s"], &["`cluster.compute_per_sample`", "leave it out"]);
    says(&["cluster.compute_per_sample=1e9 h"], &["`cluster.compute_per_sample`"]);
    says(&["cluster.compute_per_sample=99999999 h"], &["`cluster.compute_per_sample`", "at most"]);
    let preprocess = |value: &str, parts: &[&str]| {
        says(
            &[&format!("cluster.preprocess={value}")],
            &[&["`cluster.preprocess"], parts].concat(),
        );
    };
    preprocess("[]", &["at least one sample size"]);
    preprocess("[4]", &["`cluster.preprocess", "a table"]);
    preprocess("[{ size = \"1 MB\" }]", &["0.throughput` is missing"]);
    preprocess("[{ throughput = [[1, \"1 MB/s\"]] }]", &["0.size` is missing"]);
    preprocess("[{ size = 0, throughput = [[1, \"1 MB/s\"]] }]", &["size of zero"]);
    preprocess("[{ size = 7, throughput = [] }]", &["0.throughput`", "at least one"]);
    preprocess("[{ size = 7, throughput = [[0, \"1 MB/s\"]] }]", &["0.throughput`", "at least 1"]);
    preprocess("[{ size = 7, throughputs = [] }]", &["`cluster.preprocess.0.throughput`"]);
    let twice = "{ size = 7, throughput = [[1, \"1 MB/s\"]] }";
    preprocess(&format!("[{twice}, {twice}]"), &["the size 7 B twice"]);
}

#[test]
fn impossible_choices_and_shapes_name_their_key() {
    says(&["training.scheme=unifrom"], &["`training.scheme`", "`uniform`"]);
    says(&["training.order=random"], &["`training.order`", "torch"]);
    says(&["training.drop_last=maybe"], &["`training.drop_last`"]);
    says(&["cluster.tier=[]"], &["`cluster.tier`", "staging"]);
    says(&["cluster.tier=4"], &["`cluster.tier`"]);
    says(&["cluster.source=4"], &["`cluster.source`", "expected a table"]);
    says(&["cluster.tier.ram.name=staging"], &["`cluster.tier.1.name`", "another tier"]);
    for (curve, part) in [
        ("[]", "at least one"),
        ("[[1, \"-3 MB/s\"]]", "negative"),
        ("[[1, \"0 MB/s\"]]", "at least 1 B/s"),
        ("[[0, \"1 MB/s\"]]", "at least 1"),
        ("[[1, \"1 MB/s\"], [1, \"2 MB/s\"]]", "twice"),
        ("[[1]]", "expected a pair"),
        ("[7]", "expected a pair"),
    ] {
        let set = format!("cluster.source.throughput={curve}");
        says(&[&set], &["`cluster.source.throughput", part]);
    }
}

#[test]
fn samples_can_be_drawn_by_weight_and_from_parts() {
    let drawn = |sets: &[&str], epoch| {
        let job = with(sets).unwrap().job().unwrap();
        let order = job.stream.ask(epoch).unwrap().unwrap();
        assert_eq!(job.stream.config().ranks, 4);
        (order.iterations(), order.samples().to_vec())
    };
    let distinct = |samples: &[u32]| samples.iter().collect::<std::collections::HashSet<_>>().len();
    // Of 10,000 draws with replacement about 1 - 1/e are distinct.
    let uniform = ["training.order=weighted"];
    let (iterations, samples) = drawn(&uniform, 0);
    assert_eq!((iterations, samples.len()), (100, 10_000));
    assert!(distinct(&samples).abs_diff(6_321) < 200, "{}", distinct(&samples));
    assert_eq!(drawn(&uniform, 0), drawn(&uniform, 0));
    assert_ne!(drawn(&uniform, 0), drawn(&uniform, 1));
    assert_ne!(drawn(&uniform, 0), drawn(&["training.order=weighted", "training.seed=1"], 0));
    let without = [
        "training.order=weighted",
        "training.replacement=false",
        "training.length=4000",
        "training.weights={kind = \"zipf\", exponent = 1.2}",
    ];
    let (iterations, samples) = drawn(&without, 0);
    assert_eq!((iterations, samples.len(), distinct(&samples)), (40, 4_000, 4_000));
    let classes = [
        "training.order=weighted",
        "training.weights.kind=classes",
        "training.weights.fractions=[0.9, 0.1]",
    ];
    let rare = drawn(&classes, 0).1.iter().filter(|&&sample| sample >= 9_000).count();
    assert!(rare.abs_diff(5_000) < 250, "a tenth of the samples, half of the draws: {rare}");
    let mixture = [
        "training.order=mixture",
        "training.part=[{fraction = 0.2, weight = 3}, {fraction = 0.5}]",
        "training.length=8000",
    ];
    let (iterations, samples) = drawn(&mixture, 0);
    assert_eq!(iterations, 80);
    let first = samples.iter().filter(|&&sample| sample < 2_000).count();
    assert!(first.abs_diff(6_000) < 200, "{first}");
    assert!(samples.iter().all(|&sample| sample < 7_000), "the rest is in no part");
}

#[test]
fn impossible_draws_name_their_key() {
    let weighted = "training.order=weighted";
    let mixture = "training.order=mixture";
    says(&["training.order=wieghted"], &["`training.order`", "`weighted`", "mixture"]);
    says(&["training.length=9"], &["`training.length`", "weighted", "mixture"]);
    says(&["training.replacement=true"], &["`training.replacement`", "weighted"]);
    says(&["training.weights.kind=zipf"], &["`training.weights`", "weighted"]);
    says(&[weighted, "training.part=[{fraction = 1}]"], &["`training.part`", "mixture"]);
    says(&[weighted, "training.length=0"], &["`training.length`", "at least 1"]);
    says(&[weighted, "training.length=60"], &["`training.batch`", "60 samples", "drop_last"]);
    let without = "training.replacement=false";
    says(&[weighted, without, "training.length=10001"], &["`training.length`", "10001", "10000"]);
    says(&[weighted, "training.weights={}"], &["`training.weights.kind` is missing"]);
    says(&[weighted, "training.weights.kind=zip"], &["`training.weights.kind`", "`zipf`"]);
    says(&[weighted, "training.weights.knid=zipf"], &["`training.weights.kind`?"]);
    let zipf = "training.weights.kind=zipf";
    for exponent in ["-1", "11", "nan", "inf"] {
        let set = format!("training.weights.exponent={exponent}");
        says(&[weighted, zipf, &set], &["`training.weights.exponent`", "from 0 to 10"]);
    }
    says(&[weighted, zipf, "training.weights.fractions=[1.0]"], &["`training.weights.fractions`"]);
    let classes = "training.weights.kind=classes";
    says(&[weighted, classes], &["`training.weights.fractions` is missing"]);
    for fractions in ["[]", "[0.9, 0.2]", "[0.5, -0.5]", "[nan]"] {
        let set = format!("training.weights.fractions={fractions}");
        says(&[weighted, classes, &set], &["`training.weights.fractions`", "fraction"]);
    }
    says(&[mixture], &["`training.part` is missing"]);
    says(&[mixture, "training.part=[{}]"], &["`training.part.0.fraction` is missing"]);
    says(&[mixture, "training.part=[{fraction = 1, weight = -1}]"], &["`training.part.0.weight`"]);
    says(&[mixture, "training.part=[{fraction = 1, weight = 0}]"], &["`training.part`", "weight"]);
    says(
        &[mixture, "training.part=[{fraction = 0.6}, {fraction = 0.6}]"],
        &["`training.part`", "1.2"],
    );
    says(&[mixture, "training.part=[{fraction = 1e-9}]"], &["`training.part`", "no samples"]);
    says(&[mixture, "training.part=[{fraction = 1, wait = 1}]"], &["`training.part.0.weight`?"]);
    says(&[weighted, "training.scheme=whole"], &["`training.scheme`", "uniform"]);
    let few = ["training.length=3", "training.drop_last=false", "training.sampler_drop_last=true"];
    says(&[&[weighted][..], &few].concat(), &["`training.sampler_drop_last`", "3 samples"]);
}

#[test]
fn nodes_can_have_tiers_of_different_sizes() {
    let ram = |set: &str| with(&[set]).map(|scenario| scenario.system.tiers[1].clone());
    let tier = ram("cluster.tier.ram.capacity=[\"3 GB\", 1000]").unwrap();
    assert_eq!(tier.capacity, Bytes(1000));
    let sizes = [3_000_000_000, 1000].map(Bytes);
    assert_eq!(tier.by_node, [sizes, sizes].concat(), "repeated for four nodes");
    let alike = ram("cluster.tier.ram.capacity=[\"3 GB\", \"3 GB\"]").unwrap();
    assert_eq!((alike.capacity, alike.by_node), (Bytes(3_000_000_000), vec![]));
    // A node may have none of a tier that another has.
    assert_eq!(ram("cluster.tier.ram.capacity=[\"3 GB\", 0]").unwrap().capacity, Bytes(0));
    let key = "`cluster.tier.ram.capacity`";
    says(&["cluster.tier.ram.capacity=[1, 2, 3, 4, 5]"], &[key, "5 capacities", "4 nodes"]);
    says(&["cluster.tier.ram.capacity=[]"], &[key, "empty"]);
    says(&["cluster.tier.ram.capacity=[[1]]"], &["`cluster.tier.ram.capacity", "size"]);
    says(&["cluster.tier.ram.capacity=[1, -2]"], &["`cluster.tier.ram.capacity", "size"]);
    says(&["cluster.tier.ram.capacity=true"], &["`cluster.tier.ram.capacity`", "list"]);
    says(&["cluster.tier.staging.capacity=[0, \"9 GB\"]"], &["`cluster.tier.staging.capacity`"]);
    says(&["cluster.tier.ram.capacity=[1, \"4000 PB\"]"], &["`cluster.tier`", "4 EiB"]);
    assert_eq!(with(&["cluster.tier.ram.capacity=[0, 0]"]).unwrap().system.tiers.len(), 1);
}

#[test]
fn contradictions_are_refused() {
    says(&["dataset.path=/tmp"], &["`dataset.samples`", "`dataset.path`"]);
    says(&["dataset.min=2 MB", "dataset.max=1 MB"], &["`dataset.min`", "`dataset.max`"]);
    says(&["dataset.min=2 MB"], &["`dataset.min`", "mean"]);
    says(&["dataset.max=2 KB"], &["`dataset.max`", "mean"]);
    says(&["dataset.distribution=constant"], &["`dataset.stddev`", "constant"]);
    says(&["dataset.total=10"], &["`dataset.total`"]);
    says(&["dataset.files=20000"], &["`dataset.files`"]);
    says(&["training.batch=102"], &["`training.batch`", "multiple of 4"]);
    says(&["training.batch=3", "training.scheme=contiguous"], &["`training.batch`"]);
    says(&["training.batch=20000"], &["`training.batch`", "drop_last"]);
    let many = ["dataset.samples=100000", "training.batch=4", "training.epochs=1000000"];
    says(&many, &["`training.epochs`", "25000000000 steps"]);
    says(&["cluster.nodes=65534", "cluster.ranks_per_node=20"], &["`cluster.ranks_per_node`"]);
    assert!(with(&["training.batch=102", "training.scheme=contiguous"]).is_ok());
}

#[test]
fn what_does_not_fit_into_the_staging_buffer_is_refused() {
    let key = "`cluster.tier.staging.capacity`";
    says(&["cluster.tier.staging.capacity=1 MB"], &[key, "two batches"]);
    says(&["cluster.tier.staging.capacity=20 KB"], &[key, "largest sample"]);
    // Two batches of 25 samples of 27 KB are 1.35 MB; four ranks on a node need four times that.
    let enough = "cluster.tier.staging.capacity=1.36 MB";
    assert!(with(&[enough]).unwrap().job().is_ok());
    says(&[enough, "cluster.ranks_per_node=4", "training.batch=400"], &[key, "two batches"]);
}

#[test]
fn policies_are_checked_by_name_and_option() {
    let add = |lines: &str| {
        Scenario::from_str(&format!("{BASE}\n[[policy]]\n{lines}"), &[]).unwrap_err().to_string()
    };
    let unknown = add("name = \"beladi\"");
    assert!(unknown.contains("`policy.0.name`") && unknown.contains("`belady`"), "{unknown}");
    for (policy, option) in [
        ("lru", "in_order = true"),
        ("nopfs", "tau = \"1 ms\""),
        ("lobster", "loading_threads = 3"),
        ("staging", "eviction = true"),
        ("belady", "availability = \"known\""),
        ("lobster", "preprocessing_threads = 3"),
        // More than the two that the tier has.
        ("staging", "loading_threads = 3"),
        ("nopfs", "preprocessing_threads = 3"),
        // Without threads that load.
        ("nopfs", "preprocessing_threads = 1"),
    ] {
        let text = add(&format!("name = \"{policy}\"\n{option}"));
        let key = option.split(' ').next().unwrap();
        assert!(text.contains(&format!("`policy.{policy}.{key}`")), "{text}");
    }
    assert!(add("label = \"x\"").contains("`policy.0.name` is missing"));
    for (option, words) in [
        ("tau = \"soon\"", "`policy.lobster.tau` is `soon`; it must be a duration such as 5ms"),
        ("tau = -1", "`policy.lobster.tau` is `-1`; it must be a duration"),
        ("threads = 3", "`policy.lobster.threads` is `3`; it must be true or false"),
        ("in_order = true", "is not an option of `lobster`, which has threads, eviction, tau"),
        (
            "treads = true",
            "unknown key `policy.lobster.treads`; did you mean `policy.lobster.threads`",
        ),
    ] {
        let text = add(&format!("name = \"lobster\"\n{option}"));
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn missing_keys_are_named() {
    for (line, key) in [
        ("samples = 10_000", "dataset.samples"),
        ("mean = \"0.027 MB\"", "dataset.mean"),
        ("epochs = 10", "training.epochs"),
        ("batch = 100", "training.batch"),
        ("nodes = 4", "cluster.nodes"),
        ("compute = \"100 MB/s\"", "cluster.compute"),
        ("link = \"2000 MB/s\"", "cluster.source.link"),
        ("capacity = \"51200 MB\"", "cluster.tier.ram.capacity"),
        ("name = \"ram\"", "cluster.tier.1.name"),
    ] {
        let error = Scenario::from_str(&BASE.replace(line, ""), &[]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{key}` is missing")), "{error}");
    }
    assert!(Scenario::from_str("", &[]).unwrap_err().to_string().contains("dataset.samples"));
}

#[test]
fn syntax_errors_come_with_their_line_and_files_with_their_path() {
    let broken = BASE.replace("nodes = 4", "nodes = = 4");
    let error = Scenario::from_str(&broken, &[]).unwrap_err().to_string();
    assert!(error.starts_with("line 12 "), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.toml");
    let error = Scenario::load(&path, &[]).unwrap_err().to_string();
    assert!(error.contains("broken.toml"), "{error}");
    std::fs::write(&path, broken).unwrap();
    let error = Scenario::load(&path, &[]).unwrap_err().to_string();
    assert!(error.contains("broken.toml: line 12"), "{error}");
    std::fs::write(&path, [0xFF, 0xFE]).unwrap();
    assert!(Scenario::load(&path, &[]).is_err());
    assert!(Scenario::load(folder.path(), &[]).is_err());
}

#[test]
fn a_real_directory_gives_its_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for index in 0..200_usize {
        std::fs::write(data.join(format!("{index:03}")), vec![0; index + 1]).unwrap();
    }
    let drawn = "samples = 10_000\nmean = \"0.027 MB\"\nstddev = \"0.01 MB\"";
    let text = BASE.replace(drawn, "path = \"data\"").replace("name = \"small\"", "");
    let path = folder.path().join("real.toml");
    std::fs::write(&path, &text).unwrap();
    let scenario = Scenario::load(&path, &[]).unwrap();
    assert_eq!(scenario.name, "real");
    let job = scenario.job().unwrap();
    assert_eq!((job.sizes.len(), job.sizes.get(41)), (200, 42));
    let set = Set::parse("training.batch=400").unwrap();
    let error = Scenario::load(&path, &[set]).unwrap().job().unwrap_err().to_string();
    assert!(error.contains("`training.batch`"), "{error}");
}

/// The scenarios of a folder, by name, each of which makes a job.
fn jobs_of(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let names =
        entries.filter(|path| path.extension().is_some_and(|end| end == "toml")).map(|path| {
            let scenario = Scenario::load(&path, &[]).unwrap();
            assert_eq!(Some(scenario.name.as_str()), path.file_stem().unwrap().to_str());
            assert!(scenario.policies.iter().any(|spec| spec.kind == PolicyKind::Belady));
            scenario.job().unwrap();
            scenario.name
        });
    names.collect()
}

#[test]
fn every_shipped_scenario_makes_a_job() {
    let (papers, classes) = (jobs_of(&shipped()), jobs_of(&shipped().join("classes")));
    assert_eq!((papers.len(), classes.len()), (19, 11), "{papers:?} {classes:?}");
}

/// The totals that the papers print, and where their samples are all alike, samples × mean.
#[test]
fn shipped_datasets_have_the_printed_totals() {
    for (name, total) in [
        ("hdmlp-1", 270_000_000),
        ("hdmlp-4", 1_200_000_000_000),
        ("nopfs-mnist", 38_000_000),
        ("nopfs-imagenet-1k", 135_000_000_000),
        ("nopfs-imagenet-22k", 1_500_000_000_000),
        ("nopfs-cosmoflow-512", 10_000_000_000_000),
        ("lobster-imagenet-22k-8nodes", 1_300_000_000_000),
        ("monarch-200gib", 200 << 30),
    ] {
        let scenario = Scenario::load(&shipped().join(format!("{name}.toml")), &[]).unwrap();
        assert_eq!(scenario.job().unwrap().sizes.total(), Bytes(total), "{name}");
    }
}
