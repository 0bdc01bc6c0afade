//! `parallel-staging`: each node copies its share of the dataset to local storage
//! before training and reads nothing else.
//!
//! Knows only its own shard. The largest and slowest tier is filled first, as the published staging
//! scripts do with node-local SSDs; faster tiers take the rest of the shard, and all load in
//! parallel. Ranks read local samples only, so the order is not the sampler's, and samples that did
//! not fit are never delivered. Costs one read of at most S before the first step, none after.

use std::sync::Arc;

use super::deepio_opportunistic::OwnShard;
use super::shards::Shards;
use super::{NodeId, Policy, PolicyPlan, Preload, TierId};
use crate::job::Job;

#[derive(Debug)]
pub struct ParallelStaging {
    job: Arc<Job>,
    shards: Arc<Shards>,
}

impl ParallelStaging {
    pub fn new(job: &Arc<Job>) -> Self {
        let slowest_first = (1..job.system.tiers.len() as TierId).rev().collect();
        Self { job: job.clone(), shards: Arc::new(Shards::new(job, slowest_first)) }
    }
}

impl PolicyPlan for ParallelStaging {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(OwnShard::new(&self.job, self.shards.clone(), node))
    }

    fn preload(&self) -> Preload {
        self.shards.preload()
    }

    fn keeps_order(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::LoadFrom;
    use crate::policy::testing::{Driver, job};

    #[test]
    fn fills_the_slowest_tier_first_and_reads_only_local_samples() {
        let plan: Arc<dyn PolicyPlan> =
            Arc::new(ParallelStaging::new(&Arc::new(job(8, 2, 1, &[10, 20]))));
        assert!(!plan.keeps_order());
        assert_eq!(plan.preload().nodes[0], [(0, 2), (1, 2), (2, 1)]);
        let loads = Driver::new(&plan, 0).stage(0, (0, 0), &[5, 6, 7]);
        let mut read: Vec<_> = loads.iter().map(|load| (load.sample, load.from)).collect();
        read.sort_by_key(|&(sample, _)| sample);
        assert_eq!(
            read,
            [(0, LoadFrom::Local(2)), (1, LoadFrom::Local(2)), (2, LoadFrom::Local(1))]
        );
    }
}
