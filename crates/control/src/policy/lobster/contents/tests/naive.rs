//! What lobster's caches hold, worked out without any structure.

use std::sync::Arc;

use crate::job::Job;
use crate::policy::{NodeId, TierId};
use crate::sampler::{EpochOrder, SampleId, Scheme};

/// What to drop first, as the paper says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// How long ago, where reuse distances are not used: smaller is longer.
    Used(std::cmp::Reverse<u32>),
    /// Prefetched.
    Awaited(u32),
    /// The holder uses it again then.
    Again(u32),
    /// Another node uses it then.
    LastCopy(u32),
    /// The holder uses it again then, if at all.
    OneOfSeveral(u32),
    Never,
}

#[derive(Clone, Copy, Debug)]
pub struct NaiveCopy {
    pub sample: SampleId,
    pub node: NodeId,
    pub tier: TierId,
    /// When the holder uses it again, and whether in the epoch after its last use.
    own: (u32, bool),
    prefetched: bool,
    /// The entry of this iteration that keeps it.
    fresh: Option<usize>,
}

/// The same contents with a list of copies that is looked through for everything.
pub struct Naive<'a> {
    job: &'a Job,
    by_distance: bool,
    pub copies: Vec<NaiveCopy>,
    /// By sample: when any node uses it again.
    by_any: Vec<u32>,
    orders: Vec<Arc<EpochOrder>>,
    /// By epoch, rank and sample of each iteration.
    uses: Vec<Vec<Vec<(u32, SampleId)>>>,
    epoch: usize,
    iteration: usize,
    pub keeps: Vec<TierId>,
    pub evictions: Vec<(NodeId, SampleId, TierId)>,
    pub fetches: Vec<(NodeId, SampleId, TierId)>,
    /// By node: bytes that may be fetched, by tier, and uses of the epoch that were looked at.
    credit: Vec<(Vec<f64>, usize)>,
}

impl<'a> Naive<'a> {
    pub fn new(job: &'a Job, by_distance: bool, orders: Vec<Arc<EpochOrder>>) -> Self {
        Self {
            job,
            by_distance,
            copies: vec![],
            by_any: vec![u32::MAX; job.sizes.len() as usize],
            uses: orders.iter().map(|order| uses(job, order)).collect(),
            orders,
            epoch: 0,
            iteration: 0,
            keeps: vec![],
            evictions: vec![],
            fetches: vec![],
            credit: vec![(vec![0.0; job.system.tiers.len()], 0); job.system.nodes as usize],
        }
    }

    pub fn begin_epoch(&mut self, epoch: usize) {
        self.epoch = epoch;
        self.credit.iter_mut().for_each(|(_, looked)| *looked = 0);
    }

    pub fn begin_iteration(&mut self, iteration: usize) {
        self.iteration = iteration;
        self.copies.iter_mut().for_each(|copy| copy.fresh = None);
        self.keeps = vec![0; self.uses[self.epoch][iteration].len()];
        self.evictions.clear();
        self.fetches.clear();
    }
    fn now(&self) -> u32 {
        let before: usize = self.uses[..self.epoch].iter().map(Vec::len).sum();
        (before + self.iteration) as u32
    }

    /// Iteration and rank of an epoch's first use.
    fn first(&self, epoch: usize, sample: SampleId) -> Option<(u32, u32)> {
        let order = &self.orders[epoch];
        let position = order.samples().iter().position(|&other| other == sample)?;
        order.slot(position as u32).map(|slot| (slot.iteration, slot.rank))
    }

    /// When a sample is used after this epoch, by a node or by any.
    fn again(&self, sample: SampleId, by: Option<NodeId>) -> (u32, bool) {
        let by = by.filter(|_| self.job.stream.config().scheme != Scheme::Whole);
        let mut at: u32 = self.uses[..=self.epoch].iter().map(|epoch| epoch.len() as u32).sum();
        for (ahead, epoch) in (self.epoch + 1..self.uses.len()).enumerate() {
            // Only an epoch's first use counts.
            if let Some((iteration, rank)) = self.first(epoch, sample)
                && by.is_none_or(|by| by == self.job.system.node_of(rank))
            {
                return (at + iteration, ahead == 0);
            }
            at += self.uses[epoch].len() as u32;
        }
        (u32::MAX, false)
    }

    fn worth(&self, copy: &NaiveCopy) -> Worth {
        let by_any = self.by_any[copy.sample as usize];
        let count = self.copies.iter().filter(|other| other.sample == copy.sample).count();
        let (at, soon) = copy.own;
        match () {
            () if !self.by_distance => Worth::Used(std::cmp::Reverse(at)),
            () if copy.prefetched => Worth::Awaited(at),
            () if by_any == u32::MAX => Worth::Never,
            () if soon => Worth::Again(at),
            () if count == 1 => Worth::LastCopy(by_any),
            () => Worth::OneOfSeveral(at),
        }
    }

    fn free(&self, node: NodeId, tier: TierId) -> u64 {
        let held = self.copies.iter().filter(|copy| (copy.node, copy.tier) == (node, tier));
        let used: u64 = held.map(|copy| self.job.sizes.get(copy.sample)).sum();
        self.job.system.tiers[tier as usize].capacity_of(node).0 - used
    }

    fn tier_with(&self, node: NodeId, bytes: u64) -> Option<TierId> {
        let tiers = self.job.system.tiers.len() as TierId;
        (1..tiers).find(|&tier| self.free(node, tier) >= bytes)
    }

    /// Drops what is worth less until a sample fits, or nothing.
    fn make_space(&mut self, node: NodeId, bytes: u64, worth: Worth) -> bool {
        let worths: Vec<Worth> = self.copies.iter().map(|copy| self.worth(copy)).collect();
        let mut order: Vec<(Worth, SampleId)> = std::iter::zip(&worths, &self.copies)
            .filter(|(_, copy)| copy.node == node)
            .map(|(&worth, copy)| (worth, copy.sample))
            .collect();
        order.sort();
        let before = self.copies.clone();
        let mut gone = vec![];
        while self.tier_with(node, bytes).is_none() {
            let Some((_, victim)) = order.pop().filter(|(worst, _)| *worst > worth) else {
                self.copies = before;
                return false;
            };
            let is_victim = |copy: &NaiveCopy| (copy.node, copy.sample) == (node, victim);
            gone.extend(self.copies.iter().copied().find(is_victim));
            self.copies.retain(|copy| !is_victim(copy));
        }
        for copy in gone {
            match copy.fresh {
                Some(entry) => self.keeps[entry] = 0,
                None => self.evictions.push((node, copy.sample, copy.tier)),
            }
        }
        true
    }

    pub fn used(&mut self, node: NodeId, sample: SampleId, at: usize) {
        let whole = self.job.stream.config().scheme == Scheme::Whole;
        if whole && sample % self.job.system.nodes != node {
            return;
        }
        let now = self.now();
        let own = |naive: &Self, node| {
            if naive.by_distance { naive.again(sample, Some(node)) } else { (now, false) }
        };
        self.by_any[sample as usize] = self.again(sample, None).0;
        for index in 0..self.copies.len() {
            if self.copies[index].sample == sample {
                let again = own(self, self.copies[index].node);
                self.copies[index].own = again;
                self.copies[index].prefetched = false;
            }
        }
        let holds = |copy: &&NaiveCopy| copy.sample == sample;
        let held = self.copies.iter().any(|copy| holds(&copy));
        let held_here = self.copies.iter().filter(holds).any(|copy| copy.node == node);
        let (again, soon) = own(self, node);
        let last_epoch = self.epoch + 1 == self.uses.len();
        let keeps = if held { self.by_distance && !held_here && soon } else { !last_epoch };
        if !keeps {
            return;
        }
        let own = (again, soon);
        let fresh = Some(at);
        let mut copy = NaiveCopy { sample, node, tier: 0, own, prefetched: false, fresh };
        self.copies.push(copy);
        let worth = self.worth(&copy);
        self.copies.pop();
        let bytes = self.job.sizes.get(sample);
        if self.make_space(node, bytes, worth) {
            copy.tier = self.tier_with(node, bytes).unwrap();
            self.keeps[at] = copy.tier;
            self.copies.push(copy);
        }
    }

    pub fn prefetch(&mut self, node: NodeId, missed: u64) {
        let system = &self.job.system;
        if !self.by_distance || self.job.stream.config().scheme == Scheme::Whole {
            return;
        }
        let (mut credit, mut looked) = self.credit[node as usize].clone();
        let mean = self.job.sizes.total().as_f64() / f64::from(self.job.sizes.len());
        let batch = mean * f64::from(self.job.stream.config().batch) / f64::from(system.nodes);
        for (tier, credit) in credit.iter_mut().enumerate().skip(1) {
            let share = f64::from(system.tiers[tier].threads) / f64::from(system.staging_threads());
            *credit = (*credit + missed as f64 * share).min(batch);
        }
        let reach = (system.tiers[0].capacity_of(node).as_f64() / batch).ceil() as usize;
        let epoch = &self.uses[self.epoch];
        let is_own = |&&(rank, _): &&(u32, SampleId)| system.node_of(rank) == node;
        let count = |used: &Vec<_>| used.iter().filter(is_own).count();
        looked = looked.max(epoch.iter().take(self.iteration + reach + 2).map(count).sum());
        let list: Vec<(u32, u32, SampleId)> = (0..)
            .zip(epoch)
            .flat_map(|(iteration, used)| {
                let own = used.iter().filter(is_own);
                own.map(move |&(rank, sample)| (iteration, rank, sample))
            })
            .collect();
        while let Some(&(iteration, rank, sample)) = list.get(looked) {
            let held = self.copies.iter().any(|copy| copy.sample == sample);
            if !held && self.first(self.epoch, sample) == Some((iteration, rank)) {
                let bytes = self.job.sizes.get(sample);
                let could = |credit: &f64| *credit >= bytes as f64;
                if !credit.iter().skip(1).any(could)
                    || !self.make_space(node, bytes, Worth::LastCopy(u32::MAX))
                {
                    break;
                }
                let fits = |&tier: &usize| {
                    self.free(node, tier as TierId) >= bytes && could(&credit[tier])
                };
                let Some(tier) = (1..credit.len()).find(fits) else { break };
                credit[tier] -= bytes as f64;
                let before: usize = self.uses[..self.epoch].iter().map(Vec::len).sum();
                let own = (before as u32 + iteration, true);
                self.by_any[sample as usize] = own.0;
                let tier = tier as TierId;
                self.fetches.push((node, sample, tier));
                let copy = NaiveCopy { sample, node, tier, own, prefetched: true, fresh: None };
                self.copies.push(copy);
            }
            looked += 1;
        }
        self.credit[node as usize] = (credit, looked);
    }
}

/// The samples that each rank uses in each iteration.
pub fn uses(job: &Job, order: &EpochOrder) -> Vec<Vec<(u32, SampleId)>> {
    let of = |iteration| {
        let of_rank = move |rank| order.batch(rank, iteration).map(move |sample| (rank, sample));
        (0..job.system.ranks()).flat_map(of_rank).collect()
    };
    (0..order.iterations()).map(of).collect()
}
