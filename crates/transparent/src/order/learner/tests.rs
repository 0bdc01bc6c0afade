//! Learns from programs with known reading orders.

use proptest::prelude::*;

use super::*;

fn names(numbers: impl IntoIterator<Item = u32>) -> Vec<NameId> {
    numbers.into_iter().map(NameId).collect()
}

/// Simulates several workers: each file is opened at most `apart` positions after its own.
fn by_workers(
    order: &[NameId],
    apart: usize,
    random: &mut impl FnMut(usize) -> usize,
) -> Vec<NameId> {
    let mut opened: Vec<(usize, NameId)> =
        order.iter().enumerate().map(|(at, &name)| (at + random(apart + 1), name)).collect();
    opened.sort_by_key(|&(at, _)| at);
    opened.into_iter().map(|(_, name)| name).collect()
}

fn shuffled(files: u32, random: &mut impl FnMut(usize) -> usize) -> Vec<NameId> {
    let mut order = names(0..files);
    for at in (1..order.len()).rev() {
        order.swap(at, random(at + 1));
    }
    order
}

/// A seeded random generator.
fn random(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below.max(1)
    }
}

/// Returns the learner's answers while these files are opened.
fn open_all(learner: &mut Learner, opened: &[NameId]) -> Vec<Beginning> {
    let answers = opened.iter().filter_map(|&name| {
        learner.opened(name);
        learner.judge()
    });
    answers.collect()
}

/// Returns the largest distance of a file in two orders; None if they do not have the same files.
fn furthest(a: &[NameId], b: &[NameId]) -> Option<usize> {
    let place = |order: &[NameId], name: NameId| order.iter().position(|&there| there == name);
    let apart = |&name: &NameId| Some(place(a, name)?.abs_diff(place(b, name)?));
    let most = a.iter().map(apart).max().unwrap_or(Some(0))?;
    (a.len() == b.len()).then_some(most)
}

proptest! {
    /// Workers read nearby files out of order. The order is in force from the second epoch on.
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

    /// A program opens each file a few times, and a list of labels now and then.
    #[test]
    fn opening_files_again_is_not_a_new_epoch(
        files in 100u32..300,
        looks in prop::collection::vec(1usize..4, 300),
        labels in 5u32..20,
    ) {
        let mut learner = Learner::default();
        let list = NameId(1000);
        let mut epoch = vec![list];
        for file in 0..files {
            epoch.extend(std::iter::repeat_n(NameId(file), looks[file as usize]));
            if file % labels == 0 {
                epoch.push(list);
            }
        }
        // The first few files may look like epochs.
        open_all(&mut learner, &epoch[..40]);
        prop_assert!(learner.known().len() < 8);
        prop_assert_eq!(open_all(&mut learner, &epoch[40..]), []);
        prop_assert_eq!(learner.so_far().len(), files as usize + 1);
        prop_assert_eq!(open_all(&mut learner, &epoch), [Beginning::Same]);
        prop_assert_eq!(learner.known().len(), files as usize + 1);
    }

    /// An order that changes with each epoch is never in force. The last one is known, except for a
    /// few files at the end of one epoch and the beginning of the next.
    #[test]
    fn an_order_that_changes_is_learnt_in_each_epoch(files in 256u32..600, seed in any::<u64>()) {
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

    /// However early a run is killed, the next one knows all that this one read, and never less
    /// than before if the order is the same.
    #[test]
    fn a_run_that_is_killed_loses_nothing(
        files in 20u32..300,
        killed in prop::collection::vec(0usize..300, 1..6),
        seed in any::<u64>(),
    ) {
        let mut random = random(seed);
        let order = shuffled(files, &mut random);
        let mut kept: Vec<NameId> = vec![];
        for at in killed {
            let at = at.min(order.len());
            let mut learner = Learner::new(&kept);
            let said = open_all(&mut learner, &order[..at]);
            // A few files are too little evidence.
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

    /// A job that restarts its epoch (a node was lost) keeps the whole order, which is followed
    /// from the start again.
    #[test]
    fn a_restarted_epoch_does_not_shorten_the_order(files in 64u32..300, part in 0.2f64..0.7) {
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
fn files_added_to_the_dataset_are_learnt() {
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
fn a_run_in_another_order_replaces_the_saved_one_after_half_of_it() {
    let earlier = names(0..100);
    let backwards: Vec<NameId> = earlier.iter().rev().copied().collect();
    let mut learner = Learner::new(&earlier);
    assert_eq!(open_all(&mut learner, &backwards[..49]), [Beginning::Changed]);
    assert_eq!(learner.to_keep(), earlier);
    assert_eq!(open_all(&mut learner, &backwards[49..60]), []);
    assert_eq!(learner.to_keep(), &backwards[..60]);
}

/// The order of copies opened between two polls of the board is unknown.
#[test]
fn a_burst_of_copies_in_any_order_begins_the_same_way() {
    let order = names(0..64);
    let mut learner = Learner::new(&order);
    let mut burst: Vec<NameId> = order[..35].iter().rev().copied().collect();
    learner.sort(&mut burst);
    for name in burst {
        learner.opened(name);
    }
    assert_eq!(learner.judge(), Some(Beginning::Same));
    open_all(&mut learner, &order[35..]);
    open_all(&mut learner, &order);
    assert_eq!((learner.known(), learner.to_keep()), (&order[..], &order[..]));
}
