//! `lbann-preload`: LBANN's distributed data store, filled before training.
//!
//! Knows which node owns which sample. The whole dataset is loaded into the RAM of
//! all nodes together before the first step, so it has to fit there; then samples
//! are staged ahead from local RAM or the owner's. Costs one read of S up front and
//! (N − 1)/N of S over the network in each epoch.

use std::sync::Arc;

use super::deepio_ordered::FromShards;
use super::shards::Shards;
use super::{NodeId, Policy, PolicyPlan, Preload, Unsupported};
use crate::job::Job;
use crate::model::Bytes;

/// Both modes of the data store keep the whole dataset in RAM.
pub(super) fn must_fit(job: &Job) -> Result<(), Unsupported> {
    let all = if job.system.tiers.len() > 1 { job.system.tier_total(1) } else { Bytes::ZERO };
    let dataset = job.sizes.total();
    if dataset > all {
        return Err(Unsupported(format!(
            "the dataset of {dataset} does not fit the memory of all nodes together, {all}"
        )));
    }
    Ok(())
}

#[derive(Debug)]
pub struct LbannPreload {
    shards: Arc<Shards>,
}

impl LbannPreload {
    pub fn new(job: &Job) -> Result<Self, Unsupported> {
        must_fit(job)?;
        Ok(Self { shards: Arc::new(Shards::with_spill(job, 1)) })
    }
}

impl PolicyPlan for LbannPreload {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(FromShards { node, shards: self.shards.clone() })
    }

    fn preload(&self) -> Preload {
        self.shards.preload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::LoadFrom;
    use crate::policy::testing::{Driver, job};

    #[test]
    fn never_reads_the_source_after_the_preload() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(LbannPreload::new(&job(8, 2, 1, &[40])).unwrap());
        assert_eq!(plan.preload().nodes.iter().map(Vec::len).sum::<usize>(), 8);
        let loads = Driver::new(&plan, 1).stage(1, (0, 0), &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(loads.iter().all(|load| load.from != LoadFrom::Source));
    }

    #[test]
    fn names_both_sizes_when_the_dataset_is_too_large() {
        let error = LbannPreload::new(&job(8, 2, 1, &[39])).unwrap_err().to_string();
        assert!(error.contains("80 B") && error.contains("78 B"), "{error}");
    }
}
