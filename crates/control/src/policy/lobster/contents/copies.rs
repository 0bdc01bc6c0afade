//! Which nodes hold a copy of each sample.

use std::collections::HashMap;

use super::cache::EvictionKey;
use super::epoch_plan::Holder;
use super::future::NextUse;
use crate::policy::{NodeId, TierId};
use crate::sampler::SampleId;

/// A copy of a sample in the cache of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCopy {
    pub node: NodeId,
    pub tier: TierId,
    /// Which entry of all epochs (modulo 2^32) put it there; `None` for a prefetcher.
    pub kept_by: Option<u32>,
    /// The holder's.
    pub next_use: NextUse,
    /// Prefetched, and not used since.
    pub pinned: bool,
    /// Of its entry in the cache's queue.
    pub key: EvictionKey,
}

/// All copies of all samples. Most samples have one at most.
#[derive(Debug)]
pub struct Copies {
    first: Vec<Option<HeldCopy>>,
    /// The others of samples that have several.
    more: HashMap<SampleId, Vec<HeldCopy>>,
}

impl Copies {
    pub fn new(samples: u32) -> Self {
        Self { first: vec![None; samples as usize], more: HashMap::new() }
    }

    pub fn of(&self, sample: SampleId) -> impl Iterator<Item = &HeldCopy> {
        let first = self.first[sample as usize].as_ref();
        // Looked up only where the first is there.
        let more = first.and_then(|_| self.more.get(&sample));
        first.into_iter().chain(more.into_iter().flatten())
    }

    pub fn of_mut(&mut self, sample: SampleId) -> impl Iterator<Item = &mut HeldCopy> {
        let first = self.first[sample as usize].as_mut();
        let more = first.as_ref().and_then(|_| self.more.get_mut(&sample));
        first.into_iter().chain(more.into_iter().flatten())
    }

    pub fn at(&self, sample: SampleId, node: NodeId) -> Option<&HeldCopy> {
        self.of(sample).find(|copy| copy.node == node)
    }

    /// Returns the only copy.
    pub fn last(&self, sample: SampleId) -> Option<&HeldCopy> {
        let mut copies = self.of(sample);
        copies.next().filter(|_| copies.next().is_none())
    }

    /// Returns where a node reads the sample: its own copy, or the oldest.
    pub fn nearest(&self, sample: SampleId, node: NodeId) -> Holder {
        let copy = self.at(sample, node).or_else(|| self.of(sample).next());
        copy.map_or(Holder::default(), |copy| Holder::new(copy.node, copy.tier))
    }

    pub fn insert(&mut self, sample: SampleId, copy: HeldCopy) {
        let first = &mut self.first[sample as usize];
        match first {
            None => *first = Some(copy),
            Some(_) => self.more.entry(sample).or_default().push(copy),
        }
    }

    pub fn remove(&mut self, sample: SampleId, node: NodeId) -> Option<HeldCopy> {
        let first = &mut self.first[sample as usize];
        let is_first = first.is_some_and(|copy| copy.node == node);
        let Some(more) = self.more.get_mut(&sample) else {
            return if is_first { first.take() } else { None };
        };
        let removed = if is_first {
            first.replace(more.remove(0))
        } else {
            let at = more.iter().position(|copy| copy.node == node)?;
            Some(more.remove(at))
        };
        if more.is_empty() {
            self.more.remove(&sample);
        }
        removed
    }
}
