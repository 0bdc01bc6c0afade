//! Samples that other nodes are to keep.

use super::*;
use crate::load;

/// Three gifts for an outbox with room for two.
fn gives(one: &mut One) -> Arc<Parcel> {
    one.run.begin_epoch(1);
    let items = (0..4).map(|sample| Item::new(sample, SOURCE, false, NOWHERE)).collect();
    let gift = |(item, to)| Gift { item, to, tier: 2 };
    let gifts = [(0, 1), (1, 2), (3, 1)].map(gift).into();
    let parcel = one.empty_batch((1, 0), items, vec![], gifts);
    load::dispatch(&parcel, 0..4);
    parcel
}

#[test]
fn gifts_go_to_the_nodes_that_are_to_keep_them_and_then_the_epoch_is_done() {
    let mut one = One::new();
    one.others_have_loaded(1);
    gives(&mut one);
    one.take();
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
    let mut first = lock(&one.players[0].given).clone();
    first.sort_unstable();
    assert_eq!(first, [(0, 2, 0), (3, 2, 0)]);
    assert_eq!(*lock(&one.players[1].given), [(1, 2, 0)]);
    let pushed = one.metrics().pushed;
    assert_eq!((pushed.samples, pushed.bytes, one.metrics().dropped), (3, 3 * SIZE, 0));
}

#[test]
fn a_gift_that_is_refused_is_dropped_and_one_without_room_is_brought_again() {
    let mut one = One::new();
    one.others_have_loaded(1);
    *lock(&one.players[0].answer) = Taken::Refused;
    *lock(&one.players[1].answer) = Taken::NoRoom;
    gives(&mut one);
    wait_for(|| lock(&one.players[1].given).len() > 1, &"a second try");
    assert!(!lock(&one.peers().talk).ledger.is_over(0, 0), "something is left to give");
    *lock(&one.players[1].answer) = Taken::Stored;
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
    assert_eq!((one.metrics().pushed.samples, one.metrics().dropped), (1, 2));
}

#[test]
fn gifts_for_a_node_that_is_gone_are_dropped() {
    let mut one = One::new();
    one.others_have_loaded(1);
    lock(&one.peers().talk).health.left(1);
    gives(&mut one);
    one.take();
    one.players[1].hears(&Notice::EpochDone { epoch: 0 });
    assert_eq!((one.metrics().pushed.samples, one.metrics().dropped), (1, 2));
    assert!(lock(&one.players[0].given).is_empty());
}

#[test]
fn what_waits_for_a_node_that_leaves_is_dropped() {
    let mut one = One::new();
    one.others_have_loaded(1);
    *lock(&one.players[0].answer) = Taken::NoRoom;
    gives(&mut one);
    wait_for(|| lock(&one.players[0].given).len() > 1, &"a second try");
    lock(&one.peers().talk).health.left(1);
    one.take();
    wait_for(|| one.metrics().dropped == 2, &"the end of what waits for it");
    one.players[1].hears(&Notice::EpochDone { epoch: 0 });
    assert_eq!(one.metrics().pushed.samples, 1);
}

/// The outbox is full of what the batch before it leaves, which others have no room for.
#[test]
fn a_batch_that_its_consumer_starves_for_waits_for_no_room_in_the_outbox() {
    let patience = Duration::from_millis(200);
    let mut one = One::with(PeerPatience { answer: LONG, wait: patience });
    one.run.begin_epoch(2);
    one.others_have_loaded(2);
    for player in &one.players {
        *lock(&player.answer) = Taken::NoRoom;
    }
    let plain = |sample| Item::new(sample, SOURCE, false, NOWHERE);
    let gift = |(item, to)| Gift { item, to, tier: 2 };
    let gifts = [(0, 1), (1, 2)].map(gift).into();
    let first = one.empty_batch((1, 0), vec![plain(0), plain(1)], vec![], gifts);
    let second = one.empty_batch((2, 0), vec![plain(3)], vec![], vec![gift((0, 1))]);
    load::dispatch(&second, 0..1);
    wait_for(|| second.left() == 0, &"the second batch");
    (0..2).for_each(|_| one.run.asked.ask());
    std::thread::sleep(patience);
    load::dispatch(&first, 0..2);
    drop((first, second));
    one.take();
    one.take();
    wait_for(|| one.metrics().dropped == 3, &"the end of all that was to be given");
    assert_eq!(one.metrics().pushed.samples, 0);
}

#[test]
fn what_this_node_has_no_room_for_is_kept_when_there_is_some() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    let parcel = one.empty_batch((1, 0), vec![Item::new(8, SOURCE, false, 1)], vec![], vec![]);
    load::dispatch(&parcel, 0..1);
    drop(parcel);
    one.take();
    assert_eq!(one.holds(1), [0, 1, 2], "the batch does not wait for that");
    one.counter.told(1, &Notice::Released { epoch: 1, samples: vec![1] });
    wait_for(|| one.holds(1) == [0, 2, 8], &"the sample in its tier");
    assert_eq!((one.metrics().pushed.samples, one.metrics().dropped), (0, 0));
}

#[test]
fn a_run_that_is_abandoned_lets_go_of_the_batches_that_wait() {
    let mut one = One::new();
    one.others_have_loaded(1);
    for player in &one.players {
        *lock(&player.answer) = Taken::NoRoom;
    }
    // One waits for room in the outbox.
    let in_the_outbox = Arc::downgrade(&gives(&mut one));
    wait_for(|| lock(&one.players[0].given).len() > 1, &"a second try");
    // One waits at the gate of a peer, behind four that wait for a thread.
    let busy = one.busy_threads();
    let mut remote = |at: u32| {
        let items = vec![Item::remote(at + 4, (1, 1), false, NOWHERE)];
        let parcel = one.empty_batch((u64::from(at) + 1, 0), items, vec![], vec![]);
        load::dispatch(&parcel, 0..1);
        Arc::downgrade(&parcel)
    };
    let at_the_gate = (1..6).map(&mut remote).collect::<Vec<_>>().pop().unwrap();
    assert_eq!(lock(&one.peers().gates[1]).waiting.len(), 1);
    assert!(in_the_outbox.strong_count() > 0 && at_the_gate.strong_count() > 0);
    std::thread::scope(|scope| {
        scope.spawn(|| one.run.abandon());
        std::thread::sleep(Duration::from_millis(50));
        drop(busy);
    });
    wait_for(|| in_the_outbox.strong_count() == 0, &"the end of the first");
    wait_for(|| at_the_gate.strong_count() == 0, &"the end of the last");
}
