//! When steps and epochs begin and end.

use super::super::{notify, pace};
use super::*;
use crate::keep;

#[test]
fn steps_that_were_over_before_the_run_began_are_loaded_on_all_nodes() {
    let one = One::new();
    pace::skip(&one.run, 4);
    let loaded = |node| lock(&one.peers().talk).pace.loaded(node);
    assert_eq!([0, 1, 2].map(loaded), [4; 3]);
    // An epoch further ahead than this node is not in step.
    one.run.begin_epoch(5);
    assert!(pace::told(&one.run, 1, 9) && !pace::told(&one.run, 1, 9));
    assert!(one.peers().takes_part(1));
    assert!(pace::told(&one.run, 1, 10));
    assert!(!one.peers().takes_part(1) && one.peers().takes_part(2));
}

#[test]
fn an_epoch_waits_until_all_have_loaded_the_one_before() {
    let one = One::new();
    one.run.planned.store(3, Ordering::Release);
    let told = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            pace::wait_to_begin(&one.run);
            told.load(Ordering::Acquire)
        });
        for node in [0, 1, 2] {
            std::thread::sleep(Duration::from_millis(20));
            told.fetch_add(1, Ordering::AcqRel);
            pace::told(&one.run, node, 3);
        }
        assert_eq!(waits.join().unwrap(), 3);
    });
    // One that stops waits for nothing.
    one.run.planned.store(9, Ordering::Release);
    one.run.stop();
    pace::wait_to_begin(&one.run);
}

#[test]
fn batches_end_in_order_when_all_others_have_loaded_them() {
    let mut one = One::new();
    one.run.begin_epoch(3);
    let plain = |sample| Item::new(sample, SOURCE, false, NOWHERE);
    let batches: Vec<_> =
        (1..=3).map(|at| one.batch(at, 0, vec![plain(at as u32), plain(0)], vec![])).collect();
    let ended = |one: &mut One| {
        let mut count = 0;
        while let Take::Batch(_) = one.consumer.take(Some(Duration::ZERO)) {
            count += 1;
        }
        count
    };
    // The second is there first: nothing of it is told.
    one.run.loaded(&batches[1], 2);
    let of = |one: &One, node| lock(&one.peers().talk).pace.loaded(node);
    assert_eq!((of(&one, 0), ended(&mut one)), (0, 0));
    one.run.loaded(&batches[0], 1);
    assert_eq!(of(&one, 0), 0, "half of it");
    one.run.loaded(&batches[0], 1);
    assert_eq!((of(&one, 0), ended(&mut one)), (2, 0));
    one.players.iter().for_each(|player| player.hears(&Notice::Loaded { steps: 2 }));
    one.others_have_loaded(1);
    assert_eq!(ended(&mut one), 1);
    one.others_have_loaded(3);
    assert_eq!(ended(&mut one), 1, "the third is not here");
    assert!(!one.run.has_ended(0));
    one.run.loaded(&batches[2], 2);
    assert_eq!((of(&one, 0), ended(&mut one)), (3, 1));
    assert!(one.run.has_ended(0));
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
}

/// A consumer that has waited for longer than others are waited for gets its batch.
#[test]
fn a_consumer_in_need_does_not_wait_for_others() {
    let mut one = One::with(PeerPatience { answer: LONG, wait: Duration::from_millis(1) });
    one.run.begin_epoch(1);
    let batch = one.batch(1, 0, vec![Item::new(1, SOURCE, false, NOWHERE)], vec![]);
    one.run.loaded(&batch, 1);
    assert_eq!(one.metrics().hurried, 0, "no batch is asked for");
    assert!(matches!(one.consumer.take(Some(Duration::ZERO)), Take::TimedOut));
    one.run.asked.ask();
    wait_for(|| matches!(one.consumer.take(Some(Duration::ZERO)), Take::Batch(_)), &"the batch");
    assert_eq!(one.metrics().hurried, 1);
}

#[test]
fn looking_again_ends_what_may_end() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    let batch = one.batch(1, 0, vec![Item::new(1, SOURCE, false, NOWHERE)], vec![]);
    one.run.loaded(&batch, 1);
    assert!(one.run.looks_again.load(Ordering::Acquire));
    for node in [1, 2] {
        lock(&one.peers().talk).pace.told(node, 1, 0);
    }
    // No notice comes: a look from time to time does it.
    assert!(matches!(one.consumer.take(Some(LONG)), Take::Batch(_)));
    wait_for(|| !one.run.looks_again.load(Ordering::Acquire), &"the look");
    keep::look_again(&one.run);
}

#[test]
fn who_is_done_goes_on_serving_until_others_are_and_have_heard_all() {
    // Longer than any test takes: it ends because there is nothing to wait for.
    let one = One::with(PeerPatience { answer: Duration::from_mins(10), wait: LONG });
    one.run.begin_epoch(1);
    lock(&one.peers().talk).ledger.done(0, 0);
    let told = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            pace::let_others_finish(&one.run);
            told.load(Ordering::Acquire)
        });
        for node in [1, 2] {
            std::thread::sleep(Duration::from_millis(30));
            told.fetch_add(1, Ordering::AcqRel);
            one.counter.told(node, &Notice::EpochDone { epoch: 0 });
        }
        assert_eq!(waits.join().unwrap(), 2);
    });
    // All are done, and one has not heard all.
    one.peers().release(1, 0, 3);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            pace::let_others_finish(&one.run);
            lock(&one.players[0].heard).len()
        });
        std::thread::sleep(Duration::from_millis(30));
        notify::all(&one.run);
        assert_eq!(waits.join().unwrap(), 1);
    });
    // What is left for one that is gone holds up nothing.
    lock(&one.peers().talk).health.left(1);
    one.peers().release(1, 0, 4);
    pace::let_others_finish(&one.run);
}

#[test]
fn others_that_never_finish_are_waited_for_no_longer_than_an_answer() {
    let one = One::with(PeerPatience { answer: Duration::from_millis(50), wait: LONG });
    one.run.begin_epoch(1);
    pace::let_others_finish(&one.run);
}

#[test]
fn an_epoch_begins_without_others_when_its_first_batch_is_waited_for_too_long() {
    let one = One::with(PeerPatience { answer: LONG, wait: Duration::from_millis(1) });
    one.run.planned.store(3, Ordering::Release);
    pace::told(&one.run, 0, 3);
    (0..3).for_each(|_| one.run.asked.ask());
    let has_asked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            pace::wait_to_begin(&one.run);
            has_asked.load(Ordering::Acquire)
        });
        // What was planned is all that the consumer waits for so far.
        std::thread::sleep(Duration::from_millis(200));
        has_asked.store(true, Ordering::Release);
        one.run.asked.ask();
        assert!(waits.join().unwrap());
    });
}

#[test]
fn a_batch_that_another_thread_has_ended_already_counts_as_loaded() {
    let mut one = One::new();
    one.run.begin_epoch(2);
    let plain = |sample| Item::new(sample, SOURCE, false, NOWHERE);
    let first = one.batch(1, 0, vec![plain(1)], vec![]);
    let _second = one.batch(2, 0, vec![plain(2)], vec![]);
    lock(&one.run.in_order).pop_front();
    pace::loaded(&one.run, &first);
    assert_eq!(lock(&one.peers().talk).pace.loaded(0), 1);
}
