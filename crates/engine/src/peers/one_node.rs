//! One node of a job whose other nodes are played by the test.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_control::policy::Evict;
use belady_control::sampler::Step;
use belady_data::SampleId;
use belady_data::source::{Source, Synthetic, Version, Want};
use belady_data::stage::{Consumer, Producer, RingConfig, Take, ring};
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::{Get, Put, RamTier, Tier};
use belady_peer::meet::Hall;
use belady_peer::memory::MemoryTransport;
use belady_peer::{
    Ask, Bulk, Channel, Cluster, NodeId, Notice, Payload, Push, Reply, Request, Serve, Serving,
    Taken, TierId, Transport,
};

use super::digests::Digests;
use super::start::{Gathering, Introduction};
use super::{Counter, Peers, notify, pace};
use crate::brain::Brain;
use crate::build::Share;
use crate::cache::Cache;
use crate::config::{BadSamples, Lend, PeerPatience, Retry};
use crate::keep;
use crate::load;
use crate::metrics::{Metrics, PeerSnapshot};
use crate::parcel::{Gift, Item, NOWHERE, Parcel, SOURCE};
use crate::pool::Pool;
use crate::rates::Rates;
use crate::run::{Lending, Parts, Run};
use crate::system::known_system;

const SAMPLES: u32 = 12;
/// A whole number of granules of a tier in memory.
const SIZE: u64 = 160;
const LONG: Duration = Duration::from_secs(20);
const CHANNEL: Channel = Channel(0);

/// Another node: writes down what it is told and given.
#[derive(Debug)]
struct Player {
    heard: Mutex<Vec<Notice>>,
    given: Mutex<Vec<(SampleId, TierId, u32)>>,
    answer: Mutex<Taken>,
    /// What it gives to those who ask, and what it says that the bytes add up to.
    held: Mutex<HashMap<SampleId, (Vec<u8>, u64)>>,
    asked: Mutex<Vec<(SampleId, bool)>>,
}

impl Serve for Player {
    fn get(&self, _: NodeId, request: &Request<'_>, _: usize, replies: &mut Vec<Reply>) {
        let held = lock(&self.held);
        for ask in request.asks {
            lock(&self.asked).push((ask.sample, ask.last_use));
            replies.push(match held.get(&ask.sample) {
                Some((bytes, digest)) => Reply::Here {
                    bytes: Payload::Copied(bytes.as_slice().into()),
                    digest: *digest,
                    version: 0,
                },
                None => Reply::NotHere,
            });
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        let given = |push: &Push<'_>| (push.sample, push.tier, push.epoch);
        lock(&self.given).extend(pushes.iter().map(given));
        taken.extend(pushes.iter().map(|_| *lock(&self.answer)));
    }

    fn told(&self, _: NodeId, notice: &Notice) {
        lock(&self.heard).push(notice.clone());
    }
}

impl Player {
    /// Waits until it has heard something.
    fn hears(&self, what: &Notice) {
        wait_for(|| lock(&self.heard).contains(what), what);
    }
}

fn wait_for(mut there: impl FnMut() -> bool, what: &dyn std::fmt::Debug) {
    let until = Instant::now() + LONG;
    while !there() {
        assert!(Instant::now() < until, "{what:?} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rank 0 of three, with two tiers in memory.
struct One {
    run: Arc<Run>,
    counter: Counter,
    /// Ranks 1 and 2.
    players: Vec<Arc<Player>>,
    transports: Vec<Arc<MemoryTransport>>,
    source: Arc<Synthetic>,
    producer: Producer,
    consumer: Consumer,
    _serving: Vec<Serving>,
    _pool: Pool,
}

impl Drop for One {
    fn drop(&mut self) {
        self.run.abandon();
    }
}

impl One {
    fn new() -> Self {
        Self::with(PeerPatience { answer: LONG, wait: LONG })
    }

    /// Three samples fit into each tier.
    fn with(limits: PeerPatience) -> Self {
        let transports = MemoryTransport::network(3);
        let cluster = Arc::new(Cluster::new(Hall::new(3, LONG).seat(0), transports[0].clone()));
        let one = || Introduction { capacities: vec![3 * SIZE; 2], warm: vec![] };
        let all = vec![one(), one(), one()];
        let bulk = Bulk::offer(&cluster, vec![]);
        let gathering = Gathering { cluster, channel: CHANNEL, all, room: vec![3 * SIZE; 2], bulk };
        let source = Arc::new(Synthetic::of_sizes([SIZE; SAMPLES as usize], 3));
        let sizes = Arc::new(Sizes::Equal { bytes: SIZE, samples: SAMPLES });
        let tier = || -> Arc<dyn Tier> { Arc::new(RamTier::new(Bytes(3 * SIZE), sizes.clone())) };
        let tiers = [tier(), tier()].map(|tier| (tier, "ram".into(), false)).into();
        let cache = Cache::new(tiers, source.clone(), Arc::new(Share::none()), None);
        let names = ["a".to_owned(), "b".to_owned()];
        let capacities = names.clone().map(|name| (name, Bytes(3 * SIZE)));
        let system = known_system(None, Bytes(1 << 16), 2, &capacities);
        let pool = Pool::new(2, LONG).unwrap();
        let run = Arc::new(Run::new(Parts {
            source: source.clone(),
            sizes,
            cache,
            brain: Brain::new(0, None),
            lane: pool.lane(),
            rates: Rates::new(&system, &[false, false]),
            metrics: Arc::new(Metrics::new(&names)),
            retry: Retry::default(),
            bad_samples: BadSamples::default(),
            lending: Lending { lend: Lend::default(), all_stay: false },
            peers: Some(gathering.peers(SAMPLES, 2 * SIZE, limits, true)),
        }));
        let player = |_| {
            let answer = Mutex::new(Taken::Stored);
            let (heard, given, held) = (Mutex::default(), Mutex::default(), Mutex::default());
            Arc::new(Player { heard, given, answer, held, asked: Mutex::default() })
        };
        let players: Vec<Arc<Player>> = (1..3).map(player).collect();
        let serve = |(transport, player): (&Arc<MemoryTransport>, &Arc<Player>)| {
            let weak = Arc::downgrade(player);
            transport.desk().open(CHANNEL, weak)
        };
        let serving = transports[1..].iter().zip(&players).map(serve).collect();
        let (producer, consumer) =
            ring(&RingConfig { capacity: 1 << 16, batches: 8, align: 1 }).unwrap();
        let counter = Counter(run.clone());
        Self {
            run,
            counter,
            players,
            transports,
            source,
            producer,
            consumer,
            _serving: serving,
            _pool: pool,
        }
    }

    fn peers(&self) -> &Peers {
        self.run.peers.as_ref().unwrap()
    }

    fn metrics(&self) -> PeerSnapshot {
        self.run.metrics.snapshot().peers
    }

    fn bytes(&self, sample: SampleId) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.source.read(&mut [Want::new(sample, &mut bytes)]).unwrap();
        bytes
    }

    fn hold(&self, tier: TierId, sample: SampleId, epoch: u32) {
        assert_eq!(self.run.cache.put(tier, sample, &self.bytes(sample), 0), Put::Stored);
        self.peers().was_put(tier, sample, epoch);
    }

    fn holds(&self, tier: TierId) -> Vec<SampleId> {
        let tier = self.run.cache.tier(tier).unwrap();
        (0..SAMPLES).filter(|&sample| tier.holds(sample)).collect()
    }

    /// What node 1 is answered.
    fn ask(&self, epoch: u32, asks: &[(SampleId, bool)], limit: usize) -> Vec<Reply> {
        let ask = |&(sample, last_use)| Ask { sample, last_use };
        let asks: Vec<Ask> = asks.iter().map(ask).collect();
        let mut replies = vec![];
        let request = Request { channel: CHANNEL, epoch, asks: &asks };
        self.counter.get(1, &request, limit, &mut replies);
        replies
    }

    /// What becomes of what node 1 gives.
    fn give(&self, sample: SampleId, tier: TierId, epoch: u32) -> Taken {
        let bytes = self.bytes(sample);
        let digest = Digests::new(SAMPLES).of(sample, Version::default(), &bytes);
        let push = Push { sample, tier, epoch, digest, version: 0, bytes: &bytes };
        let mut taken = vec![];
        self.counter.put(1, &[push], &mut taken);
        taken[0]
    }

    /// A batch whose bytes are there, the last in order.
    fn batch(
        &mut self,
        sequence: u64,
        epoch: u32,
        items: Vec<Item>,
        evictions: Vec<Evict>,
    ) -> Arc<Parcel> {
        let parcel = self.empty_batch((sequence, epoch), items, evictions, vec![]);
        for (index, item) in parcel.items.iter().enumerate() {
            // SAFETY: nothing else loads it.
            unsafe { parcel.slot(index as u32) }.copy_from_slice(&self.bytes(item.sample));
        }
        parcel
    }

    fn empty_batch(
        &mut self,
        (sequence, epoch): (u64, u32),
        items: Vec<Item>,
        evictions: Vec<Evict>,
        gifts: Vec<Gift>,
    ) -> Arc<Parcel> {
        let samples: Vec<SampleId> = items.iter().map(|item| item.sample).collect();
        let lengths = vec![SIZE; samples.len()];
        let step = Step { epoch, iteration: sequence as u32 };
        let block = self.producer.reserve(step, &samples, &lengths).unwrap().unwrap();
        let parcel = Parcel::new(&self.run, block, items, evictions, gifts, sequence);
        lock(&self.run.in_order).push_back(parcel.clone());
        parcel
    }

    fn others_have_loaded(&self, steps: u64) {
        for node in [1, 2] {
            self.counter.told(node, &Notice::Loaded { steps });
        }
    }
}

fn kinds(replies: &[Reply]) -> Vec<&'static str> {
    let kind = |reply: &Reply| match reply {
        Reply::Here { .. } => "here",
        Reply::NotHere => "not here",
        Reply::NotYet => "not yet",
        Reply::Busy => "busy",
    };
    replies.iter().map(kind).collect()
}

#[test]
fn a_peer_gets_what_is_held_and_is_told_of_what_is_not() {
    let one = One::new();
    one.hold(1, 3, 0);
    one.hold(2, 4, 0);
    let last = SAMPLES - 1;
    let asks = [(3, false), (5, false), (4, false), (last, false), (SAMPLES, false), (99, true)];
    let replies = one.ask(0, &asks, 1 << 20);
    assert_eq!(kinds(&replies), ["here", "not here", "here", "not here", "not here", "not here"]);
    for (reply, sample) in [(&replies[0], 3), (&replies[2], 4)] {
        let Reply::Here { bytes, digest, version: 0 } = reply else { panic!("{reply:?}") };
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
fn what_may_still_come_is_not_yet_here_until_all_are_done_with_the_epoch_before() {
    let one = One::new();
    let answer = |epoch| kinds(&one.ask(epoch, &[(3, false)], 1 << 20))[0];
    assert_eq!((answer(0), answer(1)), ("not here", "not yet"));
    for node in [1, 2] {
        one.counter.told(node, &Notice::EpochDone { epoch: 0 });
        assert_eq!(answer(1), "not yet");
    }
    lock(&one.peers().talk).ledger.done(0, 0);
    assert_eq!((answer(1), answer(2)), ("not here", "not yet"));
}

#[test]
fn only_what_was_used_for_the_last_time_makes_room_for_what_is_given() {
    for last_use in [false, true] {
        let one = One::new();
        (0..3).for_each(|sample| one.hold(1, sample, 0));
        assert_eq!(kinds(&one.ask(1, &[(1, last_use)], 1 << 20)), ["here"]);
        let taken = one.give(7, 1, 1);
        assert_eq!(taken, if last_use { Taken::Stored } else { Taken::NoRoom });
        assert_eq!(one.holds(1), if last_use { vec![0, 2, 7] } else { vec![0, 1, 2] });
        let volume = one.metrics().taken;
        let expected = if last_use { (1, SIZE) } else { (0, 0) };
        assert_eq!((volume.samples, volume.bytes), expected);
    }
}

#[test]
fn what_others_need_no_more_makes_room_and_samples_that_there_are_none_of_are_passed_over() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(2, sample, 0));
    let samples = vec![SAMPLES, 99, 2, 5];
    one.counter.told(2, &Notice::Released { epoch: 1, samples });
    assert_eq!(one.give(8, 2, 1), Taken::Stored);
    assert_eq!(one.holds(2), [0, 1, 8]);
    assert_eq!(one.give(9, 2, 1), Taken::NoRoom);
}

#[test]
fn memory_is_taken_only_for_samples_of_the_dataset() {
    let one = One::new();
    assert!(one.counter.wants(0, SIZE) && one.counter.wants(SAMPLES - 1, SIZE));
    assert!(!one.counter.wants(SAMPLES, SIZE) && !one.counter.wants(SAMPLES + 1, SIZE));
    assert!(!one.counter.wants(0, SIZE - 1) && !one.counter.wants(0, SIZE + 1));
}

#[test]
fn what_is_given_for_an_epoch_that_is_over_is_refused() {
    let one = One::new();
    // It waits for epoch 1, which is over with the second of these.
    for (epoch, taken) in [(0, Taken::Stored), (1, Taken::Refused)] {
        lock(&one.peers().talk).ledger.done(0, epoch);
        assert_eq!(one.give(epoch, 1, 0), taken);
    }
    assert_eq!(one.give(4, 1, 1), Taken::Stored);
    assert_eq!(one.give(4, 1, 1), Taken::Stored, "it is here");
}

#[test]
fn there_is_no_tier_0_and_no_third() {
    let one = One::new();
    assert_eq!([0, 1, 2, 3].map(|tier| one.give(4, tier, 0)), {
        use Taken::{Refused, Stored};
        [Refused, Stored, Stored, Refused]
    });
    assert_eq!((one.holds(1), one.holds(2)), (vec![4], vec![4]));
}

#[test]
fn a_wrong_copy_is_replaced_by_the_right_one_that_is_given() {
    let one = One::new();
    let tier = |tier| one.run.cache.tier(tier).unwrap();
    tier(1).put(4, &[9; SIZE as usize], 0);
    tier(2).put(4, &one.bytes(4), 0);
    assert_eq!(one.give(4, 1, 0), Taken::Stored);
    let mut into = [0; SIZE as usize];
    for number in [1, 2] {
        assert_eq!(tier(number).get(4, &mut into), Get::Hit);
        assert!(into == one.bytes(4)[..], "tier {number}");
    }
    let damaged: Vec<u64> =
        one.run.metrics.snapshot().tiers.iter().map(|tier| tier.damaged).collect();
    assert_eq!(damaged, [1, 0]);
}

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
    one.run.planned.store(3, std::sync::atomic::Ordering::Release);
    let told = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            pace::wait_to_begin(&one.run);
            told.load(std::sync::atomic::Ordering::Acquire)
        });
        for node in [0, 1, 2] {
            std::thread::sleep(Duration::from_millis(20));
            told.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            pace::told(&one.run, node, 3);
        }
        assert_eq!(waits.join().unwrap(), 3);
    });
    // One that stops waits for nothing.
    one.run.planned.store(9, std::sync::atomic::Ordering::Release);
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
fn who_is_done_goes_on_serving_until_others_are_and_have_heard_all() {
    let one = One::new();
    one.run.begin_epoch(1);
    lock(&one.peers().talk).ledger.done(0, 0);
    let told = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            pace::let_others_finish(&one.run);
            told.load(std::sync::atomic::Ordering::Acquire)
        });
        for node in [1, 2] {
            std::thread::sleep(Duration::from_millis(30));
            told.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
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
fn a_step_calls_off_what_earlier_ones_keep_and_not_what_it_keeps_itself() {
    for (leader, cancelled) in [(1, Some(1)), (2, None), (3, None)] {
        let mut one = One::new();
        one.run.begin_epoch(2);
        one.others_have_loaded(2);
        // One by its last use, another by an eviction.
        assert!(one.run.flights.lead_arrived(4, leader) && one.run.flights.lead_arrived(5, leader));
        let used_up = Item::new(4, 1, true, NOWHERE);
        let batch = one.batch(2, 0, vec![used_up], vec![Evict { sample: 5, tier: 1 }]);
        one.run.loaded(&batch, 1);
        let landed = [4, 5].map(|sample| one.run.flights.land(sample).cancelled);
        assert_eq!(landed, [cancelled; 2], "led by batch {leader}");
    }
}

#[test]
fn what_a_step_uses_for_the_last_time_goes_and_what_the_source_gave_does_not() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    let items = vec![
        Item::new(0, 1, true, NOWHERE),
        Item::new(1, 1, false, NOWHERE),
        Item::new(7, SOURCE, true, 2),
        Item::new(8, SOURCE, false, 1),
    ];
    let batch = one.batch(1, 0, items, vec![Evict { sample: 2, tier: 1 }]);
    one.run.loaded(&batch, 4);
    assert!(matches!(one.consumer.take(Some(LONG)), Take::Batch(_)));
    // 2 was put in this very epoch by another node, and the eviction is of an older copy.
    assert_eq!((one.holds(1), one.holds(2)), (vec![1, 2, 8], vec![7]));
    // What is put is claimed for the next epoch: nothing given makes it go.
    assert_eq!((one.give(9, 1, 0), one.give(9, 2, 0)), (Taken::NoRoom, Taken::Stored));
}

#[test]
fn looking_again_ends_what_may_end() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    let batch = one.batch(1, 0, vec![Item::new(1, SOURCE, false, NOWHERE)], vec![]);
    one.run.loaded(&batch, 1);
    assert!(one.run.looks_again.load(std::sync::atomic::Ordering::Acquire));
    for node in [1, 2] {
        lock(&one.peers().talk).pace.told(node, 1, 0);
    }
    // No notice comes: a look from time to time does it.
    assert!(matches!(one.consumer.take(Some(LONG)), Take::Batch(_)));
    wait_for(|| !one.run.looks_again.load(std::sync::atomic::Ordering::Acquire), &"the look");
    keep::look_again(&one.run);
}

/// Room that others free for a sample comes a little later: what waits for no user goes only if it does not.
#[test]
fn a_refusal_is_forgotten_when_the_sample_has_come() {
    let one = One::new();
    (0..3).for_each(|sample| one.hold(1, sample, 0));
    assert_eq!(one.give(9, 1, 0), Taken::NoRoom);
    one.counter.told(1, &Notice::Released { epoch: 1, samples: vec![1] });
    assert_eq!(one.give(9, 1, 0), Taken::Stored);
    assert_eq!(kinds(&one.ask(1, &[(9, true)], 1 << 20)), ["here"]);
    assert_eq!(one.give(10, 1, 1), Taken::Stored, "in its place");
    // Longer than room may be lacking, if anything had lacked it.
    std::thread::sleep(Duration::from_millis(400));
    for node in 0..3 {
        lock(&one.peers().talk).ledger.done(node, 1);
    }
    assert_eq!(one.give(9, 1, 2), Taken::NoRoom, "it has just begun to lack room");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(one.give(9, 1, 2), Taken::Stored);
    assert!(one.holds(1).contains(&10), "what waits for a user stays");
}

/// Three gifts for an outbox with room for two.
fn gives(one: &mut One) -> Arc<Parcel> {
    one.run.begin_epoch(1);
    let items = (0..4).map(|sample| Item::new(sample, SOURCE, false, NOWHERE)).collect();
    let gift = |(item, to)| Gift { item, to, tier: 2 };
    let gifts = [(0, 1), (1, 2), (3, 1)].map(gift).into();
    let parcel = one.empty_batch((1, 0), items, vec![], gifts);
    load::dispatch(&parcel, 0..4);
    parcel
}

#[test]
fn gifts_go_to_the_nodes_that_are_to_keep_them_and_then_the_epoch_is_done() {
    let mut one = One::new();
    one.others_have_loaded(1);
    gives(&mut one);
    assert!(matches!(one.consumer.take(Some(LONG)), Take::Batch(_)));
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
    let mut first = lock(&one.players[0].given).clone();
    first.sort_unstable();
    assert_eq!(first, [(0, 2, 0), (3, 2, 0)]);
    assert_eq!(*lock(&one.players[1].given), [(1, 2, 0)]);
    let pushed = one.metrics().pushed;
    assert_eq!((pushed.samples, pushed.bytes, one.metrics().dropped), (3, 3 * SIZE, 0));
}

#[test]
fn a_gift_that_is_refused_is_dropped_and_one_without_room_is_brought_again() {
    let mut one = One::new();
    one.others_have_loaded(1);
    *lock(&one.players[0].answer) = Taken::Refused;
    *lock(&one.players[1].answer) = Taken::NoRoom;
    gives(&mut one);
    wait_for(|| lock(&one.players[1].given).len() > 1, &"a second try");
    assert!(!lock(&one.peers().talk).ledger.is_over(0, 0), "something is left to give");
    *lock(&one.players[1].answer) = Taken::Stored;
    one.players.iter().for_each(|player| player.hears(&Notice::EpochDone { epoch: 0 }));
    assert_eq!((one.metrics().pushed.samples, one.metrics().dropped), (1, 2));
}

#[test]
fn gifts_for_a_node_that_is_gone_are_dropped() {
    let mut one = One::new();
    one.others_have_loaded(1);
    lock(&one.peers().talk).health.left(1);
    gives(&mut one);
    assert!(matches!(one.consumer.take(Some(LONG)), Take::Batch(_)));
    one.players[1].hears(&Notice::EpochDone { epoch: 0 });
    assert_eq!((one.metrics().pushed.samples, one.metrics().dropped), (1, 2));
    assert!(lock(&one.players[0].given).is_empty());
}

#[test]
fn samples_come_from_the_peers_that_hold_them_else_from_the_source() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    let right = |sample| {
        let bytes = one.bytes(sample);
        let digest = Digests::new(SAMPLES).of(sample, Version::default(), &bytes);
        (bytes, digest)
    };
    let (bytes, digest) = right(3);
    let wrong = (bytes.iter().map(|byte| !byte).collect(), digest);
    lock(&one.players[0].held).extend([(1, right(1)), (2, right(2)), (3, wrong)]);
    let remote = |sample, peer, last_use| Item::remote(sample, (peer, 1), last_use, NOWHERE);
    // 4 and 5 are not where they should be: one is let go there, the other is brought back.
    let items = vec![
        remote(1, 1, false),
        remote(2, 1, true),
        remote(3, 1, true),
        remote(4, 2, true),
        remote(5, 2, false),
    ];
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..5);
    drop(parcel);
    let Take::Batch(batch) = one.consumer.take(Some(LONG)) else { panic!("no batch") };
    for (at, sample) in (1..6).enumerate() {
        assert!(batch.bytes(at) == one.bytes(sample), "sample {sample}");
    }
    let mut asked = lock(&one.players[0].asked).clone();
    asked.sort_unstable();
    assert_eq!(asked, [(1, false), (2, true), (3, true)]);
    let metrics = one.metrics();
    assert_eq!((metrics.read.samples, metrics.read.bytes), (2, 2 * SIZE));
    assert_eq!((metrics.damaged, metrics.misses, metrics.retries), (1, 3, 0));
    assert_eq!(one.run.metrics.snapshot().source.samples, 3);
    one.players[1].hears(&Notice::EpochDone { epoch: 0 });
    assert_eq!(*lock(&one.players[1].given), [(5, 1, 0)], "it is put back");
    notify::all(&one.run);
    one.players[0].hears(&Notice::Released { epoch: 0, samples: vec![3] });
    one.players[1].hears(&Notice::Released { epoch: 0, samples: vec![4] });
}

#[test]
fn a_peer_that_is_down_is_not_asked_and_its_samples_come_from_the_source() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    lock(&one.peers().talk).health.left(1);
    let parcel =
        one.empty_batch((1, 0), vec![Item::remote(1, (1, 1), false, NOWHERE)], vec![], vec![]);
    load::dispatch(&parcel, 0..1);
    let Take::Batch(batch) = one.consumer.take(Some(LONG)) else { panic!("no batch") };
    assert!(batch.bytes(0) == one.bytes(1));
    assert!(lock(&one.players[0].asked).is_empty());
    assert_eq!((one.metrics().misses, one.metrics().read.samples), (1, 0));
}

#[test]
fn a_sample_that_a_batch_has_several_times_is_asked_for_once() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    for sample in 0..SAMPLES {
        let bytes = one.bytes(sample);
        let digest = Digests::new(SAMPLES).of(sample, Version::default(), &bytes);
        lock(&one.players[1].held).insert(sample, (bytes, digest));
    }
    let items: Vec<Item> =
        (0..100).map(|at| Item::remote(at % SAMPLES, (2, 1), false, NOWHERE)).collect();
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..100);
    let Take::Batch(batch) = one.consumer.take(Some(LONG)) else { panic!("no batch") };
    assert!((0..100).all(|at| batch.bytes(at) == one.bytes(at as u32 % SAMPLES)));
    assert_eq!(lock(&one.players[1].asked).len(), SAMPLES as usize);
    wait_for(|| lock(&one.peers().gates[2]).errands() == 0, &"the end of the errand");
}

#[test]
fn samples_of_both_tiers_come_from_there() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    for (tier, sample) in [(1, 0), (2, 1), (1, 2), (2, 3)] {
        one.hold(tier, sample, 0);
    }
    let local = |(tier, sample)| Item::new(sample, tier, false, NOWHERE);
    let items = [(1, 0), (2, 1), (2, 3), (1, 2), (1, 0)].map(local).into();
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..5);
    let Take::Batch(batch) = one.consumer.take(Some(LONG)) else { panic!("no batch") };
    for (at, sample) in [0, 1, 3, 2, 0].into_iter().enumerate() {
        assert!(batch.bytes(at) == one.bytes(sample), "sample {sample}");
    }
    let metrics = one.run.metrics.snapshot();
    assert_eq!(metrics.source.samples, 0);
    assert_eq!(metrics.tiers.iter().map(|tier| tier.read.samples).collect::<Vec<_>>(), [3, 2]);
}

#[test]
fn what_is_not_where_it_should_be_is_put_back_if_it_is_to_stay_there() {
    let mut one = One::new();
    one.run.begin_epoch(1);
    one.others_have_loaded(1);
    one.hold(2, 5, 0);
    let items = vec![
        Item::new(4, 1, false, NOWHERE),
        // It goes after this use.
        Item::new(6, 1, true, NOWHERE),
        // It was there by chance.
        Item::guest(7, 1, NOWHERE),
        // It is in another tier.
        Item::new(5, 1, false, NOWHERE),
        // It is to be kept elsewhere.
        Item::new(8, 1, false, 2),
    ];
    let parcel = one.empty_batch((1, 0), items, vec![], vec![]);
    load::dispatch(&parcel, 0..5);
    drop(parcel);
    let Take::Batch(batch) = one.consumer.take(Some(LONG)) else { panic!("no batch") };
    for (at, sample) in [4, 6, 7, 5, 8].into_iter().enumerate() {
        assert!(batch.bytes(at) == one.bytes(sample), "sample {sample}");
    }
    assert_eq!((one.holds(1), one.holds(2)), (vec![4], vec![5, 8]));
    assert_eq!(one.run.metrics.snapshot().source.samples, 4);
}

/// Two batches that need the same sample: it is read once, and both have it.
#[test]
fn a_sample_on_its_way_is_read_once_for_all_who_want_it() {
    let mut one = One::new();
    one.run.begin_epoch(2);
    one.others_have_loaded(2);
    let from_source = |sample, keep| Item::new(sample, SOURCE, false, keep);
    let first = one.empty_batch((1, 0), vec![from_source(3, 1)], vec![], vec![]);
    let items = vec![from_source(3, NOWHERE), from_source(4, NOWHERE)];
    let second = one.empty_batch((2, 0), items, vec![], vec![]);
    // The first one leads, and is not there yet.
    assert_eq!(one.run.flights.lead_or_wait(3, 1, || unreachable!()), crate::flights::Turn::Lead);
    first.items[0].set_leads(true);
    load::dispatch(&second, 0..2);
    wait_for(|| second.left() == 1, &"the other sample");
    // SAFETY: nothing else loads it.
    unsafe { first.slot(0) }.copy_from_slice(&one.bytes(3));
    load::arrived(&first, 0);
    one.run.loaded(&first, 1);
    for sample in [3, 3] {
        let Take::Batch(batch) = one.consumer.take(Some(LONG)) else { panic!("no batch") };
        assert!(batch.bytes(0) == one.bytes(sample));
    }
    assert_eq!(one.run.metrics.snapshot().source.samples, 1);
    wait_for(|| one.holds(1) == [3], &"the copy that is kept");
}

#[test]
fn a_copy_that_an_epoch_is_about_to_put_again_does_not_go_in_it() {
    let one = One::new();
    for sample in [2, 3] {
        one.hold(1, sample, 0);
    }
    one.peers().comes(1, 2, 1);
    for sample in [2, 3] {
        one.peers().let_go(&one.run, 1, sample, 1);
    }
    assert_eq!(one.holds(1), [2]);
}
