//! Which samples to hold and in which tier, before asking where.
//!
//! Samples that this epoch uses are candidates for the next. Where not all of them fit, the
//! choice among them makes no difference to bytes: each one that is held saves its own. So
//! it is made such that the source is read all the time:
//!
//! - At every iteration of the next epoch every rank has read as many bytes from the source as
//!   any other, and the same share of what was used ([`ReadLevel`]). Going through the next epoch,
//!   the rank that has read most gets the next held sample.
//! - At every iteration of this epoch as much is kept as is evicted, so that caches are full all
//!   the time and never too small ([`Supply`]). Of the samples that a rank could have held, it
//!   gets the one from the stretch of this epoch that has given least so far.

use std::collections::BinaryHeap;

use super::NOWHERE;
use super::state::{Transition, Users, ring_of};
use crate::bits::Bits;
use crate::policy::TierId;
use crate::sampler::{EpochOrder, SampleId};

/// Stretches of this epoch that are filled evenly: at least so many candidates each, and at
/// most so many stretches, whose counters then stay in a processor's cache.
const CANDIDATES_A_STRETCH: u32 = 16;
const MOST_STRETCHES: u32 = 4096;

/// A rank chooses among so many of its samples: enough for even stretches, few enough to look
/// at all of them for each sample.
const CHOICES: usize = 8;

/// Of a tier that all fits into, left free where nodes give samples to each other: one may give
/// before the other has evicted.
const SLACK: f64 = 0.002;

/// With fewer samples for each rank an even choice does not differ from any other.
const FEW: usize = 16;

/// What to hold of the samples that this epoch uses.
#[derive(Debug, Default)]
pub struct TierChoice {
    /// By place among the candidates in this epoch's order; 0 for none.
    pub tier: Vec<TierId>,
    /// All candidates can be held.
    pub fits: bool,
}

/// What is known of the candidates before any is chosen.
#[derive(Debug, Default)]
struct Candidates {
    count: u32,
    bytes: u64,
    /// Candidates that are held already.
    settled: u32,
}

impl Transition<'_> {
    /// Chooses among the candidates: the samples that this epoch and the next both use. What is
    /// held through all of this epoch for the next has its place already.
    pub fn choose(&self, users: &Users) -> TierChoice {
        let Some(next) = self.next else { return TierChoice::default() };
        let mut candidates = Candidates::default();
        self.candidates(users, |sample| {
            candidates.count += 1;
            candidates.bytes += self.job.sizes.get(sample);
            candidates.settled += u32::from(self.spot(sample) != NOWHERE);
        });
        let mut space: Vec<u64> = (1..self.tiers).map(|tier| self.open_space(tier)).collect();
        let total: u64 = space.iter().sum();
        let fits = self.tiers > 1 && total >= candidates.bytes;
        let share = |space: u64| space as f64 / candidates.bytes.max(1) as f64;
        let tier = if self.tiers == 1 {
            vec![0; candidates.count as usize]
        } else if !fits {
            let margin = self.margin();
            for space in &mut space {
                *space -=
                    (u128::from(margin) * u128::from(*space) / u128::from(total.max(1))) as u64;
            }
            self.deal(next, users, &candidates, &space)
        } else if candidates.settled > 0 {
            self.leave_alone(users, candidates.count)
        } else {
            let slack = if self.job.system.nodes > 1 { SLACK } else { 0.0 };
            let shares: Vec<f64> =
                space.iter().map(|&space| share(space) * (1.0 - slack)).collect();
            self.deal_tiers(next, &self.places(users), &shares)
        };
        TierChoice { tier, fits }
    }

    /// Whether Belady's rule step by step reads less than an even choice could: where what the
    /// next epoch uses fits, so that later epochs decide, or nearly so. The more samples an
    /// epoch leaves out, the sooner space is worth more to a later epoch than to the next.
    pub fn later_epochs_decide(&self, users: &Users) -> bool {
        let samples = self.job.sizes.len();
        let used = self.used(self.order);
        let known = |&sample: &SampleId| used.contains(sample) || self.spot(sample) != NOWHERE;
        let wanted: u64 = (0..samples)
            .filter(|&sample| users.get(sample).is_some())
            .filter(known)
            .map(|sample| self.job.sizes.get(sample))
            .sum();
        let left_out = 1.0 - used.count() as f64 / f64::from(samples);
        let space: u64 = (1..self.tiers).map(|tier| self.open_space(tier)).sum();
        let few = used.count() < FEW * self.ranks as usize;
        let fits = wanted as f64 <= space as f64 * (1.0 + left_out / 2.0);
        few || (fits && self.all_used != (true, true))
    }

    /// The candidates in this epoch's order.
    fn candidates(&self, users: &Users, mut see: impl FnMut(SampleId)) {
        let tracked = &self.decision.tracked;
        for iteration in 0..self.order.iterations() {
            for rank in 0..self.ranks {
                for sample in self.uses(rank, iteration) {
                    if users.get(sample).is_some() && tracked.is_last(sample, iteration, rank) {
                        see(sample);
                    }
                }
            }
        }
    }

    /// By sample: its place among the candidates; `u32::MAX` for those that are none.
    fn places(&self, users: &Users) -> Vec<u32> {
        let mut place_of = vec![u32::MAX; self.job.sizes.len() as usize];
        let mut place = 0;
        self.candidates(users, |sample| {
            place_of[sample as usize] = place;
            place += 1;
        });
        place_of
    }

    /// Everything has a place but what the last epoch left out: the tiers stay as they are,
    /// and the rest goes where there is space.
    fn leave_alone(&self, users: &Users, count: u32) -> Vec<TierId> {
        let mut wish = Vec::with_capacity(count as usize);
        self.candidates(users, |sample| {
            let spot = self.spot(sample);
            let tier = (usize::from(spot) % self.tiers) as TierId;
            wish.push(if spot == NOWHERE { 1 } else { tier });
        });
        wish
    }

    /// Everything fits and nothing has a place yet: only the next epoch's load on the tiers
    /// matters, so they take turns in its order, each as often as its share.
    fn deal_tiers(&self, next: &EpochOrder, place_of: &[u32], shares: &[f64]) -> Vec<TierId> {
        let mut rest = 1.0;
        // The fastest tiers are filled; the last one in use takes what remains.
        let turns: Vec<f64> = shares
            .iter()
            .map(|&share| {
                let part = f64::min(share, rest);
                rest -= part;
                part
            })
            .collect();
        let mut credit = vec![0.0; turns.len()];
        let count = place_of.iter().filter(|&&place| place != u32::MAX).count();
        let mut wish = vec![0; count];
        for iteration in 0..next.iterations() {
            for rank in 0..self.ranks {
                for sample in next.batch(rank, iteration) {
                    let place = place_of[sample as usize];
                    if place == u32::MAX || wish[place as usize] != 0 {
                        continue;
                    }
                    let mut most = 0;
                    for (tier, turn) in turns.iter().enumerate() {
                        credit[tier] += turn;
                        if credit[tier] > credit[most] {
                            most = tier;
                        }
                    }
                    credit[most] -= 1.0;
                    wish[place as usize] = most as TierId + 1;
                }
            }
        }
        wish
    }

    /// Not everything fits: deals the space of each tier over both epochs.
    fn deal(
        &self,
        next: &EpochOrder,
        users: &Users,
        candidates: &Candidates,
        space: &[u64],
    ) -> Vec<TierId> {
        let place_of = self.places(users);
        let held: u64 = space.iter().sum();
        let level = self.level(next, &place_of, held);
        let mut supply = self.supply(users, candidates.count, space);
        let mut wish = vec![0; candidates.count as usize];
        let mut ranks =
            RankReads::new(&self.behind, self.ranks as usize, ring_of(self.job) * level.share);
        let mut seen = self.may_repeat(next).then(|| Bits::new(self.job.sizes.len()));
        for iteration in 0..next.iterations() {
            for rank in 0..self.ranks {
                for sample in next.batch(rank, iteration) {
                    let size = self.job.sizes.get(sample);
                    match self.use_of(sample, &place_of, seen.as_mut()) {
                        NextUse::Candidate(place) => {
                            ranks.could_hold(rank as usize, place, size);
                        }
                        NextUse::Slow => ranks.read(rank as usize, size),
                        NextUse::HeldSamples => {}
                    }
                }
            }
            ranks.expect(level.read_in(iteration));
            ranks.hold(&mut supply, &mut wish);
        }
        wish
    }

    /// Whether an order may use a sample more than once.
    fn may_repeat(&self, order: &EpochOrder) -> bool {
        self.own_order() || order.samples().len() > self.job.sizes.len() as usize
    }

    /// What the next epoch's use of a sample means for the source.
    fn use_of(&self, sample: SampleId, place_of: &[u32], seen: Option<&mut Bits>) -> NextUse {
        let again = seen.is_some_and(|seen| !seen.insert(sample));
        match place_of[sample as usize] {
            _ if again => NextUse::HeldSamples,
            u32::MAX if self.decision.spots.get(sample) == NOWHERE => NextUse::Slow,
            u32::MAX => NextUse::HeldSamples,
            place => NextUse::Candidate(place),
        }
    }

    /// How much each iteration of the next epoch reads from the source when `held` bytes of
    /// the candidates are held.
    fn level(&self, next: &EpochOrder, place_of: &[u32], held: u64) -> ReadLevel {
        let mut seen = self.may_repeat(next).then(|| Bits::new(self.job.sizes.len()));
        let iterations = (0..next.iterations()).map(|iteration| {
            let mut load = IterationBytes::default();
            for rank in 0..self.ranks {
                for sample in next.batch(rank, iteration) {
                    let size = self.job.sizes.get(sample);
                    load.used += size;
                    match self.use_of(sample, place_of, seen.as_mut()) {
                        NextUse::Candidate(_) => load.candidates += size,
                        NextUse::Slow => load.slow += size,
                        NextUse::HeldSamples => {}
                    }
                }
            }
            load
        });
        ReadLevel::new(iterations.collect(), held)
    }

    /// How much each stretch of this epoch can give.
    fn supply(&self, users: &Users, count: u32, space: &[u64]) -> Supply {
        let stretches = (count / CANDIDATES_A_STRETCH).clamp(1, MOST_STRETCHES) as usize;
        let mut candidates = vec![0u64; stretches];
        let mut freed = vec![0i64; stretches];
        let tracked = &self.decision.tracked;
        let mut place = 0u64;
        for iteration in 0..self.order.iterations() {
            for rank in 0..self.ranks {
                for sample in self.uses(rank, iteration) {
                    let at = (place * stretches as u64 / u64::from(count.max(1))) as usize;
                    let at = at.min(stretches - 1);
                    let size = self.job.sizes.get(sample);
                    let span = tracked.span(sample, iteration);
                    let waits = span.is_some();
                    if self.spot(sample) == NOWHERE
                        && span.is_some_and(|(first, _)| first.at == (iteration, rank))
                    {
                        freed[at] -= size.cast_signed();
                    }
                    if !tracked.is_last(sample, iteration, rank) {
                        continue;
                    }
                    if self.spot(sample) != NOWHERE || waits {
                        freed[at] += size.cast_signed();
                    }
                    if users.get(sample).is_some() {
                        candidates[at] += size;
                        place += 1;
                    }
                }
            }
        }
        let free = (1..self.tiers).map(|tier| self.free_in_tier[tier]).sum::<u64>();
        Supply::new(
            &candidates,
            &freed,
            free + self.spares.total(),
            space,
            count,
            self.ranks as usize,
        )
    }
}

/// What a use in the next epoch means for the source.
enum NextUse {
    /// It may be held; by its place.
    Candidate(u32),
    /// It is read from the source.
    Slow,
    /// It is held, or this epoch has read it before.
    HeldSamples,
}

/// Bytes of one iteration.
#[derive(Clone, Copy, Debug, Default)]
struct IterationBytes {
    used: u64,
    slow: u64,
    candidates: u64,
}

/// How many bytes each iteration of an epoch reads from the source: the same share of what it
/// uses, within what its samples allow.
#[derive(Debug)]
struct ReadLevel {
    iterations: Vec<IterationBytes>,
    share: f64,
}

impl ReadLevel {
    /// Of an epoch that holds so many bytes of its candidates.
    fn new(iterations: Vec<IterationBytes>, held: u64) -> Self {
        let slow = |load: &IterationBytes, share| Self::slow(*load, share);
        let all: f64 = iterations.iter().map(|load| (load.slow + load.candidates) as f64).sum();
        let wanted = all - held as f64;
        // The share is at most one; forty halvings are finer than a byte in a terabyte.
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..40 {
            let share = f64::midpoint(low, high);
            if iterations.iter().map(|load| slow(load, share)).sum::<f64>() < wanted {
                low = share;
            } else {
                high = share;
            }
        }
        Self { iterations, share: high }
    }

    fn slow(load: IterationBytes, share: f64) -> f64 {
        (load.used as f64 * share).clamp(load.slow as f64, (load.slow + load.candidates) as f64)
    }

    fn read_in(&self, iteration: u32) -> f64 {
        Self::slow(self.iterations[iteration as usize], self.share)
    }
}

/// Stretches that are even together as well.
#[derive(Clone, Copy, Debug)]
struct StretchGroup {
    wanted: f64,
    given: f64,
}

impl StretchGroup {
    fn lacks(self, progress: f64) -> f64 {
        self.wanted * progress - self.given
    }
}

const GROUP: usize = 16;

/// What the stretches of this epoch give to the tiers.
#[derive(Debug)]
struct Supply {
    /// Bytes that each stretch should give.
    wanted: Vec<f64>,
    /// By stretch and tier: bytes that it has given.
    given: Vec<f64>,
    /// Of groups of stretches, and of groups of these: how much less they have given than they
    /// should have. A little too much in each stretch would add up to a lot.
    groups: [Vec<StretchGroup>; 2],
    /// By tier: its share of what is held.
    shares: Vec<f64>,
    /// By rank and tier: what it was given so far.
    dealt: Vec<f64>,
    /// Of all candidates and of what is held.
    count: u64,
    total: f64,
    held: f64,
}

impl Supply {
    /// `candidates` and `freed` are bytes by stretch; `free` is free when the epoch begins.
    fn new(
        candidates: &[u64],
        freed: &[i64],
        free: u64,
        space: &[u64],
        count: u32,
        ranks: usize,
    ) -> Self {
        let total: u64 = space.iter().sum();
        // What can be kept until the end of each stretch: no more than is free then, or later.
        let mut most: Vec<i64> = freed
            .iter()
            .scan(free.cast_signed(), |free, freed| {
                *free += freed;
                Some(*free)
            })
            .collect();
        for at in (1..most.len()).rev() {
            most[at - 1] = most[at - 1].min(most[at]);
        }
        let mut left: u64 = candidates.iter().sum();
        let mut kept = 0.0;
        let wanted = candidates.iter().zip(&most).map(|(&candidates, &most)| {
            let share = (total as f64 - kept) / left.max(1) as f64;
            let wanted = (candidates as f64 * share.min(1.0)).min(most as f64 - kept).max(0.0);
            kept += wanted;
            left -= candidates;
            wanted
        });
        let wanted: Vec<f64> = wanted.collect();
        let group = |of: usize| -> Vec<StretchGroup> {
            wanted
                .chunks(of)
                .map(|part| StretchGroup { wanted: part.iter().sum(), given: 0.0 })
                .collect()
        };
        let groups = [group(GROUP), group(GROUP * GROUP)];
        let shares = space.iter().map(|&space| space as f64 / total.max(1) as f64).collect();
        Self {
            given: vec![0.0; wanted.len() * space.len()],
            wanted,
            groups,
            shares,
            dealt: vec![0.0; space.len() * ranks],
            count: u64::from(count.max(1)),
            total: total.max(1) as f64,
            held: 0.0,
        }
    }

    fn stretch(&self, place: u32) -> usize {
        (u64::from(place) * self.wanted.len() as u64 / self.count) as usize
    }

    /// How much less a stretch has given than it should have by now.
    fn lacks(&self, place: u32) -> f64 {
        let at = self.stretch(place);
        let tiers = self.shares.len();
        let given: f64 = self.given[at * tiers..][..tiers].iter().sum();
        let progress = self.held / self.total;
        let [of, of_these] = &self.groups;
        self.wanted[at] * progress - given
            + of[at / GROUP].lacks(progress)
            + of_these[at / (GROUP * GROUP)].lacks(progress)
    }

    /// A rank gets the candidate at `place` held: in which tier. Every rank and every stretch
    /// has the tiers' shares.
    fn give(&mut self, rank: usize, place: u32, size: u64) -> TierId {
        let at = self.stretch(place);
        let tiers = self.shares.len();
        let size = size as f64;
        self.held += size;
        let wanted = self.wanted[at] * (self.held / self.total);
        let given = &mut self.given[at * tiers..][..tiers];
        let dealt = &mut self.dealt[rank * tiers..][..tiers];
        let total = dealt.iter().sum::<f64>() + size;
        let lacks = |tier: usize| {
            let share = self.shares[tier];
            total * share - dealt[tier] + wanted * share - given[tier]
        };
        let tier = (0..tiers).max_by(|&a, &b| lacks(a).total_cmp(&lacks(b))).unwrap_or(0);
        given[tier] += size;
        dealt[tier] += size;
        let [of, of_these] = &mut self.groups;
        of[at / GROUP].given += size;
        of_these[at / (GROUP * GROUP)].given += size;
        tier as TierId + 1
    }
}

/// The ranks' reads from the source in the iterations of the next epoch so far.
#[derive(Debug)]
struct RankReads {
    /// Bytes that each has read; what it could have held counts until it is.
    read: Vec<f64>,
    /// Of the iteration at hand, by rank: what it could have held, by place and bytes.
    open: Vec<Vec<(u32, u64)>>,
    /// Bytes that all have read, and should have read.
    total: f64,
    fair: f64,
    /// How far a rank can be ahead of another: what of its ring was read from the source.
    ring: f64,
    /// Kept for its allocation.
    heap: BinaryHeap<(u64, usize)>,
}

impl RankReads {
    fn new(behind: &[f64], ranks: usize, ring: f64) -> Self {
        let least = behind.iter().copied().fold(0.0, f64::min);
        let read = |rank| behind.get(rank).copied().unwrap_or(0.0) - least;
        let read: Vec<f64> = (0..ranks).map(read).collect();
        let total = read.iter().sum();
        let mut new = Self {
            open: vec![vec![]; ranks],
            total,
            fair: total,
            read,
            ring,
            heap: BinaryHeap::new(),
        };
        new.wait_for_each_other();
        new
    }

    fn read(&mut self, rank: usize, size: u64) {
        self.read[rank] += size as f64;
        self.total += size as f64;
    }

    fn could_hold(&mut self, rank: usize, place: u32, size: u64) {
        self.read(rank, size);
        self.open[rank].push((place, size));
    }

    /// The iteration at hand should read so many bytes.
    fn expect(&mut self, bytes: f64) {
        self.fair += bytes;
    }

    /// Holds samples of the iteration at hand until it reads no more than it should.
    fn hold(&mut self, supply: &mut Supply, wish: &mut [TierId]) {
        self.heap.clear();
        let ranks = (0..self.open.len()).filter(|&rank| !self.open[rank].is_empty());
        self.heap.extend(ranks.map(|rank| (self.read[rank] as u64, rank)));
        while let Some((_, rank)) = self.heap.pop() {
            let over = self.total - self.fair;
            let open = &mut self.open[rank];
            let Some(at) = pick(open, supply, over) else {
                if over <= 0.0 {
                    break;
                }
                continue;
            };
            let (place, size) = open.swap_remove(at);
            wish[place as usize] = supply.give(rank, place, size);
            self.read[rank] -= size as f64;
            self.total -= size as f64;
            if !open.is_empty() {
                self.heap.push((self.read[rank] as u64, rank));
            }
        }
        self.open.iter_mut().for_each(Vec::clear);
        self.wait_for_each_other();
    }

    /// A rank whose ring is full reads no further before the others have come as far.
    fn wait_for_each_other(&mut self) {
        let most = self.read.iter().copied().fold(0.0, f64::max);
        for read in &mut self.read {
            let waits = (most - self.ring - *read).max(0.0);
            *read += waits;
            self.total += waits;
            self.fair += waits;
        }
    }
}

/// Of what could be held, the sample whose stretch lacks most. None where even the smallest is
/// more than what was read too much: half a sample too many is as good as half too few.
fn pick(open: &[(u32, u64)], supply: &Supply, over: f64) -> Option<usize> {
    let from = open.len().saturating_sub(CHOICES);
    (from..open.len())
        .filter(|&at| (open[at].1 as f64) < 2.0 * over)
        .max_by(|&a, &b| supply.lacks(open[a].0).total_cmp(&supply.lacks(open[b].0)))
}
