//! Unit tests of duties: how many threads load and transform, and for which rank.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::mpsc;

use belady_control::sampler::Step;
use proptest::prelude::*;

use super::*;

const LONG: Duration = Duration::from_mins(1);

/// Counts who is inside, and lets out as many as it is told.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    inside: u32,
    most: u32,
    passed: u32,
    may_pass: u32,
}

impl Gate {
    fn pass(&self) {
        let mut state = lock(&self.state);
        state.inside += 1;
        state.most = state.most.max(state.inside);
        self.changed.notify_all();
        while state.passed >= state.may_pass {
            state = self.changed.wait(state).unwrap();
        }
        state.passed += 1;
        state.inside -= 1;
        self.changed.notify_all();
    }

    fn open(&self, more: u32) {
        let mut state = lock(&self.state);
        state.may_pass = state.may_pass.saturating_add(more);
        self.changed.notify_all();
    }

    fn wait_for(&self, inside: u32) {
        let mut state = lock(&self.state);
        while state.inside != inside {
            let waited = self.changed.wait_timeout(state, Duration::from_secs(30)).unwrap();
            assert!(!waited.1.timed_out(), "{} are inside, not {inside}", waited.0.inside);
            state = waited.0;
        }
    }
}

/// A stage with samples of some steps, which pass a gate.
struct Samples {
    left: Mutex<VecDeque<u32>>,
    gate: Arc<Gate>,
    seen: Mutex<mpsc::Sender<(usize, u32)>>,
    rank: usize,
}

impl TransformWork for Samples {
    fn lateness(&self) -> Option<Lateness> {
        let left = lock(&self.left);
        let first = *left.front()?;
        let of_step = left.iter().filter(|&&step| step == first).count();
        Some(Lateness { step: Reverse(Step { epoch: 0, iteration: first }), left: of_step })
    }

    fn ranks(&self) -> usize {
        1
    }

    fn run(&self, _idled: Duration, leave: &dyn Fn() -> bool) {
        let Some(&first) = lock(&self.left).front() else { return };
        while !leave() {
            let mut left = lock(&self.left);
            if left.front() != Some(&first) {
                return;
            }
            left.pop_front();
            drop(left);
            lock(&self.seen).send((self.rank, first)).unwrap();
            self.gate.pass();
        }
    }
}

struct Stages {
    gate: Arc<Gate>,
    seen: mpsc::Receiver<(usize, u32)>,
    slots: Vec<StageSlot>,
}

/// Adds a stage for each rank: the steps of its samples, one thread each.
fn add_stages(lane: &Lane, steps: &[&[u32]], threads: u32) -> Stages {
    let (gate, (send, seen)) = (Arc::<Gate>::default(), mpsc::channel());
    let stage = |(rank, &steps): (usize, &&[u32])| {
        let left = Mutex::new(steps.iter().copied().collect());
        let work = Samples { left, gate: gate.clone(), seen: Mutex::new(send.clone()), rank };
        lane.add_stage(rank, threads, Arc::new(work)).unwrap()
    };
    let slots = steps.iter().enumerate().map(stage).collect();
    Stages { gate, seen, slots }
}

fn transforming(threads: u32) -> LaneThreads {
    LaneThreads { transforming: TransformShare::Threads(threads), ..LaneThreads::default() }
}

fn waiting_loads(lane: &Lane, gate: &Arc<Gate>, loads: u32) {
    let load = |_| -> Task {
        let gate = gate.clone();
        Box::new(move |_| gate.pass())
    };
    lane.submit_for(0, (0..loads).map(load));
}

/// Placements that may return to loading, and those that may not: a thread is replaced then.
fn pools() -> [WorkerPool; 2] {
    [0, 1].map(|nice| {
        let placement = ThreadPlacement::new(nice, NumaTopology::default());
        WorkerPool::placed(4, LONG, placement).unwrap()
    })
}

#[test]
fn threads_move_between_duties_as_they_are_assigned() {
    for pool in pools() {
        let lane = pool.lane();
        let loads = Arc::<Gate>::default();
        waiting_loads(&lane, &loads, 40);
        loads.wait_for(4);
        let stages = add_stages(&lane, &[&[0; 60]], 2);
        stages.gate.wait_for(2);
        // Threads finish what they do before they change their duty.
        for (transform, load) in [(5, 1), (1, 5), (3, 3), (2, 4)] {
            lane.assign(transforming(transform));
            loads.open(4);
            stages.gate.open(5);
            loads.wait_for(load);
            stages.gate.wait_for(transform);
            assert_eq!(lane.threads(), load);
        }
        loads.open(u32::MAX);
        stages.gate.open(u32::MAX);
        drop(stages);
        waiting_loads(&lane, &loads, 4);
        assert_eq!((lane.threads(), lane.share()), (4, 4), "the stage's threads are gone");
    }
}

#[test]
fn the_rank_that_is_furthest_from_its_next_batch_is_transformed_first() {
    let pool = WorkerPool::new(1, LONG).unwrap();
    let lane = pool.lane();
    let first = add_stages(&lane, &[&[9]], 1);
    first.gate.wait_for(1);
    let late: [&[u32]; 3] = [&[3, 3, 4], &[2, 2], &[2, 2, 2, 5]];
    // All are there before the only thread is free. The later stages bring none.
    let stages = add_stages(&lane, &late, 0);
    stages.gate.open(u32::MAX);
    first.gate.open(1);
    let order: Vec<_> = stages.seen.iter().take(9).collect();
    let expected = [(2, 2), (2, 2), (2, 2), (1, 2), (1, 2), (0, 3), (0, 3), (0, 4), (2, 5)];
    assert_eq!(order, expected);
}

#[test]
fn a_stage_of_a_rank_of_its_own_has_only_the_threads_that_it_brought() {
    let pool = WorkerPool::new(2, LONG).unwrap();
    let lane = pool.lane();
    lane.assign(LaneThreads { transforming: TransformShare::PerRank, ..LaneThreads::default() });
    let stages = add_stages(&lane, &[&[0; 9], &[], &[]], 2);
    stages.gate.wait_for(2);
    assert_eq!(lane.division().transforming, 6);
    let by_rank = [0, 1, 2, 3].map(|rank| lane.division().transforming_for(rank));
    assert_eq!(by_rank, [2, 2, 2, 0]);
    lane.assign(transforming(5));
    stages.gate.wait_for(5);
    stages.gate.open(u32::MAX);
}

#[test]
fn soft_limits_say_who_is_first_and_leave_no_thread_idle() {
    let pool = WorkerPool::new(3, LONG).unwrap();
    let lane = pool.lane();
    let limits = LaneThreads { loading: vec![1, 2], ..LaneThreads::default() };
    lane.assign(LaneThreads { is_soft: true, ..limits.clone() });
    let gate = Arc::<Gate>::default();
    waiting_loads(&lane, &gate, 4);
    gate.wait_for(3);
    // Within its limit, the other rank comes before tasks that were there first.
    let (seen, told) = mpsc::channel();
    lane.submit_for(1, [Box::new(move |_: &Worker| seen.send(()).unwrap()) as Task]);
    gate.open(1);
    told.recv().unwrap();
    lane.assign(limits);
    gate.open(3);
    gate.wait_for(0);
    waiting_loads(&lane, &gate, 3);
    gate.wait_for(1);
    gate.open(u32::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn all_work_is_done_once_whatever_is_assigned(
        threads in 1u32..4,
        brought in 1u32..4,
        nice in 0u8..2,
        samples in prop::collection::vec(prop::collection::vec(0u32..3, 0..30), 1..4),
        assigned in prop::collection::vec(
            (prop::collection::vec(0u32..3, 0..4), any::<bool>(), prop::option::of(0u32..9)), 1..8),
    ) {
        let placement = ThreadPlacement::new(nice, NumaTopology::default());
        let pool = WorkerPool::placed(threads, LONG, placement).unwrap();
        let lane = pool.lane();
        let (count, done) = mpsc::channel();
        let loads: u32 = 60;
        for load in 0..loads {
            let count = count.clone();
            let task: Task = Box::new(move |_| count.send(load).unwrap());
            lane.submit_for(load as usize % 3, [task]);
        }
        let steps: Vec<&[u32]> = samples.iter().map(Vec::as_slice).collect();
        let stages = add_stages(&lane, &steps, brought);
        stages.gate.open(u32::MAX);
        for (loading, is_soft, transforming) in assigned {
            let transforming =
                transforming.map_or(TransformShare::PerRank, TransformShare::Threads);
            // A limit of none is never assigned (`every_rank_has_a_thread`).
            let loading = loading.iter().map(|&limit| limit.max(1)).collect();
            lane.assign(LaneThreads { loading, is_soft, transforming });
        }
        let mut loaded: Vec<u32> = (0..loads)
            .map(|_| done.recv_timeout(Duration::from_secs(30)).expect("a load"))
            .collect();
        loaded.sort_unstable();
        prop_assert_eq!(loaded, (0..loads).collect::<Vec<_>>());
        let all = samples.iter().map(Vec::len).sum::<usize>();
        let mut seen: Vec<(usize, u32)> = (0..all)
            .map(|_| stages.seen.recv_timeout(Duration::from_secs(30)).expect("a transform"))
            .collect();
        drop(stages.slots);
        prop_assert!(stages.seen.try_recv().is_err(), "nothing is transformed twice");
        let rank = |(rank, of): (usize, &Vec<u32>)| of.iter().map(|&step| (rank, step)).collect();
        let mut wanted: Vec<(usize, u32)> =
            samples.iter().enumerate().flat_map(|it| -> Vec<_> { rank(it) }).collect();
        seen.sort_unstable();
        wanted.sort_unstable();
        prop_assert_eq!(seen, wanted);
    }
}
