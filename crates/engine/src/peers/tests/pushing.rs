//! Pushes of samples to the nodes that keep them.

use super::*;

/// Dispatches a batch with three pushes, for a push queue with space for two.
fn pushes(one: &mut One) -> Arc<PendingBatch> {
    one.begin_epoch(1);
    let items = (0..4).map(|sample| BatchItem::from_source(sample, None)).collect();
    let push = |(item, to)| PlannedPush { item, to, tier: 2 };
    let pushes = [(0, 1), (1, 2), (3, 1)].map(push).into();
    let batch = one.empty_batch((1, 0), items, vec![], pushes);
    one.fill.dispatch(&batch, 0..4);
    batch
}

#[test]
fn pushes_go_to_their_nodes_and_then_the_epoch_is_done() {
    let mut one = One::new();
    one.others_have_loaded(1);
    pushes(&mut one);
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
fn a_refused_push_is_dropped_and_one_without_space_is_sent_again() {
    let mut one = One::new();
    one.others_have_loaded(1);
    *lock(&one.players[0].answer) = PushOutcome::Refused;
    *lock(&one.players[1].answer) = PushOutcome::NoSpace;
    pushes(&mut one);
    wait_for(|| lock(&one.players[1].given).len() > 1, &"a second try");
    assert!(!lock(&one.peers().status).epochs.is_over(0, 0), "a push is left");
    *lock(&one.players[1].answer) = PushOutcome::Stored;
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
    assert_eq!((one.metrics().pushed.samples, one.metrics().dropped), (1, 2));
}

#[test]
fn pushes_to_a_node_that_is_gone_are_dropped() {
    let mut one = One::new();
    one.others_have_loaded(1);
    lock(&one.peers().status).health.left(1);
    pushes(&mut one);
    one.take();
    one.players[1].hears(&Notice::EpochDone { epoch: 0 });
    assert_eq!((one.metrics().pushed.samples, one.metrics().dropped), (1, 2));
    assert!(lock(&one.players[0].given).is_empty());
}

#[test]
fn queued_pushes_to_a_node_that_leaves_are_dropped() {
    let mut one = One::new();
    one.others_have_loaded(1);
    *lock(&one.players[0].answer) = PushOutcome::NoSpace;
    pushes(&mut one);
    wait_for(|| lock(&one.players[0].given).len() > 1, &"a second try");
    lock(&one.peers().status).health.left(1);
    one.take();
    wait_for(|| one.metrics().dropped == 2, &"the end of the pushes to it");
    one.players[1].hears(&Notice::EpochDone { epoch: 0 });
    assert_eq!(one.metrics().pushed.samples, 1);
}

/// The push queue is full of samples of the batch before, which other nodes have no space for.
#[test]
fn a_batch_whose_consumer_starves_does_not_wait_for_space_in_the_push_queue() {
    let patience = Duration::from_millis(200);
    let mut one = One::with(PeerPatience { answer: LONG, wait: patience });
    one.begin_epoch(2);
    one.others_have_loaded(2);
    for player in &one.players {
        *lock(&player.answer) = PushOutcome::NoSpace;
    }
    let plain = |sample| BatchItem::from_source(sample, None);
    let push = |(item, to)| PlannedPush { item, to, tier: 2 };
    let pushes = [(0, 1), (1, 2)].map(push).into();
    let first = one.empty_batch((1, 0), vec![plain(0), plain(1)], vec![], pushes);
    let second = one.empty_batch((2, 0), vec![plain(3)], vec![], vec![push((0, 1))]);
    one.fill.dispatch(&second, 0..1);
    wait_for(|| second.missing() == 0, &"the second batch");
    (0..2).for_each(|_| one.job.ranks[0].demand.request());
    std::thread::sleep(patience);
    one.fill.dispatch(&first, 0..2);
    drop((first, second));
    one.take();
    one.take();
    wait_for(|| one.metrics().dropped == 3, &"the end of all pushes");
    assert_eq!(one.metrics().pushed.samples, 0);
}

#[test]
fn a_sample_without_space_here_is_stored_when_there_is_space() {
    let mut one = One::new();
    one.begin_epoch(1);
    one.others_have_loaded(1);
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    let batch = one.empty_batch((1, 0), vec![BatchItem::from_source(8, Some(1))], vec![], vec![]);
    one.fill.dispatch(&batch, 0..1);
    drop(batch);
    one.take();
    assert_eq!(one.holds(1), [0, 1, 2], "the batch does not wait for that");
    one.handler.told(1, &Notice::Released { epoch: 1, samples: vec![1] });
    wait_for(|| one.holds(1) == [0, 2, 8], &"the sample in its tier");
    assert_eq!((one.metrics().pushed.samples, one.metrics().dropped), (0, 0));
}

#[test]
fn an_abandoned_run_drops_the_batches_that_wait() {
    let mut one = One::new();
    one.others_have_loaded(1);
    for player in &one.players {
        *lock(&player.answer) = PushOutcome::NoSpace;
    }
    // One waits for space in the push queue.
    let in_the_push_queue = Arc::downgrade(&pushes(&mut one));
    wait_for(|| lock(&one.players[0].given).len() > 1, &"a second try");
    // One waits at the gate of a peer, behind four that wait for a thread.
    let busy = one.busy_threads();
    let mut remote = |at: u32| {
        let items = vec![BatchItem::from_peer(at + 4, (1, Some(1)), false, None)];
        let batch = one.empty_batch((u64::from(at) + 1, 0), items, vec![], vec![]);
        one.fill.dispatch(&batch, 0..1);
        Arc::downgrade(&batch)
    };
    let at_the_gate = (1..6).map(&mut remote).collect::<Vec<_>>().pop().unwrap();
    assert_eq!(lock(&one.peers().gates[1]).waiting.len(), 1);
    assert!(in_the_push_queue.strong_count() > 0 && at_the_gate.strong_count() > 0);
    std::thread::scope(|scope| {
        scope.spawn(|| one.retire.abandon());
        std::thread::sleep(Duration::from_millis(50));
        drop(busy);
    });
    wait_for(|| in_the_push_queue.strong_count() == 0, &"the end of the first");
    wait_for(|| at_the_gate.strong_count() == 0, &"the end of the last");
}
