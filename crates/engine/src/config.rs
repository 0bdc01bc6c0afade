//! What an engine and its jobs are told. Sizes and durations are typed; nothing here does
//! anything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belady_control::model::{Bytes, System};
use belady_control::policy::PolicyKind;
use belady_control::sampler::{Order, Step};
use belady_data::source::Source;
use belady_data::tier::TierFaults;
use belady_peer::Cluster;

/// An engine: threads and cache tiers that its jobs share.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Threads that load; `None` for as many as suit the machine.
    pub threads: Option<u32>,
    /// Cache tiers, fastest first.
    pub tiers: Vec<TierConfig>,
    /// What the machine and its storage can do, as far as it is known. What is not known is
    /// measured while running.
    pub system: Option<System>,
    pub retry: Retry,
    /// Other nodes, whose caches and ours are one.
    pub peers: Option<Arc<Cluster>>,
    pub peer_patience: PeerPatience,
    /// For drills: every tier fails like this, from a seed.
    pub tier_faults: Option<(TierFaults, u64)>,
}

/// A cache tier of the engine; its quota is hard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierConfig {
    Ram { capacity: Bytes },
    Disk { directory: PathBuf, capacity: Bytes },
}

impl TierConfig {
    pub fn capacity(&self) -> Bytes {
        match self {
            Self::Ram { capacity } | Self::Disk { capacity, .. } => *capacity,
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::Ram { .. } => "ram".to_owned(),
            Self::Disk { directory, .. } => directory.display().to_string(),
        }
    }
}

/// How long other nodes are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPatience {
    /// A call that is not answered within this time has failed.
    pub answer: Duration,
    /// How long a consumer waits for what other nodes have not done yet.
    pub wait: Duration,
}

impl Default for PeerPatience {
    fn default() -> Self {
        // A healthy peer answers within milliseconds, and one whose machine swaps within seconds.
        Self { answer: Duration::from_secs(5), wait: Duration::from_secs(2) }
    }
}

/// How long a read of the source is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all, the first included.
    pub attempts: u32,
    /// Pause before the second try; doubled each time.
    pub backoff: Duration,
    /// A read that takes longer is given up and counts as a try.
    pub timeout: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        // In all about 2 s of pauses: a metadata server fails over in that time; and half a
        // minute is what NFS waits before it says that a server is not responding.
        Self { attempts: 6, backoff: Duration::from_millis(50), timeout: Duration::from_secs(30) }
    }
}

/// What happens to a batch with a sample that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadSamples {
    /// The consumer gets an error instead of the batch.
    #[default]
    Raise,
    /// The batch comes without it.
    Skip,
    /// Another sample of the batch takes its place.
    Replace,
}

/// What a consumer may do with the memory that it is lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lend {
    /// It may write to it: every sample gets a slot of the ring.
    #[default]
    Slots,
    /// It only reads: samples in RAM are lent from there, without a copy.
    ReadOnly,
}

/// Who can reach the memory of the staging buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ring {
    /// This process alone.
    #[default]
    Private,
    /// Other processes can map it and read samples there while this one holds their batch
    /// ([`crate::Loader::shared_memory`], [`crate::Batch::place`]). Memory of tiers cannot be
    /// mapped, so [`Lend::ReadOnly`] has no effect: every sample gets a slot.
    Shared,
}

/// What the staging buffers of a node's processes take together, by default.
pub const NODE_STAGING: Bytes = Bytes(512 << 20);

/// The staging buffer of each of so many processes on a node, by default: their batches may need
/// more ([`JobConfig::staging_grows`]).
pub fn share_of_staging(processes: usize) -> Bytes {
    Bytes(NODE_STAGING.0 / processes.max(1) as u64)
}

/// One run over a dataset.
#[derive(Clone, Debug)]
pub struct JobConfig {
    pub source: Arc<dyn Source>,
    /// Names the dataset in warnings and caches.
    pub name: String,
    /// What is read when. An `Order::Provided` comes epoch by epoch and says itself how it is
    /// cut into batches: seed, batch and `drop_last` are for the others.
    pub order: Order,
    pub seed: u64,
    /// Of one rank.
    pub batch: u32,
    pub drop_last: bool,
    /// `None` runs until the order ends or the loader is dropped.
    pub epochs: Option<u32>,
    /// The staging buffer of this process.
    pub staging: Bytes,
    /// Bytes of the next epoch that are staged before the consumer says that it begins
    /// ([`crate::Outlook::begin_epoch`]), beside its first two batches; `None` stages as much as there is
    /// room for.
    pub next_epoch: Option<Bytes>,
    /// Whether it may become as large as two of the largest batches need, if it is smaller: its
    /// size is the default.
    pub staging_grows: bool,
    pub policy: PolicyKind,
    pub bad_samples: BadSamples,
    pub lend: Lend,
    pub ring: Ring,
    /// This job's part of every tier's quota, of what other jobs have left.
    pub cache_share: f64,
    /// Records what the policy was told and answered.
    pub trace: Option<PathBuf>,
    /// The first batch that is staged. A node that joins others in the midst of a run begins where
    /// they are, but plans from the run's beginning as they did.
    pub begin: Step,
}

impl JobConfig {
    /// A job with the defaults: torch's order, batches of 64, one epoch, the policy `belady`.
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
            ring: Ring::default(),
            cache_share: 1.0,
            trace: None,
            begin: Step { epoch: 0, iteration: 0 },
        }
    }
}
