//! Which peers may be asked: one that has failed is left alone for a while, longer each time, and then
//! one request is tried. One that has left is not asked any more, unless it begins anew. A peer that is heard
//! of is there.

use std::time::Duration;

use crate::NodeId;

/// Pause after the first failure: a restart takes longer, a lost packet does not.
const SHORTEST: Duration = Duration::from_millis(250);
/// A peer that is gone for good costs one attempt in this time.
const LONGEST: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Up,
    /// Not asked before `until`.
    Down { until: Duration, pause: Duration, outage: Outage },
    /// It has said that its job is done.
    Left,
}

/// An outage is reported once, and not before a retry has failed: a peer that has ended its job closes
/// its connections, which can be seen before its notice about that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    Suspected,
    Retried,
    Reported,
}

#[derive(Clone, Debug)]
pub struct Health {
    peers: Vec<State>,
}

impl Health {
    pub fn new(nodes: u32) -> Self {
        Self { peers: vec![State::Up; nodes as usize] }
    }

    /// Whether a peer may be asked now. If it was down, this is the one request that is tried; the
    /// next one, if nothing is heard of this one, after a longer pause.
    pub fn may_ask(&mut self, peer: NodeId, now: Duration) -> bool {
        match &mut self.peers[peer as usize] {
            State::Up => true,
            State::Left => false,
            State::Down { until, .. } if now < *until => false,
            State::Down { until, pause, outage } => {
                *pause = (*pause * 2).min(LONGEST);
                *until = now + *pause;
                if *outage == Outage::Suspected {
                    *outage = Outage::Retried;
                }
                true
            }
        }
    }

    pub fn is_up(&self, peer: NodeId) -> bool {
        self.peers[peer as usize] == State::Up
    }

    /// A peer has answered, or something was heard of it; whether it was down. What is heard of one that
    /// has left was said before it left, and came on another connection.
    pub fn is_there(&mut self, peer: NodeId) -> bool {
        let state = &mut self.peers[peer as usize];
        *state != State::Left && std::mem::take(state) != State::Up
    }

    /// A peer has begun anew.
    pub fn restarted(&mut self, peer: NodeId) {
        self.peers[peer as usize] = State::Up;
    }

    /// A peer could not be reached, or has not answered; whether this is to be reported, which an
    /// outage is once: at once if it `is_certain`, otherwise when a retry has failed too.
    pub fn failed(&mut self, peer: NodeId, now: Duration, is_certain: bool) -> bool {
        let state = &mut self.peers[peer as usize];
        if *state == State::Up {
            let outage = Outage::Suspected;
            *state = State::Down { until: now + SHORTEST, pause: SHORTEST, outage };
        }
        let State::Down { outage, .. } = state else { return false };
        let is_news = *outage == Outage::Retried || (is_certain && *outage == Outage::Suspected);
        if is_news {
            *outage = Outage::Reported;
        }
        is_news
    }

    /// A peer has said that its job is done.
    pub fn left(&mut self, peer: NodeId) {
        self.peers[peer as usize] = State::Left;
    }

    /// Those that do not answer, and have not left either.
    pub fn down(&self) -> impl Iterator<Item = NodeId> + '_ {
        let is_down = |state: &State| matches!(state, State::Down { .. });
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
    fn a_request_of_which_nothing_is_heard_does_not_keep_a_peer_down_for_ever() {
        let mut health = Health::new(2);
        health.failed(1, ms(0), true);
        assert!(health.may_ask(1, ms(250)) && !health.may_ask(1, ms(251)));
        assert!(health.may_ask(1, ms(750)));
    }

    #[test]
    fn one_that_has_left_is_neither_up_nor_down_until_it_begins_anew() {
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
    fn the_pause_has_an_end() {
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
