//! All ranks end a step together, as the allreduce of training makes them: with `--barrier`, an epoch
//! takes as long as it would take there.
//!
//! A rank that has ended a step tells all others so, and waits until it has heard the same of each.
//! It says it as a job of its own on the nodes' transport, in the words in which nodes tell each other
//! how far they are ([`Notice::Loaded`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use belady_data::sync::{Arc, Condvar, Mutex, lock};
use belady_peer::{
    Channel, Cluster, NodeId, Notice, Push, Reply, Request, Serve, Serving, Taken, World,
};

/// A rank that takes longer over a step has failed: nobody trains like that.
const LIMIT: Duration = Duration::from_mins(5);
/// Between two attempts to tell a rank something.
const AGAIN: Duration = Duration::from_millis(50);
/// An attempt takes no longer.
const ANSWER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Barrier {
    cluster: Arc<Cluster>,
    arrivals: Arc<Arrivals>,
    /// Tell the other ranks, each one: none waits until another has heard.
    tellers: Vec<Teller>,
    /// Nobody waits for anybody any more.
    over: Arc<AtomicBool>,
    _serving: Serving,
    /// That this rank has ended.
    steps: u64,
    limit: Duration,
}

#[derive(Debug)]
struct Teller {
    steps: Sender<u64>,
    thread: JoinHandle<()>,
}

impl Drop for Barrier {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        for Teller { steps, thread } in self.tellers.drain(..) {
            drop(steps);
            let _ = thread.join();
        }
    }
}

/// Steps that each rank has ended, as far as it has told.
#[derive(Debug)]
struct Arrivals {
    steps: Mutex<Vec<u64>>,
    changed: Condvar,
}

impl Barrier {
    /// Returns when all ranks have made theirs.
    pub fn new(cluster: &Arc<Cluster>) -> anyhow::Result<Self> {
        let steps = vec![0; cluster.world().size as usize];
        let arrivals = Arc::new(Arrivals { steps: Mutex::new(steps), changed: Condvar::new() });
        let channel = cluster.next_channel();
        let job: Arc<dyn Serve> = arrivals.clone();
        let job: Weak<dyn Serve> = Arc::downgrade(&job);
        let serving = cluster.transport.desk().open(channel, job);
        // What is told to a channel that is not open yet is lost.
        cluster.meet.exchange("barrier", &[])?;
        let World { rank, size } = cluster.world();
        let others = (0..size).filter(|&peer| peer != rank);
        let over = Arc::new(AtomicBool::new(false));
        let tellers = others.map(|peer| teller(cluster.clone(), over.clone(), channel, peer));
        let tellers = tellers.collect::<std::io::Result<_>>().context("cannot start a thread")?;
        let cluster = cluster.clone();
        Ok(Self { cluster, arrivals, tellers, over, _serving: serving, steps: 0, limit: LIMIT })
    }

    /// This rank has ended a step: returns when all have.
    pub fn pass(&mut self) -> anyhow::Result<()> {
        self.steps += 1;
        self.arrivals.ended(self.cluster.world().rank, self.steps);
        for teller in &self.tellers {
            // They end when this does.
            let _ = teller.steps.send(self.steps);
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
                "rank {rank} has not ended step {} within {:?}: see whether it runs",
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

/// A thread that tells a rank the steps that it is sent, until nothing is sent any more. What could not
/// be told then is not told again: whoever has left needs it no longer.
fn teller(
    cluster: Arc<Cluster>,
    over: Arc<AtomicBool>,
    channel: Channel,
    peer: NodeId,
) -> std::io::Result<Teller> {
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
    Ok(Teller { steps, thread })
}

/// Has no samples.
impl Serve for Arrivals {
    fn get(&self, _: NodeId, request: &Request<'_>, _: usize, replies: &mut Vec<Reply>) {
        replies.extend(request.asks.iter().map(|_| Reply::NotHere));
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        taken.extend(pushes.iter().map(|_| Taken::Refused));
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

    use belady_peer::meet::Hall;
    use belady_peer::memory::MemoryTransport;

    use super::*;

    fn clusters(nodes: u32) -> Vec<Arc<Cluster>> {
        let hall = Hall::new(nodes, Duration::from_mins(1));
        let transports = MemoryTransport::network(nodes);
        let cluster = |(rank, transport)| Arc::new(Cluster::new(hall.seat(rank), transport));
        (0..).zip(transports).map(|(rank, transport)| cluster((rank, transport as _))).collect()
    }

    #[test]
    fn nobody_is_a_step_ahead_of_anybody() {
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

    /// It hung until the limit, when a rank had left before it said that it had heard.
    #[test]
    fn a_rank_that_has_left_does_not_hold_the_others() {
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
    fn a_rank_that_does_not_come_is_named() {
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
