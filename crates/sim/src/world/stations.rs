//! Resources of fixed rate, served in the order of arrival: devices, links, thread pools. The state
//! of a station is one number: when it is free again.

use belady_control::Job;
use belady_control::model::{Pipeline, PreprocessWork, Seconds, Sharing, System};
use belady_control::policy::{ThreadAssignment, TierId};

/// What a chunk of samples needs, summed over its samples.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    pub source: f64,
    /// Bytes from tiers of this node, by tier.
    pub local: Vec<f64>,
    /// Bytes from tiers of other nodes, by tier.
    pub peer: Vec<f64>,
    /// What is preprocessed.
    pub work: PreprocessWork,
}

impl Demand {
    pub fn clear(&mut self, tiers: usize) {
        self.source = 0.0;
        self.work.clear();
        self.local.clear();
        self.local.resize(tiers, 0.0);
        self.peer.clear();
        self.peer.resize(tiers, 0.0);
    }
}

/// What kept a batch from being ready earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    #[default]
    Source,
    Peer,
    Local,
    Preprocess,
}

/// Rates that do not change during a run.
#[derive(Debug)]
pub struct StationRates {
    pub sharing: Sharing,
    pub pipeline: Pipeline,
    pub network: f64,
    /// Thread-seconds a byte to read tier j here.
    local: Vec<f64>,
    /// Thread-seconds a byte to read tier j of a peer.
    peer: Vec<f64>,
    pub read: Vec<f64>,
    pub write: Vec<f64>,
    /// p_0.
    pub staging_threads: f64,
    pub ranks_per_node: f64,
}

impl StationRates {
    pub fn new(job: &Job) -> Self {
        let system = &job.system;
        let tier = |f: &dyn Fn(&belady_control::model::TierModel) -> f64| -> Vec<f64> {
            system.tiers.iter().map(f).collect()
        };
        Self {
            sharing: system.source.sharing,
            pipeline: system.pipeline,
            network: system.network.0,
            local: tier(&|t| 1.0 / t.read_rate_per_thread().0),
            peer: tier(&|t| 1.0 / t.read_rate_per_thread().min(system.network).0),
            read: tier(&|t| t.read_rate().0),
            write: tier(&|t| t.write_rate().0),
            staging_threads: f64::from(system.staging_threads()),
            ranks_per_node: f64::from(system.ranks_per_node),
        }
    }

    pub fn local_seconds(&self, demand: &Demand) -> f64 {
        demand.local.iter().zip(&self.local).map(|(bytes, cost)| bytes * cost).sum()
    }

    pub fn peer_seconds(&self, demand: &Demand) -> f64 {
        demand.peer.iter().zip(&self.peer).map(|(bytes, cost)| bytes * cost).sum()
    }

    /// Returns the threads of a rank's server under an assignment.
    pub fn threads(&self, plan: &ThreadAssignment, local_rank: usize) -> StageShare {
        let (all, pools) = (self.staging_threads, self.ranks_per_node);
        match plan {
            ThreadAssignment::Pooled => {
                StageShare { loading: all, preparing: all, pools: 1.0, both: true }
            }
            ThreadAssignment::PerRank => {
                StageShare { loading: all / pools, preparing: all / pools, pools, both: true }
            }
            ThreadAssignment::Split { loading, preprocessing } => StageShare {
                loading: loading[local_rank],
                preparing: *preprocessing,
                pools: 1.0,
                both: false,
            },
        }
    }
}

/// The threads that work for a ring.
#[derive(Clone, Copy, Debug)]
pub struct StageShare {
    pub loading: f64,
    pub preparing: f64,
    /// Pools like this one among which the node's preprocessing is divided.
    pub pools: f64,
    /// Whether they are the same threads.
    pub both: bool,
}

impl StageShare {
    /// Returns how long its preprocessing threads need.
    pub fn preparing_time(&self, system: &System, work: &PreprocessWork) -> f64 {
        system.preparing_time(work, self.pools * self.preparing).0 * self.pools
    }

    /// Returns how long threads that load and then prepare need, for `loading` thread seconds of
    /// loading.
    pub fn pool_time(&self, system: &System, work: &PreprocessWork, loading: f64) -> f64 {
        system.pool_time(work, Seconds(loading), self.loading, self.pools).0
    }
}

/// When a station is free again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Station(f64);

impl Station {
    /// Adds work of that length; returns when it is done.
    pub fn serve(&mut self, now: f64, seconds: f64) -> f64 {
        self.0 = self.0.max(now) + seconds;
        self.0
    }
}

/// The latest of several ends, and its cause.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latest {
    pub at: f64,
    pub cause: Cause,
}

impl Latest {
    pub fn take(&mut self, at: f64, cause: Cause) {
        if at > self.at {
            *self = Self { at, cause };
        }
    }
}

/// All stations of one node.
#[derive(Clone, Debug)]
pub struct NodeStations {
    pub network: Station,
    /// By tier.
    pub devices: Vec<Station>,
    /// By local rank; index 0 alone when threads are pooled.
    pub loading: Vec<Station>,
    pub preparing: Vec<Station>,
}

impl NodeStations {
    pub fn new(job: &Job) -> Self {
        let ranks = job.system.ranks_per_node as usize;
        Self {
            network: Station::default(),
            devices: vec![Station::default(); job.system.tiers.len()],
            loading: vec![Station::default(); ranks],
            preparing: vec![Station::default(); ranks],
        }
    }
}

/// Returns the seconds that a device needs for one sample.
pub fn device_seconds(bytes: u64, rates: &[f64], tier: TierId) -> f64 {
    bytes as f64 / rates[tier as usize]
}

pub fn seconds(at: f64) -> Seconds {
    Seconds(at)
}
