//! The fewest bytes that must come from the source, over the whole run.
//!
//! All caches are taken as one of C = Σ D_n bytes, samples as divisible, and the whole run as
//! known. A step asks for all its samples at once. What is held when it begins is hit; the rest
//! is read, each sample once. After it any C bytes of what was held and what was used may stay.
//! Bélády's MIN, which keeps what is used soonest and may keep nothing of what it read, then
//! reads the least. Every placement on nodes and tiers is a special case of this cache, so no
//! policy reads less; where sizes are equal and C counts whole samples, a placement does as well.
//!
//! MIN is also the best for the run's beginning up to any step: what is not used again before
//! that step has the furthest next use of all, and MIN drops it first. So the sum over the first
//! epochs is a bound too, for each number of epochs.
//!
//! Computed forward, as the placing of intervals on free room: from one use of a sample to the
//! next its bytes want room for just that time. Intervals come in the order of their ends; each
//! takes, of the room that has been free since its start or longer, that which became free last.
//! Taking intervals by their ends and the tightest room first places the most, which is what MIN
//! does seen from the other end.
//!
//! Where every epoch uses every sample once, this is the closed form max(0, S - C) for each
//! epoch but the first: any C bytes that are held for ever are hit in each epoch, and no more
//! can be, since what is hit in an epoch was held when it began.

use belady_control::Job;
use belady_control::Sizes;
use belady_control::sampler::SampleId;

const NEVER: u32 = u32::MAX;

/// Walks through the steps of a run.
#[derive(Debug)]
pub struct Least {
    /// The step of each sample's latest use.
    last: Vec<u32>,
    /// Whether there is room for all samples, so that none is read twice.
    fits: bool,
    room: Room,
    step: u32,
    /// Room of hits of the step in progress: free from then on.
    freed: u64,
}

/// What became of one sample of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The step of the use before, if there was one. The present step where the sample comes
    /// twice in it.
    pub before: Option<u32>,
    /// Bytes that must come from the source.
    pub read: u64,
}

impl Least {
    pub fn new(job: &Job) -> Self {
        let last = vec![NEVER; job.sizes.len() as usize];
        let capacity = (1..job.system.tiers.len()).map(|tier| usable(job, tier)).sum();
        let mut room = Room::default();
        room.free(capacity);
        Self { last, fits: capacity >= job.sizes.total().0, room, step: 0, freed: 0 }
    }

    /// The number of the step in progress.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// A sample of the step in progress.
    pub fn use_sample(&mut self, sample: SampleId, bytes: u64) -> Use {
        let last = std::mem::replace(&mut self.last[sample as usize], self.step);
        if last == NEVER {
            return Use { before: None, read: bytes };
        }
        if last == self.step || self.fits {
            return Use { before: Some(last), read: 0 };
        }
        let held = self.room.take(last, bytes);
        self.freed += held;
        Use { before: Some(last), read: bytes - held }
    }

    /// The step is over. A run has fewer than 2^32 - 1 steps.
    pub fn end_step(&mut self) {
        if !self.fits {
            self.room.free(std::mem::take(&mut self.freed));
        }
        self.step += 1;
    }
}

/// What a tier holds on all nodes together, without what no placement can use where samples are
/// equal.
pub fn usable(job: &Job, tier: usize) -> u64 {
    let unit = match job.sizes {
        Sizes::Equal { bytes, .. } => bytes.max(1),
        Sizes::Narrow(_) | Sizes::Wide(_) => 1,
    };
    let of = |node| job.system.tiers[tier].capacity_of(node).0;
    (0..job.system.nodes).map(|node| of(node) - of(node) % unit).sum()
}

/// Free room by the step since which it is free.
#[derive(Debug, Default)]
struct Room {
    free: Vec<u64>,
    /// The nearest entry at or before each that may have room, plus 1; 0 where none has.
    nearest: Vec<u32>,
}

impl Room {
    /// So much becomes free; one call for each step, from the one before the first.
    fn free(&mut self, bytes: u64) {
        self.free.push(bytes);
        let at = self.free.len() as u32;
        self.nearest.push(if bytes > 0 { at } else { at - 1 });
    }

    /// Takes up to so much that has been free since the end of `step` or longer.
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

    /// The last entry at or before `entry` that has room, plus 1, or 0; shortens the way there.
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
