//! How much relays should have read by each iteration of an epoch.
//!
//! Staging reads ahead as far as a ring reaches, and no further than the epoch until all nodes have
//! staged it. A node with small batches therefore has read all of its own long before the epoch's
//! end; if it then has nothing to read, the source gives the others less. Before that its staging
//! threads, of which there are more, leave little of its share to its prefetcher. So relays read as
//! late as they can: at each iteration as much as makes all nodes level, counting what they stage
//! ahead; and earlier only what their space does not allow then.

/// What a node reads in an epoch if none relays, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeReads {
    /// By iteration: what it uses, and what of that its staging threads read.
    pub used: Vec<u64>,
    pub staged: Vec<u64>,
    /// What its prefetchers read to hold it, which waits for no iteration.
    pub held: u64,
    /// What an iteration may take of what it relays.
    pub space: u64,
}

impl NodeReads {
    /// The last iteration that is in a ring together with each one. A batch that is larger than
    /// the ring is alone in it.
    fn reach(&self, ring: u64) -> Vec<usize> {
        let (mut end, mut bytes) = (0, 0);
        let reach = self.used.iter().enumerate().map(|(at, batch)| {
            while end < self.used.len() && (end == at || bytes + self.used[end] <= ring) {
                bytes += self.used[end];
                end += 1;
            }
            bytes -= batch;
            end - 1
        });
        reach.collect()
    }

    /// What it can have read when each iteration is over.
    fn read(&self, ring: u64) -> Vec<u64> {
        let staged = self.staged.iter().scan(self.held, |sum, bytes| {
            *sum += bytes;
            Some(*sum)
        });
        let staged: Vec<u64> = staged.collect();
        self.reach(ring).into_iter().map(|last| staged[last]).collect()
    }
}

/// Returns how many bytes each node should have relayed when each iteration is over.
fn wanted(nodes: &[NodeReads], ring: u64) -> Vec<Vec<u64>> {
    let read: Vec<Vec<u64>> = nodes.iter().map(|node| node.read(ring)).collect();
    let level = |at: usize| read.iter().map(|read| read[at]).sum::<u64>() / nodes.len() as u64;
    let level: Vec<u64> = (0..read.first().map_or(0, Vec::len)).map(level).collect();
    let by_node = nodes.iter().zip(&read).map(|(node, read)| {
        let lacks = level.iter().zip(read).map(|(level, read)| level.saturating_sub(*read));
        let mut wanted: Vec<u64> = lacks.collect();
        if node.space == 0 {
            wanted.fill(0);
        }
        // What one iteration cannot take, those before it do.
        for at in (1..wanted.len()).rev() {
            wanted[at - 1] = wanted[at - 1].max(wanted[at].saturating_sub(node.space));
        }
        wanted
    });
    by_node.collect()
}

/// Deals what nodes would read for themselves to relays, iteration by iteration.
#[derive(Debug)]
pub struct RelayPace {
    wanted: Vec<Vec<u64>>,
    /// By node: what an iteration may take, and has taken.
    space: Vec<u64>,
    taken: Vec<u64>,
    /// By node: what it has relayed, and what it reads in the epoch.
    relayed: Vec<u64>,
    read: Vec<u64>,
    at: usize,
}

impl RelayPace {
    /// `ring` is the staging buffer of a node.
    pub fn new(nodes: &[NodeReads], ring: u64) -> Self {
        Self {
            wanted: wanted(nodes, ring),
            space: nodes.iter().map(|node| node.space).collect(),
            taken: vec![0; nodes.len()],
            relayed: vec![0; nodes.len()],
            read: nodes.iter().map(|node| node.held + node.staged.iter().sum::<u64>()).collect(),
            at: 0,
        }
    }

    pub fn begin(&mut self, iteration: u32) {
        self.at = iteration as usize;
        self.taken.fill(0);
    }

    /// What a relay should have read more by now.
    fn lacks(&self, node: usize) -> u64 {
        self.wanted[node][self.at].saturating_sub(self.relayed[node])
    }

    /// The node that gives a sample away, if a relay lacks something: the one that reads most of
    /// those that have any.
    pub fn giver(&self, has: impl Fn(usize) -> bool) -> Option<usize> {
        let nodes = 0..self.read.len();
        if nodes.clone().all(|node| self.lacks(node) == 0) {
            return None;
        }
        nodes.rev().filter(|&node| has(node)).max_by_key(|&node| self.read[node])
    }

    /// The relay that reads so many bytes for a node, if one has space: the one that lacks most. Not
    /// the node `holder`.
    pub fn give(&mut self, node: usize, holder: Option<usize>, bytes: u64) -> Option<usize> {
        let fits = |relay: &usize| self.taken[*relay] + bytes <= self.space[*relay];
        let relay = (0..self.read.len())
            .rev()
            .filter(|&relay| relay != node && Some(relay) != holder && self.lacks(relay) > 0)
            .filter(fits)
            .max_by_key(|&relay| self.lacks(relay))?;
        self.taken[relay] += bytes;
        self.relayed[relay] += bytes;
        self.read[relay] += bytes;
        self.read[node] -= bytes;
        Some(relay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(used: &[u64], held: u64, space: u64) -> NodeReads {
        NodeReads { used: used.to_vec(), staged: used.to_vec(), held, space }
    }

    #[test]
    fn rings_reach_as_far_as_their_batches_fit() {
        assert_eq!(node(&[10, 20, 30, 5, 5], 0, 0).reach(40), [1, 1, 4, 4, 4]);
        assert_eq!(node(&[50, 10, 10], 0, 0).reach(40), [0, 2, 2], "a larger batch is alone");
        assert_eq!(node(&[20, 20, 20], 0, 0).reach(40), [1, 2, 2]);
        assert!(node(&[], 0, 0).reach(40).is_empty());
    }

    #[test]
    fn relays_lack_what_makes_nodes_level_when_their_rings_are_full() {
        // The first has read 80, 120, 160, 200, 200, the second all of its 50 at once.
        let nodes = [node(&[40; 5], 0, 0), node(&[10; 5], 0, 100)];
        assert_eq!(wanted(&nodes, 80)[1], [15, 35, 55, 75, 75]);
        assert_eq!(wanted(&nodes, 80)[0], [0; 5], "it has no space to relay");
        // What it reads for itself in any case comes first.
        let nodes = [node(&[40; 5], 0, 0), node(&[10; 5], 60, 100)];
        assert_eq!(wanted(&nodes, 80)[1], [0, 5, 25, 45, 45]);
    }

    #[test]
    fn what_an_iteration_cannot_take_those_before_it_take() {
        let nodes = [node(&[40; 5], 0, 0), node(&[10; 5], 0, 15)];
        assert_eq!(wanted(&nodes, 80)[1], [30, 45, 60, 75, 75]);
        let nodes = [node(&[40; 5], 0, 0), node(&[10; 5], 0, 10)];
        assert_eq!(wanted(&nodes, 80)[1], [45, 55, 65, 75, 75]);
    }

    #[test]
    fn the_node_with_most_to_read_gives_to_the_relay_that_lacks_most() {
        let with = |bytes, space| node(&[bytes], 0, space);
        let nodes = [with(90, 0), with(100, 0), with(30, 20), with(20, 20)];
        let mut pace = RelayPace::new(&nodes, 1000);
        pace.begin(0);
        assert_eq!(pace.giver(|_| true), Some(1));
        assert_eq!(pace.giver(|node| node == 0), Some(0), "the other has nothing left");
        assert_eq!(pace.give(1, None, 10), Some(3), "40 below the level, the other 30");
        assert_eq!(pace.give(0, Some(3), 10), Some(2), "not the sample's holder");
        assert_eq!(pace.give(0, None, 30), None, "more than their space");
        assert_eq!(pace.giver(|_| true), Some(1), "90, and the first has 80");
        assert_eq!(pace.give(1, None, 10), Some(3));
        assert_eq!(pace.give(1, None, 10), Some(2));
        assert_eq!(pace.give(1, None, 10), None, "an iteration has taken their space");
        pace.begin(0);
        assert_eq!(pace.give(0, None, 10), Some(3));
        assert_eq!(pace.give(0, None, 5), Some(2), "the first of equals");
    }

    #[test]
    fn nothing_is_given_once_relays_are_level() {
        let nodes = [node(&[40], 0, 0), node(&[20], 0, 100)];
        let mut pace = RelayPace::new(&nodes, 100);
        pace.begin(0);
        assert_eq!(pace.give(0, None, 6), Some(1));
        assert_eq!(pace.giver(|_| true), Some(0), "4 are missing");
        assert_eq!(pace.give(0, None, 6), Some(1));
        assert_eq!(pace.giver(|_| true), None);
        assert_eq!(pace.give(0, None, 6), None);
    }

    proptest! {
        /// Beside a naive ring, and beside the definition: at each iteration what makes it level
        /// then, or what later iterations cannot take.
        #[test]
        fn wanted_is_the_least_that_later_iterations_can_complete(
            (used, ring, space) in (
                prop::collection::vec((1u64..50, 1u64..20), 1..12), 1u64..150, 1u64..30,
            ),
        ) {
            let (large, small): (Vec<u64>, Vec<u64>) = used.into_iter().unzip();
            let nodes = [node(&large, 0, 0), node(&small, 0, space)];
            let read = |batches: &[u64], at: usize| -> u64 {
                let mut end = at + 1;
                while end < batches.len() && batches[at..=end].iter().sum::<u64>() <= ring {
                    end += 1;
                }
                batches[..end].iter().sum()
            };
            let level = |at: usize| {
                let (of_large, of_small) = (read(&large, at), read(&small, at));
                (u64::midpoint(of_large, of_small)).saturating_sub(of_small)
            };
            for (at, &wanted) in wanted(&nodes, ring)[1].iter().enumerate() {
                let later = (at..large.len())
                    .map(|later| level(later).saturating_sub(space * (later - at) as u64));
                prop_assert_eq!(Some(wanted), later.max(), "at {}", at);
            }
        }
    }
}
