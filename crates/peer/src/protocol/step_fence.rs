//! The step fence: a step ends on this node when every node has loaded it.
//!
//! Plans assign space in logical time: what a step keeps takes the space of what that step, or an
//! earlier one, used for the last time *on any node*. A node that runs ahead would fill tiers with
//! samples that are needed late, before slower nodes have freed the space and put samples there
//! that are needed early. So each node reports how many steps it has loaded, and ends a step
//! (evicts, keeps, delivers the batch) when all others have loaded it too. Ranks that train
//! together begin a step together, so the fence costs them no more than the time of a notice;
//! loading ahead goes on meanwhile.
//!
//! A node is *in step* until a step ends here that it has not loaded: because it is down, or
//! because a consumer has waited for it for longer than the patience. From then on no step waits
//! for it, nothing is pushed to it, and what it should push is not waited for. It is in step again
//! when it has loaded all that this node's consumer has asked for, so that waiting for it costs
//! nothing. A node that is more than an epoch ahead is not in step either: in that case it is this
//! node that was away.

use std::time::Duration;

use crate::NodeId;
use crate::protocol::retry::Patience;

#[derive(Clone, Copy, Debug, Default)]
struct Other {
    /// Steps that it has loaded, as far as it has reported.
    loaded: u64,
    /// A step has ended here that it has not loaded, and it has not caught up since.
    passed: bool,
}

/// Whether a step may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceDecision {
    /// A node in step has not loaded it.
    Wait,
    /// Every node that is up and in step has loaded it.
    End,
    /// The consumer has waited too long: the step ends without the nodes that are behind.
    Hurry,
}

/// The steps that nodes have loaded since the start of the run.
#[derive(Clone, Debug)]
pub struct StepFence {
    me: NodeId,
    nodes: Vec<Other>,
    /// Steps of an epoch: a node that is further ahead is not in step.
    epoch: u64,
    patience: Duration,
}

impl StepFence {
    /// Creates the fence of a run. A consumer waits for other nodes at most for `patience`.
    pub fn new(me: NodeId, nodes: u32, steps_per_epoch: u64, patience: Duration) -> Self {
        let nodes = vec![Other::default(); nodes as usize];
        Self { me, nodes, epoch: steps_per_epoch.max(1), patience }
    }

    /// Sets the number of steps of the epoch that begins.
    pub fn set_epoch(&mut self, steps: u64) {
        self.epoch = steps.max(1);
    }

    /// Records that a node, perhaps this one, has loaded its first `steps` steps. Notices may
    /// arrive late or twice. `asked` is the number of steps that this node's consumer has asked
    /// for. Returns whether this is new, so that a step may be able to end now.
    pub fn told(&mut self, node: NodeId, steps: u64, asked: u64) -> bool {
        let other = &mut self.nodes[node as usize];
        let new = steps > other.loaded;
        if new {
            let passed = other.passed && steps < asked;
            *other = Other { loaded: steps, passed };
        }
        new
    }

    /// Records that the first `steps` steps were over on every node before the run began.
    pub fn skip(&mut self, steps: u64) {
        for other in &mut self.nodes {
            other.loaded = other.loaded.max(steps);
        }
    }

    /// Records that a node was restarted: it begins with the first step.
    pub fn restarted(&mut self, node: NodeId) {
        self.nodes[node as usize] = Other { loaded: 0, passed: true };
    }

    /// Returns whether a step, counted from 0, that is loaded here may end. `starved` says how long
    /// the consumer has been waiting for it since it was loaded; zero while it is not starving.
    pub fn may_end(
        &mut self,
        step: u64,
        starved: Duration,
        is_up: impl Fn(NodeId) -> bool,
    ) -> FenceDecision {
        let me = self.me;
        let lacks = |node: NodeId, other: &Other| node != me && other.loaded <= step;
        let waits =
            |(node, other): (NodeId, &Other)| lacks(node, other) && !other.passed && is_up(node);
        let waits = (0..).zip(&self.nodes).any(waits);
        if waits && starved < self.patience {
            return FenceDecision::Wait;
        }
        for (node, other) in (0..).zip(&mut self.nodes) {
            other.passed |= lacks(node, other);
        }
        if waits { FenceDecision::Hurry } else { FenceDecision::End }
    }

    /// Returns whether this node may ask for the cached samples of the epoch whose first step is
    /// `first`: when all nodes, this one included, have loaded the epoch before. Until then a copy
    /// may be there for a node that needs it earlier, and a last use would release it. `starved`
    /// says how long the consumer has been waiting for a batch because of this.
    pub fn may_begin(
        &mut self,
        first: u64,
        starved: Duration,
        is_up: impl Fn(NodeId) -> bool,
    ) -> bool {
        first == 0
            || self.loaded(self.me) >= first
                && self.may_end(first - 1, starved, is_up) != FenceDecision::Wait
    }

    /// Returns whether a node is in step: others wait for it, push to it and rely on it.
    pub fn is_in_step(&self, node: NodeId) -> bool {
        let furthest = self.loaded(self.me).saturating_add(self.epoch);
        node == self.me || !self.nodes[node as usize].passed && self.loaded(node) <= furthest
    }

    /// Returns how long a consumer waits for a sample that may still arrive. That is short if a
    /// node that might push it is not in step; what the others push is in flight.
    pub fn patience(&self) -> Patience {
        let all = (0..self.nodes.len() as NodeId).all(|node| self.is_in_step(node));
        Patience(if all { self.patience } else { self.patience / 20 })
    }

    /// Returns the steps that a node has loaded, as far as it has reported.
    pub fn loaded(&self, node: NodeId) -> u64 {
        self.nodes[node as usize].loaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(2);

    #[test]
    fn a_step_ends_when_all_nodes_that_are_up_have_loaded_it() {
        let mut fence = StepFence::new(0, 3, 10, LONG);
        assert_eq!(fence.may_end(0, NOT, |_| true), FenceDecision::Wait);
        assert!(fence.told(1, 1, 0) && !fence.told(1, 1, 0) && !fence.told(1, 0, 0));
        assert_eq!(fence.may_end(0, NOT, |_| true), FenceDecision::Wait);
        fence.told(2, 2, 0);
        assert_eq!(fence.may_end(0, NOT, |_| true), FenceDecision::End);
        assert_eq!(fence.may_end(1, NOT, |_| true), FenceDecision::Wait);
        assert_eq!(fence.may_end(1, NOT, |node| node != 1), FenceDecision::End);
    }

    #[test]
    fn a_consumer_waits_for_a_node_that_stands_still_only_once() {
        let mut fence = StepFence::new(0, 2, 10, LONG);
        assert_eq!(fence.may_end(0, LONG / 2, |_| true), FenceDecision::Wait);
        assert!(fence.is_in_step(1));
        assert_eq!(fence.may_end(0, LONG, |_| true), FenceDecision::Hurry);
        assert_eq!(fence.may_end(1, NOT, |_| true), FenceDecision::End);
        assert!(!fence.is_in_step(1) && fence.is_in_step(0));
        assert_eq!(fence.patience(), Patience(Duration::from_millis(100)));
    }

    #[test]
    fn a_node_that_was_away_is_waited_for_again_when_it_has_what_the_consumer_asks_for() {
        let mut fence = StepFence::new(0, 2, 100, LONG);
        for step in 0..20 {
            assert_eq!(fence.may_end(step, NOT, |_| false), FenceDecision::End);
        }
        // The consumer is at its twelfth batch; the node reports new steps, all of them too old.
        for steps in 1..12 {
            assert!(fence.told(1, steps, 12));
            assert!(!fence.is_in_step(1), "{steps}");
            assert_eq!(fence.may_end(20, NOT, |_| true), FenceDecision::End);
        }
        fence.told(1, 12, 12);
        assert!(fence.is_in_step(1));
        assert_eq!(fence.may_end(20, NOT, |_| true), FenceDecision::Wait);
        assert_eq!(fence.patience(), Patience(LONG));
    }

    #[test]
    fn a_restarted_node_is_not_waited_for() {
        let mut fence = StepFence::new(0, 2, 10, LONG);
        fence.told(1, 25, 20);
        fence.restarted(1);
        assert!(!fence.is_in_step(1) && fence.told(1, 3, 20));
        assert_eq!(fence.may_end(24, NOT, |_| true), FenceDecision::End);
        assert!(!fence.is_in_step(1));
    }

    #[test]
    fn a_node_that_is_more_than_an_epoch_ahead_is_not_in_step() {
        let mut fence = StepFence::new(0, 2, 10, LONG);
        fence.told(1, 10, 0);
        assert!(fence.is_in_step(1));
        fence.told(1, 11, 0);
        assert!(!fence.is_in_step(1));
        fence.told(0, 1, 0);
        assert!(fence.is_in_step(1));
    }

    #[test]
    fn how_far_ahead_a_node_may_be_follows_the_length_of_the_epoch_that_begins() {
        let mut fence = StepFence::new(0, 2, 10, LONG);
        fence.told(1, 15, 0);
        assert!(!fence.is_in_step(1));
        fence.set_epoch(15);
        assert!(fence.is_in_step(1));
        fence.set_epoch(14);
        assert!(!fence.is_in_step(1));
    }

    #[test]
    fn steps_before_the_start_of_a_run_are_waited_for_on_no_node() {
        let mut fence = StepFence::new(0, 2, 10, LONG);
        fence.told(1, 7, 0);
        fence.skip(5);
        assert_eq!((fence.loaded(0), fence.loaded(1)), (5, 7), "no count goes back");
        fence.skip(9);
        assert_eq!(fence.may_end(8, NOT, |_| true), FenceDecision::End);
        assert_eq!(fence.may_end(9, NOT, |_| true), FenceDecision::Wait);
    }

    #[test]
    fn an_epoch_begins_when_all_have_loaded_the_one_before() {
        let mut fence = StepFence::new(0, 2, 10, LONG);
        assert!(fence.may_begin(0, NOT, |_| true) && !fence.may_begin(10, NOT, |_| true));
        fence.told(0, 10, 0);
        assert!(!fence.may_begin(10, NOT, |_| true));
        assert!(fence.clone().may_begin(10, NOT, |_| false));
        fence.told(1, 10, 0);
        assert!(fence.may_begin(10, NOT, |_| true));
        assert!(!fence.may_begin(30, NOT, |_| true), "two epochs ahead of itself");
    }
}
