//! Asks the policy about one batch, and turns its actions into a batch plan.

use belady_control::policy::{Actions, Event, Load, LoadFrom, PolicyPlan, RankId, TierId};
use belady_control::sampler::{SampleId, Step};

use crate::job::JobContext;
use crate::peers::Peers;
use crate::pending::{BatchItem, BatchPlan, PlannedPush};

/// One question to the policy.
pub struct BatchDecision<'a> {
    pub job: &'a JobContext,
    pub peers: Option<&'a Peers>,
    /// Knows which nodes hold a sample; `None` in the first epoch.
    pub plan: Option<&'a dyn PolicyPlan>,
    pub rank: RankId,
    pub step: Step,
    pub is_last_epoch: bool,
}

impl BatchDecision<'_> {
    /// Decides where each sample comes from.
    pub fn stage(&self, samples: &[SampleId]) -> BatchPlan {
        let (rank, step) = (self.rank, self.step);
        let BatchPlan { mut items, mut evictions, pushes } = BatchPlan::default();
        self.job.policy.send(Event::Stage { rank, step, samples }, |actions| {
            evictions.extend(&actions.evictions);
            self.assign_threads(actions);
            items.extend(actions.loads.iter().map(|load| self.item(load)));
        });
        // Before the plan is ready, the policy says nothing of them.
        if items.len() != samples.len() {
            items = samples.iter().map(|&sample| self.unplanned(sample, None)).collect();
        }
        BatchPlan { items, evictions, pushes }
    }

    /// Decides what the step leaves behind, once all batches of the step are staged.
    pub fn consume(&self, samples: &[SampleId], plan: &mut BatchPlan) {
        let (rank, step) = (self.rank, self.step);
        let BatchPlan { items, evictions, pushes } = plan;
        self.job.policy.send(Event::Consumed { rank, step, samples }, |actions| {
            evictions.extend(&actions.evictions);
            self.assign_threads(actions);
            // Both are in the order of the batch, so each search begins where the last one ended.
            let mut from = 0;
            for keep in &actions.keeps {
                let here = self.peers.is_none_or(|peers| peers.me == keep.node);
                if !here {
                    let found = items.iter().position(|item| item.sample == keep.sample);
                    pushes.extend(found.map(|item| PlannedPush {
                        item: item as u32,
                        to: keep.node,
                        tier: keep.tier,
                    }));
                    continue;
                }
                let found = (from..items.len())
                    .chain(0..from)
                    .find(|&at| items[at].sample == keep.sample && items[at].keep().is_none());
                if let Some(at) = found {
                    items[at].set_keep(Some(keep.tier));
                    from = at + 1;
                }
            }
        });
    }

    fn assign_threads(&self, actions: &Actions) {
        if let Some(threads) = &actions.threads {
            self.job.assign_threads(threads);
        }
    }

    fn item(&self, load: &Load) -> BatchItem {
        let (sample, keep) = (load.sample, load.keep);
        let last_use = load.last_use && !self.is_last_epoch;
        match load.from {
            LoadFrom::Local(tier) if tier > 0 => BatchItem::from_tier(sample, tier, last_use, keep),
            LoadFrom::Peer(peer, peer_tier) if let Some(peers) = self.peers => {
                let Some(tier) = self.job.tiers.find(sample) else {
                    let holders = self.plan.map_or_else(Vec::new, |plan| plan.holders(sample));
                    let peer = peers.best_of(&holders, sample).unwrap_or(peer);
                    let peer_tier = Some(peer_tier).filter(|&tier| tier > 0);
                    return BatchItem::from_peer(sample, (peer, peer_tier), last_use, keep);
                };
                if last_use {
                    peers.release(peer, self.step.epoch, sample);
                }
                BatchItem::from_warm_entry(sample, tier, keep)
            }
            // What is in the ring arrives anyhow.
            LoadFrom::Source | LoadFrom::Local(_) | LoadFrom::Peer(..) => {
                self.unplanned(sample, keep)
            }
        }
    }

    /// Takes a sample from a cache that holds it without the policy's knowledge, here or on another
    /// node; else from the source.
    fn unplanned(&self, sample: SampleId, keep: Option<TierId>) -> BatchItem {
        if let Some(tier) = self.job.tiers.find(sample) {
            return BatchItem::from_warm_entry(sample, tier, keep);
        }
        match self.peers.and_then(|peers| peers.warm_at(sample)) {
            Some(peer) => BatchItem::from_peer(sample, (peer, None), false, keep),
            None => BatchItem::from_source(sample, keep),
        }
    }
}
