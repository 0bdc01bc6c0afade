//! A job whose every sample is 1 MiB of its own number, and which can be made to wait.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use belady_data::memory::Memory;
use belady_peer::{
    Answer, Ask, Channel, NodeId, Notice, Payload, PeerError, Push, Receive, Reply, Request, Serve,
    Serving, Taken, Transport,
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
    /// Requests that have come.
    pub came: usize,
    pub heard_of: Vec<NodeId>,
}

impl Job {
    pub fn open(node: &Arc<impl Transport + 'static>) -> (Arc<Self>, Serving) {
        let job = Arc::new(Self::default());
        let weak: std::sync::Weak<dyn Serve> = Arc::<Self>::downgrade(&job);
        (job, node.desk().open(CHANNEL, weak))
    }

    pub fn set_shut(&self, shut: bool) {
        self.state.lock().unwrap().shut = shut;
        self.changed.notify_all();
    }

    /// Waits until so many requests have come.
    pub fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.came < count).unwrap());
    }
}

impl Serve for Job {
    fn get(&self, _: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
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
            replies.push(Reply::Here { bytes: Payload::Copied(memory), digest, version: 0 });
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        taken.extend(pushes.iter().map(|_| Taken::Stored));
    }

    fn told(&self, _: NodeId, _: &Notice) {}

    fn heard_of(&self, peer: NodeId, _incarnation: u64) {
        self.state.lock().unwrap().heard_of.push(peer);
    }
}

/// Samples that came.
pub struct Slots {
    bytes: Vec<u8>,
    pub right: usize,
    /// Whose digest did not match.
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

/// Asks for so many samples; how many came.
pub fn get(
    node: &dyn Transport,
    peer: NodeId,
    count: u32,
    limit: Duration,
) -> (Slots, Result<(), PeerError>) {
    let asks: Vec<Ask> = (0..count).map(|sample| Ask { sample, last_use: false }).collect();
    let mut slots = Slots { bytes: vec![0; SIZE], right: 0, wrong: 0 };
    let request = Request { channel: CHANNEL, epoch: 0, asks: &asks };
    let got = node.get(peer, &request, Instant::now() + limit, &mut slots);
    (slots, got)
}

/// So long that only a test that fails waits for it.
pub const LONG: Duration = Duration::from_mins(2);

/// Asks for some samples, which come.
pub fn get_some(node: &dyn Transport, peer: NodeId) {
    let (slots, got) = get(node, peer, 3, LONG);
    got.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(slots.right, 3);
}
