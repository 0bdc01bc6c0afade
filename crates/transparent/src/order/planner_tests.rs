//! The planner in a world that is known: files of known sizes, levels with some room, a program that
//! reads them, and a source that answers when it likes.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct World {
    sizes: Vec<u64>,
    /// Of the levels, for files that stay.
    left: u64,
    room: u64,
    kept: HashSet<Name>,
    refused: HashSet<Name>,
    /// In the window.
    here: HashSet<Name>,
    coming: Vec<(Name, Wish)>,
    leaving: Vec<Name>,
    hits: usize,
    reads: usize,
}

impl World {
    fn new(sizes: &[u64], left: u64, room: u64) -> Self {
        Self { sizes: sizes.to_vec(), left, room, ..Self::default() }
    }

    fn size(&self, name: Name) -> u64 {
        self.sizes[name.0 as usize]
    }

    fn standing(&self, name: Name) -> Standing {
        if self.kept.contains(&name) || self.here.contains(&name) {
            Standing::HasCopy
        } else if self.refused.contains(&name) {
            Standing::Refused { bytes: self.size(name) }
        } else {
            Standing::Unknown
        }
    }

    /// Does what the planner says; what is let go is gone at once unless somebody `keeps_open`.
    fn act(&mut self, planner: &mut Planner, keeps_open: impl Fn(Name) -> bool) {
        loop {
            let mut is_let_go = false;
            for action in planner.plan(|name| self.standing(name)) {
                match action {
                    Action::Fetch(name, wish) => {
                        assert_ne!(self.standing(name), Standing::HasCopy, "{name:?} is there");
                        assert!(
                            self.coming.iter().all(|&(other, _)| other != name),
                            "{name:?} twice"
                        );
                        self.coming.push((name, wish));
                    }
                    Action::LetGo(name) => {
                        assert!(self.here.remove(&name), "{name:?} is not in the window");
                        if keeps_open(name) {
                            self.leaving.push(name);
                        } else {
                            assert_eq!(planner.gone(name), self.size(name));
                        }
                        is_let_go = true;
                    }
                }
                self.check();
            }
            if !is_let_go {
                return;
            }
        }
    }

    /// What lies in the window never exceeds its room.
    fn check(&self) {
        let coming = self.coming.iter().map(|&(_, wish)| match wish {
            Wish::Keep => 0,
            Wish::Pass { bytes } => bytes,
        });
        let others = self.here.iter().chain(&self.leaving).map(|&name| self.size(name));
        let used: u64 = coming.chain(others).sum();
        assert!(used <= self.room, "{used} of {}", self.room);
    }

    fn finish(&mut self, planner: &mut Planner, which: usize, fails: bool) {
        let (name, wish) = self.coming.remove(which % self.coming.len());
        let bytes = self.size(name);
        let outcome = match wish {
            _ if fails => Outcome::Failed,
            Wish::Keep if bytes > self.left => {
                self.refused.insert(name);
                Outcome::NoRoom { bytes }
            }
            Wish::Keep => {
                self.left -= bytes;
                self.kept.insert(name);
                Outcome::Kept { bytes }
            }
            Wish::Pass { bytes: room } => {
                assert_eq!(room, bytes);
                self.here.insert(name);
                Outcome::Kept { bytes }
            }
        };
        planner.fetched(name, outcome);
    }

    fn open(&mut self, planner: &mut Planner, name: Name) {
        self.reads += 1;
        self.hits += usize::from(self.standing(name) == Standing::HasCopy);
        planner.opened(vec![name]);
    }
}

fn names(files: usize) -> Vec<Name> {
    (0..files as u32).map(Name).collect()
}

fn open_all(planner: &mut Planner, order: &[Name]) {
    for &name in order {
        planner.opened(vec![name]);
    }
}

const AHEAD: Ahead = Ahead { files: 8, bytes: 1000 };

proptest! {
    /// Whatever is opened and whenever fetches end or fail: no file is fetched twice at a time or while
    /// there is a copy, and the window is never over its room. (The world asserts that.)
    #[test]
    fn the_window_is_never_exceeded(
        sizes in prop::collection::vec(0u64..40, 4..40),
        left in 0u64..400,
        room in 0u64..100,
        learns in any::<bool>(),
        steps in prop::collection::vec((0u8..8, 0usize..40), 0..400),
    ) {
        let order = names(sizes.len());
        let mut world = World::new(&sizes, left, room);
        let mut planner = if learns {
            Planner::learning(&order, AHEAD, 3, room)
        } else {
            Planner::following(&order, AHEAD, 3, room)
        };
        let mut next = 0;
        for (what, number) in steps {
            match what {
                0..=2 => {
                    world.open(&mut planner, order[next % order.len()]);
                    next += 1;
                }
                3 => world.open(&mut planner, order[number % order.len()]),
                4..=6 if !world.coming.is_empty() => world.finish(&mut planner, number, what == 6),
                7 if !world.leaving.is_empty() => {
                    let name = world.leaving.swap_remove(number % world.leaving.len());
                    prop_assert_eq!(planner.gone(name), world.size(name));
                }
                _ => {}
            }
            world.act(&mut planner, |name| (name.0 as usize + number).is_multiple_of(3));
            prop_assert!(world.coming.len() <= 3);
        }
    }

    /// A source that is faster than the program: each file is there when it is opened, whatever of the
    /// dataset the levels have room for; also in the first epoch if the order was given.
    #[test]
    fn a_fast_source_makes_every_open_a_hit(
        sizes in prop::collection::vec(1u64..10, 8..60),
        left in 0u64..200,
        epochs in 1usize..4,
    ) {
        let order = names(sizes.len());
        let room = 60;
        let mut world = World::new(&sizes, left, room);
        let mut planner = Planner::following(&order, AHEAD, 2, room);
        world.act(&mut planner, |_| false);
        for _ in 0..epochs {
            for &name in &order {
                while !world.coming.is_empty() {
                    world.finish(&mut planner, 0, false);
                    world.act(&mut planner, |_| false);
                }
                world.open(&mut planner, name);
                world.act(&mut planner, |_| false);
            }
        }
        prop_assert_eq!(world.hits, world.reads);
    }

    /// Learnt in the first epoch, in force in the second.
    #[test]
    fn what_was_learnt_makes_hits_from_the_second_epoch(sizes in prop::collection::vec(1u64..10, 32..100)) {
        let order = names(sizes.len());
        let room = 60;
        let mut world = World::new(&sizes, 0, room);
        let mut planner = Planner::learning(&[], AHEAD, 2, room);
        for epoch in 0..3 {
            world.hits = 0;
            for &name in &order {
                world.open(&mut planner, name);
                world.act(&mut planner, |_| false);
                while !world.coming.is_empty() {
                    world.finish(&mut planner, 0, false);
                    world.act(&mut planner, |_| false);
                }
            }
            let least = match epoch {
                0 => 0,
                // Until it was clear that it begins the same way.
                1 => order.len() - super::super::evidence(order.len()),
                _ => order.len(),
            };
            prop_assert!(world.hits >= least, "{} hits in epoch {epoch} of {}", world.hits, order.len());
        }
        prop_assert!(planner.is_following());
        prop_assert_eq!(planner.learnt(), Some(&order[..]));
    }
}

/// A program that reads faster than the source gives: what it does not find it reads itself, at the same
/// time. Then files that come too late would only be in its way.
#[test]
fn a_slow_source_is_not_asked_for_what_comes_too_late() {
    let sizes = vec![1; 400];
    let order = names(sizes.len());
    let mut world = World::new(&sizes, 0, 32);
    let mut planner = Planner::following(&order, AHEAD, 4, 32);
    let mut too_late = 0;
    let mut at = 0;
    let mut arrivals: Vec<(usize, Name)> = vec![];
    world.act(&mut planner, |_| false);
    // A tick is the time in which the program reads a file from the source; a fetch takes five.
    for tick in 0..3000 {
        for &(name, _) in &world.coming {
            if !arrivals.iter().any(|&(_, other)| other == name) {
                arrivals.push((tick + 5, name));
            }
        }
        while let Some(ready) = arrivals.iter().position(|&(when, _)| when <= tick) {
            let (_, name) = arrivals.remove(ready);
            let which = world.coming.iter().position(|&(other, _)| other == name).unwrap();
            let was_opened = (at.max(20) - 20..at).any(|past| order[past % order.len()] == name);
            let passes = world.coming[which].1 != Wish::Keep;
            too_late += usize::from(was_opened && passes);
            world.finish(&mut planner, which, false);
        }
        // Copies are read in no time.
        for _ in 0..10 {
            let name = order[at % order.len()];
            let is_hit = world.standing(name) == Standing::HasCopy;
            world.open(&mut planner, name);
            at += 1;
            if !is_hit {
                break;
            }
        }
        world.act(&mut planner, |_| false);
    }
    // Four fetches of five ticks each beside one read a tick: at most 0.8 of 1.8 files can be hits.
    assert!(world.hits * 100 >= world.reads * 30, "{} hits of {}", world.hits, world.reads);
    assert!(too_late * 10 <= world.hits, "{too_late} of {} came too late", world.hits);
}

#[test]
fn files_that_are_not_there_are_counted_once_and_skipped() {
    let order = names(6);
    let mut planner = Planner::following(&order, AHEAD, 1, 0);
    let mut asked = vec![];
    for _ in 0..3 {
        while let [Action::Fetch(name, Wish::Keep)] = planner.plan(|_| Standing::Unknown)[..] {
            asked.push(name.0);
            let there = name.0.is_multiple_of(2);
            planner.fetched(name, if there { Outcome::Failed } else { Outcome::Absent });
        }
        open_all(&mut planner, &order);
    }
    assert_eq!(asked, [0, 1, 2, 3, 4, 5, 0, 2, 4, 0, 2, 4]);
    assert_eq!(planner.tally, Tally { absent: 3, ..Tally::default() });
}

#[test]
fn a_file_larger_than_the_window_is_left_to_the_program() {
    let order = names(3);
    let mut planner = Planner::following(&order, AHEAD, 9, 10);
    let standing = |name: Name| Standing::Refused { bytes: if name == Name(1) { 11 } else { 5 } };
    let fetched = planner.plan(standing);
    let wish = Wish::Pass { bytes: 5 };
    assert_eq!(fetched, [Action::Fetch(Name(0), wish), Action::Fetch(Name(2), wish)]);
}

#[test]
fn an_order_that_is_no_longer_in_force_fetches_nothing() {
    let order = names(64);
    let mut planner = Planner::learning(&order, AHEAD, 2, 100);
    let standing = |_| Standing::Refused { bytes: 1 };
    for name in &order[..8] {
        planner.opened(vec![*name]);
    }
    assert!(planner.is_following());
    for action in planner.plan(standing) {
        let Action::Fetch(name, _) = action else { panic!("{action:?}") };
        planner.fetched(name, Outcome::Failed);
    }
    open_all(&mut planner, &order);
    open_all(&mut planner, &order.iter().rev().copied().collect::<Vec<_>>());
    assert!(!planner.is_following());
    assert_eq!(planner.plan(standing), []);
}
