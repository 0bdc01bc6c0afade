//! A link that its readers share: γ of them together get t(γ) bytes a second, in equal
//! shares. Time is passed in.
//!
//! Since shares are equal, one number tells how far everybody is: the bytes that a reader
//! who was there from the beginning would have got. A reader who joins when that number is
//! v and wants b bytes is done when it is v + b, whoever comes and goes meanwhile.

use std::collections::BTreeSet;

use belady_control::model::{Curve, Seconds};

#[derive(Debug)]
pub(super) struct Link {
    /// t(γ).
    bandwidth: Curve,
    now: Seconds,
    /// Bytes that each reader got who was always there.
    carried: f64,
    readers: BTreeSet<Ticket>,
    joined: u64,
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
        Self { bandwidth, now: Seconds::ZERO, carried: 0.0, readers, joined: 0 }
    }

    pub(super) fn join(&mut self, now: Seconds, bytes: f64) -> Ticket {
        self.advance(now);
        if self.readers.is_empty() {
            // Small numbers are exact numbers.
            self.carried = 0.0;
        }
        self.joined += 1;
        let ticket = Ticket { goal: self.carried + bytes, number: self.joined };
        self.readers.insert(ticket);
        ticket
    }

    /// Gives up a place on the link; whether its bytes were still on the way.
    pub(super) fn leave(&mut self, now: Seconds, ticket: Ticket) -> bool {
        self.advance(now);
        self.readers.remove(&ticket)
    }

    /// Lets time pass: readers who have got everything leave at the time that they have.
    pub(super) fn advance(&mut self, now: Seconds) {
        while let Some(&next) = self.readers.first() {
            let end = self.now + self.time_to(next.goal, self.carried, self.readers.len());
            if end > now {
                break;
            }
            self.now = end;
            self.carried = next.goal;
            self.readers.remove(&next);
        }
        if now > self.now {
            if !self.readers.is_empty() {
                self.carried += self.share(self.readers.len()) * (now - self.now).0;
            }
            self.now = now;
        }
    }

    /// When a reader will have got everything if nobody joins; `None` once it has.
    pub(super) fn end(&self, ticket: Ticket) -> Option<Seconds> {
        if !self.readers.contains(&ticket) {
            return None;
        }
        let (mut end, mut carried) = (self.now, self.carried);
        for (gone, reader) in self.readers.range(..=ticket).enumerate() {
            end += self.time_to(reader.goal, carried, self.readers.len() - gone);
            carried = reader.goal;
        }
        Some(end)
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
    struct Naive {
        bandwidth: Curve,
        now: f64,
        /// Reader, bytes left.
        readers: Vec<(usize, f64)>,
        ended: Vec<Option<f64>>,
    }

    impl Naive {
        fn advance(&mut self, now: f64) {
            while !self.readers.is_empty() {
                let count = self.readers.len();
                let share = self.bandwidth.at(count as u32).0 / count as f64;
                let least = self.readers.iter().map(|&(_, left)| left).fold(f64::MAX, f64::min);
                let step = (least / share).min(now - self.now);
                self.now += step;
                self.readers.iter_mut().for_each(|(_, left)| *left -= step * share);
                let finished = self.readers.extract_if(.., |(_, left)| *left <= 1e-6);
                let finished: Vec<usize> = finished.map(|(reader, _)| reader).collect();
                if finished.is_empty() {
                    break;
                }
                for reader in finished {
                    self.ended[reader] = Some(self.now);
                }
            }
            self.now = self.now.max(now);
        }
    }

    fn curves() -> impl Strategy<Value = Curve> {
        prop::collection::btree_map(1u32..12, 1.0..1000.0f64, 1..5).prop_map(|points| {
            Curve::new(points.into_iter().map(|(at, rate)| (at, Rate(rate))).collect()).unwrap()
        })
    }

    proptest! {
        /// Readers join after a pause with some bytes; some give up when the next one joins.
        #[test]
        fn readers_are_done_when_the_naive_model_says(
            bandwidth in curves(),
            arrivals in prop::collection::vec((0.0..3.0f64, 0u32..2000, any::<bool>()), 1..30),
        ) {
            let mut link = Link::new(bandwidth.clone());
            let (readers, ended) = (Vec::new(), vec![None; arrivals.len()]);
            let mut naive = Naive { bandwidth, now: 0.0, readers, ended };
            let mut tickets: Vec<Ticket> = Vec::new();
            let mut now = 0.0;
            for (reader, &(pause, bytes, gives_up)) in arrivals.iter().enumerate() {
                now += pause;
                link.advance(Seconds(now));
                naive.advance(now);
                for (earlier, &ticket) in tickets.iter().enumerate() {
                    if link.end(ticket).is_some() != naive.readers.iter().any(|&(r, _)| r == earlier) {
                        // Both may be right within rounding: it ends just now.
                        let end = link.end(ticket).map_or(now, |end| end.0);
                        prop_assert!((end - now).abs() < 1e-6, "reader {} at {}", earlier, now);
                    }
                }
                if gives_up && reader > 0 {
                    link.leave(Seconds(now), tickets[reader - 1]);
                    naive.readers.retain(|&(r, _)| r != reader - 1);
                }
                tickets.push(link.join(Seconds(now), f64::from(bytes)));
                naive.readers.push((reader, f64::from(bytes)));
            }
            let ends: Vec<_> = tickets.iter().map(|&ticket| link.end(ticket)).collect();
            naive.advance(f64::MAX);
            for (reader, end) in ends.into_iter().enumerate() {
                if let (Some(end), Some(naive)) = (end, naive.ended[reader]) {
                    let close = (end.0 - naive).abs() <= 1e-6 * naive.max(1.0);
                    prop_assert!(close, "reader {}: {} and not {}", reader, end.0, naive);
                }
            }
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
        assert_eq!(link.end(ticket), Some(Seconds(7.0)));
        link.advance(Seconds(7.0));
        assert_eq!(link.end(ticket), None);
    }

    #[test]
    fn two_readers_share_what_two_get() {
        let mut link = link();
        let first = link.join(Seconds(0.0), 200.0);
        let second = link.join(Seconds(1.0), 60.0);
        // 100 bytes alone in the first second, 60 beside the other, 40 alone again.
        assert_eq!(link.end(second), Some(Seconds(2.0)));
        assert_eq!(link.end(first), Some(Seconds(2.4)));
    }

    #[test]
    fn who_leaves_early_leaves_the_link_to_the_others() {
        let mut link = link();
        let first = link.join(Seconds(0.0), 120.0);
        let second = link.join(Seconds(0.0), 120.0);
        assert!(link.leave(Seconds(1.0), second));
        assert!(!link.leave(Seconds(1.0), second));
        assert_eq!(link.end(first), Some(Seconds(1.6)));
    }

    #[test]
    fn nothing_takes_no_time() {
        let mut link = link();
        let ticket = link.join(Seconds(1.0), 0.0);
        link.advance(Seconds(1.0));
        assert_eq!(link.end(ticket), None);
    }

    #[test]
    fn company_helps_only_where_shares_rise() {
        assert!(!link().company_may_help());
        let rising = Curve::new(vec![(1, Rate(10.0)), (2, Rate(50.0))]).unwrap();
        assert!(Link::new(rising).company_may_help());
    }
}
