//! Claims: until which epoch a sample in a tier of this node is needed.
//!
//! A sample that an epoch puts here is for the next one. Its user asks for it and says whether it
//! stays for another epoch (*claims* it) or is no longer needed (*releases* it). A released sample
//! stays until space is needed, since a request may have to be repeated. A user that never asks,
//! because it is down or has read the sample elsewhere, releases nothing. So once all nodes have
//! finished the epoch that the sample waited for, it may be evicted as well, but only when space
//! has been lacking for a while. Without faults that never happens, and the policy may rely on
//! copies whose claim was not renewed.
//!
//! A put may overtake an eviction that precedes it: a plan may evict a copy in one step and put the
//! same sample there in a later step, and the put comes from another node. So an eviction says
//! which epoch it belongs to ([`Claims::may_go`]).
//!
//! A claim takes one byte a sample, which distinguishes epochs as long as fewer than 63 are in use.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::SampleId;

/// No claim.
const FREE: u8 = 0;
/// The sample was put here, and not used since.
const PUT: u8 = 0x80;
/// If nothing is wrong, other nodes free the space for a sample within this time: they are a few
/// messages apart.
const LACKING: Duration = Duration::from_millis(300);
/// The sender of a refused push has given up by then.
const OLD: Duration = Duration::from_mins(1);
const MOST_REFUSED: usize = 1 << 16;
/// The number of distinct epoch stamps.
const STAMPS: u32 = 127;

/// The claims on one tier.
#[derive(Clone, Debug)]
pub struct Claims {
    /// By sample: [`FREE`], or the last epoch that claims it, perhaps with [`PUT`].
    until: Vec<u8>,
    /// Released samples; some may have been claimed again since.
    released: VecDeque<SampleId>,
    /// Where the search for forgotten samples continues, and how many epochs were done when it
    /// started.
    hand: (SampleId, u32),
    /// Samples that lacked space, and since when.
    refused: HashMap<SampleId, Duration>,
}

fn stamp(epoch: u32) -> u8 {
    (epoch % STAMPS) as u8 + 1
}

/// Returns whether a stamped epoch precedes another.
fn is_before(stamped: u8, epoch: u32) -> bool {
    let distance = (STAMPS + u32::from(stamp(epoch)) - u32::from(stamped & !PUT)) % STAMPS;
    distance != 0 && distance <= STAMPS / 2
}

impl Claims {
    /// Creates the claims of an empty tier.
    pub fn new(samples: u32) -> Self {
        Self {
            until: vec![FREE; samples as usize],
            released: VecDeque::new(),
            hand: (0, 0),
            refused: HashMap::new(),
        }
    }

    /// Claims a sample that an epoch has put here for the next one.
    pub fn put(&mut self, sample: SampleId, epoch: u32) {
        self.refused.remove(&sample);
        self.claim(sample, epoch.saturating_add(1), PUT);
    }

    /// Claims a sample that is about to be put here, so that it is not evicted if it is here
    /// already. [`Self::put`] or [`Self::gone`] follows.
    pub fn comes(&mut self, sample: SampleId, epoch: u32) {
        self.claim(sample, epoch.saturating_add(1), PUT);
    }

    /// Claims a sample that an epoch has used and leaves here for the next one.
    pub fn stays(&mut self, sample: SampleId, epoch: u32) {
        self.claim(sample, epoch.saturating_add(1), 0);
    }

    fn claim(&mut self, sample: SampleId, epoch: u32, how: u8) {
        let until = &mut self.until[sample as usize];
        if *until == FREE || is_before(*until, epoch) {
            *until = stamp(epoch) | how;
        }
    }

    /// Releases a sample that an epoch has used for the last time. A late request does not touch
    /// the claim of a later epoch.
    pub fn release(&mut self, sample: SampleId, epoch: u32) {
        self.release_until(sample, epoch);
    }

    /// As [`Self::release`], for an epoch that may use a sample more than once: it may have put it
    /// here or used it before, and so have claimed it for longer than needed.
    pub fn release_again(&mut self, sample: SampleId, epoch: u32) {
        self.release_until(sample, epoch.saturating_add(1));
    }

    /// Releases a claim for this epoch or an earlier one.
    fn release_until(&mut self, sample: SampleId, epoch: u32) {
        let until = &mut self.until[sample as usize];
        if *until != FREE && (*until & !PUT == stamp(epoch) || is_before(*until, epoch)) {
            *until = FREE;
            self.released.push_back(sample);
            if self.released.len() > 2 * self.until.len() {
                self.tidy();
            }
        }
    }

    /// Removes duplicates and claimed samples from the list, which grows while no space is needed.
    fn tidy(&mut self) {
        let mut named = vec![false; self.until.len()];
        self.released.retain(|&sample| {
            let at = sample as usize;
            self.until[at] == FREE && !std::mem::replace(&mut named[at], true)
        });
    }

    /// Returns whether a copy may be evicted in an epoch: not if it was put here in that epoch,
    /// since the plan puts it after it evicts it.
    pub fn may_go(&self, sample: SampleId, epoch: u32) -> bool {
        self.until[sample as usize] != stamp(epoch.saturating_add(1)) | PUT
    }

    /// Forgets the claim of a sample that is no longer here.
    pub fn gone(&mut self, sample: SampleId) {
        self.until[sample as usize] = FREE;
    }

    /// Returns the next released sample to evict.
    pub fn released(&mut self, holds: impl Fn(SampleId) -> bool) -> Option<SampleId> {
        while let Some(sample) = self.released.pop_front() {
            if self.until[sample as usize] == FREE && holds(sample) {
                return Some(sample);
            }
        }
        None
    }

    /// Records that a sample lacks space although nothing is released. Returns whether that has
    /// lasted long enough to evict [`Self::forgotten`] samples.
    pub fn lacks_room(&mut self, sample: SampleId, now: Duration) -> bool {
        if self.refused.len() > MOST_REFUSED {
            self.refused.retain(|_, since| now.saturating_sub(*since) < OLD);
        }
        now.saturating_sub(*self.refused.entry(sample).or_insert(now)) >= LACKING
    }

    /// Returns the next sample to evict when space has been lacking for a while: one that waited
    /// for an epoch that all nodes have finished. `done` is the number of such epochs; `holds` says
    /// whether a sample is here.
    pub fn forgotten(&mut self, done: u32, holds: impl Fn(SampleId) -> bool) -> Option<SampleId> {
        if self.hand.1 < done {
            self.hand = (0, done);
        }
        let over = |sample: SampleId| {
            let until = self.until[sample as usize];
            (until == FREE || is_before(until, done)) && holds(sample)
        };
        let end = self.until.len() as SampleId;
        let found = (self.hand.0..end).find(|&sample| done > 0 && over(sample));
        self.hand.0 = found.map_or(end, |sample| sample + 1);
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn released_samples_are_evicted_first_and_forgotten_ones_after_their_epoch() {
        let mut claims = Claims::new(4);
        for sample in 0..4 {
            claims.put(sample, 0);
        }
        assert_eq!(claims.released(|_| true), None);
        assert_eq!(claims.forgotten(1, |_| true), None, "all wait for epoch 1");
        claims.release(2, 1);
        claims.stays(3, 1);
        assert_eq!(claims.released(|_| true), Some(2));
        claims.gone(2);
        assert_eq!(claims.forgotten(2, |sample| sample != 2), Some(0));
        claims.gone(0);
        assert_eq!(claims.forgotten(2, |sample| sample % 2 == 1), Some(1));
        assert_eq!(claims.forgotten(2, |sample| sample == 3), None, "3 waits for epoch 2");
    }

    #[test]
    fn an_epoch_that_uses_a_sample_again_releases_its_own_put() {
        let mut claims = Claims::new(2);
        claims.put(0, 3);
        claims.put(1, 2);
        claims.stays(1, 3);
        for sample in [0, 1] {
            claims.release(sample, 3);
            assert_eq!(claims.released(|_| true), None, "it waits for the next epoch");
            claims.release_again(sample, 3);
            assert_eq!(claims.released(|_| true), Some(sample));
        }
        claims.put(0, 4);
        claims.release_again(0, 3);
        assert_eq!(claims.released(|_| true), None, "a later epoch counts on it");
    }

    #[test]
    fn a_late_request_does_not_release_a_claim_of_the_next_epoch() {
        let mut claims = Claims::new(1);
        claims.put(0, 0);
        claims.release(0, 1);
        claims.put(0, 1);
        claims.release(0, 1);
        assert_eq!(claims.released(|_| true), None);
        claims.release(0, 2);
        assert_eq!(claims.released(|_| true), Some(0));
    }

    #[test]
    fn space_is_lacking_when_a_sample_has_been_refused_for_a_while() {
        let mut claims = Claims::new(2);
        assert!(!claims.lacks_room(0, OLD) && !claims.lacks_room(1, OLD + LACKING));
        assert!(claims.lacks_room(0, OLD + LACKING));
        claims.put(0, 0);
        assert!(!claims.lacks_room(0, OLD + LACKING));
    }

    #[test]
    fn repeated_releases_take_no_more_memory() {
        let mut claims = Claims::new(3);
        for epoch in 0..1000 {
            claims.put(0, epoch);
            claims.release(0, epoch + 1);
        }
        assert!(claims.released.len() <= 7, "{}", claims.released.len());
        assert_eq!(claims.released(|_| true), Some(0));
    }

    #[test]
    fn a_sample_that_stays_is_claimed_in_every_epoch() {
        let mut claims = Claims::new(1);
        for epoch in 0..3 * STAMPS {
            claims.stays(0, epoch);
            assert_eq!(claims.forgotten(epoch + 1, |_| true), None, "epoch {epoch}");
        }
    }

    #[test]
    fn a_sample_that_is_about_to_be_put_is_not_evicted() {
        let mut claims = Claims::new(1);
        claims.put(0, 0);
        claims.comes(0, 1);
        assert!(!claims.may_go(0, 1));
        claims.release(0, 1);
        assert_eq!((claims.released(|_| true), claims.forgotten(2, |_| true)), (None, None));
    }

    #[test]
    fn a_sample_that_was_released_many_times_is_evicted_once() {
        let mut claims = Claims::new(4);
        for sample in 0..4 {
            claims.put(sample, 0);
        }
        claims.release(1, 1);
        claims.release(2, 1);
        claims.release(3, 1);
        claims.put(3, 1);
        for epoch in 1..100 {
            claims.release(0, epoch);
            claims.put(0, epoch);
        }
        claims.release(0, 100);
        let mut gone: Vec<_> = std::iter::from_fn(|| {
            let sample = claims.released(|_| true)?;
            claims.until[sample as usize] = stamp(101);
            Some(sample)
        })
        .collect();
        gone.sort_unstable();
        assert_eq!(gone, [0, 1, 2], "3 was claimed again");
    }

    #[test]
    fn refusals_are_forgotten_when_they_are_old_and_too_many() {
        let soon = OLD.checked_sub(Duration::from_nanos(1)).unwrap();
        let mut claims = Claims::new(1);
        claims.lacks_room(0, Duration::ZERO);
        assert!(claims.lacks_room(0, 2 * OLD), "one is not too many");
        let many = MOST_REFUSED as u32 + 1;
        let mut claims = Claims::new(many + 2);
        for sample in 0..many {
            claims.lacks_room(sample, Duration::ZERO);
        }
        claims.lacks_room(many, soon);
        assert!(claims.lacks_room(0, soon), "it is not old yet");
        claims.lacks_room(many + 1, OLD);
        assert_eq!(claims.refused.len(), 2, "the two that were refused last");
        assert!(!claims.lacks_room(0, OLD));
    }

    #[test]
    fn the_largest_epoch_number_does_not_panic() {
        let mut claims = Claims::new(1);
        claims.put(0, u32::MAX);
        claims.stays(0, u32::MAX);
        claims.release(0, u32::MAX);
        claims.may_go(0, u32::MAX);
    }

    #[test]
    fn a_put_that_overtakes_the_eviction_of_an_older_copy_stays() {
        let mut claims = Claims::new(1);
        claims.stays(0, 0);
        assert!(claims.may_go(0, 1));
        claims.put(0, 1);
        assert!(!claims.may_go(0, 1) && claims.may_go(0, 2));
        claims.stays(0, 2);
        assert!(claims.may_go(0, 2), "a copy that this epoch has left may go in this epoch");
    }

    proptest! {
        /// Against whole numbers in a list, over more epochs than a byte distinguishes.
        #[test]
        fn byte_stamps_agree_with_whole_numbers(
            events in prop::collection::vec((0u8..4, 0u32..5), 1..600), stride in 1u32..4,
        ) {
            let mut claims = Claims::new(5);
            let mut naive: Vec<Option<u32>> = vec![None; 5];
            for (at, (event, sample)) in (0u32..).zip(events) {
                let epoch = at / 8 * stride;
                let until = &mut naive[sample as usize];
                match event {
                    0 => {
                        claims.put(sample, epoch);
                        *until = (*until).max(Some(epoch + 1));
                    }
                    1 => {
                        claims.release(sample, epoch);
                        *until = until.filter(|&until| until > epoch);
                    }
                    2 => {
                        claims.gone(sample);
                        *until = None;
                    }
                    _ => {
                        while let Some(free) = claims.released(|_| true) {
                            prop_assert_eq!(naive[free as usize], None);
                        }
                        let mut sweep = claims.clone();
                        sweep.hand = (0, 0);
                        let found: Vec<_> =
                            std::iter::from_fn(|| sweep.forgotten(epoch, |_| true)).collect();
                        let over = |sample: &u32| naive[*sample as usize].is_none_or(|until| until < epoch);
                        let expected: Vec<_> = (0..5).filter(|sample| epoch > 0 && over(sample)).collect();
                        prop_assert_eq!(found, expected);
                    }
                }
                // In a run, forgotten samples are evicted long before the stamps wrap around.
                for sample in 0..5 {
                    if naive[sample as usize].is_some_and(|until| until + 50 < epoch) {
                        claims.gone(sample);
                        naive[sample as usize] = None;
                    }
                }
            }
        }
    }
}
