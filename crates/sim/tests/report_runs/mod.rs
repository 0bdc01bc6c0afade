//! Made-up but plausible outcomes: shapes as a simulation gives them, without one.

use belady_sim::outcome::{ByPlace, RunOutcome, SourceOps, TimeByCause};

const PERFECT: f64 = 15_204.78;
const BOUND: f64 = 15_390.0;
const DATASET: u64 = 1_200_000_000_000;
pub const CACHE: u64 = 900_000_000_000;

/// What a policy does, from which an outcome follows.
pub struct Sketch {
    pub policy: &'static str,
    /// Waiting in seconds: preprocessing, local, peer, source, preload.
    pub waits: [f64; 5],
    /// Share of later epochs' bytes that come from the source, a peer.
    pub source: f64,
    pub peer: f64,
    /// Share of imbalanced iterations.
    pub uneven: f64,
    /// Whether the policy can run at all.
    pub fits: bool,
}

const fn sketch(
    policy: &'static str,
    waits: [f64; 5],
    source: f64,
    peer: f64,
    uneven: f64,
) -> Sketch {
    Sketch { policy, waits, source, peer, uneven, fits: true }
}

const LBANN: [f64; 5] = [0.0, 100.0, 400.0, 900.0, 800.0];

/// Every policy of the simulator; those of LBANN cannot run.
pub fn sketches() -> Vec<Sketch> {
    vec![
        sketch("perfect", [0.0; 5], 0.0, 0.0, 0.0),
        sketch("naive", [30_408.0, 0.0, 0.0, 118_000.0, 0.0], 1.0, 0.0, 0.02),
        sketch("staging", [0.0, 0.0, 0.0, 22_700.0, 0.0], 1.0, 0.0, 0.04),
        sketch("deepio-ordered", [900.0, 0.0, 310.0, 14_100.0, 2_300.0], 0.66, 0.26, 0.31),
        sketch("deepio-opportunistic", [0.0, 0.0, 0.0, 0.0, 2_300.0], 0.0, 0.0, 0.0),
        sketch("parallel-staging", [0.0, 420.0, 0.0, 0.0, 6_150.0], 0.0, 0.0, 0.0),
        Sketch { fits: false, ..sketch("lbann-dynamic", LBANN, 0.1, 0.6, 0.05) },
        Sketch { fits: false, ..sketch("lbann-preload", LBANN, 0.1, 0.6, 0.05) },
        sketch("locality-aware", [0.0, 260.0, 180.0, 3_900.0, 5_800.0], 0.25, 0.04, 0.11),
        sketch("nopfs", [0.0, 120.0, 90.0, 1_960.0, 0.0], 0.27, 0.51, 0.12),
        sketch("lobster", [0.0, 160.0, 140.0, 2_480.0, 0.0], 0.33, 0.47, 0.08),
        sketch("monarch", [0.0, 610.0, 0.0, 9_800.0, 0.0], 0.44, 0.0, 0.21),
        sketch("lru", [0.0, 380.0, 0.0, 15_900.0, 0.0], 0.81, 0.0, 0.26),
        sketch("belady", [0.0, 20.0, 15.0, 410.0, 0.0], 0.251, 0.55, 0.004),
    ]
}

/// One outcome; `ranks` and `epochs` shape its lists, `speed` divides its time.
pub fn run(sketch: &Sketch, ranks: usize, epochs: usize, speed: f64) -> RunOutcome {
    let [preprocess, local, peer, source, preload] = sketch.waits.map(|w| w / speed);
    let compute = PERFECT / speed;
    let stall = preprocess + local + peer + source + preload;
    let seconds = compute + stall;
    let ideal = sketch.policy == "perfect";
    if !sketch.fits {
        return RunOutcome {
            scenario: "hdmlp-4".into(),
            policy: sketch.policy.into(),
            reason: Some(
                "the dataset (1.2 TB) is larger than the memory of all nodes together (480 GB)"
                    .into(),
            ),
            ..RunOutcome::default()
        };
    }
    let later = (DATASET as f64 * sketch.source) as u64;
    let mut noise = Noise(sketch.policy.bytes().map(u64::from).sum());
    let source_bytes: Vec<u64> = (0..epochs)
        .map(|e| match (ideal, e) {
            (true, _) => 0,
            (false, 0) => DATASET,
            (false, _) => later,
        })
        .collect();
    let iterations = 4_000.0 * epochs as f64;
    let share = |e: usize| source_bytes[e] as f64 / DATASET as f64;
    let total = DATASET as f64 * epochs as f64;
    let from_source: u64 = source_bytes.iter().sum();
    let from_peer = (total * sketch.peer) as u64;
    let by_rank =
        |n: &mut Noise| (later as f64 / ranks as f64 * (1.0 + sketch.uneven * n.wave())) as u64;
    RunOutcome {
        scenario: "hdmlp-4".into(),
        policy: sketch.policy.into(),
        sweep: Vec::new(),
        keeps_order: !["deepio-opportunistic", "parallel-staging", "locality-aware"]
            .contains(&sketch.policy),
        supported: true,
        reason: None,
        seconds,
        perfect_seconds: compute,
        mean_compute_seconds: compute,
        bound_seconds: BOUND / speed,
        bound_by: (0..epochs).map(|e| if e == 0 { "source" } else { "compute" }.into()).collect(),
        stall_seconds: stall,
        time: TimeByCause { compute, preload, source, peer, local, preprocess },
        preload_seconds: preload,
        epoch_seconds: vec![seconds / epochs as f64; epochs],
        source_bytes_per_epoch: source_bytes.clone(),
        bound_source_bytes_per_epoch: (0..epochs)
            .map(|e| if e == 0 { DATASET } else { 0 })
            .collect(),
        distinct_bytes_per_epoch: vec![DATASET; epochs],
        first_reads_per_epoch: (0..epochs).map(|e| if e == 0 { DATASET } else { 0 }).collect(),
        source_ops_per_epoch: (0..epochs)
            .map(|e| {
                let n = (400_000.0 * share(e)) as u64;
                SourceOps { open: n, stat: 0, read: n }
            })
            .collect(),
        bytes: ByPlace {
            source: from_source,
            peer: from_peer,
            local: (total as u64).saturating_sub(from_source + from_peer),
        },
        hit_ratio: ByPlace {
            source: from_source as f64 / total,
            peer: sketch.peer,
            local: (1.0 - from_source as f64 / total - sketch.peer).max(0.0),
        },
        imbalanced_iterations: sketch.uneven,
        imbalanced_iterations_after_first: sketch.uneven * 0.9,
        straggling_seconds: stall * sketch.uneven,
        straggling_bound_seconds: 0.0,
        mean_wait_share: stall / compute,
        peer_misses: (sketch.peer * 900.0) as u64,
        batch_seconds_quantiles: quantiles(compute / iterations, stall / iterations, 0.4),
        first_epoch_batch_seconds_quantiles: quantiles(
            compute / iterations,
            if ideal { 0.0 } else { stall / iterations + 1.1 },
            0.15,
        ),
        slow_bytes_by_rank: (0..ranks)
            .map(|_| if ideal { 0 } else { by_rank(&mut noise) })
            .collect(),
        slow_bytes_peak_over_mean: if ideal || later == 0 {
            0.0
        } else {
            1.0 + sketch.uneven * 3.0
        },
        simulated_in_seconds: 0.5,
    }
}

pub fn all(ranks: usize, epochs: usize) -> Vec<RunOutcome> {
    sketches().iter().map(|s| run(s, ranks, epochs, 1.0)).collect()
}

pub fn only(policies: &[&str], ranks: usize, epochs: usize) -> Vec<RunOutcome> {
    all(ranks, epochs).into_iter().filter(|o| policies.contains(&o.policy.as_str())).collect()
}

/// A sweep over nodes: compute scales, waiting less so; LBANN needs the memory of eight.
pub fn nodes_sweep() -> Vec<RunOutcome> {
    let mut outcomes = Vec::new();
    for nodes in [1usize, 2, 4, 8, 16, 32] {
        let speed = nodes as f64 / 4.0;
        for mut sketch in sketches() {
            let lag = if sketch.policy == "belady" { 0.1 } else { 0.9 };
            sketch.waits = sketch.waits.map(|w| w * speed.powf(lag));
            sketch.fits |= nodes >= 8;
            let mut outcome = run(&sketch, nodes, 5, speed);
            outcome.sweep = vec![("cluster.nodes".into(), nodes.to_string())];
            outcomes.push(outcome);
        }
    }
    outcomes
}

/// A sweep over RAM and SSD, as the environment evaluation of `NoPFS`.
pub fn memory_sweep(policies: &[&str]) -> Vec<RunOutcome> {
    let mut outcomes = Vec::new();
    for ram in [32, 64, 128, 256, 512] {
        for ssd in [0, 128, 256, 512, 1024] {
            for sketch in sketches().iter_mut().filter(|s| policies.contains(&s.policy)) {
                let cached = f64::from(4 * (ram + ssd)) / 1500.0;
                let missing = (1.0 - cached).max(0.0);
                sketch.waits = sketch.waits.map(|w| w * (missing + 0.05));
                let mut outcome = run(sketch, 4, 5, 5.0);
                outcome.sweep = vec![
                    ("cluster.tier.ram.capacity".into(), format!("{ram} GB")),
                    ("cluster.tier.ssd.capacity".into(), format!("{ssd} GB")),
                ];
                outcomes.push(outcome);
            }
        }
    }
    outcomes
}

/// Compute plus a wait that a few batches carry more of.
fn quantiles(compute: f64, wait: f64, tail: f64) -> Vec<f64> {
    let at = |p: i32| {
        let q = f64::from(p) / 100.0;
        let bulk = wait * (0.55 + 0.75 * q);
        let slow = wait * tail * (1.0 / (1.015 - q) - 1.0) * 0.2;
        compute * (0.985 + 0.03 * q) + bulk + slow
    };
    (0..=100).map(at).collect()
}

/// A small generator: the same numbers in every run of the tests.
struct Noise(u64);

impl Noise {
    /// From -1 to 1.
    fn wave(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1u32 << 23) - 1.0
    }
}
