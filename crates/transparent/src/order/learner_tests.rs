//! Programs that read in ways that are known, and what is learnt from them.

use proptest::prelude::*;

use super::*;

fn names(numbers: impl IntoIterator<Item = u32>) -> Vec<Name> {
    numbers.into_iter().map(Name).collect()
}

/// As several workers read an order: each file is opened at most `apart` places later than it stands.
fn by_workers(order: &[Name], apart: usize, random: &mut impl FnMut(usize) -> usize) -> Vec<Name> {
    let mut opened: Vec<(usize, Name)> =
        order.iter().enumerate().map(|(at, &name)| (at + random(apart + 1), name)).collect();
    opened.sort_by_key(|&(at, _)| at);
    opened.into_iter().map(|(_, name)| name).collect()
}

fn shuffled(files: u32, random: &mut impl FnMut(usize) -> usize) -> Vec<Name> {
    let mut order = names(0..files);
    for at in (1..order.len()).rev() {
        order.swap(at, random(at + 1));
    }
    order
}

/// The same numbers for the same seed.
fn random(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below.max(1)
    }
}

/// What the learner says while this is opened.
fn open_all(learner: &mut Learner, opened: &[Name]) -> Vec<Beginning> {
    let told = opened.iter().filter_map(|&name| {
        learner.opened(name);
        learner.judge()
    });
    told.collect()
}

/// How far apart a file stands in two orders, at most; None if they are not of the same files.
fn furthest(a: &[Name], b: &[Name]) -> Option<usize> {
    let place = |order: &[Name], name: Name| order.iter().position(|&there| there == name);
    let apart = |&name: &Name| Some(place(a, name)?.abs_diff(place(b, name)?));
    let most = a.iter().map(apart).max().unwrap_or(Some(0))?;
    (a.len() == b.len()).then_some(most)
}

proptest! {
    /// Workers read nearby files out of order; from the second epoch on the order is in force.
    #[test]
    fn the_same_order_is_in_force_from_the_second_epoch(
        files in 4u32..400,
        epochs in 2usize..5,
        seed in any::<u64>(),
    ) {
        let mut random = random(seed);
        let order = shuffled(files, &mut random);
        let apart = files as usize / 8;
        let mut learner = Learner::default();
        prop_assert_eq!(open_all(&mut learner, &by_workers(&order, apart, &mut random)), []);
        for _ in 1..epochs {
            let opened = by_workers(&order, apart, &mut random);
            prop_assert_eq!(open_all(&mut learner, &opened), [Beginning::Same]);
            let most = furthest(learner.known(), &order);
            prop_assert!(most.is_some_and(|most| most <= apart), "{most:?} places apart");
        }
        prop_assert_eq!(furthest(learner.to_keep(), &order).map(|most| most <= apart), Some(true));
    }

    /// A program that looks at each file a few times, and at a list of labels now and then.
    #[test]
    fn looking_twice_is_no_new_epoch(
        files in 100u32..300,
        looks in prop::collection::vec(1usize..4, 300),
        labels in 5u32..20,
    ) {
        let mut learner = Learner::default();
        let list = Name(1000);
        let mut epoch = vec![list];
        for file in 0..files {
            epoch.extend(std::iter::repeat_n(Name(file), looks[file as usize]));
            if file % labels == 0 {
                epoch.push(list);
            }
        }
        // The first few files may look like epochs of their own; that is over soon.
        open_all(&mut learner, &epoch[..40]);
        prop_assert!(learner.known().len() < 8);
        prop_assert_eq!(open_all(&mut learner, &epoch[40..]), []);
        prop_assert_eq!(learner.so_far().len(), files as usize + 1);
        prop_assert_eq!(open_all(&mut learner, &epoch), [Beginning::Same]);
        prop_assert_eq!(learner.known().len(), files as usize + 1);
    }

    /// An order that is new in each epoch is never in force; the last one is always known, but for a few
    /// files that were among the last of one epoch and the first of the next.
    #[test]
    fn another_order_each_epoch_is_learnt_anew(files in 256u32..600, seed in any::<u64>()) {
        let mut random = random(seed);
        let mut learner = Learner::default();
        let first = shuffled(files, &mut random);
        open_all(&mut learner, &first);
        let mut last = first.clone();
        for _ in 0..4 {
            let order = shuffled(files, &mut random);
            prop_assert_eq!(open_all(&mut learner, &order), [Beginning::Changed]);
            let lost = last.len() - learner.known().len();
            prop_assert!(lost <= evidence(last.len()), "{lost} of {files} were lost");
            last = order;
        }
        prop_assert_eq!(open_all(&mut learner, &last), [Beginning::Same]);
        prop_assert_eq!(learner.known().len(), files as usize);
        prop_assert_eq!(furthest(learner.to_keep(), &first), Some(0));
    }

    /// However early a run is killed, the next one knows at least what this one read; and never less than
    /// it knew if the order is the same.
    #[test]
    fn a_run_that_is_killed_loses_nothing(
        files in 20u32..300,
        killed in prop::collection::vec(0usize..300, 1..6),
        seed in any::<u64>(),
    ) {
        let mut random = random(seed);
        let order = shuffled(files, &mut random);
        let mut kept: Vec<Name> = vec![];
        for at in killed {
            let at = at.min(order.len());
            let mut learner = Learner::new(&kept);
            let said = open_all(&mut learner, &order[..at]);
            // A few files are too little to tell.
            if at.min(kept.len()) >= evidence(kept.len()) {
                prop_assert_eq!(said, [Beginning::Same]);
            } else {
                prop_assert_eq!(said, []);
            }
            let longest = kept.len().max(at);
            kept = learner.to_keep().to_vec();
            prop_assert_eq!(&kept, &order[..longest]);
        }
    }

    /// A job that begins its epoch anew in the middle (a node was lost) keeps the whole order, and is
    /// followed from the start again.
    #[test]
    fn an_epoch_begun_anew_does_not_shorten_the_order(files in 64u32..300, part in 0.2f64..0.7) {
        let order = names(0..files);
        let mut learner = Learner::default();
        open_all(&mut learner, &order);
        let cut = (f64::from(files) * part) as usize;
        prop_assert_eq!(open_all(&mut learner, &order[..cut]), [Beginning::Same]);
        prop_assert_eq!(open_all(&mut learner, &order), [Beginning::Same]);
        prop_assert_eq!(learner.known(), &order[..]);
        prop_assert_eq!(learner.to_keep(), &order[..]);
    }
}

#[test]
fn a_dataset_that_shrank_is_known_after_two_epochs() {
    let mut learner = Learner::default();
    open_all(&mut learner, &names(0..100));
    for _ in 0..3 {
        open_all(&mut learner, &names(0..30));
    }
    assert_eq!(learner.known(), names(0..30));
}

#[test]
fn files_that_come_later_in_an_epoch_are_learnt_too() {
    let mut learner = Learner::default();
    open_all(&mut learner, &names(0..40));
    assert_eq!(open_all(&mut learner, &names(0..80)), [Beginning::Same]);
    assert_eq!(open_all(&mut learner, &names(0..80)), [Beginning::Same]);
    assert_eq!(learner.known(), names(0..80));
}

#[test]
fn two_files_are_an_order_and_one_is_none() {
    let mut learner = Learner::default();
    assert_eq!(open_all(&mut learner, &names([1, 2, 1, 2])), [Beginning::Same]);
    let mut learner = Learner::default();
    assert_eq!(open_all(&mut learner, &names([1; 20])), []);
    assert_eq!(learner.to_keep(), names([1]));
}

#[test]
fn another_run_in_another_order_replaces_what_was_known_when_it_is_worth_it() {
    let earlier = names(0..100);
    let backwards: Vec<Name> = earlier.iter().rev().copied().collect();
    let mut learner = Learner::new(&earlier);
    assert_eq!(open_all(&mut learner, &backwards[..49]), [Beginning::Changed]);
    assert_eq!(learner.to_keep(), earlier);
    assert_eq!(open_all(&mut learner, &backwards[49..60]), []);
    assert_eq!(learner.to_keep(), &backwards[..60]);
}

/// Between two looks at the counters of the board nobody knows which copy was opened first.
#[test]
fn a_burst_of_copies_in_any_order_begins_the_same_way() {
    let order = names(0..64);
    let mut learner = Learner::new(&order);
    let mut burst: Vec<Name> = order[..35].iter().rev().copied().collect();
    learner.sort(&mut burst);
    for name in burst {
        learner.opened(name);
    }
    assert_eq!(learner.judge(), Some(Beginning::Same));
    open_all(&mut learner, &order[35..]);
    open_all(&mut learner, &order);
    assert_eq!((learner.known(), learner.to_keep()), (&order[..], &order[..]));
}
