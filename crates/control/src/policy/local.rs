//! `local`: MONARCH's upper baseline; the dataset lies on local storage.
//!
//! Assumes that the whole dataset was copied to the tiers of every node before the job, fastest
//! tier first, at no cost. Reads everything from there and never touches the source.

use std::sync::Arc;

use super::{
    Actions, Event, Load, LoadFrom, NodeId, Policy, PolicyPlan, Preload, Staging, TierId,
    Unsupported,
};
use crate::job::Job;
use crate::model::{Seconds, TierModel};
use crate::sampler::SampleId;

/// A whole dataset in the tiers of each node, in order of sample and of tier.
#[derive(Debug)]
pub struct WholeDataset {
    /// Cache tiers of a node.
    tiers: usize,
    /// `[node * tiers + tier - 1]`: one past the last sample of the tier.
    ends: Vec<SampleId>,
}

impl WholeDataset {
    pub fn new(job: &Job) -> Result<Self, Unsupported> {
        let system = &job.system;
        let tiers = system.tiers.len() - 1;
        let mut ends: Vec<SampleId> = Vec::with_capacity(system.nodes as usize * tiers);
        for node in 0..system.nodes {
            let like = |before: u32| {
                let same = |tier: &TierModel| tier.capacity_of(before) == tier.capacity_of(node);
                system.tiers.iter().skip(1).all(same)
            };
            // Most systems have many nodes that are alike.
            if node > 0 && like(node - 1) {
                ends.extend_from_within(ends.len() - tiers..);
            } else {
                ends.extend(fill(job, node)?);
            }
        }
        Ok(Self { tiers, ends })
    }

    #[inline]
    pub fn tier(&self, node: NodeId, sample: SampleId) -> TierId {
        let first = node as usize * self.tiers;
        let ends = &self.ends[first..first + self.tiers];
        ends.partition_point(|&end| end <= sample) as TierId + 1
    }
}

/// One past the last sample of each tier of a node, tier 1 first.
fn fill(job: &Job, node: NodeId) -> Result<Vec<SampleId>, Unsupported> {
    let mut at = 0;
    let mut ends = vec![];
    for tier in job.system.tiers.iter().skip(1) {
        let mut free = tier.capacity_of(node).0;
        while at < job.sizes.len() && job.sizes.get(at) <= free {
            free -= job.sizes.get(at);
            at += 1;
        }
        ends.push(at);
    }
    if at < job.sizes.len() {
        let (dataset, capacity) = (job.sizes.total(), job.system.cache_of(node));
        return Err(Unsupported(format!(
            "the dataset of {dataset} does not fit the tiers of one node, {capacity}"
        )));
    }
    Ok(ends)
}

#[derive(Debug)]
pub struct Local {
    dataset: WholeDataset,
    nodes: u32,
    samples: u32,
}

impl Local {
    pub fn new(job: &Job) -> Result<Self, Unsupported> {
        let dataset = WholeDataset::new(job)?;
        Ok(Self { dataset, nodes: job.system.nodes, samples: job.sizes.len() })
    }
}

impl PolicyPlan for Local {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(FromLocal { node, plan: self })
    }

    fn staging(&self) -> Staging {
        Staging::Ahead
    }

    fn preload(&self) -> Preload {
        let list = |node| (0..self.samples).map(|k| (k, self.dataset.tier(node, k))).collect();
        Preload { nodes: (0..self.nodes).map(list).collect(), free: true }
    }
}

#[derive(Debug)]
struct FromLocal {
    node: NodeId,
    plan: Arc<Local>,
}

impl Policy for FromLocal {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                let tier = |k| self.plan.dataset.tier(self.node, k);
                let load = |&k| Load::from(k, LoadFrom::Local(tier(k)));
                actions.loads.extend(samples.iter().map(load));
            }
            Event::Missed { sample, .. } => actions.loads.push(Load::from_source(sample)),
            Event::Consumed { .. }
            | Event::Idle { .. }
            | Event::Fetched { .. }
            | Event::Measured(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{Driver, job};

    #[test]
    fn lies_in_the_tiers_in_order_and_costs_nothing() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(Local::new(&job(8, 2, 1, &[30, 50])).unwrap());
        assert!(plan.preload().free);
        assert_eq!(plan.preload().nodes[1].len(), 8);
        let loads = Driver::new(&plan, 1).stage(1, (0, 0), &[2, 3]);
        assert_eq!([loads[0].from, loads[1].from], [LoadFrom::Local(1), LoadFrom::Local(2)]);
    }

    #[test]
    fn names_both_sizes_when_the_dataset_is_too_large() {
        let error = Local::new(&job(8, 2, 1, &[30, 40])).unwrap_err().to_string();
        assert!(error.contains("80 B") && error.contains("70 B"), "{error}");
    }
}
