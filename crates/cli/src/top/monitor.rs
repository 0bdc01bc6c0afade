//! Computes rates from the vitals of nodes. The caller passes the time.
//!
//! Vitals are sums with the time of the node's own clock ([`Vitals`]). A rate is the difference of
//! a node's last two vitals by that clock, so a late or lost query does not change it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use belady_engine::metrics::{RankVitals, ThreadVitals, Vitals};

/// Nodes publish each second; a node is silent after this time.
const SILENT: Duration = Duration::from_secs(5);
/// The number of rates of the whole job that are kept: the width of a very wide terminal.
const REMEMBERED: usize = 512;
/// The number of splits that are kept: those of a minute.
const SPLITS: usize = 60;

/// The vitals of all nodes so far.
#[derive(Debug, Default)]
pub struct JobMonitor {
    /// The start of monitoring, in milliseconds since 1970.
    began: u64,
    nodes: Vec<NodeHistory>,
    /// Bytes per second of all nodes, the newest first.
    history: VecDeque<u64>,
    /// The threads of all nodes, the newest first.
    splits: VecDeque<ThreadVitals>,
}

#[derive(Clone, Debug, Default)]
struct NodeHistory {
    before: Option<Vitals>,
    last: Option<Vitals>,
    /// When the last vitals were received.
    received: Duration,
    /// The age of the last vitals when they were received, by the clocks of both machines. It is 0
    /// for all but the first vitals, which may have been published long before.
    age: Duration,
}

/// Whether a node publishes vitals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It has published nothing yet.
    Awaited,
    Up,
    /// It has published nothing for this time.
    Silent(Duration),
    /// It has published that it has ended.
    Ended,
}

/// One node at a moment; rates are in bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    pub rank: usize,
    pub host: String,
    pub state: NodeState,
    pub rate: f64,
    /// The share of the time that its consumers waited, on average.
    pub stall: f64,
    /// The share of iterations that were imbalanced: a rank waited for its batch and another did
    /// not.
    pub imbalanced: f64,
    /// Its ranks, if there are several.
    pub ranks: Vec<RankView>,
    /// Its threads, as they are assigned.
    pub threads: ThreadVitals,
    pub source: f64,
    pub peers: f64,
    pub ring: f64,
    pub tiers: Vec<TierView>,
    /// The number of other nodes.
    pub others: u64,
    /// The number of other nodes that it cannot reach.
    pub down: u64,
}

/// One of several ranks of a node at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankView {
    pub rank: u32,
    /// The share of the time that its consumer waited.
    pub stall: f64,
    /// The share of iterations that were imbalanced, and in which it was the slowest.
    pub straggling: f64,
    /// The share of the time that iterations lost to it.
    pub lost: f64,
    /// What may work for it at once.
    pub threads: ThreadVitals,
}

/// One tier of a node at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TierView {
    pub name: String,
    pub rate: f64,
    /// The used share of its capacity, from 0 to 1.
    pub fill: f64,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub enum TableRow<'a> {
    Node(&'a NodeView),
    Rank(&'a RankView),
}

/// The job at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobView {
    pub nodes: Vec<NodeView>,
    pub history: Vec<u64>,
    /// The threads of all nodes that were up, by duty.
    pub splits: Vec<ThreadVitals>,
}

impl JobView {
    /// Returns the rate of all nodes together.
    pub fn rate(&self) -> f64 {
        self.nodes.iter().map(|node| node.rate).sum()
    }

    /// Returns the largest stall of a node: the slowest node delays all others.
    pub fn stall(&self) -> f64 {
        self.nodes.iter().map(|node| node.stall).fold(0.0, f64::max)
    }

    /// Returns the lines of a table of all nodes, each with its ranks.
    pub fn rows(&self) -> Vec<TableRow<'_>> {
        let of_node = |node| {
            std::iter::once(TableRow::Node(node)).chain(node.ranks.iter().map(TableRow::Rank))
        };
        self.nodes.iter().flat_map(of_node).collect()
    }

    /// Returns the number of nodes that are up.
    pub fn up(&self) -> usize {
        self.nodes.iter().filter(|node| node.state == NodeState::Up).count()
    }

    /// Returns the threads of all nodes that are up, by duty.
    fn threads(&self) -> ThreadVitals {
        let up = self.nodes.iter().filter(|node| node.state == NodeState::Up);
        up.fold(ThreadVitals::default(), |sum, node| ThreadVitals {
            loading: sum.loading + node.threads.loading,
            transforming: sum.transforming + node.threads.transforming,
        })
    }
}

impl JobMonitor {
    /// Starts monitoring at `began`, in milliseconds since 1970.
    pub fn new(began: u64) -> Self {
        Self { began, ..Self::default() }
    }

    /// Records the vitals, by rank, that a query returned at this time.
    pub fn record(&mut self, now: Duration, vitals: Vec<Option<Vitals>>) {
        self.nodes.resize(vitals.len(), NodeHistory::default());
        let clock = self.began + now.as_millis() as u64;
        for (node, vitals) in self.nodes.iter_mut().zip(vitals) {
            if let Some(vitals) = vitals {
                node.record(now, clock, vitals);
            }
        }
        let view = self.view(now);
        self.history.truncate(REMEMBERED - 1);
        self.history.push_front(view.rate() as u64);
        self.splits.truncate(SPLITS - 1);
        self.splits.push_front(view.threads());
    }

    /// Returns the state of the job.
    pub fn view(&self, now: Duration) -> JobView {
        let nodes = self.nodes.iter().enumerate();
        let mut nodes: Vec<_> = nodes.map(|(rank, node)| node.view(rank, now)).collect();
        // The first rank of a node reports the engine that serves all of them.
        let served = nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| rank.rank as usize));
        let served: BTreeSet<usize> = served.collect();
        nodes.retain(|node| node.state != NodeState::Awaited || !served.contains(&node.rank));
        JobView {
            nodes,
            history: self.history.iter().rev().copied().collect(),
            splits: self.splits.iter().rev().copied().collect(),
        }
    }
}

impl NodeHistory {
    fn record(&mut self, now: Duration, clock: u64, vitals: Vitals) {
        if self.last.as_ref() == Some(&vitals) {
            return;
        }
        // Nodes of an older version send no time.
        let is_old = self.last.is_none() && vitals.unix_ms > 0;
        let age = if is_old { clock.saturating_sub(vitals.unix_ms) } else { 0 };
        (self.received, self.age) = (now, Duration::from_millis(age));
        // A restarted node counts from zero.
        self.before = self.last.replace(vitals).filter(|before| before.ms < self.ms());
    }

    fn ms(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.ms)
    }

    fn state(&self, now: Duration) -> NodeState {
        let silence = now.saturating_sub(self.received) + self.age;
        match &self.last {
            None => NodeState::Awaited,
            Some(last) if last.ended => NodeState::Ended,
            Some(_) if silence >= SILENT => NodeState::Silent(silence),
            Some(_) => NodeState::Up,
        }
    }

    fn view(&self, rank: usize, now: Duration) -> NodeView {
        let (state, unknown) = (self.state(now), Vitals::default());
        let last = self.last.as_ref().unwrap_or(&unknown);
        // The rate of a silent node is shown as 0.
        let before = self.before.as_ref().filter(|_| state == NodeState::Up).unwrap_or(last);
        let seconds = (last.ms - before.ms) as f64 / 1e3;
        let rate = |of: fn(&Vitals) -> u64| per_second(of(last), of(before), seconds);
        let tiers = last.tiers.iter().enumerate().map(|(at, tier)| TierView {
            name: tier.name.clone(),
            rate: per_second(tier.bytes, before.tiers.get(at).map_or(0, |b| b.bytes), seconds),
            fill: if tier.capacity == 0 { 0.0 } else { tier.used as f64 / tier.capacity as f64 },
        });
        let several = |_: &&RankVitals| last.ranks.len() > 1;
        let ranks = last.ranks.iter().filter(several).map(|rank| rank_view(rank, before, seconds));
        let ranks: Vec<RankView> = ranks.collect();
        let consumers = last.ranks.len().max(1) as f64;
        NodeView {
            rank,
            imbalanced: ranks.iter().map(|rank| rank.straggling).sum(),
            ranks,
            threads: last.threads,
            host: last.host.clone(),
            state,
            rate: rate(|vitals| vitals.delivered),
            stall: (rate(|vitals| vitals.blocked_ms) / 1e3 / consumers).min(1.0),
            source: rate(|vitals| vitals.source),
            peers: rate(|vitals| vitals.peers),
            ring: rate(|vitals| vitals.ring),
            tiers: tiers.collect(),
            others: last.others,
            down: last.down,
        }
    }
}

fn rank_view(last: &RankVitals, before: &Vitals, seconds: f64) -> RankView {
    let before = before.ranks.iter().find(|other| other.rank == last.rank);
    let before = before.copied().unwrap_or_default();
    let busy = |now, before| (per_second(now, before, seconds) / 1e3).min(1.0);
    let batches = last.batches.saturating_sub(before.batches).max(1) as f64;
    RankView {
        rank: last.rank,
        stall: busy(last.blocked_ms, before.blocked_ms),
        straggling: last.straggled.saturating_sub(before.straggled) as f64 / batches,
        lost: busy(last.straggling_ms, before.straggling_ms),
        threads: last.threads,
    }
}

fn per_second(now: u64, before: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
pub mod tests {
    use belady_engine::metrics::TierVitals;

    use super::*;

    /// Returns the vitals after this time at `mb` MB/s, a fifth of it from the source.
    pub fn vitals(seconds: u64, mb: u64) -> Vitals {
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
            ranks: vec![],
            threads: ThreadVitals { loading: 6, transforming: 2 },
            others: 3,
            down: 0,
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn rates_are_differences_by_the_nodes_own_clock() {
        let mut monitor = JobMonitor::default();
        monitor.record(at(100), vec![Some(vitals(5, 50)), None]);
        assert_eq!(monitor.view(at(100)).rate(), 0.0, "one value gives no rate");
        // A late query: the node has published three times since.
        monitor.record(at(104), vec![Some(vitals(8, 50)), None]);
        let JobView { nodes, history, splits } = monitor.view(at(104));
        let (node, missing) = (&nodes[0], &nodes[1]);
        assert_eq!((node.rate, node.source, node.peers), (50e6, 10e6, 30e6));
        assert_eq!((node.stall, node.state), (0.25, NodeState::Up));
        assert_eq!((node.tiers[0].rate, node.tiers[0].fill), (10e6, 0.75));
        assert_eq!((missing.state, missing.rate), (NodeState::Awaited, 0.0));
        assert_eq!(history, [0, 50_000_000]);
        assert_eq!(splits, [node.threads; 2]);
    }

    #[test]
    fn ranks_that_the_engine_of_their_node_reports_have_no_line_of_their_own() {
        let mut monitor = JobMonitor::default();
        let ranks = [0, 2].map(|rank| RankVitals { rank, ..RankVitals::default() });
        let node = Vitals { ranks: ranks.to_vec(), ..vitals(1, 10) };
        monitor.record(at(1), vec![Some(node.clone()), None, None]);
        let shown = |monitor: &JobMonitor| -> Vec<usize> {
            monitor.view(at(1)).nodes.iter().map(|node| node.rank).collect()
        };
        assert_eq!(shown(&monitor), [0, 1], "no engine reports rank 1");
        // It continues with an engine of its own.
        monitor.record(at(1), vec![Some(node), None, Some(vitals(1, 10))]);
        assert_eq!(shown(&monitor), [0, 1, 2]);
    }

    #[test]
    fn a_node_without_new_vitals_is_silent_until_it_publishes_again() {
        let mut monitor = JobMonitor::default();
        for second in 1..=8 {
            monitor.record(at(second), vec![Some(vitals(second.min(3), 10))]);
        }
        let node = &monitor.view(at(8)).nodes[0];
        assert_eq!((node.state, node.rate), (NodeState::Silent(at(5)), 0.0));
        assert_eq!(node.tiers[0].fill, 0.75, "the last fill is still shown");
        // Restarted: smaller sums do not give a negative rate.
        monitor.record(at(9), vec![Some(vitals(1, 10))]);
        let node = &monitor.view(at(9)).nodes[0];
        assert_eq!((node.state, node.rate), (NodeState::Up, 0.0));
        monitor.record(at(10), vec![Some(vitals(2, 10))]);
        assert_eq!(monitor.view(at(10)).nodes[0].rate, 10e6);
    }

    #[test]
    fn a_node_killed_before_the_first_query_is_silent_and_an_ended_one_is_not() {
        let began = 1_700_000_000_000;
        let mut monitor = JobMonitor::new(began);
        let killed = Vitals { unix_ms: began - 20_000, ..vitals(3, 10) };
        let ended = Vitals { ended: true, ..killed.clone() };
        // Its clock is a minute behind, but it continues to publish.
        let behind = |second| Vitals { unix_ms: began - 60_000, ..vitals(second, 10) };
        for second in [0, 2] {
            let all = [killed.clone(), ended.clone(), behind(second + 1)];
            monitor.record(at(second), all.into_iter().map(Some).collect());
        }
        let states: Vec<NodeState> =
            monitor.view(at(2)).nodes.iter().map(|node| node.state).collect();
        assert_eq!(states, [NodeState::Silent(at(22)), NodeState::Ended, NodeState::Up]);
    }

    #[test]
    fn the_stall_of_the_job_is_the_largest_of_its_nodes() {
        let mut monitor = JobMonitor::default();
        for second in [1, 2] {
            let idle = Vitals { blocked_ms: 0, ..vitals(second, 10) };
            monitor.record(at(second), vec![Some(idle), Some(vitals(second, 20))]);
        }
        let view = monitor.view(at(2));
        assert_eq!((view.rate(), view.stall(), view.up()), (30e6, 0.25, 2));
    }

    #[test]
    fn ranks_of_a_node_are_shown_with_what_iterations_lost_to_them() {
        let mut monitor = JobMonitor::default();
        for second in [2, 4] {
            let rank = |rank, blocked_ms, straggled, straggling_ms| {
                let (batches, blocked_ms) = (10 * second, second * blocked_ms);
                let (straggled, straggling_ms) = (second * straggled, second * straggling_ms);
                let threads = ThreadVitals { loading: 3, transforming: 1 };
                RankVitals { rank, batches, blocked_ms, straggled, straggling_ms, threads }
            };
            let ranks = vec![rank(4, 200, 0, 0), rank(5, 300, 2, 150)];
            let blocked_ms = second * 500;
            let several = Vitals { ranks, blocked_ms, ..vitals(second, 10) };
            let one = Vitals { ranks: vec![rank(0, 250, 0, 0)], ..vitals(second, 10) };
            monitor.record(at(second), vec![Some(several), Some(one)]);
        }
        let view = monitor.view(at(4));
        let [several, one] = &view.nodes[..] else { panic!("two nodes") };
        let threads = ThreadVitals { loading: 3, transforming: 1 };
        let expected = [
            RankView { rank: 4, stall: 0.2, straggling: 0.0, lost: 0.0, threads },
            RankView { rank: 5, stall: 0.3, straggling: 0.2, lost: 0.15, threads },
        ];
        assert_eq!(several.ranks, expected);
        assert_eq!((several.stall, several.imbalanced), (0.25, 0.2), "the mean of both");
        assert_eq!((one.stall, one.imbalanced, one.ranks.len()), (0.25, 0.0, 0));
        assert_eq!(view.rows().len(), 4);
    }

    #[test]
    fn the_split_is_that_of_all_nodes_that_are_up() {
        let mut monitor = JobMonitor::default();
        for second in 1..=9 {
            let threads = ThreadVitals { loading: 3, transforming: second };
            let moving = Vitals { threads, ..vitals(second, 10) };
            // The second node stops to publish after two seconds.
            monitor.record(at(second), vec![Some(moving), Some(vitals(second.min(2), 10)), None]);
        }
        let splits = monitor.view(at(9)).splits;
        let both: Vec<_> = splits.iter().map(|it| (it.loading, it.transforming)).collect();
        let alone = [(3, 7), (3, 8), (3, 9)];
        assert_eq!(both[..6], [(9, 3), (9, 4), (9, 5), (9, 6), (9, 7), (9, 8)]);
        assert_eq!(both[6..], alone, "silent after five seconds");
    }

    #[test]
    fn the_histories_are_bounded() {
        let mut monitor = JobMonitor::default();
        for second in 0..2000 {
            monitor.record(at(second), vec![Some(vitals(second, second))]);
        }
        let JobView { history, splits, .. } = monitor.view(at(2000));
        assert_eq!((history.len(), splits.len()), (REMEMBERED, SPLITS));
        assert!(history.is_sorted());
    }
}
