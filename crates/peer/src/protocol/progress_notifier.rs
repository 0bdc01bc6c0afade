//! The progress that other nodes still have to be told: steps loaded and epochs done.
//!
//! Only the latest numbers count, and one notice a peer is in flight at a time: later progress goes
//! with the next one. A failed notice is repeated when the peer may be asked again, and a peer that
//! has reconnected is told everything again.

use crate::NodeId;
use crate::message::Notice;

/// Steps loaded and epochs done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct News {
    loaded: u64,
    done: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    knows: News,
    /// What it will know once the notice in flight has arrived.
    under_way: Option<News>,
}

/// The progress of this node, and what each peer knows of it.
#[derive(Clone, Debug)]
pub struct ProgressNotifier {
    news: News,
    peers: Vec<Peer>,
}

impl ProgressNotifier {
    /// Creates the state at the start of a run.
    pub fn new(nodes: u32) -> Self {
        Self { news: News::default(), peers: vec![Peer::default(); nodes as usize] }
    }

    /// Records that the first `steps` steps are loaded here.
    pub fn loaded(&mut self, steps: u64) {
        self.news.loaded = self.news.loaded.max(steps);
    }

    /// Records that this epoch and all before it are done: staged here, and pushed to the nodes
    /// that keep them.
    pub fn done(&mut self, epoch: u32) {
        self.news.done = self.news.done.max(epoch.saturating_add(1));
    }

    /// Returns whether there is a notice to send to a peer now.
    pub fn has_news(&self, peer: NodeId) -> bool {
        let Peer { knows, under_way } = self.peers[peer as usize];
        under_way.is_none() && knows != self.news
    }

    /// Returns the next notice to a peer. [`Self::ended`] records its outcome.
    pub fn next(&mut self, peer: NodeId) -> Option<Notice> {
        if !self.has_news(peer) {
            return None;
        }
        let Peer { knows, under_way } = &mut self.peers[peer as usize];
        // Steps first: other nodes may be waiting for them.
        let (notice, will_know) = if knows.loaded < self.news.loaded {
            let steps = self.news.loaded;
            (Notice::Loaded { steps }, News { loaded: steps, ..*knows })
        } else {
            let epoch = self.news.done.checked_sub(1).filter(|_| knows.done < self.news.done)?;
            (Notice::EpochDone { epoch }, News { done: self.news.done, ..*knows })
        };
        *under_way = Some(will_know);
        Some(notice)
    }

    /// Records whether the notice in flight to a peer has arrived.
    pub fn ended(&mut self, peer: NodeId, heard: bool) {
        let peer = &mut self.peers[peer as usize];
        if let Some(news) = peer.under_way.take().filter(|_| heard) {
            peer.knows = news;
        }
    }

    /// Records that a peer may have been restarted, and knows nothing.
    pub fn forget(&mut self, peer: NodeId) {
        let peer = &mut self.peers[peer as usize];
        peer.knows = News::default();
        // The notice in flight may have reached the process before the restart.
        peer.under_way = peer.under_way.map(|_| News::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_notice_at_a_time_carries_the_latest_progress() {
        let mut progress_notifier = ProgressNotifier::new(2);
        assert_eq!(progress_notifier.next(1), None);
        progress_notifier.loaded(1);
        assert_eq!(progress_notifier.next(1), Some(Notice::Loaded { steps: 1 }));
        progress_notifier.loaded(2);
        progress_notifier.loaded(3);
        progress_notifier.done(0);
        assert_eq!(progress_notifier.next(1), None);
        progress_notifier.ended(1, true);
        assert_eq!(progress_notifier.next(1), Some(Notice::Loaded { steps: 3 }));
        progress_notifier.ended(1, false);
        assert_eq!(
            progress_notifier.next(1),
            Some(Notice::Loaded { steps: 3 }),
            "it was not heard"
        );
        progress_notifier.ended(1, true);
        assert_eq!(progress_notifier.next(1), Some(Notice::EpochDone { epoch: 0 }));
        progress_notifier.ended(1, true);
        assert_eq!(progress_notifier.next(1), None);
    }

    #[test]
    fn a_reconnected_peer_is_told_everything_again_even_with_a_notice_in_flight() {
        let mut progress_notifier = ProgressNotifier::new(2);
        progress_notifier.loaded(4);
        progress_notifier.next(1);
        progress_notifier.forget(1);
        progress_notifier.ended(1, true);
        assert_eq!(progress_notifier.next(1), Some(Notice::Loaded { steps: 4 }));
    }
}
