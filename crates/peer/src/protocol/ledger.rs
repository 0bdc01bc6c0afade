//! How far the nodes are. What one epoch leaves for the next is in place when every node is done with
//! it: until then, a sample that is not here may be on its way.

use crate::NodeId;

/// Epochs that each node is done with, as far as it has told.
#[derive(Clone, Debug)]
pub struct Ledger {
    done: Vec<u32>,
}

impl Ledger {
    pub fn new(nodes: u32) -> Self {
        Self { done: vec![0; nodes as usize] }
    }

    /// A node is done with this epoch and all before it.
    pub fn done(&mut self, node: NodeId, epoch: u32) {
        let done = &mut self.done[node as usize];
        *done = (*done).max(epoch.saturating_add(1));
    }

    /// A node was started anew: it begins with the first epoch.
    pub fn restarted(&mut self, node: NodeId) {
        self.done[node as usize] = 0;
    }

    /// Whether this epoch is over on a node, and with it the use of all that waited for it there.
    pub fn is_over(&self, node: NodeId, epoch: u32) -> bool {
        self.done[node as usize] > epoch
    }

    /// Whether something that this epoch uses may still be on its way, from a node that takes part. One
    /// that is further behind than the epoch before that does not train with us: nobody waits for it.
    pub fn may_come(&self, epoch: u32, takes_part: impl Fn(NodeId) -> bool) -> bool {
        let behind = |done: u32| done < epoch && done.saturating_add(2) >= epoch;
        (0..).zip(&self.done).any(|(node, &done)| behind(done) && takes_part(node))
    }

    /// So many epochs are behind all nodes that take part, but for those that nobody waits for.
    pub fn all_done(&self, takes_part: impl Fn(NodeId) -> bool) -> u32 {
        let most = self.done.iter().copied().max().unwrap_or(0);
        let with_us = |node: NodeId, done: u32| takes_part(node) && done.saturating_add(2) >= most;
        let living = (0..).zip(&self.done).filter(|&(node, &done)| with_us(node, done));
        living.map(|(_, &done)| done).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_may_come_until_all_who_live_are_done_with_the_epoch_before() {
        let mut ledger = Ledger::new(3);
        let all = |_| true;
        assert!(!ledger.may_come(0, all), "nothing comes from before the first epoch");
        assert!(ledger.may_come(1, all));
        ledger.done(0, 0);
        ledger.done(1, 1);
        assert!(ledger.may_come(1, all) && !ledger.may_come(1, |node| node != 2));
        ledger.done(2, 0);
        assert!(!ledger.may_come(1, all) && ledger.may_come(2, all));
        assert_eq!((ledger.all_done(all), ledger.all_done(|node| node == 1)), (1, 2));
        ledger.done(1, 4);
        assert_eq!(ledger.all_done(all), 5, "the others are too far behind");
        assert!(ledger.may_come(3, |node| node == 0) && !ledger.may_come(4, |node| node == 0));
        assert!(ledger.is_over(1, 4) && !ledger.is_over(1, 5));
        ledger.restarted(1);
        assert!(!ledger.is_over(1, 0) && ledger.may_come(2, |node| node == 1));
    }
}
