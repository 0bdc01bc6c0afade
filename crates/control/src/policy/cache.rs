//! `cache`: MONARCH's second baseline, `tf.data`'s cache on local storage.
//!
//! Knows nothing of the future. A node's first read of a sample comes from the source and is
//! written to local storage before its use; later reads come from there. A node may end up holding
//! everything, so the whole dataset has to fit its tiers. Costs S source bytes a node in all, and a
//! write of each.

use std::sync::Arc;

use super::local::WholeDataset;
use super::{Actions, Event, Load, LoadFrom, NodeId, Policy, PolicyPlan, Unsupported};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::SampleId;

#[derive(Debug)]
pub struct CachePlan {
    dataset: WholeDataset,
    samples: u32,
}

impl CachePlan {
    pub fn new(job: &Job) -> Result<Self, Unsupported> {
        Ok(Self { dataset: WholeDataset::new(job)?, samples: job.sizes.len() })
    }
}

impl PolicyPlan for CachePlan {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(CacheNode { node, held: Bits::new(self.samples), plan: self })
    }
}

#[derive(Debug)]
struct CacheNode {
    node: NodeId,
    held: Bits,
    plan: Arc<CachePlan>,
}

impl CacheNode {
    fn load(&mut self, sample: SampleId) -> Load {
        let tier = self.plan.dataset.tier(self.node, sample);
        if self.held.contains(sample) {
            return Load::from(sample, LoadFrom::Local(tier));
        }
        self.held.insert(sample);
        Load { keep: Some(tier), ..Load::from_source(sample) }
    }
}

impl Policy for CacheNode {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                for &sample in samples {
                    let load = self.load(sample);
                    actions.loads.push(load);
                }
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
    fn copies_on_the_first_read_and_stays_local_after() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(CachePlan::new(&job(4, 1, 1, &[40])).unwrap());
        let mut node = Driver::new(&plan, 0);
        let first = node.stage(0, (0, 0), &[3])[0];
        assert_eq!((first.from, first.keep), (LoadFrom::Source, Some(1)));
        assert_eq!(node.stage(0, (1, 0), &[3])[0], Load::from(3, LoadFrom::Local(1)));
    }

    #[test]
    fn refuses_a_dataset_that_does_not_fit() {
        assert!(CachePlan::new(&job(4, 1, 1, &[39])).is_err());
    }
}
