//! `deepio-ordered`: a partitioned RAM cache that keeps the order.
//!
//! Knows which node holds which sample: each loads its share of the dataset into RAM before
//! training, as much as fits. Samples are read on demand, from local RAM, from the holder's, or
//! from the source. Costs S − N·`d_1` source bytes an epoch, read one at a time.

use std::sync::Arc;

use super::shards::Shards;
use super::{Actions, Event, Load, NodeId, Policy, PolicyPlan, Preload, Staging};
use crate::job::Job;
use crate::model::Seconds;

#[derive(Debug)]
pub struct DeepioOrdered {
    shards: Arc<Shards>,
}

impl DeepioOrdered {
    pub fn new(job: &Job) -> Self {
        Self { shards: Arc::new(Shards::new(job, vec![1])) }
    }
}

impl PolicyPlan for DeepioOrdered {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(FromShards { node, shards: self.shards.clone() })
    }

    fn staging(&self) -> Staging {
        Staging::OnDemand
    }

    fn preload(&self) -> Preload {
        self.shards.preload()
    }
}

/// Reads every sample from its holder, or from the source.
#[derive(Debug)]
pub struct FromShards {
    pub node: NodeId,
    pub shards: Arc<Shards>,
}

impl Policy for FromShards {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                let loads = samples.iter().map(|&k| Load::from(k, self.shards.place(self.node, k)));
                actions.loads.extend(loads);
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
    use crate::policy::LoadFrom;
    use crate::policy::testing::{Driver, job};

    #[test]
    fn reads_own_ram_then_peers_then_the_source() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(DeepioOrdered::new(&job(8, 2, 1, &[30])));
        assert_eq!(plan.preload().nodes[1], [(4, 1), (5, 1), (6, 1)]);
        let loads = Driver::new(&plan, 0).stage(0, (0, 0), &[2, 3, 4]);
        let places = [LoadFrom::Local(1), LoadFrom::Source, LoadFrom::Peer(1, 1)];
        assert_eq!(loads.iter().map(|load| load.from).collect::<Vec<_>>(), places);
    }

    #[test]
    fn a_dead_peer_means_the_source() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(DeepioOrdered::new(&job(8, 2, 1, &[30])));
        let mut driver = Driver::new(&plan, 0);
        let actions = driver.on(Event::Missed { rank: 0, sample: 4, peer: 1 });
        assert_eq!(actions.loads, [Load::from_source(4)]);
    }
}
