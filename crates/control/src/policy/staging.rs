//! `staging`: double buffering, as `tf.data` and torch's `DataLoader` do it.
//!
//! Knows the order as far as the staging buffer reaches. Loads ahead of use with `p_0` threads a
//! node, caches nothing. Costs S source bytes an epoch, but hides their latency behind compute
//! where bandwidth allows.
//!
//! `loading_threads` gives the threads fixed duties: that many of each rank load, the node's others
//! preprocess. DALI's default is 3, and it runs one pipeline a GPU.

use std::sync::Arc;

use super::{Actions, Event, Load, NodeId, Policy, PolicyPlan, ThreadAssignment, Unsupported};
use crate::job::Job;
use crate::model::Seconds;

#[derive(Debug)]
pub struct StagingPlan {
    threads: ThreadAssignment,
}

impl StagingPlan {
    pub fn new(job: &Job, loading_threads: Option<u32>) -> Result<Self, Unsupported> {
        let all = job.system.staging_threads();
        let ranks = job.system.ranks_per_node;
        let threads = match loading_threads {
            None => ThreadAssignment::PerRank,
            Some(loading) if loading == 0 || loading * ranks >= all => {
                return Err(Unsupported(format!(
                    "`loading_threads` is {loading} for each of {ranks} ranks, but the node has \
                     {all} staging threads: each rank needs at least 1 to load, and 1 must be \
                     left to preprocess"
                )));
            }
            Some(loading) => ThreadAssignment::Split {
                loading: vec![f64::from(loading); ranks as usize],
                preprocessing: f64::from(all - loading * ranks),
            },
        };
        Ok(Self { threads })
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

    #[test]
    fn loading_threads_are_of_each_rank() {
        let job = job(8, 1, 2, &[]);
        let plan = StagingPlan::new(&job, Some(3)).unwrap();
        let expected = ThreadAssignment::Split { loading: vec![3.0, 3.0], preprocessing: 2.0 };
        assert_eq!(plan.threads(), expected);
        assert_eq!(StagingPlan::new(&job, None).unwrap().threads(), ThreadAssignment::PerRank);
    }

    #[test]
    fn no_thread_left_to_preprocess_is_an_error_that_says_so() {
        let error = StagingPlan::new(&job(8, 1, 2, &[]), Some(8)).unwrap_err().to_string();
        assert!(error.contains("`loading_threads` is 8"), "{error}");
    }
}
