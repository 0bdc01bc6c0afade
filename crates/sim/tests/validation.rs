//! What the papers published beside what the shipped scenarios give, and what `belady`
//! promises in every one of them. docs/validation-details.md has the tables and the reasons.
//!
//! Scenarios of more than [`LIMIT`] samples are scaled down: samples, bytes, capacities
//! and files by the same factor. Rates and the batch stay, so an epoch has fewer
//! iterations that are each like before, and every share (what fits, how far the ring
//! reaches, what binds) is as in the full one. `BELADY_FULL_SCENARIOS=1` runs them in full.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belady_control::model::{Bytes, Sharing};
use belady_control::policy::PolicyKind;
use belady_scenario::dataset::SizeOrigin;
use belady_scenario::{PolicySpec, Scenario, Set};
use belady_sim::outcome::RunOutcome;
use belady_sim::run::run;

/// The largest of HDMLP's: its published seconds are of the full size.
const LIMIT: u32 = 400_000;

type Outcomes = BTreeMap<String, RunOutcome>;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

/// A shipped scenario, scaled down if it is large, and by how much.
fn load(name: &str, sets: &[&str]) -> (Scenario, u32) {
    let sets: Vec<Set> = sets.iter().map(|set| Set::parse(set).unwrap()).collect();
    let mut scenario = Scenario::load(&folder().join(format!("{name}.toml")), &sets).unwrap();
    let SizeOrigin::Synthetic(dataset) = &mut scenario.dataset.origin else {
        panic!("{name} needs files that are not here")
    };
    if std::env::var_os("BELADY_FULL_SCENARIOS").is_some() {
        return (scenario, 1);
    }
    let factor = dataset.samples.div_ceil(LIMIT);
    dataset.samples /= factor;
    dataset.total = dataset.total.map(|total| Bytes(total.0 / u64::from(factor)));
    scenario.dataset.files = scenario.dataset.files.map(|files| files / factor);
    for tier in &mut scenario.system.tiers {
        tier.capacity = Bytes(tier.capacity.0 / u64::from(factor));
    }
    (scenario, factor)
}

fn outcomes(scenario: &Scenario) -> Outcomes {
    let all = run(scenario, &[], &|_, _, _| {}).unwrap();
    all.into_iter().map(|outcome| (outcome.policy.clone(), outcome)).collect()
}

/// Runs some policies of a scenario, or all that it names.
fn simulate(name: &str, sets: &[&str], policies: &[&str]) -> Outcomes {
    let (mut scenario, _) = load(name, sets);
    if !policies.is_empty() {
        scenario.select(policies).unwrap();
    }
    outcomes(&scenario)
}

/// Collects what does not hold, so that one failure does not hide the others.
#[derive(Default)]
struct Verdict(Vec<String>);

impl Verdict {
    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(what());
        }
    }

    /// A published value that is not met: `ours` is off by that many per cent, and by neither more
    /// nor less, so that a change which brings it closer changes docs/validation-details.md too.
    fn off_by(&mut self, what: &str, ours: f64, published: f64, per_cent: f64) {
        let off = 100.0 * (ours / published - 1.0);
        self.expect((off - per_cent).abs() <= 0.5, || {
            format!(
                "{what}: {ours:.3}, published {published:.3}: {off:+.1} %, not {per_cent:+.1} %"
            )
        });
    }

    /// `ours` within `tolerance` of `published`.
    fn near(&mut self, what: &str, ours: f64, published: f64, tolerance: f64) {
        let off = ours / published - 1.0;
        self.expect(off.abs() <= tolerance, || {
            format!("{what}: {ours:.2}, published {published:.2} ({:+.1} %)", 100.0 * off)
        });
    }
}

impl Drop for Verdict {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.0.is_empty(), "\n{}", self.0.join("\n"));
        }
    }
}

// ---------------------------------------------------------------------------
// HDMLP (section 5.2)

/// Tables 5.1 to 5.4 in seconds; 0 where the policy cannot run.
const HDMLP: [(&str, [f64; 4]); 10] = [
    ("perfect", [7.30, 3_825.66, 7_655.25, 15_204.78]),
    ("naive", [27.78, 15_130.54, 30_272.96, 60_526.36]),
    ("nopfs", [7.78, 3_836.12, 7_661.26, 16_795.17]),
    ("staging", [10.24, 4_982.27, 9_945.29, 19_888.26]),
    ("deepio-ordered", [8.41, 4_433.27, 23_948.24, 54_122.52]),
    ("deepio-opportunistic", [8.40, 4_432.90, 8_487.42, 16_034.89]),
    ("parallel-staging", [10.11, 4_972.65, 9_313.58, 16_861.82]),
    ("lbann-dynamic", [7.71, 4_051.12, 0.0, 0.0]),
    ("lbann-preload", [8.41, 4_433.27, 0.0, 0.0]),
    ("locality-aware", [8.41, 4_433.27, 9_314.33, 19_082.99]),
];

fn hdmlp(scenario: usize) {
    let mut verdict = Verdict::default();
    let names: Vec<&str> = HDMLP.iter().map(|row| row.0).collect();
    let ours = simulate(&format!("hdmlp-{scenario}"), &[], &names);
    let rows = HDMLP.map(|(name, published)| (name, published[scenario - 1], &ours[name]));
    for (name, published, outcome) in rows {
        verdict.expect(outcome.supported == (published > 0.0), || {
            format!("{name} runs where the paper's does not, or the reverse")
        });
        if published > 0.0 {
            let tolerance = match name {
                "perfect" => 0.01,
                "naive" => 0.05,
                "nopfs" => 0.10,
                _ => 0.20,
            };
            verdict.near(name, outcome.seconds, published, tolerance);
        }
    }
    for (fast, published_fast, fast_run) in rows {
        for (slow, published_slow, slow_run) in rows {
            if published_fast > 0.0 && published_slow > 1.1 * published_fast {
                verdict.expect(fast_run.seconds < slow_run.seconds, || {
                    format!(
                        "{fast} is published ahead of {slow}: {:.1} s and {:.1} s",
                        fast_run.seconds, slow_run.seconds
                    )
                });
            }
        }
    }
}

#[test]
fn hdmlp_table_5_1() {
    hdmlp(1);
}

#[test]
fn hdmlp_table_5_2() {
    hdmlp(2);
}

#[test]
fn hdmlp_table_5_3() {
    hdmlp(3);
}

#[test]
fn hdmlp_table_5_4() {
    hdmlp(4);
}

/// Tables 5.5 and 5.6: the tier, its capacity, seconds.
const ENVIRONMENT: [(&str, &str, f64); 6] = [
    ("ram", "10240 MB", 9_554.47),
    ("ram", "20480 MB", 9_239.67),
    ("ram", "40960 MB", 8_613.13),
    ("storage", "20480 MB", 9_579.53),
    ("storage", "40960 MB", 9_257.99),
    ("storage", "81920 MB", 8_703.59),
];

/// The one entry beyond 10 %.
const FORTY_GB_OF_RAM: (&str, &str) = ("ram", "40960 MB");

fn environment(network: &str, policy: &str, sets: &[&str]) -> f64 {
    let network = format!("cluster.network={network}");
    let mut all = vec!["cluster.tier.ram.capacity=0", &network];
    all.extend(sets);
    simulate("hdmlp-environment", &all, &[policy])[policy].seconds
}

#[test]
fn hdmlp_environment() {
    let mut verdict = Verdict::default();
    verdict.near("no storage", environment("10000 MB/s", "naive", &[]), 30_275.72, 0.05);
    verdict.near("lower bound", environment("10000 MB/s", "perfect", &[]), 7_655.47, 0.01);
    for capacity in ["1024 MB", "2048 MB", "4096 MB"] {
        let set = format!("cluster.tier.staging.capacity={capacity}");
        verdict.near(&set, environment("10000 MB/s", "nopfs", &[&set]), 9_947.0, 0.10);
    }
    for (tier, capacity, published) in ENVIRONMENT {
        let set = format!("cluster.tier.{tier}.capacity={capacity}");
        if (tier, capacity) != FORTY_GB_OF_RAM {
            verdict.near(&set, environment("10000 MB/s", "nopfs", &[&set]), published, 0.10);
        }
        // The published times are those of local hits alone.
        verdict.near(
            &format!("{set}, peers out of reach"),
            environment("1 MB/s", "nopfs", &[&set]),
            published,
            0.02,
        );
    }
}

/// Peers in reach, our run is bound by compute; the published one is not.
#[test]
fn not_met_40_gb_of_ram_take_8613_s_ours_is_10_9_percent_faster() {
    let ours = environment("10000 MB/s", "nopfs", &["cluster.tier.ram.capacity=40960 MB"]);
    Verdict::default().off_by("40 GB of RAM", ours, 8_613.13, -10.9);
}

// ---------------------------------------------------------------------------
// NoPFS (sections 2, 6.1 and 6.2)

#[test]
fn access_frequencies() {
    use belady_control::model::frequency::AccessLaw;
    let round = |x: f64| (10.0 * x).round() / 10.0;
    let imagenet = AccessLaw::new(90, 16);
    assert_eq!(round(imagenet.expected_above(1_281_167, 0.8)), 31_634.7);
    assert_eq!(imagenet.more_than(0.8), 11);
    let small = AccessLaw::new(1_000, 4);
    assert_eq!(round(small.expected_above(10_000, 0.1)), 322.9);
    assert_eq!(small.more_than(0.1), 276);
}

#[test]
fn nopfs_figure_8() {
    let mut verdict = Verdict::default();
    for name in [
        "nopfs-mnist",
        "nopfs-imagenet-1k",
        "nopfs-openimages",
        "nopfs-imagenet-22k",
        "nopfs-cosmoflow",
        "nopfs-cosmoflow-512",
    ] {
        let runs = simulate(
            name,
            &[],
            &["perfect", "nopfs", "deepio-ordered", "deepio-opportunistic", "lbann-dynamic"],
        );
        let perfect = runs["perfect"].seconds;
        let share = |policy: &str| runs[policy].seconds / perfect;
        verdict.expect(share("nopfs") < 1.01, || {
            format!("{name}: nopfs is close to the lower bound, ours {:.3}", share("nopfs"))
        });
        let large = ["nopfs-imagenet-22k", "nopfs-cosmoflow", "nopfs-cosmoflow-512"];
        if large.contains(&name) {
            verdict.expect(!runs["lbann-dynamic"].supported, || format!("{name}: LBANN runs"));
            verdict.expect(share("deepio-ordered") > 1.2, || {
                format!("{name}: ordered DeepIO is poor, ours {:.3}", share("deepio-ordered"))
            });
            verdict.expect(share("deepio-opportunistic") < 1.05, || {
                format!("{name}: opportunistic DeepIO does well")
            });
        }
    }
}

/// "1.7 x slower than the best": the printed rates give 1/385 + 1/200 + 1/64 over 1/64, which is
/// 1.49.
#[test]
fn not_met_naive_is_1_7_times_the_best_on_mnist_ours_is_1_49() {
    let mnist = simulate("nopfs-mnist", &[], &["perfect", "naive", "staging", "nopfs"]);
    let best = mnist["nopfs"].seconds.min(mnist["staging"].seconds);
    Verdict::default().off_by("naive on MNIST", mnist["naive"].seconds / best, 1.7, -12.6);
}

/// Hours of `perfect` and of `nopfs` with a staging buffer alone.
fn nopfs_environment() -> (f64, f64) {
    // The epochs are not printed; two of draws clipped at zero give the printed bound.
    let (mut scenario, factor) = load(
        "nopfs-environment",
        &[
            "training.epochs=2",
            "dataset.clamp=true",
            "dataset.total=2058 GB",
            "cluster.tier.ram.capacity=0",
            "cluster.tier.ssd.capacity=0",
        ],
    );
    scenario.select(&["perfect", "nopfs"]).unwrap();
    let runs = outcomes(&scenario);
    let hours = |policy: &str| runs[policy].seconds * f64::from(factor) / 3600.0;
    (hours("perfect"), hours("nopfs"))
}

#[test]
fn nopfs_environment_lower_bound() {
    Verdict::default().near("lower bound in hours", nopfs_environment().0, 1.06, 0.02);
}

/// A worker needs 320 MB/s and the printed t(4)/4 alone gives it 385 MB/s, so by the printed model
/// staging hides all of it.
#[test]
fn not_met_staging_alone_takes_1_64_h_ours_is_35_percent_faster() {
    Verdict::default().off_by("staging alone in hours", nopfs_environment().1, 1.64, -35.1);
}

// ---------------------------------------------------------------------------
// Lobster (section 5)

#[test]
fn lobster_hit_ratios_and_ablation() {
    let mut verdict = Verdict::default();
    let one = simulate("lobster-imagenet-1k-1node", &[], &[]);
    let eight = simulate("lobster-imagenet-1k-8nodes", &[], &[]);
    // Figure 11, which is of one node: both, threads alone, eviction alone, DALI.
    for (fast, slow) in [
        ("lobster", "lobster-threads"),
        ("lobster-threads", "lobster-eviction"),
        ("lobster-eviction", "dali"),
    ] {
        verdict.expect(one[fast].seconds < one[slow].seconds, || {
            format!("{fast} takes {} s, {slow} {} s", one[fast].seconds, one[slow].seconds)
        });
    }
    for runs in [&one, &eight] {
        // Hits after the first epoch, by bytes: in it a policy that prefetches into a cache
        // counts as a hit what it has just read from the source.
        let hits = |policy: &str| {
            let outcome = &runs[policy];
            let sum = |bytes: &[u64]| bytes[1..].iter().sum::<u64>() as f64;
            1.0 - sum(&outcome.source_bytes_per_epoch) / sum(&outcome.distinct_bytes_per_epoch)
        };
        verdict.expect(hits("lobster") >= hits("nopfs") - 1e-3, || {
            format!("hits of lobster {} and nopfs {}", hits("lobster"), hits("nopfs"))
        });
        for baseline in ["pytorch", "dali"] {
            verdict.expect(hits("nopfs") > hits(baseline), || {
                format!("hits of nopfs {} and {baseline} {}", hits("nopfs"), hits(baseline))
            });
        }
    }
}

fn factor(runs: &Outcomes, policy: &str) -> f64 {
    runs[policy].seconds / runs["lobster"].seconds
}

#[test]
fn lobster_is_ahead_of_nopfs_and_pytorch_by_the_published_factors() {
    let mut verdict = Verdict::default();
    let one = simulate(
        "lobster-imagenet-1k-1node",
        &[],
        &["dali", "nopfs", "lobster", "lobster-eviction"],
    );
    let eight = simulate("lobster-imagenet-1k-8nodes", &[], &["pytorch", "lobster"]);
    verdict.near("nopfs on one node", factor(&one, "nopfs"), 1.2, 0.1);
    verdict.near("pytorch on eight nodes", factor(&eight, "pytorch"), 1.4, 0.1);
    let eviction = one["dali"].seconds / one["lobster-eviction"].seconds;
    verdict.near("eviction alone beside DALI", eviction, 1.15, 0.1);
    verdict.near("GPU use of nopfs", busy(&one["nopfs"]), 0.724, 0.1);
    verdict.near("GPU use of lobster", busy(&one["lobster"]), 0.761, 0.1);
}

/// The share of the run in which the mean GPU computes.
fn busy(outcome: &RunOutcome) -> f64 {
    outcome.mean_compute_seconds / outcome.seconds
}

/// A cache of 40 GB cannot serve more than 29.6 % of 135 GB; what the paper counts beyond that is not
/// said.
#[test]
fn not_met_lobsters_hit_ratios_ours_are_below_the_share_that_the_cache_holds() {
    let mut verdict = Verdict::default();
    let one = simulate("lobster-imagenet-1k-1node", &[], &[]);
    for (policy, published, off) in [
        ("pytorch", 0.245, -100.0),
        ("dali", 0.326, -100.0),
        ("nopfs", 0.489, -44.7),
        ("lobster", 0.632, -55.9),
    ] {
        let hits = 1.0 - one[policy].hit_ratio.source;
        verdict.off_by(&format!("hits of {policy}"), hits, published, off);
    }
}

/// PyTorch's numbers of threads for loading and preprocessing are not printed, nor the rate of
/// Lustre, which decides what DALI's three loading threads read.
#[test]
fn not_met_lobsters_speed_ups_and_gpu_use() {
    let mut verdict = Verdict::default();
    let one = simulate("lobster-imagenet-1k-1node", &[], &[]);
    for (policy, published, off) in [("pytorch", 1.6, -27.3), ("dali", 1.7, -31.5)] {
        verdict.off_by(&format!("{policy} on one node"), factor(&one, policy), published, off);
    }
    let threads = one["dali"].seconds / one["lobster-threads"].seconds;
    verdict.off_by("threads alone beside DALI", threads, 1.3, -14.7);
    for (policy, published, off) in [("pytorch", 0.523, 36.1), ("dali", 0.575, 23.6)] {
        let ours = busy(&one[policy]);
        verdict.off_by(&format!("GPU use of {policy}"), ours, published, off);
    }
}

// ---------------------------------------------------------------------------
// MONARCH (section IV)

/// Reads of the source by epoch, and opens.
fn operations(outcome: &RunOutcome) -> (Vec<f64>, Vec<f64>) {
    let ops = &outcome.source_ops_per_epoch;
    (
        ops.iter().map(|ops| ops.read as f64).collect(),
        ops.iter().map(|ops| ops.open as f64).collect(),
    )
}

/// Returns the shares of reads and of opens that `monarch` saves. `kept` is the share of the dataset
/// that its disk holds.
fn fewer(scenario: &str, sets: &[&str], kept: f64) -> (f64, f64) {
    // In full: scaled down, the first batch of each file would weigh more.
    let sets: Vec<Set> = sets.iter().map(|set| Set::parse(set).unwrap()).collect();
    let mut file = Scenario::load(&folder().join(format!("{scenario}.toml")), &sets).unwrap();
    file.select(&["lustre", "monarch"]).unwrap();
    let runs = outcomes(&file);
    let ((lustre, lustre_opens), (monarch, opens)) =
        (operations(&runs["lustre"]), operations(&runs["monarch"]));
    // What does not fit on the disk is read again in every epoch, by file and by byte.
    for epoch in 1..lustre.len() {
        assert!((1.0 - monarch[epoch] / lustre[epoch] - kept).abs() < 0.01);
        assert!((1.0 - opens[epoch] / lustre_opens[epoch] - kept).abs() < 0.01);
    }
    let saved = |with: &[f64], without: &[f64]| {
        1.0 - with.iter().sum::<f64>() / without.iter().sum::<f64>()
    };
    (saved(&monarch, &lustre), saved(&opens, &lustre_opens))
}

/// What fits on the disk of 115 GiB.
const KEPT_OF_200_GIB: f64 = 115.0 / 200.0;

#[test]
fn monarch_source_operations() {
    let (reads, _) = fewer("monarch-200gib", &[], KEPT_OF_200_GIB);
    Verdict::default().near("fewer reads with ResNet-50", reads, 0.56, 0.05);
}

/// Bound by the source, our copies do not get ahead of the job in the first epoch; 38 % is what the
/// later ones save.
#[test]
fn not_met_lenet_reads_50_percent_less_ours_38() {
    let (reads, _) = fewer("monarch-200gib-lenet", &[], KEPT_OF_200_GIB);
    Verdict::default().off_by("fewer reads with LeNet", reads, 0.5, -23.2);
}

#[test]
fn not_met_alexnet_reads_56_percent_less_ours_38() {
    let sets = ["cluster.source.throughput=[[1, \"180.5 MB/s\"]]", "cluster.compute=54.35 MB/s"];
    let (reads, _) = fewer("monarch-200gib-lenet", &sets, KEPT_OF_200_GIB);
    Verdict::default().off_by("fewer reads with AlexNet", reads, 0.56, -31.5);
}

/// PyTorch also opens files that are not the dataset's, in every epoch.
#[test]
fn not_met_pytorch_opens_half_as_often_ours_67_and_38_percent_less() {
    let mut verdict = Verdict::default();
    for (scenario, rate, compute, kept, off) in [
        ("monarch-100gib", "69.4 MB/s", "76.70 MB/s", 1.0, 33.3),
        ("monarch-200gib-lenet", "64.8 MB/s", "46.89 MB/s", KEPT_OF_200_GIB, -23.4),
    ] {
        let rate = format!("cluster.source.throughput=[[1, \"{rate}\"]]");
        let compute = format!("cluster.compute={compute}");
        let (_, opens) = fewer(scenario, &[&rate, &compute], kept);
        verdict.off_by(&format!("fewer opens, {scenario}"), opens, 0.5, off);
    }
}

/// Large reads of Lustre are faster than small ones; our source has one rate, so copying ahead of
/// the job gains nothing in the first epoch. The rates are those of the published `lustre` and
/// `local`.
#[test]
fn not_met_monarchs_times_with_its_models() {
    let mut verdict = Verdict::default();
    let minutes = |name: &str, sets: &[&str], policy: &str| {
        let (mut scenario, factor) = load(name, sets);
        scenario.select(&[policy]).unwrap();
        outcomes(&scenario)[policy].seconds * f64::from(factor) / 60.0
    };
    for (what, name, sets, policy, published, off) in MONARCH_NOT_MET {
        verdict.off_by(what, minutes(name, sets, policy), published, off);
    }
}

type NotMet = (&'static str, &'static str, &'static [&'static str], &'static str, f64, f64);

/// What, the scenario and its changes, the policy, published minutes and by how many per cent ours
/// are off. scripts/validate.py works out the rates.
const MONARCH_NOT_MET: [NotMet; 11] = [
    ("LeNet, 100 GiB, cache", "monarch-100gib", &[], "cache", 14.4, -13.1),
    ("LeNet, 100 GiB", "monarch-100gib", &[], "monarch", 11.8, 14.9),
    ("LeNet, 200 GiB", "monarch-200gib-lenet", &[], "monarch", 33.4, 9.0),
    ("AlexNet, 100 GiB", "monarch-100gib", &["cluster.compute=88.89 MB/s"], "monarch", 14.0, 29.8),
    (
        "PyTorch, LeNet, 100 GiB",
        "monarch-100gib",
        &["cluster.source.throughput=[[1, \"69.4 MB/s\"]]", "cluster.compute=76.70 MB/s"],
        "monarch",
        20.1,
        111.9,
    ),
    (
        "PyTorch, LeNet, 200 GiB",
        "monarch-200gib-lenet",
        &["cluster.source.throughput=[[1, \"64.8 MB/s\"]]", "cluster.compute=46.89 MB/s"],
        "monarch",
        107.7,
        20.0,
    ),
    (
        "AlexNet, 200 GiB",
        "monarch-200gib-lenet",
        &["cluster.source.throughput=[[1, \"180.5 MB/s\"]]", "cluster.compute=54.35 MB/s"],
        "monarch",
        47.0,
        21.7,
    ),
    (
        "PyTorch, AlexNet, 100 GiB",
        "monarch-100gib",
        &["cluster.source.throughput=[[1, \"69.5 MB/s\"]]", "cluster.compute=83.37 MB/s"],
        "monarch",
        17.8,
        133.3,
    ),
    (
        "PyTorch, ResNet-50, 100 GiB",
        "monarch-100gib",
        &["cluster.source.throughput=[[1, \"63.9 MB/s\"]]", "cluster.compute=19.20 MB/s"],
        "monarch",
        72.4,
        14.3,
    ),
    (
        "PyTorch, AlexNet, 200 GiB",
        "monarch-200gib-lenet",
        &["cluster.source.throughput=[[1, \"64.9 MB/s\"]]", "cluster.compute=50.97 MB/s"],
        "monarch",
        104.2,
        22.0,
    ),
    (
        "PyTorch, ResNet-50, 200 GiB",
        "monarch-200gib-lenet",
        &["cluster.source.throughput=[[1, \"44.7 MB/s\"]]", "cluster.compute=11.74 MB/s"],
        "monarch",
        228.0,
        10.8,
    ),
];

// ---------------------------------------------------------------------------
// What `belady` promises

fn changes_the_order(kind: PolicyKind) -> bool {
    matches!(
        kind,
        PolicyKind::DeepioOpportunistic | PolicyKind::ParallelStaging | PolicyKind::LocalityAware
    )
}

/// Where `belady` is more than 3 % above the bound, and how far. A node's threads load and
/// preprocess there in turn and are too few to do both in the time of compute, which does not vary
/// with a batch's bytes; the bound counts each of the two as if it had all threads.
const NOT_MET_OF_BOUND: [(&str, f64); 2] =
    [("lobster-imagenet-1k-1node", 1.091), ("lobster-imagenet-22k-1node", 1.057)];

fn belady(name: &str) {
    let (mut scenario, _) = load(name, &[]);
    scenario.system.source.sharing = Sharing::Aggregate;
    let missing: Vec<PolicySpec> = PolicyKind::ALL
        .into_iter()
        .filter(|kind| scenario.policies.iter().all(|spec| spec.kind.name() != kind.name()))
        .map(PolicySpec::from)
        .collect();
    scenario.policies.extend(missing);
    let runs = outcomes(&scenario);
    let belady = &runs["belady"];
    let mut verdict = Verdict::default();

    let cache = u64::from(scenario.system.nodes) * scenario.system.cache_capacity().0;
    let epochs = belady.source_bytes_per_epoch.len();
    for epoch in 0..epochs {
        let distinct = belady.distinct_bytes_per_epoch[epoch];
        let read = belady.source_bytes_per_epoch[epoch];
        if epoch == 0 {
            verdict.expect(read == distinct, || {
                format!("{name}: the first epoch reads {read} B, of which {distinct} B distinct")
            });
            continue;
        }
        let again = read - belady.first_reads_per_epoch[epoch];
        let allowed = distinct.saturating_sub(cache) + distinct / 100;
        verdict.expect(again <= allowed, || {
            format!("{name}: epoch {epoch} reads {again} B again, {allowed} B are allowed")
        });
    }

    let of_bound = belady.seconds / belady.bound_seconds;
    match NOT_MET_OF_BOUND.iter().find(|(scenario, _)| *scenario == name) {
        None => verdict.expect(of_bound <= 1.03, || format!("{name}: {of_bound:.4} of the bound")),
        Some(&(_, measured)) => verdict.expect((of_bound - measured).abs() <= 0.005, || {
            format!("{name}: {of_bound:.4} of the bound, not {measured}")
        }),
    }

    let transit = u64::from(scenario.system.nodes) * scenario.system.tiers[0].capacity.0;
    for spec in &scenario.policies {
        let other = &runs[&spec.label];
        let starts_full = matches!(spec.kind, PolicyKind::Perfect | PolicyKind::Local);
        if !other.supported || starts_full || changes_the_order(spec.kind) {
            continue;
        }
        verdict.expect(belady.seconds <= 1.005 * other.seconds, || {
            format!("{name}: belady {:.1} s, {} {:.1} s", belady.seconds, spec.label, other.seconds)
        });
        // What a ring holds at an epoch's start was read in the epoch before: at most
        // that share of an epoch may be hidden there.
        let share = transit as f64 / belady.distinct_bytes_per_epoch[0] as f64;
        let hidden = (share.min(1.0) * (epochs - 1) as f64 / epochs as f64).max(0.01);
        verdict.expect(other.seconds >= (1.0 - hidden) * other.bound_seconds, || {
            format!(
                "{name}: {} takes {:.1} s, the bound is {:.1} s",
                spec.label, other.seconds, other.bound_seconds
            )
        });
    }

    let imbalanced = belady.imbalanced_iterations_after_first;
    let on_the_threshold = (0.03..=0.08).contains(&belady.mean_wait_share);
    if runs["lobster"].imbalanced_iterations_after_first >= 0.05 && !on_the_threshold {
        verdict.expect(imbalanced <= 0.02, || {
            format!("{name}: {:.1} % of iterations imbalanced", 100.0 * imbalanced)
        });
    }
}

macro_rules! belady_in {
    ($($test:ident: $scenario:literal,)*) => {
        $(#[test] fn $test() { belady($scenario); })*

        #[test]
        fn no_scenario_is_left_out() {
            let tested = [$($scenario),*];
            for entry in std::fs::read_dir(folder()).unwrap() {
                let path = entry.unwrap().path();
                // Those of folders are no paper's.
                if path.is_dir() {
                    continue;
                }
                let name = path.file_stem().unwrap().to_str().unwrap();
                assert!(tested.contains(&name), "{name} is shipped and not tested");
            }
        }
    };
}

belady_in! {
    belady_in_hdmlp_1: "hdmlp-1",
    belady_in_hdmlp_2: "hdmlp-2",
    belady_in_hdmlp_3: "hdmlp-3",
    belady_in_hdmlp_4: "hdmlp-4",
    belady_in_hdmlp_environment: "hdmlp-environment",
    belady_in_lobster_imagenet_1k_1node: "lobster-imagenet-1k-1node",
    belady_in_lobster_imagenet_1k_8nodes: "lobster-imagenet-1k-8nodes",
    belady_in_lobster_imagenet_22k_1node: "lobster-imagenet-22k-1node",
    belady_in_lobster_imagenet_22k_8nodes: "lobster-imagenet-22k-8nodes",
    belady_in_monarch_100gib: "monarch-100gib",
    belady_in_monarch_200gib: "monarch-200gib",
    belady_in_monarch_200gib_lenet: "monarch-200gib-lenet",
    belady_in_nopfs_cosmoflow: "nopfs-cosmoflow",
    belady_in_nopfs_cosmoflow_512: "nopfs-cosmoflow-512",
    belady_in_nopfs_environment: "nopfs-environment",
    belady_in_nopfs_imagenet_1k: "nopfs-imagenet-1k",
    belady_in_nopfs_imagenet_22k: "nopfs-imagenet-22k",
    belady_in_nopfs_mnist: "nopfs-mnist",
    belady_in_nopfs_openimages: "nopfs-openimages",
}
