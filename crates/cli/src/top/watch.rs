//! From what nodes tell to what is shown. Time is passed in.
//!
//! Nodes tell sums, with a clock of their own ([`Vitals`]). A rate is the difference of the last two
//! things that a node told, by that clock: neither a late question nor a lost one changes it.

use std::collections::VecDeque;
use std::time::Duration;

use belady_engine::metrics::Vitals;

/// Nodes tell something each second; one that has missed so many is not well.
const SILENT: Duration = Duration::from_secs(5);
/// Rates of the whole job that are remembered: as many as the widest terminal shows.
const REMEMBERED: usize = 512;

/// All that was told so far.
#[derive(Debug, Default)]
pub struct Watch {
    /// When it began, in milliseconds since 1970.
    began: u64,
    nodes: Vec<Node>,
    /// Bytes a second of all nodes, the oldest first.
    history: VecDeque<u64>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    before: Option<Vitals>,
    last: Option<Vitals>,
    /// When it told something new.
    heard: Duration,
    /// How old that was, by the clocks of both machines. Told for the first thing only, which may have been
    /// there for long; what comes while it is watched is new.
    age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has told nothing yet.
    Awaited,
    Up,
    /// It has told nothing for so long.
    Silent(Duration),
    /// It has said that it is done.
    Ended,
}

/// One node at a moment; rates in bytes a second.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    pub rank: usize,
    pub host: String,
    pub state: State,
    pub rate: f64,
    /// Share of the time that its consumers waited.
    pub stall: f64,
    pub source: f64,
    pub peers: f64,
    pub ring: f64,
    pub tiers: Vec<TierView>,
    /// Other nodes, and those of them that it cannot reach.
    pub others: u64,
    pub down: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TierView {
    pub name: String,
    pub rate: f64,
    /// How full it is, from 0 to 1.
    pub fill: f64,
}

/// The job at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    pub nodes: Vec<NodeView>,
    pub history: Vec<u64>,
}

impl Picture {
    pub fn rate(&self) -> f64 {
        self.nodes.iter().map(|node| node.rate).sum()
    }

    /// The node that waits most holds up all others.
    pub fn stall(&self) -> f64 {
        self.nodes.iter().map(|node| node.stall).fold(0.0, f64::max)
    }

    pub fn up(&self) -> usize {
        self.nodes.iter().filter(|node| node.state == State::Up).count()
    }
}

impl Watch {
    /// `began`: when that is, in milliseconds since 1970.
    pub fn new(began: u64) -> Self {
        Self { began, ..Self::default() }
    }

    /// What the meeting point had at this time, by rank.
    pub fn hear(&mut self, now: Duration, told: Vec<Option<Vitals>>) {
        self.nodes.resize(told.len(), Node::default());
        let clock = self.began + now.as_millis() as u64;
        for (node, told) in self.nodes.iter_mut().zip(told) {
            if let Some(told) = told {
                node.hear(now, clock, told);
            }
        }
        let rate = self.picture(now).rate() as u64;
        self.history.truncate(REMEMBERED - 1);
        self.history.push_front(rate);
    }

    pub fn picture(&self, now: Duration) -> Picture {
        let nodes = self.nodes.iter().enumerate();
        Picture {
            nodes: nodes.map(|(rank, node)| node.view(rank, now)).collect(),
            history: self.history.iter().rev().copied().collect(),
        }
    }
}

impl Node {
    fn hear(&mut self, now: Duration, clock: u64, told: Vitals) {
        if self.last.as_ref() == Some(&told) {
            return;
        }
        // A node of an older version does not say when.
        let is_old = self.last.is_none() && told.unix_ms > 0;
        let age = if is_old { clock.saturating_sub(told.unix_ms) } else { 0 };
        (self.heard, self.age) = (now, Duration::from_millis(age));
        // One that was started again counts from the beginning.
        self.before = self.last.replace(told).filter(|before| before.ms < self.ms());
    }

    fn ms(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.ms)
    }

    fn state(&self, now: Duration) -> State {
        let silence = now.saturating_sub(self.heard) + self.age;
        match &self.last {
            None => State::Awaited,
            Some(last) if last.ended => State::Ended,
            Some(_) if silence >= SILENT => State::Silent(silence),
            Some(_) => State::Up,
        }
    }

    fn view(&self, rank: usize, now: Duration) -> NodeView {
        let (state, unknown) = (self.state(now), Vitals::default());
        let last = self.last.as_ref().unwrap_or(&unknown);
        // One that is silent does nothing, as far as anybody knows.
        let before = self.before.as_ref().filter(|_| state == State::Up).unwrap_or(last);
        let seconds = (last.ms - before.ms) as f64 / 1e3;
        let rate = |of: fn(&Vitals) -> u64| per_second(of(last), of(before), seconds);
        let tiers = last.tiers.iter().enumerate().map(|(at, tier)| TierView {
            name: tier.name.clone(),
            rate: per_second(tier.bytes, before.tiers.get(at).map_or(0, |b| b.bytes), seconds),
            fill: if tier.capacity == 0 { 0.0 } else { tier.used as f64 / tier.capacity as f64 },
        });
        NodeView {
            rank,
            host: last.host.clone(),
            state,
            rate: rate(|told| told.delivered),
            stall: (rate(|told| told.blocked_ms) / 1e3).min(1.0),
            source: rate(|told| told.source),
            peers: rate(|told| told.peers),
            ring: rate(|told| told.ring),
            tiers: tiers.collect(),
            others: last.others,
            down: last.down,
        }
    }
}

fn per_second(now: u64, before: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
pub mod tests {
    use belady_engine::metrics::TierVitals;

    use super::*;

    /// So many seconds after its start, at a rate of `mb` MB/s of which the source gives a fifth.
    pub fn told(seconds: u64, mb: u64) -> Vitals {
        let bytes = seconds * mb * 1_000_000;
        let ram =
            TierVitals { name: "ram".into(), bytes: bytes / 5, used: 3 << 30, capacity: 4 << 30 };
        Vitals {
            host: "node".into(),
            ms: seconds * 1000,
            unix_ms: 0,
            ended: false,
            delivered: bytes,
            blocked_ms: seconds * 250,
            source: bytes / 5,
            ring: 0,
            peers: bytes * 3 / 5,
            tiers: vec![ram],
            others: 3,
            down: 0,
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn rates_are_differences_by_the_node_s_own_clock() {
        let mut watch = Watch::default();
        watch.hear(at(100), vec![Some(told(5, 50)), None]);
        assert_eq!(watch.picture(at(100)).rate(), 0.0, "one telling is no rate");
        // Asked late: the node has told three times meanwhile.
        watch.hear(at(104), vec![Some(told(8, 50)), None]);
        let Picture { nodes, history } = watch.picture(at(104));
        let (node, missing) = (&nodes[0], &nodes[1]);
        assert_eq!((node.rate, node.source, node.peers), (50e6, 10e6, 30e6));
        assert_eq!((node.stall, node.state), (0.25, State::Up));
        assert_eq!((node.tiers[0].rate, node.tiers[0].fill), (10e6, 0.75));
        assert_eq!((missing.state, missing.rate), (State::Awaited, 0.0));
        assert_eq!(history, [0, 50_000_000]);
    }

    #[test]
    fn a_node_that_tells_nothing_new_falls_silent_and_comes_back() {
        let mut watch = Watch::default();
        for second in 1..=8 {
            watch.hear(at(second), vec![Some(told(second.min(3), 10))]);
        }
        let node = &watch.picture(at(8)).nodes[0];
        assert_eq!((node.state, node.rate), (State::Silent(at(5)), 0.0));
        assert_eq!(node.tiers[0].fill, 0.75, "what it had is still shown");
        // Started again: smaller sums are no rate below zero.
        watch.hear(at(9), vec![Some(told(1, 10))]);
        let node = &watch.picture(at(9)).nodes[0];
        assert_eq!((node.state, node.rate), (State::Up, 0.0));
        watch.hear(at(10), vec![Some(told(2, 10))]);
        assert_eq!(watch.picture(at(10)).nodes[0].rate, 10e6);
    }

    #[test]
    fn a_node_that_was_killed_before_the_first_look_is_silent_and_one_that_has_ended_is_not() {
        let began = 1_700_000_000_000;
        let mut watch = Watch::new(began);
        let killed = Vitals { unix_ms: began - 20_000, ..told(3, 10) };
        let ended = Vitals { ended: true, ..killed.clone() };
        // Its clock is a minute behind, but it goes on telling.
        let behind = |second| Vitals { unix_ms: began - 60_000, ..told(second, 10) };
        for second in [0, 2] {
            let all = [killed.clone(), ended.clone(), behind(second + 1)];
            watch.hear(at(second), all.into_iter().map(Some).collect());
        }
        let states: Vec<State> = watch.picture(at(2)).nodes.iter().map(|node| node.state).collect();
        assert_eq!(states, [State::Silent(at(22)), State::Ended, State::Up]);
    }

    #[test]
    fn the_job_waits_as_long_as_the_node_that_waits_most() {
        let mut watch = Watch::default();
        for second in [1, 2] {
            let idle = Vitals { blocked_ms: 0, ..told(second, 10) };
            watch.hear(at(second), vec![Some(idle), Some(told(second, 20))]);
        }
        let picture = watch.picture(at(2));
        assert_eq!((picture.rate(), picture.stall(), picture.up()), (30e6, 0.25, 2));
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let mut watch = Watch::default();
        for second in 0..2000 {
            watch.hear(at(second), vec![Some(told(second, second))]);
        }
        let history = watch.picture(at(2000)).history;
        assert_eq!(history.len(), REMEMBERED);
        assert!(history.is_sorted());
    }
}
