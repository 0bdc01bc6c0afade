//! Until when somebody counts on what lies in a tier of this node.
//!
//! A sample that an epoch puts here waits for the next one. Its user asks for it and says whether it
//! stays for another epoch (*claimed* on) or has done its duty (*released*). What is released stays until
//! room is needed, since a request may have to be made again. A user who never comes, because he is
//! dead or has read it elsewhere, leaves a sample that nobody would ever release: once all nodes are
//! done with the epoch that it waited for, it may go as well.
//!
//! One byte a sample: epochs are told apart as long as fewer than 128 of them are at hand.

use std::collections::VecDeque;

use crate::SampleId;

/// Nobody counts on it.
const FREE: u8 = 0;

/// The claims on one tier.
#[derive(Clone, Debug)]
pub struct Claims {
    /// By sample: [`FREE`], or the last epoch that counts on it.
    until: Vec<u8>,
    /// May name samples that were claimed again.
    released: VecDeque<SampleId>,
    /// Samples before this one were looked at, when so many epochs were done.
    hand: (SampleId, u32),
}

fn stamp(epoch: u32) -> u8 {
    (epoch % 255) as u8 + 1
}

/// Whether a stamped epoch is before another.
fn is_before(stamped: u8, epoch: u32) -> bool {
    let distance = (255 + i32::from(stamp(epoch)) - i32::from(stamped)) % 255;
    distance != 0 && distance < 128
}

impl Claims {
    pub fn new(samples: u32) -> Self {
        Self { until: vec![FREE; samples as usize], released: VecDeque::new(), hand: (0, 0) }
    }

    /// The sample waits here for an epoch: it was put here, or its user of the epoch before leaves it.
    pub fn claim(&mut self, sample: SampleId, epoch: u32) {
        let until = &mut self.until[sample as usize];
        if *until == FREE || is_before(*until, epoch) {
            *until = stamp(epoch);
        }
    }

    /// An epoch has used it for the last time. A request that comes late does not touch the claim of a
    /// later epoch.
    pub fn release(&mut self, sample: SampleId, epoch: u32) {
        let until = &mut self.until[sample as usize];
        if *until != FREE && (*until == stamp(epoch) || is_before(*until, epoch)) {
            *until = FREE;
            self.released.push_back(sample);
        }
    }

    /// The sample is not here any more.
    pub fn gone(&mut self, sample: SampleId) {
        self.until[sample as usize] = FREE;
    }

    /// The next to go when room is needed: released first, then what waited for an epoch that
    /// all nodes are done with. `done`: so many epochs are; `holds`: whether a sample is here.
    pub fn victim(&mut self, done: u32, holds: impl Fn(SampleId) -> bool) -> Option<SampleId> {
        while let Some(sample) = self.released.pop_front() {
            if self.until[sample as usize] == FREE && holds(sample) {
                return Some(sample);
            }
        }
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
    fn what_is_released_goes_first_and_what_nobody_came_for_goes_when_its_epoch_is_over() {
        let mut claims = Claims::new(4);
        for sample in 0..4 {
            claims.claim(sample, 1);
        }
        assert_eq!(claims.victim(1, |_| true), None, "all wait for epoch 1");
        claims.release(2, 1);
        claims.claim(3, 2);
        assert_eq!(claims.victim(1, |_| true), Some(2));
        claims.gone(2);
        assert_eq!(claims.victim(2, |sample| sample != 2), Some(0));
        claims.gone(0);
        assert_eq!(claims.victim(2, |sample| sample % 2 == 1), Some(1));
        assert_eq!(claims.victim(2, |sample| sample == 3), None, "3 waits for epoch 2");
    }

    #[test]
    fn a_request_that_comes_late_does_not_release_what_waits_for_the_next_epoch() {
        let mut claims = Claims::new(1);
        claims.claim(0, 1);
        claims.release(0, 1);
        claims.claim(0, 2);
        claims.release(0, 1);
        assert_eq!(claims.victim(2, |_| true), None);
        claims.release(0, 2);
        assert_eq!(claims.victim(2, |_| true), Some(0));
    }

    proptest! {
        /// Against whole numbers in a list, over more epochs than a byte tells apart.
        #[test]
        fn bytes_say_what_numbers_would(
            events in prop::collection::vec((0u8..4, 0u32..5), 1..400), stride in 1u32..4,
        ) {
            let mut claims = Claims::new(5);
            let mut naive: Vec<Option<u32>> = vec![None; 5];
            for (at, (event, sample)) in (0u32..).zip(events) {
                let epoch = at / 8 * stride;
                let old = &mut naive[sample as usize];
                match event {
                    0 => {
                        claims.claim(sample, epoch + 1);
                        *old = (*old).max(Some(epoch + 1));
                    }
                    1 => {
                        claims.release(sample, epoch);
                        *old = old.filter(|&until| until > epoch);
                    }
                    2 => {
                        claims.gone(sample);
                        *old = None;
                    }
                    _ => {
                        // All in turn, as one who needs much room does; they stay here.
                        let mut seen = vec![];
                        while let Some(victim) = claims.victim(epoch, |_| true) {
                            prop_assert!(naive[victim as usize].is_none_or(|until| until < epoch));
                            seen.push(victim);
                        }
                    }
                }
                let age = naive.iter_mut().flatten();
                // As in a run: what is old enough goes before the byte wraps.
                for until in age {
                    if *until + 100 < epoch { *until = epoch; }
                }
                for sample in 0..5 {
                    if let Some(until) = naive[sample as usize] {
                        claims.claim(sample, until);
                    }
                }
            }
        }
    }
}
