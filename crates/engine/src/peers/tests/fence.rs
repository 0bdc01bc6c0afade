//! When steps retire and epochs begin.

use super::*;

#[test]
fn skipped_steps_count_as_filled_on_all_nodes() {
    let one = One::new();
    one.peers().skip_steps(4);
    let loaded = |node| lock(&one.peers().status).fence.loaded(node);
    assert_eq!([0, 1, 2].map(loaded), [4; 3]);
    // A node that is an epoch ahead is out of step.
    one.begin_epoch(5);
    assert!(one.peers().set_filled(1, 9) && !one.peers().set_filled(1, 9));
    assert!(one.peers().takes_part(1));
    assert!(one.peers().set_filled(1, 10));
    assert!(!one.peers().takes_part(1) && one.peers().takes_part(2));
}

#[test]
fn an_epoch_waits_until_all_nodes_have_filled_the_one_before() {
    let one = One::new();
    one.job.planned.store(3, Ordering::Release);
    let told = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            one.peers().wait_to_begin();
            told.load(Ordering::Acquire)
        });
        for node in [0, 1, 2] {
            std::thread::sleep(Duration::from_millis(20));
            told.fetch_add(1, Ordering::AcqRel);
            one.peers().set_filled(node, 3);
        }
        assert_eq!(waits.join().unwrap(), 3);
    });
    // A job that stops does not wait.
    one.job.planned.store(9, Ordering::Release);
    one.job.stop();
    one.peers().wait_to_begin();
}

#[test]
fn batches_retire_in_order_when_all_nodes_have_filled_them() {
    let mut one = One::new();
    one.begin_epoch(3);
    let plain = |sample| BatchItem::from_source(sample, None);
    let batches: Vec<_> =
        (1..=3).map(|at| one.batch(at, 0, vec![plain(at as u32), plain(0)], vec![])).collect();
    let retired = |one: &mut One| {
        let mut count = 0;
        while let Take::Batch(_) = one.consumer.take(Some(Duration::ZERO)) {
            count += 1;
        }
        count
    };
    // The second batch is filled first, which is not reported.
    batches[1].filled(2);
    let of = |one: &One, node| lock(&one.peers().status).fence.loaded(node);
    assert_eq!((of(&one, 0), retired(&mut one)), (0, 0));
    batches[0].filled(1);
    assert_eq!(of(&one, 0), 0, "half of it");
    batches[0].filled(1);
    assert_eq!((of(&one, 0), retired(&mut one)), (2, 0));
    one.players.iter().for_each(|player| player.hears(&Notice::Loaded { steps: 2 }));
    one.others_have_loaded(1);
    assert_eq!(retired(&mut one), 1);
    one.others_have_loaded(3);
    assert_eq!(retired(&mut one), 1, "the third is not filled");
    assert!(!one.job.epochs.is_retired(0));
    batches[2].filled(2);
    assert_eq!((of(&one, 0), retired(&mut one)), (3, 1));
    assert!(one.job.epochs.is_retired(0));
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
}

#[test]
fn a_starving_consumer_does_not_wait_for_other_nodes() {
    let mut one = One::with(PeerPatience { answer: LONG, wait: Duration::from_millis(1) });
    one.begin_epoch(1);
    let batch = one.batch(1, 0, vec![BatchItem::from_source(1, None)], vec![]);
    batch.filled(1);
    assert_eq!(one.metrics().hurried, 0, "the consumer has not asked");
    assert!(matches!(one.consumer.take(Some(Duration::ZERO)), Take::TimedOut));
    one.job.ranks[0].demand.request();
    wait_for(|| matches!(one.consumer.take(Some(Duration::ZERO)), Take::Batch(_)), &"the batch");
    assert_eq!(one.metrics().hurried, 1);
}

#[test]
fn a_scheduled_check_retires_what_may_retire() {
    let mut one = One::new();
    one.begin_epoch(1);
    let batch = one.batch(1, 0, vec![BatchItem::from_source(1, None)], vec![]);
    batch.filled(1);
    assert!(one.retire.check_scheduled.load(Ordering::Acquire));
    for node in [1, 2] {
        lock(&one.peers().status).fence.told(node, 1, 0);
    }
    // Without a notice, a scheduled check retires the step.
    assert!(matches!(one.consumer.take(Some(LONG)), Take::Batch(_)));
    wait_for(|| !one.retire.check_scheduled.load(Ordering::Acquire), &"the check");
    one.retire.clone().check();
}

#[test]
fn a_finished_node_serves_until_others_are_done_and_notified() {
    // Longer than any test takes: it ends because there is nothing to wait for.
    let one = One::with(PeerPatience { answer: Duration::from_mins(10), wait: LONG });
    one.begin_epoch(1);
    lock(&one.peers().status).epochs.done(0, 0);
    let told = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            one.peers().let_others_finish();
            told.load(Ordering::Acquire)
        });
        for node in [1, 2] {
            std::thread::sleep(Duration::from_millis(30));
            told.fetch_add(1, Ordering::AcqRel);
            one.handler.told(node, &Notice::EpochDone { epoch: 0 });
        }
        assert_eq!(waits.join().unwrap(), 2);
    });
    // All are done, and one has not received all notices.
    one.peers().release(1, 0, 3);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            one.peers().let_others_finish();
            lock(&one.players[0].heard).len()
        });
        std::thread::sleep(Duration::from_millis(30));
        one.peers().notify_all();
        assert_eq!(waits.join().unwrap(), 1);
    });
    // Notices for a node that has left delay nothing.
    lock(&one.peers().status).health.left(1);
    one.peers().release(1, 0, 4);
    one.peers().let_others_finish();
}

#[test]
fn nodes_that_never_finish_are_waited_for_no_longer_than_an_answer() {
    let one = One::with(PeerPatience { answer: Duration::from_millis(50), wait: LONG });
    one.begin_epoch(1);
    one.peers().let_others_finish();
}

#[test]
fn an_epoch_begins_without_others_when_its_consumer_starves() {
    let one = One::with(PeerPatience { answer: LONG, wait: Duration::from_millis(1) });
    one.job.planned.store(3, Ordering::Release);
    one.peers().set_filled(0, 3);
    (0..3).for_each(|_| one.job.ranks[0].demand.request());
    let has_asked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            one.peers().wait_to_begin();
            has_asked.load(Ordering::Acquire)
        });
        // The consumer waits only for planned batches so far.
        std::thread::sleep(Duration::from_millis(200));
        has_asked.store(true, Ordering::Release);
        one.job.ranks[0].demand.request();
        assert!(waits.join().unwrap());
    });
}

#[test]
fn a_batch_that_another_thread_has_retired_counts_as_filled() {
    let mut one = One::new();
    one.begin_epoch(2);
    let plain = |sample| BatchItem::from_source(sample, None);
    let first = one.batch(1, 0, vec![plain(1)], vec![]);
    let _second = one.batch(2, 0, vec![plain(2)], vec![]);
    one.queue.pop();
    one.peers().batch_filled(&first);
    assert_eq!(lock(&one.peers().status).fence.loaded(0), 1);
}
