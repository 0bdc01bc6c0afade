//! Our samplers beside what a real torch gave, from `scripts/golden_torch.py`.

use std::fs;
use std::path::Path;

use belady_control::sampler::mt19937::Mt19937;
use belady_control::sampler::orders::{LoaderOrders, RankOrders};
use belady_control::sampler::torch::{self, Draws, RandomSampler};
use belady_control::sampler::{AccessStream, Order, OrderProvider, Scheme, StreamConfig};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct File<Case> {
    cases: Vec<Case>,
}

fn cases<Case: DeserializeOwned>(name: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.json"));
    let text = fs::read_to_string(path).unwrap();
    serde_json::from_str::<File<Case>>(&text).unwrap().cases
}

/// An order in full, or what is left of one that is too long for a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Golden {
    Whole { order: Vec<u32> },
    Summary { length: usize, fingerprint: String, spots: Vec<(usize, u32)> },
}

impl Golden {
    fn check(&self, ours: &[u32], case: &str) {
        match self {
            Self::Whole { order } => assert_eq!(ours, order, "{case}"),
            Self::Summary { length, fingerprint: theirs, spots } => {
                assert_eq!(ours.len(), *length, "{case}");
                for &(at, sample) in spots {
                    assert_eq!(ours[at], sample, "{case}, entry {at}");
                }
                assert_eq!(format!("{:016x}", fingerprint(ours)), *theirs, "{case}");
            }
        }
    }
}

/// The script's `fingerprint`.
fn fingerprint(order: &[u32]) -> u64 {
    order.iter().enumerate().fold(0, |sum, (at, &sample)| {
        let odd = 2 * at as u64 + 1;
        let mixed = (u64::from(sample) + odd).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum.wrapping_add((mixed ^ (mixed >> 32)).wrapping_mul(odd))
    })
}

#[derive(Deserialize)]
struct State {
    next: usize,
    fnv: String,
}

impl State {
    fn check(&self, generator: &Mt19937, case: &str) {
        let (words, next) = generator.words();
        let fnv = words.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &word| {
            (hash ^ u64::from(word)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!((next, format!("{fnv:016x}")), (self.next, self.fnv.clone()), "{case}");
    }
}

#[derive(Deserialize)]
struct Randperm {
    n: u32,
    /// As Python writes it: negative, or beyond an i64.
    seed: i128,
    #[serde(flatten)]
    golden: Golden,
    state: State,
}

impl Randperm {
    fn check(&self) {
        let case = format!("randperm({}) with seed {}", self.n, self.seed);
        let mut generator = Mt19937::new(self.seed as u64);
        self.golden.check(&torch::randperm(self.n, &mut generator), &case);
        self.state.check(&generator, &case);
        let mut skipped = Mt19937::new(self.seed as u64);
        skipped.skip(torch::randperm_draws(self.n));
        self.state.check(&skipped, &case);
    }
}

/// Seconds and a gigabyte each, so they run in a test of their own.
fn at_the_threshold(case: &Randperm) -> bool {
    case.n > torch::LARGE / 2
}

#[test]
fn randperm_is_torchs_below_the_threshold() {
    let cases = cases::<Randperm>("randperm");
    assert!(cases.len() > 100);
    cases.iter().filter(|case| !at_the_threshold(case)).for_each(Randperm::check);
}

#[test]
fn randperm_is_torchs_on_both_sides_of_the_threshold() {
    let mut cases = cases::<Randperm>("randperm");
    cases.retain(at_the_threshold);
    assert!(cases.iter().any(|case| case.n == torch::LARGE - 1));
    assert!(cases.iter().any(|case| case.n == torch::LARGE));
    cases.iter().for_each(Randperm::check);
}

#[derive(Deserialize)]
struct Distributed {
    samples: u32,
    ranks: u32,
    rank: u32,
    seed: i128,
    epoch: u32,
    drop_last: bool,
    #[serde(flatten)]
    golden: Golden,
}

#[test]
fn distributed_is_torchs_distributed_sampler() {
    for case in cases::<Distributed>("distributed") {
        let Distributed { samples, ranks, rank, seed, epoch, drop_last, ref golden } = case;
        let ours = torch::distributed(samples, ranks, rank, seed as u64, epoch, drop_last);
        let name = format!("{samples} samples, rank {rank}/{ranks}, seed {seed}, epoch {epoch}");
        golden.check(&ours, &format!("{name}, drop_last {drop_last}"));
    }
}

#[derive(Deserialize)]
struct Loader {
    samples: u32,
    ranks: u32,
    local_batch: u32,
    seed: i128,
    epoch: u32,
    sampler_drop_last: bool,
    drop_last: bool,
    /// By rank and iteration.
    batches: Vec<Vec<Vec<u32>>>,
}

#[test]
fn uniform_streams_have_the_batches_of_torchs_loader() {
    for case in cases::<Loader>("distributed_loader") {
        let stream = AccessStream::new(StreamConfig {
            samples: case.samples,
            ranks: case.ranks,
            batch: case.local_batch * case.ranks,
            order: Order::Torch,
            scheme: Scheme::Uniform,
            seed: case.seed as u64,
            sampler_drop_last: case.sampler_drop_last,
            drop_last: case.drop_last,
        });
        let Ok(stream) = stream else {
            assert!(case.batches.iter().all(Vec::is_empty), "torch has batches, we have none");
            continue;
        };
        let epoch = stream.epoch(case.epoch);
        for (rank, theirs) in case.batches.iter().enumerate() {
            let ours: Vec<Vec<u32>> = (0..epoch.iterations())
                .map(|iteration| epoch.batch(rank as u32, iteration).collect())
                .collect();
            assert_eq!(ours, *theirs, "rank {rank} of {}, {} samples", case.ranks, case.samples);
            let config = stream.config().clone();
            let orders = RankOrders::new(rank as u32, case.local_batch, config).unwrap();
            let list = orders.epoch(case.epoch).unwrap().unwrap();
            assert_eq!(list.batches(), *theirs);
            let largest = theirs.iter().map(|batch| batch.len() as u32).max();
            assert_eq!(orders.largest_batch(), largest);
        }
    }
}

#[derive(Deserialize)]
struct Random {
    draws: String,
    samples: u32,
    seed: i128,
    batch: u32,
    drop_last: bool,
    left_early: Vec<usize>,
    epochs: Vec<RandomEpoch>,
}

#[derive(Deserialize)]
struct RandomEpoch {
    #[serde(flatten)]
    golden: Golden,
    state: State,
}

impl Random {
    fn draws(&self) -> Draws {
        match self.draws.as_str() {
            "sampler-alone" => Draws::SamplerAlone,
            "through-loader" => Draws::ThroughLoader,
            "through-persistent-loader" => Draws::ThroughPersistentLoader,
            other => panic!("draws {other}"),
        }
    }

    fn used(&self) -> usize {
        let dropped = if self.drop_last { self.samples % self.batch } else { 0 };
        (self.samples - dropped) as usize
    }

    /// Whether the sampler learns that it is at its end: always when iterated to
    /// it, and also by filling an incomplete last batch.
    fn exhausted(&self, epoch: usize) -> bool {
        let short_batch = !self.drop_last && !self.samples.is_multiple_of(self.batch);
        !self.left_early.contains(&epoch) || short_batch
    }
}

#[test]
fn random_sampler_draws_what_torchs_draws_alone_and_through_its_loader() {
    for case in cases::<Random>("random_sampler") {
        let mut sampler = RandomSampler::new(case.samples, case.seed as u64, case.draws());
        for (epoch, golden) in case.epochs.iter().enumerate() {
            let name = format!(
                "{} of {}, seed {}, batch {}, epoch {epoch}",
                case.draws, case.samples, case.seed, case.batch
            );
            let order = if case.exhausted(epoch) {
                sampler.next_epoch()
            } else {
                sampler.next_epoch_left_early()
            };
            golden.golden.check(&order[..case.used()], &name);
            golden.state.check(sampler.state(), &name);
        }
    }
}

#[test]
fn whole_streams_are_torchs_random_sampler_in_any_order_of_asking() {
    for case in cases::<Random>("random_sampler") {
        if case.draws != "sampler-alone" || !case.left_early.is_empty() {
            continue;
        }
        for scheme in [Scheme::Whole, Scheme::Imbalanced] {
            let stream = AccessStream::new(StreamConfig {
                samples: case.samples,
                ranks: 3,
                batch: case.batch,
                order: Order::Torch,
                scheme,
                seed: case.seed as u64,
                sampler_drop_last: false,
                drop_last: case.drop_last,
            })
            .unwrap();
            for (epoch, golden) in case.epochs.iter().enumerate().rev() {
                let name = format!("{scheme:?} of {}, epoch {epoch}", case.samples);
                golden.golden.check(stream.epoch(epoch as u32).samples(), &name);
            }
        }
    }
}

#[test]
fn loader_orders_are_torchs_loader_in_any_order_of_asking_and_from_any_epoch() {
    for case in cases::<Random>("random_sampler") {
        let name = format!("{} of {}, seed {}", case.draws, case.samples, case.seed);
        let sampler = RandomSampler::new(case.samples, case.seed as u64, case.draws());
        // Up to the first epoch that is left early; the run continues from its generator's state.
        let mut first = 0;
        let mut orders = LoaderOrders::new(sampler, case.batch, case.drop_last).unwrap();
        for (epoch, golden) in case.epochs.iter().enumerate() {
            let at = epoch as u32 - first;
            assert_eq!(orders.number(at), epoch as u32);
            let list = orders.epoch(at).unwrap().unwrap();
            golden.golden.check(&list.batches().concat(), &name);
            let after = if case.exhausted(epoch) {
                orders.before(at + 1).state().clone()
            } else {
                orders.left_early(at)
            };
            golden.state.check(&after, &name);
            if !case.exhausted(epoch) || epoch == 2 {
                first = epoch as u32 + 1;
                let saved = Mt19937::from_bytes(&after.to_bytes()).unwrap();
                let sampler =
                    RandomSampler::from_state(case.samples, case.draws(), u64::from(first), saved);
                orders = LoaderOrders::new(sampler, case.batch, case.drop_last).unwrap();
            }
        }
        let sampler = RandomSampler::new(case.samples, case.seed as u64, case.draws());
        let orders = LoaderOrders::new(sampler, case.batch, case.drop_last).unwrap();
        if case.left_early.is_empty() {
            for (epoch, golden) in case.epochs.iter().enumerate().rev() {
                let list = orders.epoch(epoch as u32).unwrap().unwrap();
                golden.golden.check(&list.batches().concat(), &name);
            }
        }
    }
}

#[derive(Deserialize)]
struct Saved {
    #[serde(rename = "saved")]
    before: String,
    epochs: Vec<Vec<Vec<u32>>>,
    after: String,
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn a_run_goes_on_from_the_state_that_torch_saved_and_leaves_torchs_state() {
    for case in cases::<Saved>("generator_state") {
        let mut bytes = from_hex(&case.before);
        let generator = Mt19937::from_torch(&bytes).unwrap();
        let sampler = RandomSampler::from_state(20, Draws::ThroughLoader, 0, generator);
        let orders = LoaderOrders::new(sampler, 6, true).unwrap();
        for (epoch, theirs) in case.epochs.iter().enumerate() {
            let list = orders.epoch(epoch as u32).unwrap().unwrap();
            assert_eq!(list.batches(), *theirs);
        }
        assert!(orders.before(2).state().write_torch(&mut bytes));
        assert_eq!(bytes, from_hex(&case.after));
    }
}
