//! `naive`: no prefetching, no caching.
//!
//! Knows nothing of the future. One thread reads a sample from the source when the consumer asks
//! for it, preprocesses it, and only then reads the next. Costs S source bytes an epoch and all of
//! their latency.

use std::sync::Arc;

use super::staging::FromSource;
use super::{NodeId, Policy, PolicyPlan, Staging};

#[derive(Debug)]
pub struct Naive;

impl PolicyPlan for Naive {
    fn node(self: Arc<Self>, _node: NodeId) -> Box<dyn Policy> {
        Box::new(FromSource)
    }

    fn staging(&self) -> Staging {
        Staging::OnDemand
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Load;
    use crate::policy::testing::Driver;

    #[test]
    fn reads_everything_from_the_source_on_demand() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(Naive);
        assert_eq!(plan.staging(), Staging::OnDemand);
        let loads = Driver::new(&plan, 0).stage(0, (3, 1), &[4, 2]);
        assert_eq!(loads, [4, 2].map(Load::from_source));
    }
}
