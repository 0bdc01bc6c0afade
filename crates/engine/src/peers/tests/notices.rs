//! Notices between nodes, and nodes that do not answer.

use super::*;

#[test]
fn a_peer_that_does_not_answer_counts_as_down_unless_this_node_leaves() {
    let one = One::new();
    one.transports[1].close();
    one.peers().notify_filled(1);
    wait_for(|| one.metrics().failures > 0, &"a failure");
    wait_for(|| one.metrics().down == 1, &"one that is down");
    assert_eq!(one.metrics().nodes, 2);

    let one = One::new();
    lock(&one.peers().status).health.failed(1, one.peers().now(), true);
    one.handler.heard_of(1, 1);
    assert_eq!((one.metrics().nodes, one.metrics().down), (2, 0));

    let one = One::new();
    one.peers().is_leaving.store(true, std::sync::atomic::Ordering::Relaxed);
    one.transports[1].close();
    one.peers().notify_filled(1);
    wait_for(|| one.metrics().failures > 0, &"a failure");
    assert_eq!(one.metrics().down, 0);
}

#[test]
fn a_node_that_has_left_is_not_waited_for_whatever_arrives_later() {
    let one = One::new();
    one.handler.heard_of(1, 1);
    assert!(one.peers().takes_part(1));
    one.handler.told(1, &Notice::Left);
    assert!(!one.peers().takes_part(1) && one.peers().takes_part(2));
    assert_eq!((one.metrics().nodes, one.metrics().down), (2, 0), "it has not failed");
    // On other connections, which other threads serve.
    one.handler.told(1, &Notice::Loaded { steps: 1 });
    one.handler.put(1, &[], &mut vec![]);
    one.handler.heard_of(1, 1);
    assert!(!one.peers().is_up(1));
    one.handler.heard_of(1, 2);
    assert!(one.peers().is_up(1), "it was restarted");
}

#[test]
fn other_nodes_are_notified_of_filled_steps_and_released_samples() {
    let one = One::new();
    one.peers().notify_filled(3);
    let loaded = Notice::Loaded { steps: 3 };
    one.players.iter().for_each(|player| player.hears(&loaded));
    one.peers().release(2, 0, 5);
    one.peers().release(2, 0, 6);
    one.peers().release(2, 1, 7);
    one.peers().notify_all();
    for (epoch, samples) in [(0, vec![5, 6]), (1, vec![7])] {
        one.players[1].hears(&Notice::Released { epoch, samples });
    }
    assert_eq!(*lock(&one.players[0].heard), [loaded]);
    wait_for(|| !lock(&one.peers().notices).are_due(|node| node != 0), &"the end of the notices");
}

#[test]
fn an_epoch_is_reported_done_when_its_last_batch_has_retired() {
    let one = One::new();
    one.begin_epoch(2);
    one.job.epochs.retired(0);
    one.peers().notify_epochs_done();
    assert!(!lock(&one.peers().status).epochs.is_over(0, 0));
    one.job.epochs.retired(0);
    one.peers().notify_epochs_done();
    let is_over = |epoch| lock(&one.peers().status).epochs.is_over(0, epoch);
    assert!(is_over(0) && !is_over(1), "the next has not begun");
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
    one.begin_epoch(0);
    one.begin_epoch(1);
    one.peers().notify_epochs_done();
    assert!(is_over(1) && !is_over(2));
}

#[test]
fn nodes_that_are_up_are_notified_that_this_node_leaves() {
    let one = One::new();
    lock(&one.peers().status).health.left(1);
    one.peers().leave();
    assert!(lock(&one.players[0].heard).is_empty(), "it has left");
    assert_eq!(*lock(&one.players[1].heard), [Notice::Left]);
    assert!(one.peers().is_leaving.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn a_failed_notice_is_sent_again_later() {
    let one = One::new();
    lock(&one.peers().status).health.failed(1, one.peers().now(), true);
    one.peers().notify_filled(2);
    one.players[1].hears(&Notice::Loaded { steps: 2 });
    // When it sends something, and also if it does not: it may be waiting.
    one.handler.heard_of(1, 7);
    one.players[0].hears(&Notice::Loaded { steps: 2 });
}

#[test]
fn a_peer_that_was_down_gets_the_notices_that_it_missed() {
    let one = One::new();
    one.peers().notify_filled(2);
    let loaded = Notice::Loaded { steps: 2 };
    one.players.iter().for_each(|player| player.hears(&loaded));
    wait_for(|| !lock(&one.peers().notices).are_due(|node| node != 0), &"the end of the notices");
    lock(&one.peers().status).health.failed(1, one.peers().now(), true);
    one.handler.heard_of(1, 7);
    wait_for(
        || *lock(&one.players[0].heard) == [loaded.clone(), loaded.clone()],
        &"the notice again",
    );
    assert_eq!(*lock(&one.players[1].heard), [loaded]);
}

#[test]
fn a_peer_that_is_down_gets_no_notice_before_it_may_be_asked() {
    let one = One::new();
    lock(&one.peers().status).health.failed(1, LONG, true);
    one.peers().notify_filled(2);
    one.players[1].hears(&Notice::Loaded { steps: 2 });
    std::thread::sleep(Duration::from_millis(50));
    assert!(lock(&one.players[0].heard).is_empty());
}

/// Only the latest notice counts.
#[test]
fn one_thread_at_a_time_notifies_a_peer() {
    let one = One::new();
    let busy = one.busy_threads();
    for steps in [1, 2, 3] {
        one.peers().notify_filled(steps);
        assert_eq!(one.job.lane.queued(), 2, "one task for each peer");
    }
    drop(busy);
    let loaded = Notice::Loaded { steps: 3 };
    one.players.iter().for_each(|player| player.hears(&loaded));
    assert!(one.players.iter().all(|player| *lock(&player.heard) == [loaded.clone()]));
}
