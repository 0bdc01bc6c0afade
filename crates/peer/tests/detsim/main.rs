//! The protocol of many nodes, simulated: real plans, the real [`belady_peer::protocol`], a virtual
//! network and virtual time. Everything that happens by chance comes from a seed, so a run that fails
//! fails again.
//!
//! A node stages batches as far as its ring reaches ([`load`]): the policy says where each sample is, and
//! it is asked for there, or read from the [`source`]. Steps end in order ([`end`]), consumers take
//! batches and check them ([`consumer`]), and nodes talk ([`talk`]). The world ([`world`]) loses, doubles,
//! delays and garbles messages ([`network`]), cuts links and kills nodes ([`trouble`]), and spoils what
//! lies in tiers ([`shelf`]).
//!
//! A run that fails names its seed: `SEED=17 cargo nextest run -p belady-peer detsim` runs it alone.
//! `SEEDS=20` runs no more than the first twenty of each test.

mod consumer;
mod dice;
mod end;
mod load;
mod message;
mod network;
mod node;
mod scenario;
mod shelf;
mod source;
mod talk;
mod trouble;
mod world;

use std::time::Duration;

use belady_control::policy::PolicyKind;

use network::DEADLINE;
use node::PATIENCE;
use scenario::{Away, Consumers, NOPFS, Scenario, Trouble};
use world::{Outcome, World};

fn run(scenario: &Scenario) -> Outcome {
    World::new(scenario.clone()).run()
}

/// So many seeds, or the one that is to be looked at.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").map_or(count, |most| count.min(most)),
    }
}

const ANYTHING: Trouble = Trouble {
    lost: 100,
    doubled: 50,
    garbled: 50,
    bad_tier: 200,
    incidents: 10,
    absences: 0,
    epochs: u32::MAX,
};

#[test]
fn with_room_for_all_nothing_is_read_twice_whatever_the_skew() {
    for seed in seeds(1000) {
        let scenario = Scenario::draw(seed, PolicyKind::Belady, true, Trouble::NONE);
        let outcome = run(&scenario);
        assert!(outcome.source_reads[1..].iter().all(|&reads| reads == 0), "{seed}: {outcome:?}");
        let all = u64::from(scenario.job.sizes.len());
        assert_eq!(outcome.source_reads[0], all, "{seed}: {outcome:?}");
    }
}

#[test]
fn what_is_read_from_the_source_is_what_the_plan_says_whatever_the_room() {
    for seed in seeds(500) {
        let scenario = Scenario::draw(seed, PolicyKind::Belady, false, Trouble::NONE);
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
fn a_plan_heals_when_trouble_is_over() {
    for seed in seeds(300) {
        let trouble = Trouble { epochs: 2, ..ANYTHING };
        let mut scenario = Scenario::draw(seed, PolicyKind::Belady, true, trouble);
        scenario.extend_to(8);
        scenario.consumers = Consumers::Together;
        // An epoch takes longer than a peer is left alone after a failure.
        scenario.compute.fill((50_000, 100_000));
        let outcome = run(&scenario);
        // A copy that was lost, and on which the plan counts again only now, is read once more.
        let few = u64::from(scenario.job.sizes.len()) / 100 + 1;
        assert!(outcome.source_reads[7] <= few, "{seed}: {outcome:?}");
    }
}

#[test]
fn every_node_ends_when_nodes_disappear_and_return() {
    for seed in seeds(500) {
        let absences = 1 + seed % 8;
        let trouble = Trouble { absences, epochs: u32::MAX, ..Trouble::NONE };
        let mut scenario = Scenario::draw(seed, PolicyKind::Belady, seed % 2 == 0, trouble);
        scenario.extend_to(6);
        if seed % 4 != 0 {
            scenario.consumers = Consumers::Apart;
        }
        // A run is longer than what happens in it, and has an outbox that one call may fill.
        scenario.compute.fill((20_000, 80_000));
        scenario.outbox = [300, 500, 2_000][seed as usize % 3];
        run(&scenario);
    }
}

#[test]
fn a_node_that_is_away_costs_the_others_no_more_than_waiting_for_it_once() {
    for seed in seeds(150) {
        let mut scenario = Scenario::draw(seed, PolicyKind::Belady, true, Trouble::NONE);
        scenario.extend_to(6);
        scenario.consumers = Consumers::Apart;
        scenario.compute.fill((40_000, 40_000));
        // Reading its samples from the source takes no time to speak of.
        scenario.source = Duration::from_micros(20);
        let without = run(&scenario).done_at;
        let from = Duration::from_secs(1 + seed % 5);
        let until = from + Duration::from_millis(500 + 700 * (seed % 30));
        let node = (seed % u64::from(scenario.job.system.nodes)) as u32;
        scenario.away = Some(Away { node, from, until, killed: seed % 3 == 0 });
        let with = run(&scenario).done_at;
        // Its silence is noticed, a batch is waited for, and what it was given is let go.
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
