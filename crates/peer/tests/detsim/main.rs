//! The protocol of many nodes, simulated: real plans, the real [`belady_peer::protocol`], a virtual
//! network and virtual time. Everything that happens by chance comes from a seed, so a run that fails
//! fails again.
//!
//! A node stages batches as far as its ring reaches ([`load`]): the policy says where each sample is, and
//! it is asked for there. Steps end in order ([`end`]), consumers take batches ([`world`]), and nodes
//! talk ([`talk`]). The world loses, doubles, delays and garbles messages, cuts links, kills nodes and
//! spoils what lies in tiers.

mod dice;
mod end;
mod load;
mod message;
mod node;
mod scenario;
mod shelf;
mod talk;
mod world;

use belady_control::policy::PolicyKind;

use scenario::{NOPFS, Scenario, Trouble};
use world::{Outcome, World};

fn run(scenario: Scenario) -> Outcome {
    World::new(scenario).run()
}

#[test]
fn with_room_for_all_nothing_is_read_twice_whatever_the_skew() {
    for seed in seeds() {
        let scenario = Scenario::draw(seed, PolicyKind::Belady, true, Trouble::NONE);
        let shown = format!("{scenario:?}");
        let outcome = run(scenario);
        let later = &outcome.source_reads[1..];
        assert!(
            outcome.planned_reads[1..].iter().sum::<u64>() > 0
                || later.iter().all(|&reads| reads == 0),
            "seed {seed}: {outcome:?}\n{shown}"
        );
    }
}

#[test]
fn epochs_are_exact_whatever_breaks() {
    let trouble = Trouble { lost: 100, doubled: 50, garbled: 50, bad_tier: 200, incidents: 10 };
    for seed in seeds() {
        let policy = if seed % 3 == 0 { NOPFS } else { PolicyKind::Belady };
        run(Scenario::draw(seed, policy, seed % 2 == 0, trouble));
    }
}

/// All seeds, or the one that is to be looked at: `SEED=17 cargo nextest run -p belady-peer detsim`.
fn seeds() -> std::ops::Range<u64> {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..1000,
    }
}
