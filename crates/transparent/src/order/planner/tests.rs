//! The planner with a simulated launcher: files of known sizes, levels with limited space, a
//! program that reads them, and a source with any delay.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct TestLauncher {
    sizes: Vec<u64>,
    /// Free bytes of the levels, for copies to keep.
    left: u64,
    window: u64,
    kept: HashSet<NameId>,
    refused: HashSet<NameId>,
    /// In the window.
    present: HashSet<NameId>,
    in_flight: Vec<(NameId, FetchKind)>,
    evicted: Vec<NameId>,
    hits: usize,
    reads: usize,
}

impl TestLauncher {
    fn new(sizes: &[u64], left: u64, window: u64) -> Self {
        Self { sizes: sizes.to_vec(), left, window, ..Self::default() }
    }

    fn size(&self, name: NameId) -> u64 {
        self.sizes[name.0 as usize]
    }

    fn copy_state(&self, name: NameId) -> CopyState {
        if self.kept.contains(&name) || self.present.contains(&name) {
            CopyState::HasCopy
        } else if self.refused.contains(&name) {
            CopyState::Refused { bytes: self.size(name) }
        } else {
            CopyState::Unknown
        }
    }

    /// Carries out the planner's actions. An evicted copy is released at once unless it is kept
    /// open.
    fn act(&mut self, planner: &mut FetchPlanner, keeps_open: impl Fn(NameId) -> bool) {
        loop {
            let mut evicts = false;
            for action in planner.plan(|name| self.copy_state(name)) {
                match action {
                    Action::Fetch(name, kind) => {
                        assert_ne!(
                            self.copy_state(name),
                            CopyState::HasCopy,
                            "{name:?} has a copy"
                        );
                        assert!(
                            self.in_flight.iter().all(|&(other, _)| other != name),
                            "{name:?} twice"
                        );
                        self.in_flight.push((name, kind));
                    }
                    Action::Evict(name) => {
                        assert!(self.present.remove(&name), "{name:?} is not in the window");
                        if keeps_open(name) {
                            self.evicted.push(name);
                        } else {
                            assert_eq!(planner.released(name), self.size(name));
                        }
                        evicts = true;
                    }
                }
                self.check();
            }
            if !evicts {
                return;
            }
        }
    }

    /// Checks that the copies in the window do not exceed it.
    fn check(&self) {
        let in_flight = self.in_flight.iter().map(|&(_, kind)| match kind {
            FetchKind::Keep => 0,
            FetchKind::Transient { bytes } => bytes,
        });
        let others = self.present.iter().chain(&self.evicted).map(|&name| self.size(name));
        let used: u64 = in_flight.chain(others).sum();
        assert!(used <= self.window, "{used} of {}", self.window);
    }

    fn finish(&mut self, planner: &mut FetchPlanner, which: usize, fails: bool) {
        let (name, kind) = self.in_flight.remove(which % self.in_flight.len());
        let bytes = self.size(name);
        let outcome = match kind {
            _ if fails => FetchOutcome::Failed,
            FetchKind::Keep if bytes > self.left => {
                self.refused.insert(name);
                FetchOutcome::NoSpace { bytes }
            }
            FetchKind::Keep => {
                self.left -= bytes;
                self.kept.insert(name);
                FetchOutcome::Kept { bytes }
            }
            FetchKind::Transient { bytes: expected } => {
                assert_eq!(expected, bytes);
                self.present.insert(name);
                FetchOutcome::Kept { bytes }
            }
        };
        planner.fetched(name, outcome);
    }

    fn open(&mut self, planner: &mut FetchPlanner, name: NameId) {
        self.reads += 1;
        self.hits += usize::from(self.copy_state(name) == CopyState::HasCopy);
        planner.opened(vec![name]);
    }
}

fn names(files: usize) -> Vec<NameId> {
    (0..files as u32).map(NameId).collect()
}

fn open_all(planner: &mut FetchPlanner, order: &[NameId]) {
    for &name in order {
        planner.opened(vec![name]);
    }
}

const AHEAD: Lookahead = Lookahead { files: 8, bytes: 1000 };

proptest! {
    /// Whatever is opened and whenever fetches end or fail, no file is fetched twice at a time or
    /// while it has a copy, and the window is never exceeded. The simulated launcher asserts that.
    #[test]
    fn the_window_is_never_exceeded(
        sizes in prop::collection::vec(0u64..40, 4..40),
        left in 0u64..400,
        window in 0u64..100,
        learns in any::<bool>(),
        steps in prop::collection::vec((0u8..8, 0usize..40), 0..400),
    ) {
        let order = names(sizes.len());
        let mut launcher = TestLauncher::new(&sizes, left, window);
        let mut planner = if learns {
            FetchPlanner::learning(&order, AHEAD, 3, window)
        } else {
            FetchPlanner::following(&order, AHEAD, 3, window)
        };
        let mut next = 0;
        for (what, number) in steps {
            match what {
                0..=2 => {
                    launcher.open(&mut planner, order[next % order.len()]);
                    next += 1;
                }
                3 => launcher.open(&mut planner, order[number % order.len()]),
                4..=6 if !launcher.in_flight.is_empty() => launcher.finish(&mut planner, number, what == 6),
                7 if !launcher.evicted.is_empty() => {
                    let name = launcher.evicted.swap_remove(number % launcher.evicted.len());
                    prop_assert_eq!(planner.released(name), launcher.size(name));
                }
                _ => {}
            }
            launcher.act(&mut planner, |name| (name.0 as usize + number).is_multiple_of(3));
            prop_assert!(launcher.in_flight.len() <= 3);
        }
    }

    /// With a source that is faster than the program, each file has a copy when it is opened,
    /// however little fits on the levels; also in the first epoch if the order is given.
    #[test]
    fn a_fast_source_makes_every_open_a_hit(
        sizes in prop::collection::vec(1u64..10, 8..60),
        left in 0u64..200,
        epochs in 1usize..4,
    ) {
        let order = names(sizes.len());
        let window = 60;
        let mut launcher = TestLauncher::new(&sizes, left, window);
        let mut planner = FetchPlanner::following(&order, AHEAD, 2, window);
        launcher.act(&mut planner, |_| false);
        for _ in 0..epochs {
            for &name in &order {
                while !launcher.in_flight.is_empty() {
                    launcher.finish(&mut planner, 0, false);
                    launcher.act(&mut planner, |_| false);
                }
                launcher.open(&mut planner, name);
                launcher.act(&mut planner, |_| false);
            }
        }
        prop_assert_eq!(launcher.hits, launcher.reads);
    }

    /// Learnt in the first epoch, in force in the second.
    #[test]
    fn a_learnt_order_makes_hits_from_the_second_epoch(sizes in prop::collection::vec(1u64..10, 32..100)) {
        let order = names(sizes.len());
        let window = 60;
        let mut launcher = TestLauncher::new(&sizes, 0, window);
        let mut planner = FetchPlanner::learning(&[], AHEAD, 2, window);
        for epoch in 0..3 {
            launcher.hits = 0;
            for &name in &order {
                launcher.open(&mut planner, name);
                launcher.act(&mut planner, |_| false);
                while !launcher.in_flight.is_empty() {
                    launcher.finish(&mut planner, 0, false);
                    launcher.act(&mut planner, |_| false);
                }
            }
            let least = match epoch {
                0 => 0,
                // Without the files that showed that the epoch begins the same way.
                1 => order.len() - super::super::evidence(order.len()),
                _ => order.len(),
            };
            prop_assert!(launcher.hits >= least, "{} hits in epoch {epoch} of {}", launcher.hits, order.len());
        }
        prop_assert!(planner.is_following());
        prop_assert_eq!(planner.learnt(), Some(&order[..]));
    }
}

/// The program reads faster than the source delivers. Late files would only slow it down.
#[test]
fn files_that_would_arrive_late_are_not_fetched_from_a_slow_source() {
    let sizes = vec![1; 400];
    let order = names(sizes.len());
    let mut launcher = TestLauncher::new(&sizes, 0, 32);
    let mut planner = FetchPlanner::following(&order, AHEAD, 4, 32);
    let mut too_late = 0;
    let mut at = 0;
    let mut arrivals: Vec<(usize, NameId)> = vec![];
    launcher.act(&mut planner, |_| false);
    // A tick is the time in which the program reads a file from the source; a fetch takes five.
    for tick in 0..3000 {
        for &(name, _) in &launcher.in_flight {
            if !arrivals.iter().any(|&(_, other)| other == name) {
                arrivals.push((tick + 5, name));
            }
        }
        while let Some(ready) = arrivals.iter().position(|&(when, _)| when <= tick) {
            let (_, name) = arrivals.remove(ready);
            let which = launcher.in_flight.iter().position(|&(other, _)| other == name).unwrap();
            let was_opened = (at.max(20) - 20..at).any(|past| order[past % order.len()] == name);
            let passes = launcher.in_flight[which].1 != FetchKind::Keep;
            too_late += usize::from(was_opened && passes);
            launcher.finish(&mut planner, which, false);
        }
        // Reading a copy takes no time.
        for _ in 0..10 {
            let name = order[at % order.len()];
            let is_hit = launcher.copy_state(name) == CopyState::HasCopy;
            launcher.open(&mut planner, name);
            at += 1;
            if !is_hit {
                break;
            }
        }
        launcher.act(&mut planner, |_| false);
    }
    // Four fetches of five ticks each beside one read a tick: at most 0.8 of 1.8 files can be hits.
    assert!(
        launcher.hits * 100 >= launcher.reads * 30,
        "{} hits of {}",
        launcher.hits,
        launcher.reads
    );
    assert!(too_late * 10 <= launcher.hits, "{too_late} of {} arrived too late", launcher.hits);
}

#[test]
fn missing_files_are_counted_once_and_skipped() {
    let order = names(6);
    let mut planner = FetchPlanner::following(&order, AHEAD, 1, 0);
    let mut asked = vec![];
    for _ in 0..3 {
        while let [Action::Fetch(name, FetchKind::Keep)] = planner.plan(|_| CopyState::Unknown)[..]
        {
            asked.push(name.0);
            let there = name.0.is_multiple_of(2);
            planner.fetched(name, if there { FetchOutcome::Failed } else { FetchOutcome::Absent });
        }
        open_all(&mut planner, &order);
    }
    assert_eq!(asked, [0, 1, 2, 3, 4, 5, 0, 2, 4, 0, 2, 4]);
    assert_eq!(planner.tally, PrefetchTally { absent: 3, ..PrefetchTally::default() });
}

#[test]
fn a_file_larger_than_the_window_is_left_to_the_program() {
    let order = names(3);
    let mut planner = FetchPlanner::following(&order, AHEAD, 9, 10);
    let copy_state =
        |name: NameId| CopyState::Refused { bytes: if name == NameId(1) { 11 } else { 5 } };
    let fetched = planner.plan(copy_state);
    let kind = FetchKind::Transient { bytes: 5 };
    assert_eq!(fetched, [Action::Fetch(NameId(0), kind), Action::Fetch(NameId(2), kind)]);
}

#[test]
fn an_order_that_is_no_longer_in_force_fetches_nothing() {
    let order = names(64);
    let mut planner = FetchPlanner::learning(&order, AHEAD, 2, 100);
    let copy_state = |_| CopyState::Refused { bytes: 1 };
    for name in &order[..8] {
        planner.opened(vec![*name]);
    }
    assert!(planner.is_following());
    for action in planner.plan(copy_state) {
        let Action::Fetch(name, _) = action else { panic!("{action:?}") };
        planner.fetched(name, FetchOutcome::Failed);
    }
    open_all(&mut planner, &order);
    open_all(&mut planner, &order.iter().rev().copied().collect::<Vec<_>>());
    assert!(!planner.is_following());
    assert_eq!(planner.plan(copy_state), []);
}
