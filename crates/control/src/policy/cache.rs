//! `cache`: MONARCH's second baseline, `tf.data`'s cache on local storage.
//!
//! Knows nothing of the future. What a node reads for the first time comes from the
//! source and is written to local storage before it is used; after that it is read
//! from there. Each node may come to hold everything, so the whole dataset has to
//! fit its tiers. Costs S source bytes a node in all, and a write on the way.

use std::sync::Arc;

use super::local::WholeDataset;
use super::{Actions, Event, Load, NodeId, Place, Plan, Policy, Unsupported};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::SampleId;

#[derive(Debug)]
pub struct Cache {
    dataset: WholeDataset,
    samples: u32,
}

impl Cache {
    pub fn new(job: &Job) -> Result<Self, Unsupported> {
        Ok(Self { dataset: WholeDataset::new(job)?, samples: job.sizes.len() })
    }
}

impl Plan for Cache {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(Copies { node, held: Bits::new(self.samples), plan: self })
    }
}

#[derive(Debug)]
struct Copies {
    node: NodeId,
    held: Bits,
    plan: Arc<Cache>,
}

impl Copies {
    fn load(&mut self, sample: SampleId) -> Load {
        let tier = self.plan.dataset.tier(self.node, sample);
        if self.held.contains(sample) {
            return Load::from(sample, Place::Local(tier));
        }
        self.held.insert(sample);
        Load { keep: Some(tier), ..Load::from(sample, Place::Source) }
    }
}

impl Policy for Copies {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                for &sample in samples {
                    let load = self.load(sample);
                    actions.loads.push(load);
                }
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
    fn copies_on_the_first_read_and_stays_local_after() {
        let plan: Arc<dyn Plan> = Arc::new(Cache::new(&job(4, 1, 1, &[40])).unwrap());
        let mut node = Driver::new(&plan, 0);
        let first = node.stage(0, (0, 0), &[3])[0];
        assert_eq!((first.from, first.keep), (Place::Source, Some(1)));
        assert_eq!(node.stage(0, (1, 0), &[3])[0], Load::from(3, Place::Local(1)));
    }

    #[test]
    fn refuses_a_dataset_that_does_not_fit() {
        assert!(Cache::new(&job(4, 1, 1, &[39])).is_err());
    }
}
