//! `perfect`: the lower bound.
//!
//! Knows nothing, decides nothing, costs nothing: every sample is in the staging
//! buffer the moment it is wanted, so a run takes its compute time and no more.

use std::sync::Arc;

use super::staging::FromSource;
use super::{NodeId, Plan, Policy, Staging};

#[derive(Debug)]
pub struct Perfect;

impl Plan for Perfect {
    fn node(self: Arc<Self>, _node: NodeId) -> Box<dyn Policy> {
        // A world with instant staging asks nobody; one without gets correct bytes.
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
