//! A deterministic simulation of many nodes: real plans, the real [`belady_peer::protocol`], a
//! virtual network and virtual time. All randomness comes from a seed, so a failing run fails
//! again.
//!
//! A node stages batches as far as its ring reaches ([`load`]): the policy says where each sample
//! is, and the node asks for it there, or reads it from the [`source`]. Steps end in order
//! ([`end`]), consumers take batches and check them ([`consumer`]), and nodes exchange messages
//! ([`talk`]). The world ([`world`]) loses, duplicates, delays and garbles messages ([`network`]),
//! cuts links and kills nodes ([`faults`]), and damages tiers ([`tier`]).
//!
//! A failing run prints its seed: `SEED=17 cargo nextest run -p belady-peer detsim` runs it alone.
//! `SEEDS=20` runs only the first twenty seeds of each test.

mod consumer;
mod end;
mod faults;
mod load;
mod message;
mod network;
mod node;
mod random;
mod scenario;
mod source;
mod talk;
mod tier;
mod world;

use std::time::Duration;

use belady_control::policy::PolicyKind;

use network::DEADLINE;
use node::PATIENCE;
use scenario::{Away, Consumers, FaultRates, NOPFS, Scenario};
use world::{Outcome, World};

fn run(scenario: &Scenario) -> Outcome {
    World::new(scenario.clone()).run()
}

/// Returns a number of seeds, or the one to look at.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").map_or(count, |most| count.min(most)),
    }
}

const ANYTHING: FaultRates = FaultRates {
    lost: 100,
    doubled: 50,
    garbled: 50,
    bad_tier: 200,
    incidents: 10,
    absences: 0,
    epochs: u32::MAX,
};

#[test]
fn with_space_for_all_nothing_is_read_twice_whatever_the_skew() {
    for seed in seeds(1000) {
        let scenario = Scenario::draw(seed, PolicyKind::Belady, true, FaultRates::NONE);
        let outcome = run(&scenario);
        assert!(outcome.source_reads[1..].iter().all(|&reads| reads == 0), "{seed}: {outcome:?}");
        let all = u64::from(scenario.job.sizes.len());
        assert_eq!(outcome.source_reads[0], all, "{seed}: {outcome:?}");
    }
}

#[test]
fn source_reads_match_the_plan_for_any_capacity() {
    for seed in seeds(500) {
        let scenario = Scenario::draw(seed, PolicyKind::Belady, false, FaultRates::NONE);
        let outcome = run(&scenario);
        assert_eq!(outcome.source_reads, outcome.planned_reads, "{seed}: {outcome:?}");
    }
}

#[test]
fn epochs_are_exact_whatever_breaks() {
    for seed in seeds(1000) {
        let policy = if seed % 3 == 0 { NOPFS } else { PolicyKind::Belady };
        run(&Scenario::draw(seed, policy, seed % 2 == 0, ANYTHING));
    }
}

#[test]
fn a_plan_recovers_when_faults_are_over() {
    for seed in seeds(300) {
        let faults = FaultRates { epochs: 2, ..ANYTHING };
        let mut scenario = Scenario::draw(seed, PolicyKind::Belady, true, faults);
        scenario.extend_to(8);
        scenario.consumers = Consumers::Together;
        // An epoch takes longer than the pause of a peer after a failure.
        scenario.compute.fill((50_000, 100_000));
        let outcome = run(&scenario);
        // A lost copy on which the plan relies again only now is read once more.
        let few = u64::from(scenario.job.sizes.len()) / 100 + 1;
        assert!(outcome.source_reads[7] <= few, "{seed}: {outcome:?}");
    }
}

#[test]
fn every_node_ends_when_nodes_disappear_and_return() {
    for seed in seeds(500) {
        let absences = 1 + seed % 8;
        let faults = FaultRates { absences, epochs: u32::MAX, ..FaultRates::NONE };
        let mut scenario = Scenario::draw(seed, PolicyKind::Belady, seed % 2 == 0, faults);
        scenario.extend_to(6);
        if seed % 4 != 0 {
            scenario.consumers = Consumers::Apart;
        }
        // A run is longer than what happens in it, and has a push queue that one call may fill.
        scenario.compute.fill((20_000, 80_000));
        scenario.push_queue = [300, 500, 2_000][seed as usize % 3];
        run(&scenario);
    }
}

#[test]
fn a_node_that_is_away_costs_the_others_no_more_than_waiting_for_it_once() {
    for seed in seeds(150) {
        let mut scenario = Scenario::draw(seed, PolicyKind::Belady, true, FaultRates::NONE);
        scenario.extend_to(6);
        scenario.consumers = Consumers::Apart;
        scenario.compute.fill((40_000, 40_000));
        // Reading its samples from the source takes negligible time.
        scenario.source = Duration::from_micros(20);
        let without = run(&scenario).done_at;
        let from = Duration::from_secs(1 + seed % 5);
        let until = from + Duration::from_millis(500 + 700 * (seed % 30));
        let node = (seed % u64::from(scenario.job.system.nodes)) as u32;
        scenario.away = Some(Away { node, from, until, killed: seed % 3 == 0 });
        let with = run(&scenario).done_at;
        // Its silence is noticed, a batch is waited for, and what was pushed to it is dropped.
        let bound = 2 * (PATIENCE + DEADLINE);
        for rank in (0..without.len()).filter(|&rank| rank != node as usize) {
            let (before, after) = (without[rank], with[rank]);
            assert!(after <= before + bound, "{seed}: rank {rank} {before:?}, then {after:?}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in seeds(20) {
        let scenario = Scenario::draw(seed, PolicyKind::Belady, false, ANYTHING);
        assert_eq!(run(&scenario), run(&scenario));
    }
}
