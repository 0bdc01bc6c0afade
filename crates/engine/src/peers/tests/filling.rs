//! Where the samples of a batch come from.

use super::*;

#[test]
fn samples_come_from_the_peers_that_hold_them_else_from_the_source() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    for sample in [1, 2] {
        one.players[0].hold(sample, one.bytes(sample));
    }
    let right = one.bytes(3);
    let wrong = right.iter().map(|byte| !byte).collect();
    lock(&one.players[0].held).insert(3, (wrong, digest_of(3, &right)));
    let remote =
        |sample, peer, last_use| BatchItem::from_peer(sample, (peer, Some(1)), last_use, None);
    // 4 and 5 are not where they should be: one is released there, the other is put back.
    let items = vec![
        remote(1, 1, false),
        remote(2, 1, true),
        remote(3, 1, true),
        remote(4, 2, true),
        remote(5, 2, false),
        // A warm entry.
        BatchItem::from_peer(6, (2, None), false, None),
    ];
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..6);
    drop(batch);
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
    assert_eq!(one.job.metrics.snapshot().source.samples, 4);
    one.players[1].hears(&Notice::EpochDone { epoch: 0 });
    assert_eq!(*lock(&one.players[1].given), [(5, 1, 0)], "it is put back");
    one.peers().notify_all();
    one.players[0].hears(&Notice::Released { epoch: 0, samples: vec![3] });
    one.players[1].hears(&Notice::Released { epoch: 0, samples: vec![4] });
}

#[test]
fn a_peer_that_is_down_is_not_asked_and_its_samples_come_from_the_source() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    lock(&one.peers().status).health.left(1);
    let batch = one.empty_batch(
        (1, 0),
        vec![BatchItem::from_peer(1, (1, Some(1)), false, None)],
        vec![],
        vec![],
    );
    one.fill.dispatch(&batch, 0..1);
    let batch = one.take();
    assert!(batch.bytes(0) == one.bytes(1));
    assert!(lock(&one.players[0].asked).is_empty());
    assert_eq!((one.metrics().misses, one.metrics().read.samples), (1, 0));
}

#[test]
fn a_sample_that_a_batch_has_several_times_is_asked_for_once() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    for sample in 0..SAMPLES {
        one.players[1].hold(sample, one.bytes(sample));
    }
    let items: Vec<BatchItem> =
        (0..100).map(|at| BatchItem::from_peer(at % SAMPLES, (2, Some(1)), false, None)).collect();
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..100);
    let batch = one.take();
    assert!((0..100).all(|at| batch.bytes(at) == one.bytes(at as u32 % SAMPLES)));
    assert_eq!(lock(&one.players[1].asked).len(), SAMPLES as usize);
    wait_for(|| lock(&one.peers().gates[2]).len() == 0, &"the end of the request");
}

#[test]
fn samples_in_both_tiers_are_read_from_them() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    for (tier, sample) in [(1, 0), (2, 1), (1, 2), (2, 3)] {
        one.hold(tier, sample, 0);
    }
    let local = |(tier, sample)| BatchItem::from_tier(sample, tier, false, None);
    let items = [(1, 0), (2, 1), (2, 3), (1, 2), (1, 0)].map(local).into();
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..5);
    let batch = one.take();
    for (at, sample) in [0, 1, 3, 2, 0].into_iter().enumerate() {
        assert!(batch.bytes(at) == one.bytes(sample), "sample {sample}");
    }
    let metrics = one.job.metrics.snapshot();
    assert_eq!(metrics.source.samples, 0);
    let read: Vec<_> = metrics.tiers.iter().map(|tier| tier.read).collect();
    assert_eq!(read.iter().map(|read| read.samples).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(read.iter().map(|read| read.bytes).collect::<Vec<_>>(), [3 * SIZE, 2 * SIZE]);
}

#[test]
fn a_missing_sample_is_put_back_if_the_policy_keeps_it_there() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    one.hold(2, 5, 0);
    let items = vec![
        BatchItem::from_tier(4, 1, false, None),
        // Evicted after this use.
        BatchItem::from_tier(6, 1, true, None),
        // A warm entry.
        BatchItem::from_warm_entry(7, 1, None),
        // In another tier.
        BatchItem::from_tier(5, 1, false, None),
        // Kept in another tier.
        BatchItem::from_tier(8, 1, false, Some(2)),
    ];
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..5);
    drop(batch);
    let batch = one.take();
    for (at, sample) in [4, 6, 7, 5, 8].into_iter().enumerate() {
        assert!(batch.bytes(at) == one.bytes(sample), "sample {sample}");
    }
    assert_eq!((one.holds(1), one.holds(2)), (vec![4], vec![5, 8]));
    let metrics = one.job.metrics.snapshot();
    assert_eq!(metrics.source.samples, 4);
    assert_eq!(metrics.tiers[0].read_us.count, 0, "a miss is no measurement");
}

#[test]
fn a_sample_in_flight_is_read_once_for_all_batches_that_need_it() {
    let mut one = One::new();
    one.begin_epoch(2);
    one.others_have_loaded(2);
    let first = one.empty_batch((1, 0), vec![BatchItem::from_source(3, Some(1))], vec![], vec![]);
    let items = vec![BatchItem::from_source(3, None), BatchItem::from_source(4, None)];
    let second = one.empty_batch((2, 0), items, vec![], vec![]);
    // The first batch leads the read, which has not arrived yet.
    assert_eq!(one.job.in_flight.lead_or_wait(3, 1, || unreachable!()), ReadRole::Lead);
    first.items[0].set_leads(true);
    one.fill.dispatch(&second, 0..2);
    wait_for(|| second.missing() == 1, &"the other sample");
    // SAFETY: nothing else loads it.
    unsafe { first.slot(0) }.copy_from_slice(&one.bytes(3));
    first.arrived(0);
    first.filled(1);
    for sample in [3, 3] {
        let batch = one.take();
        assert!(batch.bytes(0) == one.bytes(sample));
    }
    assert_eq!(one.job.metrics.snapshot().source.samples, 1);
    wait_for(|| one.holds(1) == [3], &"the copy that is kept");
}

#[test]
fn a_sample_that_a_peer_does_not_have_yet_is_asked_for_again() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    one.players[0].expects_more.store(true, Ordering::Release);
    let items = vec![BatchItem::from_peer(1, (1, Some(1)), false, None)];
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..1);
    wait_for(|| one.metrics().retries > 2, &"the third try");
    one.players[0].hold(1, one.bytes(1));
    assert!(one.take().bytes(0) == one.bytes(1));
    assert_eq!((one.metrics().misses, one.metrics().read.samples), (0, 1));
    assert_eq!(one.job.metrics.snapshot().source.samples, 0);
}

#[test]
fn a_sample_of_a_peer_out_of_step_is_not_waited_for() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    one.players[0].expects_more.store(true, Ordering::Release);
    lock(&one.peers().status).fence.restarted(1);
    let items = vec![BatchItem::from_peer(1, (1, Some(1)), false, None)];
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..1);
    assert!(one.take().bytes(0) == one.bytes(1));
    assert_eq!(*lock(&one.players[0].asked), [(1, false)], "it may have it nevertheless");
    assert_eq!((one.metrics().misses, one.metrics().retries), (1, 0));
}

#[test]
fn a_sample_that_another_node_has_yet_to_push_is_waited_for() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.begin_epoch(1);
    one.others_have_loaded(1);
    // The sample is for epoch 1, and not all nodes are done with the epoch before.
    let items = vec![BatchItem::from_tier(4, 1, false, None)];
    let batch = one.empty_batch((1, 1), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..1);
    wait_for(|| one.metrics().retries > 2, &"the third lookup");
    assert_eq!(one.give(4, 1, 0), PushOutcome::Stored);
    assert!(one.take().bytes(0) == one.bytes(4));
    assert_eq!(one.job.metrics.snapshot().source.samples, 0);
}

#[test]
fn the_fifth_request_to_a_peer_waits_for_the_end_of_another_one() {
    let mut one = One::new();
    one.begin_epoch(5);
    one.others_have_loaded(5);
    for sample in 0..10 {
        one.players[0].hold(sample, one.bytes(sample));
    }
    let player = one.players[0].clone();
    let silent = lock(&player.held);
    let remote = |sample| BatchItem::from_peer(sample, (1, Some(1)), false, None);
    for at in 0..5 {
        let items = vec![remote(2 * at), remote(2 * at + 1)];
        let batch = one.empty_batch((u64::from(at) + 1, 0), items, vec![], vec![]);
        one.fill.dispatch(&batch, 0..2);
    }
    let requests = |one: &One| lock(&one.peers().gates[1]).len();
    assert_eq!((requests(&one), lock(&one.peers().gates[1]).waiting.len()), (5, 1));
    drop(silent);
    for at in 0..5 {
        let batch = one.take();
        assert!((0..2).all(|of| batch.bytes(of) == one.bytes(2 * at + of as u32)));
    }
    wait_for(|| requests(&one) == 0, &"the end of the requests");
    assert_eq!((lock(&one.players[0].asked).len(), one.metrics().read.samples), (10, 10));
}

/// While every thread is busy.
#[test]
fn samples_in_the_fastest_tier_are_copied_at_once_and_others_by_threads() {
    let mut one = One::new();
    one.begin_epoch(2);
    one.others_have_loaded(2);
    for (tier, sample) in [(1, 0), (1, 1), (2, 2), (2, 3)] {
        one.hold(tier, sample, 0);
    }
    let busy = one.busy_threads();
    let local = |(tier, sample)| BatchItem::from_tier(sample, tier, false, None);
    let fast = one.empty_batch((1, 0), [(1, 0), (1, 1)].map(local).into(), vec![], vec![]);
    one.fill.dispatch(&fast, 0..2);
    assert_eq!(
        (fast.missing(), one.job.lane.queued()),
        (0, 2),
        "the notices to the two others wait"
    );
    let slower = one.empty_batch((2, 0), [(2, 2), (2, 3)].map(local).into(), vec![], vec![]);
    one.fill.dispatch(&slower, 0..2);
    assert_eq!((slower.missing(), one.job.lane.queued()), (2, 3), "one task for both");
    drop((fast, slower, busy));
    assert!(one.take().bytes(1) == one.bytes(1) && one.take().bytes(1) == one.bytes(3));
}

#[test]
fn reads_of_a_batch_are_spread_over_all_threads() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    let busy = one.busy_threads();
    let items = (0..SAMPLES).map(|sample| BatchItem::from_source(sample, None)).collect();
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..SAMPLES);
    // Two tasks for each of the two threads.
    assert_eq!(one.job.lane.queued(), 4);
    drop((batch, busy));
    let batch = one.take();
    assert!((0..SAMPLES).all(|at| batch.bytes(at as usize) == one.bytes(at)));
}

#[test]
fn a_sample_prefetched_since_it_was_planned_is_not_read_again() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    one.fill.prefetcher.pretend_to_have_fetched();
    one.hold(1, 2, 0);
    one.hold(2, 3, 0);
    let items = [2, 3, 4].map(|sample| BatchItem::from_source(sample, None)).into();
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..3);
    let batch = one.take();
    assert!([2, 3, 4].into_iter().enumerate().all(|(at, it)| batch.bytes(at) == one.bytes(it)));
    let metrics = one.job.metrics.snapshot();
    assert_eq!(metrics.source.samples, 1);
    assert_eq!(metrics.tiers.iter().map(|tier| tier.read.samples).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn only_a_sample_that_stays_in_its_tier_is_lent() {
    let mut one = One::built(PeerPatience { answer: LONG, wait: LONG }, Lend::ReadOnly);
    one.begin_epoch(1);
    one.others_have_loaded(1);
    for (tier, sample) in [(1, 0), (1, 1), (1, 2)] {
        one.hold(tier, sample, 0);
    }
    // One stays, one is evicted after this use, one moves to another tier.
    let items = vec![
        BatchItem::from_tier(0, 1, false, None),
        BatchItem::from_tier(1, 1, true, None),
        BatchItem::from_tier(2, 1, false, Some(2)),
    ];
    let batch = one.empty_batch((1, 0), items, vec![], vec![]);
    one.fill.dispatch(&batch, 0..3);
    drop(batch);
    let batch = one.take();
    assert!(batch.bytes(1) == one.bytes(1) && batch.bytes(2) == one.bytes(2));
    let tier = &one.job.metrics.snapshot().tiers[0];
    assert_eq!((tier.lent.samples, tier.lent.bytes, tier.read.samples), (1, SIZE, 2));
    assert_eq!((one.holds(1), one.holds(2)), (vec![0, 2], vec![2]));
}
