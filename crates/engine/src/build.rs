//! The one place where an engine and its jobs are put together.

use belady_control::Sizes;
use belady_control::job::{Job, Packing};
use belady_control::model::{Bytes, System};
use belady_control::policy::PolicyKind;
use belady_control::sampler::{AccessStream, Order, RankPlace, SamplerError, Scheme, StreamConfig};
use belady_data::source::{Begin, Source};
use belady_data::stage::{Consumer, Producer, RingConfig, SharedMemory, readable_ring, ring};
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::Tier;
use belady_data::tier::disk::{DiskConfig, DiskTier, FileVersions};
use belady_data::tier::{FaultyTier, RamTier};

use belady_peer::protocol::outbox;
use belady_peer::{Cluster, World};

use crate::EngineError;
use crate::brain::Brain;
use crate::cache::{Cache, Keep};
use crate::config::{EngineConfig, JobConfig, Lend, Ring, TierConfig};
use crate::epochs::Epochs;
use crate::horizon::Horizon;
use crate::loader::Loader;
use crate::metrics::{Metrics, Publisher, VITALS, publish};
use crate::parking::{Parking, Ticket};
use crate::peers;
use crate::peers::start::{Gathering, Introduction};
use crate::planner::Planner;
use crate::pool::Pool;
use crate::rates::Rates;
use crate::run::{Lending, Parts, Run};
use crate::system::{known_system, of_nodes};
use crate::trace::Recorder;
use crate::view::Jobs;

/// Policies that make sense with real bytes.
pub const POLICIES: [&str; 7] =
    ["belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster"];
/// Most batches in the ring at a time: far more than keep a consumer busy.
const BATCHES: u32 = 1024;
/// Slots begin at a cache line, where copying is fastest and vector code is at ease.
const SMALL_ALIGN: usize = 64;
/// Slots of large samples begin at a disk's block, so that direct reads go straight there.
const LARGE_ALIGN: usize = 512;
/// From here on the space lost to that is less than 2 %.
const LARGE: u64 = 16 << 10;

/// Threads and cache tiers for any number of jobs.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    quotas: Arc<Quotas>,
    parking: Arc<Parking>,
    pub(crate) jobs: Arc<Jobs>,
    /// Tells those who watch the cluster how this node is doing.
    _publisher: Option<Publisher>,
}

/// A job that can begin, as far as this rank is concerned.
struct Prepared {
    sizes: Arc<Sizes>,
    ring: RingConfig,
    /// Bytes that may wait to be kept by other nodes.
    outbox: u64,
    slots: (Producer, Consumer, Option<SharedMemory>),
    stream: AccessStream,
    /// What all ranks must have in common.
    facts: Vec<(&'static str, String)>,
    recorder: Option<Recorder>,
}

/// What jobs have left of each tier's quota.
#[derive(Debug)]
struct Quotas(Mutex<Vec<u64>>);

/// A job's part of the quotas, given back when it ends.
#[derive(Debug)]
pub struct Share {
    quotas: Arc<Quotas>,
    bytes: Vec<u64>,
}

#[cfg(test)]
impl Share {
    pub fn none() -> Self {
        Self { quotas: Arc::new(Quotas(Mutex::default())), bytes: vec![] }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        for (left, bytes) in lock(&self.quotas.0).iter_mut().zip(&self.bytes) {
            *left += bytes;
        }
    }
}

impl Engine {
    pub fn new(config: EngineConfig) -> Result<Self, EngineError> {
        belady_data::open_files::raise_limit();
        let threads = config.threads.unwrap_or_else(|| default_threads(&config)).max(1);
        let pool = Pool::new(threads, config.retry.timeout).map_err(EngineError::Threads)?;
        let names: Vec<String> = config.tiers.iter().map(TierConfig::name).collect();
        let quotas = config.tiers.iter().map(|tier| tier.capacity().0).collect();
        let metrics = Arc::new(Metrics::new(&names));
        let publisher = config.peers.as_ref().map(|cluster| tell(cluster, &metrics));
        Ok(Self {
            pool: Arc::new(pool),
            metrics,
            _publisher: publisher.transpose().map_err(EngineError::Threads)?,
            quotas: Arc::new(Quotas(Mutex::new(quotas))),
            parking: Arc::default(),
            jobs: Arc::default(),
            config,
        })
    }

    /// Gives back the memory that is kept for the next job on a dataset.
    pub fn let_go(&self) {
        self.parking.clear();
    }

    /// Threads that load.
    pub fn threads(&self) -> u32 {
        self.pool.threads()
    }

    /// Of all jobs together.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Starts a job: from here on it loads ahead of its consumer. Where all ranks run it,
    /// each of them starts it, and one that cannot tells the others.
    pub fn start(&self, job: &JobConfig) -> Result<Loader, EngineError> {
        let cluster = self.config.peers.as_ref().filter(|cluster| shares(job, cluster));
        let prepared = self.prepare(job, cluster.map_or(1, |cluster| cluster.world().size));
        let prepared = prepared.inspect_err(|error| {
            if let Some(cluster) = cluster {
                peers::start::refuse(cluster, error);
            }
        })?;
        self.begin(job, cluster, prepared)
    }

    /// Whatever of a job can fail on one rank alone.
    fn prepare(&self, job: &JobConfig, ranks: u32) -> Result<Prepared, EngineError> {
        check_policy(&job.policy)?;
        let sizes = Arc::new(job.source.catalog().sizes());
        let (ring, largest) = ring_config(job, &sizes)?;
        let outbox = outbox::room(ring.capacity as u64, largest);
        let too_large = SamplerError::HugeBatch { batch: job.batch, ranks };
        let stream = AccessStream::new(StreamConfig {
            samples: sizes.len(),
            ranks,
            batch: job.batch.checked_mul(ranks).ok_or(too_large)?,
            order: job.order.clone(),
            scheme: Scheme::Uniform,
            seed: job.seed,
            sampler_drop_last: false,
            drop_last: job.drop_last,
        })?;
        let facts = if ranks > 1 { facts(job, &stream, self.config.tiers.len())? } else { vec![] };
        let recorder = job.trace.as_deref().map(Recorder::create).transpose()?;
        let slots = make_ring(job.ring, &ring)?;
        Ok(Prepared { sizes, ring, outbox, slots, stream, facts, recorder })
    }

    fn begin(
        &self,
        job: &JobConfig,
        cluster: Option<&Arc<Cluster>>,
        prepared: Prepared,
    ) -> Result<Loader, EngineError> {
        let Prepared { sizes, ring: ring_config, outbox, slots, stream, facts, recorder } =
            prepared;
        let staging = Bytes(ring_config.capacity as u64);
        // Whatever caches hold from before is compared with its files in this run.
        job.source.begin(Begin::Job);
        let ticket = Ticket { listing: job.source.catalog().listing(), share: job.cache_share };
        let (share, rams) = match self.parking.take(ticket) {
            Some(parked) => (parked.share, parked.tiers),
            None => (Arc::new(self.take_share(job.cache_share)), vec![]),
        };
        let tiers = self.tiers(job, &share, rams, &sizes);
        for (number, tier) in (1..).zip(&tiers) {
            self.metrics.watch_tier(number, tier);
        }
        let capacities: Vec<(String, Bytes)> = self
            .config
            .tiers
            .iter()
            .zip(&tiers)
            .map(|(config, tier)| (config.name(), tier.status().capacity))
            .collect();
        let threads = self.pool.threads();
        let disks: Vec<bool> = self.config.tiers.iter().map(is_disk).collect();
        let shelves = tiers.into_iter().zip(&capacities).zip(&disks);
        let shelves =
            shelves.map(|((tier, (name, _)), &disk)| (tier, name.clone(), disk)).collect();
        // A drill goes with its job.
        let keep = Keep { parking: self.parking.clone(), ticket };
        let keep = Some(keep).filter(|_| self.config.tier_faults.is_none());
        let cache = Cache::new(shelves, job.source.clone(), share, keep);
        let gathering = match cluster {
            Some(cluster) => {
                let mine = Introduction {
                    capacities: cache.usable(&sizes),
                    warm: peers::start::warm(&cache, &*job.source),
                };
                Some(Gathering::new(cluster, &facts, &mine)?)
            }
            None => None,
        };
        let described = self.config.system.as_ref();
        let mut system = known_system(described, staging, threads, &capacities);
        if let Some(gathering) = &gathering {
            system = of_nodes(system, &gathering.rooms);
        }
        let rates = Rates::new(&system, &disks);
        // Samples that lie in no file count as files of their own.
        let files = Some(job.source.catalog().files()).filter(|&files| files > 0);
        let files = files.unwrap_or(sizes.len());
        let job_of_plan = Arc::new(Job {
            system,
            stream,
            sizes: Sizes::clone(&sizes),
            epochs: job.epochs,
            packing: Packing { files, read_size: None },
        });
        let rank = cluster.map_or(0, |cluster| cluster.world().rank);
        let epochs = Epochs::new(&job_of_plan, &job.policy).map_err(|error| {
            let error = EngineError::Threads(error);
            match &gathering {
                Some(gathering) => gathering.give_up(error),
                None => error,
            }
        })?;
        let (producer, consumer, shared) = slots;
        let horizon = Horizon::new(job.next_epoch.map(|bytes| bytes.0), gathering.is_some());
        let run = Arc::new(Run::new(Parts {
            lending: lending(job, &job_of_plan.system, rank, &sizes),
            cache,
            source: job.source.clone(),
            peers: gathering.map(|gathering| {
                let in_step = job.policy.moves_samples();
                gathering.peers(sizes.len(), outbox, self.config.peer_patience, in_step)
            }),
            sizes,
            brain: Brain::new(rank, recorder),
            lane: self.pool.lane(),
            rates,
            metrics: self.metrics.clone(),
            retry: self.config.retry,
            bad_samples: job.bad_samples,
            horizon,
        }));
        self.jobs.add(&run);
        let counter = run.peers.as_ref().map(|peers| peers.open(&run)).transpose()?;
        let waker = producer.waker();
        let planner = Planner::new(run.clone(), epochs, producer, ring_config, job.begin);
        let planner = std::thread::Builder::new()
            .name("belady-stage".into())
            .spawn(move || planner.run())
            .map_err(EngineError::Threads)?;
        Ok(Loader {
            run,
            consumer,
            shared,
            planner: Some(planner),
            waker,
            job: job_of_plan,
            waited: None,
            feeds_stage: false,
            counter,
            _pool: self.pool.clone(),
        })
    }

    fn take_share(&self, share: f64) -> Share {
        if lock(&self.quotas.0).contains(&0) {
            self.parking.clear();
        }
        let mut left = lock(&self.quotas.0);
        let bytes: Vec<u64> =
            left.iter().map(|&left| (left as f64 * share.clamp(0.0, 1.0)) as u64).collect();
        for (left, bytes) in left.iter_mut().zip(&bytes) {
            *left -= bytes;
        }
        drop(left);
        Share { quotas: self.quotas.clone(), bytes }
    }

    /// The job's tiers; those in memory are taken over where they are given.
    fn tiers(
        &self,
        job: &JobConfig,
        share: &Share,
        mut rams: Vec<Option<Arc<dyn Tier>>>,
        sizes: &Arc<Sizes>,
    ) -> Vec<Arc<dyn Tier>> {
        type Given<'a> = ((&'a TierConfig, &'a u64), Option<Arc<dyn Tier>>);
        rams.resize(self.config.tiers.len(), None);
        let tier = |((config, &bytes), ram): Given<'_>| -> Arc<dyn Tier> {
            match config {
                TierConfig::Ram { .. } => {
                    ram.unwrap_or_else(|| Arc::new(RamTier::new(Bytes(bytes), sizes.clone())))
                }
                TierConfig::Disk { directory, capacity } => Arc::new(DiskTier::open(DiskConfig {
                    directory: directory.clone(),
                    quota: *capacity,
                    share: Bytes(bytes),
                    fingerprint: job.source.catalog().fingerprint(),
                    name: job.name.clone(),
                    sizes: sizes.clone(),
                    segment: None,
                    versions: FileVersions(Some(job.source.clone())),
                })),
            }
        };
        let drill = |(number, tier): (usize, Arc<dyn Tier>)| -> Arc<dyn Tier> {
            let Some((mut faults, seed)) = self.config.tier_faults else { return tier };
            if let TierConfig::Ram { .. } = self.config.tiers[number] {
                // Memory does not hang.
                (faults.hung_put, faults.hung_get) = (0.0, 0.0);
            }
            Arc::new(FaultyTier::new(tier, faults, seed + number as u64))
        };
        let given = self.config.tiers.iter().zip(&share.bytes).zip(rams);
        given.map(tier).enumerate().map(drill).collect()
    }
}

fn is_disk(tier: &TierConfig) -> bool {
    matches!(tier, TierConfig::Disk { .. })
}

/// Whether a job is one of all ranks: who does not know what the others read works alone.
fn shares(job: &JobConfig, cluster: &Cluster) -> bool {
    let World { rank, size } = cluster.world();
    let known = match &job.order {
        Order::Provided(orders) => orders.place() == Some(RankPlace { rank, ranks: size }),
        Order::Torch | Order::Permutation | Order::Sequential | Order::Given(_) => true,
    };
    known && size > 1
}

/// What all ranks must have in common.
fn facts(
    job: &JobConfig,
    stream: &AccessStream,
    tiers: usize,
) -> Result<Vec<(&'static str, String)>, EngineError> {
    let catalog = job.source.catalog();
    let epochs = job.epochs.map_or("not known".to_owned(), |epochs| epochs.to_string());
    let first = if stream.ahead() { stream.ask(0)? } else { None };
    let first = first.map_or(0, |order| {
        let bytes: Vec<u8> = order.samples().iter().flat_map(|s| s.to_le_bytes()).collect();
        belady_peer::digest(&bytes)
    });
    Ok(vec![
        ("the version of belady", env!("CARGO_PKG_VERSION").to_owned()),
        ("the number of samples", catalog.len().to_string()),
        ("the fingerprint of the dataset", format!("{:016x}", catalog.fingerprint())),
        ("the seed", job.seed.to_string()),
        ("the batch size", job.batch.to_string()),
        ("the number of epochs", epochs),
        ("the policy", job.policy.name().to_owned()),
        ("the number of cache tiers", tiers.to_string()),
        ("the order of the first epoch", format!("one that adds up to {first:016x}")),
    ])
}

/// Leaves word of how this node is doing where the nodes have met. Of several engines of a process the
/// oldest that is there does, and the last one says that it has ended.
fn tell(cluster: &Arc<Cluster>, metrics: &Arc<Metrics>) -> std::io::Result<Publisher> {
    let (meet, speaker) = (cluster.meet.clone(), cluster.speaker());
    publish(metrics.clone(), move |vitals| {
        let speaks = if vitals.ended { speaker.is_alone() } else { speaker.is_first() };
        if speaks {
            meet.post(VITALS, &vitals.to_bytes());
        }
    })
}

fn lending(job: &JobConfig, system: &System, rank: u32, sizes: &Sizes) -> Lending {
    let memory = system.tiers.get(1).map_or(0, |tier| tier.capacity_of(rank).0);
    let lend = if job.ring == Ring::Shared { Lend::Slots } else { job.lend };
    Lending { lend, all_stay: memory >= sizes.total().0 }
}

fn make_ring(
    kind: Ring,
    config: &RingConfig,
) -> Result<(Producer, Consumer, Option<SharedMemory>), EngineError> {
    Ok(match kind {
        Ring::Private => {
            let (producer, consumer) = ring(config)?;
            (producer, consumer, None)
        }
        Ring::Shared => {
            let (producer, consumer, memory) = readable_ring(config)?;
            (producer, consumer, Some(memory))
        }
    })
}

fn check_policy(kind: &PolicyKind) -> Result<(), EngineError> {
    if POLICIES.contains(&kind.name()) {
        return Ok(());
    }
    Err(EngineError::SimulatorOnly(kind.name(), POLICIES.join(", ")))
}

/// Enough to keep a file server busy, and not more than a few for each core.
fn default_threads(config: &EngineConfig) -> u32 {
    if let Some(system) = &config.system {
        return system.staging_threads();
    }
    let cores = std::thread::available_parallelism().map_or(4, |cores| cores.get() as u32);
    (4 * cores).clamp(8, 32)
}

/// The ring, if the staging buffer has room for two of the largest batches, as far as these
/// are known, and the bytes of one of them; of batches that are not known, half of the ring's.
fn ring_config(job: &JobConfig, sizes: &Sizes) -> Result<(RingConfig, u64), EngineError> {
    let batch = match &job.order {
        Order::Given(lists) => job.batch.min(lists.iter().map(Vec::len).max().unwrap_or(0) as u32),
        Order::Provided(orders) => orders.largest_batch().unwrap_or(0),
        Order::Torch | Order::Permutation | Order::Sequential => job.batch.min(sizes.len()),
    };
    let align = alignment(sizes);
    let largest = largest_batch(&job.order, sizes, batch);
    let needed = Bytes(RingConfig::needed(largest, batch, align));
    if job.staging < needed && !job.staging_grows {
        return Err(EngineError::StagingTooSmall { given: job.staging, needed, batch });
    }
    let ring = RingConfig { capacity: job.staging.max(needed).0 as usize, batches: BATCHES, align };
    let largest = if batch > 0 { largest } else { ring.capacity as u64 / 2 };
    Ok((ring, largest))
}

/// The smallest staging buffer for batches of so many samples, of which none comes twice in a
/// batch.
pub fn staging_needed(source: &dyn Source, batch: u32) -> Bytes {
    let sizes = source.catalog().sizes();
    let batch = batch.min(sizes.len());
    let largest = largest_batch(&Order::Sequential, &sizes, batch);
    Bytes(RingConfig::needed(largest, batch, alignment(&sizes)))
}

fn alignment(sizes: &Sizes) -> usize {
    let mean = sizes.total().0 / u64::from(sizes.len().max(1));
    if mean >= LARGE { LARGE_ALIGN } else { SMALL_ALIGN }
}

/// The most that a batch can need: the user's own order is looked through, since it may repeat
/// samples; no batch of any other is larger than the largest samples together. (One that is
/// provided may repeat samples too: the planner looks at its batches as they come.)
fn largest_batch(order: &Order, sizes: &Sizes, batch: u32) -> u64 {
    if let Order::Given(lists) = order {
        let size = |&sample: &u32| if sample < sizes.len() { sizes.get(sample) } else { 0 };
        let bytes = |batch: &[u32]| batch.iter().map(size).sum();
        let batches = lists.iter().flat_map(|list| list.chunks(batch.max(1) as usize));
        return batches.map(bytes).max().unwrap_or(0);
    }

    let most = batch.min(sizes.len()) as usize;
    let mut largest = std::collections::BinaryHeap::with_capacity(most + 1);
    for sample in 0..sizes.len() {
        let size = std::cmp::Reverse(sizes.get(sample));
        if largest.len() < most {
            largest.push(size);
        } else if largest.peek().is_some_and(|least| size < *least) {
            largest.pop();
            largest.push(size);
        }
    }
    largest.into_iter().map(|size| size.0).sum()
}

#[cfg(test)]
mod tests {
    use belady_peer::memory::MemoryTransport;
    use belady_peer::{Meet, MeetError};

    use super::*;
    use crate::metrics::Vitals;

    /// Keeps the last word.
    #[derive(Debug, Default)]
    struct Board(Mutex<Option<Vitals>>);

    impl Meet for Board {
        fn world(&self) -> World {
            World { rank: 0, size: 1 }
        }

        fn exchange(&self, _: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
            Ok(vec![mine.to_vec()])
        }

        fn post(&self, _: &str, word: &[u8]) {
            *lock(&self.0) = Vitals::from_bytes(word);
        }
    }

    #[test]
    fn a_process_has_ended_for_those_who_watch_when_its_last_engine_has() {
        let board = Arc::new(Board::default());
        let network = MemoryTransport::network(1).remove(0);
        let cluster = Arc::new(Cluster::new(board.clone(), network));
        let engine = || {
            let peers = Some(cluster.clone());
            Engine::new(EngineConfig { peers, threads: Some(1), ..EngineConfig::default() })
        };
        let has_ended = || lock(&board.0).as_ref().map(|vitals| vitals.ended);
        let (first, second) = (engine().unwrap(), engine().unwrap());
        drop(first);
        assert_eq!(has_ended(), Some(false), "the second one still runs");
        drop(second);
        assert_eq!(has_ended(), Some(true));
    }
}
