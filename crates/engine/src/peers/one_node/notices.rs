//! What nodes tell each other, and what is made of their silence.

use super::super::notify;
use super::*;

#[test]
fn a_peer_that_does_not_answer_counts_as_down_unless_this_node_leaves() {
    let one = One::new();
    one.transports[1].close();
    notify::loaded(&one.run, 1);
    wait_for(|| one.metrics().failures > 0, &"a failure");
    wait_for(|| one.metrics().down == 1, &"one that is down");
    assert_eq!(one.metrics().nodes, 2);

    let one = One::new();
    lock(&one.peers().talk).health.failed(1, one.peers().now(), true);
    one.counter.heard_of(1, 1);
    assert_eq!((one.metrics().nodes, one.metrics().down), (2, 0));

    let one = One::new();
    one.peers().is_leaving.store(true, std::sync::atomic::Ordering::Relaxed);
    one.transports[1].close();
    notify::loaded(&one.run, 1);
    wait_for(|| one.metrics().failures > 0, &"a failure");
    assert_eq!(one.metrics().down, 0);
}

#[test]
fn one_that_has_left_is_not_waited_for_whatever_comes_of_it_later() {
    let one = One::new();
    one.counter.heard_of(1, 1);
    assert!(one.peers().takes_part(1));
    one.counter.told(1, &Notice::Left);
    assert!(!one.peers().takes_part(1) && one.peers().takes_part(2));
    assert_eq!((one.metrics().nodes, one.metrics().down), (2, 0), "nothing is wrong with it");
    // On other connections, which are served by other threads.
    one.counter.told(1, &Notice::Loaded { steps: 1 });
    one.counter.put(1, &[], &mut vec![]);
    one.counter.heard_of(1, 1);
    assert!(!one.peers().is_up(1));
    one.counter.heard_of(1, 2);
    assert!(one.peers().is_up(1), "it has begun anew");
}

#[test]
fn others_hear_how_far_this_node_is_and_what_they_need_not_keep() {
    let one = One::new();
    notify::loaded(&one.run, 3);
    let loaded = Notice::Loaded { steps: 3 };
    one.players.iter().for_each(|player| player.hears(&loaded));
    one.peers().release(2, 0, 5);
    one.peers().release(2, 0, 6);
    one.peers().release(2, 1, 7);
    notify::all(&one.run);
    for (epoch, samples) in [(0, vec![5, 6]), (1, vec![7])] {
        one.players[1].hears(&Notice::Released { epoch, samples });
    }
    assert_eq!(*lock(&one.players[0].heard), [loaded]);
    wait_for(|| !lock(&one.peers().notices).are_due(|node| node != 0), &"the end of telling");
}

#[test]
fn an_epoch_is_told_as_done_when_its_last_batch_has_ended() {
    let one = One::new();
    one.run.begin_epoch(2);
    one.run.ended(0);
    notify::epochs_done(&one.run);
    assert!(!lock(&one.peers().talk).ledger.is_over(0, 0));
    one.run.ended(0);
    notify::epochs_done(&one.run);
    let ledger = |epoch| lock(&one.peers().talk).ledger.is_over(0, epoch);
    assert!(ledger(0) && !ledger(1), "the next has not begun");
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
    one.run.begin_epoch(0);
    one.run.begin_epoch(1);
    notify::epochs_done(&one.run);
    assert!(ledger(1) && !ledger(2));
}

#[test]
fn who_is_there_hears_that_this_node_leaves() {
    let one = One::new();
    lock(&one.peers().talk).health.left(1);
    notify::leave(&one.run);
    assert!(lock(&one.players[0].heard).is_empty(), "it has left itself");
    assert_eq!(*lock(&one.players[1].heard), [Notice::Left]);
    assert!(one.peers().is_leaving.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn a_peer_that_could_not_be_told_is_told_later() {
    let one = One::new();
    lock(&one.peers().talk).health.failed(1, one.peers().now(), true);
    notify::loaded(&one.run, 2);
    one.players[1].hears(&Notice::Loaded { steps: 2 });
    // When it speaks, and also if it does not: it may be waiting.
    one.counter.heard_of(1, 7);
    one.players[0].hears(&Notice::Loaded { steps: 2 });
}

#[test]
fn a_peer_that_was_away_is_told_again_what_it_may_have_missed() {
    let one = One::new();
    notify::loaded(&one.run, 2);
    let loaded = Notice::Loaded { steps: 2 };
    one.players.iter().for_each(|player| player.hears(&loaded));
    wait_for(|| !lock(&one.peers().notices).are_due(|node| node != 0), &"the end of telling");
    lock(&one.peers().talk).health.failed(1, one.peers().now(), true);
    one.counter.heard_of(1, 7);
    wait_for(|| *lock(&one.players[0].heard) == [loaded.clone(), loaded.clone()], &"it again");
    assert_eq!(*lock(&one.players[1].heard), [loaded]);
}

#[test]
fn a_peer_that_is_down_is_told_nothing_before_it_may_be_asked() {
    let one = One::new();
    lock(&one.peers().talk).health.failed(1, LONG, true);
    notify::loaded(&one.run, 2);
    one.players[1].hears(&Notice::Loaded { steps: 2 });
    std::thread::sleep(Duration::from_millis(50));
    assert!(lock(&one.players[0].heard).is_empty());
}

/// What it has not heard when it is told is told at once, and only the latest counts.
#[test]
fn a_peer_is_told_by_one_thread_at_a_time() {
    let one = One::new();
    let busy = one.busy_threads();
    for steps in [1, 2, 3] {
        notify::loaded(&one.run, steps);
        assert_eq!(one.run.lane.queued(), 2, "a piece of work for each peer");
    }
    drop(busy);
    let loaded = Notice::Loaded { steps: 3 };
    one.players.iter().for_each(|player| player.hears(&loaded));
    assert!(one.players.iter().all(|player| *lock(&player.heard) == [loaded.clone()]));
}
