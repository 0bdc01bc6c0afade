//! What a step that retires evicts and stores.

use super::*;

#[test]
fn a_step_cancels_what_earlier_steps_keep_and_not_what_it_keeps_itself() {
    for (leader, cancelled) in [(1, Some(1)), (2, None), (3, None)] {
        let mut one = One::new();
        one.begin_epoch(2);
        one.others_have_loaded(2);
        // One by its last use, another by an eviction.
        assert!(
            one.job.in_flight.lead_arrived(4, leader) && one.job.in_flight.lead_arrived(5, leader)
        );
        let used_up = BatchItem::from_tier(4, 1, true, None);
        let batch = one.batch(2, 0, vec![used_up], vec![Evict { sample: 5, tier: 1 }]);
        batch.filled(1);
        let ended = [4, 5].map(|sample| one.job.in_flight.end(sample).cancelled);
        assert_eq!(ended, [cancelled; 2], "led by batch {leader}");
    }
}

#[test]
fn a_step_evicts_the_samples_of_their_last_use_and_keeps_those_from_the_source() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    let items = vec![
        BatchItem::from_tier(0, 1, true, None),
        BatchItem::from_tier(1, 1, false, None),
        BatchItem::new(7, SampleOrigin::Source, true, Some(2)),
        BatchItem::from_source(8, Some(1)),
    ];
    let batch = one.batch(1, 0, items, vec![Evict { sample: 2, tier: 1 }]);
    batch.filled(4);
    assert!(matches!(one.consumer.take(Some(LONG)), Take::Batch(_)));
    // Another node has put 2 in this epoch, and the eviction is of an older copy.
    assert_eq!((one.holds(1), one.holds(2)), (vec![1, 2, 8], vec![7]));
    // A stored sample is claimed for the next epoch: no push evicts it.
    assert_eq!((one.give(9, 1, 0), one.give(9, 2, 0)), (PushOutcome::NoSpace, PushOutcome::Stored));
}
