//! Which peers may be asked. A peer that has failed is not asked for a while, longer each time, and
//! then one request is tried. A peer that has left is not asked until it restarts. A peer that
//! sends anything is up.

use std::time::Duration;

use crate::NodeId;

/// The pause after the first failure: a lost packet takes less, a restart more.
const SHORTEST: Duration = Duration::from_millis(250);
/// A peer that is gone for good costs one attempt in this time.
const LONGEST: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PeerState {
    #[default]
    Up,
    /// Not asked before `until`.
    Down { until: Duration, pause: Duration, outage: PeerOutage },
    /// It has announced the end of its job.
    Left,
}

/// An outage is reported once, and not before a retry has failed: a peer that ends its job closes
/// its connections, which may be noticed before its notice is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerOutage {
    Suspected,
    Retried,
    Reported,
}

/// The state of all peers.
#[derive(Clone, Debug)]
pub struct Health {
    peers: Vec<PeerState>,
}

impl Health {
    /// Creates the state in which all peers are up.
    pub fn new(nodes: u32) -> Self {
        Self { peers: vec![PeerState::Up; nodes as usize] }
    }

    /// Returns whether a peer may be asked now. If it is down, this is the one request that is
    /// tried; the next one, unless this one is answered, follows after a longer pause.
    pub fn may_ask(&mut self, peer: NodeId, now: Duration) -> bool {
        match &mut self.peers[peer as usize] {
            PeerState::Up => true,
            PeerState::Left => false,
            PeerState::Down { until, .. } if now < *until => false,
            PeerState::Down { until, pause, outage } => {
                *pause = (*pause * 2).min(LONGEST);
                *until = now + *pause;
                if *outage == PeerOutage::Suspected {
                    *outage = PeerOutage::Retried;
                }
                true
            }
        }
    }

    /// Returns whether a peer is up.
    pub fn is_up(&self, peer: NodeId) -> bool {
        self.peers[peer as usize] == PeerState::Up
    }

    /// Records that a peer has answered or sent something; returns whether it was down. Anything
    /// from a peer that has left was sent before it left, on another connection.
    pub fn is_there(&mut self, peer: NodeId) -> bool {
        let state = &mut self.peers[peer as usize];
        *state != PeerState::Left && std::mem::take(state) != PeerState::Up
    }

    /// Records that a peer was restarted.
    pub fn restarted(&mut self, peer: NodeId) {
        self.peers[peer as usize] = PeerState::Up;
    }

    /// Records that a call failed; returns whether to report it. An outage is reported once:
    /// immediately if it `is_certain`, otherwise when a retry has failed too.
    pub fn failed(&mut self, peer: NodeId, now: Duration, is_certain: bool) -> bool {
        let state = &mut self.peers[peer as usize];
        if *state == PeerState::Up {
            let outage = PeerOutage::Suspected;
            *state = PeerState::Down { until: now + SHORTEST, pause: SHORTEST, outage };
        }
        let PeerState::Down { outage, .. } = state else { return false };
        let is_news =
            *outage == PeerOutage::Retried || (is_certain && *outage == PeerOutage::Suspected);
        if is_news {
            *outage = PeerOutage::Reported;
        }
        is_news
    }

    /// Records that a peer has announced the end of its job.
    pub fn left(&mut self, peer: NodeId) {
        self.peers[peer as usize] = PeerState::Left;
    }

    /// Returns the peers that do not answer and have not left.
    pub fn down(&self) -> impl Iterator<Item = NodeId> + '_ {
        let is_down = |state: &PeerState| matches!(state, PeerState::Down { .. });
        (0..).zip(&self.peers).filter(move |(_, state)| is_down(state)).map(|(peer, _)| peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_dead_peer_is_tried_once_in_a_while_and_less_and_less() {
        let mut health = Health::new(3);
        assert!(health.may_ask(1, ms(0)) && health.failed(1, ms(0), true));
        assert!(!health.failed(1, ms(1), true), "another request that was under way");
        assert!(!health.may_ask(1, ms(249)) && health.may_ask(2, ms(249)));
        assert!(health.may_ask(1, ms(250)) && !health.may_ask(1, ms(250)), "one at a time");
        assert!(!health.failed(1, ms(260), true), "it was reported");
        assert!(!health.may_ask(1, ms(749)) && health.may_ask(1, ms(750)));
        assert_eq!(health.down().collect::<Vec<_>>(), [1]);
        assert!(health.is_there(1) && health.may_ask(1, ms(761)) && health.may_ask(1, ms(761)));
        assert!(!health.is_there(1) && health.down().next().is_none());
    }

    #[test]
    fn a_lost_request_does_not_keep_a_peer_down_for_ever() {
        let mut health = Health::new(2);
        health.failed(1, ms(0), true);
        assert!(health.may_ask(1, ms(250)) && !health.may_ask(1, ms(251)));
        assert!(health.may_ask(1, ms(750)));
    }

    #[test]
    fn a_peer_that_has_left_is_neither_up_nor_down_until_it_restarts() {
        let mut health = Health::new(2);
        health.left(1);
        assert!(!health.is_up(1) && health.down().next().is_none());
        assert!(!health.may_ask(1, LONGEST * 100), "it is not asked any more");
        assert!(!health.failed(1, ms(0), true), "a request that was under way says nothing new");
        assert!(!health.is_there(1) && !health.is_up(1), "it said that before it left");
        health.restarted(1);
        assert!(health.is_up(1) && health.may_ask(1, ms(0)));
    }

    #[test]
    fn a_closed_connection_is_reported_when_a_retry_has_failed_too() {
        let mut health = Health::new(2);
        assert!(!health.failed(1, ms(0), false) && !health.is_up(1));
        assert!(!health.failed(1, ms(1), false), "another request that was under way");
        assert!(health.may_ask(1, ms(250)) && health.failed(1, ms(251), false));
        assert!(health.may_ask(1, ms(750)) && !health.failed(1, ms(751), false), "once");
        assert!(health.is_there(1) && !health.failed(1, ms(800), false), "a new outage");
        assert!(health.failed(1, ms(801), true), "which is certain now");
    }

    #[test]
    fn a_peer_that_closes_and_then_says_that_it_leaves_is_never_reported() {
        let mut health = Health::new(2);
        assert!(!health.failed(1, ms(0), false));
        health.left(1);
        assert!(!health.may_ask(1, ms(250)) && !health.failed(1, ms(251), false));
    }

    #[test]
    fn the_pause_before_a_retry_is_limited() {
        let mut health = Health::new(2);
        let mut now = Duration::ZERO;
        for _ in 0..20 {
            while !health.may_ask(1, now) {
                now += ms(50);
            }
            health.failed(1, now, true);
        }
        assert!(!health.may_ask(1, now + ms(7999)) && health.may_ask(1, now + LONGEST));
    }
}
