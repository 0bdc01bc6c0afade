//! Fills tiers in the background, for policies that ask for it: when a tier's prefetcher is idle,
//! it asks the policy what to fetch. The prefetchers of policies that count on it have threads of
//! their own, as many as the system has for the tier.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use belady_base::SampleId;
use belady_base::memory::Memory;
use belady_base::sync::Arc;
use belady_control::policy::{Event, TierId};
use belady_data::source::{ReadError, Want};
use belady_data::tier::Put;

use crate::EngineError;
use crate::job::{JobContext, ReadRole, Waiter};
use crate::pool::{Hung, Lane, Task, Watched, Worker};

/// Samples that a prefetcher asks for at once.
const AT_A_TIME: usize = 32;

/// The prefetchers of a job, one a tier.
#[derive(Debug)]
pub struct PrefetchStage {
    job: Arc<JobContext>,
    /// Fetches in flight; tier j at j − 1.
    in_flight: Vec<AtomicU32>,
    /// The threads of each tier's prefetcher; empty if prefetchers use idle threads of the engine.
    lanes: Vec<Lane>,
    has_fetched: AtomicBool,
}

impl PrefetchStage {
    pub fn new(job: Arc<JobContext>, lanes: Vec<Lane>) -> Self {
        let in_flight = (0..job.tiers.len()).map(|_| AtomicU32::new(0)).collect();
        Self { job, in_flight, lanes, has_fetched: AtomicBool::new(false) }
    }

    /// Drops waiting fetches, and waits for running ones: they refer to the job.
    pub fn close(&self) {
        for lane in &self.lanes {
            lane.close();
        }
    }

    fn submit(&self, tier: TierId, tasks: impl IntoIterator<Item = Task>) {
        match self.lanes.get(usize::from(tier) - 1) {
            Some(lane) => lane.submit_for(0, tasks),
            None => self.job.lane.submit_background(tasks),
        }
    }

    /// Returns whether the policy has ever asked for a fetch.
    pub fn has_fetched(&self) -> bool {
        self.has_fetched.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn pretend_to_have_fetched(&self) {
        self.has_fetched.store(true, Ordering::Relaxed);
    }

    fn in_flight(&self, tier: TierId) -> &AtomicU32 {
        &self.in_flight[usize::from(tier) - 1]
    }

    /// Lets idle prefetchers ask the policy what to fetch.
    pub fn ask_all(self: &Arc<Self>) {
        for tier in self.job.tiers.ids() {
            self.ask(tier);
        }
    }

    fn ask(self: &Arc<Self>, tier: TierId) {
        let job = &self.job;
        let busy = self.in_flight(tier);
        // Counts one more while asking, so that no other thread asks.
        if job.is_stopping()
            || job.tiers.get(tier).is_none()
            || busy.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return;
        }
        let fetches: Vec<SampleId> = job
            .policy
            .send(Event::Idle { tier, limit: AT_A_TIME }, |actions| {
                for evict in &actions.evictions {
                    job.tiers.evict(evict.tier, evict.sample);
                }
                actions.fetches.iter().map(|fetch| fetch.sample).collect()
            })
            .unwrap_or_default();
        if !fetches.is_empty() {
            self.has_fetched.store(true, Ordering::Relaxed);
        }
        busy.fetch_add(fetches.len() as u32, Ordering::AcqRel);
        let task = |sample| {
            let this = self.clone();
            job.task(move |worker| this.fetch(worker, tier, sample))
        };
        self.submit(tier, fetches.into_iter().map(task));
        busy.fetch_sub(1, Ordering::AcqRel);
    }

    fn fetch(self: &Arc<Self>, worker: &Worker, tier: TierId, sample: SampleId) {
        let job = &self.job;
        if job.is_stopping() {
            return;
        }
        if job.tiers.holds(tier, sample) {
            job.tiers.adopt(tier, sample);
            return self.fetched(tier, sample);
        }
        let planned = job.planned.load(Ordering::Acquire);
        let waiter = || -> Box<dyn Waiter> {
            Box::new(FetchWaiter { prefetcher: self.clone(), tier, sample })
        };
        match job.in_flight.fetch_or_wait(sample, planned, waiter) {
            ReadRole::Lead => {}
            ReadRole::Wait => return,
            ReadRole::Alone => return self.ended(tier),
        }
        // The leader of the read before this one may have stored it meanwhile.
        if job.tiers.holds(tier, sample) {
            job.in_flight.fail(sample);
            job.tiers.adopt(tier, sample);
            return self.fetched(tier, sample);
        }
        let began = Instant::now();
        let on_timeout = {
            let this = self.clone();
            move |hung: Hung| {
                let job = &this.job;
                job.metrics.timeout();
                if hung.too_many {
                    let (hung, limit) = (hung.threads, job.retry.timeout);
                    job.fail(EngineError::SourceHangs { hung, limit, sample });
                }
                job.in_flight.fail(sample);
                this.ended(tier);
            }
        };
        match worker.watch(on_timeout, || read(job, sample)) {
            Watched::TooLate => {}
            Watched::InTime(Err(error)) => {
                // The batch that needs it tries again, and reports the error.
                tracing::debug!(%error, "cannot prefetch");
                job.in_flight.fail(sample);
                self.ended(tier);
            }
            Watched::InTime(Ok((bytes, version))) => {
                let took = began.elapsed();
                job.rates.source(1, bytes.len() as u64, took);
                job.metrics.source_read(took);
                let end_read = {
                    let job = job.clone();
                    move || job.in_flight.fail(sample)
                };
                if !self.store(worker, tier, (sample, version), &bytes, end_read) {
                    return;
                }
                for waiter in job.in_flight.end(sample).waiters {
                    waiter.arrived(&bytes, version);
                }
            }
        }
    }

    /// Puts a sample into its tier and tells the policy; returns false if that hangs. Then another
    /// thread calls `instead`.
    fn store(
        self: &Arc<Self>,
        worker: &Worker,
        tier: TierId,
        (sample, version): (SampleId, i64),
        bytes: &[u8],
        instead: impl FnOnce() + Send + 'static,
    ) -> bool {
        let on_timeout = {
            let this = self.clone();
            move || {
                instead();
                this.ended(tier);
            }
        };
        let put =
            self.job.put_watched(worker, tier, (sample, version), |put| put(bytes), on_timeout);
        if let Some(put) = put {
            self.stored(tier, sample, put);
        }
        put.is_some()
    }

    fn stored(self: &Arc<Self>, tier: TierId, sample: SampleId, put: Put) {
        self.job.metrics.put(tier, put);
        match put {
            Put::Stored | Put::Present => self.fetched(tier, sample),
            Put::Full | Put::Refused => self.ended(tier),
        }
    }

    fn fetched(self: &Arc<Self>, tier: TierId, sample: SampleId) {
        self.job.policy.send(Event::Fetched { tier, sample }, |actions| {
            for evict in &actions.evictions {
                self.job.tiers.evict(evict.tier, evict.sample);
            }
        });
        self.ended(tier);
    }

    /// A fetch has ended, with or without success.
    fn ended(self: &Arc<Self>, tier: TierId) {
        if self.in_flight(tier).fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ask(tier);
        }
    }
}

/// A fetch that waits for an in-flight read of its sample.
struct FetchWaiter {
    prefetcher: Arc<PrefetchStage>,
    tier: TierId,
    sample: SampleId,
}

impl Waiter for FetchWaiter {
    fn arrived(self: Box<Self>, bytes: &[u8], version: i64) {
        let Self { prefetcher, tier, sample } = *self;
        let job = prefetcher.job.clone();
        if !job.tiers.may_hang(tier) {
            return prefetcher.stored(tier, sample, job.tiers.put(tier, sample, bytes, version));
        }
        let (bytes, stage) = (Memory::from(bytes), prefetcher.clone());
        let task = job.task(move |worker| {
            stage.store(worker, tier, (sample, version), &bytes, || {});
        });
        prefetcher.submit(tier, [task]);
    }

    fn failed(self: Box<Self>) {
        self.prefetcher.ended(self.tier);
    }
}

/// Reads a sample that is not part of a batch, and returns the version of its file.
fn read(job: &JobContext, sample: SampleId) -> Result<(Memory, i64), ReadError> {
    let mut bytes = Memory::zeroed(job.size(sample) as usize);
    let mut wants = [Want::new(sample, &mut bytes)];
    job.source.read(&mut wants)?;
    let [Want { version, .. }] = wants;
    Ok((bytes, version))
}
