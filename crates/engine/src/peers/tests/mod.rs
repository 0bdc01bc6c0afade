//! One node of a job whose other nodes are played by the test.

mod accepting;
mod fence;
mod filling;
mod holders;
mod notices;
mod pushing;
mod retiring;
mod serving;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use belady_base::SampleId;
use belady_base::sync::{Arc, Mutex, lock};
use belady_control::model::Bytes;
use belady_control::policy::Evict;
use belady_control::sampler::Step;
use belady_data::source::{Catalog, Operations, ReadError, Source, Synthetic, Version, Want};
use belady_data::stage::{RingBatch, RingConfig, RingConsumer, RingProducer, Take, ring};
use belady_data::tier::{Get, Put, RamTier, Tier};
use belady_peer::memory::MemoryTransport;
use belady_peer::rendezvous::InProcessRendezvous;
use belady_peer::{
    Ask, Bulk, Channel, Cluster, GetReply, GetRequest, Handler, NodeId, Notice, Payload, Push,
    PushOutcome, Registration, TierId, Transport,
};

use super::digests::Digests;
use super::start::{AgreedJob, NodeCaches};
use super::{Peers, RequestHandler};
use crate::build::system::known_system;
use crate::config::{BadSamples, Lend, PeerPatience, Retry};
use crate::fill::{FillStage, PrefetchStage};
use crate::job::{
    DeliveredEpochs, Failures, Horizon, InFlightReads, JobContext, Lending, PolicyDriver,
    RankState, ReadRole, StepWaits,
};
use crate::metrics::{Metrics, PeerSnapshot};
use crate::pending::{BatchItem, BatchPlan, PendingBatch, PendingQueue, PlannedPush, SampleOrigin};
use crate::pool::{Lane, Worker, WorkerPool};
use crate::retire::Retirer;
use crate::tiers::TierSet;
use crate::tiers::quotas::QuotaShare;
use crate::tiers::rates::JobRates;

const SAMPLES: u32 = 12;
/// A whole number of granules of a tier in memory.
const SIZE: u64 = 160;
const LONG: Duration = Duration::from_secs(20);
const CHANNEL: Channel = Channel(0);

/// Another node: records the notices and pushes that it gets.
#[derive(Debug)]
struct Player {
    heard: Mutex<Vec<Notice>>,
    given: Mutex<Vec<(SampleId, TierId, u32)>>,
    answer: Mutex<PushOutcome>,
    /// The samples that it gives, with their digests.
    held: Mutex<HashMap<SampleId, (Vec<u8>, u64)>>,
    /// Answers that samples which it does not hold may still come.
    expects_more: AtomicBool,
    asked: Mutex<Vec<(SampleId, bool)>>,
}

impl Handler for Player {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, _: usize, replies: &mut Vec<GetReply>) {
        let held = lock(&self.held);
        for ask in request.asks {
            lock(&self.asked).push((ask.sample, ask.last_use));
            replies.push(match held.get(&ask.sample) {
                Some((bytes, digest)) => GetReply::Here {
                    bytes: Payload::Copied(bytes.as_slice().into()),
                    digest: *digest,
                    version: 0,
                },
                None if self.expects_more.load(Ordering::Acquire) => GetReply::NotYet,
                None => GetReply::NotHere,
            });
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        let given = |push: &Push<'_>| (push.sample, push.tier, push.epoch);
        lock(&self.given).extend(pushes.iter().map(given));
        taken.extend(pushes.iter().map(|_| *lock(&self.answer)));
    }

    fn told(&self, _: NodeId, notice: &Notice) {
        lock(&self.heard).push(notice.clone());
    }
}

impl Player {
    /// Waits until it has received a notice.
    fn hears(&self, what: &Notice) {
        wait_for(|| lock(&self.heard).contains(what), what);
    }

    /// Adds a sample.
    fn hold(&self, sample: SampleId, bytes: Vec<u8>) {
        let digest = digest_of(sample, &bytes);
        lock(&self.held).insert(sample, (bytes, digest));
    }
}

/// Returns the digest of a sample.
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

/// Samples whose files have to be compared if the test wants it; one of them has changed.
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

/// Returns a job with two tiers in memory, each with space for three samples.
pub fn job_on(source: Arc<dyn Source>, lane: Lane, lend: Lend) -> Arc<JobContext> {
    let sizes = Arc::new(source.catalog().sizes());
    let tier = || -> Arc<dyn Tier> { Arc::new(RamTier::new(Bytes(3 * SIZE), sizes.clone())) };
    let tiers = [tier(), tier()].map(|tier| (tier, "ram".into(), false)).into();
    let tiers = TierSet::new(tiers, source.clone(), Arc::new(QuotaShare::none()), None, false);
    let names = ["a".to_owned(), "b".to_owned()];
    let capacities = names.clone().map(|name| (name, Bytes(3 * SIZE)));
    let system = known_system(None, Bytes(1 << 16), 2, &capacities);
    let metrics = Arc::new(Metrics::new(&names));
    Arc::new(JobContext {
        _source_watch: metrics.watch(source.clone()),
        source,
        sizes,
        tiers,
        dataset: Arc::default(),
        policy: PolicyDriver::new(0, None),
        lane,
        threads: crate::job::ThreadShares::new(1),
        rates: JobRates::new(&system, &[false, false]),
        metrics,
        retry: Retry::default(),
        bad_samples: BadSamples::default(),
        lending: Lending { lend, all_stay: true },
        in_flight: InFlightReads::default(),
        ranks: [RankState::new(Horizon::new(None, true), Arc::default())].into(),
        step_waits: StepWaits::new(1, 0),
        epochs: DeliveredEpochs::new(1),
        failures: Failures::default(),
        planned: AtomicU64::new(0),
        one_at_a_time: AtomicBool::new(false),
    })
}

/// Returns a job of so many samples that does nothing.
pub fn idle_job(samples: u32) -> Arc<JobContext> {
    let source = Arc::new(Synthetic::of_sizes(vec![SIZE; samples as usize], 3));
    job_on(source, WorkerPool::new(1, LONG).unwrap().lane(), Lend::default())
}

/// Rank 0 of three, with two tiers in memory.
struct One {
    job: Arc<JobContext>,
    peers: Arc<Peers>,
    queue: Arc<PendingQueue>,
    fill: Arc<FillStage>,
    retire: Arc<Retirer>,
    handler: RequestHandler,
    /// Ranks 1 and 2.
    players: Vec<Arc<Player>>,
    transports: Vec<Arc<MemoryTransport>>,
    source: Arc<Files>,
    producer: RingProducer,
    consumer: RingConsumer,
    _serving: Vec<Registration>,
    _pool: WorkerPool,
}

impl Drop for One {
    fn drop(&mut self) {
        self.retire.abandon();
    }
}

impl One {
    fn new() -> Self {
        Self::with(PeerPatience { answer: LONG, wait: LONG })
    }

    fn with(limits: PeerPatience) -> Self {
        Self::built(limits, Lend::default())
    }

    fn built(limits: PeerPatience, lend: Lend) -> Self {
        let transports = MemoryTransport::network(3);
        let cluster = Arc::new(Cluster::new(
            InProcessRendezvous::new(3, LONG).member(0),
            transports[0].clone(),
        ));
        let one = || NodeCaches { capacities: vec![3 * SIZE; 2], warm: vec![] };
        let all = vec![one(), one(), one()];
        let bulk = Bulk::offer(&cluster, vec![]);
        let capacities = vec![vec![3 * SIZE; 2]; 3];
        let agreed = AgreedJob { cluster, channel: CHANNEL, all, capacities, bulk };
        let samples = Synthetic::of_sizes([SIZE; SAMPLES as usize], 3);
        let (are_to_be_compared, compared) = (AtomicBool::new(false), Mutex::default());
        let source = Arc::new(Files { samples, are_to_be_compared, compared });
        let pool = WorkerPool::new(2, LONG).unwrap();
        let job = job_on(source.clone(), pool.lane(), lend);
        let queue = Arc::new(PendingQueue::default());
        let peers = Arc::new(agreed.into_peers(&job, &queue, 2 * SIZE, limits, true));
        let retire = Arc::new(Retirer::new(job.clone(), Some(peers.clone()), queue.clone()));
        let fill = Arc::new(FillStage {
            job: job.clone(),
            peers: Some(peers.clone()),
            prefetcher: Arc::new(PrefetchStage::new(job.clone(), vec![])),
        });
        let player = |_| {
            let answer = Mutex::new(PushOutcome::Stored);
            let (heard, given, held) = (Mutex::default(), Mutex::default(), Mutex::default());
            let (asked, expects_more) = (Mutex::default(), AtomicBool::new(false));
            Arc::new(Player { heard, given, answer, held, expects_more, asked })
        };
        let players: Vec<Arc<Player>> = (1..3).map(player).collect();
        let serve = |(transport, player): (&Arc<MemoryTransport>, &Arc<Player>)| {
            let weak = Arc::downgrade(player);
            transport.dispatcher().register(CHANNEL, weak)
        };
        let serving = transports[1..].iter().zip(&players).map(serve).collect();
        let (producer, consumer) =
            ring(&RingConfig { capacity: 1 << 16, batches: 8, align: 1 }).unwrap();
        let handler = RequestHandler::new(peers.clone(), retire.clone());
        Self {
            job,
            peers,
            queue,
            fill,
            retire,
            handler,
            players,
            transports,
            source,
            producer,
            consumer,
            _serving: serving,
            _pool: pool,
        }
    }

    fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    fn begin_epoch(&self, batches: u32) {
        self.job.epochs.begin(batches);
        self.peers.begin_epoch(batches);
    }

    fn metrics(&self) -> PeerSnapshot {
        self.job.metrics.snapshot().peers
    }

    fn bytes(&self, sample: SampleId) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.source.read(&mut [Want::new(sample, &mut bytes)]).unwrap();
        bytes
    }

    fn hold(&self, tier: TierId, sample: SampleId, epoch: u32) {
        assert_eq!(self.job.tiers.put(tier, sample, &self.bytes(sample), 0), Put::Stored);
        self.peers().was_put(tier, sample, epoch);
    }

    fn holds(&self, tier: TierId) -> Vec<SampleId> {
        let tier = self.job.tiers.get(tier).unwrap();
        (0..SAMPLES).filter(|&sample| tier.holds(sample)).collect()
    }

    /// Returns the replies to a request of node 1.
    fn ask(&self, epoch: u32, asks: &[(SampleId, bool)], limit: usize) -> Vec<GetReply> {
        let ask = |&(sample, last_use)| Ask { sample, last_use };
        let asks: Vec<Ask> = asks.iter().map(ask).collect();
        let mut replies = vec![];
        let request = GetRequest { channel: CHANNEL, epoch, asks: &asks };
        self.handler.get(1, &request, limit, &mut replies);
        replies
    }

    /// Returns the answer to a push of node 1.
    fn give(&self, sample: SampleId, tier: TierId, epoch: u32) -> PushOutcome {
        self.give_bytes(sample, tier, epoch, &self.bytes(sample))
    }

    fn give_bytes(&self, sample: SampleId, tier: TierId, epoch: u32, bytes: &[u8]) -> PushOutcome {
        let digest = digest_of(sample % SAMPLES, bytes);
        let push = Push { sample, tier, epoch, digest, version: 0, bytes };
        let mut taken = vec![];
        self.handler.put(1, &[push], &mut taken);
        taken[0]
    }

    /// Returns the next batch.
    fn take(&mut self) -> RingBatch {
        let Take::Batch(batch) = self.consumer.take(Some(LONG)) else { panic!("no batch") };
        batch
    }

    /// Keeps all threads of the pool busy until the returned value is dropped.
    fn busy_threads(&self) -> Vec<mpsc::Sender<()>> {
        let (began, begun) = mpsc::channel();
        let busy = |_| {
            let (release, released) = mpsc::channel::<()>();
            let began = began.clone();
            let wait = move |_: &Worker| {
                began.send(()).unwrap();
                let _ = released.recv();
            };
            self.job.lane.submit_for(0, [self.job.task(wait)]);
            release
        };
        let releases: Vec<_> = (0..self.job.lane.threads()).map(busy).collect();
        for _ in &releases {
            begun.recv().unwrap();
        }
        releases
    }

    /// Returns a batch whose slots have their bytes, the last in order.
    fn batch(
        &mut self,
        sequence: u64,
        epoch: u32,
        items: Vec<BatchItem>,
        evictions: Vec<Evict>,
    ) -> Arc<PendingBatch> {
        let batch = self.empty_batch((sequence, epoch), items, evictions, vec![]);
        for (index, item) in batch.items.iter().enumerate() {
            // SAFETY: nothing else loads it.
            unsafe { batch.slot(index as u32) }.copy_from_slice(&self.bytes(item.sample));
        }
        batch
    }

    fn empty_batch(
        &mut self,
        (sequence, epoch): (u64, u32),
        items: Vec<BatchItem>,
        evictions: Vec<Evict>,
        pushes: Vec<PlannedPush>,
    ) -> Arc<PendingBatch> {
        let samples: Vec<SampleId> = items.iter().map(|item| item.sample).collect();
        let lengths = vec![SIZE; samples.len()];
        let step = Step { epoch, iteration: sequence as u32 };
        let block = self.producer.reserve(step, &samples, &lengths).unwrap().unwrap();
        let plan = BatchPlan { items, evictions, pushes };
        let batch = PendingBatch::new(&self.job, self.retire.clone(), block, plan, 0, sequence);
        self.queue.push(std::slice::from_ref(&batch));
        batch
    }

    fn others_have_loaded(&self, steps: u64) {
        for node in [1, 2] {
            self.handler.told(node, &Notice::Loaded { steps });
        }
    }
}

fn kinds(replies: &[GetReply]) -> Vec<&'static str> {
    let kind = |reply: &GetReply| match reply {
        GetReply::Here { .. } => "here",
        GetReply::NotHere => "not here",
        GetReply::NotYet => "not yet",
        GetReply::Busy => "busy",
    };
    replies.iter().map(kind).collect()
}
