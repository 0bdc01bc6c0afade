//! Ends a job with the last of its loaders.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use belady_base::sync::Arc;
use belady_control::Job;
use belady_data::stage::ProducerWaker;
use belady_peer::Registration;

use crate::fill::PrefetchStage;
use crate::job::JobContext;
use crate::peers::{Peers, RequestHandler};
use crate::pending::PendingQueue;
use crate::pool::WorkerPool;
use crate::retire::Retirer;

/// What the loaders of a job share, one for each rank of this node. Dropping it ends the job.
#[derive(Debug)]
pub struct JobGuard {
    pub job: Arc<JobContext>,
    pub peers: Option<Arc<Peers>>,
    pub queue: Arc<PendingQueue>,
    pub retire: Arc<Retirer>,
    pub prefetcher: Arc<PrefetchStage>,
    pub planned_job: Arc<Job>,
    /// Serves other nodes while it exists.
    pub serving: Option<(Arc<RequestHandler>, Registration)>,
    pub planner: Option<JoinHandle<()>>,
    /// By local rank.
    pub wakers: Vec<ProducerWaker>,
    /// A loader was dropped before it had delivered all batches.
    pub is_cut_short: AtomicBool,
    /// Keep the threads alive: those of the engine, and those of the prefetchers.
    pub _pool: Arc<WorkerPool>,
    pub _prefetch_pools: Vec<WorkerPool>,
}

impl JobGuard {
    /// A loader is dropped, having delivered all of its batches or not.
    pub fn leave(&self, rank: usize, is_complete: bool) {
        if !is_complete {
            self.is_cut_short.store(true, Ordering::Release);
        }
        self.job.ranks[rank].leave();
        self.wakers[rank].wake();
    }
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        let Self { job, peers, retire, prefetcher, serving, .. } = self;
        if let Some(peers) = peers {
            if !self.is_cut_short.load(Ordering::Acquire) {
                peers.let_others_finish();
            }
            peers.leave();
        }
        *serving = None;
        job.stop();
        for waker in &self.wakers {
            waker.wake();
        }
        if let Some(planner) = self.planner.take() {
            // A panic of the planner has been reported.
            let _ = planner.join();
        }
        prefetcher.close();
        retire.abandon();
        if let Some(reads) = &job.dataset.reads {
            reads.leave(job);
        }
        job.policy.finish();
    }
}
