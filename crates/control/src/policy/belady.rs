//! `belady`: cover first, evenly.
//!
//! *Knows* the orders of this epoch and the next, all sizes, all capacities.
//!
//! *Decides*, once an epoch and for all nodes at once, which samples of this epoch
//! are held for the next and where. Every sample is held at most once, so with full
//! caches an epoch reads no more than S − N·D from the source, which is what
//! arithmetic demands. Which ones are held is chosen so that every (rank, iteration)
//! of the next epoch has the same share of slow reads ([`super::balance`]), and every
//! iteration of this one frees as much room as it fills. The same choice, made again
//! within what is held, spreads the fast tier over the next epoch. A sample stays
//! where it is if it may, otherwise the node that has just consumed it keeps it, or
//! the one that will use it next, or whoever has room.
//!
//! *Costs* two passes over the samples an epoch and six bytes a sample.
//!
//! All of this is a pure function of the job in logical time: a sample is let go by
//! its holder when the step that uses it is over, and only then is its room given
//! away. So all nodes compute the same places without a word between them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::balance::even_classes;
use super::{
    Actions, Event, Keep, Load, NodeId, Place, Plan, Policy, RankId, Threads, TierId, Unsupported,
};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{EpochOrder, Order, SampleId, Scheme};

/// Left free in the caches: an epoch's occupancy wavers by a few samples a node while
/// one epoch's samples make room for the next one's.
const SLACK: f64 = 0.002;

/// Share of the room that is not dealt evenly by count but used to even out bytes.
const EVENING: f64 = 0.1;

/// A place in a cache: `node * tiers + tier`, or 0 for nowhere (tier 0 is the ring).
type Spot = u16;
const NOWHERE: Spot = 0;

/// A sample that one epoch uses more than once (padding).
#[derive(Clone, Copy, Debug)]
struct Repeat {
    /// `(iteration, rank)` of the first and of the last use.
    first: (u32, RankId),
    last: (u32, RankId),
    /// Where it waits in between if it had no place before.
    waits_at: Spot,
}

/// The samples that one epoch uses more than once. Padding repeats the first samples of an
/// epoch at its end, so most iterations need no look into the map.
#[derive(Clone, Debug, Default)]
struct Repeats {
    samples: HashMap<SampleId, Repeat>,
    /// No repeated sample is used in the iterations between these two.
    quiet: Range<u32>,
}

impl Repeats {
    #[inline]
    fn get(&self, sample: SampleId, iteration: u32) -> Option<&Repeat> {
        if self.samples.is_empty() || self.quiet.contains(&iteration) {
            None
        } else {
            self.samples.get(&sample)
        }
    }

    #[inline]
    fn is_last(&self, sample: SampleId, iteration: u32, rank: RankId) -> bool {
        self.get(sample, iteration).is_none_or(|repeat| repeat.last == (iteration, rank))
    }
}

#[derive(Debug)]
pub struct Belady {
    job: Arc<Job>,
    epochs: Mutex<HashMap<u32, Epoch>>,
}

/// What is decided about one epoch.
#[derive(Clone, Debug, Default)]
struct Epoch {
    /// Where each sample waits for this epoch; empty means nowhere.
    spots: Arc<Vec<Spot>>,
    repeats: Arc<Repeats>,
    /// By node: how many bytes more than the mean it has read from the source when the
    /// epoch begins, as far as that still makes it late. Empty means none.
    behind: Arc<Vec<f64>>,
}

impl Epoch {
    fn spot(&self, sample: SampleId) -> Spot {
        self.spots.get(sample as usize).copied().unwrap_or(NOWHERE)
    }
}

pub fn plan(job: &Arc<Job>) -> Result<Arc<dyn Plan>, Unsupported> {
    let spots = job.system.nodes as usize * job.system.tiers.len();
    if spots > usize::from(Spot::MAX) {
        return Err(Unsupported(format!(
            "belady plans for at most {} nodes with {} tiers",
            usize::from(Spot::MAX) / job.system.tiers.len(),
            job.system.tiers.len()
        )));
    }
    Ok(Arc::new(Belady { job: job.clone(), epochs: Mutex::default() }))
}

impl Belady {
    fn epoch(&self, epoch: u32) -> Epoch {
        self.lock().get(&epoch).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Epoch>> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan for Belady {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(Instance {
            node,
            tiers: self.job.system.tiers.len() as Spot,
            whole: self.job.stream.config().scheme == Scheme::Whole,
            epoch: None,
            this: Epoch::default(),
            next: Epoch::default(),
            found: vec![],
            plan: self,
        })
    }

    fn threads(&self) -> Threads {
        Threads::Pooled
    }

    fn begin_epoch(&self, epoch: u32, order: &Arc<EpochOrder>, next: Option<&Arc<EpochOrder>>) {
        let next = next.map(AsRef::as_ref);
        let Epoch { spots, behind, .. } = self.epoch(epoch);
        let mut transition = Transition::new(&self.job, order, next, &spots, &behind);
        let (coming, repeats) = transition.run();
        let later = Arc::new(transition.behind);
        let mut epochs = self.lock();
        // This one may be begun while the one before is staged and the one before that
        // is consumed.
        epochs.retain(|&old, _| old + 3 > epoch);
        epochs.insert(epoch, Epoch { spots, repeats: Arc::new(repeats), behind });
        let spots = Arc::new(coming);
        epochs.insert(epoch + 1, Epoch { spots, repeats: Arc::default(), behind: later });
    }
}

/// Works out where the samples of the next epoch wait for it.
struct Transition<'a> {
    job: &'a Job,
    order: &'a EpochOrder,
    next: Option<&'a EpochOrder>,
    /// Where this epoch's samples are.
    spots: &'a [Spot],
    tiers: usize,
    /// Ranks whose batches differ: one alone stands for all when each gets the whole.
    ranks: u32,
    /// Bytes left by spot; tier 0 has none.
    room: Vec<u64>,
    /// The same over all nodes, by tier.
    room_in_tier: Vec<u64>,
    /// As [`Epoch::behind`], of the next epoch.
    behind: Vec<f64>,
}

impl<'a> Transition<'a> {
    fn new(
        job: &'a Job,
        order: &'a EpochOrder,
        next: Option<&'a EpochOrder>,
        spots: &'a [Spot],
        behind: &[f64],
    ) -> Self {
        let system = &job.system;
        let tiers = system.tiers.len();
        let mut room: Vec<u64> = (0..system.nodes as usize * tiers)
            .map(|spot| if spot % tiers == 0 { 0 } else { system.tiers[spot % tiers].capacity.0 })
            .collect();
        for (sample, &spot) in spots.iter().enumerate() {
            if spot != NOWHERE {
                room[usize::from(spot)] -= job.sizes.get(sample as SampleId);
            }
        }
        let room_in_tier =
            (0..tiers).map(|tier| room.iter().skip(tier).step_by(tiers).sum()).collect();
        let ranks = match job.stream.config().scheme {
            Scheme::Whole => 1,
            _ => system.ranks(),
        };
        let behind = source_lag(job, order, ranks, spots, behind);
        Self { job, order, next, spots, tiers, ranks, room, room_in_tier, behind }
    }

    fn run(&mut self) -> (Vec<Spot>, Repeats) {
        let mut repeats = self.find_repeats();
        let next_node = self.next_nodes();
        let wish = self.wishes(&repeats, &next_node);
        let mut coming =
            if self.next.is_some() { vec![NOWHERE; self.job.sizes.len() as usize] } else { vec![] };
        // Place of the walk among the candidates, in the order of this epoch.
        let mut place = 0;
        for iteration in 0..self.order.iterations() {
            let begin = place;
            for rank in 0..self.ranks {
                for sample in self.order.batch(rank, iteration) {
                    if !repeats.is_last(sample, iteration, rank) {
                        continue;
                    }
                    let mut spot = self.spot(sample);
                    if spot == NOWHERE {
                        spot = repeats
                            .get(sample, iteration)
                            .map_or(NOWHERE, |repeat| repeat.waits_at);
                    }
                    let candidate = next_node.get(sample as usize).is_some_and(|&n| n != UNUSED);
                    if spot != NOWHERE {
                        let size = self.job.sizes.get(sample);
                        if candidate && self.stays(spot, wish[place], next_node[sample as usize]) {
                            coming[sample as usize] = spot;
                        } else {
                            self.release(spot, size);
                        }
                    }
                    place += usize::from(candidate);
                }
            }
            place = begin;
            for rank in 0..self.ranks {
                let node = self.job.system.node_of(rank);
                for sample in self.order.batch(rank, iteration) {
                    if let Some(repeat) = repeats.get(sample, iteration)
                        && (iteration, rank) == repeat.first
                        && iteration < repeat.last.0
                        && self.spot(sample) == NOWHERE
                    {
                        let spot = self.find_room(sample, 1, node, node);
                        repeats.samples.entry(sample).and_modify(|r| r.waits_at = spot);
                    }
                    if !repeats.is_last(sample, iteration, rank) {
                        continue;
                    }
                    let Some(&user) = next_node.get(sample as usize).filter(|&&n| n != UNUSED)
                    else {
                        continue;
                    };
                    let tier = wish[place];
                    place += 1;
                    if tier != 0 && coming[sample as usize] == NOWHERE {
                        let spot = self.find_room(sample, tier, NodeId::from(user), node);
                        coming[sample as usize] = spot;
                    }
                }
            }
        }
        (coming, repeats)
    }

    fn spot(&self, sample: SampleId) -> Spot {
        self.spots.get(sample as usize).copied().unwrap_or(NOWHERE)
    }

    /// A disk copy stays where it is: moving it would wear the disk for nothing. A
    /// copy in memory follows its next user.
    fn stays(&self, spot: Spot, wish: TierId, user: u16) -> bool {
        let tier = usize::from(spot) % self.tiers;
        let node = usize::from(spot) / self.tiers;
        tier == usize::from(wish) && (tier > 1 || node == usize::from(user))
    }

    fn release(&mut self, spot: Spot, size: u64) {
        self.room[usize::from(spot)] += size;
        self.room_in_tier[usize::from(spot) % self.tiers] += size;
    }

    /// A spot for the sample: in the wished tier of its next user, of the node that has
    /// it now, of whoever has most room; then the same in the other tiers.
    fn find_room(&mut self, sample: SampleId, wish: TierId, user: NodeId, has: NodeId) -> Spot {
        let size = self.job.sizes.get(sample);
        let others = (1..self.tiers).filter(|&tier| tier != usize::from(wish));
        for tier in std::iter::once(usize::from(wish)).chain(others) {
            if tier >= self.tiers || self.room_in_tier[tier] < size {
                continue;
            }
            let at = |node: NodeId| node as usize * self.tiers + tier;
            let spot = [at(user), at(has)].into_iter().find(|&spot| self.room[spot] >= size);
            let spot = spot.or_else(|| {
                (tier..self.room.len())
                    .step_by(self.tiers)
                    .max_by_key(|&spot| self.room[spot])
                    .filter(|&spot| self.room[spot] >= size)
            });
            if let Some(spot) = spot {
                self.room[spot] -= size;
                self.room_in_tier[tier] -= size;
                return spot as Spot;
            }
        }
        NOWHERE
    }

    fn find_repeats(&self) -> Repeats {
        let mut repeats = Repeats::default();
        let config = self.job.stream.config();
        let given = matches!(config.order, Order::Given(_));
        if !given && self.order.samples().len() <= config.samples as usize {
            // A permutation or part of one.
            return repeats;
        }
        let mut uses: HashMap<SampleId, Vec<(u32, RankId)>> = HashMap::new();
        let mut seen = Bits::new(self.job.sizes.len());
        self.for_each_use(|_, _, sample| {
            if !seen.insert(sample) {
                uses.insert(sample, vec![]);
            }
        });
        self.for_each_use(|iteration, rank, sample| {
            if let Some(uses) = uses.get_mut(&sample) {
                uses.push((iteration, rank));
            }
        });
        let mut busy: Vec<u32> = uses.values().flatten().map(|&(iteration, _)| iteration).collect();
        busy.extend([0, self.order.iterations()]);
        busy.sort_unstable();
        repeats.quiet = busy
            .windows(2)
            .map(|pair| pair[0] + 1..pair[1])
            .max_by_key(ExactSizeIterator::len)
            .unwrap_or_default();
        repeats.samples = uses
            .into_iter()
            .map(|(sample, uses)| {
                let (first, last) = (uses[0], uses[uses.len() - 1]);
                (sample, Repeat { first, last, waits_at: NOWHERE })
            })
            .collect();
        repeats
    }

    fn for_each_use(&self, mut see: impl FnMut(u32, RankId, SampleId)) {
        for iteration in 0..self.order.iterations() {
            for rank in 0..self.ranks {
                for sample in self.order.batch(rank, iteration) {
                    see(iteration, rank, sample);
                }
            }
        }
    }

    /// The node that uses each sample first in the next epoch; empty without one.
    fn next_nodes(&self) -> Vec<u16> {
        let Some(next) = self.next else { return vec![] };
        let mut nodes = vec![UNUSED; self.job.sizes.len() as usize];
        for iteration in (0..next.iterations()).rev() {
            for rank in (0..self.ranks).rev() {
                let node = self.job.system.node_of(rank) as u16;
                for sample in next.batch(rank, iteration) {
                    nodes[sample as usize] = node;
                }
            }
        }
        nodes
    }

    /// The tier each candidate should be in, by its place in this epoch's order; 0 for
    /// none. Candidates are the samples that this epoch and the next both use.
    fn wishes(&self, repeats: &Repeats, next_node: &[u16]) -> Vec<TierId> {
        let Some(next) = self.next else { return vec![] };
        let system = &self.job.system;
        let mut count = 0u32;
        let mut bytes = 0u64;
        let mut settled = 0u32;
        let mut place_of = vec![u32::MAX; self.job.sizes.len() as usize];
        for iteration in 0..self.order.iterations() {
            for rank in 0..self.ranks {
                for sample in self.order.batch(rank, iteration) {
                    if next_node[sample as usize] != UNUSED
                        && repeats.is_last(sample, iteration, rank)
                    {
                        place_of[sample as usize] = count;
                        count += 1;
                        bytes += self.job.sizes.get(sample);
                        settled += u32::from(self.spot(sample) != NOWHERE);
                    }
                }
            }
        }
        let nodes = u64::from(system.nodes);
        let capacities: Vec<f64> = (1..self.tiers)
            .map(|tier| (nodes * system.tiers[tier].capacity.0) as f64 * (1.0 - SLACK))
            .collect();
        let fits = capacities.iter().sum::<f64>() >= bytes as f64;
        if fits && settled > 0 {
            // Everything has a place but what the last epoch left out: leave the tiers
            // alone and put the rest where there is room.
            let mut wish = vec![1; count as usize];
            for (sample, &place) in place_of.iter().enumerate() {
                let spot = self.spot(sample as SampleId);
                if place != u32::MAX && spot != NOWHERE {
                    wish[place as usize] = (usize::from(spot) % self.tiers) as TierId;
                }
            }
            return wish;
        }
        let mut to_next = vec![0u32; count as usize];
        let mut from_next = vec![0u32; count as usize];
        let mut candidates = Bits::new(self.job.sizes.len());
        let mut number = 0;
        for iteration in 0..next.iterations() {
            for rank in 0..self.ranks {
                for sample in next.batch(rank, iteration) {
                    let place = std::mem::replace(&mut place_of[sample as usize], u32::MAX);
                    if place != u32::MAX {
                        to_next[place as usize] = number;
                        from_next[number as usize] = place;
                        number += 1;
                        candidates.insert(sample);
                    }
                }
            }
        }
        drop(place_of);
        let share = |room: f64| room / bytes.max(1) as f64;
        let dealt = if fits { 1.0 } else { 1.0 - EVENING };
        let shares: Vec<f64> = capacities.iter().map(|&room| share(room) * dealt).collect();
        let mut wish = even_classes(to_next, &shares);
        if !fits {
            self.even_out(next, &candidates, &from_next, &capacities, &mut wish);
        }
        wish
    }

    /// Deals the rest of the room so that, at every iteration of the next epoch, every
    /// node has read as much from the source since the epoch's start as any other: a node
    /// that lags would hold up all. Equal counts alone drift apart, since sizes differ.
    fn even_out(
        &self,
        next: &EpochOrder,
        candidates: &Bits,
        from_next: &[u32],
        capacities: &[f64],
        wish: &mut [TierId],
    ) {
        let nodes = self.behind.len();
        let mut slow = self.behind.clone();
        let mut room = capacities.to_vec();
        let mut used = 0.0;
        let mut total = 0.0;
        for iteration in 0..next.iterations() {
            for rank in 0..self.ranks {
                for sample in next.batch(rank, iteration) {
                    total += self.job.sizes.get(sample) as f64;
                }
            }
        }
        let slow_share = (1.0 - capacities.iter().sum::<f64>() / total.max(1.0)).max(0.0);
        let mut seen = candidates.clone();
        let mut number = 0;
        let mut open = vec![];
        for iteration in 0..next.iterations() {
            open.clear();
            for rank in 0..self.ranks {
                let node = self.job.system.node_of(rank) as usize % nodes;
                for sample in next.batch(rank, iteration) {
                    let size = self.job.sizes.get(sample) as f64;
                    used += size;
                    let tier = if seen.remove(sample) {
                        let place = from_next[number] as usize;
                        number += 1;
                        if wish[place] == 0 {
                            open.push((node, place, size));
                        }
                        wish[place]
                    } else {
                        0
                    };
                    if tier == 0 {
                        slow[node] += size;
                    } else {
                        room[usize::from(tier) - 1] -= size;
                    }
                }
            }
            let fair = used * slow_share / nodes as f64;
            for &(node, place, size) in &open {
                // Half a sample too many is as good as half a sample too few.
                if slow[node] - fair < size / 2.0 {
                    continue;
                }
                let roomiest = (0..room.len()).max_by(|&a, &b| room[a].total_cmp(&room[b]));
                if let Some(tier) = roomiest.filter(|&tier| room[tier] >= size) {
                    room[tier] -= size;
                    slow[node] -= size;
                    wish[place] = tier as TierId + 1;
                }
            }
        }
    }
}

/// How far each node is behind the others, in bytes read from the source, when an epoch
/// ends. Where compute or anything else but the source sets the pace, rings are full by
/// then and nobody is.
fn source_lag(
    job: &Job,
    order: &EpochOrder,
    ranks: u32,
    spots: &[Spot],
    behind: &[f64],
) -> Vec<f64> {
    let system = &job.system;
    let nodes = if ranks == 1 { 1 } else { system.nodes as usize };
    let mut slow = vec![0.0; nodes];
    let mut total = 0.0;
    for iteration in 0..order.iterations() {
        for rank in 0..ranks {
            let node = system.node_of(rank) as usize % nodes;
            for sample in order.batch(rank, iteration) {
                let size = job.sizes.get(sample) as f64;
                total += size;
                if spots.get(sample as usize).is_none_or(|&spot| spot == NOWHERE) {
                    slow[node] += size;
                }
            }
        }
    }
    let read: f64 = slow.iter().sum();
    let reading = read / system.source.throughput.at(system.nodes).0;
    let computing = total / (f64::from(ranks) * system.compute.0);
    if reading < computing {
        return vec![0.0; nodes];
    }
    let mean = read / nodes as f64;
    for (node, slow) in slow.iter_mut().enumerate() {
        *slow += behind.get(node).copied().unwrap_or(0.0) - mean;
    }
    slow
}

/// No rank uses the sample in the next epoch.
const UNUSED: u16 = u16::MAX;

struct Instance {
    node: NodeId,
    tiers: Spot,
    whole: bool,
    plan: Arc<Belady>,
    /// The epoch that `this` and `next` speak of.
    epoch: Option<u32>,
    this: Epoch,
    next: Epoch,
    /// Of the batch at hand: the spots in both; kept for its allocation.
    found: Vec<(Spot, Spot)>,
}

impl Instance {
    fn turn_to(&mut self, epoch: u32) {
        if self.epoch != Some(epoch) {
            self.epoch = Some(epoch);
            self.this = self.plan.epoch(epoch);
            self.next = self.plan.epoch(epoch + 1);
        }
    }

    fn place(&self, spot: Spot) -> Place {
        let (node, tier) = (NodeId::from(spot / self.tiers), (spot % self.tiers) as TierId);
        if node == self.node { Place::Local(tier) } else { Place::Peer(node, tier) }
    }

    /// Looks up where each sample is now and where it goes, all at once so that the
    /// look-ups overlap.
    fn look_up(&mut self, samples: &[SampleId]) {
        self.found.clear();
        let (this, next) = (&self.this, &self.next);
        self.found.extend(samples.iter().map(|&sample| (this.spot(sample), next.spot(sample))));
    }

    /// Where the sample is for this use, and whether this use is its last here.
    fn find(&self, spot: Spot, sample: SampleId, at: (u32, RankId)) -> (Spot, bool) {
        match self.this.repeats.get(sample, at.0) {
            None => (spot, true),
            Some(repeat) if spot == NOWHERE && at.0 > repeat.first.0 => {
                (repeat.waits_at, at == repeat.last)
            }
            Some(repeat) => (spot, at == repeat.last),
        }
    }

    fn stage(&self, rank: RankId, at: (u32, RankId), samples: &[SampleId], actions: &mut Actions) {
        if self.whole && rank > 0 {
            // The rank before has just staged the same batch: take it from its ring.
            let before = self.plan.job.system.node_of(rank - 1);
            let from = if before == self.node { Place::Local(0) } else { Place::Peer(before, 0) };
            actions.loads.extend(samples.iter().map(|&sample| Load::from(sample, from)));
            return;
        }
        for (&sample, &(spot, next)) in samples.iter().zip(&self.found) {
            let (spot, last) = self.find(spot, sample, at);
            let load = if spot == NOWHERE {
                Load::from(sample, Place::Source)
            } else {
                let last_use = last && next != spot;
                Load { sample, from: self.place(spot), last_use, keep: None }
            };
            actions.loads.push(load);
        }
    }

    fn consumed(
        &self,
        rank: RankId,
        at: (u32, RankId),
        samples: &[SampleId],
        actions: &mut Actions,
    ) {
        if self.whole && rank > 0 {
            return;
        }
        for (&sample, &(spot, next)) in samples.iter().zip(&self.found) {
            let (spot, last) = self.find(spot, sample, at);
            let to = if last {
                next
            } else if spot == NOWHERE {
                self.this.repeats.get(sample, at.0).map_or(NOWHERE, |repeat| repeat.waits_at)
            } else {
                NOWHERE
            };
            if to != NOWHERE && to != spot {
                let (node, tier) = (NodeId::from(to / self.tiers), (to % self.tiers) as TierId);
                actions.keeps.push(Keep { sample, node, tier });
            }
        }
    }
}

impl Policy for Instance {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { rank, step, samples } => {
                self.turn_to(step.epoch);
                self.look_up(samples);
                self.stage(rank, (step.iteration, rank), samples, actions);
            }
            Event::Consumed { rank, step, samples } => {
                self.turn_to(step.epoch);
                self.look_up(samples);
                self.consumed(rank, (step.iteration, rank), samples, actions);
            }
            // A holder that died or lost its cache: the source always has it.
            Event::Missed { sample, .. } => {
                actions.loads.push(Load::from(sample, Place::Source));
            }
            Event::Idle { .. } | Event::Fetched { .. } => {}
        }
    }
}
