//! Puts an engine and its jobs together.
//!
//! [`Engine::start`] checks what can fail on this rank alone, opens the tiers, agrees on the job
//! with other nodes, and wires the stages: plan → fill → retire → deliver.

mod staging;
pub mod system;
mod tiers;

use std::sync::atomic::{AtomicBool, AtomicU64};

use belady_base::environment::NICE;
use belady_base::sync::Arc;
use belady_control::Sizes;
use belady_control::job::{Job, Packing};
use belady_control::model::{Bytes, System};
use belady_control::sampler::{AccessStream, Order, RankPlace, SamplerError, Scheme, StreamConfig};
use belady_data::source::{Begin, Source};
use belady_data::stage::{RingConfig, RingConsumer, RingProducer, SharedMemory};
use belady_peer::protocol::push_queue;
use belady_peer::{Cluster, JobWorld};

pub use staging::staging_needed;

use crate::EngineError;
use crate::config::{EngineConfig, JobConfig, Lend, RingKind, TRANSFORM_NICE, TierConfig};
use crate::deliver::{ConsumerSide, JobGuard, Loader};
use crate::fill::{FillStage, PrefetchStage};
use crate::job::{
    DeliveredEpochs, Failures, Horizon, InFlightReads, JobContext, Lending, PolicyDriver,
    RankState, RunningJobs, StepWaits, ThreadShares,
};
use crate::metrics::{Metrics, VitalsPublisher, publish_at};
use crate::peers::Peers;
use crate::peers::start::{AgreedJob, NodeCaches, refuse, warm_bits};
use crate::pending::PendingQueue;
use crate::plan::{BatchPlanner, Epochs, PlannerParts};
use crate::policies;
use crate::pool::{MOST_NICE, NumaTopology, ThreadPlacement, WorkerPool};
use crate::retire::Retirer;
use crate::tiers::quotas::Quotas;
use crate::tiers::rates::JobRates;
use crate::tiers::retained::RetainedTiers;
use crate::trace::Recorder;
use crate::view::View;
use system::{known_system, of_nodes};
use tiers::OpenTiers;

/// Threads and cache tiers for any number of jobs.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    pool: Arc<WorkerPool>,
    metrics: Arc<Metrics>,
    quotas: Arc<Quotas>,
    retained: Arc<RetainedTiers>,
    jobs: Arc<RunningJobs>,
    /// Reports this node's vitals to `belady top`.
    _vitals: Option<VitalsPublisher>,
}

/// A job that has passed all checks of this rank.
struct CheckedJob {
    sizes: Arc<Sizes>,
    ring: RingConfig,
    /// The size of the push queue in bytes.
    push_limit: u64,
    /// By local rank.
    rings: Vec<(RingProducer, RingConsumer, Option<SharedMemory>)>,
    stream: AccessStream,
    /// What all ranks must have in common.
    facts: Vec<(&'static str, String)>,
    recorder: Option<Recorder>,
}

impl Engine {
    /// Starts the threads of an engine.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub fn new(config: EngineConfig) -> Result<Self, EngineError> {
        belady_base::open_files::raise_limit();
        let threads = config.threads.unwrap_or_else(|| default_threads(&config)).max(1);
        let nice = config.transform_nice.or_else(nice_of_environment).unwrap_or(TRANSFORM_NICE);
        let topology = NumaTopology::of_this_machine();
        let placement = ThreadPlacement::new(nice, topology);
        let pool = WorkerPool::placed(threads, config.retry.timeout, placement);
        let pool = pool.map_err(EngineError::Threads)?;
        let names: Vec<String> = config.tiers.iter().map(TierConfig::name).collect();
        let quotas = config.tiers.iter().map(|tier| tier.capacity().0).collect();
        let metrics = Arc::new(Metrics::new(&names));
        Ok(Self {
            pool: Arc::new(pool),
            _vitals: enter_cluster(&config, &metrics)?,
            metrics,
            quotas: Arc::new(Quotas::new(quotas, config.several_jobs)),
            retained: Arc::default(),
            jobs: Arc::default(),
            config,
        })
    }

    /// Returns this engine with other nodes for the jobs that it starts. Threads, caches, quotas and
    /// metrics are the same; `rank_numbers` is as in [`EngineConfig`].
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub fn among(&self, peers: Arc<Cluster>, rank_numbers: Vec<u32>) -> Result<Self, EngineError> {
        let config = EngineConfig { peers: Some(peers), rank_numbers, ..self.config.clone() };
        Ok(Self {
            pool: self.pool.clone(),
            metrics: self.metrics.clone(),
            quotas: self.quotas.clone(),
            retained: self.retained.clone(),
            jobs: self.jobs.clone(),
            _vitals: enter_cluster(&config, &self.metrics)?,
            config,
        })
    }

    /// Frees the RAM tiers that are retained for the next job on a dataset.
    pub fn free_retained(&self) {
        self.retained.clear();
    }

    /// Returns the number of threads that load.
    pub fn threads(&self) -> u32 {
        self.pool.threads()
    }

    /// Returns the metrics of all jobs together.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Opens random access to a dataset; `name` appears in listings of its caches.
    pub fn view(&self, source: Arc<dyn Source>, name: &str) -> View {
        let (metrics, jobs) = (self.metrics.clone(), self.jobs.clone());
        View::new(source, name, &self.config.tiers, self.config.retry, metrics, jobs)
    }

    /// Starts a job of one rank on this node, as [`Self::start_ranks`].
    ///
    /// # Errors
    /// As [`Self::start_ranks`].
    pub fn start(&self, config: &JobConfig) -> Result<Loader, EngineError> {
        let mut loaders = self.start_ranks(config, 1)?;
        loaders.pop().ok_or(EngineError::Defect)
    }

    /// Starts a job of so many ranks on this node, which loads ahead of its consumers from here on.
    /// Returns their loaders, in the order of the ranks. The ranks share the caches, the plan and
    /// the threads; each has a staging buffer of its own. They are staged in step: a rank that
    /// consumes nothing holds up the others once its staging buffer is full, and a rank whose
    /// loader is dropped does not.
    ///
    /// If all nodes share the job, each of them starts it, and this returns when all have.
    ///
    /// # Errors
    /// Fails if the job's configuration cannot work, or if nodes do not agree on the job. A node
    /// that cannot start the job tells the others.
    pub fn start_ranks(
        &self,
        config: &JobConfig,
        local_ranks: u32,
    ) -> Result<Vec<Loader>, EngineError> {
        let local_ranks = local_ranks.max(1);
        let cluster = self.config.peers.as_ref();
        let cluster = cluster.filter(|cluster| is_shared(config, cluster, local_ranks));
        let nodes = cluster.map_or(1, |cluster| cluster.world().size);
        let checked = self.check(config, nodes, local_ranks);
        let checked = checked.inspect_err(|error| {
            if let Some(cluster) = cluster {
                refuse(cluster, error);
            }
        })?;
        // Copies in caches are compared with their files again in this job.
        config.source.begin(Begin::Job);
        let tiers = self.open_tiers(config, &checked.sizes);
        let agreed = match cluster {
            Some(cluster) => Some(agree(cluster, config, &checked, &tiers)?),
            None => None,
        };
        let job = self.planned_job(config, &checked, &tiers, agreed.as_ref());
        self.run(config, checked, tiers, agreed, Arc::new(job))
    }

    /// Tells the other nodes, which are about to start a job, why this one does not call
    /// [`Self::start_ranks`]. Waits for them.
    pub fn refuse(cluster: &Cluster, error: &EngineError) {
        refuse(cluster, error);
    }

    /// Checks everything of a job that can fail on one node alone.
    fn check(
        &self,
        config: &JobConfig,
        nodes: u32,
        local_ranks: u32,
    ) -> Result<CheckedJob, EngineError> {
        let ranks = nodes.saturating_mul(local_ranks);
        policies::check(&config.policy)?;
        let sizes = Arc::new(config.source.catalog().sizes());
        let (ring, largest) = staging::ring_config(config, &sizes)?;
        let push_limit = push_queue::capacity(ring.capacity as u64, largest);
        let too_large = SamplerError::HugeBatch { batch: config.batch, ranks };
        let stream = AccessStream::new(StreamConfig {
            samples: sizes.len(),
            ranks,
            batch: config.batch.checked_mul(ranks).ok_or(too_large)?,
            order: config.order.clone(),
            scheme: Scheme::Uniform,
            seed: config.seed,
            sampler_drop_last: false,
            drop_last: config.drop_last,
        })?;
        let tiers = self.config.tiers.len();
        let facts = if nodes > 1 { facts(config, &stream, tiers, local_ranks)? } else { vec![] };
        let recorder = config.trace.as_deref().map(Recorder::create).transpose()?;
        let rings = (0..local_ranks).map(|_| staging::make_ring(config.ring, &ring));
        let rings = rings.collect::<Result<_, _>>()?;
        Ok(CheckedJob { sizes, ring, push_limit, rings, stream, facts, recorder })
    }

    /// Describes the job and the system to the policy.
    fn planned_job(
        &self,
        config: &JobConfig,
        checked: &CheckedJob,
        tiers: &OpenTiers,
        agreed: Option<&AgreedJob>,
    ) -> Job {
        let local_ranks = checked.rings.len() as u32;
        let staging = Bytes(checked.ring.capacity as u64 * u64::from(local_ranks));
        let described = self.config.system.as_ref();
        let mut system = known_system(described, staging, self.pool.threads(), &tiers.capacities);
        system.ranks_per_node = local_ranks;
        // Samples that are in no file count as one file each.
        let files = Some(config.source.catalog().files()).filter(|&files| files > 0);
        Job {
            system: match agreed {
                Some(agreed) => of_nodes(system, &agreed.capacities),
                None => system,
            },
            stream: checked.stream.clone(),
            sizes: Sizes::clone(&checked.sizes),
            epochs: config.epochs,
            packing: Packing { files: files.unwrap_or(checked.sizes.len()), read_size: None },
        }
    }

    /// Starts the threads of each tier's prefetcher, if the policy counts on them.
    fn prefetch_pools(
        &self,
        config: &JobConfig,
        system: &System,
    ) -> std::io::Result<Vec<WorkerPool>> {
        let tiers = system.tiers.iter().skip(1).filter(|_| config.policy.has_prefetch_threads());
        tiers.map(|tier| WorkerPool::new(tier.threads.max(1), self.config.retry.timeout)).collect()
    }

    /// Wires the stages of a job and starts its planner.
    fn run(
        &self,
        config: &JobConfig,
        checked: CheckedJob,
        tiers: OpenTiers,
        agreed: Option<AgreedJob>,
        planned_job: Arc<Job>,
    ) -> Result<Vec<Loader>, EngineError> {
        let give_up = |error| {
            let error = EngineError::Threads(error);
            match &agreed {
                Some(agreed) => agreed.give_up(error),
                None => error,
            }
        };
        let epochs = Epochs::new(&planned_job, &config.policy).map_err(give_up)?;
        let prefetch_pools = self.prefetch_pools(config, &planned_job.system).map_err(give_up)?;
        let CheckedJob { sizes, ring, push_limit, rings, recorder, .. } = checked;
        let local_ranks = rings.len() as u32;
        let node = agreed.as_ref().map_or(0, |agreed| agreed.cluster.world().rank);
        let horizon = || Horizon::new(config.next_epoch.map(|bytes| bytes.0), agreed.is_some());
        let first = first_rank(config, node * local_ranks);
        let called = |rank: u32| {
            let number = self.config.rank_numbers.get(rank as usize);
            number.copied().unwrap_or(rank)
        };
        let ranks = (first..first + local_ranks)
            .map(|rank| RankState::new(horizon(), self.metrics.rank(called(rank))));
        let fingerprint = config.source.catalog().fingerprint();
        let dataset = self.jobs.of_dataset(fingerprint, self.config.several_jobs);
        let job = Arc::new(JobContext {
            lending: lending(config, self.config.shared_tiers, &planned_job.system, node, &sizes),
            rates: JobRates::new(&planned_job.system, &tiers.are_disks),
            tiers: tiers.set,
            dataset: dataset.clone(),
            source: config.source.clone(),
            _source_watch: self.metrics.watch(config.source.clone()),
            sizes,
            policy: PolicyDriver::new(node, recorder),
            lane: self.pool.lane(),
            threads: ThreadShares::new(local_ranks as usize),
            metrics: self.metrics.clone(),
            retry: self.config.retry,
            bad_samples: config.bad_samples,
            in_flight: InFlightReads::default(),
            ranks: ranks.collect(),
            step_waits: StepWaits::new(local_ranks as usize, ring.batches),
            epochs: DeliveredEpochs::new(local_ranks),
            failures: Failures::default(),
            planned: AtomicU64::new(0),
            one_at_a_time: AtomicBool::new(false),
        });
        let queue = Arc::new(PendingQueue::default());
        let peers: Option<Arc<Peers>> = agreed.map(|agreed| {
            let (limits, in_step) = (self.config.peer_patience, config.policy.moves_samples());
            Arc::new(agreed.into_peers(&job, &queue, push_limit, limits, in_step))
        });
        dataset.add(&job, planned_job.system.tiers[0].capacity.0);
        let retire = Arc::new(Retirer::new(job.clone(), peers.clone(), queue.clone()));
        let lanes = prefetch_pools.iter().map(WorkerPool::lane).collect();
        let prefetcher = Arc::new(PrefetchStage::new(job.clone(), lanes));
        let fill = Arc::new(FillStage {
            job: job.clone(),
            peers: peers.clone(),
            prefetcher: prefetcher.clone(),
        });
        let serving = peers.as_ref().map(|peers| peers.open(retire.clone())).transpose()?;
        let (mut producers, mut consumers) = (vec![], vec![]);
        for (producer, consumer, shared) in rings {
            producers.push(producer);
            consumers.push((consumer, shared));
        }
        let wakers = producers.iter().map(RingProducer::waker).collect();
        let planner = BatchPlanner::new(PlannerParts {
            job: job.clone(),
            peers: peers.clone(),
            queue: queue.clone(),
            fill,
            retire: retire.clone(),
            epochs,
            rings: producers,
            ring,
            first_rank: node * local_ranks,
            begin: config.begin,
        });
        let planner = std::thread::Builder::new()
            .name("belady-stage".into())
            .spawn(move || planner.run())
            .map_err(EngineError::Threads)?;
        let guard = Arc::new(JobGuard {
            job,
            peers,
            queue,
            retire,
            prefetcher,
            planned_job,
            serving,
            planner: Some(planner),
            wakers,
            is_cut_short: AtomicBool::new(false),
            _pool: self.pool.clone(),
            _prefetch_pools: prefetch_pools,
        });
        let loader = |(rank, (consumer, shared))| {
            Loader::new(ConsumerSide { guard: guard.clone(), rank, consumer, shared })
        };
        Ok(consumers.into_iter().enumerate().map(loader).collect())
    }
}

/// Returns whether a job is shared by all nodes: a node that does not know the others' orders works
/// alone.
fn is_shared(config: &JobConfig, cluster: &Cluster, local_ranks: u32) -> bool {
    let JobWorld { rank: node, size } = cluster.world();
    let place = RankPlace { rank: node * local_ranks, ranks: size * local_ranks };
    let known = match &config.order {
        Order::Provided(orders) => orders.place() == Some(place),
        Order::Torch | Order::Permutation | Order::Sequential | Order::Given(_) => true,
    };
    known && size > 1
}

/// Returns the number that the job gives to the first rank of this node: that of its orders, if
/// they name one, since an engine that works alone counts its nodes from 0.
fn first_rank(config: &JobConfig, planned: u32) -> u32 {
    match &config.order {
        Order::Provided(orders) => orders.place().map_or(planned, |place| place.rank),
        Order::Torch | Order::Permutation | Order::Sequential | Order::Given(_) => planned,
    }
}

/// Agrees on a job with all other nodes.
fn agree(
    cluster: &Arc<Cluster>,
    config: &JobConfig,
    checked: &CheckedJob,
    tiers: &OpenTiers,
) -> Result<AgreedJob, EngineError> {
    let mine = NodeCaches {
        capacities: tiers.set.usable(&checked.sizes),
        warm: warm_bits(&tiers.set, &*config.source),
    };
    AgreedJob::new(cluster, &checked.facts, &mine)
}

/// Returns what all ranks must have in common.
///
/// A provided order has its own seed and batches. The program that provides it compares what its
/// ranks were given, with the epochs and the policy, before it starts a job; `belady.DataLoader`
/// does when it is made.
fn facts(
    config: &JobConfig,
    stream: &AccessStream,
    tiers: usize,
    local_ranks: u32,
) -> Result<Vec<(&'static str, String)>, EngineError> {
    let catalog = config.source.catalog();
    let first = if stream.ahead() { stream.ask(0)? } else { None };
    let first = first.map_or(0, |order| {
        let bytes: Vec<u8> = order.samples().iter().flat_map(|s| s.to_le_bytes()).collect();
        belady_peer::digest(&bytes)
    });
    let mut facts = vec![
        ("the fingerprint of the dataset", format!("{:016x}", catalog.fingerprint())),
        ("the number of cache tiers", tiers.to_string()),
        ("the number of ranks on a node", local_ranks.to_string()),
        ("the order of the first epoch", format!("one with the hash {first:016x}")),
    ];
    if !matches!(config.order, Order::Provided(_)) {
        let epochs = config.epochs.map_or("not known".to_owned(), |epochs| epochs.to_string());
        facts.extend([
            ("the seed", config.seed.to_string()),
            ("the batch size", config.batch.to_string()),
            ("the number of epochs", epochs),
            ("the policy", config.policy.to_string()),
        ]);
    }
    Ok(facts)
}

/// Prepares to serve the other nodes, if there are any, and publishes this node's vitals at their
/// rendezvous.
fn enter_cluster(
    config: &EngineConfig,
    metrics: &Arc<Metrics>,
) -> Result<Option<VitalsPublisher>, EngineError> {
    let Some(cluster) = &config.peers else { return Ok(None) };
    if config.serving_threads.is_some() {
        cluster.transport.dispatcher().set_serving_threads(config.serving_threads);
    }
    let metrics = metrics.clone();
    publish_at(cluster, move || metrics.snapshot()).map(Some).map_err(EngineError::Threads)
}

fn lending(
    config: &JobConfig,
    shared_tiers: bool,
    system: &System,
    rank: u32,
    sizes: &Sizes,
) -> Lending {
    let memory = system.tiers.get(1).map_or(0, |tier| tier.capacity_of(rank).0);
    let lend = match config.ring {
        RingKind::Private => config.lend,
        RingKind::Writable if shared_tiers => config.lend,
        RingKind::Shared | RingKind::Writable => Lend::Slots,
    };
    Lending { lend, all_stay: memory >= sizes.total().0 }
}

/// Returns the nice value that the environment gives threads that transform.
fn nice_of_environment() -> Option<u8> {
    let text = NICE.value()?;
    let nice = text.to_str().and_then(|text| text.trim().parse().ok());
    let nice = nice.filter(|&nice| nice <= MOST_NICE);
    if nice.is_none() {
        tracing::warn!(
            "{} is {text:?}, and {TRANSFORM_NICE} is used instead: give a number from 0 to \
             {MOST_NICE}",
            NICE.name
        );
    }
    nice
}

/// Returns enough threads to keep a file server busy, and not more than a few for each core.
fn default_threads(config: &EngineConfig) -> u32 {
    if let Some(system) = &config.system {
        return system.staging_threads();
    }
    let cores = std::thread::available_parallelism().map_or(4, |cores| cores.get() as u32);
    (4 * cores).clamp(8, 32)
}

#[cfg(test)]
mod tests {
    use belady_peer::memory::MemoryTransport;
    use belady_peer::{Rendezvous, RendezvousError};

    use belady_base::sync::{Mutex, lock};

    use super::*;
    use crate::metrics::Vitals;

    /// Keeps the last post.
    #[derive(Debug, Default)]
    struct Board(Mutex<Option<Vitals>>);

    impl Rendezvous for Board {
        fn world(&self) -> JobWorld {
            JobWorld { rank: 0, size: 1 }
        }

        fn exchange(&self, _: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
            Ok(vec![mine.to_vec()])
        }

        fn post(&self, _: &str, word: &[u8]) {
            *lock(&self.0) = Vitals::from_bytes(word);
        }
    }

    #[test]
    fn other_nodes_are_served_by_as_many_threads_as_the_engine_is_given() {
        let network = MemoryTransport::network(1).remove(0);
        let cluster = Arc::new(Cluster::new(Arc::new(Board::default()), network));
        let served_by = |serving_threads| {
            let peers = Some(cluster.clone());
            let config = EngineConfig { peers, serving_threads, ..EngineConfig::default() };
            let _engine = Engine::new(EngineConfig { threads: Some(1), ..config }).unwrap();
            cluster.transport.dispatcher().serving_threads()
        };
        assert_eq!(served_by(None), None);
        assert_eq!(served_by(Some(3)), Some(3));
    }

    #[test]
    fn a_process_is_reported_as_ended_when_its_last_engine_ends() {
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
