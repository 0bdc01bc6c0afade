//! What the others have yet to be told: how many steps are loaded here, how many epochs are done.
//!
//! Only the latest counts, and one notice a peer is under way at a time: what happens meanwhile goes
//! with the next one. A notice that fails is told again when the peer may be asked again, and one who
//! has connected anew is told everything once more.

use crate::NodeId;
use crate::transport::Notice;

/// Steps loaded and epochs done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct News {
    loaded: u64,
    done: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    knows: News,
    /// It will know this, if it hears what is under way.
    under_way: Option<News>,
}

#[derive(Clone, Debug)]
pub struct Herald {
    news: News,
    peers: Vec<Peer>,
}

impl Herald {
    pub fn new(nodes: u32) -> Self {
        Self { news: News::default(), peers: vec![Peer::default(); nodes as usize] }
    }

    /// The first so many steps are loaded here.
    pub fn loaded(&mut self, steps: u64) {
        self.news.loaded = self.news.loaded.max(steps);
    }

    /// This epoch and all before it are done: staged here, and what others keep of them is with them.
    pub fn done(&mut self, epoch: u32) {
        self.news.done = self.news.done.max(epoch.saturating_add(1));
    }

    /// Whether there is something to tell a peer now.
    pub fn has_news(&self, peer: NodeId) -> bool {
        let Peer { knows, under_way } = self.peers[peer as usize];
        under_way.is_none() && knows != self.news
    }

    /// Something that a peer does not know. [`Self::ended`] says what became of it.
    pub fn next(&mut self, peer: NodeId) -> Option<Notice> {
        if !self.has_news(peer) {
            return None;
        }
        let Peer { knows, under_way } = &mut self.peers[peer as usize];
        // Steps first: others may be waiting to end theirs.
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

    pub fn ended(&mut self, peer: NodeId, heard: bool) {
        let peer = &mut self.peers[peer as usize];
        if let Some(news) = peer.under_way.take().filter(|_| heard) {
            peer.knows = news;
        }
    }

    /// A peer may have been restarted: it knows nothing.
    pub fn forget(&mut self, peer: NodeId) {
        let peer = &mut self.peers[peer as usize];
        peer.knows = News::default();
        // What is under way may have reached the one who was there before.
        peer.under_way = peer.under_way.map(|_| News::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_is_told_one_notice_at_a_time() {
        let mut herald = Herald::new(2);
        assert_eq!(herald.next(1), None);
        herald.loaded(1);
        assert_eq!(herald.next(1), Some(Notice::Loaded { steps: 1 }));
        herald.loaded(2);
        herald.loaded(3);
        herald.done(0);
        assert_eq!(herald.next(1), None);
        herald.ended(1, true);
        assert_eq!(herald.next(1), Some(Notice::Loaded { steps: 3 }));
        herald.ended(1, false);
        assert_eq!(herald.next(1), Some(Notice::Loaded { steps: 3 }), "it was not heard");
        herald.ended(1, true);
        assert_eq!(herald.next(1), Some(Notice::EpochDone { epoch: 0 }));
        herald.ended(1, true);
        assert_eq!(herald.next(1), None);
    }

    #[test]
    fn one_who_connects_anew_is_told_everything_again_also_if_a_notice_was_under_way() {
        let mut herald = Herald::new(2);
        herald.loaded(4);
        herald.next(1);
        herald.forget(1);
        herald.ended(1, true);
        assert_eq!(herald.next(1), Some(Notice::Loaded { steps: 4 }));
    }
}
