//! When a step may end on this node: when every node has loaded it.
//!
//! Plans give room away in logical time: what a step keeps takes the room of what that step, or one
//! before it, has used for the last time *on any node*. A node that runs ahead would fill tiers with
//! what comes late in the order, before slower nodes have freed the room for it and have put there
//! what comes early. So each node tells how many steps it has loaded, and ends a step (lets go, keeps,
//! hands the batch out) when all others have loaded it too. Ranks that train together begin a step
//! together, so this costs them nothing but the time of a notice; loading ahead goes on all the while.
//!
//! A node is *in step* until a step ends here that it has not loaded: because it is down, or because a
//! consumer has waited on its account for longer than the patience. From then on no step waits for it,
//! nothing is given to it, and what it was to bring is not waited for. It is in step again when it has
//! loaded all that the consumer here has asked for, so that waiting for it costs nothing. A node that is
//! more than an epoch ahead is not in step either: it is this one that was away.

use std::time::Duration;

use crate::NodeId;
use crate::protocol::seek::Patience;

#[derive(Clone, Copy, Debug, Default)]
struct Other {
    /// Steps that it has loaded, as far as it has told.
    loaded: u64,
    /// A step has ended here that it has not loaded, and it has not caught up since.
    passed: bool,
}

/// Whether a step may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A node in step has not loaded it.
    Wait,
    /// Every node that is there and in step has loaded it.
    End,
    /// The consumer has waited for too long: it ends without those that are behind.
    Hurry,
}

/// How far the nodes are, in steps since the run's first.
#[derive(Clone, Debug)]
pub struct Pace {
    me: NodeId,
    nodes: Vec<Other>,
    /// Steps of an epoch: a node that is further ahead is not in step.
    epoch: u64,
    patience: Duration,
}

impl Pace {
    /// An epoch has so many steps. A consumer waits for others at most for `patience`.
    pub fn new(me: NodeId, nodes: u32, steps_per_epoch: u64, patience: Duration) -> Self {
        let nodes = vec![Other::default(); nodes as usize];
        Self { me, nodes, epoch: steps_per_epoch.max(1), patience }
    }

    /// An epoch that begins has so many steps.
    pub fn set_epoch(&mut self, steps: u64) {
        self.epoch = steps.max(1);
    }

    /// A node has loaded its first `steps` steps; this one is told of itself too. Notices may come late
    /// or twice. `asked`: so many steps the consumer here has asked for. Returns whether this is new: a
    /// step may be able to end now.
    pub fn told(&mut self, node: NodeId, steps: u64, asked: u64) -> bool {
        let other = &mut self.nodes[node as usize];
        let new = steps > other.loaded;
        if new {
            let passed = other.passed && steps < asked;
            *other = Other { loaded: steps, passed };
        }
        new
    }

    /// So many steps were over before the run began, on every node.
    pub fn skip(&mut self, steps: u64) {
        for other in &mut self.nodes {
            other.loaded = other.loaded.max(steps);
        }
    }

    /// A node was started anew: it begins with the first step.
    pub fn restarted(&mut self, node: NodeId) {
        self.nodes[node as usize] = Other { loaded: 0, passed: true };
    }

    /// Whether a step, counted from 0, that is loaded here may end. `starved`: how long the consumer
    /// has been waiting for it since it was loaded; zero while it has something to do.
    pub fn may_end(
        &mut self,
        step: u64,
        starved: Duration,
        is_up: impl Fn(NodeId) -> bool,
    ) -> Turn {
        let me = self.me;
        let lacks = |node: NodeId, other: &Other| node != me && other.loaded <= step;
        let waits =
            |(node, other): (NodeId, &Other)| lacks(node, other) && !other.passed && is_up(node);
        let waits = (0..).zip(&self.nodes).any(waits);
        if waits && starved < self.patience {
            return Turn::Wait;
        }
        for (node, other) in (0..).zip(&mut self.nodes) {
            other.passed |= lacks(node, other);
        }
        if waits { Turn::Hurry } else { Turn::End }
    }

    /// Whether what caches hold for an epoch may be asked for, whose first step is this one: when all
    /// have loaded the epoch before, this node included. Until then a copy may be there for one who needs
    /// it earlier, and a last use would take it from him. `starved`: how long the consumer has been waiting
    /// for a batch on account of this.
    pub fn may_begin(
        &mut self,
        first: u64,
        starved: Duration,
        is_up: impl Fn(NodeId) -> bool,
    ) -> bool {
        first == 0
            || self.loaded(self.me) >= first
                && self.may_end(first - 1, starved, is_up) != Turn::Wait
    }

    /// Whether a node is in step: it is waited for, given to, and counted on.
    pub fn is_in_step(&self, node: NodeId) -> bool {
        let furthest = self.loaded(self.me).saturating_add(self.epoch);
        node == self.me || !self.nodes[node as usize].passed && self.loaded(node) <= furthest
    }

    /// How long a consumer waits for a sample that may still come: hardly at all if one who may be the
    /// one to bring it is not in step; what others bring is under way.
    pub fn patience(&self) -> Patience {
        let all = (0..self.nodes.len() as NodeId).all(|node| self.is_in_step(node));
        Patience(if all { self.patience } else { self.patience / 20 })
    }

    /// Steps that a node has loaded, as far as it has told.
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
    fn a_step_ends_when_all_who_are_there_have_loaded_it() {
        let mut pace = Pace::new(0, 3, 10, LONG);
        assert_eq!(pace.may_end(0, NOT, |_| true), Turn::Wait);
        assert!(pace.told(1, 1, 0) && !pace.told(1, 1, 0) && !pace.told(1, 0, 0));
        assert_eq!(pace.may_end(0, NOT, |_| true), Turn::Wait);
        pace.told(2, 2, 0);
        assert_eq!(pace.may_end(0, NOT, |_| true), Turn::End);
        assert_eq!(pace.may_end(1, NOT, |_| true), Turn::Wait);
        assert_eq!(pace.may_end(1, NOT, |node| node != 1), Turn::End);
    }

    #[test]
    fn a_consumer_waits_for_a_node_that_stands_still_only_once() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        assert_eq!(pace.may_end(0, LONG / 2, |_| true), Turn::Wait);
        assert!(pace.is_in_step(1));
        assert_eq!(pace.may_end(0, LONG, |_| true), Turn::Hurry);
        assert_eq!(pace.may_end(1, NOT, |_| true), Turn::End);
        assert!(!pace.is_in_step(1) && pace.is_in_step(0));
        assert_eq!(pace.patience(), Patience(Duration::from_millis(100)));
    }

    #[test]
    fn a_node_that_was_away_is_waited_for_again_when_it_has_what_the_consumer_asks_for() {
        let mut pace = Pace::new(0, 2, 100, LONG);
        for step in 0..20 {
            assert_eq!(pace.may_end(step, NOT, |_| false), Turn::End);
        }
        // The consumer is at its twelfth batch; it is told of ever new steps, all of them too old.
        for steps in 1..12 {
            assert!(pace.told(1, steps, 12));
            assert!(!pace.is_in_step(1), "{steps}");
            assert_eq!(pace.may_end(20, NOT, |_| true), Turn::End);
        }
        pace.told(1, 12, 12);
        assert!(pace.is_in_step(1));
        assert_eq!(pace.may_end(20, NOT, |_| true), Turn::Wait);
        assert_eq!(pace.patience(), Patience(LONG));
    }

    #[test]
    fn a_node_that_was_started_anew_is_not_waited_for() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        pace.told(1, 25, 20);
        pace.restarted(1);
        assert!(!pace.is_in_step(1) && pace.told(1, 3, 20));
        assert_eq!(pace.may_end(24, NOT, |_| true), Turn::End);
        assert!(!pace.is_in_step(1));
    }

    #[test]
    fn a_node_that_is_more_than_an_epoch_ahead_is_not_in_step() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        pace.told(1, 10, 0);
        assert!(pace.is_in_step(1));
        pace.told(1, 11, 0);
        assert!(!pace.is_in_step(1));
        pace.told(0, 1, 0);
        assert!(pace.is_in_step(1));
    }

    #[test]
    fn how_far_ahead_a_node_may_be_follows_the_length_of_the_epoch_that_begins() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        pace.told(1, 15, 0);
        assert!(!pace.is_in_step(1));
        pace.set_epoch(15);
        assert!(pace.is_in_step(1));
        pace.set_epoch(14);
        assert!(!pace.is_in_step(1));
    }

    #[test]
    fn steps_that_were_over_before_the_run_are_waited_for_on_no_node() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        pace.told(1, 7, 0);
        pace.skip(5);
        assert_eq!((pace.loaded(0), pace.loaded(1)), (5, 7), "no count goes back");
        pace.skip(9);
        assert_eq!(pace.may_end(8, NOT, |_| true), Turn::End);
        assert_eq!(pace.may_end(9, NOT, |_| true), Turn::Wait);
    }

    #[test]
    fn an_epoch_begins_when_all_have_loaded_the_one_before() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        assert!(pace.may_begin(0, NOT, |_| true) && !pace.may_begin(10, NOT, |_| true));
        pace.told(0, 10, 0);
        assert!(!pace.may_begin(10, NOT, |_| true));
        assert!(pace.clone().may_begin(10, NOT, |_| false));
        pace.told(1, 10, 0);
        assert!(pace.may_begin(10, NOT, |_| true));
        assert!(!pace.may_begin(30, NOT, |_| true), "two epochs ahead of itself");
    }
}
