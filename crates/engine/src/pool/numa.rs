//! The NUMA nodes of a machine and the processors of each, as Linux lists them below
//! `/sys/devices/system/node`.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// Where Linux lists NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// The processors of each NUMA node that this process may use. Empty with one node, or if nothing
/// is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaTopology(Vec<Vec<usize>>);

impl NumaTopology {
    /// Returns the topology of this machine.
    pub fn of_this_machine() -> Self {
        let Ok(allowed) = sched_getaffinity(None) else { return Self::default() };
        let is_allowed = |cpu: usize| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu);
        Self::read(Path::new(NODES), is_allowed)
    }

    /// Reads the topology from a folder. Nodes without a processor that `is_allowed` do not count.
    pub fn read(folder: &Path, is_allowed: impl Fn(usize) -> bool) -> Self {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let nodes = listed(&text("online")).into_iter().map(|node| {
            let mut cpus = listed(&text(&format!("node{node}/cpulist")));
            cpus.retain(|&cpu| is_allowed(cpu));
            cpus
        });
        let nodes: Vec<Vec<usize>> = nodes.filter(|cpus| !cpus.is_empty()).collect();
        Self(if nodes.len() > 1 { nodes } else { vec![] })
    }

    /// Returns the NUMA node of a local rank, of so many: as many ranks on each, in order, as
    /// accelerators are numbered. `None` where ranks cannot be spread evenly, since some processors
    /// would have more to do than others, and with one NUMA node.
    pub fn node_of_rank(&self, rank: usize, ranks: usize) -> Option<usize> {
        let nodes = self.0.len();
        let is_even = nodes > 0 && ranks > 0 && ranks.is_multiple_of(nodes);
        (is_even && rank < ranks).then(|| rank * nodes / ranks)
    }

    /// Returns the processors of a NUMA node; of all for `None`.
    pub fn cpus(&self, node: Option<usize>) -> Vec<usize> {
        match node {
            Some(node) => self.0.get(node).cloned().unwrap_or_default(),
            None => self.0.concat(),
        }
    }
}

/// Returns the numbers of a list such as `0-3,8`; those before the first error of a broken one.
fn listed(text: &str) -> Vec<usize> {
    let mut numbers = vec![];
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { break };
        numbers.extend(first..=last.min(first.saturating_add(CpuSet::MAX_CPU)));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A folder as Linux has it, with these `cpulist`s.
    fn folder(online: &str, nodes: &[(u32, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("online"), online).unwrap();
        for (node, cpus) in nodes {
            let node = folder.path().join(format!("node{node}"));
            std::fs::create_dir(&node).unwrap();
            std::fs::write(node.join("cpulist"), cpus).unwrap();
        }
        folder
    }

    fn read(online: &str, nodes: &[(u32, &str)]) -> NumaTopology {
        NumaTopology::read(folder(online, nodes).path(), |_| true)
    }

    #[test]
    fn ranks_are_spread_over_numa_nodes_in_order() {
        let two = read("0-1\n", &[(0, "0-3,8-11\n"), (1, "4-7,12-15\n")]);
        let nodes: Vec<_> = (0..8).map(|rank| two.node_of_rank(rank, 8).unwrap()).collect();
        assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(two.cpus(Some(1)), [4, 5, 6, 7, 12, 13, 14, 15]);
        assert_eq!(two.cpus(None).len(), 16);
        assert_eq!([0, 1].map(|rank| two.node_of_rank(rank, 2)), [Some(0), Some(1)]);
        assert_eq!(two.node_of_rank(0, 1), None, "one rank uses the whole machine");
        assert_eq!(two.node_of_rank(2, 3), None);
    }

    #[test]
    fn one_numa_node_binds_nothing() {
        for topology in [
            read("0\n", &[(0, "0-63\n")]),
            // Memory without processors is a node too.
            read("0-1\n", &[(0, "0-63\n"), (1, "\n")]),
            read("", &[]),
            NumaTopology::read(Path::new("/no/such/folder"), |_| true),
        ] {
            assert_eq!(topology, NumaTopology::default());
            assert_eq!(topology.node_of_rank(3, 8), None);
        }
    }

    #[test]
    fn processors_that_the_process_may_not_use_do_not_count() {
        let folder = folder("0,2\n", &[(0, "0-3\n"), (2, "4-7\n")]);
        let of =
            |allowed: &[usize]| NumaTopology::read(folder.path(), |cpu| allowed.contains(&cpu));
        assert_eq!(of(&[1, 2, 5]).cpus(Some(0)), [1, 2]);
        assert_eq!(of(&[1, 2, 5]).cpus(Some(1)), [5]);
        assert_eq!(of(&[1, 2]), NumaTopology::default());
    }

    proptest! {
        #[test]
        fn every_numa_node_has_the_same_number_of_ranks(
            nodes in 2usize..6, ranks in 1usize..5,
        ) {
            let ranks = ranks * nodes;
            let lists: Vec<String> = (0..nodes).map(|node| node.to_string()).collect();
            let lists: Vec<(u32, &str)> = (0..).zip(lists.iter().map(String::as_str)).collect();
            let topology = read(&format!("0-{}", nodes - 1), &lists);
            let mut counts = vec![0; nodes];
            for rank in 0..ranks {
                counts[topology.node_of_rank(rank, ranks).unwrap()] += 1;
            }
            prop_assert_eq!(counts, vec![ranks / nodes; nodes]);
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "[0-9,\\-\n ]{0,30}|\\PC{0,20}") {
            listed(&text);
        }
    }
}
