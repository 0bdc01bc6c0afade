//! Samples whose uses in an epoch are written down one by one.
//!
//! Most samples are used once an epoch: they are where they waited, and go where they wait for
//! the next epoch. Samples that are used more than once (padding, drawing with replacement, the
//! user's own orders) and those that lose their place before their use need more words.

use std::collections::HashMap;
use std::ops::Range;

use super::{NOWHERE, Spot};
use crate::bits::Bits;
use crate::policy::RankId;
use crate::sampler::SampleId;

/// One use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedUse {
    /// Iteration and rank.
    pub at: (u32, RankId),
    /// Where it is when the iteration begins.
    pub from: Spot,
    /// Where it is when the iteration is over.
    pub to: Spot,
}

/// The tracked samples of one epoch. Padding repeats the first samples of an epoch at its end,
/// so most iterations need no look into the map.
#[derive(Clone, Debug, Default)]
pub struct Tracked {
    samples: HashMap<SampleId, Vec<TrackedUse>>,
    /// No tracked sample is used in the iterations between these two.
    quiet: Range<u32>,
}

impl Tracked {
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The uses of a sample that this iteration uses, if it is tracked.
    #[inline]
    pub fn get(&self, sample: SampleId, iteration: u32) -> Option<&[TrackedUse]> {
        if self.samples.is_empty() || self.quiet.contains(&iteration) {
            None
        } else {
            self.samples.get(&sample).map(Vec::as_slice)
        }
    }

    pub fn get_mut(&mut self, sample: SampleId) -> Option<&mut Vec<TrackedUse>> {
        self.samples.get_mut(&sample)
    }

    /// One use of a sample, if it is tracked.
    #[inline]
    pub fn find(&self, sample: SampleId, at: (u32, RankId)) -> Option<TrackedUse> {
        let uses = self.get(sample, at.0)?;
        uses.binary_search_by_key(&at, |using| using.at).ok().map(|found| uses[found])
    }

    /// Whether the epoch does not use the sample again.
    #[inline]
    pub fn is_last(&self, sample: SampleId, iteration: u32, rank: RankId) -> bool {
        let uses = self.get(sample, iteration);
        uses.is_none_or(|uses| uses.last().is_none_or(|last| last.at == (iteration, rank)))
    }

    /// Iterations of the first and of the last use of a sample that is used in several.
    #[inline]
    pub fn span(&self, sample: SampleId, iteration: u32) -> Option<(TrackedUse, TrackedUse)> {
        let uses = self.get(sample, iteration)?;
        let (&first, &last) = (uses.first()?, uses.last()?);
        (last.at.0 > first.at.0).then_some((first, last))
    }

    /// A sample that is used once loses its place before that.
    pub fn loses_its_place(&mut self, sample: SampleId, at: (u32, RankId)) {
        self.quiet = 0..0;
        self.samples.insert(sample, vec![TrackedUse { at, from: NOWHERE, to: NOWHERE }]);
    }

    pub fn samples(&mut self) -> impl Iterator<Item = (SampleId, &mut Vec<TrackedUse>)> {
        self.samples.iter_mut().map(|(&sample, uses)| (sample, uses))
    }

    /// Finds the samples that are used more than once by going through an epoch's uses twice;
    /// `walk` calls back with the iteration, rank and sample of each, in order.
    pub fn repeated(
        samples: u32,
        iterations: u32,
        walk: impl Fn(&mut dyn FnMut(u32, RankId, SampleId)),
    ) -> Self {
        let mut uses: HashMap<SampleId, Vec<TrackedUse>> = HashMap::new();
        let mut seen = Bits::new(samples);
        walk(&mut |_, _, sample| {
            if !seen.insert(sample) {
                uses.insert(sample, vec![]);
            }
        });
        if uses.is_empty() {
            return Self::default();
        }
        walk(&mut |iteration, rank, sample| {
            let Some(uses) = uses.get_mut(&sample) else { return };
            let at = (iteration, rank);
            // A batch may name a sample twice, which is one use.
            if uses.last().is_none_or(|last| last.at != at) {
                uses.push(TrackedUse { at, from: NOWHERE, to: NOWHERE });
            }
        });
        let mut busy: Vec<u32> = uses.values().flatten().map(|using| using.at.0).collect();
        busy.extend([0, iterations]);
        busy.sort_unstable();
        let quiet = busy
            .windows(2)
            .map(|pair| pair[0] + 1..pair[1])
            .max_by_key(ExactSizeIterator::len)
            .unwrap_or_default();
        Self { samples: uses, quiet }
    }
}
