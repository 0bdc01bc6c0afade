//! `--barrier`: all ranks end each step together, as the allreduce of training does.
//!
//! The ranks of this process meet first ([`StepBarrier`]). The last of them passes the barrier of
//! all processes ([`Barrier`]): a process whose ranks have ended a step notifies all others, and
//! waits until each of them has sent the same notice. The barrier is a separate job on the nodes' transport and uses their progress notices
//! ([`Notice::Loaded`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use belady_base::sync::{Arc, Condvar, Mutex, lock};
use belady_peer::{
    Channel, Cluster, GetReply, GetRequest, Handler, JobWorld, NodeId, Notice, Push, PushOutcome,
    Registration,
};

/// A rank that takes longer than this for a step has failed.
const LIMIT: Duration = Duration::from_mins(5);
/// The time between two attempts to notify a rank.
const AGAIN: Duration = Duration::from_millis(50);
/// The time limit of an attempt.
const ANSWER: Duration = Duration::from_secs(5);

/// A barrier of all ranks of all processes.
#[derive(Debug)]
pub struct StepBarrier {
    local: Mutex<LocalRanks>,
    changed: Condvar,
    ranks: u32,
    /// `None` for one process.
    processes: Option<Mutex<Barrier>>,
}

#[derive(Debug, Default)]
struct LocalRanks {
    /// Ranks that have ended the present step.
    arrived: u32,
    /// Steps that all ranks have ended.
    steps: u64,
    /// A rank has failed: none waits any more.
    is_broken: bool,
}

impl StepBarrier {
    /// Makes the barrier of so many ranks of this process, and of all processes.
    pub fn new(ranks: u32, cluster: Option<&Arc<Cluster>>) -> anyhow::Result<Self> {
        let processes = cluster.map(Barrier::new).transpose()?.map(Mutex::new);
        Ok(Self { local: Mutex::default(), changed: Condvar::new(), ranks, processes })
    }

    /// Ends a step of a rank, and returns when all ranks have ended it.
    ///
    /// # Errors
    /// If another rank of this process has failed, or a process has not ended the step within the
    /// limit.
    pub fn pass(&self) -> anyhow::Result<()> {
        let mut local = lock(&self.local);
        let step = local.steps;
        local.arrived += 1;
        if local.arrived == self.ranks {
            // The other ranks of this process wait meanwhile.
            if let Some(processes) = &self.processes {
                lock(processes).pass()?;
            }
            (local.arrived, local.steps) = (0, step + 1);
            self.changed.notify_all();
            return Ok(());
        }
        while local.steps == step && !local.is_broken {
            local = self.changed.wait(local).unwrap_or_else(PoisonError::into_inner);
        }
        anyhow::ensure!(local.steps > step, "another rank of this process has failed");
        Ok(())
    }

    /// Ends the waits of all ranks of this process, because one of them has failed.
    pub fn give_up(&self) {
        lock(&self.local).is_broken = true;
        self.changed.notify_all();
    }
}

/// A barrier of all processes.
#[derive(Debug)]
struct Barrier {
    cluster: Arc<Cluster>,
    arrivals: Arc<Arrivals>,
    /// One for each other rank, so that a slow rank does not delay the notices to others.
    notifiers: Vec<RankNotifier>,
    /// Stops the retries of notices.
    over: Arc<AtomicBool>,
    _serving: Registration,
    /// The number of steps that this rank has ended.
    steps: u64,
    limit: Duration,
}

#[derive(Debug)]
struct RankNotifier {
    steps: Sender<u64>,
    thread: JoinHandle<()>,
}

impl Drop for Barrier {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        for RankNotifier { steps, thread } in self.notifiers.drain(..) {
            drop(steps);
            let _ = thread.join();
        }
    }
}

/// The number of steps that each rank has reported as ended.
#[derive(Debug)]
struct Arrivals {
    steps: Mutex<Vec<u64>>,
    changed: Condvar,
}

impl Barrier {
    /// Makes the barrier, and returns when all ranks have made theirs.
    fn new(cluster: &Arc<Cluster>) -> anyhow::Result<Self> {
        let steps = vec![0; cluster.world().size as usize];
        let arrivals = Arc::new(Arrivals { steps: Mutex::new(steps), changed: Condvar::new() });
        let channel = cluster.next_channel();
        let job: Arc<dyn Handler> = arrivals.clone();
        let job: Weak<dyn Handler> = Arc::downgrade(&job);
        let serving = cluster.transport.dispatcher().register(channel, job);
        // A notice to a channel that is not open yet would be lost.
        cluster.rendezvous.exchange("barrier", &[])?;
        let JobWorld { rank, size } = cluster.world();
        let others = (0..size).filter(|&peer| peer != rank);
        let over = Arc::new(AtomicBool::new(false));
        let notifiers = others.map(|peer| notifier(cluster.clone(), over.clone(), channel, peer));
        let notifiers =
            notifiers.collect::<std::io::Result<_>>().context("cannot start a thread")?;
        let cluster = cluster.clone();
        Ok(Self { cluster, arrivals, notifiers, over, _serving: serving, steps: 0, limit: LIMIT })
    }

    /// Ends a step of this rank, and returns when all ranks have ended it.
    ///
    /// # Errors
    /// If a rank has not ended it within the limit.
    fn pass(&mut self) -> anyhow::Result<()> {
        self.steps += 1;
        self.arrivals.ended(self.cluster.world().rank, self.steps);
        for notifier in &self.notifiers {
            // The receiver lives as long as the barrier.
            let _ = notifier.steps.send(self.steps);
        }
        self.wait(Instant::now() + self.limit)
    }

    fn wait(&self, deadline: Instant) -> anyhow::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        let late = |steps: &mut Vec<u64>| steps.iter().any(|&ended| ended < self.steps);
        let steps = lock(&self.arrivals.steps);
        let (steps, _) = self
            .arrivals
            .changed
            .wait_timeout_while(steps, left, late)
            .unwrap_or_else(PoisonError::into_inner);
        match steps.iter().position(|&ended| ended < self.steps) {
            None => Ok(()),
            Some(rank) => bail!(
                "rank {rank} has not ended step {} within {:?}: check whether it runs",
                self.steps,
                self.limit
            ),
        }
    }
}

impl Arrivals {
    fn ended(&self, rank: NodeId, count: u64) {
        if let Some(steps) = lock(&self.steps).get_mut(rank as usize) {
            *steps = count.max(*steps);
        }
        self.changed.notify_all();
    }
}

/// Starts a thread that sends this rank's steps to another rank until the barrier is dropped. It
/// retries a failed notice, but not after that: a rank that has left does not need it.
fn notifier(
    cluster: Arc<Cluster>,
    over: Arc<AtomicBool>,
    channel: Channel,
    peer: NodeId,
) -> std::io::Result<RankNotifier> {
    let (steps, ended) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name(format!("barrier-{peer}")).spawn(move || {
        for steps in ended {
            let notice = Notice::Loaded { steps };
            let tell = || cluster.transport.tell(peer, channel, &notice, Instant::now() + ANSWER);
            while tell().is_err() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                std::thread::sleep(AGAIN);
            }
        }
    })?;
    Ok(RankNotifier { steps, thread })
}

/// Receives notices, and has no samples.
impl Handler for Arrivals {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, _: usize, replies: &mut Vec<GetReply>) {
        replies.extend(request.asks.iter().map(|_| GetReply::NotHere));
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        taken.extend(pushes.iter().map(|_| PushOutcome::Refused));
    }

    fn told(&self, from: NodeId, notice: &Notice) {
        if let Notice::Loaded { steps } = notice {
            self.ended(from, *steps);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use belady_peer::memory::MemoryTransport;
    use belady_peer::rendezvous::InProcessRendezvous;

    use super::*;

    fn clusters(nodes: u32) -> Vec<Arc<Cluster>> {
        let rendezvous = InProcessRendezvous::new(nodes, Duration::from_mins(1));
        let transports = MemoryTransport::network(nodes);
        let cluster =
            |(rank, transport)| Arc::new(Cluster::new(rendezvous.member(rank), transport));
        (0..).zip(transports).map(|(rank, transport)| cluster((rank, transport as _))).collect()
    }

    #[test]
    fn no_local_rank_is_more_than_one_step_ahead_of_another() {
        let inside = [const { AtomicU32::new(0) }; 3];
        let barrier = StepBarrier::new(3, None).expect("no processes to wait for");
        thread::scope(|scope| {
            for rank in 0..3 {
                let (inside, barrier) = (&inside, &barrier);
                scope.spawn(move || {
                    for step in 1..=200 {
                        inside[rank].store(step, Ordering::SeqCst);
                        barrier.pass().expect("all pass");
                        let others = inside.iter().map(|other| other.load(Ordering::SeqCst));
                        assert!(others.into_iter().all(|other| other == step || other == step + 1));
                    }
                });
            }
        });
    }

    #[test]
    fn a_local_rank_that_fails_ends_the_waits_of_the_others() {
        let barrier = StepBarrier::new(2, None).expect("no processes to wait for");
        thread::scope(|scope| {
            let waits = scope.spawn(|| barrier.pass().expect_err("rank 1 fails").to_string());
            barrier.give_up();
            assert!(waits.join().expect("no panic").contains("has failed"));
            barrier.pass().expect("the last one to come does not wait");
        });
    }

    #[test]
    fn no_rank_is_more_than_one_step_ahead_of_another() {
        let inside = [const { AtomicU32::new(0) }; 3];
        thread::scope(|scope| {
            for (rank, cluster) in clusters(3).into_iter().enumerate() {
                let inside = &inside;
                scope.spawn(move || {
                    let mut barrier = Barrier::new(&cluster).expect("all come");
                    for step in 1..=200 {
                        inside[rank].store(step, Ordering::SeqCst);
                        barrier.pass().expect("all pass");
                        let others = inside.iter().map(|other| other.load(Ordering::SeqCst));
                        assert!(others.into_iter().all(|other| other == step || other == step + 1));
                    }
                });
            }
        });
    }

    /// Regression test: dropping the barrier hung until the limit if a rank had left without
    /// acknowledging a notice.
    #[test]
    fn a_rank_that_has_left_does_not_delay_the_end_of_the_others() {
        let clusters = clusters(2);
        thread::scope(|scope| {
            let second = scope.spawn(|| Barrier::new(&clusters[1]).expect("all come"));
            let mut barrier = Barrier::new(&clusters[0]).expect("all come");
            drop(second.join().expect("no panic"));
            clusters[1].transport.close();
            barrier.limit = Duration::from_millis(20);
            barrier.pass().expect_err("rank 1 has left");
        });
    }

    #[test]
    fn the_error_names_the_rank_that_has_not_ended_the_step() {
        let clusters = clusters(2);
        let told = thread::scope(|scope| {
            let second = scope.spawn(|| Barrier::new(&clusters[1]).expect("all come"));
            let mut barrier = Barrier::new(&clusters[0]).expect("all come");
            let _second = second.join().expect("no panic");
            barrier.limit = Duration::from_millis(20);
            barrier.pass().expect_err("rank 1 does not pass").to_string()
        });
        assert!(told.contains("rank 1 has not ended step 1"), "{told}");
    }
}
