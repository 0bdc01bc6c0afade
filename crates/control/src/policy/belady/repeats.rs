//! Samples that one epoch uses more than once, as padding and users' orders make them.

use std::collections::HashMap;
use std::ops::Range;

use super::{NOWHERE, Spot};
use crate::bits::Bits;
use crate::policy::RankId;
use crate::sampler::SampleId;

/// A sample that one epoch uses more than once (padding).
#[derive(Clone, Copy, Debug)]
pub struct Repeat {
    /// `(iteration, rank)` of the first and of the last use.
    pub first: (u32, RankId),
    pub last: (u32, RankId),
    /// Where it waits in between if it had no place before.
    pub waits_at: Spot,
}

/// The samples that one epoch uses more than once. Padding repeats the first samples of an
/// epoch at its end, so most iterations need no look into the map.
#[derive(Clone, Debug, Default)]
pub struct Repeats {
    pub samples: HashMap<SampleId, Repeat>,
    /// No repeated sample is used in the iterations between these two.
    quiet: Range<u32>,
}

impl Repeats {
    #[inline]
    pub fn get(&self, sample: SampleId, iteration: u32) -> Option<&Repeat> {
        if self.samples.is_empty() || self.quiet.contains(&iteration) {
            None
        } else {
            self.samples.get(&sample)
        }
    }

    #[inline]
    pub fn is_last(&self, sample: SampleId, iteration: u32, rank: RankId) -> bool {
        self.get(sample, iteration).is_none_or(|repeat| repeat.last == (iteration, rank))
    }

    /// Finds them by going through an epoch's uses twice; `walk` calls back with the
    /// iteration, rank and sample of each, in order.
    pub fn find(
        samples: u32,
        iterations: u32,
        walk: impl Fn(&mut dyn FnMut(u32, RankId, SampleId)),
    ) -> Self {
        let mut uses: HashMap<SampleId, Vec<(u32, RankId)>> = HashMap::new();
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
            if let Some(uses) = uses.get_mut(&sample) {
                uses.push((iteration, rank));
            }
        });
        let mut busy: Vec<u32> = uses.values().flatten().map(|&(iteration, _)| iteration).collect();
        busy.extend([0, iterations]);
        busy.sort_unstable();
        let quiet = busy
            .windows(2)
            .map(|pair| pair[0] + 1..pair[1])
            .max_by_key(ExactSizeIterator::len)
            .unwrap_or_default();
        let samples = uses
            .into_iter()
            .map(|(sample, uses)| {
                let (first, last) = (uses[0], uses[uses.len() - 1]);
                (sample, Repeat { first, last, waits_at: NOWHERE })
            })
            .collect();
        Self { samples, quiet }
    }
}
