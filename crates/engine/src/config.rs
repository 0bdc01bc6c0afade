//! The configuration of an engine and of its jobs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belady_control::model::{Bytes, System};
use belady_control::policy::PolicyKind;
use belady_control::sampler::{Order, Step};
use belady_data::source::Source;
use belady_data::tier::TierFaults;
use belady_peer::Cluster;

/// By default, training gets about three times as much of a processor as a thread that transforms,
/// and transforms get all that training leaves.
pub const TRANSFORM_NICE: u8 = 5;

/// The configuration of an engine: threads and cache tiers that its jobs share.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Threads that load; `None` for four a core, 8 to 32. Transform stages bring more, and the
    /// policy may move threads between the two.
    pub threads: Option<u32>,
    /// Added to the nice value of threads while they transform, 0 to 19, so that they yield to
    /// training; `None` for that of the environment (`BELADY_NICE`), else 5.
    /// Without the right to lower a nice value, a thread that is to load again is replaced by
    /// another one.
    pub transform_nice: Option<u8>,
    /// Cache tiers, fastest first.
    pub tiers: Vec<TierConfig>,
    /// The rates of the machine and its storage. Rates that are not given are measured.
    pub system: Option<System>,
    /// How reads of the source are tried again.
    pub retry: Retry,
    /// Other nodes, which share their caches with this one.
    pub peers: Option<Arc<Cluster>>,
    /// How long this node waits for other nodes.
    pub peer_patience: PeerPatience,
    /// What metrics call the ranks of all nodes, which engines count node after node; empty for the
    /// same numbers.
    pub rank_numbers: Vec<u32>,
    /// Threads that look up samples for other nodes: no more of their requests are handled at once.
    /// `None` for as many as come, one for each of their connections.
    pub serving_threads: Option<u32>,
    /// Several jobs run at once: a job leaves a part of every quota to later ones, and jobs on one
    /// dataset share what they hold in memory and what they read.
    pub several_jobs: bool,
    /// Other processes can map the memory of tiers in RAM, and read samples there that are lent to
    /// them.
    pub shared_tiers: bool,
    /// Injects faults into every tier, from a seed, for tests.
    pub tier_faults: Option<(TierFaults, u64)>,
}

/// A cache tier of the engine. It never exceeds its quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierConfig {
    /// In memory.
    Ram {
        /// The quota.
        capacity: Bytes,
    },
    /// In a directory on a local disk.
    Disk {
        /// Where the cache is.
        directory: PathBuf,
        /// The quota of all caches in the directory.
        capacity: Bytes,
    },
}

impl TierConfig {
    /// Returns the quota.
    pub fn capacity(&self) -> Bytes {
        match self {
            Self::Ram { capacity } | Self::Disk { capacity, .. } => *capacity,
        }
    }

    /// Returns the name in metrics and warnings: `ram` or the directory.
    pub fn name(&self) -> String {
        match self {
            Self::Ram { .. } => "ram".to_owned(),
            Self::Disk { directory, .. } => directory.display().to_string(),
        }
    }
}

/// How long a node waits for other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPatience {
    /// A call fails if nothing of it moves within this time.
    pub answer: Duration,
    /// How long a consumer waits for steps that other nodes have not filled yet.
    pub wait: Duration,
}

impl Default for PeerPatience {
    fn default() -> Self {
        // A healthy peer answers within milliseconds, and one whose machine swaps within seconds.
        Self { answer: Duration::from_secs(5), wait: Duration::from_secs(2) }
    }
}

/// How reads of the source are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in all, the first included.
    pub attempts: u32,
    /// The pause before the second attempt; doubled each time.
    pub backoff: Duration,
    /// A read that takes longer is given up and counts as an attempt.
    pub timeout: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        // The pauses take about 2 s together, enough for a metadata server to fail over. NFS waits
        // half a minute before it reports that a server is not responding.
        Self { attempts: 6, backoff: Duration::from_millis(50), timeout: Duration::from_secs(30) }
    }
}

/// What happens to a batch with a sample that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadSamples {
    /// The consumer gets an error instead of the batch.
    #[default]
    Raise,
    /// The batch is delivered without the sample.
    Skip,
    /// The next good sample of the batch takes its place.
    Replace,
}

/// What a consumer may do with the memory of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lend {
    /// Write to it: every sample is copied to a slot of the ring.
    #[default]
    Slots,
    /// Only read it: samples in RAM are lent from there, without a copy.
    ReadOnly,
}

/// Which processes can access the memory of the staging buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingKind {
    /// Only this process.
    #[default]
    Private,
    /// Other processes can map it and read samples while this process holds their batch
    /// ([`crate::Loader::shared_memory`], [`crate::Batch::place`]). The memory of tiers cannot be
    /// mapped, so [`Lend::ReadOnly`] has no effect.
    Shared,
    /// The same, and they can write to samples: the consumer is another process. It can map the
    /// memory of [shared tiers](EngineConfig::shared_tiers) too, so these lend.
    Writable,
}

/// The default size of the staging buffers of all processes on a node together.
pub const NODE_STAGING: Bytes = Bytes(512 << 20);

/// Returns the default size of the staging buffer of each of so many processes on a node. Large
/// batches may need more ([`JobConfig::staging_grows`]).
pub fn share_of_staging(processes: usize) -> Bytes {
    Bytes(NODE_STAGING.0 / processes.max(1) as u64)
}

/// The configuration of a job: one run over a dataset.
#[derive(Clone, Debug)]
pub struct JobConfig {
    /// The dataset.
    pub source: Arc<dyn Source>,
    /// The name of the dataset in warnings and caches.
    pub name: String,
    /// The order of the samples. An `Order::Provided` comes epoch by epoch and defines its batches;
    /// it ignores `seed`, `batch` and `drop_last`.
    pub order: Order,
    /// The seed of the order.
    pub seed: u64,
    /// The batch size of one rank.
    pub batch: u32,
    /// Drops the last, incomplete batch of an epoch.
    pub drop_last: bool,
    /// The number of epochs; `None` to run until the order ends or the loader is dropped.
    pub epochs: Option<u32>,
    /// The size of the staging buffer of this process.
    pub staging: Bytes,
    /// Bytes of the next epoch that are staged before the consumer begins it
    /// ([`crate::LoaderMonitor::begin_epoch`]), beside its first two batches; `None` for no limit.
    pub next_epoch: Option<Bytes>,
    /// Enlarges the staging buffer if two of the largest batches do not fit.
    pub staging_grows: bool,
    /// The policy, one of [`crate::POLICIES`], with its options; [`crate::policy()`] parses one.
    pub policy: PolicyKind,
    /// What happens to samples that cannot be read.
    pub bad_samples: BadSamples,
    /// What the consumer may do with the memory of a batch.
    pub lend: Lend,
    /// Which processes can access the staging buffer.
    pub ring: RingKind,
    /// The fraction that this job takes of what other jobs have left of every quota.
    pub cache_share: f64,
    /// Where to record the policy's events and actions.
    pub trace: Option<PathBuf>,
    /// The first step that is staged. A node that joins a run begins where the others are, but
    /// plans from the run's beginning.
    pub begin: Step,
}

impl JobConfig {
    /// Returns a job with the defaults: torch's order, batches of 64, one epoch, the policy
    /// `belady`.
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self {
            source,
            name: "dataset".to_owned(),
            order: Order::Torch,
            seed: 0,
            batch: 64,
            drop_last: false,
            epochs: Some(1),
            staging: NODE_STAGING,
            next_epoch: None,
            staging_grows: false,
            policy: PolicyKind::Belady,
            bad_samples: BadSamples::default(),
            lend: Lend::default(),
            ring: RingKind::default(),
            cache_share: 1.0,
            trace: None,
            begin: Step { epoch: 0, iteration: 0 },
        }
    }
}
