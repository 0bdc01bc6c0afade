//! How much relays should have read by each iteration of an epoch.
//!
//! Staging reads ahead as far as a ring reaches, and no further than the epoch until all nodes have
//! staged it. A node with small batches therefore has read all of its own long before the epoch's
//! end; if it then has nothing to read, the source gives the others less. Before that its staging
//! threads, of which there are more, leave little of its share to its prefetcher. So relays read as
//! late as they can: at each iteration as much as makes all nodes level, counting what they stage
//! ahead; and earlier only what the relay's space does not allow then.

use super::relays::Relays;
use crate::job::Job;
use crate::sampler::EpochOrder;

/// What nodes read for themselves, while it is counted.
pub struct RelayPace<'a> {
    relays: &'a Relays,
    nodes: usize,
    iterations: usize,
    /// By node: bytes that prefetchers read, which need not wait for any iteration.
    any_time: Vec<f64>,
    /// By iteration and node: bytes that staging reads until its end, and for how many iterations
    /// more the ring has space.
    staged: Vec<f64>,
    reach: Vec<usize>,
}

impl<'a> RelayPace<'a> {
    pub fn new(job: &Job, order: &EpochOrder, relays: &'a Relays) -> Self {
        let nodes = job.system.nodes as usize;
        let iterations = order.iterations() as usize;
        let mut pace = Self {
            relays,
            nodes,
            iterations,
            any_time: vec![0.0; nodes],
            staged: vec![0.0; nodes * iterations],
            reach: vec![0; nodes * iterations],
        };
        for node in 0..nodes {
            let batch = |iteration: usize| -> u64 {
                let ranks = job.system.ranks_per_node;
                let first = node as u32 * ranks;
                (first..first + ranks)
                    .flat_map(|rank| order.batch(rank, iteration as u32))
                    .map(|sample| job.sizes.get(sample))
                    .sum()
            };
            // The last iteration that is in the ring together with each one.
            let (mut last, mut used) = (0, 0);
            for iteration in 0..iterations {
                while last < iterations && used + batch(last) <= job.system.tiers[0].capacity.0 {
                    used += batch(last);
                    last += 1;
                }
                pace.reach[iteration * nodes + node] = last.max(iteration + 1) - 1;
                if last > iteration {
                    used -= batch(iteration);
                } else {
                    last = iteration + 1;
                }
            }
        }
        pace
    }

    pub fn reads_any_time(&mut self, node: usize, bytes: u64) {
        self.any_time[node] += bytes as f64;
    }

    pub fn stages(&mut self, iteration: u32, node: usize, bytes: u64) {
        self.staged[iteration as usize * self.nodes + node] = bytes as f64;
    }

    /// Decides how much each relay should have read by each iteration.
    pub fn finish(mut self) -> PacedRelays<'a> {
        let Self { relays, nodes, iterations, .. } = self;
        for at in nodes..self.staged.len() {
            self.staged[at] += self.staged[at - nodes];
        }
        let mut wanted = vec![0.0; nodes * iterations];
        for iteration in 0..iterations {
            let read: Vec<f64> = (0..nodes)
                .map(|node| {
                    let reach = self.reach[iteration * nodes + node];
                    self.any_time[node] + self.staged[reach * nodes + node]
                })
                .collect();
            let level = read.iter().sum::<f64>() / nodes as f64;
            for node in 0..nodes {
                wanted[iteration * nodes + node] = (level - read[node]).max(0.0);
            }
        }
        // What one iteration cannot take, those before it take.
        for at in (nodes..wanted.len()).rev() {
            let most = relays.space(at % nodes) as f64;
            wanted[at - nodes] = wanted[at - nodes].max(wanted[at] - most);
        }
        let read = (0..nodes)
            .map(|node| {
                let last =
                    iterations.checked_sub(1).map_or(0.0, |it| self.staged[it * nodes + node]);
                self.any_time[node] + last
            })
            .collect();
        PacedRelays {
            relays,
            nodes,
            wanted,
            at: 0,
            relayed: vec![0.0; nodes],
            taken: vec![0; nodes],
            read,
        }
    }
}

/// What relays take, while it is dealt.
pub struct PacedRelays<'a> {
    relays: &'a Relays,
    nodes: usize,
    /// By iteration and node: bytes that it should have relayed by its end.
    wanted: Vec<f64>,
    at: usize,
    /// By node: bytes that it has relayed, and of the iteration at hand.
    relayed: Vec<f64>,
    taken: Vec<u64>,
    /// By node: bytes that it reads in the epoch.
    read: Vec<f64>,
}

impl PacedRelays<'_> {
    pub fn begin(&mut self, iteration: u32) {
        self.at = iteration as usize;
        self.taken.fill(0);
    }

    /// The node that reads most of those that have something to give, if a relay wants something.
    pub fn giver(&self, has: impl Fn(usize) -> bool) -> Option<usize> {
        if (0..self.nodes).all(|node| self.lacks(node) <= 0.0) {
            return None;
        }
        (0..self.nodes)
            .filter(|&node| has(node))
            .max_by(|&a, &b| self.read[a].total_cmp(&self.read[b]).then(b.cmp(&a)))
    }

    /// By how many bytes a relay should have read more by now.
    fn lacks(&self, node: usize) -> f64 {
        if self.relays.space(node) == 0 {
            return 0.0;
        }
        self.wanted[self.at * self.nodes + node] - self.relayed[node]
    }

    /// The relay that reads so many bytes for a node, if one does; not `except`.
    pub fn give(&mut self, node: usize, except: Option<usize>, bytes: u64) -> Option<usize> {
        let relay = (0..self.nodes)
            .filter(|&relay| relay != node && Some(relay) != except)
            .filter(|&relay| self.taken[relay] + bytes <= self.relays.space(relay))
            .max_by(|&a, &b| self.lacks(a).total_cmp(&self.lacks(b)).then(b.cmp(&a)))
            .filter(|&relay| self.lacks(relay) > 0.0)?;
        self.taken[relay] += bytes;
        self.relayed[relay] += bytes as f64;
        self.read[relay] += bytes as f64;
        self.read[node] -= bytes as f64;
        Some(relay)
    }
}
