//! Which of several holders of a sample is asked, and for how long.

use belady_peer::{Dispatcher, PeerError, Receive};

use super::*;
use crate::peers::SLOWEST;

/// A transport of which only rank 2 is near, and which does not observe progress.
#[derive(Debug)]
struct FarTransport(Arc<MemoryTransport>);

impl Transport for FarTransport {
    fn get(
        &self,
        peer: NodeId,
        request: &GetRequest<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        self.0.get(peer, request, deadline, into)
    }

    fn put(
        &self,
        peer: NodeId,
        channel: Channel,
        pushes: &[Push<'_>],
        deadline: Instant,
    ) -> Result<Vec<PushOutcome>, PeerError> {
        self.0.put(peer, channel, pushes, deadline)
    }

    fn tell(
        &self,
        peer: NodeId,
        channel: Channel,
        notice: &Notice,
        deadline: Instant,
    ) -> Result<(), PeerError> {
        self.0.tell(peer, channel, notice, deadline)
    }

    fn dispatcher(&self) -> &Arc<Dispatcher> {
        self.0.dispatcher()
    }

    fn sees_progress(&self) -> bool {
        false
    }

    fn is_near(&self, peer: NodeId) -> bool {
        peer == 2
    }

    fn close(&self) {
        self.0.close();
    }
}

/// Returns the peers of rank 0 of three, all of which are near.
fn peers() -> Peers {
    peers_over(MemoryTransport::network(3).swap_remove(0))
}

fn far() -> Peers {
    peers_over(Arc::new(FarTransport(MemoryTransport::network(3).swap_remove(0))))
}

/// Returns peers that both held sample 0 when the job began.
fn peers_over(transport: Arc<dyn Transport>) -> Peers {
    let cluster = Arc::new(Cluster::new(InProcessRendezvous::new(3, LONG).member(0), transport));
    let one = |warm| NodeCaches { capacities: vec![100], warm };
    let all = vec![one(vec![]), one(vec![1]), one(vec![1])];
    let limits = PeerPatience { answer: LONG, wait: LONG };
    let bulk = Bulk::offer(&cluster, vec![]);
    let agreed =
        AgreedJob { cluster, channel: Channel(0), all, capacities: vec![vec![100]; 3], bulk };
    agreed.into_peers(&idle_job(64), &Arc::default(), 100, limits, true)
}

fn goes_down(peers: &Peers, peer: NodeId) {
    lock(&peers.status).health.failed(peer, LONG, true);
}

#[test]
fn of_two_holders_the_one_that_is_up_is_asked() {
    for (gone, there) in [(1, 2), (2, 1)] {
        let peers = peers();
        goes_down(&peers, gone);
        for sample in 0..3 {
            assert_eq!(peers.best_of(&[0, 1, 2], sample), Some(there));
        }
        assert_eq!(peers.warm_at(0), Some(there));
        goes_down(&peers, there);
        assert_eq!(peers.warm_at(0), None);
    }
    assert_eq!(peers().warm_at(1), None);
}

#[test]
fn of_two_holders_the_near_one_is_asked_and_equal_ones_share_the_requests() {
    let far = far();
    assert!((0..6).all(|sample| far.best_of(&[1, 2], sample) == Some(2)));
    assert_eq!(far.warm_at(0), Some(2));
    let near = peers();
    let asked = [0, 1, 2, 3].map(|sample| near.best_of(&[1, 2], sample));
    assert_eq!(asked, [Some(1), Some(2), Some(1), Some(1)]);
    assert_eq!(near.warm_at(0), Some(1));
}

#[test]
fn a_call_without_observable_progress_gets_time_for_its_bytes() {
    let in_seconds = |peers: &Peers, seconds: u64| {
        let before = Instant::now();
        let deadline = peers.deadline_of(seconds * SLOWEST as u64);
        let limit = LONG + Duration::from_secs(seconds);
        (before + limit..=Instant::now() + limit).contains(&deadline)
    };
    assert!(in_seconds(&far(), 0) && in_seconds(&far(), 30));
    assert!(in_seconds(&peers(), 0) && !in_seconds(&peers(), 30));
    // A disk gets less time, so that the peer is answered in time.
    assert!((Duration::from_secs(1)..LONG).contains(&peers().disk_patience()));
}

#[test]
fn of_two_holders_the_one_that_is_in_step_is_asked() {
    let peers = peers();
    lock(&peers.status).fence.restarted(1);
    assert_eq!((peers.best_of(&[1, 2], 0), peers.best_of(&[1, 2], 1)), (Some(2), Some(2)));
    assert!(!peers.takes_part(1) && peers.takes_part(2) && peers.takes_part(0));
}

#[test]
fn a_restarted_peer_is_recognised_by_its_incarnation() {
    let peers = peers();
    let mut status = lock(&peers.status);
    status.seen(1, 7);
    status.fence.told(1, 5, 0);
    status.epochs.done(1, 3);
    // It connects once more, and a connection of its predecessor comes late.
    status.seen(1, 7);
    status.seen(1, 6);
    assert!(status.takes_part(1) && status.epochs.is_over(1, 3));
    status.seen(1, 8);
    assert!(!status.takes_part(1) && !status.epochs.is_over(1, 0));
}
