//! Unit tests of the pool.

use super::*;
use std::sync::mpsc;

fn loading(limits: &[u32]) -> LaneThreads {
    LaneThreads { loading: limits.to_vec(), ..LaneThreads::default() }
}

fn task(run: impl FnOnce(&Worker) + Send + 'static) -> Task {
    Box::new(run)
}

#[test]
fn tasks_run_in_order_and_urgent_ones_first() {
    let pool = WorkerPool::new(1, Duration::from_mins(1)).unwrap();
    let lane = pool.lane();
    let (hold, held) = mpsc::channel::<()>();
    let (seen, order) = mpsc::channel();
    lane.submit_for(0, [task(move |_| held.recv().unwrap())]);
    let say = |number: u32| {
        let seen = seen.clone();
        task(move |_| seen.send(number).unwrap())
    };
    lane.submit_background([say(9)]);
    lane.submit_for(0, [say(2), say(3)]);
    lane.submit_first(vec![say(0), say(1)]);
    hold.send(()).unwrap();
    assert_eq!(order.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 9]);
}

#[test]
fn lanes_take_turns() {
    let pool = WorkerPool::new(1, Duration::from_mins(1)).unwrap();
    let (one, other) = (pool.lane(), pool.lane());
    let (hold, held) = mpsc::channel::<()>();
    let (seen, order) = mpsc::channel();
    one.submit_for(0, [task(move |_| held.recv().unwrap())]);
    let say = |name: &'static str| {
        let seen = seen.clone();
        task(move |_| seen.send(name).unwrap())
    };
    one.submit_for(0, (0..3).map(|_| say("one")));
    other.submit_for(0, (0..2).map(|_| say("other")));
    hold.send(()).unwrap();
    let order: Vec<_> = order.iter().take(5).collect();
    assert_eq!(order.iter().filter(|&&name| name == "other").count(), 2);
    assert!(order[..4].windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
}

#[test]
fn a_hung_call_is_given_up_and_its_thread_replaced() {
    let pool = WorkerPool::new(1, Duration::from_millis(20)).unwrap();
    let lane = pool.lane();
    let (hold, held) = mpsc::channel::<()>();
    let (seen, told) = mpsc::channel();
    let late = seen.clone();
    lane.submit_for(
        0,
        [task(move |worker| {
            let given_up = late.clone();
            let watched = worker.watch(
                move |hung| given_up.send(format!("given up, {} hang", hung.threads)).unwrap(),
                || held.recv().unwrap(),
            );
            late.send(format!("{watched:?}")).unwrap();
        })],
    );
    assert_eq!(told.recv().unwrap(), "given up, 1 hang");
    lane.submit_for(0, [task(move |_| seen.send("others go on".into()).unwrap())]);
    assert_eq!(told.recv().unwrap(), "others go on");
    hold.send(()).unwrap();
    assert_eq!(told.recv().unwrap(), "TooLate");
}

#[test]
fn hung_threads_that_come_back_work_again_if_too_few_are_left() {
    let pool = WorkerPool::new(1, Duration::from_millis(5)).unwrap();
    let lane = pool.lane();
    let (told, gave_up) = mpsc::channel();
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    // One more than may be replaced.
    for _ in 0..=HUNG_PER_THREAD {
        let (told, gate) = (told.clone(), gate.clone());
        lane.submit_for(
            0,
            [task(move |worker| {
                let told = told.clone();
                worker.watch(
                    move |hung| told.send(hung.too_many).unwrap(),
                    || {
                        let mut open = lock(&gate.0);
                        while !*open {
                            open = gate.1.wait(open).unwrap();
                        }
                    },
                );
            })],
        );
    }
    while !gave_up.recv().unwrap() {}
    let (seen, alive) = mpsc::channel();
    lane.submit_for(0, [task(move |_| seen.send(()).unwrap())]);
    *lock(&gate.0) = true;
    gate.1.notify_all();
    alive.recv_timeout(Duration::from_secs(30)).expect("a thread works again");
}

#[test]
fn a_panic_leaves_the_pool_working_and_a_stop_drops_waiting_tasks() {
    let pool = WorkerPool::new(1, Duration::from_mins(1)).unwrap();
    let lane = pool.lane();
    let (seen, told) = mpsc::channel();
    lane.submit_for(
        0,
        [task(|worker| {
            worker.watch(|_| unreachable!("it did not hang"), || panic!("on purpose"));
        })],
    );
    let first = seen.clone();
    lane.submit_for(0, [task(move |_| first.send(1).unwrap())]);
    assert_eq!(told.recv().unwrap(), 1);
    lane.delay(Duration::from_mins(10), task(move |_| seen.send(2).unwrap()));
    drop(pool);
    assert_eq!(told.recv(), Err(mpsc::RecvError));
}

/// Tasks of rank 0 wait at a gate; those of rank 1 pass.
#[test]
fn a_rank_has_no_more_threads_than_its_limit_and_holds_up_no_other_rank() {
    let pool = WorkerPool::new(3, Duration::from_mins(1)).unwrap();
    let lane = pool.lane();
    lane.assign(loading(&[1, 3]));
    let gate = Arc::new((Mutex::new((false, 0, 0)), Condvar::new()));
    let (seen, told) = mpsc::channel();
    let held = (0..3).map(|_| {
        let gate = gate.clone();
        task(move |_| {
            let mut state = lock(&gate.0);
            state.1 += 1;
            state.2 = state.2.max(state.1);
            gate.1.notify_all();
            while !state.0 {
                state = gate.1.wait(state).unwrap();
            }
            state.1 -= 1;
        })
    });
    lane.submit_for(0, held);
    for number in 0..5 {
        let seen = seen.clone();
        lane.submit_for(1, [task(move |_| seen.send(number).unwrap())]);
    }
    assert_eq!(told.iter().take(5).count(), 5, "the others pass");
    assert_eq!(lane.queued(), 2, "two tasks of rank 0 wait for its thread");
    lane.assign(loading(&[2, 3]));
    let mut state = lock(&gate.0);
    while state.1 < 2 {
        state = gate.1.wait(state).unwrap();
    }
    state.0 = true;
    drop(state);
    gate.1.notify_all();
    while lane.queued() > 0 {
        std::thread::yield_now();
    }
    assert!(lock(&gate.0).2 <= 2, "never more than the limit");
}
