//! The fewest bytes that must come from the source, over the whole run.
//!
//! The model is one cache of C = Σ D_n bytes, divisible samples and a run that is known. A step
//! needs all its samples at once. Samples that the cache holds when the step begins are hits; the
//! rest is read, each sample once. After the step any C bytes of what was held and what was used
//! may stay. In this model Bélády's MIN, which keeps what is used soonest, reads the least. Every
//! placement on nodes and tiers is a special case of this cache, so no policy reads less. Where
//! sizes are equal and C is a whole number of samples, a placement exists that reads as little.
//!
//! MIN is also optimal for the run's beginning up to any step: samples that are not used again
//! before that step have the furthest next uses, and MIN drops them first. So the sum over the
//! first epochs is a bound too, for each number of epochs.
//!
//! The computation goes forward and places intervals on free space: a sample's bytes need space
//! from one use to the next. Intervals come in the order of their ends. Each takes, of the space
//! that is free since its start or longer, that which became free last. Taking intervals by their
//! ends and the tightest space first places the most, which is what MIN does in reverse.
//!
//! Where every epoch uses every sample once, the result is max(0, S - C) for each epoch but the
//! first: any C bytes that are held for ever are hits in each epoch, and there are no more hits in
//! an epoch than bytes held when it began.

use belady_control::Job;
use belady_control::Sizes;
use belady_control::sampler::SampleId;

const NEVER: u32 = u32::MAX;

/// Counts the least reads, step by step.
#[derive(Debug)]
pub struct LeastReads {
    /// The step of each sample's latest use.
    last: Vec<u32>,
    /// Whether all samples fit, so that none is read twice.
    fits: bool,
    space: FreeSpace,
    step: u32,
    /// Space of the current step's hits, which is free from its end on.
    freed: u64,
}

/// One use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastUse {
    /// The step of the use before, if any; the current step where it uses the sample twice.
    pub before: Option<u32>,
    /// Bytes that must come from the source.
    pub read: u64,
}

impl LeastReads {
    pub fn new(job: &Job) -> Self {
        let last = vec![NEVER; job.sizes.len() as usize];
        let capacity = (1..job.system.tiers.len()).map(|tier| usable(job, tier)).sum();
        let mut space = FreeSpace::default();
        space.free(capacity);
        Self { last, fits: capacity >= job.sizes.total().0, space, step: 0, freed: 0 }
    }

    /// Returns the number of the current step.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Records a sample of the current step.
    pub fn use_sample(&mut self, sample: SampleId, bytes: u64) -> LeastUse {
        let last = std::mem::replace(&mut self.last[sample as usize], self.step);
        if last == NEVER {
            return LeastUse { before: None, read: bytes };
        }
        if last == self.step || self.fits {
            return LeastUse { before: Some(last), read: 0 };
        }
        let held = self.space.take(last, bytes);
        self.freed += held;
        LeastUse { before: Some(last), read: bytes - held }
    }

    /// Ends the current step. A run has fewer than 2^32 - 1 steps.
    pub fn end_step(&mut self) {
        if !self.fits {
            self.space.free(std::mem::take(&mut self.freed));
        }
        self.step += 1;
    }
}

/// Returns a tier's capacity on all nodes together; where samples are equal, in whole samples.
pub fn usable(job: &Job, tier: usize) -> u64 {
    let unit = match job.sizes {
        Sizes::Equal { bytes, .. } => bytes.max(1),
        Sizes::Narrow(_) | Sizes::Wide(_) => 1,
    };
    let of = |node| job.system.tiers[tier].capacity_of(node).0;
    (0..job.system.nodes).map(|node| of(node) - of(node) % unit).sum()
}

/// Free space by the step since which it is free.
#[derive(Debug, Default)]
struct FreeSpace {
    free: Vec<u64>,
    /// The nearest entry at or before each that may have free space, plus 1; 0 where none has.
    nearest: Vec<u32>,
}

impl FreeSpace {
    /// Adds space that becomes free; called once for each step, and once before the first.
    fn free(&mut self, bytes: u64) {
        self.free.push(bytes);
        let at = self.free.len() as u32;
        self.nearest.push(if bytes > 0 { at } else { at - 1 });
    }

    /// Takes up to `bytes` of space that is free since the end of `step` or longer; returns how
    /// much.
    fn take(&mut self, step: u32, bytes: u64) -> u64 {
        let mut missing = bytes;
        // Entry 0 is free from the beginning, entry s + 1 from the end of step s on.
        let mut at = self.find(step + 1);
        while missing > 0 && at > 0 {
            let free = &mut self.free[at as usize - 1];
            let taken = missing.min(*free);
            *free -= taken;
            missing -= taken;
            if *free == 0 {
                self.nearest[at as usize - 1] = at - 1;
                at = if at > 1 { self.find(at - 2) } else { 0 };
            }
        }
        bytes - missing
    }

    /// Returns the last entry at or before `entry` with free space, plus 1, or 0; shortens the
    /// path.
    fn find(&mut self, entry: u32) -> u32 {
        let mut end = entry + 1;
        while end > 0 && self.nearest[end as usize - 1] != end {
            end = self.nearest[end as usize - 1];
        }
        let mut at = entry + 1;
        while at > end {
            at = std::mem::replace(&mut self.nearest[at as usize - 1], end);
        }
        end
    }
}
