//! `staging`: double buffering, as `tf.data` and torch's `DataLoader` do it.
//!
//! Knows the order as far as the staging buffer reaches. Loads ahead of use with `p_0` threads a
//! node, caches nothing. Costs S source bytes an epoch, but hides their latency behind compute
//! where bandwidth allows.
//!
//! Its threads may have [`FixedDuties`].

use std::sync::Arc;

use super::{
    Actions, Event, FixedDuties, Load, NodeId, Policy, PolicyPlan, ThreadAssignment, Unsupported,
};
use crate::job::Job;
use crate::model::Seconds;

#[derive(Debug)]
pub struct StagingPlan {
    threads: ThreadAssignment,
}

impl StagingPlan {
    pub fn new(job: &Job, duties: Option<FixedDuties>) -> Result<Self, Unsupported> {
        Ok(Self { threads: FixedDuties::assignment(duties, job)? })
    }
}

impl PolicyPlan for StagingPlan {
    fn node(self: Arc<Self>, _node: NodeId) -> Box<dyn Policy> {
        Box::new(FromSource)
    }

    fn threads(&self) -> ThreadAssignment {
        self.threads.clone()
    }
}

/// Every sample from the source, none kept.
#[derive(Debug)]
pub struct FromSource;

impl Policy for FromSource {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                actions.loads.extend(samples.iter().map(|&k| Load::from_source(k)));
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
    fn every_sample_comes_from_the_source_and_none_is_kept() {
        let plan: Arc<dyn PolicyPlan> =
            Arc::new(StagingPlan::new(&job(8, 1, 1, &[100]), None).unwrap());
        let mut node = Driver::new(&plan, 0);
        let wanted = [3, 1].map(Load::from_source);
        assert_eq!(node.stage(0, (0, 0), &[3, 1]), wanted);
        assert!(node.consumed(0, (0, 0), &[3, 1]).keeps.is_empty());
        let again = node.on(Event::Missed { rank: 0, sample: 3, peer: 1 });
        assert_eq!(again.loads, [Load::from_source(3)]);
        // The defaults of `PolicyPlan`.
        assert_eq!((plan.staging(), plan.keeps_order()), (crate::policy::Staging::Ahead, true));
        assert_eq!((plan.startup_ops(), plan.holders(0)), ((0, 0), vec![]));
        assert!(plan.preload().nodes.is_empty());
    }
}
