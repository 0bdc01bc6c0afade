//! The follower against a naive one that remembers all opens and searches for each answer.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const UNLIMITED: Lookahead = Lookahead { files: usize::MAX, bytes: u64::MAX };

fn names(numbers: impl IntoIterator<Item = u32>) -> Vec<NameId> {
    numbers.into_iter().map(NameId).collect()
}

fn follower(order: &[NameId], ahead: Lookahead) -> OrderFollower {
    OrderFollower::new(order.into(), ahead).unwrap()
}

/// Returns all files that it would fetch now.
fn fetched(follower: &mut OrderFollower) -> Vec<u32> {
    std::iter::from_fn(|| follower.next(|_| Some(1))).map(|(_, name)| name.0).collect()
}

struct Naive {
    order: Vec<NameId>,
    ahead: Lookahead,
    position: u64,
    opened: HashSet<u64>,
    fetched: Vec<(u64, u64)>,
}

impl Naive {
    fn name(&self, place: u64) -> NameId {
        self.order[place as usize % self.order.len()]
    }

    fn reach(&self) -> u64 {
        self.position + 2 * tolerance(self.order.len()) as u64
    }

    fn opened(&mut self, name: NameId) {
        let near = (self.position..=self.reach())
            .find(|place| self.name(*place) == name && !self.opened.contains(place));
        let Some(place) = near else { return };
        self.opened.insert(place);
        let furthest = *self.opened.iter().max().unwrap();
        let given_up = (furthest + 1).saturating_sub(tolerance(self.order.len()) as u64);
        self.position = self.position.max(given_up);
        while self.opened.contains(&self.position) {
            self.position += 1;
        }
        let (opened, position) = (&self.opened, self.position);
        self.fetched.retain(|(place, _)| *place >= position && !opened.contains(place));
    }

    fn next(
        &mut self,
        looked_at: &mut HashSet<u64>,
        wanted: impl Fn(NameId) -> Option<u64>,
    ) -> Option<(u64, NameId)> {
        if self.fetched.len() >= self.ahead.files {
            return None;
        }
        let end = self.position + self.order.len() as u64;
        let place = (self.position..end).find(|place| {
            !self.opened.contains(place)
                && !looked_at.contains(place)
                && wanted(self.name(*place)).is_some()
        })?;
        let bytes = wanted(self.name(place)).unwrap();
        let sum: u64 = self.fetched.iter().map(|(_, bytes)| bytes).sum();
        if !self.fetched.is_empty() && sum + bytes > self.ahead.bytes {
            return None;
        }
        self.fetched.push((place, bytes));
        looked_at.insert(place);
        Some((place, self.name(place)))
    }
}

proptest! {
    /// Orders with repeated files, opened anywhere within reach; some files need not be fetched.
    #[test]
    fn the_follower_agrees_with_a_search(
        order in prop::collection::vec(0u32..60, 1..60),
        files in 0usize..10,
        bytes in 0u64..100,
        steps in prop::collection::vec((0u8..3, 0u64..40), 0..200),
    ) {
        let order = names(order);
        let ahead = Lookahead { files, bytes };
        let wanted = |name: NameId| (!name.0.is_multiple_of(4)).then_some(u64::from(name.0));
        let mut clever = follower(&order, ahead);
        let mut naive =
            Naive { order: order.clone(), ahead, position: 0, opened: HashSet::new(), fetched: vec![] };
        let mut looked_at = HashSet::new();
        for (what, number) in steps {
            if what == 0 {
                prop_assert_eq!(clever.next(wanted), naive.next(&mut looked_at, wanted));
            } else {
                let within = naive.reach() - naive.position + 1;
                let name = naive.name(naive.position + number % within);
                clever.opened(name);
                naive.opened(name);
            }
            prop_assert_eq!(clever.position, naive.position);
            let sum: u64 = naive.fetched.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!((clever.fetched.len(), clever.fetched_bytes), (naive.fetched.len(), sum));
        }
    }

    /// Whatever is opened, the lookahead limits hold, and nothing behind the reader is fetched.
    #[test]
    fn limits_hold_whatever_is_opened(
        order in prop::collection::vec(0u32..50, 1..80),
        files in 1usize..10,
        bytes in 0u64..100,
        opened in prop::collection::vec(0u32..70, 0..300),
    ) {
        let mut follower = follower(&names(order), Lookahead { files, bytes });
        let mut position = 0;
        for name in opened {
            follower.opened(NameId(name));
            prop_assert!(follower.position >= position);
            position = follower.position;
            while let Some((place, name)) = follower.next(|name| Some(name.0.into())) {
                prop_assert!(place >= position);
                prop_assert!(follower.expects(name));
            }
            prop_assert!(follower.fetched.len() <= files);
            prop_assert!(follower.fetched_bytes <= bytes || follower.fetched.len() == 1);
            prop_assert_eq!(follower.fetched_bytes, follower.fetched.values().sum::<u64>());
            prop_assert!(follower.fetched.keys().all(|&place| !follower.is_opened(place)));
        }
    }

    /// The follower finds a program that continues elsewhere.
    #[test]
    fn a_reader_that_jumps_is_found(files in 32u32..300, from in 0u32..300, to in 0u32..300, read in 0u32..100) {
        let order = names(0..files);
        let mut follower = follower(&order, UNLIMITED);
        let place = |at: u32| NameId(at % files);
        for at in 0..from % files {
            follower.opened(place(at));
        }
        let to = to % files;
        let read = evidence(files as usize) as u32 + 2 * tolerance(files as usize) as u32 + read;
        for at in 0..read {
            follower.opened(place(to + at));
        }
        prop_assert_eq!(follower.position % u64::from(files), u64::from((to + read) % files));
    }
}

#[test]
fn fetching_wraps_around_at_the_end_of_an_epoch() {
    let mut follower = follower(&names(0..8), Lookahead { files: 3, bytes: u64::MAX });
    assert_eq!(fetched(&mut follower), [0, 1, 2]);
    for name in names(0..6) {
        follower.opened(name);
    }
    assert_eq!(fetched(&mut follower), [6, 7, 0]);
    assert!(follower.expects(NameId(0)) && !follower.expects(NameId(5)));
}

#[test]
fn the_lookahead_is_at_most_one_epoch() {
    let mut follower = follower(&names(0..8), UNLIMITED);
    assert_eq!(fetched(&mut follower).len(), 8);
    follower.opened(NameId(0));
    assert_eq!(fetched(&mut follower), [0]);
}

#[test]
fn a_large_file_is_fetched_alone() {
    let mut follower = follower(&names([5, 100, 6]), Lookahead { files: 9, bytes: 50 });
    let next = |follower: &mut OrderFollower| {
        follower.next(|name| Some(name.0.into())).map(|(_, name)| name.0)
    };
    assert_eq!(next(&mut follower), Some(5));
    assert_eq!(next(&mut follower), None);
    follower.opened(NameId(5));
    assert_eq!(next(&mut follower), Some(100));
    assert_eq!(next(&mut follower), None);
}

#[test]
fn a_failed_fetch_makes_space_for_others() {
    let mut follower = follower(&names(0..8), Lookahead { files: 2, bytes: 10 });
    let places: Vec<u64> =
        std::iter::from_fn(|| follower.next(|_| Some(0))).map(|(place, _)| place).collect();
    follower.sized(places[0], None);
    assert_eq!(follower.next(|_| Some(0)), Some((2, NameId(2))));
    follower.sized(places[1], Some(11));
    follower.sized(2, None);
    assert_eq!(follower.next(|_| Some(1)), None);
}

#[test]
fn a_file_that_is_never_opened_does_not_stop_the_reader() {
    let mut follower = follower(&names(0..40), Lookahead { files: 4, bytes: u64::MAX });
    for name in names(1..30) {
        follower.opened(name);
    }
    assert_eq!(follower.position, 30);
}

#[test]
fn files_opened_again_do_not_move_the_position() {
    let mut follower = follower(&names(0..200), UNLIMITED);
    for name in names((0..40).chain(0..40).chain(0..40)) {
        follower.opened(name);
    }
    assert_eq!(follower.position, 40);
}

#[test]
fn an_empty_order_cannot_be_followed() {
    assert!(OrderFollower::new([].into(), UNLIMITED).is_none());
}
