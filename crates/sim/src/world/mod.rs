//! The virtual world around the policies.
//!
//! Training is bulk-synchronous: in each step every rank consumes its local batch,
//! and the slowest rank ends the step. Ahead of that, each rank's staging ring is
//! filled as far as its capacity reaches. For every batch that enters a ring the
//! world asks the node's policy where each sample comes from, and works out when the
//! batch is ready ([`staging`]): the source read runs on the shared service clock
//! ([`clock::SourceClock`]), everything else on stations of fixed rate
//! ([`stations`]). Nothing is scheduled per sample: a batch's demands are summed, so
//! a run costs a few operations a sample and a few events a batch.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ring`] | what is on its way to the consumers |
//! | [`staging`] | where each sample comes from, and when a batch is ready |
//! | [`consume`] | the end of a step |
//! | [`background`] | preloading and prefetching |
//! | [`clock`] | the source's shared rate in virtual service |
//! | [`machine`] | servers with queues: staging threads, prefetchers |
//! | [`stations`] | devices, links and thread pools |
//! | [`store`] | what every tier really holds |
//! | [`orders`] | the epochs' orders in the window of interest |
//! | [`meter`] | what is measured |

pub mod background;
pub mod clock;
pub mod consume;
pub mod machine;
pub mod meter;
pub mod orders;
pub mod ring;
pub mod staging;
pub mod stations;
pub mod store;

use std::collections::VecDeque;
use std::sync::Arc;

use belady_control::Job;
use belady_control::policy::{Actions, Keep, NodeId, Plan, Policy, Staging, Threads, TierId};
use belady_control::sampler::{EpochOrder, Step};

use crate::outcome::Outcome;
use background::Prefetcher;
use clock::SourceClock;
use machine::{Machine, ServerId};
use meter::Meter;
use orders::Orders;
use ring::{Parcel, ParcelId, Ring};
use stations::{Demand, NodeStations, Rates};
use store::Store;

/// How far a run has come: steps done and steps in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A run and what a policy did wrong in it, if anything.
#[derive(Debug)]
pub struct Run {
    pub outcome: Outcome,
    /// Empty for a policy that keeps the rules of [`belady_control::policy`].
    pub violations: Vec<String>,
}

/// Runs `plan` on `job` for `epochs` epochs.
pub fn simulate(job: &Arc<Job>, plan: &Arc<dyn Plan>, epochs: u32, progress: Progress<'_>) -> Run {
    World::new(job, plan, epochs).run(progress)
}

struct World {
    job: Arc<Job>,
    plan: Arc<dyn Plan>,
    rates: Rates,
    staging: Staging,
    keeps_order: bool,
    threads: Vec<Threads>,
    policies: Vec<Box<dyn Policy>>,
    actions: Actions,
    store: Store,
    machine: Machine,
    stations: Vec<NodeStations>,
    rings: Vec<Ring>,
    prefetchers: Vec<Prefetcher>,
    /// First server that is a prefetcher's.
    first_prefetcher: ServerId,
    parcels: Vec<Parcel>,
    free: Vec<ParcelId>,
    orders: Orders,
    order: Option<(u32, Arc<EpochOrder>)>,
    epochs: u32,
    iterations: u64,
    /// Most parcels that a ring ever held.
    deepest: u64,
    /// Steps staged before the first was consumed.
    first_fill: u64,
    demand: Demand,
    /// Whether each load of a batch is where it is said to be; kept for its allocation.
    held: Vec<bool>,
    /// Source bytes of a step by rank; kept for its allocation.
    slow_bytes: Vec<u64>,
    /// What a step's consumers keep on other nodes; kept for its allocation.
    keeps: Vec<(NodeId, Keep)>,
    meter: Meter,
    /// What the source had given when the last step ended, in seconds at its best rate.
    source_busy: f64,
    now: f64,
    /// The epoch being consumed.
    epoch: u32,
}

impl World {
    fn new(job: &Arc<Job>, plan: &Arc<dyn Plan>, epochs: u32) -> Self {
        let system = &job.system;
        let rates = Rates::new(job);
        let staging = plan.staging();
        let tier_threads: u32 = system.tiers.iter().map(|tier| tier.threads).sum();
        let clock = SourceClock::new(&system.source, system.nodes, tier_threads);
        let mut machine = Machine::new(clock);
        let threads = plan.threads();
        // Ranks whose threads are pooled share a ring.
        let per_ring = match staging {
            Staging::Ahead if threads == Threads::Pooled => system.ranks_per_node,
            _ => 1,
        };
        let mut rings = vec![];
        for first in (0..system.ranks()).step_by(per_ring as usize) {
            let node = system.node_of(first);
            let local_rank = (first % system.ranks_per_node) as usize;
            let count = match staging {
                Staging::OnDemand => 1.0,
                _ => rates.threads(&threads, local_rank).0,
            };
            rings.push(Ring {
                node,
                ranks: first..first + per_ring,
                server: machine.add_server(node, count),
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
                let server = machine.add_server(node, f64::from(spec.threads));
                prefetchers.push(Prefetcher {
                    node,
                    tier: tier as TierId,
                    server,
                    busy: false,
                    samples: vec![],
                });
            }
        }
        let mut orders = Orders::new(job, plan, epochs);
        let iterations = orders.iterations();
        Self {
            rates,
            staging,
            keeps_order: plan.keeps_order(),
            threads: vec![threads; system.nodes as usize],
            policies: (0..system.nodes).map(|node| plan.clone().node(node)).collect(),
            actions: Actions::default(),
            store: Store::new(job),
            machine,
            stations: vec![NodeStations::new(job); system.nodes as usize],
            rings,
            prefetchers,
            first_prefetcher,
            parcels: vec![],
            free: vec![],
            orders,
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

    fn run(mut self, progress: Progress<'_>) -> Run {
        self.preload();
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
                self.orders.forget_before(self.epoch + 1);
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
        Run { outcome: self.meter.finish(self.now), violations: self.store.violations }
    }

    fn step_of(&self, step: u64) -> Step {
        Step { epoch: (step / self.iterations) as u32, iteration: (step % self.iterations) as u32 }
    }
}
