//! Policies: state machines that receive the events of their node and answer with actions.
//!
//! One instance runs on every node and receives only that node's events (see [`Event`]). What nodes
//! must agree on is computed from the [`Job`] alone, once per process, and shared by the process's
//! instances (see [`PolicyPlan`]). Plans use logical time ([`Step`]), never arrival time: otherwise
//! a fast node and a slow one would disagree about which node holds what.
//!
//! The flow of one batch: when a rank's ring has space, the world sends [`Event::Stage`] and the
//! policy answers with one [`Load`] a sample. When every rank has finished the step, the world
//! sends [`Event::Consumed`], and the policy may keep samples of that batch ([`Keep`]) or evict
//! samples ([`Evict`]). Tiers may also be filled in the background: an idle prefetcher sends
//! [`Event::Idle`] and gets [`Fetch`]es.

mod balance;
mod belady;
mod cache;
mod deepio_opportunistic;
mod deepio_ordered;
mod duties;
mod holdings;
pub mod kind;
mod lbann_dynamic;
mod lbann_preload;
mod lobster;
mod local;
mod locality_aware;
mod lru;
mod monarch;
mod naive;
mod nopfs;
mod options;
mod parallel_staging;
mod perfect;
mod shards;
mod staging;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use crate::job::Job;
use crate::model::Seconds;
use crate::model::online::NodeMeasurement;
use crate::sampler::{EpochOrder, SampleId, Step};

pub use duties::FixedDuties;
pub use kind::{Availability, PolicyKind};
pub use options::{OptionValue, PolicyError};

/// The number of a node, from 0.
pub type NodeId = u32;
/// The number of a rank over all nodes, from 0.
pub type RankId = u32;
/// Index into [`crate::model::System::tiers`]; 0 is the staging buffer.
pub type TierId = u8;

/// Where a sample is read from. A sample that is still in some node's ring, on its way to a tier,
/// counts as in that tier: the ring serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum LoadFrom {
    /// The shared storage.
    Source,
    /// A tier of this node.
    Local(TierId),
    /// A tier of another node.
    Peer(NodeId, TierId),
}

/// Stages one sample of the requested batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Load {
    /// Which one.
    pub sample: SampleId,
    /// Where it is read.
    pub from: LoadFrom,
    /// The copy at `from` may be evicted once every rank has finished the step.
    pub last_use: bool,
    /// Also put the sample into this local tier.
    pub keep: Option<TierId>,
}

impl Load {
    /// Returns a plain load.
    pub fn from(sample: SampleId, from: LoadFrom) -> Self {
        Self { sample, from, last_use: false, keep: None }
    }

    /// Returns a plain load from the source.
    pub fn from_source(sample: SampleId) -> Self {
        Self::from(sample, LoadFrom::Source)
    }
}

/// Puts a sample of the batch just consumed, which is still in this node's ring, into a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Keep {
    /// Which one.
    pub sample: SampleId,
    /// Usually this node; another one gets it over the network.
    pub node: NodeId,
    /// Of that node.
    pub tier: TierId,
}

/// Drops a sample from a tier of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Evict {
    /// Which one.
    pub sample: SampleId,
    /// Of this node.
    pub tier: TierId,
}

/// Fetches a sample from the source into the tier whose prefetcher is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fetch {
    /// Which one.
    pub sample: SampleId,
}

/// What happened on this node.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the variants name their fields")]
pub enum Event<'a> {
    /// The ring of `rank` has space for its batch of `step`. Answer with loads.
    Stage { rank: RankId, step: Step, samples: &'a [SampleId] },
    /// Every rank has finished `step`; these were the samples of local `rank`.
    Consumed { rank: RankId, step: Step, samples: &'a [SampleId] },
    /// The background prefetcher of `tier` is idle. Answer with fetches of at most `limit` samples,
    /// or none: the event comes again after the next step.
    Idle { tier: TierId, limit: usize },
    /// A background fetch into `tier` has finished.
    Fetched { tier: TierId, sample: SampleId },
    /// `peer` did not have `sample` for `rank`. Answer with one load from another location.
    Missed { rank: RankId, sample: SampleId, peer: NodeId },
    /// What was measured on this node so far, once a step at most. Answer with a new use of the
    /// threads, or nothing: other nodes do not know it, so nothing else may follow from it.
    Measured(&'a NodeMeasurement),
}

/// How the node's staging threads are used from now on.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum ThreadAssignment {
    /// Any thread loads or preprocesses for any local rank.
    Pooled,
    /// Each local rank has an equal share of p_0, for loading and for preprocessing.
    PerRank,
    /// Fixed duties.
    Split {
        /// By local rank.
        loading: Vec<f64>,
        /// Of the node.
        preprocessing: f64,
    },
}

/// A policy's answer. The vectors are reused from event to event; a policy only appends.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Actions {
    /// One for each sample to stage.
    pub loads: Vec<Load>,
    /// Samples to put into tiers.
    pub keeps: Vec<Keep>,
    /// Samples to drop from tiers, before `keeps` take their space.
    pub evictions: Vec<Evict>,
    /// Background fetches.
    pub fetches: Vec<Fetch>,
    /// A new use of the staging threads, if it changes.
    pub threads: Option<ThreadAssignment>,
}

impl Actions {
    /// Empties the answer.
    pub fn clear(&mut self) {
        self.loads.clear();
        self.keeps.clear();
        self.evictions.clear();
        self.fetches.clear();
        self.threads = None;
    }
}

/// A policy instance on one node.
pub trait Policy: Send {
    /// Receives an event and appends the answer to `actions`.
    fn on(&mut self, now: Seconds, event: Event<'_>, actions: &mut Actions);
}

/// When samples are loaded relative to their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// Everything is staged already: the lower bound.
    Instant,
    /// Samples from the source are fetched one at a time, when the consumer needs them; samples in
    /// a tier are staged ahead.
    OnDemand,
    /// Ahead of use, as far as the staging buffer reaches.
    Ahead,
}

/// A step before training: every node fills its tiers from the source.
#[derive(Clone, Debug, Default)]
pub struct Preload {
    /// `(sample, tier)` in fetch order, by node.
    pub nodes: Vec<Vec<(SampleId, TierId)>>,
    /// The tiers were filled before the job: it costs nothing.
    pub free: bool,
}

/// What a policy decides for the whole run, shared by all instances. Only [`node`](Self::node) is
/// required.
pub trait PolicyPlan: Send + Sync {
    /// Returns the instance of one node.
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy>;

    /// Returns when samples are loaded.
    fn staging(&self) -> Staging {
        Staging::Ahead
    }

    /// Returns what must be in the tiers before the first step.
    fn preload(&self) -> Preload {
        Preload::default()
    }

    /// Returns all nodes that hold a sample for the whole run, where there may be several. A reader
    /// chooses the nearest or the least busy of them.
    fn holders(&self, _sample: SampleId) -> Vec<NodeId> {
        vec![]
    }

    /// Receives each epoch once, in order, before any event of it: its order, and that of the epoch
    /// after it if there is one. May be called on another thread while events of the epoch before
    /// still arrive.
    fn begin_epoch(&self, _epoch: u32, _order: &Arc<EpochOrder>, _next: Option<&Arc<EpochOrder>>) {}

    /// Whether a load from a tier may name a sample that the tier's prefetcher has yet to fetch:
    /// the batch then waits for it.
    fn waits_for_fetches(&self) -> bool {
        false
    }

    /// Returns how staging threads are used until an instance changes it.
    fn threads(&self) -> ThreadAssignment {
        ThreadAssignment::PerRank
    }

    /// Returns whether each rank gets exactly the samples of its access stream, in order.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Returns the calls on the source at the start that are not reads: `(open, stat)`.
    fn startup_ops(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Why a policy cannot run a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Makes the plan of a policy for a job.
///
/// # Errors
/// If the policy cannot run the job.
pub fn plan(kind: &PolicyKind, job: &Arc<Job>) -> Result<Arc<dyn PolicyPlan>, Unsupported> {
    Ok(match *kind {
        PolicyKind::Perfect => Arc::new(perfect::Perfect),
        PolicyKind::Naive => Arc::new(naive::Naive),
        PolicyKind::Staging { duties } => Arc::new(staging::StagingPlan::new(job, duties)?),
        PolicyKind::DeepioOrdered => Arc::new(deepio_ordered::DeepioOrdered::new(job)),
        PolicyKind::DeepioOpportunistic => {
            Arc::new(deepio_opportunistic::DeepioOpportunistic::new(job))
        }
        PolicyKind::ParallelStaging => Arc::new(parallel_staging::ParallelStaging::new(job)),
        PolicyKind::LbannDynamic => Arc::new(lbann_dynamic::LbannDynamic::new(job)?),
        PolicyKind::LbannPreload => Arc::new(lbann_preload::LbannPreload::new(job)?),
        PolicyKind::LocalityAware => Arc::new(locality_aware::LocalityAware::new(job)),
        PolicyKind::Monarch => Arc::new(monarch::Monarch::new(job)),
        PolicyKind::Lru => Arc::new(lru::Lru::new(job)),
        PolicyKind::Local => Arc::new(local::Local::new(job)?),
        PolicyKind::Cache => Arc::new(cache::CachePlan::new(job)?),
        PolicyKind::Belady => return belady::plan(job),
        PolicyKind::Lobster { threads, eviction, tau } => {
            Arc::new(lobster::Lobster::new(job, lobster::LobsterOptions { threads, eviction, tau }))
        }
        PolicyKind::Nopfs { in_order, cleanup_read, availability, duties } => {
            let options = nopfs::NopfsOptions { in_order, cleanup_read, availability, duties };
            return nopfs::plan(job, options);
        }
    })
}
