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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::job;

    /// The prefetchers of the second of two nodes with two cache tiers; samples have ten bytes.
    struct Node(NodeFetches);

    impl Node {
        fn new() -> Self {
            Self(NodeFetches::new(&Arc::new(job(40, 2, 1, &[100, 100])), 1))
        }

        fn next(&mut self, tier: TierId, limit: usize, space: u64) -> Vec<SampleId> {
            let mut actions = Actions::default();
            self.0.next(tier, limit, space, &mut actions);
            assert!(actions.evictions.is_empty());
            actions.fetches.iter().map(|fetch| fetch.sample).collect()
        }

        fn evicted(&mut self, tell: impl FnOnce(&mut NodeFetches, &mut Actions)) -> Vec<SampleId> {
            let mut actions = Actions::default();
            tell(&mut self.0, &mut actions);
            assert!(actions.evictions.iter().all(|evict| evict.tier == RELAY));
            actions.evictions.iter().map(|evict| evict.sample).collect()
        }

        fn fetched(&mut self, tier: TierId, sample: SampleId) -> Vec<SampleId> {
            self.evicted(|fetches, actions| fetches.fetched(tier, sample, actions))
        }

        fn end_step(&mut self, epoch: u32, iteration: u32) -> Vec<SampleId> {
            self.evicted(|fetches, actions| fetches.end_step(Step { epoch, iteration }, actions))
        }
    }

    fn ahead(held: [&[SampleId]; 2], relayed: &[(u32, SampleId)]) -> Arc<ReadAhead> {
        let [ram, disk] = held.map(<[SampleId]>::to_vec);
        let held = vec![vec![], vec![30], vec![], vec![], ram, disk];
        Arc::new(ReadAhead::new(held, vec![vec![(0, 31)], relayed.to_vec()], 40))
    }

    #[test]
    fn relayed_samples_wait_for_space_and_go_when_their_step_is_over() {
        let mut node = Node::new();
        node.0.begin(0, &ahead([&[], &[]], &[(0, 1), (0, 2), (1, 3), (1, 4)]));
        assert_eq!(node.next(1, 8, 20), [1, 2]);
        assert!(node.next(1, 8, 20).is_empty());
        assert!(node.fetched(1, 1).is_empty());
        assert!(node.next(1, 8, 20).is_empty(), "its user has yet to take it");
        assert_eq!(node.end_step(0, 0), [1]);
        assert_eq!(node.next(1, 8, 20), [3]);
        assert_eq!(node.fetched(1, 2), [2], "it came late");
        assert_eq!(node.next(1, 8, 20), [4]);
        assert!(node.fetched(1, 3).is_empty());
        assert!(node.fetched(2, 4).is_empty());
        assert_eq!(node.end_step(0, 1), [3], "4 came into another tier");
        assert!(node.end_step(0, 2).is_empty(), "each goes once");
    }

    #[test]
    fn a_fetch_has_samples_of_one_iteration_and_no_more_than_asked_for() {
        let mut node = Node::new();
        node.0.begin(0, &ahead([&[], &[]], &[(0, 1), (0, 2), (1, 3), (2, 4), (2, 5)]));
        assert_eq!(node.next(1, 1, 100), [1]);
        assert_eq!(node.next(1, 8, 100), [2]);
        assert_eq!(node.next(1, 8, 100), [3]);
        assert_eq!(node.next(1, 8, 100), [4, 5]);
        assert!(node.next(1, 8, 100).is_empty());
    }

    #[test]
    fn an_epoch_is_relayed_once_its_first_step_is_over() {
        let mut node = Node::new();
        node.0.begin(0, &Arc::default());
        node.0.begin(1, &ahead([&[], &[]], &[(0, 1), (1, 2), (1, 3)]));
        assert!(node.next(1, 8, 100).is_empty());
        assert!(node.end_step(0, 9).is_empty());
        assert!(node.next(1, 8, 100).is_empty());
        node.end_step(1, 0);
        assert_eq!(node.next(1, 8, 100), [2, 3], "the step that uses 1 is over");
        // A run may begin with any epoch, which finds the tiers empty.
        let mut late = Node::new();
        late.0.begin(3, &ahead([&[], &[]], &[(0, 1)]));
        assert_eq!(late.next(1, 8, 100), [1]);
    }

    #[test]
    fn each_tier_gets_what_it_holds_after_what_is_relayed() {
        let mut node = Node::new();
        let first = ahead([&[10, 11, 12], &[20, 21]], &[(0, 1), (1, 2)]);
        node.0.begin(0, &first);
        node.0.begin(0, &first);
        assert_eq!(node.next(2, 8, 0), [20, 21]);
        assert_eq!(node.next(1, 3, 10), [1, 10, 11], "2 has no space");
        node.0.begin(1, &ahead([&[13], &[22]], &[]));
        assert_eq!(node.next(1, 3, 10), [12, 13]);
        assert_eq!(node.next(2, 8, 10), [22]);
        node.0.begin(0, &first);
        assert!(node.next(2, 8, 10).is_empty(), "it has begun before");
    }
}
