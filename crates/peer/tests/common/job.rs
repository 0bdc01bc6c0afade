//! A handler whose samples are 1 MiB of their own number, and which can be made to wait.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use belady_base::memory::Memory;
use belady_peer::{
    Answer, Ask, Channel, GetReply, GetRequest, Handler, NodeId, Notice, Payload, PeerError, Push,
    PushOutcome, Receive, Registration, Transport,
};

pub const CHANNEL: Channel = Channel(0);
pub const SIZE: usize = 1 << 20;

#[derive(Default)]
pub struct Job {
    pub state: Mutex<State>,
    pub changed: Condvar,
}

#[derive(Default)]
pub struct State {
    /// Requests wait.
    pub shut: bool,
    /// The number of requests that have arrived.
    pub came: usize,
    pub heard_of: Vec<NodeId>,
}

impl Job {
    pub fn open(node: &Arc<impl Transport + 'static>) -> (Arc<Self>, Registration) {
        let job = Arc::new(Self::default());
        let weak: std::sync::Weak<dyn Handler> = Arc::<Self>::downgrade(&job);
        (job, node.dispatcher().register(CHANNEL, weak))
    }

    pub fn set_shut(&self, shut: bool) {
        self.state.lock().unwrap().shut = shut;
        self.changed.notify_all();
    }

    /// Waits until this many requests have arrived.
    pub fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.came < count).unwrap());
    }
}

impl Handler for Job {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, limit: usize, replies: &mut Vec<GetReply>) {
        let mut state = self.state.lock().unwrap();
        state.came += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.shut).unwrap());
        let mut bytes = 0;
        for ask in request.asks.iter().take_while(|_| {
            bytes += SIZE;
            bytes <= limit + SIZE
        }) {
            let memory = Memory::from(&vec![ask.sample as u8; SIZE][..]);
            let digest = belady_peer::digest(&memory);
            replies.push(GetReply::Here { bytes: Payload::Copied(memory), digest, version: 0 });
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        taken.extend(pushes.iter().map(|_| PushOutcome::Stored));
    }

    fn told(&self, _: NodeId, _: &Notice) {}

    fn heard_of(&self, peer: NodeId, _incarnation: u64) {
        self.state.lock().unwrap().heard_of.push(peer);
    }
}

/// The number of samples that arrived.
pub struct Slots {
    bytes: Vec<u8>,
    pub right: usize,
    /// The number of samples whose digest did not match.
    pub wrong: usize,
}

impl Receive for Slots {
    fn slot(&mut self, _: usize) -> &mut [u8] {
        &mut self.bytes
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        assert_eq!(at, self.right + self.wrong);
        let digest = belady_peer::digest(&self.bytes);
        let is_right = answer == Answer::Here { digest, version: 0 };
        self.right += usize::from(is_right);
        self.wrong += usize::from(!is_right);
    }
}

/// Asks for samples; returns how many arrived.
pub fn get(
    node: &dyn Transport,
    peer: NodeId,
    count: u32,
    limit: Duration,
) -> (Slots, Result<(), PeerError>) {
    let asks: Vec<Ask> = (0..count).map(|sample| Ask { sample, last_use: false }).collect();
    let mut slots = Slots { bytes: vec![0; SIZE], right: 0, wrong: 0 };
    let request = GetRequest { channel: CHANNEL, epoch: 0, asks: &asks };
    let got = node.get(peer, &request, Instant::now() + limit, &mut slots);
    (slots, got)
}

/// Only a failing test waits this long.
pub const LONG: Duration = Duration::from_mins(2);

/// Asks for some samples, and checks that they arrive.
pub fn get_some(node: &dyn Transport, peer: NodeId) {
    let (slots, got) = get(node, peer, 3, LONG);
    got.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(slots.right, 3);
}
