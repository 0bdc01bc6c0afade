//! `nopfs`: the policy of NoPFS and HDMLP (seed 000, section 5; seed 001, 3.2.2).
//!
//! *Knows* its own access stream over the whole run, and everybody else's.
//!
//! *Decides* once, before the run: each node puts the samples it reads most often
//! into its fastest tier, the next ones into the next tier, until its storage is full.
//! Prefetchers fill the tiers in the order of first access; staging reads in access
//! order from wherever the model says is fastest, and caches on the way what a
//! prefetcher has not reached yet. Nodes choose on their own, so several cache the
//! same sample while others are cached nowhere.
//!
//! A run whose end is not known is counted for its first [`LOOK_AHEAD`] epochs; one whose
//! orders come epoch by epoch, for the two that are known when it begins.
//!
//! *Costs* a pass over the run's orders before the first step. Whether a peer already
//! has a sample is guessed from the node's own progress; a wrong guess is counted
//! (`peer_misses`) and the sample read from elsewhere.

use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use super::{
    Actions, Availability, Event, Evict, Fetch, Load, NodeId, Place, Plan, Policy, TierId,
    Unsupported,
};
use crate::access::{drive, epochs_ahead};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::nopfs::{local_rate, peer_rate, source_rate};
use crate::model::{Rate, Readers, Seconds};
use crate::sampler::{EpochOrder, SampleId};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Fill tiers in the order of first access rather than of frequency.
    pub in_order: bool,
    /// Drop a sample after this node's last read of it.
    pub cleanup_read: bool,
    pub availability: Availability,
}

/// Counters of this many bytes are held at a time; more nodes take more passes.
const COUNTER_BYTES: usize = 256 << 20;

/// Epochs counted where nobody knows how many there are: enough to tell what a node reads
/// often from what it reads seldom, and a second's work for a million samples.
const LOOK_AHEAD: u32 = 16;

#[derive(Debug)]
pub struct Nopfs {
    job: Arc<Job>,
    options: Options,
    /// Made before the run, or when its first epoch begins.
    placement: OnceLock<Arc<Placement>>,
    /// Fastest per-thread rates, worst case of all nodes reading the source.
    source_rate: Rate,
}

/// Who caches what.
#[derive(Debug)]
struct Placement {
    nodes: Vec<Arc<NodePlan>>,
    /// By sample: `node * tiers + tier` of the holder that gets it first, 0 for none.
    holder: Vec<u16>,
    /// By sample: how many samples that holder fetches into the tier before it.
    offset: Vec<u32>,
}

/// What one node will cache.
#[derive(Debug, Default)]
struct NodePlan {
    /// By tier: samples in fetch order.
    lists: Vec<Vec<SampleId>>,
    /// By tier.
    planned: Vec<Bits>,
    /// Reads left by sample; empty unless `cleanup_read`.
    reads: Vec<u16>,
}

pub fn plan(job: &Arc<Job>, options: Options) -> Result<Arc<dyn Plan>, Unsupported> {
    let known = job.epochs.is_some() && job.stream.ahead();
    if options.cleanup_read && !known {
        return Err(Unsupported(
            "nopfs can drop a sample after its last read only if it knows the whole run: give the \
             number of epochs, or leave cleanup_read out"
                .into(),
        ));
    }
    if job.system.nodes as usize * job.system.tiers.len() > usize::from(u16::MAX) {
        return Err(Unsupported("nopfs plans for at most 65535 nodes times tiers".into()));
    }
    let placement = OnceLock::new();
    if job.stream.ahead() {
        let epochs = job.epochs.map_or_else(|| epochs_ahead(None, 0, LOOK_AHEAD), |end| 0..end);
        let see = |counts: &mut [Accesses]| {
            drive(&job.stream, epochs.clone(), counts, |accesses, _, order| {
                accesses.see_epoch(job, order);
            });
        };
        placement.get_or_init(|| Arc::new(Placement::new(job, options, see)));
    }
    let system = &job.system;
    let readers = match system.source.readers {
        Readers::Nodes => system.nodes,
        Readers::Threads => system.nodes.saturating_mul(system.staging_threads()),
    };
    let source_rate = source_rate(system, readers);
    Ok(Arc::new(Nopfs { job: job.clone(), options, placement, source_rate }))
}

impl Placement {
    /// `see` shows the orders that are known to some nodes' counters.
    fn new(job: &Job, options: Options, see: impl Fn(&mut [Accesses])) -> Self {
        let tiers = job.system.tiers.len();
        let samples = job.sizes.len() as usize;
        let mut nodes = vec![];
        let at_once = (COUNTER_BYTES / (2 * samples)).clamp(1, job.system.nodes as usize) as u32;
        let mut first = 0;
        while first < job.system.nodes {
            let last = (first + at_once).min(job.system.nodes);
            let mut counts: Vec<Accesses> =
                (first..last).map(|node| Accesses::new(node, samples)).collect();
            see(&mut counts);
            let placed = counts.into_par_iter().map(|seen| Arc::new(seen.place(job, options)));
            nodes.extend(placed.collect::<Vec<_>>());
            first = last;
        }
        let mut holder = vec![0u16; samples];
        let mut offset = vec![0u32; samples];
        for (node, plan) in nodes.iter().enumerate() {
            for tier in 1..tiers {
                for (place, &sample) in plan.lists[tier].iter().enumerate() {
                    let at = sample as usize;
                    let old = (usize::from(holder[at]) % tiers, offset[at] as usize);
                    // Lowest tier, then whoever gets it first: spreads the requests.
                    if holder[at] == 0 || (tier, place) < old {
                        holder[at] = (node * tiers + tier) as u16;
                        offset[at] = place as u32;
                    }
                }
            }
        }
        Self { nodes, holder, offset }
    }
}

/// What one node reads: how often, and in what order for the first time.
struct Accesses {
    node: NodeId,
    counts: Vec<u16>,
    first_reads: Vec<SampleId>,
}

impl Accesses {
    fn new(node: NodeId, samples: usize) -> Self {
        Self { node, counts: vec![0; samples], first_reads: vec![] }
    }

    fn see_epoch(&mut self, job: &Job, order: &EpochOrder) {
        let per_node = job.system.ranks_per_node;
        for iteration in 0..order.iterations() {
            for rank in self.node * per_node..(self.node + 1) * per_node {
                self.see(order.batch(rank, iteration));
            }
        }
    }

    fn see(&mut self, batch: impl Iterator<Item = SampleId>) {
        for sample in batch {
            let count = &mut self.counts[sample as usize];
            if *count == 0 {
                self.first_reads.push(sample);
            }
            *count = count.saturating_add(1);
        }
    }

    /// The most frequent to the fastest tier; among equals, the first read first.
    fn place(self, job: &Job, options: Options) -> NodePlan {
        let tiers = &job.system.tiers;
        let by_frequency = self.by_frequency();
        let mut room: Vec<u64> = tiers.iter().map(|tier| tier.capacity_of(self.node).0).collect();
        let mut tier_of = vec![0 as TierId; self.counts.len()];
        for &sample in &by_frequency {
            let size = job.sizes.get(sample);
            if let Some(tier) = (1..tiers.len()).find(|&tier| room[tier] >= size) {
                room[tier] -= size;
                tier_of[sample as usize] = tier as TierId;
            }
        }
        let mut plan = NodePlan {
            lists: vec![vec![]; tiers.len()],
            planned: vec![Bits::default(); tiers.len()],
            reads: if options.cleanup_read { self.counts } else { vec![] },
        };
        for &sample in if options.in_order { &self.first_reads } else { &by_frequency } {
            let tier = usize::from(tier_of[sample as usize]);
            if tier > 0 {
                if plan.planned[tier].is_unallocated() {
                    plan.planned[tier] = Bits::new(job.sizes.len());
                }
                plan.planned[tier].insert(sample);
                plan.lists[tier].push(sample);
            }
        }
        plan
    }

    /// Most frequent first, a counting sort that leaves equals in the order of first read.
    fn by_frequency(&self) -> Vec<SampleId> {
        let count = |sample: SampleId| usize::from(self.counts[sample as usize]);
        let most = self.first_reads.iter().map(|&sample| count(sample)).max().unwrap_or(0);
        let mut start = vec![0usize; most + 2];
        for &sample in &self.first_reads {
            start[most - count(sample) + 1] += 1;
        }
        for level in 1..start.len() {
            start[level] += start[level - 1];
        }
        let mut sorted = vec![0; self.first_reads.len()];
        for &sample in &self.first_reads {
            let at = &mut start[most - count(sample)];
            sorted[*at] = sample;
            *at += 1;
        }
        sorted
    }
}

impl Plan for Nopfs {
    fn holders(&self, sample: SampleId) -> Vec<NodeId> {
        let Some(placement) = self.placement.get() else { return vec![] };
        let holds = |plan: &NodePlan| plan.planned.iter().any(|tier| tier.contains(sample));
        let nodes = (0..).zip(&placement.nodes).filter(|(_, plan)| holds(plan));
        nodes.map(|(node, _)| node).collect()
    }

    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        let tiers = self.job.system.tiers.len();
        // Before the first epoch nothing is known of orders that come epoch by epoch.
        let nothing = || Arc::new(Placement::new(&self.job, self.options, |_| {}));
        let placement = self.placement.get_or_init(nothing).clone();
        let own = placement.nodes[node as usize].clone();
        Box::new(Instance {
            node,
            held: (0..tiers)
                .map(|tier| {
                    if own.lists[tier].is_empty() {
                        Bits::default()
                    } else {
                        Bits::new(self.job.sizes.len())
                    }
                })
                .collect(),
            asked: vec![0; tiers],
            arrived: vec![0; tiers],
            reads: own.reads.clone(),
            arriving: vec![],
            found: vec![],
            own,
            placement,
            plan: self,
        })
    }

    fn begin_epoch(&self, _epoch: u32, order: &Arc<EpochOrder>, next: Option<&Arc<EpochOrder>>) {
        self.placement.get_or_init(|| {
            let see = |counts: &mut [Accesses]| {
                counts.par_iter_mut().for_each(|accesses| {
                    for order in std::iter::once(order).chain(next) {
                        accesses.see_epoch(&self.job, order);
                    }
                });
            };
            Arc::new(Placement::new(&self.job, self.options, see))
        });
    }
}

struct Instance {
    node: NodeId,
    plan: Arc<Nopfs>,
    placement: Arc<Placement>,
    own: Arc<NodePlan>,
    /// By tier.
    held: Vec<Bits>,
    /// By tier: how far in its list the prefetcher has asked, and how far it has got.
    asked: Vec<usize>,
    arrived: Vec<usize>,
    /// Reads left by sample; empty unless `cleanup_read`.
    reads: Vec<u16>,
    /// Samples of the batch being staged that will be held once they have arrived.
    arriving: Vec<SampleId>,
    /// Where the batch being staged is held, and by which peer; kept for its allocation.
    found: Vec<(TierId, u16)>,
}

impl Instance {
    fn held_in(&self, sample: SampleId) -> Option<TierId> {
        Some(self.held_tier(sample)).filter(|&tier| tier > 0)
    }

    /// 0 for none. No branch depends on what memory says, so that a batch's look-ups
    /// overlap.
    #[inline]
    fn held_tier(&self, sample: SampleId) -> TierId {
        let mut found = 0;
        for (tier, held) in self.held.iter().enumerate() {
            found |= tier as TierId * TierId::from(held.contains(sample));
        }
        found
    }

    fn planned_in(&self, sample: SampleId) -> Option<TierId> {
        (1..self.held.len())
            .find(|&tier| self.own.planned[tier].contains(sample))
            .map(|t| t as TierId)
    }

    /// The peer to ask for a sample, if it is worth asking.
    fn peer(&self, sample: SampleId, holder: u16) -> Option<(NodeId, TierId)> {
        let holder = usize::from(holder);
        let tiers = self.held.len();
        let (node, tier) = (holder / tiers, holder % tiers);
        if holder == 0 || node == self.node as usize {
            return None;
        }
        let believed = match self.plan.options.availability {
            Availability::Known => true,
            // Nodes prefetch at about the same pace: what this one has passed, others
            // have too. A tier that this node does not use holds little elsewhere.
            Availability::Heuristic => {
                let offset = self.placement.offset[sample as usize] as usize;
                self.own.lists[tier].len() == self.arrived[tier] || self.arrived[tier] > offset
            }
        };
        believed.then_some((node as NodeId, tier as TierId))
    }

    /// The fastest place that has the sample (seed 001, eq. 3.12).
    fn fastest(&self, sample: SampleId, local: Option<TierId>, holder: u16) -> Place {
        let system = &self.plan.job.system;
        let mut best = (self.plan.source_rate, Place::Source);
        if let Some((node, tier)) = self.peer(sample, holder) {
            let peer = peer_rate(system, usize::from(tier));
            if peer > best.0 {
                best = (peer, Place::Peer(node, tier));
            }
        }
        if let Some(tier) = local
            && local_rate(system, usize::from(tier)) >= best.0
        {
            best.1 = Place::Local(tier);
        }
        best.1
    }

    fn load(&mut self, sample: SampleId, held: TierId, holder: u16) -> Load {
        let local = Some(held).filter(|&tier| tier > 0);
        let from = self.fastest(sample, local, holder);
        let keep = if local.is_none() { self.planned_in(sample) } else { None };
        if let Some(tier) = keep {
            self.held[usize::from(tier)].insert(sample);
            self.arriving.push(sample);
        }
        Load { sample, from, last_use: false, keep }
    }

    /// Moves past what is there already; how far the tier's list is filled.
    fn advance(&mut self, tier: usize) {
        let list = &self.own.lists[tier];
        let arrived = &mut self.arrived[tier];
        while let Some(&sample) = list.get(*arrived)
            && (self.held[tier].contains(sample) || self.reads.get(sample as usize) == Some(&0))
        {
            *arrived += 1;
        }
    }
}

impl Policy for Instance {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                self.arriving.clear();
                let mut found = std::mem::take(&mut self.found);
                found.clear();
                let holders = &self.placement.holder;
                found.extend(samples.iter().map(|&k| (self.held_tier(k), holders[k as usize])));
                for (&sample, &(held, holder)) in samples.iter().zip(&found) {
                    let load = self.load(sample, held, holder);
                    actions.loads.push(load);
                }
                self.found = found;
            }
            Event::Consumed { samples, .. } => {
                if self.plan.options.cleanup_read {
                    for &sample in samples {
                        let left = &mut self.reads[sample as usize];
                        *left = left.saturating_sub(1);
                        if *left == 0
                            && let Some(tier) = self.held_in(sample)
                        {
                            self.held[usize::from(tier)].remove(sample);
                            actions.evictions.push(Evict { sample, tier });
                        }
                    }
                }
            }
            Event::Idle { tier, limit } => {
                let at = usize::from(tier);
                self.advance(at);
                while actions.fetches.len() < limit
                    && let Some(&sample) = self.own.lists[at].get(self.asked[at])
                {
                    self.asked[at] += 1;
                    let wanted = self.reads.is_empty() || self.reads[sample as usize] > 0;
                    if wanted && !self.held[at].contains(sample) {
                        actions.fetches.push(Fetch { sample });
                    }
                }
            }
            Event::Fetched { tier, sample } => {
                self.held[usize::from(tier)].insert(sample);
                self.advance(usize::from(tier));
            }
            Event::Missed { sample, .. } => {
                let held = self.held_in(sample);
                let arriving = self.arriving.contains(&sample);
                let from = match held {
                    Some(tier) if !arriving => Place::Local(tier),
                    _ => Place::Source,
                };
                let keep = held.filter(|_| arriving);
                let load = Load { sample, from, last_use: false, keep };
                actions.loads.push(load);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{Driver, job};
    use crate::sampler::{Cut, EpochList, Order, OrderError, Orders, StreamConfig};

    const OPTIONS: Options =
        Options { in_order: true, cleanup_read: false, availability: Availability::Heuristic };

    /// The testing job in torch's order, over several epochs.
    fn shuffled(samples: u32, nodes: u32, capacities: &[u64], epochs: u32) -> Arc<Job> {
        let mut job = job(samples, nodes, 1, capacities);
        let config = StreamConfig { order: Order::Torch, ..job.stream.config().clone() };
        job.stream = crate::sampler::AccessStream::new(config).unwrap();
        job.epochs = Some(epochs);
        Arc::new(job)
    }

    fn accesses(job: &Job, node: NodeId) -> Accesses {
        let mut accesses = Accesses::new(node, job.sizes.len() as usize);
        for epoch in 0..job.epochs.unwrap() {
            let order = job.stream.epoch(epoch);
            for iteration in 0..order.iterations() {
                accesses.see(order.batch(node, iteration));
            }
        }
        accesses
    }

    #[test]
    fn the_most_frequent_are_in_the_fastest_tier() {
        let job = shuffled(60, 3, &[50, 100], 9);
        let seen = accesses(&job, 1);
        let counts = seen.counts.clone();
        let plan = seen.place(&job, OPTIONS);
        let least = |tier: usize| plan.lists[tier].iter().map(|&k| counts[k as usize]).min();
        let most = |tier: usize| plan.lists[tier].iter().map(|&k| counts[k as usize]).max();
        assert_eq!((plan.lists[1].len(), plan.lists[2].len()), (5, 10));
        assert!(least(1) >= most(2), "{:?} {:?}", least(1), most(2));
        let left_out =
            (0..60).filter(|&k| !plan.planned[1].contains(k) && !plan.planned[2].contains(k));
        assert!(least(2) >= left_out.map(|k| counts[k as usize]).max());
    }

    #[test]
    fn a_node_counts_what_its_own_ranks_read() {
        let job = job(24, 3, 2, &[1000]);
        let order = job.stream.epoch(0);
        for node in 0..3 {
            let mut seen = Accesses::new(node, 24);
            seen.see_epoch(&job, &order);
            // Six ranks take the samples in turn.
            let ours: Vec<u16> = (0..24).map(|sample| u16::from(sample % 6 / 2 == node)).collect();
            assert_eq!(seen.counts, ours);
        }
    }

    #[test]
    fn more_nodes_times_tiers_than_can_be_numbered_are_refused() {
        let job = Arc::new(job(10, 1 << 15, 1, &[10]));
        assert!(plan(&job, OPTIONS).is_err_and(|error| error.0.contains("65535")));
    }

    #[test]
    fn a_peer_is_believed_to_have_what_this_node_has_passed_in_its_own_list() {
        let job = shuffled(40, 4, &[60, 40], 3);
        let plan = plan(&job, OPTIONS).unwrap();
        let placement = Placement::new(&job, OPTIONS, |counts| {
            drive(&job.stream, 0..3, counts, |accesses, _, order| accesses.see_epoch(&job, order));
        });
        let lists = &placement.nodes[0].lists;
        for arrived in 0..=lists[1].len() {
            let mut node = Driver::new(&plan, 0);
            for &sample in &lists[1][..arrived] {
                node.on(Event::Fetched { tier: 1, sample });
            }
            let mut asked = 0;
            for sample in 0..40 {
                let holder = usize::from(placement.holder[sample as usize]);
                let (at, tier) = ((holder / 3) as NodeId, holder % 3);
                if holder == 0 || at == 0 || placement.nodes[0].planned[1].contains(sample) {
                    continue;
                }
                // Nothing of the second tier has arrived.
                let passed = arrived == lists[1].len()
                    || arrived > placement.offset[sample as usize] as usize;
                let believed = tier == 1 && passed;
                let from = node.stage(0, (0, 0), &[sample])[0].from;
                let expected =
                    if believed { Place::Peer(at, tier as TierId) } else { Place::Source };
                assert_eq!(from, expected, "{sample} after {arrived}");
                asked += 1;
            }
            assert!(asked > 5, "{asked}");
        }
    }

    #[test]
    fn tiers_are_filled_in_the_order_of_first_access() {
        let job = shuffled(60, 3, &[100], 5);
        let seen = accesses(&job, 0);
        let first = seen.first_reads.clone();
        let plan = seen.place(&job, OPTIONS);
        let at = |sample: SampleId| first.iter().position(|&k| k == sample).unwrap();
        assert!(plan.lists[1].windows(2).all(|pair| at(pair[0]) < at(pair[1])));
    }

    #[test]
    fn a_sample_that_the_prefetcher_has_not_reached_is_kept_on_the_way() {
        let job = shuffled(12, 1, &[1000], 2);
        let plan = plan(&job, OPTIONS).unwrap();
        let mut node = Driver::new(&plan, 0);
        let load = node.stage(0, (0, 0), &[3])[0];
        assert_eq!((load.from, load.keep), (Place::Source, Some(1)));
        let again = node.stage(0, (1, 0), &[3])[0];
        assert_eq!((again.from, again.keep), (Place::Local(1), None));
        // And the prefetcher leaves it out.
        let fetches = node.on(Event::Idle { tier: 1, limit: 100 }).fetches.clone();
        assert_eq!(fetches.len(), 11);
        assert!(fetches.iter().all(|fetch| fetch.sample != 3));
    }

    #[test]
    fn an_open_ended_run_is_planned_by_its_first_epochs() {
        let mut open = (*shuffled(60, 3, &[100], 1)).clone();
        open.epochs = None;
        let open = Arc::new(open);
        let long = shuffled(60, 3, &[100], LOOK_AHEAD);
        let fetched = |job: &Arc<Job>| {
            let plan = plan(job, OPTIONS).unwrap();
            Driver::new(&plan, 1).on(Event::Idle { tier: 1, limit: 100 }).fetches.clone()
        };
        assert_eq!(fetched(&open).len(), 10);
        assert_eq!(fetched(&open), fetched(&long));
        let last_reads = Options { cleanup_read: true, ..OPTIONS };
        assert!(plan(&open, last_reads).is_err(), "nobody knows the last read of a sample");
    }

    /// Gives each epoch once.
    #[derive(Debug)]
    struct Once(std::sync::Mutex<Vec<u32>>);

    impl Orders for Once {
        fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
            self.0.lock().unwrap().push(epoch);
            let samples = vec![5, 5, epoch, 7];
            Ok(Some(EpochList { samples, batches: Cut::Ends(vec![3, 4]) }))
        }
    }

    #[test]
    fn orders_that_come_one_by_one_are_counted_as_far_as_they_have_come() {
        let mut job = job(12, 1, 1, &[20]);
        let once = Arc::new(Once(std::sync::Mutex::default()));
        let order = Order::Provided(once.clone());
        let config = StreamConfig { order, ranks: 1, ..job.stream.config().clone() };
        job.stream = crate::sampler::AccessStream::new(config).unwrap();
        let job = Arc::new(job);
        let plan = plan(&job, OPTIONS).unwrap();
        assert!(once.0.lock().unwrap().is_empty(), "not asked before the run");
        let epochs = [0, 1].map(|epoch| Arc::new(job.stream.ask(epoch).unwrap().unwrap()));
        plan.begin_epoch(0, &epochs[0], Some(&epochs[1]));
        let mut node = Driver::new(&plan, 0);
        // 5 is read four times, 7 twice, 0 and 1 once: two fit.
        let fetches = node.on(Event::Idle { tier: 1, limit: 9 }).fetches.clone();
        assert_eq!(fetches, [Fetch { sample: 5 }, Fetch { sample: 7 }]);
        assert_eq!(*once.0.lock().unwrap(), [0, 1]);
    }

    /// A sample that node 0 is not to hold and another one is, and that one.
    fn held_elsewhere(plan: &Arc<dyn Plan>) -> (SampleId, NodeId) {
        let found = (0..40).map(|sample| (sample, plan.holders(sample)));
        let mut elsewhere = found.filter(|(_, holders)| holders.len() == 1 && holders[0] != 0);
        let (sample, holders) = elsewhere.next().unwrap();
        (sample, holders[0])
    }

    #[test]
    fn a_peer_is_asked_once_it_is_believed_to_have_the_sample() {
        let job = shuffled(40, 4, &[200], 3);
        let known = plan(&job, Options { availability: Availability::Known, ..OPTIONS }).unwrap();
        let (sample, holder) = held_elsewhere(&known);
        let from = Driver::new(&known, 0).stage(0, (0, 0), &[sample])[0].from;
        assert_eq!(from, Place::Peer(holder, 1));
        // The holder itself reads it from the source, which is slower than no peer.
        let from = Driver::new(&known, holder).stage(holder, (0, 0), &[sample])[0];
        assert_eq!((from.from, from.keep), (Place::Source, Some(1)));

        let guessed = plan(&job, OPTIONS).unwrap();
        let mut node = Driver::new(&guessed, 0);
        assert_eq!(node.stage(0, (0, 0), &[sample])[0].from, Place::Source);
        let own = node.on(Event::Idle { tier: 1, limit: 100 }).fetches.clone();
        for fetch in own {
            node.on(Event::Fetched { tier: 1, sample: fetch.sample });
        }
        assert_eq!(node.stage(0, (0, 1), &[sample])[0].from, Place::Peer(holder, 1));
    }

    #[test]
    fn a_network_slower_than_the_source_is_not_used() {
        let mut job = (*shuffled(40, 4, &[200], 3)).clone();
        job.system.network = crate::model::Rate(1.0);
        let options = Options { availability: Availability::Known, ..OPTIONS };
        let plan = plan(&Arc::new(job), options).unwrap();
        let (sample, _) = held_elsewhere(&plan);
        assert_eq!(Driver::new(&plan, 0).stage(0, (0, 0), &[sample])[0].from, Place::Source);
    }

    #[test]
    fn a_sample_goes_after_its_last_read_and_is_not_fetched_again() {
        let job = shuffled(4, 1, &[1000], 2);
        let plan = plan(&job, Options { cleanup_read: true, ..OPTIONS }).unwrap();
        let mut node = Driver::new(&plan, 0);
        node.stage(0, (0, 0), &[3]);
        assert!(node.consumed(0, (0, 0), &[3]).evictions.is_empty());
        assert_eq!(node.stage(0, (1, 0), &[3])[0].from, Place::Local(1));
        let last = node.consumed(0, (1, 0), &[3]).evictions.clone();
        assert_eq!(last, [Evict { sample: 3, tier: 1 }]);
        let fetches = node.on(Event::Idle { tier: 1, limit: 2 }).fetches.len();
        assert_eq!(fetches, 2, "no more than asked for");
        let rest = node.on(Event::Idle { tier: 1, limit: 9 }).fetches.clone();
        assert_eq!(rest.len(), 1, "three are left to fetch in all");
    }

    #[test]
    fn what_a_peer_has_lost_comes_from_the_own_tier_or_the_source() {
        let job = shuffled(12, 1, &[1000], 2);
        let plan = plan(&job, OPTIONS).unwrap();
        let mut node = Driver::new(&plan, 0);
        node.stage(0, (0, 0), &[3]);
        let missed = |sample| Event::Missed { rank: 0, sample, peer: 1 };
        // On its way into the tier: the load that is made again keeps it.
        let again = node.on(missed(3)).loads[0];
        assert_eq!((again.from, again.keep), (Place::Source, Some(1)));
        node.on(Event::Fetched { tier: 1, sample: 5 });
        let held = node.on(missed(5)).loads[0];
        assert_eq!((held.from, held.keep), (Place::Local(1), None));
    }

    #[test]
    fn all_who_are_to_hold_a_sample_are_known() {
        let (job, options) = (shuffled(40, 4, &[200], 3), OPTIONS);
        let plan = Placement::new(&job, options, |counts| {
            drive(&job.stream, 0..3, counts, |accesses, _, order| accesses.see_epoch(&job, order));
        });
        let nopfs = super::plan(&job, options).unwrap();
        for sample in 0..40 {
            let lists = |node: &NodeId| &plan.nodes[*node as usize].lists;
            let naive: Vec<NodeId> =
                (0..4).filter(|node| lists(node)[1].contains(&sample)).collect();
            assert_eq!(nopfs.holders(sample), naive);
        }
        assert!((0..40).any(|sample| nopfs.holders(sample).len() > 1));
    }
}
