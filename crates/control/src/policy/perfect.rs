//! `perfect`: the lower bound.
//!
//! Knows nothing, decides nothing, costs nothing: every sample is in the staging buffer at the
//! moment of its use, so a run takes its compute time and no more.

use std::sync::Arc;

use super::staging::FromSource;
use super::{NodeId, Policy, PolicyPlan, Staging};

#[derive(Debug)]
pub struct Perfect;

impl PolicyPlan for Perfect {
    fn node(self: Arc<Self>, _node: NodeId) -> Box<dyn Policy> {
        // A world with instant staging sends no events; any other gets correct bytes.
        Box::new(FromSource)
    }

    fn staging(&self) -> Staging {
        Staging::Instant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_no_staging_and_no_preload() {
        assert_eq!(Perfect.staging(), Staging::Instant);
        assert!(Perfect.preload().nodes.is_empty() && Perfect.keeps_order());
    }
}
