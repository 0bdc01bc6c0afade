//! `monarch`: node-local tiers, first come, never evict.
//!
//! Knows nothing of the future and nothing of other nodes. The first read of a file assigns it to
//! the first tier with space for the whole file. A background thread copies the file there, and its
//! samples are read from the tier once they have arrived. A file that fits no tier is always read
//! from the source; a later, smaller one may still fit. Nothing is evicted: everything is read once
//! an epoch, so replacing one file by another would gain nothing. Costs S source bytes in the first
//! epoch and S − D a node after that.
//!
//! Samples that the job reads before the copy reaches them are not fetched a second time: the page
//! cache still has them, so they are kept after their use. With one sample a file all are kept so.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::holdings::Holdings;
use super::{Actions, Event, Fetch, Keep, Load, LoadFrom, NodeId, Policy, PolicyPlan, TierId};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::SampleId;

#[derive(Debug)]
pub struct Monarch {
    job: Arc<Job>,
}

impl Monarch {
    pub fn new(job: &Arc<Job>) -> Self {
        Self { job: job.clone() }
    }
}

impl PolicyPlan for Monarch {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(MonarchNode {
            node,
            held: Holdings::new(&self.job, node),
            claimed: Bits::new(self.job.sizes.len()),
            places: vec![],
            copying: vec![VecDeque::new(); self.job.system.tiers.len()],
            job: self.job.clone(),
        })
    }

    /// Its metadata container is filled from one `stat` a file.
    fn startup_ops(&self) -> (u64, u64) {
        (0, u64::from(self.job.packing.files))
    }
}

/// No read has touched the file yet.
const UNTOUCHED: TierId = TierId::MAX;
/// The file fits no tier, and never will: nothing is evicted.
const NOWHERE: TierId = 0;

#[derive(Debug)]
struct MonarchNode {
    node: NodeId,
    held: Holdings,
    /// On its way to its tier, by the job's own read or by the copy.
    claimed: Bits,
    /// Tier by file; allocated with the first.
    places: Vec<TierId>,
    /// Samples still to be copied, by tier.
    copying: Vec<VecDeque<Range<SampleId>>>,
    job: Arc<Job>,
}

impl MonarchNode {
    fn samples_of(&self, file: u32) -> Range<SampleId> {
        let (all, files) = (u64::from(self.job.sizes.len()), u64::from(self.job.packing.files));
        let first = |file: u64| (file * all).div_ceil(files) as SampleId;
        first(u64::from(file))..first(u64::from(file) + 1)
    }

    /// Returns the file's tier, chosen now if this is its first read.
    fn place(&mut self, file: u32) -> TierId {
        if self.places.is_empty() {
            self.places = vec![UNTOUCHED; self.job.packing.files as usize];
        }
        if self.places[file as usize] == UNTOUCHED {
            let samples = self.samples_of(file);
            let bytes = samples.clone().map(|k| self.job.sizes.get(k)).sum();
            let tier = self.held.room_for(bytes).unwrap_or(NOWHERE);
            self.places[file as usize] = tier;
            if tier != NOWHERE {
                self.held.reserve(tier, bytes);
                if samples.len() > 1 {
                    self.copying[tier as usize].push_back(samples);
                }
            }
        }
        self.places[file as usize]
    }

    fn load(&mut self, sample: SampleId) -> Load {
        if let Some(tier) = self.held.tier_of(sample) {
            return Load::from(sample, LoadFrom::Local(tier));
        }
        if self.place(self.job.file_of(sample)) != NOWHERE {
            self.claimed.insert(sample);
        }
        Load::from_source(sample)
    }

    fn copy(&mut self, tier: TierId, limit: usize, actions: &mut Actions) {
        let queue = &mut self.copying[tier as usize];
        while actions.fetches.len() < limit
            && let Some(samples) = queue.front_mut()
        {
            match samples.next() {
                Some(sample) if self.claimed.insert(sample) => {
                    actions.fetches.push(Fetch { sample });
                }
                Some(_) => {}
                None => drop(queue.pop_front()),
            }
        }
    }
}

impl Policy for MonarchNode {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                for &sample in samples {
                    let load = self.load(sample);
                    actions.loads.push(load);
                }
            }
            Event::Consumed { samples, .. } => {
                for &sample in samples {
                    let tier = self.place(self.job.file_of(sample));
                    if tier != NOWHERE && self.held.tier_of(sample).is_none() {
                        self.held.arrive(tier, sample);
                        actions.keeps.push(Keep { sample, node: self.node, tier });
                    }
                }
            }
            Event::Idle { tier, limit } => self.copy(tier, limit, actions),
            Event::Fetched { tier, sample } => self.held.arrive(tier, sample),
            Event::Missed { sample, .. } => actions.loads.push(Load::from_source(sample)),
            Event::Measured(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{Driver, job};

    #[test]
    fn the_first_touch_fetches_the_whole_file_in_the_background() {
        let mut job = job(12, 1, 1, &[50]);
        job.packing.files = 3;
        let plan: Arc<dyn PolicyPlan> = Arc::new(Monarch::new(&Arc::new(job)));
        assert_eq!(plan.startup_ops(), (0, 3));
        let mut node = Driver::new(&plan, 0);
        assert!(node.on(Event::Idle { tier: 1, limit: 9 }).fetches.is_empty());
        // The second file fits, the third no longer does.
        assert_eq!(node.stage(0, (0, 0), &[5, 8])[0].from, LoadFrom::Source);
        let fetches = node.on(Event::Idle { tier: 1, limit: 3 }).fetches.clone();
        // The job reads 5 itself.
        assert_eq!(fetches.iter().map(|fetch| fetch.sample).collect::<Vec<_>>(), [4, 6, 7]);
        assert!(node.on(Event::Idle { tier: 1, limit: 3 }).fetches.is_empty());
        assert_eq!(node.stage(0, (0, 1), &[6])[0].from, LoadFrom::Source);
        node.on(Event::Fetched { tier: 1, sample: 6 });
        assert_eq!(node.stage(0, (0, 2), &[6])[0].from, LoadFrom::Local(1));
        let keeps = node.consumed(0, (0, 0), &[5, 8]).keeps.clone();
        assert_eq!(keeps, [Keep { sample: 5, node: 0, tier: 1 }]);
        assert_eq!(node.stage(0, (1, 0), &[5])[0].from, LoadFrom::Local(1));
    }

    #[test]
    fn no_more_is_copied_at_a_time_than_is_asked_for() {
        let mut job = job(12, 1, 1, &[120]);
        job.packing.files = 1;
        let plan: Arc<dyn PolicyPlan> = Arc::new(Monarch::new(&Arc::new(job)));
        let mut node = Driver::new(&plan, 0);
        node.stage(0, (0, 0), &[5]);
        let copied: Vec<usize> =
            (0..4).map(|_| node.on(Event::Idle { tier: 1, limit: 4 }).fetches.len()).collect();
        assert_eq!(copied, [4, 4, 3, 0]);
    }

    #[test]
    fn does_not_stop_placing_at_the_first_file_that_does_not_fit() {
        let mut job = job(4, 1, 1, &[25]);
        job.sizes = crate::Sizes::from_bytes(vec![10, 20, 10, 10]);
        let plan: Arc<dyn PolicyPlan> = Arc::new(Monarch::new(&Arc::new(job)));
        let mut node = Driver::new(&plan, 0);
        node.stage(0, (0, 0), &[0, 1, 2, 3]);
        let keeps = node.consumed(0, (0, 0), &[0, 1, 2, 3]).keeps.clone();
        assert_eq!(keeps.iter().map(|keep| keep.sample).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(node.stage(0, (1, 0), &[2])[0].from, LoadFrom::Local(1));
        assert!(node.consumed(0, (1, 0), &[2]).keeps.is_empty());
    }
}
