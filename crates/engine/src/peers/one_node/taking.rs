//! What becomes of samples that others give to this node, and what goes in their favour.

use super::*;

#[test]
fn only_what_was_used_for_the_last_time_makes_room_for_what_is_given() {
    for last_use in [false, true] {
        let one = One::new();
        (0..3).for_each(|sample| one.hold(1, sample, 0));
        assert_eq!(kinds(&one.ask(1, &[(1, last_use)], 1 << 20)), ["here"]);
        let taken = one.give(7, 1, 1);
        assert_eq!(taken, if last_use { Taken::Stored } else { Taken::NoRoom });
        assert_eq!(one.holds(1), if last_use { vec![0, 2, 7] } else { vec![0, 1, 2] });
        let volume = one.metrics().taken;
        let expected = if last_use { (1, SIZE) } else { (0, 0) };
        assert_eq!((volume.samples, volume.bytes), expected);
    }
}

#[test]
fn what_others_need_no_more_makes_room_and_samples_that_there_are_none_of_are_passed_over() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(2, sample, 0));
    let samples = vec![SAMPLES, 99, 2, 5];
    one.counter.told(2, &Notice::Released { epoch: 1, samples });
    assert_eq!(one.give(8, 2, 1), Taken::Stored);
    assert_eq!(one.holds(2), [0, 1, 8]);
    assert_eq!(one.give(9, 2, 1), Taken::NoRoom);
}

#[test]
fn memory_is_taken_only_for_samples_of_the_dataset() {
    let one = One::new();
    assert!(one.counter.wants(0, SIZE) && one.counter.wants(SAMPLES - 1, SIZE));
    assert!(!one.counter.wants(SAMPLES, SIZE) && !one.counter.wants(SAMPLES + 1, SIZE));
    assert!(!one.counter.wants(0, SIZE - 1) && !one.counter.wants(0, SIZE + 1));
}

#[test]
fn what_is_given_for_an_epoch_that_is_over_is_refused() {
    let one = One::new();
    // It waits for epoch 1, which is over with the second of these.
    for (epoch, taken) in [(0, Taken::Stored), (1, Taken::Refused)] {
        lock(&one.peers().talk).ledger.done(0, epoch);
        assert_eq!(one.give(epoch, 1, 0), taken);
    }
    assert_eq!(one.give(4, 1, 1), Taken::Stored);
    assert_eq!(one.give(4, 1, 1), Taken::Stored, "it is here");
}

#[test]
fn there_is_no_tier_0_and_no_third() {
    let one = One::new();
    assert_eq!([0, 1, 2, 3].map(|tier| one.give(4, tier, 0)), {
        use Taken::{Refused, Stored};
        [Refused, Stored, Stored, Refused]
    });
    assert_eq!((one.holds(1), one.holds(2)), (vec![4], vec![4]));
}

#[test]
fn a_wrong_copy_is_replaced_by_the_right_one_that_is_given() {
    let one = One::new();
    let tier = |tier| one.run.cache.tier(tier).unwrap();
    tier(1).put(4, &[9; SIZE as usize], 0);
    tier(2).put(4, &one.bytes(4), 0);
    assert_eq!(one.give(4, 1, 0), Taken::Stored);
    let mut into = [0; SIZE as usize];
    for number in [1, 2] {
        assert_eq!(tier(number).get(4, &mut into), Get::Hit);
        assert!(into == one.bytes(4)[..], "tier {number}");
    }
    let damaged: Vec<u64> =
        one.run.metrics.snapshot().tiers.iter().map(|tier| tier.damaged).collect();
    assert_eq!(damaged, [1, 0]);
}

/// Room that others free for a sample comes a little later: what waits for no user goes only if it does not.
#[test]
fn a_refusal_is_forgotten_when_the_sample_has_come() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    assert_eq!(one.give(9, 1, 0), Taken::NoRoom);
    one.counter.told(1, &Notice::Released { epoch: 1, samples: vec![1] });
    assert_eq!(one.give(9, 1, 0), Taken::Stored);
    assert_eq!(kinds(&one.ask(1, &[(9, true)], 1 << 20)), ["here"]);
    assert_eq!(one.give(10, 1, 1), Taken::Stored, "in its place");
    // Longer than room may be lacking, if anything had lacked it.
    std::thread::sleep(Duration::from_millis(400));
    for node in 0..3 {
        lock(&one.peers().talk).ledger.done(node, 1);
    }
    assert_eq!(one.give(9, 1, 2), Taken::NoRoom, "it has just begun to lack room");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(one.give(9, 1, 2), Taken::Stored);
    assert!(one.holds(1).contains(&10), "what waits for a user stays");
}

#[test]
fn a_copy_that_an_epoch_is_about_to_put_again_does_not_go_in_it() {
    let one = One::new();
    for sample in [2, 3] {
        one.hold(1, sample, 0);
    }
    one.peers().comes(1, 2, 1);
    for sample in [2, 3] {
        one.peers().let_go(&one.run, 1, sample, 1);
    }
    assert_eq!(one.holds(1), [2]);
}

#[test]
fn what_is_no_sample_of_the_dataset_is_refused() {
    let one = One::new();
    assert_eq!(one.give_bytes(SAMPLES, 1, 0, &[7; SIZE as usize]), Taken::Refused);
    assert_eq!(one.give_bytes(SAMPLES + 1, 1, 0, &[7; SIZE as usize]), Taken::Refused);
    assert_eq!(one.give_bytes(4, 1, 0, &[7; SIZE as usize - 1]), Taken::Refused);
    assert!(one.holds(1).is_empty());
    assert_eq!(one.metrics().damaged, 0, "nothing is wrong with it but that");
}

/// What is put here waits for the next epoch, and what that one leaves for the one after it.
#[test]
fn what_a_peer_uses_again_does_not_go_for_lack_of_room() {
    use Taken::{NoRoom, Stored};
    let one = One::new();
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    assert_eq!(kinds(&one.ask(1, &[(1, false)], 1 << 20)), ["here"]);
    for node in 0..3 {
        lock(&one.peers().talk).ledger.done(node, 1);
    }
    assert_eq!([9, 10, 11].map(|sample| one.give(sample, 1, 1)), [NoRoom; 3]);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!([9, 10, 11].map(|sample| one.give(sample, 1, 1)), [Stored, Stored, NoRoom]);
    assert_eq!(one.holds(1), [1, 9, 10]);
}

#[test]
fn what_could_not_be_put_claims_nothing() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    assert_eq!(one.give(9, 1, 5), Taken::NoRoom);
    one.counter.told(1, &Notice::Released { epoch: 1, samples: vec![0] });
    // For an earlier epoch, whose use of it is the last.
    assert_eq!(one.give(9, 1, 0), Taken::Stored);
    assert_eq!(kinds(&one.ask(1, &[(9, true)], 1 << 20)), ["here"]);
    assert_eq!(one.give(10, 1, 1), Taken::Stored, "in its place");
    assert_eq!(one.holds(1), [1, 2, 10]);
}
