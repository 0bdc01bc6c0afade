//! Threads that follow what a node measures, for policies whose threads are pooled otherwise.

use super::ThreadAssignment;
use crate::model::online::{NodeMeasurement, ThreadSplit, split_threads};

/// Answers measurements with a division of the node's threads.
#[derive(Debug, Default)]
pub struct ThreadBalancer {
    /// The last answer; `None` while threads are pooled.
    last: Option<ThreadSplit>,
}

impl ThreadBalancer {
    /// Returns the threads from now on, if they change. Threads are pooled where there is one rank,
    /// and until transforms have been measured.
    pub fn measured(&mut self, now: &NodeMeasurement) -> Option<ThreadAssignment> {
        let transforming = self.last.as_ref().map(|last| last.transforming);
        let split = Some(now).filter(|now| now.ranks.len() > 1);
        let split = split.and_then(|now| split_threads(now, transforming));
        if split == self.last {
            return None;
        }
        self.last = split;
        Some(self.last.as_ref().map_or(ThreadAssignment::Pooled, ThreadAssignment::of_split))
    }
}

impl ThreadAssignment {
    /// Returns the assignment of a division into whole threads.
    pub fn of_split(split: &ThreadSplit) -> Self {
        Self::Split {
            loading: split.loading.iter().map(|&threads| f64::from(threads)).collect(),
            preprocessing: f64::from(split.transforming),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::model::online::{
        FitWindow, IterationWork, RankPending, SOURCE, WINDOW, WorkSum, size_class,
    };
    use crate::policy::testing::{Driver, job};
    use crate::policy::{Actions, Event, PolicyKind, plan};

    const RANKS: usize = 8;
    const CORES: u32 = 12;
    const THREADS: u32 = 24;
    /// Of a rank and step.
    const SAMPLES: u64 = 16;
    const BYTES: u64 = 16 << 16;

    /// A node whose transforms and source take these times, in nanoseconds of one thread: for a
    /// sample, and for a mebibyte. More threads than cores transform no faster.
    #[derive(Clone, Copy)]
    struct World {
        transform: u64,
        source: u64,
        training: u64,
    }

    impl World {
        /// What the threads of a split do in one step.
        fn work(self, split: &ThreadSplit) -> IterationWork {
            let mut work = IterationWork::default();
            let crowd = u64::from(split.transforming.max(CORES));
            let (count, bytes) = (SAMPLES * RANKS as u64, BYTES * RANKS as u64);
            let nanoseconds = count * self.transform * crowd / u64::from(CORES);
            let class = size_class(bytes / count);
            let sum = WorkSum { count, bytes, nanoseconds };
            work.transforms.insert((class, split.transforming), sum);
            let nanoseconds = (self.source * bytes) >> 20;
            work.loads[SOURCE]
                .insert(split.loading.iter().sum(), WorkSum { count, bytes, nanoseconds });
            work.training = Some(self.training);
            work
        }

        /// The time of a step.
        fn step(self, transforming: u32) -> f64 {
            let transform = (self.transform * SAMPLES * RANKS as u64) as f64;
            let load = ((self.source * BYTES * RANKS as u64) >> 20) as f64;
            let loading = f64::from(THREADS - transforming);
            (transform / f64::from(transforming.min(CORES))).max(load / loading)
        }

        /// The reference: the fewest threads that transform as fast as this node ever can, or
        /// clearly faster than it trains.
        fn fewest(self) -> u32 {
            let all = 1..=THREADS - RANKS as u32;
            let best = all.clone().map(|n| self.step(n)).fold(f64::INFINITY, f64::min);
            let enough = (best * 1.03).max(self.training as f64 * 0.8);
            all.into_iter().find(|&n| self.step(n) <= enough).unwrap()
        }
    }

    /// A node, its balancer and what they agree on.
    struct Node {
        window: FitWindow,
        balancer: ThreadBalancer,
        split: ThreadSplit,
    }

    impl Node {
        fn new() -> Self {
            let split = ThreadSplit { loading: vec![1; RANKS], transforming: 16 };
            Self { window: FitWindow::default(), balancer: ThreadBalancer::default(), split }
        }

        fn measurement(&self, left: [u64; RANKS]) -> NodeMeasurement {
            let pending =
                |left| RankPending { samples: SAMPLES, bytes: [0, 0, BYTES], left: [0, 0, left] };
            NodeMeasurement {
                threads: THREADS,
                model: self.window.fit(CORES),
                steps: 1,
                ranks: left.into_iter().map(pending).collect(),
            }
        }

        fn play(&mut self, world: World, iterations: u32, left: [u64; RANKS]) {
            for _ in 0..iterations {
                self.window.push(world.work(&self.split));
                let now = self.measurement(left);
                let Some(ThreadAssignment::Split { loading, preprocessing }) =
                    self.balancer.measured(&now)
                else {
                    continue;
                };
                let loading = loading.iter().map(|&threads| threads as u32).collect();
                self.split = ThreadSplit { loading, transforming: preprocessing as u32 };
            }
        }
    }

    const EVEN: [u64; RANKS] = [BYTES; RANKS];
    const USUAL: World = World { transform: 600_000, source: 16_000_000, training: 1 };

    /// The split follows a world that changes, and settles within ten iterations.
    fn follows(before: World, after: World) -> (u32, u32) {
        let mut node = Node::new();
        node.play(before, 12, EVEN);
        let first = node.split.transforming;
        // A thread more than needed is left where it is, and a few more are tried.
        let settled = |node: &Node, world: World| {
            let (found, fewest) = (node.split.transforming, world.fewest());
            assert!((fewest..=fewest + 2).contains(&found), "{found}, and {fewest} would do");
        };
        settled(&node, before);
        node.play(after, 10, EVEN);
        settled(&node, after);
        let last = node.split.transforming;
        for _ in 0..30 {
            node.play(after, 10, EVEN);
            settled(&node, after);
        }
        (first, last)
    }

    #[test]
    fn a_source_that_becomes_four_times_slower_gets_threads_within_ten_iterations() {
        let (before, after) = follows(USUAL, World { source: 4 * USUAL.source, ..USUAL });
        assert!(after < before, "{before} threads transformed, now {after}");
        let (before, after) = follows(World { source: 4 * USUAL.source, ..USUAL }, USUAL);
        assert!(after > before, "{before} threads transformed, now {after}");
    }

    #[test]
    fn a_transform_that_becomes_three_times_dearer_gets_threads_within_ten_iterations() {
        let (before, after) = follows(USUAL, World { transform: 3 * USUAL.transform, ..USUAL });
        assert!(after > before, "{before} threads transformed, now {after}");
        let (before, after) = follows(World { transform: 3 * USUAL.transform, ..USUAL }, USUAL);
        assert!(after < before, "{before} threads transformed, now {after}");
    }

    #[test]
    fn more_threads_than_transform_at_the_peak_load() {
        // Transforms alone decide: the peak is at the number of cores.
        let mut node = Node::new();
        node.play(World { transform: 90_000_000, source: 1000, training: 1 }, 10, EVEN);
        assert!((CORES - 1..=CORES + 2).contains(&node.split.transforming), "{:?}", node.split);
    }

    #[test]
    fn no_more_threads_transform_than_training_needs() {
        let slow = World { training: 20_000_000, ..USUAL };
        assert!(slow.fewest() < USUAL.fewest());
        follows(USUAL, slow);
    }

    #[test]
    fn the_rank_with_most_left_to_load_gets_most_threads() {
        let mut node = Node::new();
        node.play(USUAL, 10, EVEN);
        let even = node.split.loading.clone();
        assert!(even.iter().max().unwrap() - even.iter().min().unwrap() <= 1, "{even:?}");
        let mut left = [BYTES / 8; RANKS];
        left[5] = BYTES;
        node.play(USUAL, 1, left);
        let loading = &node.split.loading;
        assert!((0..RANKS).all(|rank| rank == 5 || 3 * loading[rank] <= loading[5]), "{loading:?}");
        assert!(loading.iter().all(|&threads| threads > 0));
    }

    #[test]
    fn threads_are_pooled_with_one_rank_and_before_anything_is_measured() {
        let mut node = Node::new();
        assert_eq!(node.balancer.measured(&node.measurement(EVEN)), None);
        node.play(USUAL, WINDOW as u32, EVEN);
        let mut now = node.measurement(EVEN);
        now.ranks.truncate(1);
        assert_eq!(ThreadBalancer::default().measured(&now), None);
        assert_eq!(node.balancer.measured(&now), Some(ThreadAssignment::Pooled));
    }

    fn measurements() -> impl Strategy<Value = NodeMeasurement> {
        let pending = prop::collection::vec((0u64..100, 0u64..1 << 20), 2);
        (2u32..9, 1u64..1000, 1u64..1000, pending).prop_map(
            |(threads, transform, source, ranks)| {
                let mut node = Node::new();
                node.play(World { transform, source, training: 1 }, 1, EVEN);
                let pending = |(samples, left): (u64, u64)| RankPending {
                    samples,
                    bytes: [0, 0, BYTES],
                    left: [0, 0, left],
                };
                let ranks = ranks.into_iter().map(pending).collect();
                NodeMeasurement { threads, ranks, ..node.measurement(EVEN) }
            },
        )
    }

    proptest! {
        /// Nodes agree on placement without knowing what others measure.
        #[test]
        fn measurements_change_nothing_but_threads(
            told in prop::collection::vec(prop::option::of(measurements()), 10),
        ) {
            let job = Arc::new(job(40, 1, 2, &[120, 80]));
            for kind in PolicyKind::ALL {
                let run = |measured: bool| -> Vec<Actions> {
                    let Ok(plan) = plan(&kind, &job) else { return vec![] };
                    let [order, next] = [0, 1].map(|epoch| Arc::new(job.stream.epoch(epoch)));
                    plan.begin_epoch(0, &order, Some(&next));
                    let mut node = Driver::new(&plan, 0);
                    let mut answers = vec![];
                    for (iteration, told) in (0..order.iterations()).zip(&told) {
                        if let Some(now) = told.as_ref().filter(|_| measured) {
                            let threads = node.on(Event::Measured(now)).threads.clone();
                            assert_eq!(node.actions, Actions { threads, ..Actions::default() });
                        }
                        let batch = |rank| order.batch(rank, iteration).collect::<Vec<_>>();
                        for rank in 0..2 {
                            node.stage(rank, (0, iteration), &batch(rank));
                            answers.push(node.actions.clone());
                        }
                        for rank in 0..2 {
                            answers.push(node.consumed(rank, (0, iteration), &batch(rank)).clone());
                        }
                    }
                    for answer in &mut answers {
                        answer.threads = None;
                    }
                    answers
                };
                prop_assert_eq!(run(false), run(true), "{}", kind.name());
            }
        }
    }
}
