//! The epochs that each node has finished. What an epoch leaves for the next is in place when every
//! node has finished it; until then, a missing sample may still arrive.

use crate::NodeId;

/// The epochs that each node has finished, as far as it has reported.
#[derive(Clone, Debug)]
pub struct FinishedEpochs {
    done: Vec<u32>,
}

impl FinishedEpochs {
    /// Creates the state at the start of a run.
    pub fn new(nodes: u32) -> Self {
        Self { done: vec![0; nodes as usize] }
    }

    /// Records that a node has finished this epoch and all before it.
    pub fn done(&mut self, node: NodeId, epoch: u32) {
        let done = &mut self.done[node as usize];
        *done = (*done).max(epoch.saturating_add(1));
    }

    /// Records that a node was restarted: it begins with the first epoch.
    pub fn restarted(&mut self, node: NodeId) {
        self.done[node as usize] = 0;
    }

    /// Returns whether a node has finished this epoch, and so no longer needs what waited for it.
    pub fn is_over(&self, node: NodeId, epoch: u32) -> bool {
        self.done[node as usize] > epoch
    }

    /// Returns whether a sample that this epoch uses may still arrive from a participating node. A
    /// node that is two epochs behind does not train along, and is not waited for.
    pub fn may_come(&self, epoch: u32, takes_part: impl Fn(NodeId) -> bool) -> bool {
        let behind = |done: u32| done < epoch && done.saturating_add(2) >= epoch;
        (0..).zip(&self.done).any(|(node, &done)| behind(done) && takes_part(node))
    }

    /// Returns how many epochs all participating nodes have finished, apart from those that are not
    /// waited for.
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
    fn a_missing_sample_may_arrive_until_all_running_nodes_finished_the_epoch_before() {
        let mut epoch_progress = FinishedEpochs::new(3);
        let all = |_| true;
        assert!(!epoch_progress.may_come(0, all), "nothing comes from before the first epoch");
        assert!(epoch_progress.may_come(1, all));
        epoch_progress.done(0, 0);
        epoch_progress.done(1, 1);
        assert!(epoch_progress.may_come(1, all) && !epoch_progress.may_come(1, |node| node != 2));
        epoch_progress.done(2, 0);
        assert!(!epoch_progress.may_come(1, all) && epoch_progress.may_come(2, all));
        assert_eq!(
            (epoch_progress.all_done(all), epoch_progress.all_done(|node| node == 1)),
            (1, 2)
        );
        epoch_progress.done(1, 4);
        assert_eq!(epoch_progress.all_done(all), 5, "the others are too far behind");
        assert!(
            epoch_progress.may_come(3, |node| node == 0)
                && !epoch_progress.may_come(4, |node| node == 0)
        );
        assert!(epoch_progress.is_over(1, 4) && !epoch_progress.is_over(1, 5));
        epoch_progress.restarted(1);
        assert!(!epoch_progress.is_over(1, 0) && epoch_progress.may_come(2, |node| node == 1));
    }
}
