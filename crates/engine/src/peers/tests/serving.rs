//! Replies to the requests of other nodes.

use super::*;

#[test]
fn a_peer_gets_held_samples_and_a_miss_for_others() {
    let one = One::new();
    one.hold(1, 3, 0);
    one.hold(2, 4, 0);
    let last = SAMPLES - 1;
    let asks = [(3, false), (5, false), (4, false), (last, false), (SAMPLES, false), (99, true)];
    let replies = one.ask(0, &asks, 1 << 20);
    assert_eq!(kinds(&replies), ["here", "not here", "here", "not here", "not here", "not here"]);
    for (reply, sample) in [(&replies[0], 3), (&replies[2], 4)] {
        let GetReply::Here { bytes, digest, version: 0 } = reply else { panic!("{reply:?}") };
        assert!(**bytes == one.bytes(sample)[..]);
        assert_eq!(*digest, Digests::new(SAMPLES).of(sample, Version::default(), bytes));
    }
    let served = one.metrics().served;
    assert_eq!((served.samples, served.bytes), (2, 2 * SIZE));
}

#[test]
fn an_answer_ends_with_the_sample_that_passes_its_limit() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    let asks = [(0, false), (1, false), (2, false)];
    let size = SIZE as usize;
    for (limit, count) in [(0, 1), (size - 1, 1), (size, 2), (2 * size - 1, 2), (2 * size, 3)] {
        assert_eq!(one.ask(0, &asks, limit).len(), count, "{limit}");
    }
}

#[test]
fn a_sample_may_still_come_until_all_nodes_are_done_with_the_epoch_before() {
    let one = One::new();
    let answer = |epoch| kinds(&one.ask(epoch, &[(3, false)], 1 << 20))[0];
    assert_eq!((answer(0), answer(1)), ("not here", "not yet"));
    for node in [1, 2] {
        one.handler.told(node, &Notice::EpochDone { epoch: 0 });
        assert_eq!(answer(1), "not yet");
    }
    let no_sample = kinds(&one.ask(1, &[(SAMPLES, false), (99, false)], 1 << 20));
    assert_eq!(no_sample, ["not here", "not here"], "a sample that does not exist never comes");
    lock(&one.peers().status).epochs.done(0, 0);
    assert_eq!((answer(1), answer(2)), ("not here", "not yet"));
}

#[test]
fn a_peer_gets_nothing_of_a_file_that_was_not_compared_or_has_changed() {
    let one = One::new();
    one.source.are_to_be_compared.store(true, Ordering::Release);
    for sample in [3, 4, CHANGED] {
        one.hold(1, sample, 0);
    }
    // Samples that are not held, or do not exist, are not compared.
    let asks = [(3, false), (CHANGED, false), (7, false), (SAMPLES, false)];
    let replies = one.ask(0, &asks, 1 << 20);
    assert_eq!(kinds(&replies), ["here", "not here", "not here", "not here"]);
    assert_eq!(*lock(&one.source.compared), [3]);
    assert_eq!(kinds(&one.ask(0, &[(3, false), (4, false)], 1 << 20)), ["here", "here"]);
    assert_eq!(*lock(&one.source.compared), [3, 4], "each once");
}
