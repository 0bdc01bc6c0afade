//! `local`: MONARCH's upper baseline; the dataset lies on local storage.
//!
//! Knows that somebody copied the whole dataset to the tiers of every node before
//! the job, fastest tier first, at no cost to it. Reads everything from there and
//! never touches the source.

use std::sync::Arc;

use super::{
    Actions, Event, Load, NodeId, Place, Plan, Policy, Preload, Staging, TierId, Unsupported,
};
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::SampleId;

/// A whole dataset in the tiers of one node, in order of sample and of tier.
#[derive(Clone, Debug)]
pub struct WholeDataset {
    /// One past the last sample of each tier, tier 1 first.
    ends: Vec<SampleId>,
}

impl WholeDataset {
    pub fn new(job: &Job) -> Result<Self, Unsupported> {
        let mut at = 0;
        let mut ends = vec![];
        for tier in job.system.tiers.iter().skip(1) {
            let mut free = tier.capacity.0;
            while at < job.sizes.len() && job.sizes.get(at) <= free {
                free -= job.sizes.get(at);
                at += 1;
            }
            ends.push(at);
        }
        if at < job.sizes.len() {
            let (dataset, room) = (job.sizes.total(), job.system.cache_capacity());
            return Err(Unsupported(format!(
                "the dataset of {dataset} does not fit the tiers of one node, {room}"
            )));
        }
        Ok(Self { ends })
    }

    #[inline]
    pub fn tier(&self, sample: SampleId) -> TierId {
        self.ends.partition_point(|&end| end <= sample) as TierId + 1
    }
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

impl Plan for Local {
    fn node(self: Arc<Self>, _node: NodeId) -> Box<dyn Policy> {
        Box::new(FromLocal { dataset: self.dataset.clone() })
    }

    fn staging(&self) -> Staging {
        Staging::Ahead
    }

    fn preload(&self) -> Preload {
        let list: Vec<_> = (0..self.samples).map(|k| (k, self.dataset.tier(k))).collect();
        Preload { nodes: vec![list; self.nodes as usize], free: true }
    }
}

#[derive(Debug)]
struct FromLocal {
    dataset: WholeDataset,
}

impl Policy for FromLocal {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                let load = |&k| Load::from(k, Place::Local(self.dataset.tier(k)));
                actions.loads.extend(samples.iter().map(load));
            }
            Event::Missed { sample, .. } => actions.loads.push(Load::from(sample, Place::Source)),
            Event::Consumed { .. } | Event::Idle { .. } | Event::Fetched { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{Driver, job};

    #[test]
    fn lies_in_the_tiers_in_order_and_costs_nothing() {
        let plan: Arc<dyn Plan> = Arc::new(Local::new(&job(8, 2, 1, &[30, 50])).unwrap());
        assert!(plan.preload().free);
        assert_eq!(plan.preload().nodes[1].len(), 8);
        let loads = Driver::new(&plan, 1).stage(1, (0, 0), &[2, 3]);
        assert_eq!([loads[0].from, loads[1].from], [Place::Local(1), Place::Local(2)]);
    }

    #[test]
    fn names_both_sizes_when_the_dataset_is_too_large() {
        let error = Local::new(&job(8, 2, 1, &[30, 40])).unwrap_err().to_string();
        assert!(error.contains("80 B") && error.contains("70 B"), "{error}");
    }
}
