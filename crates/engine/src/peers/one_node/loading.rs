//! Where the samples of a batch come from.

use super::super::notify;
use super::*;
use crate::load;

#[test]
fn samples_come_from_the_peers_that_hold_them_else_from_the_source() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    for sample in [1, 2] {
        one.players[0].hold(sample, one.bytes(sample));
    }
    let right = one.bytes(3);
    let wrong = right.iter().map(|byte| !byte).collect();
    lock(&one.players[0].held).insert(3, (wrong, digest_of(3, &right)));
    let remote = |sample, peer, last_use| Item::remote(sample, (peer, 1), last_use, NOWHERE);
    // 4 and 5 are not where they should be: one is let go there, the other is brought back.
    let items = vec![
        remote(1, 1, false),
        remote(2, 1, true),
        remote(3, 1, true),
        remote(4, 2, true),
        remote(5, 2, false),
        // It was there by chance.
        Item::remote(6, (2, NOWHERE), false, NOWHERE),
    ];
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..6);
    drop(parcel);
    let batch = one.take();
    for (at, sample) in (1..7).enumerate() {
        assert!(batch.bytes(at) == one.bytes(sample), "sample {sample}");
    }
    let mut asked = lock(&one.players[0].asked).clone();
    asked.sort_unstable();
    assert_eq!(asked, [(1, false), (2, true), (3, true)]);
    let metrics = one.metrics();
    assert_eq!((metrics.read.samples, metrics.read.bytes), (2, 2 * SIZE));
    assert_eq!((metrics.damaged, metrics.misses, metrics.retries), (1, 4, 0));
    assert_eq!(one.run.metrics.snapshot().source.samples, 4);
    one.players[1].hears(&Notice::EpochDone { epoch: 0 });
    assert_eq!(*lock(&one.players[1].given), [(5, 1, 0)], "it is put back");
    notify::all(&one.run);
    one.players[0].hears(&Notice::Released { epoch: 0, samples: vec![3] });
    one.players[1].hears(&Notice::Released { epoch: 0, samples: vec![4] });
}

#[test]
fn a_peer_that_is_down_is_not_asked_and_its_samples_come_from_the_source() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    lock(&one.peers().talk).health.left(1);
    let parcel =
        one.empty_batch((1, 0), vec![Item::remote(1, (1, 1), false, NOWHERE)], vec![], vec![]);
    load::dispatch(&parcel, 0..1);
    let batch = one.take();
    assert!(batch.bytes(0) == one.bytes(1));
    assert!(lock(&one.players[0].asked).is_empty());
    assert_eq!((one.metrics().misses, one.metrics().read.samples), (1, 0));
}

#[test]
fn a_sample_that_a_batch_has_several_times_is_asked_for_once() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    for sample in 0..SAMPLES {
        one.players[1].hold(sample, one.bytes(sample));
    }
    let items: Vec<Item> =
        (0..100).map(|at| Item::remote(at % SAMPLES, (2, 1), false, NOWHERE)).collect();
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..100);
    let batch = one.take();
    assert!((0..100).all(|at| batch.bytes(at) == one.bytes(at as u32 % SAMPLES)));
    assert_eq!(lock(&one.players[1].asked).len(), SAMPLES as usize);
    wait_for(|| lock(&one.peers().gates[2]).errands() == 0, &"the end of the errand");
}

#[test]
fn samples_of_both_tiers_come_from_there() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    for (tier, sample) in [(1, 0), (2, 1), (1, 2), (2, 3)] {
        one.hold(tier, sample, 0);
    }
    let local = |(tier, sample)| Item::new(sample, tier, false, NOWHERE);
    let items = [(1, 0), (2, 1), (2, 3), (1, 2), (1, 0)].map(local).into();
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..5);
    let batch = one.take();
    for (at, sample) in [0, 1, 3, 2, 0].into_iter().enumerate() {
        assert!(batch.bytes(at) == one.bytes(sample), "sample {sample}");
    }
    let metrics = one.run.metrics.snapshot();
    assert_eq!(metrics.source.samples, 0);
    let read: Vec<_> = metrics.tiers.iter().map(|tier| tier.read).collect();
    assert_eq!(read.iter().map(|read| read.samples).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(read.iter().map(|read| read.bytes).collect::<Vec<_>>(), [3 * SIZE, 2 * SIZE]);
}

#[test]
fn what_is_not_where_it_should_be_is_put_back_if_it_is_to_stay_there() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    one.hold(2, 5, 0);
    let items = vec![
        Item::new(4, 1, false, NOWHERE),
        // It goes after this use.
        Item::new(6, 1, true, NOWHERE),
        // It was there by chance.
        Item::guest(7, 1, NOWHERE),
        // It is in another tier.
        Item::new(5, 1, false, NOWHERE),
        // It is to be kept elsewhere.
        Item::new(8, 1, false, 2),
    ];
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..5);
    drop(parcel);
    let batch = one.take();
    for (at, sample) in [4, 6, 7, 5, 8].into_iter().enumerate() {
        assert!(batch.bytes(at) == one.bytes(sample), "sample {sample}");
    }
    assert_eq!((one.holds(1), one.holds(2)), (vec![4], vec![5, 8]));
    let metrics = one.run.metrics.snapshot();
    assert_eq!(metrics.source.samples, 4);
    assert_eq!(metrics.tiers[0].read_us.count, 0, "a miss says nothing of how fast a tier is");
}

/// Two batches that need the same sample: it is read once, and both have it.
#[test]
fn a_sample_on_its_way_is_read_once_for_all_who_want_it() {
    let mut one = One::new();
    one.run.begin_epoch(2);
    one.others_have_loaded(2);
    let from_source = |sample, keep| Item::new(sample, SOURCE, false, keep);
    let first = one.empty_batch((1, 0), vec![from_source(3, 1)], vec![], vec![]);
    let items = vec![from_source(3, NOWHERE), from_source(4, NOWHERE)];
    let second = one.empty_batch((2, 0), items, vec![], vec![]);
    // The first one leads, and is not there yet.
    assert_eq!(one.run.flights.lead_or_wait(3, 1, || unreachable!()), crate::flights::Turn::Lead);
    first.items[0].set_leads(true);
    load::dispatch(&second, 0..2);
    wait_for(|| second.left() == 1, &"the other sample");
    // SAFETY: nothing else loads it.
    unsafe { first.slot(0) }.copy_from_slice(&one.bytes(3));
    load::arrived(&first, 0);
    one.run.loaded(&first, 1);
    for sample in [3, 3] {
        let batch = one.take();
        assert!(batch.bytes(0) == one.bytes(sample));
    }
    assert_eq!(one.run.metrics.snapshot().source.samples, 1);
    wait_for(|| one.holds(1) == [3], &"the copy that is kept");
}

#[test]
fn what_a_peer_does_not_have_yet_is_asked_for_again() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    one.players[0].expects_more.store(true, Ordering::Release);
    let items = vec![Item::remote(1, (1, 1), false, NOWHERE)];
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..1);
    wait_for(|| one.metrics().retries > 2, &"the third try");
    one.players[0].hold(1, one.bytes(1));
    assert!(one.take().bytes(0) == one.bytes(1));
    assert_eq!((one.metrics().misses, one.metrics().read.samples), (0, 1));
    assert_eq!(one.run.metrics.snapshot().source.samples, 0);
}

#[test]
fn what_a_peer_out_of_step_does_not_have_yet_is_not_waited_for() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    one.players[0].expects_more.store(true, Ordering::Release);
    lock(&one.peers().talk).pace.restarted(1);
    let items = vec![Item::remote(1, (1, 1), false, NOWHERE)];
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..1);
    assert!(one.take().bytes(0) == one.bytes(1));
    assert_eq!(*lock(&one.players[0].asked), [(1, false)], "it may have it all the same");
    assert_eq!((one.metrics().misses, one.metrics().retries), (1, 0));
}

#[test]
fn what_another_node_has_yet_to_put_here_is_waited_for() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    // It waits for epoch 1, and not all are done with the one before.
    let items = vec![Item::new(4, 1, false, NOWHERE)];
    let parcel = one.empty_batch((1, 1), items, vec![], vec![]);
    load::dispatch(&parcel, 0..1);
    wait_for(|| one.metrics().retries > 2, &"the third look");
    assert_eq!(one.give(4, 1, 0), Taken::Stored);
    assert!(one.take().bytes(0) == one.bytes(4));
    assert_eq!(one.run.metrics.snapshot().source.samples, 0);
}

/// Four errands to one peer are under way at most, of all the items that a batch wants from it.
#[test]
fn the_fifth_errand_to_a_peer_waits_and_goes_when_another_one_is_over() {
    let mut one = One::new();
    one.run.begin_epoch(5);
    one.others_have_loaded(5);
    for sample in 0..10 {
        one.players[0].hold(sample, one.bytes(sample));
    }
    let player = one.players[0].clone();
    let silent = lock(&player.held);
    let remote = |sample| Item::remote(sample, (1, 1), false, NOWHERE);
    for at in 0..5 {
        let items = vec![remote(2 * at), remote(2 * at + 1)];
        let parcel = one.empty_batch((u64::from(at) + 1, 0), items, vec![], vec![]);
        load::dispatch(&parcel, 0..2);
    }
    let errands = |one: &One| lock(&one.peers().gates[1]).errands();
    assert_eq!((errands(&one), lock(&one.peers().gates[1]).waiting.len()), (5, 1));
    drop(silent);
    for at in 0..5 {
        let batch = one.take();
        assert!((0..2).all(|of| batch.bytes(of) == one.bytes(2 * at + of as u32)));
    }
    wait_for(|| errands(&one) == 0, &"the end of the errands");
    assert_eq!((lock(&one.players[0].asked).len(), one.metrics().read.samples), (10, 10));
}

/// While every thread is busy.
#[test]
fn what_lies_in_the_fastest_memory_is_loaded_at_once_and_the_rest_by_threads() {
    let mut one = One::new();
    one.run.begin_epoch(2);
    one.others_have_loaded(2);
    for (tier, sample) in [(1, 0), (1, 1), (2, 2), (2, 3)] {
        one.hold(tier, sample, 0);
    }
    let busy = one.busy_threads();
    let local = |(tier, sample)| Item::new(sample, tier, false, NOWHERE);
    let fast = one.empty_batch((1, 0), [(1, 0), (1, 1)].map(local).into(), vec![], vec![]);
    load::dispatch(&fast, 0..2);
    assert_eq!(
        (fast.left(), one.run.lane.queued()),
        (0, 2),
        "what is told to the two others waits"
    );
    let slower = one.empty_batch((2, 0), [(2, 2), (2, 3)].map(local).into(), vec![], vec![]);
    load::dispatch(&slower, 0..2);
    assert_eq!((slower.left(), one.run.lane.queued()), (2, 3), "one piece of work for both");
    drop((fast, slower, busy));
    assert!(one.take().bytes(1) == one.bytes(1) && one.take().bytes(1) == one.bytes(3));
}

#[test]
fn reads_of_a_batch_are_dealt_so_that_every_thread_gets_some_and_none_all() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    let busy = one.busy_threads();
    let items = (0..SAMPLES).map(|sample| Item::new(sample, SOURCE, false, NOWHERE)).collect();
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..SAMPLES);
    // Two pieces of work for each of the two threads.
    assert_eq!(one.run.lane.queued(), 4);
    drop((parcel, busy));
    let batch = one.take();
    assert!((0..SAMPLES).all(|at| batch.bytes(at as usize) == one.bytes(at)));
}

#[test]
fn what_a_prefetcher_has_brought_since_it_was_planned_is_not_read_again() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    one.run.prefetchers.pretend_to_have_fetched();
    one.hold(1, 2, 0);
    one.hold(2, 3, 0);
    let items = [2, 3, 4].map(|sample| Item::new(sample, SOURCE, false, NOWHERE)).into();
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..3);
    let batch = one.take();
    assert!([2, 3, 4].into_iter().enumerate().all(|(at, it)| batch.bytes(at) == one.bytes(it)));
    let metrics = one.run.metrics.snapshot();
    assert_eq!(metrics.source.samples, 1);
    assert_eq!(metrics.tiers.iter().map(|tier| tier.read.samples).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn only_what_stays_where_it_is_is_lent() {
    let mut one = One::built(PeerPatience { answer: LONG, wait: LONG }, Lend::ReadOnly);
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    for (tier, sample) in [(1, 0), (1, 1), (1, 2)] {
        one.hold(tier, sample, 0);
    }
    // One stays, one goes after this use, one is to be kept elsewhere.
    let items = vec![
        Item::new(0, 1, false, NOWHERE),
        Item::new(1, 1, true, NOWHERE),
        Item::new(2, 1, false, 2),
    ];
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..3);
    drop(parcel);
    let batch = one.take();
    assert!(batch.bytes(1) == one.bytes(1) && batch.bytes(2) == one.bytes(2));
    let tier = &one.run.metrics.snapshot().tiers[0];
    assert_eq!((tier.lent.samples, tier.lent.bytes, tier.read.samples), (1, SIZE, 2));
    assert_eq!((one.holds(1), one.holds(2)), (vec![0, 2], vec![2]));
}
