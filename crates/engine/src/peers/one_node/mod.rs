//! One node of a job whose other nodes are played by the test.

mod ending;
mod giving;
mod loading;
mod notices;
mod pace;
mod serving;
mod taking;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_control::policy::Evict;
use belady_control::sampler::Step;
use belady_data::SampleId;
use belady_data::source::{Catalog, Operations, ReadError, Source, Synthetic, Version, Want};
use belady_data::stage::{Batch, Consumer, Producer, RingConfig, Take, ring};
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
use super::{Counter, Peers};
use crate::brain::Brain;
use crate::build::Share;
use crate::cache::Cache;
use crate::config::{BadSamples, Lend, PeerPatience, Retry};
use crate::horizon::Horizon;
use crate::metrics::{Metrics, PeerSnapshot};
use crate::parcel::{Gift, Item, NOWHERE, Parcel, SOURCE};
use crate::pool::{Pool, Worker};
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
    /// What it does not hold may still come.
    expects_more: AtomicBool,
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
                None if self.expects_more.load(Ordering::Acquire) => Reply::NotYet,
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

    /// Has a sample from now on.
    fn hold(&self, sample: SampleId, bytes: Vec<u8>) {
        let digest = digest_of(sample, &bytes);
        lock(&self.held).insert(sample, (bytes, digest));
    }
}

/// What the bytes of a sample add up to.
fn digest_of(sample: SampleId, bytes: &[u8]) -> u64 {
    Digests::new(SAMPLES).of(sample, Version::default(), bytes)
}

fn wait_for(mut there: impl FnMut() -> bool, what: &dyn std::fmt::Debug) {
    let until = Instant::now() + LONG;
    while !there() {
        assert!(Instant::now() < until, "{what:?} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Samples whose files are compared with their listing if the test wants it, and of which one has changed.
#[derive(Debug)]
struct Files {
    samples: Synthetic,
    are_to_be_compared: AtomicBool,
    compared: Mutex<Vec<SampleId>>,
}

const CHANGED: SampleId = 5;

impl Source for Files {
    fn catalog(&self) -> &Catalog {
        self.samples.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        self.samples.read(wants)
    }

    fn operations(&self) -> Operations {
        self.samples.operations()
    }

    fn is_compared(&self, sample: SampleId) -> bool {
        !self.are_to_be_compared.load(Ordering::Acquire) || lock(&self.compared).contains(&sample)
    }

    fn compare(&self, sample: SampleId) -> Result<(), ReadError> {
        if sample == CHANGED {
            let (path, error) = ("a file".into(), std::io::ErrorKind::NotFound.into());
            return Err(ReadError::Io { sample, path, error });
        }
        lock(&self.compared).push(sample);
        Ok(())
    }
}

/// Rank 0 of three, with two tiers in memory.
struct One {
    run: Arc<Run>,
    counter: Counter,
    /// Ranks 1 and 2.
    players: Vec<Arc<Player>>,
    transports: Vec<Arc<MemoryTransport>>,
    source: Arc<Files>,
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

    fn with(limits: PeerPatience) -> Self {
        Self::built(limits, Lend::default())
    }

    /// Three samples fit into each tier.
    fn built(limits: PeerPatience, lend: Lend) -> Self {
        let transports = MemoryTransport::network(3);
        let cluster = Arc::new(Cluster::new(Hall::new(3, LONG).seat(0), transports[0].clone()));
        let one = || Introduction { capacities: vec![3 * SIZE; 2], warm: vec![] };
        let all = vec![one(), one(), one()];
        let bulk = Bulk::offer(&cluster, vec![]);
        let rooms = vec![vec![3 * SIZE; 2]; 3];
        let gathering = Gathering { cluster, channel: CHANNEL, all, rooms, bulk };
        let samples = Synthetic::of_sizes([SIZE; SAMPLES as usize], 3);
        let (are_to_be_compared, compared) = (AtomicBool::new(false), Mutex::default());
        let source = Arc::new(Files { samples, are_to_be_compared, compared });
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
            lending: Lending { lend, all_stay: true },
            peers: Some(gathering.peers(SAMPLES, 2 * SIZE, limits, true)),
            horizon: Horizon::new(None, true),
        }));
        let player = |_| {
            let answer = Mutex::new(Taken::Stored);
            let (heard, given, held) = (Mutex::default(), Mutex::default(), Mutex::default());
            let (asked, expects_more) = (Mutex::default(), AtomicBool::new(false));
            Arc::new(Player { heard, given, answer, held, expects_more, asked })
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
        self.give_bytes(sample, tier, epoch, &self.bytes(sample))
    }

    fn give_bytes(&self, sample: SampleId, tier: TierId, epoch: u32, bytes: &[u8]) -> Taken {
        let digest = digest_of(sample % SAMPLES, bytes);
        let push = Push { sample, tier, epoch, digest, version: 0, bytes };
        let mut taken = vec![];
        self.counter.put(1, &[push], &mut taken);
        taken[0]
    }

    /// The next batch.
    fn take(&mut self) -> Batch {
        let Take::Batch(batch) = self.consumer.take(Some(LONG)) else { panic!("no batch") };
        batch
    }

    /// Keeps all threads of the pool busy until what this returns is dropped.
    fn busy_threads(&self) -> Vec<mpsc::Sender<()>> {
        let (began, begun) = mpsc::channel();
        let busy = |_| {
            let (release, released) = mpsc::channel::<()>();
            let began = began.clone();
            let wait = move |_: &Worker| {
                began.send(()).unwrap();
                let _ = released.recv();
            };
            self.run.lane.submit([self.run.task(wait)]);
            release
        };
        let releases: Vec<_> = (0..self.run.lane.threads()).map(busy).collect();
        for _ in &releases {
            begun.recv().unwrap();
        }
        releases
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
