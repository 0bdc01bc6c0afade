//! Plans batches ahead of the consumer, on one thread a job.
//!
//! For each step and each rank of this node, the planner reserves the batch's space in the rank's
//! ring, and tells the policy first that there is space for the batches and then that the step is
//! consumed: policies think in logical time. The batches then go to the fill stage, which fills them in any order, and steps
//! retire in order. So the policy's events do not depend on how fast anything is, apart from what is fetched
//! in the background.
//!
//! Until the plan of the first epoch is ready, batches come from the source and from warm entries.

mod decide;
mod epochs;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_base::sync::Arc;
use belady_control::model::Bytes;
use belady_control::policy::{Evict, PolicyPlan, RankId, Staging};
use belady_control::sampler::{EpochOrder, SampleId, Step};
use belady_data::stage::{RingBlock, RingConfig, RingProducer, Wait};

pub use epochs::Epochs;

use crate::EngineError;
use crate::fill::{FillStage, compare_ahead};
use crate::job::JobContext;
use crate::peers::Peers;
use crate::pending::{BatchPlan, PendingBatch, PendingQueue, RetireStage};
use decide::BatchDecision;

/// How long the first batch of a large job waits for the plan; a consumer would not notice.
const PATIENCE: Duration = Duration::from_millis(5);
/// A job of fewer samples is planned in milliseconds unless the machine is busy. Then it waits, so
/// that what it keeps does not depend on the load.
const SMALL: u32 = 100_000;
const PATIENCE_OF_SMALL: Duration = Duration::from_secs(2);
/// Queued tasks for each thread at which the next batch is planned.
const QUEUED_PER_THREAD: usize = 1;
/// How often a planner that waits for space checks whether to stop.
const TICK: Duration = Duration::from_millis(500);
/// How long the consumer may wait for a batch while it holds all batches that fit into the ring.
const ALL_LENT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });
/// A run without an end fails after this many epochs in a row without a batch, instead of going on
/// silently.
const EMPTY_EPOCHS: u32 = 100;

/// What the planner works with.
#[derive(Debug)]
pub struct PlannerParts {
    pub job: Arc<JobContext>,
    pub peers: Option<Arc<Peers>>,
    pub queue: Arc<PendingQueue>,
    pub fill: Arc<FillStage>,
    pub retire: Arc<dyn RetireStage>,
    pub epochs: Epochs,
    /// By local rank.
    pub rings: Vec<RingProducer>,
    pub ring: RingConfig,
    /// The global number of local rank 0.
    pub first_rank: RankId,
    /// The first step that is staged.
    pub begin: Step,
}

/// The plan stage of a job.
pub struct BatchPlanner {
    parts: PlannerParts,
    /// By local rank.
    ranks: Vec<BatchDraft>,
    /// `None` until the plan is ready.
    plan: Option<Arc<dyn PolicyPlan>>,
    /// The first epoch that has a batch.
    first: Option<u32>,
}

/// The batch of one rank that is being planned.
#[derive(Default)]
struct BatchDraft {
    samples: Vec<SampleId>,
    lengths: Vec<u64>,
    /// Bytes of the present epoch that were planned for the rank.
    epoch_bytes: u64,
}

impl BatchPlanner {
    pub fn new(parts: PlannerParts) -> Self {
        let ranks = parts.rings.iter().map(|_| BatchDraft::default()).collect();
        Self { parts, ranks, plan: None, first: None }
    }

    /// Plans all batches, until the job ends.
    pub fn run(mut self) {
        let job = self.parts.job.clone();
        let _guard = job.panic_guard();
        if let Err(error) = self.plan_epochs() {
            job.failures.after_planned(error);
        }
        for ring in &self.parts.rings {
            ring.finish();
        }
    }

    fn plan_epochs(&mut self) -> Result<(), EngineError> {
        let mut empty = 0;
        for epoch in 0.. {
            let job = self.parts.job.clone();
            let Some(order) = self.parts.epochs.order(epoch, || job.is_stopping())? else {
                return Ok(());
            };
            self.begin_epoch(epoch, &order);
            empty = if order.iterations() == 0 { empty + 1 } else { 0 };
            if empty == EMPTY_EPOCHS && self.parts.epochs.are_endless() {
                return Err(EngineError::EmptyEpochs { epochs: empty });
            }
            let mut is_planned = false;
            for iteration in 0..order.iterations() {
                let step = Step { epoch, iteration };
                is_planned = is_planned || self.take_plan(step)?;
                if step < self.parts.begin {
                    self.skip(epoch);
                } else if !self.plan_step(step, &order)? {
                    return Ok(());
                }
            }
            // No batch does so if none of the epoch was left to stage.
            if let Some(peers) = &self.parts.peers {
                peers.notify_epochs_done();
            }
        }
        Ok(())
    }

    fn begin_epoch(&mut self, epoch: u32, order: &Arc<EpochOrder>) {
        let PlannerParts { job, peers, begin, .. } = &self.parts;
        job.epochs.begin(order.iterations());
        if let Some(peers) = peers {
            peers.begin_epoch(order.iterations());
            peers.orders.begin(epoch, order);
        }
        job.epochs.begin_comparing(epoch, &*job.source);
        for (rank, batch) in (self.parts.first_rank..).zip(&mut self.ranks) {
            batch.epoch_bytes = 0;
            if epoch >= begin.epoch {
                compare_ahead(job, order, rank);
            }
        }
        if let Some(peers) = peers.as_ref().filter(|_| epoch > begin.epoch) {
            peers.wait_to_begin();
        }
    }

    /// Takes the plan for a step's epoch; returns whether the plan knows the epoch.
    fn take_plan(&mut self, Step { epoch, iteration }: Step) -> Result<bool, EngineError> {
        let PlannerParts { job, peers, epochs, .. } = &self.parts;
        // Only the very first batches may be staged without a plan: a later epoch would be planned
        // twice.
        let first = *self.first.get_or_insert(epoch) == epoch;
        let patience = match (first, iteration) {
            // Nodes count on each other to follow the plan from the first batch on.
            (true, _) if peers.is_some() => Duration::MAX,
            (true, 0) if job.sizes.len() < SMALL => PATIENCE_OF_SMALL,
            (true, 0) => PATIENCE,
            (true, _) => Duration::ZERO,
            (false, _) => Duration::MAX,
        };
        let Some(plan) = epochs.plan(epoch, patience, || job.is_stopping())? else {
            return Ok(false);
        };
        job.one_at_a_time.store(plan.staging() == Staging::OnDemand, Ordering::Relaxed);
        job.policy.begin(&plan, epoch);
        if self.plan.is_none() {
            job.assign_first_threads(&plan.threads());
        }
        self.plan = Some(plan);
        Ok(true)
    }

    /// Counts a step that was over before this node joined the job.
    fn skip(&self, epoch: u32) {
        let PlannerParts { job, peers, .. } = &self.parts;
        let planned = job.planned.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(peers) = peers {
            peers.skip_steps(planned);
        }
        for rank in &job.ranks {
            rank.demand.skip();
            job.epochs.retired(epoch);
        }
    }

    /// Plans the batches of one step; returns whether to go on.
    fn plan_step(&mut self, step: Step, order: &EpochOrder) -> Result<bool, EngineError> {
        let job = self.parts.job.clone();
        for rank in 0..self.ranks.len() {
            self.take_batch(rank, step, order)?;
        }
        let sequence = job.planned.load(Ordering::Relaxed) + 1;
        self.wait_for_consumers(step, sequence);
        // Space that is reserved before a thread can fill it is only out of use.
        let enough = QUEUED_PER_THREAD * job.lane.threads() as usize;
        while job.lane.queued() >= enough && !job.is_stopping() {
            job.lane.wait_until_short(enough, TICK);
        }
        let Some(blocks) = self.reserve_all(step)? else { return Ok(false) };
        let plans = self.decide(step, &blocks);
        let PlannerParts { queue, fill, retire, .. } = &self.parts;
        let mut batches = vec![];
        for (rank, (block, plan)) in blocks.into_iter().zip(plans).enumerate() {
            match block {
                Some(block) => {
                    let next = retire.clone();
                    batches.push(PendingBatch::new(&job, next, block, plan, rank, sequence));
                }
                None => job.epochs.retired(step.epoch),
            }
        }
        job.step_waits.begin(sequence, step, batches.len() as u32);
        job.planned.store(sequence, Ordering::Release);
        queue.push(&batches);
        if job.threads.meter.is_due() {
            job.tell_measured(queue.pending_loads(self.ranks.len()));
        }
        for batch in &batches {
            if batch.items.is_empty() {
                batch.is_complete();
            }
            fill.dispatch(batch, 0..batch.items.len() as u32);
        }
        fill.prefetcher.ask_all();
        job.metrics.queue_depth(job.lane.queued());
        Ok(true)
    }

    /// Takes the samples of a rank's batch from the order.
    fn take_batch(
        &mut self,
        rank: usize,
        step: Step,
        order: &EpochOrder,
    ) -> Result<(), EngineError> {
        let batch = &mut self.ranks[rank];
        batch.samples.clear();
        batch.samples.extend(order.batch(self.parts.first_rank + rank as RankId, step.iteration));
        batch.lengths.clear();
        let job = &self.parts.job;
        batch.lengths.extend(batch.samples.iter().map(|&sample| job.size(sample)));
        batch.epoch_bytes += batch.lengths.iter().sum::<u64>();
        batch.check_size(&self.parts.ring)
    }

    /// Waits until no consumer is so far behind that the step is not to be staged yet.
    fn wait_for_consumers(&mut self, step: Step, sequence: u64) {
        let job = self.parts.job.clone();
        let on_demand = self.plan.as_ref().is_some_and(|plan| plan.staging() == Staging::OnDemand);
        for ((rank, batch), ring) in job.ranks.iter().zip(&self.ranks).zip(&mut self.parts.rings) {
            let stopping = || job.is_stopping() || rank.is_gone();
            rank.horizon.wait(step, batch.epoch_bytes, stopping, || ring.trim());
            if on_demand {
                rank.demand.wait_beyond(sequence - 1, stopping);
            }
        }
    }

    /// Asks the policy about the batches of a step. It is told of a rank without a block too, since
    /// other nodes plan with that rank: what the rank would evict, another batch evicts.
    fn decide(&self, step: Step, blocks: &[Option<RingBlock>]) -> Vec<BatchPlan> {
        let mut plans: Vec<BatchPlan> = (0..)
            .zip(&self.ranks)
            .map(|(rank, batch)| self.decision(rank, step).stage(&batch.samples))
            .collect();
        for (rank, (batch, plan)) in (0..).zip(self.ranks.iter().zip(&mut plans)) {
            self.decision(rank, step).consume(&batch.samples, plan);
        }
        let mut evictions = vec![];
        for (plan, _) in plans.iter_mut().zip(blocks).filter(|(_, block)| block.is_none()) {
            evictions.append(&mut plan.evictions);
            let used_up = plan.items.iter().filter(|item| item.last_use);
            evictions.extend(
                used_up.filter_map(|item| Some(Evict { sample: item.sample, tier: item.tier()? })),
            );
        }
        if let Some((plan, _)) = plans.iter_mut().zip(blocks).find(|(_, block)| block.is_some()) {
            plan.evictions.append(&mut evictions);
        }
        plans
    }

    fn decision(&self, rank: RankId, step: Step) -> BatchDecision<'_> {
        BatchDecision {
            job: &self.parts.job,
            peers: self.parts.peers.as_deref(),
            // In the first epoch holders still get their samples, and the policy knows which is
            // first.
            plan: self.plan.as_deref().filter(|_| step.epoch > 0),
            rank: self.parts.first_rank + rank,
            step,
            // The last uses of the last epoch stay: the next run may begin with them.
            is_last_epoch: self.parts.epochs.is_last(step.epoch),
        }
    }

    /// Reserves the blocks of a step, by local rank; none for a rank that is gone. Returns `None` to
    /// stop.
    fn reserve_all(&mut self, step: Step) -> Result<Option<Vec<Option<RingBlock>>>, EngineError> {
        let mut blocks = vec![];
        for rank in 0..self.ranks.len() {
            blocks.push(self.reserve(rank, step)?);
        }
        let go_on = !self.parts.job.is_stopping() && blocks.iter().any(Option::is_some);
        Ok(go_on.then_some(blocks))
    }

    /// Reserves a batch's block when there is space for it; returns `None` to stop, or if the rank
    /// is gone.
    fn reserve(&mut self, rank: usize, step: Step) -> Result<Option<RingBlock>, EngineError> {
        let mut stuck_since = None;
        let job = self.parts.job.clone();
        let BatchDraft { samples, lengths, .. } = &self.ranks[rank];
        loop {
            if job.is_stopping() || job.ranks[rank].is_gone() {
                return Ok(None);
            }
            let ring = &mut self.parts.rings[rank];
            if let Some(block) = ring.reserve(step, samples, lengths)? {
                return Ok(Some(block));
            }
            match ring.wait(TICK) {
                Wait::ConsumerGone => job.ranks[rank].leave(),
                Wait::Stopped => return Ok(None),
                Wait::TimedOut if self.consumer_has_all(rank) => {
                    let since = *stuck_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > ALL_LENT {
                        let batches = self.parts.rings[rank].lent();
                        return Err(EngineError::AllLent { batches });
                    }
                }
                Wait::Released | Wait::TimedOut => stuck_since = None,
            }
        }
    }

    /// Returns whether a consumer waits for a batch while it holds all batches that fit.
    fn consumer_has_all(&self, rank: usize) -> bool {
        let PlannerParts { job, rings, queue, .. } = &self.parts;
        let ring = &rings[rank];
        let is_waiting = job.ranks[rank].demand.is_waiting();
        is_waiting && ring.lent() > 0 && ring.ready() == 0 && queue.is_empty()
    }
}

impl BatchDraft {
    /// Checks that the batch fits into the ring: the batches of an order that comes over time are
    /// not known before.
    fn check_size(&self, ring: &RingConfig) -> Result<(), EngineError> {
        let (bytes, batch) = (self.lengths.iter().sum(), self.samples.len() as u32);
        if ring.check(bytes, batch).is_ok() {
            return Ok(());
        }
        let needed = Bytes(RingConfig::needed(bytes, batch, ring.align));
        let given = Bytes(ring.capacity as u64);
        Err(EngineError::StagingTooSmall { given, needed, batch })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use belady_control::policy::PolicyKind;
    use belady_data::source::{Catalog, Operations, ReadError, Source, Synthetic, Want};

    use super::*;
    use crate::{Engine, EngineConfig, JobConfig, Loader};

    fn engine() -> Engine {
        Engine::new(EngineConfig { threads: Some(2), tiers: vec![], ..EngineConfig::default() })
            .unwrap()
    }

    /// A source that answers while it is open, and knows how many reads it had at once.
    #[derive(Debug)]
    struct Gated {
        inner: Synthetic,
        open: AtomicBool,
        now: AtomicU32,
        most: AtomicU32,
    }

    impl Gated {
        fn new(open: bool) -> Arc<Self> {
            let inner = Synthetic::of_sizes([1000; 80], 1);
            let (now, most) = (AtomicU32::new(0), AtomicU32::new(0));
            Arc::new(Self { inner, open: AtomicBool::new(open), now, most })
        }

        fn most(&self) -> u32 {
            self.most.load(Ordering::Acquire)
        }
    }

    impl Source for Gated {
        fn catalog(&self) -> &Catalog {
            self.inner.catalog()
        }

        fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
            let now = self.now.fetch_add(1, Ordering::AcqRel) + 1;
            self.most.fetch_max(now, Ordering::AcqRel);
            loop {
                std::thread::sleep(Duration::from_millis(2));
                if self.open.load(Ordering::Acquire) {
                    break;
                }
            }
            self.now.fetch_sub(1, Ordering::AcqRel);
            self.inner.read(wants)
        }

        fn operations(&self) -> Operations {
            self.inner.operations()
        }
    }

    fn start_gated(engine: &Engine, source: &Arc<Gated>, policy: &str) -> Loader {
        let mut job = JobConfig::new(source.clone());
        (job.batch, job.epochs) = (8, Some(1));
        job.policy = PolicyKind::by_name(policy).unwrap();
        engine.start(&job).unwrap()
    }

    #[test]
    fn a_policy_that_loads_on_demand_reads_one_sample_after_the_other() {
        let source = Gated::new(true);
        let engine = engine();
        let mut loader = start_gated(&engine, &source, "naive");
        let mut batches = 0;
        while loader.next_batch().unwrap().is_some() {
            batches += 1;
        }
        assert_eq!((batches, source.most()), (10, 1));
    }

    /// What is planned before it can be loaded only waits.
    #[test]
    fn a_batch_is_planned_when_threads_are_nearly_idle() {
        let source = Gated::new(false);
        let engine = engine();
        let mut loader = start_gated(&engine, &source, "staging");
        while source.most() < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(300));
        // A batch is four pieces of work, and all ten of them would fit into the ring.
        let queued = engine.metrics().snapshot().queue_depth;
        assert!(queued <= 4, "{queued}");
        source.open.store(true, Ordering::Release);
        while loader.next_batch().unwrap().is_some() {}
    }

    /// The ring has room for two of ten batches.
    fn start(engine: &Engine, policy: &str) -> Loader {
        let source = Arc::new(Synthetic::of_sizes([1000; 80], 1));
        let mut job = JobConfig::new(source);
        (job.batch, job.epochs) = (8, Some(1));
        job.staging = Bytes(2 * RingConfig::needed(8 * 1000, 8, 64).div_ceil(2));
        job.policy = PolicyKind::by_name(policy).unwrap();
        engine.start(&job).unwrap()
    }

    #[test]
    fn a_consumer_that_asks_for_more_batches_than_fit_gets_an_error() {
        let mut loader = start(&engine(), "staging");
        let mut held = vec![];
        let error = loop {
            match loader.next_batch() {
                Ok(batch) => held.push(batch.expect("there are ten")),
                Err(error) => break error,
            }
        };
        assert!((2..10).contains(&held.len()), "{}", held.len());
        let all = held.len() as u32;
        assert!(matches!(error, EngineError::AllLent { batches } if batches == all), "{error}");
    }

    #[test]
    fn a_consumer_may_hold_all_batches_for_as_long_as_it_asks_for_none() {
        let mut loader = start(&engine(), "staging");
        let mut held = vec![];
        for _ in 0..2 {
            held.push(loader.next_batch().unwrap().unwrap());
        }
        std::thread::sleep(2 * ALL_LENT);
        held.clear();
        let mut more = 0;
        while loader.next_batch().unwrap().is_some() {
            more += 1;
        }
        assert_eq!(more, 8);
    }

    #[test]
    fn only_a_policy_that_loads_on_demand_waits_until_it_is_asked() {
        let read = |engine: &Engine| engine.metrics().snapshot().source.samples;
        let ahead = engine();
        let _loader = start(&ahead, "staging");
        while read(&ahead) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let on_demand = engine();
        let mut loader = start(&on_demand, "naive");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(read(&on_demand), 0);
        assert!(loader.next_batch().unwrap().is_some());
        assert!((8..=16).contains(&read(&on_demand)));
    }
}
