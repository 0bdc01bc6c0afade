//! What a step that ends lets go and keeps.

use super::*;

#[test]
fn a_step_calls_off_what_earlier_ones_keep_and_not_what_it_keeps_itself() {
    for (leader, cancelled) in [(1, Some(1)), (2, None), (3, None)] {
        let mut one = One::new();
        one.run.begin_epoch(2);
        one.others_have_loaded(2);
        // One by its last use, another by an eviction.
        assert!(one.run.flights.lead_arrived(4, leader) && one.run.flights.lead_arrived(5, leader));
        let used_up = Item::new(4, 1, true, NOWHERE);
        let batch = one.batch(2, 0, vec![used_up], vec![Evict { sample: 5, tier: 1 }]);
        one.run.loaded(&batch, 1);
        let landed = [4, 5].map(|sample| one.run.flights.land(sample).cancelled);
        assert_eq!(landed, [cancelled; 2], "led by batch {leader}");
    }
}

#[test]
fn what_a_step_uses_for_the_last_time_goes_and_what_the_source_gave_does_not() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    let items = vec![
        Item::new(0, 1, true, NOWHERE),
        Item::new(1, 1, false, NOWHERE),
        Item::new(7, SOURCE, true, 2),
        Item::new(8, SOURCE, false, 1),
    ];
    let batch = one.batch(1, 0, items, vec![Evict { sample: 2, tier: 1 }]);
    one.run.loaded(&batch, 4);
    assert!(matches!(one.consumer.take(Some(LONG)), Take::Batch(_)));
    // 2 was put in this very epoch by another node, and the eviction is of an older copy.
    assert_eq!((one.holds(1), one.holds(2)), (vec![1, 2, 8], vec![7]));
    // What is put is claimed for the next epoch: nothing given makes it go.
    assert_eq!((one.give(9, 1, 0), one.give(9, 2, 0)), (Taken::NoRoom, Taken::Stored));
}
