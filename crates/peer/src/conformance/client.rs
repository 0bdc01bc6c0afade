//! Asks a [`TestHandler`](super::TestHandler) for everything, and checks what arrives.

use super::deadline;
use super::test_handler::{
    CHANNEL, ECHO, LARGE, LENDABLE, LENT, NOTICES, PUT, SMALL, TOO_LONG, TOO_SHORT, bytes_of,
    is_had, length_of, sum, taken, version_of,
};
use crate::message::{Answer, Ask, GetRequest, Notice, Push, PushOutcome, Receive};
use crate::transport::Transport;
use crate::{NodeId, PeerError, SampleId, digest};

/// What arrived.
struct ReceivedSamples {
    slots: Vec<Vec<u8>>,
    answers: Vec<Answer>,
    /// The slot that was asked for and is not answered yet.
    open: Option<usize>,
}

impl Receive for ReceivedSamples {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        assert_eq!(at, self.answers.len(), "slots are asked for in the order of the request");
        self.open = Some(at);
        &mut self.slots[at]
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        assert_eq!(at, self.answers.len(), "each is answered once, in the order of the request");
        let is_here = matches!(answer, Answer::Here { .. });
        assert_eq!(self.open.take().is_some(), is_here, "slots are for bytes that come");
        self.answers.push(answer);
    }
}

fn try_get(
    node: &dyn Transport,
    peer: NodeId,
    epoch: u32,
    asks: &[Ask],
) -> (ReceivedSamples, Result<(), PeerError>) {
    let slots = asks.iter().map(|ask| vec![0; length_of(ask.sample)]).collect();
    let mut received = ReceivedSamples { slots, answers: vec![], open: None };
    let request = GetRequest { channel: CHANNEL, epoch, asks };
    let got = node.get(peer, &request, deadline(), &mut received);
    (received, got)
}

fn get(node: &dyn Transport, peer: NodeId, samples: &[SampleId]) -> ReceivedSamples {
    let asks: Vec<Ask> = samples.iter().map(|&sample| Ask { sample, last_use: false }).collect();
    let (received, got) = try_get(node, peer, 0, &asks);
    got.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(received.answers.len(), samples.len());
    received
}

/// Checks that all of these arrived, with their bytes or the right answer.
fn check(received: &ReceivedSamples, samples: &[SampleId]) {
    for ((&sample, answer), slot) in samples.iter().zip(&received.answers).zip(&received.slots) {
        let expected = match sample % 7 {
            _ if is_had(sample) || sample >= LARGE => {
                let bytes = bytes_of(sample);
                assert!(*slot == bytes, "the bytes of sample {sample:x}");
                Answer::Here { digest: digest(&bytes), version: version_of(sample) }
            }
            3 => Answer::NotHere,
            4 => Answer::NotYet,
            _ => Answer::Busy,
        };
        assert_eq!(*answer, expected, "sample {sample:x}");
    }
}

fn get_and_check(node: &dyn Transport, peer: NodeId, samples: &[SampleId]) {
    check(&get(node, peer, samples), samples);
}

/// Checks all that a transport promises between two nodes, of which `peer` has a test handler.
///
/// No other caller may send notices in this node's name meanwhile.
pub fn ask_everything(node: &dyn Transport, own: NodeId, peer: NodeId) {
    ask_for_samples(node, own, peer);
    thousands_of_small_ones(node, peer);
    what_is_too_long_or_too_short(node, peer);
    pushes(node, own, peer);
    notices(node, peer);
}

/// Asks for every kind of sample, without changing the handler.
pub fn ask_for_samples(node: &dyn Transport, own: NodeId, peer: NodeId) {
    get_and_check(node, peer, &[]);
    let mixed: Vec<SampleId> = (SMALL..SMALL + 40).collect();
    get_and_check(node, peer, &mixed);
    let backwards: Vec<SampleId> = mixed.iter().rev().chain(&mixed).copied().collect();
    get_and_check(node, peer, &backwards);
    let lent: Vec<SampleId> = (0..LENDABLE).map(|rest| LENT | rest).collect();
    get_and_check(node, peer, &lent);
    let sizes = [LARGE | 1, SMALL | 1, LARGE + 11, LARGE, LENT, LARGE | 3, SMALL | 2];
    get_and_check(node, peer, &sizes);
    for last_use in [false, true] {
        let ask = Ask { sample: ECHO, last_use };
        let (received, got) = try_get(node, peer, 0x0102_0304, &[ask, ask]);
        got.unwrap_or_else(|error| panic!("{error}"));
        let expected = [&own.to_le_bytes()[..], &[4, 3, 2, 1], &[last_use.into()]].concat();
        assert_eq!(received.slots, [&expected[..]; 2], "who asks, for which epoch, how often");
    }
}

/// More than any transport sends at once.
fn thousands_of_small_ones(node: &dyn Transport, peer: NodeId) {
    let many: Vec<SampleId> = (0..20_000).map(|at| SMALL + at % 3000).collect();
    get_and_check(node, peer, &many);
}

/// A reply of another length than its slot is an error, and harms nothing else.
fn what_is_too_long_or_too_short(node: &dyn Transport, peer: NodeId) {
    for wrong in [TOO_LONG, TOO_SHORT] {
        let asks = [SMALL, wrong, SMALL].map(|sample| Ask { sample, last_use: false });
        let (received, got) = try_get(node, peer, 0, &asks);
        assert!(matches!(got, Err(PeerError::Garbled { peer: who, .. }) if who == peer), "{got:?}");
        assert_eq!(received.answers.len(), 1, "those before it are answered, and none after it");
        check(&received, &[SMALL]);
        get_and_check(node, peer, &[SMALL]);
    }
}

fn pushes(node: &dyn Transport, own: NodeId, peer: NodeId) {
    // Each node has its own samples, of many sizes: together more than one message takes, and a
    // large one.
    let first = PUT | own << 16;
    let lengths = (0..900).map(|at| if at == 450 { 9 << 20 } else { (at * 7919) % 9000 });
    let bytes: Vec<Vec<u8>> = lengths.map(|length| vec![own as u8 ^ 0x5a; length]).collect();
    let pushes: Vec<Push<'_>> = (first..)
        .zip(&bytes)
        .map(|(sample, bytes)| {
            // One is corrupted, one is for an unknown tier, and one has another version.
            let digest = digest(bytes) ^ u64::from(sample == first + 6);
            let tier = if sample == first + 9 { 99 } else { (sample % 5) as u8 };
            let version = version_of(sample) + i64::from(sample == first + 12);
            Push { sample, tier, epoch: 0, digest, version, bytes }
        })
        .collect();
    let outcomes =
        node.put(peer, CHANNEL, &pushes, deadline()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcomes, pushes.iter().map(taken).collect::<Vec<_>>());
    assert!(node.put(peer, CHANNEL, &[], deadline()).is_ok_and(|outcomes| outcomes.is_empty()));
    for (push, outcome) in pushes.iter().zip(outcomes) {
        let mut received =
            ReceivedSamples { slots: vec![vec![0; push.bytes.len()]], answers: vec![], open: None };
        let asks = &[Ask { sample: push.sample, last_use: true }];
        let request = GetRequest { channel: CHANNEL, epoch: 1, asks };
        node.get(peer, &request, deadline(), &mut received)
            .unwrap_or_else(|error| panic!("{error}"));
        if outcome == PushOutcome::Stored {
            assert!(received.slots[0] == push.bytes);
            let (digest, version) = (push.digest, push.version);
            assert_eq!(received.answers, [Answer::Here { digest, version }]);
        } else {
            assert_eq!(received.answers, [Answer::NotHere]);
        }
    }
}

fn notices(node: &dyn Transport, peer: NodeId) {
    let heard = |received: &ReceivedSamples| {
        let numbers = received.slots[0].chunks_exact(8);
        numbers
            .map(|part| u64::from_le_bytes(part.try_into().unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    let before = heard(&get(node, peer, &[NOTICES]));
    let notices = [
        Notice::EpochDone { epoch: 3 },
        Notice::Left,
        Notice::Released { epoch: 0, samples: vec![] },
        Notice::Released { epoch: 0, samples: (1..=50_000).collect() },
    ];
    for notice in &notices {
        node.tell(peer, CHANNEL, notice, deadline()).unwrap_or_else(|error| panic!("{error}"));
    }
    let after = heard(&get(node, peer, &[NOTICES]));
    let told: u64 = notices.iter().map(sum).sum();
    assert_eq!(after, [before[0] + 2 + 50_000, before[1] + told], "all was heard, once");
}

/// Checks the answers of a node where no handler is registered: not yet, or not any more.
pub fn no_handler(node: &dyn Transport, peer: NodeId, (answer, taken): (Answer, PushOutcome)) {
    let received = get(node, peer, &[SMALL, ECHO]);
    assert_eq!(received.answers, [answer; 2]);
    let push = Push { sample: PUT, tier: 0, epoch: 0, digest: 0, version: 0, bytes: b"x" };
    let outcomes = node.put(peer, CHANNEL, &[push, push], deadline());
    assert!(outcomes.is_ok_and(|outcomes| outcomes == [taken; 2]));
    assert!(node.tell(peer, CHANNEL, &Notice::EpochDone { epoch: 0 }, deadline()).is_ok());
}
