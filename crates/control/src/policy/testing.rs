//! A small job for unit tests of policies.

use std::sync::Arc;

use super::{Actions, Event, Load, NodeId, Policy, PolicyPlan, RankId};
use crate::Sizes;
use crate::job::{Job, Packing};
use crate::model::{
    Bytes, Curve, Pipeline, Rate, Readers, Seconds, Sharing, SourceModel, System, TierModel,
};
use crate::sampler::{AccessStream, Order, SampleId, Scheme, Step, StreamConfig};

fn tier(capacity: u64, threads: u32) -> TierModel {
    TierModel {
        name: format!("{capacity} B"),
        capacity: Bytes(capacity),
        by_node: vec![],
        threads,
        read: Curve::flat(Rate(1e9)),
        write: Curve::flat(Rate(1e9)),
    }
}

/// Samples of ten bytes in sequential order, two for each rank and step, on cache
/// tiers of the given capacities.
pub fn job(samples: u32, nodes: u32, ranks_per_node: u32, capacities: &[u64]) -> Job {
    let mut tiers = vec![tier(1000, 8)];
    tiers.extend(capacities.iter().map(|&capacity| tier(capacity, 2)));
    let ranks = nodes * ranks_per_node;
    let stream = AccessStream::new(StreamConfig {
        samples,
        ranks,
        batch: 2 * ranks,
        order: Order::Sequential,
        scheme: Scheme::Uniform,
        seed: 1,
        sampler_drop_last: false,
        drop_last: false,
    })
    .unwrap();
    Job {
        system: System {
            nodes,
            ranks_per_node,
            compute: Rate(100.0).into(),
            preprocess: Rate(200.0).into(),
            network: Rate(1000.0),
            source: SourceModel {
                throughput: Curve::flat(Rate(100.0)),
                link: Rate(1000.0),
                sharing: Sharing::Aggregate,
                readers: Readers::Nodes,
            },
            tiers,
            pipeline: Pipeline::Overlapped,
        },
        stream,
        sizes: Sizes::Equal { bytes: 10, samples },
        epochs: Some(3),
        packing: Packing { files: samples, read_size: None },
    }
}

/// One instance and its answers.
pub struct Driver {
    policy: Box<dyn Policy>,
    pub actions: Actions,
}

impl Driver {
    pub fn new(plan: &Arc<dyn PolicyPlan>, node: NodeId) -> Self {
        Self { policy: plan.clone().node(node), actions: Actions::default() }
    }

    pub fn on(&mut self, event: Event<'_>) -> &Actions {
        self.actions.clear();
        self.policy.on(Seconds::ZERO, event, &mut self.actions);
        &self.actions
    }

    pub fn stage(&mut self, rank: RankId, at: (u32, u32), samples: &[SampleId]) -> Vec<Load> {
        let step = Step { epoch: at.0, iteration: at.1 };
        self.on(Event::Stage { rank, step, samples }).loads.clone()
    }

    pub fn consumed(&mut self, rank: RankId, at: (u32, u32), samples: &[SampleId]) -> &Actions {
        let step = Step { epoch: at.0, iteration: at.1 };
        self.on(Event::Consumed { rank, step, samples })
    }
}
