//! Puts an engine and its jobs together.
//!
//! [`Engine::start`] checks what can fail on this rank alone, opens the tiers, agrees on the job
//! with other nodes, and wires the stages: plan → fill → retire → deliver.

mod staging;
pub mod system;
mod tiers;

use std::sync::atomic::{AtomicBool, AtomicU64};

use belady_base::sync::Arc;
use belady_control::Sizes;
use belady_control::job::{Job, Packing};
use belady_control::model::{Bytes, System};
use belady_control::policy::PolicyKind;
use belady_control::sampler::{AccessStream, Order, RankPlace, SamplerError, Scheme, StreamConfig};
use belady_data::source::{Begin, Source};
use belady_data::stage::{RingConfig, RingConsumer, RingProducer, SharedMemory};
use belady_peer::protocol::push_queue;
use belady_peer::{Cluster, JobWorld};

pub use staging::staging_needed;

use crate::EngineError;
use crate::config::{EngineConfig, JobConfig, Lend, RingKind, TierConfig};
use crate::deliver::{ConsumerSide, Loader};
use crate::fill::{FillStage, PrefetchStage};
use crate::job::{
    ConsumerDemand, DeliveredEpochs, Extras, Failures, Horizon, InFlightReads, JobContext, Lending,
    PolicyDriver,
};
use crate::metrics::{Metrics, VITALS, VitalsPublisher, publish};
use crate::peers::Peers;
use crate::peers::start::{AgreedJob, NodeCaches, refuse, warm_bits};
use crate::pending::PendingQueue;
use crate::plan::{BatchPlanner, Epochs, PlannerParts};
use crate::pool::WorkerPool;
use crate::retire::Retirer;
use crate::tiers::quotas::Quotas;
use crate::tiers::rates::JobRates;
use crate::tiers::retained::RetainedTiers;
use crate::trace::Recorder;
use crate::view::{RunningJobs, View};
use system::{known_system, of_nodes};
use tiers::OpenTiers;

/// The policies that the engine can run.
pub const POLICIES: [&str; 7] =
    ["belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster"];

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
    slots: (RingProducer, RingConsumer, Option<SharedMemory>),
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
        let pool = WorkerPool::new(threads, config.retry.timeout).map_err(EngineError::Threads)?;
        let names: Vec<String> = config.tiers.iter().map(TierConfig::name).collect();
        let quotas = config.tiers.iter().map(|tier| tier.capacity().0).collect();
        let metrics = Arc::new(Metrics::new(&names));
        let vitals = config.peers.as_ref().map(|cluster| publish_vitals(cluster, &metrics));
        Ok(Self {
            pool: Arc::new(pool),
            metrics,
            _vitals: vitals.transpose().map_err(EngineError::Threads)?,
            quotas: Arc::new(Quotas::new(quotas)),
            retained: Arc::default(),
            jobs: Arc::default(),
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

    /// Starts a job, which loads ahead of its consumer from here on. If all ranks share the job,
    /// each of them starts it, and this returns when all have.
    ///
    /// # Errors
    /// Fails if the job's configuration cannot work, or if ranks do not agree on the job. A rank
    /// that cannot start the job tells the others.
    pub fn start(&self, config: &JobConfig) -> Result<Loader, EngineError> {
        let cluster = self.config.peers.as_ref().filter(|cluster| is_shared(config, cluster));
        let checked = self.check(config, cluster.map_or(1, |cluster| cluster.world().size));
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

    /// Checks everything of a job that can fail on one rank alone.
    fn check(&self, config: &JobConfig, ranks: u32) -> Result<CheckedJob, EngineError> {
        check_policy(&config.policy)?;
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
        let facts = if ranks > 1 { facts(config, &stream, tiers)? } else { vec![] };
        let recorder = config.trace.as_deref().map(Recorder::create).transpose()?;
        let slots = staging::make_ring(config.ring, &ring)?;
        Ok(CheckedJob { sizes, ring, push_limit, slots, stream, facts, recorder })
    }

    /// Describes the job and the system to the policy.
    fn planned_job(
        &self,
        config: &JobConfig,
        checked: &CheckedJob,
        tiers: &OpenTiers,
        agreed: Option<&AgreedJob>,
    ) -> Job {
        let staging = Bytes(checked.ring.capacity as u64);
        let described = self.config.system.as_ref();
        let system = known_system(described, staging, self.pool.threads(), &tiers.capacities);
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

    /// Wires the stages of a job and starts its planner.
    fn run(
        &self,
        config: &JobConfig,
        checked: CheckedJob,
        tiers: OpenTiers,
        agreed: Option<AgreedJob>,
        planned_job: Arc<Job>,
    ) -> Result<Loader, EngineError> {
        let epochs = Epochs::new(&planned_job, &config.policy).map_err(|error| {
            let error = EngineError::Threads(error);
            match &agreed {
                Some(agreed) => agreed.give_up(error),
                None => error,
            }
        })?;
        let CheckedJob { sizes, ring, push_limit, slots, recorder, .. } = checked;
        let (producer, consumer, shared) = slots;
        let rank = agreed.as_ref().map_or(0, |agreed| agreed.cluster.world().rank);
        let job = Arc::new(JobContext {
            lending: lending(config, &planned_job.system, rank, &sizes),
            rates: JobRates::new(&planned_job.system, &tiers.are_disks),
            tiers: tiers.set,
            source: config.source.clone(),
            _source_watch: self.metrics.watch(config.source.clone()),
            sizes,
            policy: PolicyDriver::new(rank, recorder),
            lane: self.pool.lane(),
            metrics: self.metrics.clone(),
            retry: self.config.retry,
            bad_samples: config.bad_samples,
            horizon: Horizon::new(config.next_epoch.map(|bytes| bytes.0), agreed.is_some()),
            in_flight: InFlightReads::default(),
            extras: Extras::default(),
            demand: ConsumerDemand::default(),
            epochs: DeliveredEpochs::default(),
            failures: Failures::default(),
            planned: AtomicU64::new(0),
            one_at_a_time: AtomicBool::new(false),
        });
        let queue = Arc::new(PendingQueue::default());
        let peers: Option<Arc<Peers>> = agreed.map(|agreed| {
            let (limits, in_step) = (self.config.peer_patience, config.policy.moves_samples());
            Arc::new(agreed.into_peers(&job, &queue, push_limit, limits, in_step))
        });
        self.jobs.add(&job);
        let retire = Arc::new(Retirer::new(job.clone(), peers.clone(), queue.clone()));
        let fill = Arc::new(FillStage {
            job: job.clone(),
            peers: peers.clone(),
            prefetcher: Arc::new(PrefetchStage::new(job.clone())),
        });
        let serving = peers.as_ref().map(|peers| peers.open(retire.clone())).transpose()?;
        let waker = producer.waker();
        let planner = BatchPlanner::new(PlannerParts {
            job: job.clone(),
            peers: peers.clone(),
            queue: queue.clone(),
            fill,
            retire: retire.clone(),
            epochs,
            producer,
            ring,
            begin: config.begin,
        });
        let planner = std::thread::Builder::new()
            .name("belady-stage".into())
            .spawn(move || planner.run())
            .map_err(EngineError::Threads)?;
        let parts = ConsumerSide {
            job,
            peers,
            queue,
            retire,
            consumer,
            shared,
            waker,
            planned_job,
            serving,
            _pool: self.pool.clone(),
        };
        Ok(Loader::new(parts, planner))
    }
}

/// Returns whether a job is shared by all ranks: a rank that does not know the others' orders works
/// alone.
fn is_shared(config: &JobConfig, cluster: &Cluster) -> bool {
    let JobWorld { rank, size } = cluster.world();
    let known = match &config.order {
        Order::Provided(orders) => orders.place() == Some(RankPlace { rank, ranks: size }),
        Order::Torch | Order::Permutation | Order::Sequential | Order::Given(_) => true,
    };
    known && size > 1
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
        ("the order of the first epoch", format!("one with the hash {first:016x}")),
    ];
    if !matches!(config.order, Order::Provided(_)) {
        let epochs = config.epochs.map_or("not known".to_owned(), |epochs| epochs.to_string());
        facts.extend([
            ("the seed", config.seed.to_string()),
            ("the batch size", config.batch.to_string()),
            ("the number of epochs", epochs),
            ("the policy", config.policy.name().to_owned()),
        ]);
    }
    Ok(facts)
}

/// Publishes this node's vitals at the rendezvous. Of several engines in a process, the oldest one
/// does, and the last one reports the end.
fn publish_vitals(
    cluster: &Arc<Cluster>,
    metrics: &Arc<Metrics>,
) -> std::io::Result<VitalsPublisher> {
    let (meet, status_reporter) = (cluster.rendezvous.clone(), cluster.status_reporter());
    publish(metrics.clone(), move |vitals| {
        let speaks =
            if vitals.ended { status_reporter.is_alone() } else { status_reporter.is_first() };
        if speaks {
            meet.post(VITALS, &vitals.to_bytes());
        }
    })
}

fn lending(config: &JobConfig, system: &System, rank: u32, sizes: &Sizes) -> Lending {
    let memory = system.tiers.get(1).map_or(0, |tier| tier.capacity_of(rank).0);
    let lend = if config.ring == RingKind::Shared { Lend::Slots } else { config.lend };
    Lending { lend, all_stay: memory >= sizes.total().0 }
}

fn check_policy(kind: &PolicyKind) -> Result<(), EngineError> {
    if POLICIES.contains(&kind.name()) {
        return Ok(());
    }
    Err(EngineError::SimulatorOnly(kind.name(), POLICIES.join(", ")))
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
