//! The follower beside one that remembers everything and searches for each answer.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const FAR: Ahead = Ahead { files: usize::MAX, bytes: u64::MAX };

fn names(numbers: impl IntoIterator<Item = u32>) -> Vec<Name> {
    numbers.into_iter().map(Name).collect()
}

fn follower(order: &[Name], ahead: Ahead) -> Follower {
    Follower::new(order.into(), ahead).unwrap()
}

/// All that it would fetch now.
fn fetched(follower: &mut Follower) -> Vec<u32> {
    std::iter::from_fn(|| follower.next(|_| Some(1))).map(|(_, name)| name.0).collect()
}

struct Naive {
    order: Vec<Name>,
    ahead: Ahead,
    position: u64,
    opened: HashSet<u64>,
    fetched: Vec<(u64, u64)>,
}

impl Naive {
    fn name(&self, place: u64) -> Name {
        self.order[place as usize % self.order.len()]
    }

    fn reach(&self) -> u64 {
        self.position + 2 * tolerance(self.order.len()) as u64
    }

    fn opened(&mut self, name: Name) {
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
        wanted: impl Fn(Name) -> Option<u64>,
    ) -> Option<(u64, Name)> {
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
    /// Orders with files that stand there more than once, opened anywhere within reach; some have a
    /// copy and need not be fetched.
    #[test]
    fn it_says_what_a_search_says(
        order in prop::collection::vec(0u32..60, 1..60),
        files in 0usize..10,
        bytes in 0u64..100,
        steps in prop::collection::vec((0u8..3, 0u64..40), 0..200),
    ) {
        let order = names(order);
        let ahead = Ahead { files, bytes };
        let wanted = |name: Name| (!name.0.is_multiple_of(4)).then_some(u64::from(name.0));
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

    /// Whatever is opened, no more is fetched than is allowed, and nothing behind the reader.
    #[test]
    fn limits_hold_whatever_is_opened(
        order in prop::collection::vec(0u32..50, 1..80),
        files in 1usize..10,
        bytes in 0u64..100,
        opened in prop::collection::vec(0u32..70, 0..300),
    ) {
        let mut follower = follower(&names(order), Ahead { files, bytes });
        let mut position = 0;
        for name in opened {
            follower.opened(Name(name));
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

    /// A program that goes elsewhere is found again.
    #[test]
    fn a_reader_that_jumps_is_found(files in 32u32..300, from in 0u32..300, to in 0u32..300, read in 0u32..100) {
        let order = names(0..files);
        let mut follower = follower(&order, FAR);
        let place = |at: u32| Name(at % files);
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
fn it_wraps_around_at_the_end_of_an_epoch() {
    let mut follower = follower(&names(0..8), Ahead { files: 3, bytes: u64::MAX });
    assert_eq!(fetched(&mut follower), [0, 1, 2]);
    for name in names(0..6) {
        follower.opened(name);
    }
    assert_eq!(fetched(&mut follower), [6, 7, 0]);
    assert!(follower.expects(Name(0)) && !follower.expects(Name(5)));
}

#[test]
fn it_looks_no_further_than_one_epoch() {
    let mut follower = follower(&names(0..8), FAR);
    assert_eq!(fetched(&mut follower).len(), 8);
    follower.opened(Name(0));
    assert_eq!(fetched(&mut follower), [0]);
}

#[test]
fn a_large_file_is_fetched_alone() {
    let mut follower = follower(&names([5, 100, 6]), Ahead { files: 9, bytes: 50 });
    let next =
        |follower: &mut Follower| follower.next(|name| Some(name.0.into())).map(|(_, name)| name.0);
    assert_eq!(next(&mut follower), Some(5));
    assert_eq!(next(&mut follower), None);
    follower.opened(Name(5));
    assert_eq!(next(&mut follower), Some(100));
    assert_eq!(next(&mut follower), None);
}

#[test]
fn files_that_will_not_come_make_room_for_others() {
    let mut follower = follower(&names(0..8), Ahead { files: 2, bytes: 10 });
    let places: Vec<u64> =
        std::iter::from_fn(|| follower.next(|_| Some(0))).map(|(place, _)| place).collect();
    follower.sized(places[0], None);
    assert_eq!(follower.next(|_| Some(0)), Some((2, Name(2))));
    follower.sized(places[1], Some(11));
    follower.sized(2, None);
    assert_eq!(follower.next(|_| Some(1)), None);
}

#[test]
fn a_file_that_is_never_opened_holds_nobody_up() {
    let mut follower = follower(&names(0..40), Ahead { files: 4, bytes: u64::MAX });
    for name in names(1..30) {
        follower.opened(name);
    }
    assert_eq!(follower.position, 30);
}

#[test]
fn files_that_are_looked_at_again_move_nothing() {
    let mut follower = follower(&names(0..200), FAR);
    for name in names((0..40).chain(0..40).chain(0..40)) {
        follower.opened(name);
    }
    assert_eq!(follower.position, 40);
}

#[test]
fn an_empty_order_cannot_be_followed() {
    assert!(Follower::new([].into(), FAR).is_none());
}
