//! The virtual world around the policies.
//!
//! Training is bulk-synchronous: in each step every rank consumes its local batch, and the slowest
//! rank ends the step. Ahead of that, each rank's staging ring is filled up to its capacity. For
//! every batch that enters a ring the world asks the node's policy where each sample comes from,
//! and computes when the batch is ready (`staging`): the source read runs on the shared service
//! clock (`clock::SourceClock`), everything else on stations of fixed rate (`stations`).
//! Nothing is scheduled per sample: a batch's demands are summed, so a run costs a few operations a
//! sample and a few events a batch.
//!
//! | module | what it does |
//! |---|---|
//! | `ring` | the staging rings: steps on their way to the consumers |
//! | `staging` | where each sample comes from, and when a batch is ready |
//! | `consume` | the end of a step |
//! | `background` | preloading and prefetching |
//! | `clock` | the source's shared rate in virtual service |
//! | `servers` | servers with queues: staging threads, prefetchers |
//! | `stations` | devices, links and thread pools |
//! | `tier_store` | what every tier really holds, and rule violations of policies |
//! | `epochs` | the orders of the epochs that are consumed and staged |
//! | `meter` | what is measured |

mod background;
mod clock;
mod consume;
mod epochs;
mod meter;
mod ring;
mod servers;
mod staging;
mod stations;
mod tier_store;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use belady_control::Job;
use belady_control::policy::{
    Actions, Keep, NodeId, Policy, PolicyPlan, Staging, ThreadAssignment, TierId,
};
use belady_control::sampler::{EpochOrder, SampleId, Step};

use crate::outcome::RunOutcome;
use background::SimPrefetcher;
use clock::SourceClock;
use epochs::EpochWindow;
use meter::Meter;
use ring::{StagedStep, StagedStepId, StagingRing};
use servers::{ServerId, Servers};
use stations::{Demand, NodeStations, StationRates};
use tier_store::TierStore;

/// How far a run has come: steps done and steps in all.
pub type RunProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// A run, and the rules that its policy broke.
#[derive(Debug)]
pub struct SimulatedRun {
    /// What was measured.
    pub outcome: RunOutcome,
    /// Empty for a policy that follows the rules of [`belady_control::policy`].
    pub violations: Vec<String>,
}

/// Runs `plan` on `job` for `epochs` epochs.
pub fn simulate(
    job: &Arc<Job>,
    plan: &Arc<dyn PolicyPlan>,
    epochs: u32,
    progress: RunProgress<'_>,
) -> SimulatedRun {
    SimWorld::new(job, plan, epochs).run(progress)
}

struct SimWorld {
    job: Arc<Job>,
    plan: Arc<dyn PolicyPlan>,
    rates: StationRates,
    staging: Staging,
    keeps_order: bool,
    threads: Vec<ThreadAssignment>,
    policies: Vec<Box<dyn Policy>>,
    actions: Actions,
    store: TierStore,
    servers: Servers,
    stations: Vec<NodeStations>,
    rings: Vec<StagingRing>,
    prefetchers: Vec<SimPrefetcher>,
    /// Steps that wait for a background fetch of a sample.
    awaiting: HashMap<(NodeId, TierId, SampleId), Vec<StagedStepId>>,
    /// The first server that belongs to a prefetcher.
    first_prefetcher: ServerId,
    staged_steps: Vec<StagedStep>,
    free: Vec<StagedStepId>,
    epoch_orders: EpochWindow,
    order: Option<(u32, Arc<EpochOrder>)>,
    epochs: u32,
    iterations: u64,
    /// The most steps that a ring ever held.
    deepest: u64,
    /// Steps staged before the first was consumed.
    first_fill: u64,
    demand: Demand,
    /// Whether each load's location holds the sample; reused for its allocation.
    held: Vec<bool>,
    /// Source bytes of a step by rank; reused for its allocation.
    slow_bytes: Vec<u64>,
    /// What a step's consumers keep on other nodes; reused for its allocation.
    keeps: Vec<(NodeId, Keep)>,
    meter: Meter,
    /// What the source had delivered when the last step ended, in seconds at its best rate.
    source_busy: f64,
    now: f64,
    /// The epoch being consumed.
    epoch: u32,
}

impl SimWorld {
    fn new(job: &Arc<Job>, plan: &Arc<dyn PolicyPlan>, epochs: u32) -> Self {
        let system = &job.system;
        let rates = StationRates::new(job);
        let staging = plan.staging();
        let tier_threads: u32 = system.tiers.iter().map(|tier| tier.threads).sum();
        let clock = SourceClock::new(&system.source, system.nodes, tier_threads);
        let mut servers = Servers::new(clock);
        let threads = plan.threads();
        // Ranks whose threads are pooled share a ring.
        let per_ring = match staging {
            Staging::Ahead if threads == ThreadAssignment::Pooled => system.ranks_per_node,
            _ => 1,
        };
        let mut rings = vec![];
        for first in (0..system.ranks()).step_by(per_ring as usize) {
            let node = system.node_of(first);
            let local_rank = (first % system.ranks_per_node) as usize;
            let count = match staging {
                Staging::OnDemand => 1.0,
                _ => rates.threads(&threads, local_rank).loading,
            };
            rings.push(StagingRing {
                node,
                ranks: first..first + per_ring,
                server: servers.add_server(node, count),
                capacity: system.tiers[0].capacity_of(node).0 * u64::from(per_ring)
                    / u64::from(system.ranks_per_node),
                used: 0,
                next: 0,
                waiting: None,
                staged: VecDeque::new(),
            });
        }
        let first_prefetcher = rings.last().map_or(0, |ring| ring.server + 1);
        let mut prefetchers = vec![];
        for node in 0..system.nodes {
            for (tier, spec) in system.tiers.iter().enumerate().skip(1) {
                let server = servers.add_server(node, f64::from(spec.threads));
                prefetchers.push(SimPrefetcher {
                    node,
                    tier: tier as TierId,
                    server,
                    busy: false,
                    samples: vec![],
                });
            }
        }
        let mut epoch_orders = EpochWindow::new(job, plan, epochs);
        let iterations = epoch_orders.iterations();
        Self {
            rates,
            staging,
            keeps_order: plan.keeps_order(),
            threads: vec![threads; system.nodes as usize],
            policies: (0..system.nodes).map(|node| plan.clone().node(node)).collect(),
            actions: Actions::default(),
            store: TierStore::new(job),
            servers,
            stations: vec![NodeStations::new(job); system.nodes as usize],
            rings,
            prefetchers,
            awaiting: HashMap::new(),
            first_prefetcher,
            staged_steps: vec![],
            free: vec![],
            epoch_orders,
            order: None,
            epochs,
            iterations: u64::from(iterations),
            deepest: 0,
            first_fill: u64::MAX,
            demand: Demand::default(),
            held: vec![],
            slow_bytes: vec![],
            keeps: vec![],
            meter: Meter::new(job, epochs, iterations),
            source_busy: 0.0,
            now: 0.0,
            epoch: 0,
            job: job.clone(),
            plan: plan.clone(),
        }
    }

    fn run(mut self, progress: RunProgress<'_>) -> SimulatedRun {
        self.preload();
        // Prefetchers ask the plan, which has to know the first epoch by then.
        self.epoch_orders.get(0);
        let steps = u64::from(self.epochs) * self.iterations;
        // One call a percent is enough for any display.
        let report_every = (steps / 100).max(1);
        for step in 0..steps {
            self.epoch = (step / self.iterations) as u32;
            self.wake_prefetchers();
            self.fill_rings(step, steps);
            self.consume(step);
            if (step + 1) % self.iterations == 0 {
                self.meter.epoch_end(self.epoch, self.now);
                self.epoch_orders.forget_before(self.epoch + 1);
            }
            if step % report_every == 0 {
                progress(step + 1, steps);
            }
        }
        progress(steps, steps);
        let (opens, stats) = self.plan.startup_ops();
        if let Some(ops) = self.meter.outcome.source_ops_per_epoch.first_mut() {
            ops.open += opens;
            ops.stat += stats;
        }
        SimulatedRun { outcome: self.meter.finish(self.now), violations: self.store.violations }
    }

    fn step_of(&self, step: u64) -> Step {
        Step { epoch: (step / self.iterations) as u32, iteration: (step % self.iterations) as u32 }
    }
}
