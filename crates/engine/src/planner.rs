//! The planner: one thread a job that goes through the access stream ahead of the consumer.
//!
//! For each step it reserves the batch's space in the ring, tells the policy that there is
//! room, and right after that the step is done: both in the logical time in which policies
//! think. The loading threads then make it so, in whatever order they can, and end the steps
//! in order. So what a policy is told does not depend on how fast anything is, apart from what
//! is fetched in the background.
//!
//! Until the plan of the first epoch is there, batches come from the source, or from what
//! tiers have kept from an earlier run.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_control::model::Bytes;
use belady_control::policy::{Actions, Event, Evict, Place, Plan, RankId, Staging, TierId};
use belady_control::sampler::{EpochOrder, SampleId, Step};
use belady_data::stage::{Block, Producer, RingConfig, Wait};
use belady_data::sync::{Arc, lock};

use crate::EngineError;
use crate::compare;
use crate::epochs::Epochs;
use crate::load;
use crate::parcel::{Gift, Item, NOWHERE, Parcel, SOURCE};
use crate::peers::{notify, pace};
use crate::prefetch;
use crate::run::Run;

/// How long the first batch of a large job waits for the plan, which a consumer would not notice.
const PATIENCE: Duration = Duration::from_millis(5);
/// A job of fewer samples is planned in milliseconds, unless the machine is busy with other
/// things: then it waits, so that what it keeps does not depend on them.
const SMALL: u32 = 100_000;
const PATIENCE_OF_SMALL: Duration = Duration::from_secs(2);
/// Pieces of work that wait for each thread when the next batch is planned.
const QUEUED_PER_THREAD: usize = 1;
/// How often a planner that waits for room looks whether it should stop.
const TICK: Duration = Duration::from_millis(500);
/// After this long without room, with every batch in the consumer's hands, something is wrong.
const ALL_LENT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });
/// A run without an end ends after so many epochs in a row without a batch: nobody would ever
/// hear of it again.
const EMPTY_EPOCHS: u32 = 100;

pub struct Planner {
    pub run: Arc<Run>,
    pub epochs: Epochs,
    pub producer: Producer,
    ring: RingConfig,
    samples: Vec<SampleId>,
    lengths: Vec<u64>,
    items: Vec<Item>,
    evictions: Vec<Evict>,
    gifts: Vec<Gift>,
    /// This one of the ranks that the orders speak of.
    rank: RankId,
    begin: Step,
    /// The plan is known, and how it stages.
    staging: Option<Staging>,
    plan: Option<Arc<dyn Plan>>,
    /// The first epoch that has a batch.
    first: Option<u32>,
    /// Bytes of the present epoch that were planned.
    epoch_bytes: u64,
}

impl Planner {
    pub fn new(
        run: Arc<Run>,
        epochs: Epochs,
        producer: Producer,
        ring: RingConfig,
        begin: Step,
    ) -> Self {
        Self {
            rank: run.peers.as_ref().map_or(0, |peers| peers.me),
            begin,
            gifts: vec![],
            run,
            epochs,
            producer,
            ring,
            samples: vec![],
            lengths: vec![],
            items: vec![],
            evictions: vec![],
            staging: None,
            plan: None,
            first: None,
            epoch_bytes: 0,
        }
    }

    pub fn run(mut self) {
        let run = self.run.clone();
        let _guard = run.guard();
        let outcome = self.all_epochs();
        if let Err(error) = outcome {
            self.run.end_with(error);
        }
        self.producer.finish();
    }

    fn all_epochs(&mut self) -> Result<(), EngineError> {
        let mut empty = 0;
        for epoch in 0.. {
            let Some(order) = self.epochs.order(epoch, || self.run.is_stopping())? else {
                return Ok(());
            };
            self.run.begin_epoch(order.iterations());
            if let Some(peers) = &self.run.peers {
                peers.orders.begin(epoch, &order);
            }
            self.run.compare_for(epoch);
            if epoch >= self.begin.epoch {
                compare::ahead(&self.run, &order, self.rank);
            }
            empty = if order.iterations() == 0 { empty + 1 } else { 0 };
            if empty == EMPTY_EPOCHS && self.epochs.are_endless() {
                return Err(EngineError::EmptyEpochs { epochs: empty });
            }
            let mut begun = false;
            self.epoch_bytes = 0;
            if epoch > self.begin.epoch {
                pace::wait_to_begin(&self.run);
            }
            for iteration in 0..order.iterations() {
                if (Step { epoch, iteration }) < self.begin {
                    begun = begun || self.begin(epoch, iteration)?;
                    self.skip(epoch);
                    continue;
                }
                begun = begun || self.begin(epoch, iteration)?;
                let step = Step { epoch, iteration };
                if !self.step(step, &order)? {
                    return Ok(());
                }
            }
            // Nobody else looks, if nothing of it was left to stage.
            notify::epochs_done(&self.run);
        }
        Ok(())
    }

    /// Whether the plan knows this epoch.
    fn begin(&mut self, epoch: u32, iteration: u32) -> Result<bool, EngineError> {
        // Only the very first batches may come before the plan: later it would be planned twice.
        let first = *self.first.get_or_insert(epoch) == epoch;
        let patience = match (first, iteration) {
            // Nodes count on each other to do what is planned, from the first batch on.
            (true, _) if self.run.peers.is_some() => Duration::MAX,
            (true, 0) if self.run.sizes.len() < SMALL => PATIENCE_OF_SMALL,
            (true, 0) => PATIENCE,
            (true, _) => Duration::ZERO,
            (false, _) => Duration::MAX,
        };
        let stopping = || self.run.is_stopping();
        let Some(plan) = self.epochs.plan(epoch, patience, stopping)? else { return Ok(false) };
        self.staging = Some(plan.staging());
        let on_demand = plan.staging() == Staging::OnDemand;
        self.run.one_at_a_time.store(on_demand, Ordering::Relaxed);
        self.run.brain.begin(&plan, epoch);
        self.plan = Some(plan);
        Ok(true)
    }

    /// Another node's time has gone by without this one.
    fn skip(&self, epoch: u32) {
        let planned = self.run.planned.fetch_add(1, Ordering::AcqRel) + 1;
        pace::skip(&self.run, planned);
        self.run.asked.skip();
        self.run.ended(epoch);
    }

    /// Plans one batch; whether to go on.
    fn step(&mut self, step: Step, order: &EpochOrder) -> Result<bool, EngineError> {
        self.samples.clear();
        self.samples.extend(order.batch(self.rank, step.iteration));
        self.lengths.clear();
        self.lengths.extend(self.samples.iter().map(|&sample| self.run.size(sample)));
        self.check_room()?;
        self.epoch_bytes += self.lengths.iter().sum::<u64>();
        let stopping = || self.run.is_stopping();
        self.run.horizon.wait(step, self.epoch_bytes, stopping, || self.producer.trim());
        let sequence = self.run.planned.load(Ordering::Relaxed) + 1;
        if self.staging == Some(Staging::OnDemand) {
            self.run.asked.wait_beyond(sequence - 1, || self.run.is_stopping());
        }
        // Whatever is reserved before somebody can fill it only cools down.
        let enough = QUEUED_PER_THREAD * self.run.lane.threads() as usize;
        while self.run.lane.queued() >= enough && !self.run.is_stopping() {
            self.run.lane.wait_until_short(enough, TICK);
        }
        let Some(block) = self.reserve(step)? else { return Ok(false) };
        self.decide(step);
        let parcel = Parcel::new(
            &self.run,
            block,
            std::mem::take(&mut self.items),
            std::mem::take(&mut self.evictions),
            std::mem::take(&mut self.gifts),
            sequence,
        );
        self.run.planned.store(sequence, Ordering::Release);
        lock(&self.run.in_order).push_back(parcel.clone());
        if parcel.items.is_empty() {
            self.run.is_there(&parcel);
        }
        load::dispatch(&parcel, 0..parcel.items.len() as u32);
        prefetch::ask_all(&self.run);
        self.run.metrics.queue_depth(self.run.lane.queued());
        Ok(true)
    }

    /// The largest batch of an order that comes over time is not known before it comes.
    fn check_room(&self) -> Result<(), EngineError> {
        let (bytes, batch) = (self.lengths.iter().sum(), self.samples.len() as u32);
        if self.ring.check(bytes, batch).is_ok() {
            return Ok(());
        }
        let needed = Bytes(RingConfig::needed(bytes, batch, self.ring.align));
        let given = Bytes(self.ring.capacity as u64);
        Err(EngineError::StagingTooSmall { given, needed, batch })
    }

    /// The block of a batch, when there is room for it; `None` to stop.
    fn reserve(&mut self, step: Step) -> Result<Option<Block>, EngineError> {
        let mut stuck_since = None;
        loop {
            if self.run.is_stopping() {
                return Ok(None);
            }
            if let Some(block) = self.producer.reserve(step, &self.samples, &self.lengths)? {
                return Ok(Some(block));
            }
            match self.producer.wait(TICK) {
                Wait::ConsumerGone | Wait::Stopped => return Ok(None),
                Wait::TimedOut if self.consumer_has_all() => {
                    let since = *stuck_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > ALL_LENT {
                        return Err(EngineError::AllLent { batches: self.producer.lent() });
                    }
                }
                Wait::Released | Wait::TimedOut => stuck_since = None,
            }
        }
    }

    /// Whether the consumer waits for a batch while it holds all that there is room for.
    fn consumer_has_all(&self) -> bool {
        self.run.asked.is_waiting()
            && self.producer.lent() > 0
            && self.producer.ready() == 0
            && lock(&self.run.in_order).is_empty()
    }

    /// Asks the policy where each sample comes from and what the step leaves behind.
    fn decide(&mut self, step: Step) {
        // What the last epoch uses for the last time stays: the next run may begin with it.
        let last_epoch = self.epochs.is_last(step.epoch);
        let Self { run, samples, items, evictions, gifts, rank, plan, .. } = self;
        // In the first epoch holders are still getting theirs, and the policy knows who is first.
        let plan = plan.as_deref().filter(|_| step.epoch > 0);
        let rank = *rank;
        items.clear();
        evictions.clear();
        gifts.clear();
        run.brain.tell(Event::Stage { rank, step, samples }, |actions| {
            evictions.extend(&actions.evictions);
            take_loads(run, plan, actions, step, last_epoch, items);
        });
        // Before the plan is there, nothing is said of them.
        if items.len() != samples.len() {
            items.clear();
            items.extend(samples.iter().map(|&sample| unplanned(run, sample, NOWHERE)));
        }
        run.brain.tell(Event::Consumed { rank, step, samples }, |actions| {
            evictions.extend(&actions.evictions);
            // Both are in the order of the batch, so each search goes on where the last one ended.
            let mut from = 0;
            for keep in &actions.keeps {
                let here = run.peers.as_ref().is_none_or(|peers| peers.me == keep.node);
                if !here {
                    let found = items.iter().position(|item| item.sample == keep.sample);
                    let gift = |item| Gift { item: item as u32, to: keep.node, tier: keep.tier };
                    gifts.extend(found.map(gift));
                    continue;
                }
                let found = (from..items.len())
                    .chain(0..from)
                    .find(|&at| items[at].sample == keep.sample && items[at].keep() == NOWHERE);
                if let Some(at) = found {
                    items[at].set_keep(keep.tier);
                    from = at + 1;
                }
            }
        });
    }
}

fn take_loads(
    run: &Run,
    plan: Option<&dyn Plan>,
    actions: &Actions,
    step: Step,
    last_epoch: bool,
    items: &mut Vec<Item>,
) {
    items.extend(actions.loads.iter().map(|load| {
        let keep = load.keep.unwrap_or(NOWHERE);
        let last_use = load.last_use && !last_epoch;
        match load.from {
            Place::Local(tier) if tier > 0 => Item::new(load.sample, tier, last_use, keep),
            Place::Peer(peer, peer_tier) if let Some(peers) = &run.peers => {
                let Some(tier) = run.cache.find(load.sample) else {
                    let holders = plan.map_or_else(Vec::new, |plan| plan.holders(load.sample));
                    let peer = peers.best_of(&holders, load.sample).unwrap_or(peer);
                    return Item::remote(load.sample, (peer, peer_tier), last_use, keep);
                };
                if last_use {
                    peers.release(peer, step.epoch, load.sample);
                }
                Item::guest(load.sample, tier, keep)
            }
            // What stands in the ring is on its way anyhow.
            Place::Source | Place::Local(_) | Place::Peer(..) => unplanned(run, load.sample, keep),
        }
    }));
}

/// From a tier that has it all the same, warm from an earlier run perhaps, here or on another node;
/// else from the source.
fn unplanned(run: &Run, sample: SampleId, keep: TierId) -> Item {
    if let Some(tier) = run.cache.find(sample) {
        return Item::guest(sample, tier, keep);
    }
    match run.peers.as_ref().and_then(|peers| peers.warm_at(sample)) {
        Some(peer) => Item::remote(sample, (peer, NOWHERE), false, keep),
        None => Item::new(sample, SOURCE, false, keep),
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
    fn a_batch_is_planned_when_threads_are_about_to_have_nothing_to_do() {
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
    fn a_consumer_that_asks_for_more_than_there_is_room_for_is_told() {
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
