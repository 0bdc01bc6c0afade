//! A link that its readers share: γ of them together get t(γ) bytes a second, in equal
//! shares. Time is passed in.
//!
//! Since shares are equal, one number tells how far everybody is: the bytes that a reader
//! who was there from the beginning would have got. A reader who joins when that number is
//! v and wants b bytes is done when it is v + b, whoever comes and goes meanwhile.
//!
//! Threads wake late, by milliseconds on a busy machine, and would get less than t(γ) for
//! it. So who is done stays on the link until it leaves, and what it gets in that time goes
//! to the credit of those who join next. A steady reader thus gets its full share, and all
//! together never more than t(γ).

use std::collections::BTreeSet;

use belady_control::model::{Curve, Seconds};

/// Credit is for waking late and not for having slept: no machine wakes later than this.
const LATEST: Seconds = Seconds(0.1);

#[derive(Debug)]
pub(super) struct Link {
    /// t(γ).
    bandwidth: Curve,
    now: Seconds,
    /// Bytes that each reader got who was always there.
    carried: f64,
    readers: BTreeSet<Ticket>,
    joined: u64,
    /// Bytes that readers got after they were done.
    credit: f64,
}

/// A reader on the link: how far `carried` must get, and what tells two such apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ticket {
    goal: f64,
    number: u64,
}

impl Link {
    pub(super) fn new(bandwidth: Curve) -> Self {
        let readers = BTreeSet::new();
        Self { bandwidth, now: Seconds::ZERO, carried: 0.0, readers, joined: 0, credit: 0.0 }
    }

    pub(super) fn join(&mut self, now: Seconds, bytes: f64) -> Ticket {
        self.advance(now);
        if self.readers.is_empty() {
            // Small numbers are exact numbers.
            self.carried = 0.0;
        }
        let credit = self.credit.min(bytes);
        self.credit -= credit;
        self.joined += 1;
        let ticket = Ticket { goal: self.carried + bytes - credit, number: self.joined };
        self.readers.insert(ticket);
        ticket
    }

    /// Gives up a place on the link; whether its bytes were still on the way.
    pub(super) fn leave(&mut self, now: Seconds, ticket: Ticket) -> bool {
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

    /// Lets time pass.
    pub(super) fn advance(&mut self, now: Seconds) {
        if now > self.now {
            if !self.readers.is_empty() {
                self.carried += self.share(self.readers.len()) * (now - self.now).0;
            }
            self.now = now;
        }
    }

    /// Whether a reader has got everything.
    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        ticket.goal <= self.carried
    }

    /// When a reader will have got everything if nobody joins and all leave once they are
    /// done.
    pub(super) fn end(&self, ticket: Ticket) -> Seconds {
        let (mut end, mut carried) = (self.now, self.carried);
        for (gone, reader) in self.readers.range(..=ticket).enumerate() {
            end += self.time_to(reader.goal, carried, self.readers.len() - gone);
            carried = carried.max(reader.goal);
        }
        end
    }

    /// Whether some number of readers has a larger share for each than fewer readers have,
    /// so that one who joins may make others sooner done.
    pub(super) fn company_may_help(&self) -> bool {
        // Between two measured points the share only rises or only falls; outside it falls.
        self.bandwidth.points().windows(2).any(|pair| {
            let share = |at: usize| pair[at].1.0 / f64::from(pair[at].0);
            share(1) > share(0)
        })
    }

    /// Bytes a second for each of so many readers.
    fn share(&self, readers: usize) -> f64 {
        let count = u32::try_from(readers).unwrap_or(u32::MAX);
        self.bandwidth.at(count).0 / readers as f64
    }

    fn time_to(&self, goal: f64, carried: f64, readers: usize) -> Seconds {
        Seconds((goal - carried).max(0.0) / self.share(readers))
    }
}

impl Eq for Ticket {}

impl PartialOrd for Ticket {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ticket {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.goal.total_cmp(&other.goal).then(self.number.cmp(&other.number))
    }
}

#[cfg(test)]
mod tests {
    use belady_control::model::Rate;
    use proptest::prelude::*;

    use super::*;

    /// The naive model: what each reader still wants, counted down from event to event.
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

        /// When a reader is done if all leave once they are.
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
            let mut tickets: Vec<Ticket> = Vec::new();
            let mut now = 0.0;
            for (pause, bytes, who, kind) in events {
                now += pause;
                link.advance(Seconds(now));
                naive.advance(now);
                if kind == 0 && !naive.readers.is_empty() {
                    let at = who.index(naive.readers.len());
                    // Where both are right within rounding, they may part ways for good.
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

        /// Threads that wake late and read on at once together get t(γ), and never more.
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
            let mut tickets: Vec<Ticket> = (0..threads).map(|_| link.join(Seconds(0.0), bytes)).collect();
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
            // What is under way or to credit: a request and some lateness for each thread.
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
    fn one_reader_has_the_link_for_itself() {
        let mut link = link();
        let ticket = link.join(Seconds(5.0), 200.0);
        assert_eq!(link.end(ticket), Seconds(7.0));
        link.advance(Seconds(6.9));
        assert!(!link.is_done(ticket));
        link.advance(Seconds(7.0));
        assert!(link.is_done(ticket));
    }

    #[test]
    fn two_readers_share_what_two_get() {
        let mut link = link();
        let first = link.join(Seconds(0.0), 200.0);
        let second = link.join(Seconds(1.0), 60.0);
        // 100 bytes alone in the first second, 60 beside the other, 40 alone again.
        assert_eq!(link.end(second), Seconds(2.0));
        assert_eq!(link.end(first), Seconds(2.4));
    }

    #[test]
    fn who_leaves_early_leaves_the_link_to_the_others() {
        let mut link = link();
        let first = link.join(Seconds(0.0), 120.0);
        let second = link.join(Seconds(0.0), 120.0);
        assert!(link.leave(Seconds(1.0), second));
        assert!(!link.leave(Seconds(1.0), second));
        assert_eq!(link.end(first), Seconds(1.6));
    }

    #[test]
    fn nobody_gets_credit_for_a_long_sleep() {
        let mut link = link();
        let ticket = link.join(Seconds(0.0), 100.0);
        assert!(!link.leave(Seconds(1000.0), ticket));
        let ticket = link.join(Seconds(1000.0), 100.0);
        assert_eq!(link.end(ticket), Seconds(1000.9));
    }

    #[test]
    fn nothing_takes_no_time() {
        let mut link = link();
        let ticket = link.join(Seconds(1.0), 0.0);
        assert!(link.is_done(ticket));
    }

    #[test]
    fn company_helps_only_where_shares_rise() {
        assert!(!link().company_may_help());
        let rising = Curve::new(vec![(1, Rate(10.0)), (2, Rate(50.0))]).unwrap();
        assert!(Link::new(rising).company_may_help());
    }
}
