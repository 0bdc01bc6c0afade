//! Until when somebody counts on what lies in a tier of this node.
//!
//! A sample that an epoch puts here waits for the next one. Its user asks for it and says whether it
//! stays for another epoch (*claimed* on) or has done its duty (*released*). What is released stays until
//! room is needed, since a request may have to be made again. A user who never comes, because he is
//! dead or has read it elsewhere, leaves a sample that nobody would ever release: once all nodes are
//! done with the epoch that it waited for, it may go as well: but only when room has been lacking for a
//! while. In a run without faults it never does, and the policy may count on copies that nobody has
//! claimed anew.
//!
//! A put may overtake what should have come before it: a plan may let a copy go in one step and put the
//! same sample there in a later one, and the put comes from another node. So letting go says in which
//! epoch it is meant ([`Claims::may_go`]).
//!
//! One byte a sample: epochs are told apart as long as fewer than 63 of them are at hand.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::SampleId;

/// Nobody counts on it.
const FREE: u8 = 0;
/// It was put here, and not used since.
const PUT: u8 = 0x80;
/// What is freed by other nodes for a sample is freed in less than this, if nothing is wrong: they are a
/// few messages apart.
const LACKING: Duration = Duration::from_millis(300);
/// Whoever was refused has given up by then.
const OLD: Duration = Duration::from_mins(1);
const MOST_REFUSED: usize = 1 << 16;
/// So many epochs have a stamp of their own.
const STAMPS: u32 = 127;

/// The claims on one tier.
#[derive(Clone, Debug)]
pub struct Claims {
    /// By sample: [`FREE`], or the last epoch that counts on it, perhaps with [`PUT`].
    until: Vec<u8>,
    /// May name samples that were claimed again.
    released: VecDeque<SampleId>,
    /// Samples before this one were looked at, when so many epochs were done.
    hand: (SampleId, u32),
    /// What there was no room for, and since when.
    refused: HashMap<SampleId, Duration>,
}

fn stamp(epoch: u32) -> u8 {
    (epoch % STAMPS) as u8 + 1
}

/// Whether a stamped epoch is before another.
fn is_before(stamped: u8, epoch: u32) -> bool {
    let distance = (STAMPS + u32::from(stamp(epoch)) - u32::from(stamped & !PUT)) % STAMPS;
    distance != 0 && distance <= STAMPS / 2
}

impl Claims {
    pub fn new(samples: u32) -> Self {
        Self {
            until: vec![FREE; samples as usize],
            released: VecDeque::new(),
            hand: (0, 0),
            refused: HashMap::new(),
        }
    }

    /// An epoch puts the sample here, to wait for the next one.
    pub fn put(&mut self, sample: SampleId, epoch: u32) {
        self.refused.remove(&sample);
        self.claim(sample, epoch.saturating_add(1), PUT);
    }

    /// The sample is about to be put here: from now on it does not go, if it is here already. What comes of
    /// it is told by [`Self::put`], or by [`Self::gone`].
    pub fn comes(&mut self, sample: SampleId, epoch: u32) {
        self.claim(sample, epoch.saturating_add(1), PUT);
    }

    /// An epoch uses the sample and leaves it here for the next one.
    pub fn stays(&mut self, sample: SampleId, epoch: u32) {
        self.claim(sample, epoch.saturating_add(1), 0);
    }

    fn claim(&mut self, sample: SampleId, epoch: u32, how: u8) {
        let until = &mut self.until[sample as usize];
        if *until == FREE || is_before(*until, epoch) {
            *until = stamp(epoch) | how;
        }
    }

    /// An epoch has used it for the last time. A request that comes late does not touch the claim of a
    /// later epoch.
    pub fn release(&mut self, sample: SampleId, epoch: u32) {
        self.release_until(sample, epoch);
    }

    /// The same of an epoch that may use a sample more than once: it may have put it here itself, or used
    /// it before, and has claimed it for longer than it turns out to be needed.
    pub fn release_again(&mut self, sample: SampleId, epoch: u32) {
        self.release_until(sample, epoch.saturating_add(1));
    }

    /// Releases what is claimed for this epoch or one before it.
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

    /// Where room is never needed nobody takes what is released: each sample once, if at all.
    fn tidy(&mut self) {
        let mut named = vec![false; self.until.len()];
        self.released.retain(|&sample| {
            let at = sample as usize;
            self.until[at] == FREE && !std::mem::replace(&mut named[at], true)
        });
    }

    /// Whether a copy that is let go in an epoch may go: not if it was put here in that epoch, which the
    /// plan does afterwards.
    pub fn may_go(&self, sample: SampleId, epoch: u32) -> bool {
        self.until[sample as usize] != stamp(epoch.saturating_add(1)) | PUT
    }

    /// The sample is not here any more.
    pub fn gone(&mut self, sample: SampleId) {
        self.until[sample as usize] = FREE;
    }

    /// The next to go when room is needed, of what was released.
    pub fn released(&mut self, holds: impl Fn(SampleId) -> bool) -> Option<SampleId> {
        while let Some(sample) = self.released.pop_front() {
            if self.until[sample as usize] == FREE && holds(sample) {
                return Some(sample);
            }
        }
        None
    }

    /// There is no room for a sample, although nothing is released. Whether that has been so for long
    /// enough that [`Self::forgotten`] ones should go.
    pub fn lacks_room(&mut self, sample: SampleId, now: Duration) -> bool {
        if self.refused.len() > MOST_REFUSED {
            self.refused.retain(|_, since| now.saturating_sub(*since) < OLD);
        }
        now.saturating_sub(*self.refused.entry(sample).or_insert(now)) >= LACKING
    }

    /// The next to go when room has been lacking for a while: what waited for an epoch that all nodes
    /// are done with. `done`: so many epochs are; `holds`: whether a sample is here.
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
    fn what_is_released_goes_first_and_what_nobody_came_for_goes_when_its_epoch_is_over() {
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
    fn an_epoch_that_uses_a_sample_again_releases_what_it_has_put_there_itself() {
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
    fn a_request_that_comes_late_does_not_release_what_waits_for_the_next_epoch() {
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
    fn room_is_lacking_when_a_sample_has_been_refused_for_a_while() {
        let mut claims = Claims::new(2);
        assert!(!claims.lacks_room(0, OLD) && !claims.lacks_room(1, OLD + LACKING));
        assert!(claims.lacks_room(0, OLD + LACKING));
        claims.put(0, 0);
        assert!(!claims.lacks_room(0, OLD + LACKING));
    }

    #[test]
    fn what_is_released_again_and_again_and_never_has_to_go_takes_no_more_memory() {
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
    fn a_sample_that_is_about_to_be_put_here_does_not_go() {
        let mut claims = Claims::new(1);
        claims.put(0, 0);
        claims.comes(0, 1);
        assert!(!claims.may_go(0, 1));
        claims.release(0, 1);
        assert_eq!((claims.released(|_| true), claims.forgotten(2, |_| true)), (None, None));
    }

    #[test]
    fn samples_that_were_released_go_once_each_after_one_was_released_many_times() {
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
    fn an_epoch_that_no_run_comes_to_is_no_panic() {
        let mut claims = Claims::new(1);
        claims.put(0, u32::MAX);
        claims.stays(0, u32::MAX);
        claims.release(0, u32::MAX);
        claims.may_go(0, u32::MAX);
    }

    #[test]
    fn a_put_that_overtakes_the_end_of_an_older_copy_stays() {
        let mut claims = Claims::new(1);
        claims.stays(0, 0);
        assert!(claims.may_go(0, 1));
        claims.put(0, 1);
        assert!(!claims.may_go(0, 1) && claims.may_go(0, 2));
        claims.stays(0, 2);
        assert!(claims.may_go(0, 2), "a copy that this epoch has left may go in this epoch");
    }

    proptest! {
        /// Against whole numbers in a list, over more epochs than a byte tells apart.
        #[test]
        fn bytes_say_what_numbers_would(
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
                // What is found in a run goes long before the byte turns over.
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
