//! A link shared by its readers: γ readers together get t(γ) bytes a second, in equal shares. Time
//! is passed in.
//!
//! Since shares are equal, one number gives the progress of all readers: the bytes carried for a
//! reader that was present from the beginning. A reader that joins when this number is v and wants
//! b bytes is done when it is v + b, whatever other readers join and leave meanwhile.
//!
//! Threads wake late, by milliseconds on a busy machine, and would get less than t(γ). So a reader
//! that is done stays on the link until it leaves, and the bytes carried for it in that time are
//! credited to the readers that join next. A steady reader thus gets its full share, and all
//! readers together never more than t(γ).

use std::collections::BTreeSet;

use belady_control::model::{Curve, Seconds};

/// The most lateness that is credited: no machine wakes a thread later than this.
const LATEST: Seconds = Seconds(0.1);

#[derive(Debug)]
pub(super) struct Link {
    /// t(γ).
    bandwidth: Curve,
    now: Seconds,
    /// The bytes carried for a reader that was always present.
    carried: f64,
    readers: BTreeSet<LinkTicket>,
    joined: u64,
    /// The bytes carried for readers after they were done.
    credit: f64,
}

/// A reader on the link: the value of `carried` at which it is done, and a unique number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LinkTicket {
    goal: f64,
    number: u64,
}

impl Link {
    pub(super) fn new(bandwidth: Curve) -> Self {
        let readers = BTreeSet::new();
        Self { bandwidth, now: Seconds::ZERO, carried: 0.0, readers, joined: 0, credit: 0.0 }
    }

    pub(super) fn join(&mut self, now: Seconds, bytes: f64) -> LinkTicket {
        self.advance(now);
        if self.readers.is_empty() {
            // Small floating-point numbers are more exact.
            self.carried = 0.0;
        }
        let credit = self.credit.min(bytes);
        self.credit -= credit;
        self.joined += 1;
        let ticket = LinkTicket { goal: self.carried + bytes - credit, number: self.joined };
        self.readers.insert(ticket);
        ticket
    }

    /// Removes a reader, and returns whether it was not done yet.
    pub(super) fn leave(&mut self, now: Seconds, ticket: LinkTicket) -> bool {
        self.advance(now);
        if !self.is_done(ticket) {
            return self.readers.remove(&ticket);
        }
        let most = self.share(self.readers.len()) * self.readers.len() as f64 * LATEST.0;
        if self.readers.remove(&ticket) {
            self.credit = (self.credit + self.carried - ticket.goal).min(most);
        }
        false
    }

    /// Advances the time.
    pub(super) fn advance(&mut self, now: Seconds) {
        if now > self.now {
            if !self.readers.is_empty() {
                self.carried += self.share(self.readers.len()) * (now - self.now).0;
            }
            self.now = now;
        }
    }

    /// Whether all bytes of a reader were carried.
    pub(super) fn is_done(&self, ticket: LinkTicket) -> bool {
        ticket.goal <= self.carried
    }

    /// Returns when a reader is done if no other joins and all leave once they are done.
    pub(super) fn end(&self, ticket: LinkTicket) -> Seconds {
        let (mut end, mut carried) = (self.now, self.carried);
        for (gone, reader) in self.readers.range(..=ticket).enumerate() {
            end += self.time_to(reader.goal, carried, self.readers.len() - gone);
            carried = carried.max(reader.goal);
        }
        end
    }

    /// Whether the share of each reader is larger for some number of readers than for fewer, so
    /// that a reader that joins can make others done sooner.
    pub(super) fn joining_may_speed_up(&self) -> bool {
        // The share is monotonic between two measured points and falls outside of them.
        self.bandwidth.points().windows(2).any(|pair| {
            let share = |at: usize| pair[at].1.0 / f64::from(pair[at].0);
            share(1) > share(0)
        })
    }

    /// Returns the bytes a second for each of this many readers.
    fn share(&self, readers: usize) -> f64 {
        let count = u32::try_from(readers).unwrap_or(u32::MAX);
        self.bandwidth.at(count).0 / readers as f64
    }

    fn time_to(&self, goal: f64, carried: f64, readers: usize) -> Seconds {
        Seconds((goal - carried).max(0.0) / self.share(readers))
    }
}

impl Eq for LinkTicket {}

impl PartialOrd for LinkTicket {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LinkTicket {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.goal.total_cmp(&other.goal).then(self.number.cmp(&other.number))
    }
}

#[cfg(test)]
mod tests {
    use belady_control::model::Rate;
    use proptest::prelude::*;

    use super::*;

    /// The naive model: the bytes left for each reader, counted down from event to event.
    #[derive(Clone)]
    struct Naive {
        bandwidth: Curve,
        now: f64,
        /// Reader, and bytes left, below zero once it is done.
        readers: Vec<(usize, f64)>,
        credit: f64,
    }

    impl Naive {
        fn share(&self) -> f64 {
            let count = self.readers.len();
            self.bandwidth.at(count as u32).0 / count as f64
        }

        fn advance(&mut self, now: f64) {
            let got = if self.readers.is_empty() { 0.0 } else { self.share() * (now - self.now) };
            self.readers.iter_mut().for_each(|(_, left)| *left -= got);
            self.now = now;
        }

        fn join(&mut self, reader: usize, bytes: f64) {
            let used = if bytes < self.credit { bytes } else { self.credit };
            self.readers.push((reader, bytes - used));
            self.credit -= used;
        }

        fn leave(&mut self, at: usize) {
            let most = self.bandwidth.at(self.readers.len() as u32).0 * LATEST.0;
            let (_, left) = self.readers.remove(at);
            if left <= 0.0 {
                self.credit = most.min(self.credit - left);
            }
        }

        /// Returns when a reader is done if all leave once they are done.
        fn end(mut self, reader: usize) -> f64 {
            loop {
                let least = self.readers.iter().map(|&(_, left)| left).fold(f64::MAX, f64::min);
                self.advance(self.now + least.max(0.0) / self.share());
                let at = self.readers.iter().position(|&(_, left)| left <= 1e-9).unwrap();
                if self.readers.remove(at).0 == reader {
                    return self.now;
                }
            }
        }
    }

    fn curves() -> impl Strategy<Value = Curve> {
        prop::collection::btree_map(1u32..12, 1.0..1000.0f64, 1..5).prop_map(|points| {
            Curve::new(points.into_iter().map(|(at, rate)| (at, Rate(rate))).collect()).unwrap()
        })
    }

    proptest! {
        /// After each pause a reader joins with some bytes, or one of those present leaves.
        #[test]
        fn readers_are_done_when_the_naive_model_says(
            bandwidth in curves(),
            events in prop::collection::vec((0.0..3.0f64, 0u32..2000, any::<prop::sample::Index>(), 0..3), 1..40),
        ) {
            let mut link = Link::new(bandwidth.clone());
            let mut naive = Naive { bandwidth, now: 0.0, readers: Vec::new(), credit: 0.0 };
            let mut tickets: Vec<LinkTicket> = Vec::new();
            let mut now = 0.0;
            for (pause, bytes, which, kind) in events {
                now += pause;
                link.advance(Seconds(now));
                naive.advance(now);
                if kind == 0 && !naive.readers.is_empty() {
                    let at = which.index(naive.readers.len());
                    // Near zero, rounding decides whether the reader is done, and the two may
                    // diverge.
                    prop_assume!(naive.readers[at].1.abs() > 1e-6);
                    let early = link.leave(Seconds(now), tickets[naive.readers[at].0]);
                    prop_assert_eq!(early, naive.readers[at].1 > 0.0);
                    naive.leave(at);
                } else {
                    naive.join(tickets.len(), f64::from(bytes));
                    tickets.push(link.join(Seconds(now), f64::from(bytes)));
                }
                for &(reader, left) in &naive.readers {
                    let ticket = tickets[reader];
                    prop_assert!(link.is_done(ticket) == (left <= 0.0) || left.abs() < 1e-6);
                    let (end, expected) = (link.end(ticket).0, naive.clone().end(reader));
                    let close = (end - expected).abs() <= 1e-6 * expected.max(1.0);
                    prop_assert!(close, "reader {}: {} and not {}", reader, end, expected);
                }
            }
        }

        /// Threads that wake late and read on at once get t(γ) together, and never more.
        #[test]
        fn waking_late_costs_nothing(
            bandwidth in curves(),
            threads in 1usize..12,
            lateness in prop::collection::vec(0.0..0.02f64, 7),
            bytes in 1.0..50.0f64,
        ) {
            let rate = bandwidth.at(threads as u32).0;
            let mut link = Link::new(bandwidth);
            let mut lateness = lateness.into_iter().cycle();
            let mut tickets: Vec<LinkTicket> = (0..threads).map(|_| link.join(Seconds(0.0), bytes)).collect();
            let (mut now, mut delivered) = (0.0, 0.0);
            for _ in 0..2000 {
                let next = *tickets.iter().min().unwrap();
                if !link.is_done(next) {
                    now = link.end(next).0 + lateness.next().unwrap();
                }
                link.advance(Seconds(now));
                for ticket in &mut tickets {
                    if link.is_done(*ticket) {
                        link.leave(Seconds(now), *ticket);
                        *ticket = link.join(Seconds(now), bytes);
                        delivered += bytes;
                    }
                }
            }
            // In flight or credited: a request and some lateness for each thread.
            let slack = threads as f64 * bytes + rate * 0.2;
            let carried = rate * now;
            prop_assert!(delivered <= carried + 1e-6 * carried, "{delivered} of {carried}");
            prop_assert!(delivered >= carried - slack, "{delivered} of {carried}");
        }
    }

    fn link() -> Link {
        let points = vec![(1, Rate(100.0)), (2, Rate(120.0)), (4, Rate(120.0))];
        Link::new(Curve::new(points).unwrap())
    }

    #[test]
    fn one_reader_gets_the_whole_link() {
        let mut link = link();
        let ticket = link.join(Seconds(5.0), 200.0);
        assert_eq!(link.end(ticket), Seconds(7.0));
        link.advance(Seconds(6.9));
        assert!(!link.is_done(ticket));
        link.advance(Seconds(7.0));
        assert!(link.is_done(ticket));
    }

    #[test]
    fn two_readers_share_the_bandwidth_of_two() {
        let mut link = link();
        let first = link.join(Seconds(0.0), 200.0);
        let second = link.join(Seconds(1.0), 60.0);
        // 100 bytes alone in the first second, 60 beside the other, 40 alone again.
        assert_eq!(link.end(second), Seconds(2.0));
        assert_eq!(link.end(first), Seconds(2.4));
    }

    #[test]
    fn a_reader_that_leaves_early_leaves_its_share_to_the_others() {
        let mut link = link();
        let first = link.join(Seconds(0.0), 120.0);
        let second = link.join(Seconds(0.0), 120.0);
        assert!(link.leave(Seconds(1.0), second));
        assert!(!link.leave(Seconds(1.0), second));
        assert_eq!(link.end(first), Seconds(1.6));
    }

    #[test]
    fn lateness_is_credited_up_to_a_limit() {
        let mut link = link();
        let ticket = link.join(Seconds(0.0), 100.0);
        assert!(!link.leave(Seconds(1000.0), ticket));
        let ticket = link.join(Seconds(1000.0), 100.0);
        assert_eq!(link.end(ticket), Seconds(1000.9));
    }

    #[test]
    fn an_empty_read_is_done_at_once() {
        let mut link = link();
        let ticket = link.join(Seconds(1.0), 0.0);
        assert!(link.is_done(ticket));
    }

    #[test]
    fn joining_speeds_up_only_where_shares_rise() {
        assert!(!link().joining_may_speed_up());
        let rising = Curve::new(vec![(1, Rate(10.0)), (2, Rate(50.0))]).unwrap();
        assert!(Link::new(rising).joining_may_speed_up());
    }
}
