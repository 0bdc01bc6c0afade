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

    /// A node has loaded its first `steps` steps. Notices may come late or twice. Whether this is
    /// new: a step may be able to end now.
    pub fn told(&mut self, node: NodeId, steps: u64) -> bool {
        let other = &mut self.nodes[node as usize];
        let new = steps > other.loaded;
        if new {
            *other = Other { loaded: steps, given_up: false };
        }
        new
    }

    /// Whether a step, counted from 0, that is loaded here may end. `starved`: how long the consumer
    /// has been waiting for it; zero while it has something to do.
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

    /// Whether somebody is not waited for any more: what he was to bring is not waited for either.
    pub fn has_given_up(&self) -> bool {
        self.nodes.iter().any(|other| other.given_up)
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
    fn one_who_is_an_epoch_behind_is_not_waited_for() {
        let mut pace = Pace::new(0, 2, 10, LONG);
        pace.told(1, 3);
        assert!(!pace.may_end(12, NOT, |_| true) && pace.may_end(13, NOT, |_| true));
    }
}
