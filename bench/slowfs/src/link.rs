//! The shared link, as a state machine: time is passed in, nothing here reads a clock.
//!
//! A read waits out the latency, then it is in service. All reads in service together get
//! t(γ), where γ is their number, in equal shares. Instead of rescheduling every read when
//! γ changes, the link counts *service*: the bytes that one reader has got since the start.
//! A read of b bytes ends when the count has grown by b, whatever γ did in between.
//!
//! **Turnaround.** A reader that reads without a pause still needs a moment between two
//! reads: the reply travels through the kernel, a thread wakes, the next request travels
//! back. That is an overhead of this file system and no property of the one it imitates,
//! and left alone it would make the link a few per cent slower than its table. So an ended
//! read leaves its *place* behind: the place goes through latency and service as if the
//! next read had already come, and the next read to arrive takes it over with what it has
//! been served. A place that is not taken within the turnaround vanishes. The link never
//! serves more than t(γ), where γ counts places too.

use belady_control::model::Curve;

/// Names one read from its arrival to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

#[derive(Debug)]
pub struct LinkConfig {
    /// t(γ): bytes per second of all reads in service together.
    pub throughput: Curve,
    /// Seconds that a read waits before its service.
    pub latency: f64,
    /// Seconds for which an ended read leaves its place behind.
    pub turnaround: f64,
}

#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    /// What t(γ) is divided by.
    slowness: f64,
    now: f64,
    /// The service count.
    served: f64,
    reads: Vec<Read>,
    ended: Vec<Ticket>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Read {
    holder: Holder,
    stage: Stage,
}

#[derive(Debug)]
enum Holder {
    Reader { ticket: Ticket, bytes: f64 },
    Place { until: f64 },
}

#[derive(Debug)]
enum Stage {
    Latency {
        until: f64,
    },
    /// `since` is the service count at the begin of service.
    Service {
        since: f64,
    },
}

impl Link {
    pub fn new(config: LinkConfig) -> Self {
        Self {
            config,
            slowness: 1.0,
            now: 0.0,
            served: 0.0,
            reads: Vec::new(),
            ended: Vec::new(),
            next_ticket: 0,
        }
    }

    /// From `now` on the link gives t(γ) / `slowness`, also to reads in service.
    pub fn slow_down(&mut self, now: f64, slowness: f64) {
        self.run_until(now);
        self.slowness = slowness;
    }

    /// A read of `bytes` comes at time `now`.
    pub fn arrive(&mut self, now: f64, bytes: u64) -> Ticket {
        self.run_until(now);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let holder = Holder::Reader { ticket, bytes: bytes as f64 };
        if let Some(place) = self.oldest_place() {
            self.reads[place].holder = holder;
        } else {
            let until = self.now + self.config.latency;
            self.reads.push(Read { holder, stage: Stage::Latency { until } });
        }
        ticket
    }

    /// Lets time pass, and returns the reads that have ended since this was last asked.
    pub fn advance(&mut self, now: f64) -> Vec<Ticket> {
        self.run_until(now);
        std::mem::take(&mut self.ended)
    }

    /// When something happens next if no read arrives before.
    pub fn next_event(&self) -> Option<f64> {
        self.next().map(|(at, _)| at)
    }

    fn run_until(&mut self, now: f64) {
        while let Some((at, read)) = self.next().filter(|&(at, _)| at <= now) {
            self.move_clock(at);
            self.happen(read);
        }
        self.move_clock(now);
    }

    fn move_clock(&mut self, now: f64) {
        if now > self.now {
            self.served += (now - self.now) * self.rate();
            self.now = now;
        }
    }

    /// Bytes per second of one read in service.
    fn rate(&self) -> f64 {
        let in_service = |read: &&Read| matches!(read.stage, Stage::Service { .. });
        let readers = self.reads.iter().filter(in_service).count().max(1) as u32;
        self.config.throughput.at(readers).0 / f64::from(readers) / self.slowness
    }

    fn next(&self) -> Option<(f64, usize)> {
        let rate = self.rate();
        let times = self.reads.iter().map(|read| self.event_of(read, rate));
        times.enumerate().map(|(read, at)| (at, read)).min_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn event_of(&self, read: &Read, rate: f64) -> f64 {
        let at = match (&read.holder, &read.stage) {
            (Holder::Place { until: gone }, Stage::Latency { until }) => until.min(*gone),
            (Holder::Place { until }, Stage::Service { .. })
            | (Holder::Reader { .. }, Stage::Latency { until }) => *until,
            (Holder::Reader { bytes, .. }, Stage::Service { since }) => {
                self.now + (since + bytes - self.served) / rate
            }
        };
        // A place may be taken over with more service than the read needs.
        at.max(self.now)
    }

    fn happen(&mut self, index: usize) {
        let read = &mut self.reads[index];
        match (&read.holder, &read.stage) {
            (Holder::Place { until }, _) if *until <= self.now => {
                self.reads.swap_remove(index);
            }
            (_, Stage::Latency { .. }) => read.stage = Stage::Service { since: self.served },
            (Holder::Reader { ticket, .. }, Stage::Service { .. }) => {
                self.ended.push(*ticket);
                read.holder = Holder::Place { until: self.now + self.config.turnaround };
                read.stage = Stage::Latency { until: self.now + self.config.latency };
            }
            (Holder::Place { .. }, Stage::Service { .. }) => {}
        }
    }

    fn oldest_place(&self) -> Option<usize> {
        let left = self.reads.iter().enumerate().filter_map(|(index, read)| match read.holder {
            Holder::Place { until } => Some((until, index)),
            Holder::Reader { .. } => None,
        });
        left.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use belady_control::model::Rate;
    use proptest::prelude::*;

    use super::*;

    fn link(latency: f64, turnaround: f64) -> Link {
        let throughput =
            Curve::new(vec![(1, Rate(100.0)), (2, Rate(160.0)), (4, Rate(200.0))]).unwrap();
        Link::new(LinkConfig { throughput, latency, turnaround })
    }

    /// Ends of reads, with the time at which a caller that sleeps until the next event sees
    /// them.
    fn ends(link: &mut Link) -> Vec<(Ticket, f64)> {
        let mut ends = Vec::new();
        while let Some(at) = link.next_event() {
            ends.extend(link.advance(at).into_iter().map(|ticket| (ticket, at)));
        }
        ends
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn a_link_that_slows_down_delays_reads_in_service_too() {
        let mut link = link(0.0, 0.0);
        let bytes = link.config.throughput.at(1).0;
        let read = link.arrive(0.0, bytes as u64);
        // Half of it takes half a second, the rest four times as long.
        link.slow_down(0.5, 4.0);
        assert_eq!(link.advance(2.4), []);
        link.slow_down(2.4, 1.0);
        assert_eq!(link.advance(2.4249), []);
        assert_eq!(link.advance(2.4251), [read]);
    }

    #[test]
    fn one_read_takes_latency_and_its_bytes_at_the_rate_of_one_reader() {
        let mut link = link(0.5, 0.0);
        let ticket = link.arrive(1.0, 100);
        let ends = ends(&mut link);
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].0, ticket);
        assert!(close(ends[0].1, 2.5));
    }

    #[test]
    fn two_reads_share_the_rate_of_two_and_the_rest_of_one_gets_that_of_one() {
        let mut link = link(0.0, 0.0);
        link.arrive(0.0, 80);
        link.arrive(0.0, 180);
        let ends = ends(&mut link);
        // Both get 80 a second until the first ends; the other's 100 come at 100 a second.
        assert!(close(ends[0].1, 1.0) && close(ends[1].1, 2.0), "{ends:?}");
    }

    #[test]
    fn an_empty_read_only_waits_out_the_latency() {
        let mut link = link(0.25, 0.0);
        link.arrive(1.0, 0);
        assert!(close(ends(&mut link)[0].1, 1.25));
    }

    #[test]
    fn a_late_caller_does_not_slow_the_link() {
        let mut link = link(0.0, 0.0);
        link.arrive(0.0, 100);
        link.arrive(0.5, 100);
        assert_eq!(link.advance(1_000.0).len(), 2);
        assert_eq!(link.next_event(), None);
    }

    /// Seconds for `count` reads of 100 bytes by readers that pause between their reads.
    fn closed_loop(mut link: Link, readers: usize, pause: f64, count: usize) -> f64 {
        let mut arrivals = std::collections::VecDeque::from(vec![0.0; readers]);
        let (mut begun, mut ended, mut last) = (0, 0, 0.0);
        while ended < count {
            let event = link.next_event().unwrap_or(f64::INFINITY);
            match arrivals.front() {
                Some(&at) if at <= event => {
                    arrivals.pop_front();
                    link.arrive(at, 100);
                    begun += 1;
                }
                _ => {
                    for _ in link.advance(event) {
                        (ended, last) = (ended + 1, event);
                        if begun + arrivals.len() < count {
                            arrivals.push_back(event + pause);
                        }
                    }
                }
            }
        }
        last
    }

    #[test]
    fn a_pause_within_the_turnaround_costs_nothing() {
        for readers in [1, 2, 4] {
            let seconds = closed_loop(link(0.0, 0.02), readers, 0.01, 1_000);
            let rate = 100_000.0 / seconds;
            let table = link(0.0, 0.0).config.throughput.at(readers as u32).0;
            assert!((rate / table - 1.0).abs() < 1e-3, "{readers} readers: {rate}, not {table}");
        }
        // With latency, each read takes 0.5 s and then a second of service.
        let seconds = closed_loop(link(0.5, 0.02), 1, 0.01, 100);
        assert!((seconds / 150.0 - 1.0).abs() < 1e-3, "{seconds}");
    }

    #[test]
    fn a_pause_longer_than_the_turnaround_costs_all_of_it() {
        let seconds = closed_loop(link(0.0, 0.02), 1, 0.1, 100);
        assert!(close(seconds, 100.0 + 99.0 * 0.1), "{seconds}");
    }

    /// The fluid picture in small steps of time, without a service count.
    fn naive_ends(reads: &[(f64, u64)], latency: f64, step: f64) -> Vec<f64> {
        let curve = link(0.0, 0.0).config.throughput;
        let mut left: Vec<f64> = reads.iter().map(|&(_, bytes)| bytes as f64).collect();
        let mut ends = vec![f64::NAN; reads.len()];
        let mut now = 0.0;
        while ends.iter().any(|end| end.is_nan()) {
            let serving: Vec<usize> = (0..reads.len())
                .filter(|&read| reads[read].0 + latency <= now && ends[read].is_nan())
                .collect();
            now += step;
            let readers = serving.len().max(1) as u32;
            for read in serving {
                left[read] -= curve.at(readers).0 / f64::from(readers) * step;
                if left[read] <= 0.0 {
                    ends[read] = now;
                }
            }
        }
        ends
    }

    proptest! {
        #[test]
        fn ends_are_those_of_the_naive_fluid_model(
            mut reads in proptest::collection::vec((0.0..5.0f64, 0u64..300), 1..8),
            latency in 0.0..1.0f64,
        ) {
            reads.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut link = link(latency, 0.0);
            let mut seen = Vec::new();
            for &(at, bytes) in &reads {
                while let Some(event) = link.next_event().filter(|&event| event <= at) {
                    seen.extend(link.advance(event).into_iter().map(|ticket| (ticket, event)));
                }
                link.arrive(at, bytes);
            }
            seen.extend(ends(&mut link));
            seen.sort_by_key(|(ticket, _)| ticket.0);
            prop_assert_eq!(seen.len(), reads.len());
            let expected = naive_ends(&reads, latency, 1e-3);
            for ((_, end), expected) in seen.iter().zip(expected) {
                // A step of error in each of the naive model's events.
                prop_assert!((end - expected).abs() < 0.05, "{} and not {}", end, expected);
            }
        }

        /// However reads come, what has ended by any time was within the best rate.
        #[test]
        fn never_serves_more_than_its_best_rate(
            pauses in proptest::collection::vec(0.0..0.5f64, 1..40),
            turnaround in 0.0..0.3f64,
        ) {
            let mut link = link(0.0, turnaround);
            let mut at = 0.0;
            let mut bytes_ended = 0.0;
            for pause in pauses {
                at += pause;
                bytes_ended += 30.0 * link.advance(at).len() as f64;
                link.arrive(at, 30);
                prop_assert!(bytes_ended <= 200.0 * at + 1e-6);
            }
        }
    }
}
