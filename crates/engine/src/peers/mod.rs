//! Other nodes of the job, as the engine sees them.
//!
//! The policy says which samples of a batch another node has ([`fetch`]) and which another node is to
//! keep afterwards ([`give`]). Others ask this node for samples and give it some to keep ([`serve`]).
//! Steps end in the same order everywhere, and no sooner than all nodes have loaded them ([`pace`]): a
//! plan gives the room of what one node has used to what another one keeps. [`start`] is how all nodes
//! make sure that they run the same job.
//!
//! Nothing here can fail a batch. What a peer does not give in time is read from the source, and what
//! nobody keeps is read from there in the next epoch.

mod again;
mod digests;
pub mod fetch;
pub mod give;
mod hands;
pub mod notify;
#[cfg(test)]
mod one_node;
pub mod pace;
mod serve;
pub mod start;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belady_control::bits::Bits;
use belady_data::SampleId;
use belady_data::sync::{Arc, Condvar, Mutex, MutexGuard, lock};
use belady_data::tier::Put;
use belady_peer::protocol::claims::Claims;
use belady_peer::protocol::health::Health;
use belady_peer::protocol::ledger::Ledger;
use belady_peer::protocol::pace::Pace;
use belady_peer::protocol::seek::Patience;
use belady_peer::{Bulk, Channel, Cluster, MeetError, NodeId, Serving, Taken, TierId, share};

use self::digests::Digests;
use self::fetch::Gate;
use self::give::Outgoing;
use self::hands::Hands;
use self::notify::Notices;
pub use self::serve::Counter;
use crate::EngineError;
use crate::config::PeerPatience;
use crate::metrics::{Metrics, PeerEvent};
use crate::parcel::{Parcel, SOURCE};
use crate::run::Run;

/// A call whose progress is not seen may be this slow, in bytes a second: a network of 1 Gbit/s that a
/// hundred calls share.
const SLOWEST: f64 = 1e6;

/// What a job knows of the other nodes. None of its locks is taken while another one is held, but for
/// `outgoing` within `notices`.
#[derive(Debug)]
pub struct Peers {
    pub cluster: Arc<Cluster>,
    pub channel: Channel,
    pub me: NodeId,
    pub nodes: u32,
    limits: PeerPatience,
    /// Nodes put samples into each other's tiers, in step.
    in_step: bool,
    /// This job ends: who is not there any more is not missed.
    is_leaving: AtomicBool,
    started: Instant,
    talk: Mutex<Talk>,
    /// Somebody has told something.
    changed: Condvar,
    /// By node.
    gates: Vec<Mutex<Gate>>,
    outgoing: Mutex<Outgoing>,
    notices: Mutex<Notices>,
    /// By tier, from 1 on: until when somebody counts on what lies there.
    claims: Vec<Mutex<Claims>>,
    digests: Digests,
    pub orders: again::Orders,
    /// What each node had in its caches when the job began; empty for none.
    warm: Vec<Bits>,
    hands: Hands,
    /// What this node's caches held then, until all others have heard it.
    bulk: Mutex<Option<Bulk>>,
}

/// What was heard of the others.
#[derive(Debug)]
struct Talk {
    health: Health,
    ledger: Ledger,
    pace: Pace,
    /// By node: the incarnation that was heard of last; 0 for none.
    incarnations: Vec<u64>,
}

impl Talk {
    /// Whether a node does its part of the plan: it is there, and in step.
    fn takes_part(&self, node: NodeId) -> bool {
        self.health.is_up(node) && self.pace.is_in_step(node)
    }

    /// A node is there as this incarnation: if that is a new one, it has begun with the first step.
    fn heard_of(&mut self, node: NodeId, incarnation: u64) {
        let known = &mut self.incarnations[node as usize];
        if *known != 0 && *known < incarnation {
            self.health.restarted(node);
            self.pace.restarted(node);
            self.ledger.restarted(node);
        }
        *known = incarnation.max(*known);
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        start::release(&self.cluster, self.channel);
    }
}

impl Peers {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn deadline(&self) -> Instant {
        self.deadline_of(0)
    }

    /// Of a call that moves so many bytes.
    fn deadline_of(&self, bytes: u64) -> Instant {
        let unseen = if self.cluster.transport.sees_progress() { 0 } else { bytes };
        let moving = Duration::from_secs_f64(unseen as f64 / SLOWEST);
        Instant::now() + self.limits.answer + moving
    }

    /// How long a peer is kept waiting for a call of a disk.
    fn disk_patience(&self) -> Duration {
        self.limits.answer / 2
    }

    fn patience(&self) -> Patience {
        lock(&self.talk).pace.patience()
    }

    /// Serves others from now on, when all do: what is told to one who does not serve yet is lost.
    pub fn open(&self, run: &Arc<Run>) -> Result<(Arc<Counter>, Serving), EngineError> {
        let counter = Arc::new(Counter(run.clone()));
        let weak = Arc::downgrade(&counter);
        run.metrics.peers().nodes(u64::from(self.nodes) - 1, 0);
        let serving = self.cluster.transport.desk().open(self.channel, weak);
        match share(&*self.cluster.meet, &start::serves(self.channel), Ok(&[])) {
            Ok(_) | Err(MeetError::Over(_)) => {}
            Err(error) => return Err(error.into()),
        }
        drop(lock(&self.bulk).take());
        Ok((counter, serving))
    }

    /// A peer need not keep a sample any more.
    pub fn release(&self, peer: NodeId, epoch: u32, sample: SampleId) {
        lock(&self.notices).release(peer, epoch, sample);
    }

    /// A sample was read from the source.
    pub fn read_anew(&self, sample: SampleId) {
        self.digests.forget(sample);
    }

    /// Lets go of batches on their way: they refer to this.
    pub fn close(&self) {
        lock(&self.outgoing).close();
        for gate in &self.gates {
            lock(gate).waiting.clear();
        }
    }

    pub fn others(&self) -> impl Iterator<Item = NodeId> + use<> {
        let me = self.me;
        (0..self.nodes).filter(move |&node| node != me)
    }

    fn may_ask(&self, peer: NodeId) -> bool {
        let now = self.now();
        lock(&self.talk).health.may_ask(peer, now)
    }

    fn is_up(&self, peer: NodeId) -> bool {
        lock(&self.talk).health.is_up(peer)
    }

    /// Whether a node does its part of the plan, so that it is given samples and counted on.
    fn takes_part(&self, node: NodeId) -> bool {
        lock(&self.talk).takes_part(node)
    }

    fn claims(&self, tier: TierId) -> Option<MutexGuard<'_, Claims>> {
        self.claims.get(usize::from(tier).checked_sub(1)?).map(lock)
    }

    /// An epoch has put a sample into a tier, where it waits for the next one.
    pub fn was_put(&self, tier: TierId, sample: SampleId, epoch: u32) {
        if let Some(mut claims) = self.claims(tier) {
            claims.put(sample, epoch);
        }
    }

    /// An epoch has used a sample in a tier, where it waits for the next one.
    fn stays(&self, tier: TierId, sample: SampleId, epoch: u32) {
        if let Some(mut claims) = self.claims(tier) {
            claims.stays(sample, epoch);
        }
    }

    /// An epoch is about to put a sample into a tier: if it lies there already, it stays.
    pub fn comes(&self, tier: TierId, sample: SampleId, epoch: u32) {
        if let Some(mut claims) = self.claims(tier) {
            claims.comes(sample, epoch);
        }
    }

    /// A sample could not be put into a tier.
    pub fn was_not_put(&self, run: &Run, tier: TierId, sample: SampleId) {
        if let Some(mut claims) = self.claims(tier)
            && run.cache.tier(tier).is_none_or(|tier| !tier.holds(sample))
        {
            claims.gone(sample);
        }
    }

    /// A copy is let go in an epoch, unless another node has put it here anew. Nobody can do that in
    /// between: claims come first.
    pub fn let_go(&self, run: &Run, tier: TierId, sample: SampleId, epoch: u32) {
        let Some(mut claims) = self.claims(tier) else { return };
        if claims.may_go(sample, epoch) {
            run.cache.evict(tier, sample);
            claims.gone(sample);
        }
    }

    /// An epoch has used a sample in a tier for the last time: it goes when room is needed.
    fn release_here(&self, tier: TierId, sample: SampleId, epoch: u32) {
        let again = self.orders.may_repeat(epoch);
        let Some(mut claims) = self.claims(tier) else { return };
        if again {
            claims.release_again(sample, epoch);
        } else {
            claims.release(sample, epoch);
        }
    }

    /// What a step that ends does to the tiers here: some samples go, others wait for the next epoch.
    pub fn step_ends(&self, parcel: &Parcel) {
        let epoch = parcel.block.step().epoch;
        for item in parcel.items.iter().filter(|item| item.from != SOURCE) {
            let Some(mut claims) = self.claims(item.from) else { continue };
            if item.last_use {
                claims.gone(item.sample);
            } else {
                claims.stays(item.sample, epoch);
            }
        }
    }

    /// Puts a sample, of this version of its file, that an epoch leaves into a tier, at the expense of
    /// what no plan counts on.
    fn put(
        &self,
        run: &Run,
        tier: TierId,
        (sample, version): (SampleId, i64),
        bytes: &[u8],
        epoch: u32,
    ) -> Taken {
        self.comes(tier, sample, epoch);
        loop {
            let put = run.cache.put(tier, sample, bytes, version);
            run.metrics.put(tier, put);
            match put {
                Put::Stored | Put::Present => {
                    self.was_put(tier, sample, epoch);
                    return Taken::Stored;
                }
                Put::Full if self.make_room(run, tier, sample) => {}
                Put::Full | Put::Refused => {
                    self.was_not_put(run, tier, sample);
                    return if put == Put::Full { Taken::NoRoom } else { Taken::Refused };
                }
            }
        }
    }

    /// Whether a sample that nobody counts on has gone from a tier, in favour of another one.
    fn make_room(&self, run: &Run, tier: TierId, wanted: SampleId) -> bool {
        let done = {
            let talk = lock(&self.talk);
            talk.ledger.all_done(|node| talk.takes_part(node))
        };
        let Some(mut claims) = self.claims(tier) else { return false };
        let Some(station) = run.cache.tier(tier) else { return false };
        let now = self.now();
        let holds = |sample| station.holds(sample);
        let victim = claims.released(holds).or_else(|| {
            if claims.lacks_room(wanted, now) { claims.forgotten(done, holds) } else { None }
        });
        let Some(victim) = victim else { return false };
        // Before anybody can put it here anew.
        run.cache.evict(tier, victim);
        claims.gone(victim);
        true
    }

    /// Whether something that an epoch uses may still be on its way.
    fn may_come(&self, epoch: u32) -> bool {
        let talk = lock(&self.talk);
        self.in_step && talk.ledger.may_come(epoch, |node| talk.takes_part(node))
    }

    /// Whether an epoch is over here, and with it the use of what waited for it.
    fn is_over(&self, epoch: u32) -> bool {
        lock(&self.talk).ledger.is_over(self.me, epoch)
    }

    /// Something was heard of a peer; whether it was down before.
    fn is_there(&self, peer: NodeId, metrics: &Metrics) -> bool {
        let mut talk = lock(&self.talk);
        let was_down = talk.health.is_there(peer);
        if was_down {
            tracing::info!(peer, "a peer is there again and is used again");
            metrics.peers().nodes(u64::from(self.nodes) - 1, talk.health.down().count() as u64);
        }
        was_down
    }

    /// A peer has said that its job is done: it is missed, but nothing is wrong with it.
    fn has_left(&self, peer: NodeId, metrics: &Metrics) {
        let mut talk = lock(&self.talk);
        talk.health.left(peer);
        tracing::info!(peer, "a peer has ended its job");
        metrics.peers().nodes(u64::from(self.nodes) - 1, talk.health.down().count() as u64);
    }

    fn failed(&self, peer: NodeId, error: &belady_peer::PeerError, metrics: &Metrics) {
        metrics.peers().count(PeerEvent::Failed, 1);
        let now = self.now();
        let mut talk = lock(&self.talk);
        let is_news = talk.health.failed(peer, now, !error.can_be_a_farewell());
        if self.is_leaving.load(Ordering::Relaxed) {
            return;
        }
        if is_news {
            tracing::warn!(peer, %error, "a peer is not used until it is back; its samples are read elsewhere");
        }
        metrics.peers().nodes(u64::from(self.nodes) - 1, talk.health.down().count() as u64);
    }

    /// Of several peers who hold the same, the one to ask: who is there, near, and has least to do for us.
    pub fn best_of(&self, holders: &[NodeId], sample: SampleId) -> Option<NodeId> {
        let others = holders.iter().copied().filter(|&peer| peer != self.me);
        others.min_by_key(|&peer| {
            let near = self.cluster.transport.is_near(peer);
            let errands = lock(&self.gates[peer as usize]).errands();
            (!self.takes_part(peer), !near, errands, self.turn(peer, sample))
        })
    }

    /// So that equals are not always asked in the same order.
    fn turn(&self, peer: NodeId, sample: SampleId) -> u32 {
        peer.wrapping_add(sample) % self.nodes
    }

    /// A peer that had a sample in its caches when the job began: near ones first, and not always the
    /// same.
    pub fn warm_at(&self, sample: SampleId) -> Option<NodeId> {
        if self.warm.is_empty() {
            return None;
        }
        let has = |&peer: &NodeId| self.warm[peer as usize].contains(sample) && self.is_up(peer);
        let holders = self.others().filter(has);
        let near = |peer| self.cluster.transport.is_near(peer);
        holders.min_by_key(|&peer| (!near(peer), self.turn(peer, sample)))
    }
}

#[cfg(test)]
mod tests {
    use belady_peer::meet::Hall;
    use belady_peer::memory::MemoryTransport;
    use belady_peer::{Desk, Notice, PeerError, Push, Receive, Request, Transport};

    use super::start::{Gathering, Introduction};
    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    /// Of which rank 2 alone is near, and which sees no progress.
    #[derive(Debug)]
    struct Far(Arc<MemoryTransport>);

    impl Transport for Far {
        fn get(
            &self,
            peer: NodeId,
            request: &Request<'_>,
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
        ) -> Result<Vec<Taken>, PeerError> {
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

        fn desk(&self) -> &Arc<Desk> {
            self.0.desk()
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

    /// Rank 0 of three, all of which are near.
    fn peers() -> Peers {
        peers_over(MemoryTransport::network(3).swap_remove(0))
    }

    fn far() -> Peers {
        peers_over(Arc::new(Far(MemoryTransport::network(3).swap_remove(0))))
    }

    /// Both others held sample 0 when the job began.
    fn peers_over(transport: Arc<dyn Transport>) -> Peers {
        let cluster = Arc::new(Cluster::new(Hall::new(3, LONG).seat(0), transport));
        let one = |warm| Introduction { capacities: vec![100], warm };
        let all = vec![one(vec![]), one(vec![1]), one(vec![1])];
        let limits = PeerPatience { answer: LONG, wait: LONG };
        let bulk = Bulk::offer(&cluster, vec![]);
        Gathering { cluster, channel: Channel(0), all, rooms: vec![vec![100]; 3], bulk }
            .peers(64, 100, limits, true)
    }

    fn goes_down(peers: &Peers, peer: NodeId) {
        lock(&peers.talk).health.failed(peer, LONG, true);
    }

    #[test]
    fn of_two_holders_the_one_that_is_there_is_asked() {
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
    fn of_two_holders_the_near_one_is_asked_and_of_equals_not_always_the_same() {
        let far = far();
        assert!((0..6).all(|sample| far.best_of(&[1, 2], sample) == Some(2)));
        assert_eq!(far.warm_at(0), Some(2));
        let near = peers();
        let asked = [0, 1, 2, 3].map(|sample| near.best_of(&[1, 2], sample));
        assert_eq!(asked, [Some(1), Some(2), Some(1), Some(1)]);
        assert_eq!(near.warm_at(0), Some(1));
    }

    #[test]
    fn a_call_whose_progress_is_not_seen_is_given_the_time_that_its_bytes_take() {
        let in_seconds = |peers: &Peers, seconds: u64| {
            let before = Instant::now();
            let deadline = peers.deadline_of(seconds * SLOWEST as u64);
            let limit = LONG + Duration::from_secs(seconds);
            (before + limit..=Instant::now() + limit).contains(&deadline)
        };
        assert!(in_seconds(&far(), 0) && in_seconds(&far(), 30));
        assert!(in_seconds(&peers(), 0) && !in_seconds(&peers(), 30));
        // A disk is asked for less long, so that the peer is answered in time.
        assert!((Duration::from_secs(1)..LONG).contains(&peers().disk_patience()));
    }

    #[test]
    fn of_two_holders_the_one_that_is_in_step_is_asked() {
        let peers = peers();
        lock(&peers.talk).pace.restarted(1);
        assert_eq!((peers.best_of(&[1, 2], 0), peers.best_of(&[1, 2], 1)), (Some(2), Some(2)));
        assert!(!peers.takes_part(1) && peers.takes_part(2) && peers.takes_part(0));
    }

    #[test]
    fn a_peer_that_was_started_anew_is_known_by_its_incarnation() {
        let peers = peers();
        let mut talk = lock(&peers.talk);
        talk.heard_of(1, 7);
        talk.pace.told(1, 5, 0);
        talk.ledger.done(1, 3);
        // It connects once more, and a connection of the one before comes late.
        talk.heard_of(1, 7);
        talk.heard_of(1, 6);
        assert!(talk.takes_part(1) && talk.ledger.is_over(1, 3));
        talk.heard_of(1, 8);
        assert!(!talk.takes_part(1) && !talk.ledger.is_over(1, 0));
    }
}
