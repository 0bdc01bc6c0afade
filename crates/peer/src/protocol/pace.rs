//! When a step may end on this node: when every node has loaded it.
//!
//! Plans give room away in logical time: what a step keeps takes the room of what that step, or one
//! before it, has used for the last time *on any node*. A node that runs ahead would fill tiers with
//! what comes late in the order, before slower nodes have freed the room for it and have put there
//! what comes early. So each node tells how many steps it has loaded, and ends a step (lets go, keeps,
//! hands the batch out) when all others have loaded it too. Ranks that train together begin a step
//! together, so this costs them nothing but the time of a notice; loading ahead goes on all the while.
//!
//! Nobody waits for one who is down, who is an epoch behind (he has been restarted, or does not train
//! with us), or on whose account a consumer has waited for longer than the patience, until he is
//! heard of again with a step that is new.

use std::time::Duration;

use crate::NodeId;
use crate::protocol::seek::Patience;

#[derive(Clone, Copy, Debug, Default)]
struct Other {
    /// Steps that it has loaded, as far as it has told.
    loaded: u64,
    given_up: bool,
}

/// How far the nodes are, in steps since the run's first.
#[derive(Clone, Debug)]
pub struct Pace {
    me: NodeId,
    nodes: Vec<Other>,
    /// Who is further behind is not waited for.
    furthest: u64,
    patience: Duration,
}

impl Pace {
    /// An epoch has so many steps. A consumer waits for others at most for `patience`.
    pub fn new(me: NodeId, nodes: u32, steps_per_epoch: u64, patience: Duration) -> Self {
        let nodes = vec![Other::default(); nodes as usize];
        Self { me, nodes, furthest: steps_per_epoch.max(1), patience }
    }

    /// An epoch that begins has so many steps.
    pub fn set_epoch(&mut self, steps: u64) {
        self.furthest = steps.max(1);
    }

    /// A node has loaded its first `steps` steps; this one is told of itself too. Notices may come late
    /// or twice. Whether this is new: a step may be able to end now.
    pub fn told(&mut self, node: NodeId, steps: u64) -> bool {
        let other = &mut self.nodes[node as usize];
        let new = steps > other.loaded;
        if new {
            *other = Other { loaded: steps, given_up: false };
        }
        new
    }

    /// Whether a step, counted from 0, that is loaded here may end. `starved`: how long the consumer
    /// has been waiting for it since it was loaded; zero while it has something to do.
    pub fn may_end(
        &mut self,
        step: u64,
        starved: Duration,
        is_up: impl Fn(NodeId) -> bool,
    ) -> bool {
        let (me, furthest) = (self.me, self.furthest);
        let behind = |node: NodeId, other: &Other| {
            node != me
                && other.loaded <= step
                && other.loaded + furthest > step
                && !other.given_up
                && is_up(node)
        };
        if starved >= self.patience {
            for (node, other) in (0..).zip(&mut self.nodes) {
                other.given_up |= behind(node, other);
            }
            return true;
        }
        !(0..).zip(&self.nodes).any(|(node, other)| behind(node, other))
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
        first == 0 || self.loaded(self.me) >= first && self.may_end(first - 1, starved, is_up)
    }

    /// Whether somebody is not waited for any more.
    pub fn has_given_up(&self) -> bool {
        self.nodes.iter().any(|other| other.given_up)
    }

    /// How long a consumer waits for a sample that may still come: hardly at all if one who may be the
    /// one to bring it is not waited for any more; what others bring is under way.
    pub fn patience(&self) -> Patience {
        Patience(if self.has_given_up() { self.patience / 20 } else { self.patience })
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
    fn a_step_ends_when_all_who_live_have_loaded_it() {
        let mut pace = Pace::new(0, 3, 10, LONG);
        assert!(!pace.may_end(0, NOT, |_| true));
        assert!(pace.told(1, 1) && !pace.told(1, 1) && !pace.told(1, 0));
        assert!(!pace.may_end(0, NOT, |_| true) && pace.may_end(0, NOT, |node| node != 2));
        pace.told(2, 2);
        assert!(pace.may_end(0, NOT, |_| true) && !pace.may_end(1, NOT, |_| true));
    }

    #[test]
    fn a_consumer_waits_for_one_who_stands_still_only_once() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        assert!(!pace.may_end(0, LONG / 2, |_| true) && pace.may_end(0, LONG, |_| true));
        assert!(pace.has_given_up() && pace.may_end(1, NOT, |_| true));
        pace.told(1, 1);
        assert!(!pace.has_given_up() && !pace.may_end(1, NOT, |_| true));
    }

    #[test]
    fn an_epoch_begins_when_all_have_loaded_the_one_before() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        assert!(pace.may_begin(0, NOT, |_| true) && !pace.may_begin(10, NOT, |_| true));
        pace.told(0, 10);
        assert!(!pace.may_begin(10, NOT, |_| true) && pace.may_begin(10, NOT, |_| false));
        pace.told(1, 10);
        assert!(pace.may_begin(10, NOT, |_| true));
        assert!(!pace.may_begin(30, NOT, |_| true), "two epochs ahead of itself");
    }

    #[test]
    fn one_who_is_an_epoch_behind_is_not_waited_for() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        pace.told(1, 3);
        assert!(!pace.may_end(12, NOT, |_| true) && pace.may_end(13, NOT, |_| true));
    }
}
