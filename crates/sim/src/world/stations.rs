//! Resources of fixed rate, served in the order of arrival: devices, links, thread pools. The state
//! of a station is one number: when it is free again.

use belady_control::Job;
use belady_control::model::{Pipeline, Seconds, Sharing};
use belady_control::policy::{ThreadAssignment, TierId};

/// What a chunk of samples needs, summed over its samples.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    pub source: f64,
    /// Bytes from tiers of this node, by tier.
    pub local: Vec<f64>,
    /// Bytes from tiers of other nodes, by tier.
    pub peer: Vec<f64>,
    pub total: f64,
}

impl Demand {
    pub fn clear(&mut self, tiers: usize) {
        self.source = 0.0;
        self.total = 0.0;
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
    /// Thread-seconds a byte to preprocess and write to the ring.
    pub prepare: f64,
    pub compute: f64,
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
        let staging = &system.tiers[0];
        let ring = staging.write_rate() / f64::from(staging.threads);
        Self {
            sharing: system.source.sharing,
            pipeline: system.pipeline,
            network: system.network.0,
            local: tier(&|t| 1.0 / t.read_rate_per_thread().0),
            peer: tier(&|t| 1.0 / t.read_rate_per_thread().min(system.network).0),
            read: tier(&|t| t.read_rate().0),
            write: tier(&|t| t.write_rate().0),
            prepare: 1.0 / system.preprocess.min(ring).0,
            compute: system.compute.0,
            staging_threads: f64::from(staging.threads),
            ranks_per_node: f64::from(system.ranks_per_node),
        }
    }

    pub fn local_seconds(&self, demand: &Demand) -> f64 {
        demand.local.iter().zip(&self.local).map(|(bytes, cost)| bytes * cost).sum()
    }

    pub fn peer_seconds(&self, demand: &Demand) -> f64 {
        demand.peer.iter().zip(&self.peer).map(|(bytes, cost)| bytes * cost).sum()
    }

    /// Returns the loading and preprocessing threads of a rank's server under an assignment.
    pub fn threads(&self, plan: &ThreadAssignment, local_rank: usize) -> (f64, f64) {
        match plan {
            ThreadAssignment::Pooled => (self.staging_threads, self.staging_threads),
            ThreadAssignment::PerRank => {
                let share = self.staging_threads / self.ranks_per_node;
                (share, share)
            }
            ThreadAssignment::Split { loading, preprocessing } => {
                (loading[local_rank], *preprocessing)
            }
        }
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
