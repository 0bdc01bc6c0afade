//! Warm entries: samples that a tier holds from an earlier job, unknown to the policy.

use std::collections::VecDeque;

use belady_base::SampleId;
use belady_control::bits::Bits;

/// The warm entries of one tier, in the order of their eviction: used ones first.
#[derive(Debug)]
pub struct WarmEntries {
    /// Samples that the policy knows of; all others in the tier are warm entries.
    known: Bits,
    /// Warm entries that were served, each once, in the order of their first use.
    used: VecDeque<SampleId>,
    queued: Bits,
    /// Warm entries below this are gone or used.
    next: SampleId,
    samples: u32,
}

impl WarmEntries {
    pub fn new(samples: u32) -> Self {
        let (known, queued) = (Bits::new(samples), Bits::new(samples));
        Self { known, used: VecDeque::new(), queued, next: 0, samples }
    }

    /// The policy knows of a sample from now on.
    pub fn adopt(&mut self, sample: SampleId) {
        self.known.insert(sample);
    }

    /// The policy has evicted a sample.
    pub fn evicted(&mut self, sample: SampleId) {
        self.known.remove(sample);
    }

    /// Moves a warm entry that was served to the front of the eviction order.
    pub fn used(&mut self, sample: SampleId) {
        if !self.known.contains(sample) {
            self.put_back(sample);
        }
    }

    /// Queues an entry for eviction.
    pub fn put_back(&mut self, sample: SampleId) {
        if self.queued.insert(sample) {
            self.used.push_back(sample);
        }
    }

    /// Returns the next candidate for eviction; the tier may not hold it any more.
    pub fn next_victim(&mut self) -> Option<SampleId> {
        while let Some(sample) = self.used.pop_front() {
            self.queued.remove(sample);
            if !self.known.contains(sample) {
                return Some(sample);
            }
        }
        let next = (self.next..self.samples).find(|&sample| !self.known.contains(sample));
        self.next = next.map_or(self.samples, |sample| sample + 1);
        next
    }
}
