//! The prefetchers of one node: what they are given, and what the node relays at the moment.
//!
//! A node learns what it fetches in an epoch when it begins to stage it. What it answers is thus a
//! function of its own events: an epoch may be planned early or late, on another thread.
//!
//! It begins to relay when the first step of the epoch is over. Until the epoch before is, a sample
//! may still be in its tier for that, and would be evicted with it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::fetches::ReadAhead;
use crate::job::Job;
use crate::policy::{Actions, Evict, Fetch, NodeId, TierId};
use crate::sampler::{SampleId, Step};

/// The tier that takes what a node relays.
const RELAY: TierId = 1;

/// A list of an epoch, and how much of it was given to a prefetcher.
#[derive(Debug)]
struct GivenList {
    epoch: u32,
    ahead: Arc<ReadAhead>,
    given: usize,
}

/// A sample that was given to the prefetcher for another node, and has not gone yet.
#[derive(Clone, Copy, Debug)]
struct RelayedSample {
    sample: SampleId,
    bytes: u64,
    until: Step,
    arrived: bool,
}

#[derive(Debug)]
pub struct NodeFetches {
    job: Arc<Job>,
    node: usize,
    /// The first and the last epoch that began.
    first: Option<u32>,
    begun: Option<u32>,
    /// By tier: of epochs that are not fetched to their end.
    held: Vec<VecDeque<GivenList>>,
    relayed: VecDeque<GivenList>,
    relaying: Vec<RelayedSample>,
    /// The last step that is over.
    over: Option<Step>,
}

impl NodeFetches {
    pub fn new(job: &Arc<Job>, node: NodeId) -> Self {
        Self {
            job: job.clone(),
            node: node as usize,
            first: None,
            begun: None,
            held: job.system.tiers.iter().map(|_| VecDeque::new()).collect(),
            relayed: VecDeque::new(),
            relaying: vec![],
            over: None,
        }
    }

    /// An epoch begins on this node, if it has not yet.
    pub fn begin(&mut self, epoch: u32, ahead: &Arc<ReadAhead>) {
        if self.begun >= Some(epoch) {
            return;
        }
        self.first.get_or_insert(epoch);
        self.begun = Some(epoch);
        if ahead.is_empty() {
            return;
        }
        for lists in self.held.iter_mut().chain([&mut self.relayed]) {
            lists.push_back(GivenList { epoch, ahead: ahead.clone(), given: 0 });
        }
    }

    /// Gives the prefetcher of a tier the next samples, at most `limit`. Those that are relayed have
    /// `space` bytes; the others stay in their spots, which have space for them from the epoch's
    /// beginning on.
    pub fn next(&mut self, tier: TierId, limit: usize, space: u64, actions: &mut Actions) {
        if tier == RELAY {
            self.next_relayed(limit, space, actions);
        }
        let spot = self.node * self.held.len() + usize::from(tier);
        let lists = &mut self.held[usize::from(tier)];
        while let Some(list) = lists.front_mut() {
            let rest = &list.ahead.held(spot)[list.given..];
            let next = &rest[..rest.len().min(limit - actions.fetches.len())];
            actions.fetches.extend(next.iter().map(|&sample| Fetch { sample }));
            list.given += next.len();
            if next.len() < rest.len() {
                return;
            }
            lists.pop_front();
        }
    }

    fn next_relayed(&mut self, limit: usize, space: u64, actions: &mut Actions) {
        let mut taken: u64 = self.relaying.iter().map(|relayed| relayed.bytes).sum();
        let mut first = None;
        while let Some(list) = self.relayed.front_mut() {
            let at = self.over.map(|step| step.epoch).max(self.first);
            if at < Some(list.epoch) {
                return;
            }
            let Some(&(iteration, sample)) = list.ahead.relayed(self.node).get(list.given) else {
                self.relayed.pop_front();
                continue;
            };
            let until = Step { epoch: list.epoch, iteration };
            if self.over < Some(until) {
                let bytes = self.job.sizes.get(sample);
                // A fetch arrives as a whole, so an iteration's does not wait for the next one's.
                let other = *first.get_or_insert(until) != until;
                if other || taken + bytes > space || actions.fetches.len() == limit {
                    return;
                }
                taken += bytes;
                self.relaying.push(RelayedSample { sample, bytes, until, arrived: false });
                actions.fetches.push(Fetch { sample });
            }
            // Else its user has found it elsewhere.
            list.given += 1;
        }
    }

    /// A fetch into a tier has arrived.
    pub fn fetched(&mut self, tier: TierId, sample: SampleId, actions: &mut Actions) {
        if tier != RELAY {
            return;
        }
        for relayed in self.relaying.iter_mut().filter(|relayed| relayed.sample == sample) {
            relayed.arrived = true;
        }
        self.evict_used(actions);
    }

    /// A step is over: what was relayed for it goes, or will when it arrives.
    pub fn end_step(&mut self, step: Step, actions: &mut Actions) {
        self.over = self.over.max(Some(step));
        self.evict_used(actions);
    }

    fn evict_used(&mut self, actions: &mut Actions) {
        let over = self.over;
        self.relaying.retain(|relayed| {
            let goes = relayed.arrived && over >= Some(relayed.until);
            if goes {
                actions.evictions.push(Evict { sample: relayed.sample, tier: RELAY });
            }
            !goes
        });
    }
}
