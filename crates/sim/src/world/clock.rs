//! The shared source's service clock.
//!
//! All readers of the source slow down and speed up together as γ changes. Instead
//! of rescheduling every transfer at each change, the clock counts *service*: how
//! many bytes a reader has received since the start. A transfer that needs b bytes
//! ends when the service count has grown by b, independently of γ in between. Only the
//! conversion of service into seconds depends on γ, and only the next event needs
//! it.
//!
//! Two levels: the global count grows at the rate of one node; a node's own count
//! divides that among its reading threads. A node is touched only by its own
//! events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use belady_control::model::{Readers, Sharing, SourceModel};

/// An f64 that can be a heap key; never NaN.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct HeapKey(pub f64);

impl Eq for HeapKey {}

#[allow(clippy::derive_ord_xor_partial_ord)]
impl Ord for HeapKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    /// The node's service count at which it ends.
    ends: f64,
    server: u32,
    threads: f64,
}

#[derive(Clone, Debug, Default)]
struct NodeClock {
    served: f64,
    /// The global count when `served` was last brought up to date.
    seen: f64,
    threads: f64,
    transfers: Vec<Transfer>,
    /// Increments when the node's next end changes; older heap entries are stale.
    stamp: u32,
}

#[derive(Debug)]
pub struct SourceClock {
    /// Service rate by γ; index 0 unused.
    rates: Vec<f64>,
    /// The highest total rate of all readers.
    best: f64,
    sharing: Sharing,
    readers: Readers,
    now: f64,
    /// What was read so far, in seconds at the best rate.
    busy: f64,
    served: f64,
    nodes_reading: u32,
    threads_reading: f64,
    nodes: Vec<NodeClock>,
    /// Global service count at which a node's next transfer ends.
    ends: BinaryHeap<Reverse<(HeapKey, u32, u32)>>,
}

impl SourceClock {
    pub fn new(source: &SourceModel, nodes: u32, threads_per_node: u32) -> Self {
        let most = match source.readers {
            Readers::Nodes => nodes,
            Readers::Threads => nodes * threads_per_node,
        };
        // The link limits a node, and where threads are counted each gets its part of it;
        // the papers let it limit each thread.
        let cap = match (source.sharing, source.readers) {
            (Sharing::Aggregate, Readers::Threads) => source.link.0 / f64::from(threads_per_node),
            _ => source.link.0,
        };
        let rates: Vec<f64> = (0..=most.max(1))
            .map(|count| (source.throughput.at(count.max(1)).0 / f64::from(count.max(1))).min(cap))
            .collect();
        let together = rates.iter().enumerate().map(|(readers, rate)| readers as f64 * rate);
        Self {
            best: together.fold(f64::MIN_POSITIVE, f64::max),
            rates,
            sharing: source.sharing,
            readers: source.readers,
            now: 0.0,
            busy: 0.0,
            served: 0.0,
            nodes_reading: 0,
            threads_reading: 0.0,
            nodes: vec![NodeClock::default(); nodes as usize],
            ends: BinaryHeap::new(),
        }
    }

    /// γ.
    fn reading(&self) -> usize {
        let readers = match self.readers {
            Readers::Nodes => self.nodes_reading,
            Readers::Threads => self.threads_reading.round() as u32,
        };
        (readers as usize).min(self.rates.len() - 1)
    }

    /// Bytes per second of one unit of service (a node's, or a thread's) now.
    pub fn rate(&self) -> f64 {
        self.rates[self.reading().max(1)]
    }

    /// Returns the current share of the highest total rate.
    fn utilisation(&self) -> f64 {
        self.reading() as f64 * self.rate() / self.best
    }

    /// Returns what the source has delivered by `now`, in seconds at its best rate. No transfer may
    /// begin or end before then.
    pub fn busy_until(&self, now: f64) -> f64 {
        self.busy + (now - self.now).max(0.0) * self.utilisation()
    }

    fn advance(&mut self, now: f64) {
        if now > self.now {
            self.busy = self.busy_until(now);
            if self.nodes_reading > 0 {
                self.served += (now - self.now) * self.rate();
            }
            self.now = now;
        }
    }

    /// How much the node's service count grows when the global one grows by one.
    fn share(&self, node: usize) -> f64 {
        match (self.sharing, self.readers) {
            (Sharing::Aggregate, Readers::Nodes) => 1.0 / self.nodes[node].threads,
            _ => 1.0,
        }
    }

    fn catch_up(&mut self, node: usize) {
        let share = if self.nodes[node].transfers.is_empty() { 0.0 } else { self.share(node) };
        let clock = &mut self.nodes[node];
        clock.served += (self.served - clock.seen) * share;
        clock.seen = self.served;
    }

    fn schedule(&mut self, node: usize) {
        let share = self.share(node);
        let clock = &mut self.nodes[node];
        clock.stamp = clock.stamp.wrapping_add(1);
        let next = clock.transfers.iter().map(|transfer| transfer.ends).min_by(f64::total_cmp);
        if let Some(next) = next {
            let key = HeapKey(clock.seen + (next - clock.served).max(0.0) / share);
            self.ends.push(Reverse((key, node as u32, clock.stamp)));
        }
    }

    /// `server` of `node` starts to read `bytes` with `threads` threads.
    pub fn start(&mut self, now: f64, node: u32, server: u32, bytes: f64, threads: f64) {
        self.advance(now);
        let at = node as usize;
        self.catch_up(at);
        let clock = &mut self.nodes[at];
        if clock.transfers.is_empty() {
            self.nodes_reading += 1;
            clock.threads = 0.0;
        }
        clock.threads += threads;
        self.threads_reading += threads;
        let ends = clock.served + bytes / threads;
        clock.transfers.push(Transfer { ends, server, threads });
        self.schedule(at);
    }

    /// Returns when the next transfer ends, if no other begins before.
    pub fn next_end(&mut self) -> Option<f64> {
        while let Some(&Reverse((key, node, stamp))) = self.ends.peek() {
            if self.nodes[node as usize].stamp == stamp {
                return Some(self.now + (key.0 - self.served).max(0.0) / self.rate());
            }
            self.ends.pop();
        }
        None
    }

    /// Ends the next transfer at `now`, the time that [`Self::next_end`] returned; returns its
    /// server.
    pub fn end(&mut self, now: f64) -> Option<u32> {
        let Reverse((key, node, _)) = self.ends.pop()?;
        self.busy = self.busy_until(now);
        self.now = self.now.max(now);
        // Exactly the key, so that rounding cannot leave a sliver behind.
        self.served = self.served.max(key.0);
        let at = node as usize;
        self.catch_up(at);
        let clock = &mut self.nodes[at];
        let first = clock
            .transfers
            .iter()
            .enumerate()
            .min_by(|a, b| a.1.ends.total_cmp(&b.1.ends))
            .map(|(index, _)| index)?;
        let done = clock.transfers.swap_remove(first);
        clock.served = clock.served.max(done.ends);
        clock.threads -= done.threads;
        self.threads_reading -= done.threads;
        if clock.transfers.is_empty() {
            self.nodes_reading -= 1;
        }
        self.schedule(at);
        Some(done.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belady_control::model::{Curve, Rate};

    fn source(sharing: Sharing, readers: Readers) -> SourceModel {
        SourceModel {
            throughput: Curve::new(vec![(1, Rate(60.0)), (2, Rate(80.0)), (4, Rate(100.0))])
                .unwrap(),
            link: Rate(1e9),
            sharing,
            readers,
        }
    }

    fn ends(clock: &mut SourceClock) -> Vec<(u32, f64)> {
        let mut ends = vec![];
        while let Some(at) = clock.next_end() {
            ends.push((clock.end(at).unwrap(), (at * 1e6).round() / 1e6));
        }
        ends
    }

    #[test]
    fn two_nodes_share_then_one_speeds_up() {
        let mut clock = SourceClock::new(&source(Sharing::Aggregate, Readers::Nodes), 4, 2);
        clock.start(0.0, 0, 10, 400.0, 2.0);
        clock.start(0.0, 1, 11, 520.0, 2.0);
        // Both at 40 until 10 s; then 120 bytes left at 60.
        assert_eq!(ends(&mut clock), [(10, 10.0), (11, 12.0)]);
    }

    #[test]
    fn threads_of_one_node_share_the_nodes_part() {
        let mut clock = SourceClock::new(&source(Sharing::Aggregate, Readers::Nodes), 4, 4);
        clock.start(0.0, 0, 1, 60.0, 1.0);
        clock.start(0.0, 0, 2, 180.0, 3.0);
        // 60 B/s for the node: one thread gets 15, three get 45.
        assert_eq!(ends(&mut clock).iter().map(|e| e.1).collect::<Vec<_>>(), [4.0, 4.0]);
    }

    #[test]
    fn per_thread_sharing_multiplies_by_threads() {
        let mut clock = SourceClock::new(&source(Sharing::PerThread, Readers::Nodes), 4, 2);
        clock.start(0.0, 0, 1, 120.0, 2.0);
        assert_eq!(ends(&mut clock), [(1, 1.0)]);
    }

    #[test]
    fn counting_threads_reaches_further_on_the_curve() {
        let mut clock = SourceClock::new(&source(Sharing::Aggregate, Readers::Threads), 2, 2);
        clock.start(0.0, 0, 1, 100.0, 2.0);
        clock.start(0.0, 1, 2, 100.0, 2.0);
        assert_eq!(ends(&mut clock).iter().map(|e| e.1).collect::<Vec<_>>(), [2.0, 2.0]);
    }

    #[test]
    fn a_late_starter_slows_the_rest() {
        let mut clock = SourceClock::new(&source(Sharing::Aggregate, Readers::Nodes), 2, 1);
        clock.start(0.0, 0, 1, 100.0, 1.0);
        clock.start(1.0, 1, 2, 1000.0, 1.0);
        let at = clock.next_end().unwrap();
        assert!((at - 2.0).abs() < 1e-9, "{at}");
    }
}
