//! Policies: state machines that are told what happened on their node and answer
//! with what to do.
//!
//! One instance runs on every node and hears only of that node (see [`Event`]).
//! What nodes must agree on is computed from the [`Job`] alone, once per process,
//! and shared read-only by the instances that live there (see [`Plan`]). Plans
//! speak in logical time ([`Step`]), never in arrival time: otherwise a fast node
//! and a slow one would disagree about who holds what.
//!
//! The flow of one batch: when the ring of a rank has room, the world sends
//! [`Event::Stage`] and the policy answers with one [`Load`] a sample. When every
//! rank has finished the step, the world sends [`Event::Consumed`], and the policy
//! may keep samples of that batch ([`Keep`]) or drop what it holds ([`Evict`]).
//! Tiers may also be filled in the background: an idle prefetcher asks with
//! [`Event::Idle`] and gets [`Fetch`]es.

mod belady;
mod cache;
mod deepio_opportunistic;
mod deepio_ordered;
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
mod parallel_staging;
mod perfect;
mod shards;
mod staging;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{EpochOrder, SampleId, Step};

pub use kind::{Availability, PolicyKind};

pub type NodeId = u32;
pub type RankId = u32;
/// Index into [`crate::model::System::tiers`]; 0 is the staging buffer.
pub type TierId = u8;

/// Where a sample is read from. A sample that still stands in some node's ring, on its
/// way to a tier, counts as in that tier: the ring serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Place {
    Source,
    /// A tier of this node.
    Local(TierId),
    /// A tier of another node.
    Peer(NodeId, TierId),
}

/// Stage one sample of the batch that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Load {
    pub sample: SampleId,
    pub from: Place,
    /// The copy at `from` may go once every rank has finished the step.
    pub last_use: bool,
    /// Also put it into this local tier as it passes.
    pub keep: Option<TierId>,
}

impl Load {
    pub fn from(sample: SampleId, from: Place) -> Self {
        Self { sample, from, last_use: false, keep: None }
    }
}

/// Put a sample of the batch just consumed, still in this node's ring, into a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Keep {
    pub sample: SampleId,
    /// Usually this node; another one gets it over the network.
    pub node: NodeId,
    pub tier: TierId,
}

/// Drop a sample from a tier of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Evict {
    pub sample: SampleId,
    pub tier: TierId,
}

/// Fetch a sample from the source into the tier whose prefetcher asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fetch {
    pub sample: SampleId,
}

/// What happened on this node.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The ring of `rank` has room for its batch of `step`. Answer with loads.
    Stage { rank: RankId, step: Step, samples: &'a [SampleId] },
    /// Every rank has finished `step`; these were the samples of local `rank`.
    Consumed { rank: RankId, step: Step, samples: &'a [SampleId] },
    /// The background prefetcher of `tier` has nothing to do. Answer with fetches
    /// of at most `limit` samples, or none: it asks again after the next step.
    Idle { tier: TierId, limit: usize },
    /// A background fetch into `tier` has finished.
    Fetched { tier: TierId, sample: SampleId },
    /// `peer` did not have `sample` for `rank`. Answer with one load from elsewhere.
    Missed { rank: RankId, sample: SampleId, peer: NodeId },
}

/// How the node's staging threads are used from now on.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Threads {
    /// Any thread loads or preprocesses for any local rank.
    Pooled,
    /// Each local rank has its own share of p_0, for loading and preprocessing alike.
    PerRank,
    /// Fixed duties: loading threads by local rank, and preprocessing threads of the node.
    Split { loading: Vec<f64>, preprocessing: f64 },
}

/// What to do. The vectors are reused from event to event; a policy only appends.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Actions {
    pub loads: Vec<Load>,
    pub keeps: Vec<Keep>,
    pub evictions: Vec<Evict>,
    pub fetches: Vec<Fetch>,
    pub threads: Option<Threads>,
}

impl Actions {
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
    /// Told what happened and when; appends what to do.
    fn on(&mut self, now: Seconds, event: Event<'_>, actions: &mut Actions);
}

/// When samples are loaded relative to their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// Everything is there already: the lower bound.
    Instant,
    /// What comes from the source is fetched one sample at a time, when the consumer asks
    /// for it; what a tier holds is staged ahead.
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

/// What a policy decided for the whole run: shared by all instances.
pub trait Plan: Send + Sync {
    /// The instance of one node.
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy>;

    fn staging(&self) -> Staging {
        Staging::Ahead
    }

    /// What has to be in the tiers before the first step.
    fn preload(&self) -> Preload {
        Preload::default()
    }

    /// All nodes that are to hold a sample for the whole run, where there may be several: whoever wants
    /// it chooses the nearest or the least busy of them.
    fn holders(&self, _sample: SampleId) -> Vec<NodeId> {
        vec![]
    }

    /// Told of each epoch once, in order, before any event of it: its order, and that of
    /// the epoch after it if there is one. May be called on another thread while events of
    /// the epoch before still arrive.
    fn begin_epoch(&self, _epoch: u32, _order: &Arc<EpochOrder>, _next: Option<&Arc<EpochOrder>>) {}

    /// How staging threads are used until an instance says otherwise.
    fn threads(&self) -> Threads {
        Threads::PerRank
    }

    /// Whether each rank gets exactly the samples of its access stream, in order.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Calls on the source beyond those of its reads: `(open, stat)` at the start.
    fn startup_ops(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Why a policy cannot run a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Makes the plan of a policy for a job.
pub fn plan(kind: &PolicyKind, job: &Arc<Job>) -> Result<Arc<dyn Plan>, Unsupported> {
    Ok(match *kind {
        PolicyKind::Perfect => Arc::new(perfect::Perfect),
        PolicyKind::Naive => Arc::new(naive::Naive),
        PolicyKind::Staging { loading_threads } => {
            Arc::new(staging::Ahead::new(job, loading_threads)?)
        }
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
        PolicyKind::Cache => Arc::new(cache::Cache::new(job)?),
        PolicyKind::Belady => return belady::plan(job),
        PolicyKind::Lobster { threads, eviction, tau } => {
            Arc::new(lobster::Lobster::new(job, lobster::Options { threads, eviction, tau }))
        }
        PolicyKind::Nopfs { in_order, cleanup_read, availability } => {
            let options = nopfs::Options { in_order, cleanup_read, availability };
            return nopfs::plan(job, options);
        }
    })
}
