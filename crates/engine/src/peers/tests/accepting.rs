//! Which pushes of other nodes this node accepts, and what it evicts for them.

use super::*;

#[test]
fn only_samples_after_their_last_use_are_evicted_for_a_push() {
    for last_use in [false, true] {
        let one = One::new();
        (0..3).for_each(|sample| one.hold(1, sample, 0));
        assert_eq!(kinds(&one.ask(1, &[(1, last_use)], 1 << 20)), ["here"]);
        let taken = one.give(7, 1, 1);
        assert_eq!(taken, if last_use { PushOutcome::Stored } else { PushOutcome::NoSpace });
        assert_eq!(one.holds(1), if last_use { vec![0, 2, 7] } else { vec![0, 1, 2] });
        let volume = one.metrics().taken;
        let expected = if last_use { (1, SIZE) } else { (0, 0) };
        assert_eq!((volume.samples, volume.bytes), expected);
    }
}

#[test]
fn released_samples_are_evicted_for_pushes_and_unknown_ones_are_ignored() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(2, sample, 0));
    let samples = vec![SAMPLES, 99, 2, 5];
    one.handler.told(2, &Notice::Released { epoch: 1, samples });
    assert_eq!(one.give(8, 2, 1), PushOutcome::Stored);
    assert_eq!(one.holds(2), [0, 1, 8]);
    assert_eq!(one.give(9, 2, 1), PushOutcome::NoSpace);
}

#[test]
fn memory_is_taken_only_for_samples_of_the_dataset() {
    let one = One::new();
    assert!(one.handler.wants(0, SIZE) && one.handler.wants(SAMPLES - 1, SIZE));
    assert!(!one.handler.wants(SAMPLES, SIZE) && !one.handler.wants(SAMPLES + 1, SIZE));
    assert!(!one.handler.wants(0, SIZE - 1) && !one.handler.wants(0, SIZE + 1));
}

#[test]
fn a_push_for_an_epoch_that_is_over_is_refused() {
    let one = One::new();
    // The sample is for epoch 1, which is over with the second of these.
    for (epoch, taken) in [(0, PushOutcome::Stored), (1, PushOutcome::Refused)] {
        lock(&one.peers().status).epochs.done(0, epoch);
        assert_eq!(one.give(epoch, 1, 0), taken);
    }
    assert_eq!(one.give(4, 1, 1), PushOutcome::Stored);
    assert_eq!(one.give(4, 1, 1), PushOutcome::Stored, "it is here");
}

#[test]
fn pushes_to_tiers_that_do_not_exist_are_refused() {
    let one = One::new();
    assert_eq!([0, 1, 2, 3].map(|tier| one.give(4, tier, 0)), {
        use PushOutcome::{Refused, Stored};
        [Refused, Stored, Stored, Refused]
    });
    assert_eq!((one.holds(1), one.holds(2)), (vec![4], vec![4]));
}

#[test]
fn a_wrong_copy_is_replaced_by_a_right_one_that_is_pushed() {
    let one = One::new();
    let tier = |tier| one.job.tiers.get(tier).unwrap();
    tier(1).put(4, &[9; SIZE as usize], 0);
    tier(2).put(4, &one.bytes(4), 0);
    assert_eq!(one.give(4, 1, 0), PushOutcome::Stored);
    let mut into = [0; SIZE as usize];
    for number in [1, 2] {
        assert_eq!(tier(number).get(4, &mut into), Get::Hit);
        assert!(into == one.bytes(4)[..], "tier {number}");
    }
    let damaged: Vec<u64> =
        one.job.metrics.snapshot().tiers.iter().map(|tier| tier.damaged).collect();
    assert_eq!(damaged, [1, 0]);
}

/// Other nodes free space for a sample a little later: a sample without a claim is evicted only if
/// they do not.
#[test]
fn a_lack_of_space_is_forgotten_when_the_sample_is_stored() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    assert_eq!(one.give(9, 1, 0), PushOutcome::NoSpace);
    one.handler.told(1, &Notice::Released { epoch: 1, samples: vec![1] });
    assert_eq!(one.give(9, 1, 0), PushOutcome::Stored);
    assert_eq!(kinds(&one.ask(1, &[(9, true)], 1 << 20)), ["here"]);
    assert_eq!(one.give(10, 1, 1), PushOutcome::Stored, "in its place");
    // Longer than a lack of space is tolerated.
    std::thread::sleep(Duration::from_millis(400));
    for node in 0..3 {
        lock(&one.peers().status).epochs.done(node, 1);
    }
    assert_eq!(one.give(9, 1, 2), PushOutcome::NoSpace, "the lack of space has just begun");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(one.give(9, 1, 2), PushOutcome::Stored);
    assert!(one.holds(1).contains(&10), "a claimed sample stays");
}

#[test]
fn a_copy_that_an_epoch_is_about_to_put_again_is_not_evicted_in_it() {
    let one = One::new();
    for sample in [2, 3] {
        one.hold(1, sample, 0);
    }
    one.peers().will_put(1, 2, 1);
    for sample in [2, 3] {
        one.peers().evict(1, sample, 1);
    }
    assert_eq!(one.holds(1), [2]);
}

#[test]
fn a_push_of_a_sample_that_does_not_exist_is_refused() {
    let one = One::new();
    assert_eq!(one.give_bytes(SAMPLES, 1, 0, &[7; SIZE as usize]), PushOutcome::Refused);
    assert_eq!(one.give_bytes(SAMPLES + 1, 1, 0, &[7; SIZE as usize]), PushOutcome::Refused);
    assert_eq!(one.give_bytes(4, 1, 0, &[7; SIZE as usize - 1]), PushOutcome::Refused);
    assert!(one.holds(1).is_empty());
    assert_eq!(one.metrics().damaged, 0, "it is not damaged");
}

/// A sample that is stored is claimed for the next epoch, and one used there for the epoch after
/// it.
#[test]
fn a_sample_that_a_peer_uses_again_is_not_evicted_for_a_push() {
    use PushOutcome::{NoSpace, Stored};
    let one = One::new();
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    assert_eq!(kinds(&one.ask(1, &[(1, false)], 1 << 20)), ["here"]);
    for node in 0..3 {
        lock(&one.peers().status).epochs.done(node, 1);
    }
    assert_eq!([9, 10, 11].map(|sample| one.give(sample, 1, 1)), [NoSpace; 3]);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!([9, 10, 11].map(|sample| one.give(sample, 1, 1)), [Stored, Stored, NoSpace]);
    assert_eq!(one.holds(1), [1, 9, 10]);
}

#[test]
fn a_sample_that_could_not_be_stored_has_no_claim() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    assert_eq!(one.give(9, 1, 5), PushOutcome::NoSpace);
    one.handler.told(1, &Notice::Released { epoch: 1, samples: vec![0] });
    // For an earlier epoch, which uses it for the last time.
    assert_eq!(one.give(9, 1, 0), PushOutcome::Stored);
    assert_eq!(kinds(&one.ask(1, &[(9, true)], 1 << 20)), ["here"]);
    assert_eq!(one.give(10, 1, 1), PushOutcome::Stored, "in its place");
    assert_eq!(one.holds(1), [1, 2, 10]);
}
