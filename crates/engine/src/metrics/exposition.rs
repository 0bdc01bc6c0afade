//! Writes a snapshot as Prometheus text (format 0.0.4).
//!
//! Written by hand: `prometheus-client` writes OpenMetrics, where a counter's type lacks its
//! `_total`.
//!
//! Times are in microseconds, and their names say so. Histograms have one bucket to a power of two:
//! durations are cut to whole microseconds, so `le="1024"` counts those that took less than 1024.

use std::fmt::{Display, Write as _};

use belady_control::model::online::TimeFit;

use super::{
    HistogramSnapshot, MetricsSnapshot, PeerSnapshot, RankSnapshot, ThreadsSnapshot, TierSnapshot,
};

/// The largest finite bucket: 2^26 microseconds, about a minute.
const LAST_POWER: u32 = 26;

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The names and values of labels.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Returns all metrics as text.
pub fn text(seen: &MetricsSnapshot) -> String {
    let mut out = MetricsText(String::with_capacity(16 << 10));
    delivery(&mut out, seen);
    ranks(&mut out, &seen.ranks);
    origins(&mut out, seen);
    source(&mut out, seen);
    tiers(&mut out, &seen.tiers);
    peers(&mut out, &seen.peers);
    transforms(&mut out, seen);
    threads(&mut out, &seen.threads);
    out.0
}

fn delivery(out: &mut MetricsText, seen: &MetricsSnapshot) {
    let delivered = seen.delivered;
    out.counter("belady_delivered_samples_total", "Samples given to consumers.", delivered.samples);
    out.counter("belady_delivered_bytes_total", "Bytes given to consumers.", delivered.bytes);
    let help = "Time consumers waited for batches.";
    out.counter("belady_blocked_seconds_total", help, seen.blocked_seconds());
    let name = "belady_batch_wait_microseconds";
    out.family(name, "histogram", "Waits for batches other than the first of an epoch.");
    out.histogram(name, &[], &seen.wait_us);
    let name = "belady_boundary_wait_microseconds";
    out.family(name, "histogram", "Waits for the first batch of an epoch.");
    out.histogram(name, &[], &seen.boundary_wait_us);
    let name = "belady_bad_samples_total";
    let bad = [
        ("raised", seen.bad.raised),
        ("skipped", seen.bad.skipped),
        ("replaced", seen.bad.replaced),
    ];
    let help = "Samples that could not be read, by what became of them.";
    out.counters(name, help, "outcome", &bad);
}

fn ranks(out: &mut MetricsText, ranks: &[RankSnapshot]) {
    let mut each = |name: &str, help: &str, value: fn(&RankSnapshot) -> f64| {
        out.family(name, "counter", help);
        for rank in ranks {
            out.line(name, &[("rank", &rank.rank.to_string())], value(rank));
        }
    };
    let help = "Batches given to the rank's consumer.";
    each("belady_rank_batches_total", help, |rank| rank.batches as f64);
    let help = "Time the rank's consumer waited for batches.";
    each("belady_rank_blocked_seconds_total", help, RankSnapshot::blocked_seconds);
    let help = "Imbalanced iterations in which the rank was the slowest of its node.";
    each("belady_rank_straggled_iterations_total", help, |rank| rank.straggled as f64);
    let help = "Time that iterations lost to the rank as the slowest of its node.";
    each("belady_rank_straggling_seconds_total", help, RankSnapshot::straggling_seconds);
}

/// Writes samples and bytes by where they came from.
fn origins(out: &mut MetricsText, seen: &MetricsSnapshot) {
    let mut rows =
        vec![(vec![("location", "source")], seen.source), (vec![("location", "ring")], seen.ring)];
    for tier in &seen.tiers {
        rows.push((vec![("location", "tier"), ("tier", &tier.name)], tier.read));
        rows.push((vec![("location", "lent"), ("tier", &tier.name)], tier.lent));
    }
    let name = "belady_loaded_samples_total";
    out.family(name, "counter", "Samples by where they came from.");
    for (labels, volume) in &rows {
        out.line(name, labels, volume.samples);
    }
    let name = "belady_loaded_bytes_total";
    out.family(name, "counter", "Bytes by where they came from.");
    for (labels, volume) in &rows {
        out.line(name, labels, volume.bytes);
    }
    out.gauge("belady_hit_ratio", "Share of samples not read from the source.", seen.hit_ratio());
}

fn source(out: &mut MetricsText, seen: &MetricsSnapshot) {
    let done = &seen.operations;
    let name = "belady_source_operations_total";
    let operations =
        [("list", done.list), ("open", done.open), ("stat", done.stat), ("read", done.read)];
    let help = "Calls on the storage that the datasets rest on.";
    out.counters(name, help, "operation", &operations);
    let help = "Bytes asked of the source, gaps between samples included.";
    out.counter("belady_source_requested_bytes_total", help, done.bytes);
    let name = "belady_source_read_microseconds";
    out.family(name, "histogram", "Requests to the source.");
    out.histogram(name, &[], &seen.source_read_us);
    out.counter("belady_read_retries_total", "Reads that were tried again.", seen.retries);
    out.counter("belady_read_timeouts_total", "Reads given up after their time.", seen.timeouts);
    out.gauge("belady_queue_depth", "Reads that wait for a thread.", seen.queue_depth);
}

fn tiers(out: &mut MetricsText, tiers: &[TierSnapshot]) {
    let mut each = |name: &str, kind: &str, help: &str, value: fn(&TierSnapshot) -> u64| {
        out.family(name, kind, help);
        for tier in tiers {
            out.line(name, &[("tier", &tier.name)], value(tier));
        }
    };
    let help = "Samples that a tier should have held and did not.";
    each("belady_tier_misses_total", "counter", help, |tier| tier.misses);
    let help = "Copies that did not match their checksum.";
    each("belady_tier_damaged_total", "counter", help, |tier| tier.damaged);
    each("belady_tier_used_bytes", "gauge", "What a tier keeps.", |tier| tier.used);
    each("belady_tier_capacity_bytes", "gauge", "What a tier may keep.", |tier| tier.capacity);
    let name = "belady_tier_puts_total";
    out.family(name, "counter", "Attempts to keep a sample, by how they ended.");
    for TierSnapshot { name: tier, puts, .. } in tiers {
        for (outcome, count) in [
            ("stored", puts.stored),
            ("present", puts.present),
            ("full", puts.full),
            ("refused", puts.refused),
        ] {
            out.line(name, &[("tier", tier), ("outcome", outcome)], count);
        }
    }
    let name = "belady_tier_read_microseconds";
    out.family(name, "histogram", "Reads from a tier.");
    for tier in tiers {
        out.histogram(name, &[("tier", &tier.name)], &tier.read_us);
    }
}

fn peers(out: &mut MetricsText, seen: &PeerSnapshot) {
    let directions = [
        ("read", seen.read),
        ("served", seen.served),
        ("pushed", seen.pushed),
        ("accepted", seen.taken),
    ];
    let samples = directions.map(|(direction, volume)| (direction, volume.samples));
    let bytes = directions.map(|(direction, volume)| (direction, volume.bytes));
    let help = "Samples moved between this node and its peers.";
    out.counters("belady_peer_samples_total", help, "direction", &samples);
    let help = "Bytes moved between this node and its peers.";
    out.counters("belady_peer_bytes_total", help, "direction", &bytes);
    out.counter("belady_peer_misses_total", "Samples that a peer did not have.", seen.misses);
    let help = "Samples that were asked of a peer again.";
    out.counter("belady_peer_retries_total", help, seen.retries);
    let help = "Calls that did not reach a peer or were not answered in time.";
    out.counter("belady_peer_failures_total", help, seen.failures);
    let help = "Samples from peers that did not match their checksum.";
    out.counter("belady_peer_damaged_total", help, seen.damaged);
    let help = "Samples that a peer was to keep and no node keeps.";
    out.counter("belady_peer_dropped_total", help, seen.dropped);
    let help = "Steps retired before all peers had filled them.";
    out.counter("belady_peer_hurried_steps_total", help, seen.hurried);
    out.gauge("belady_peers", "Other nodes.", seen.nodes);
    out.gauge("belady_peers_down", "Other nodes that are not used now.", seen.down);
}

fn transforms(out: &mut MetricsText, seen: &MetricsSnapshot) {
    let name = "belady_transform_microseconds";
    out.family(name, "histogram", "Transforms of samples.");
    out.histogram(name, &[], &seen.transform_us);
    let help = "Time that threads which transform had nothing to do.";
    let idle = seen.transform_idle_ns as f64 / 1e9;
    out.counter("belady_transform_idle_seconds_total", help, idle);
    let help = "Samples that could not be transformed.";
    out.counter("belady_transform_failures_total", help, seen.transform_failures);
}

fn threads(out: &mut MetricsText, seen: &ThreadsSnapshot) {
    let assigned = &seen.assigned;
    let name = "belady_threads";
    out.family(name, "gauge", "Threads that are assigned to a duty.");
    out.line(name, &[("duty", "load")], assigned.loading);
    out.line(name, &[("duty", "transform")], assigned.transforming);
    let name = "belady_rank_threads";
    out.family(name, "gauge", "Threads that may work for a local rank at once.");
    for (duty, by_rank) in
        [("load", &assigned.loading_by_rank), ("transform", &assigned.transforming_by_rank)]
    {
        for (rank, threads) in by_rank.iter().enumerate() {
            out.line(name, &[("duty", duty), ("rank", &rank.to_string())], threads);
        }
    }
    let help = "Changes of the threads' assignment.";
    out.counter("belady_thread_changes_total", help, seen.changes);
    let name = "belady_model_transform_nanoseconds";
    out.family(name, "gauge", "One thread's time for a sample, by mean size and threads.");
    for of_size in &seen.model.transforms {
        model_line(out, name, ("bytes", &of_size.bytes.to_string()), &of_size.time);
    }
    let name = "belady_model_load_nanoseconds";
    out.family(name, "gauge", "One thread's time for a mebibyte, by place and threads.");
    for (place, fit) in ["local", "remote", "source"].into_iter().zip(&seen.model.loads) {
        model_line(out, name, ("place", place), fit);
    }
    let help = "The least time of a consumer between two batches, of late.";
    out.gauge("belady_model_training_nanoseconds", help, seen.model.training);
}

fn model_line(out: &mut MetricsText, name: &str, label: (&str, &str), fit: &TimeFit) {
    for (threads, time) in fit.points() {
        out.line(name, &[label, ("threads", &threads.to_string())], time);
    }
}

/// Lines of the format. (Writing to a string does not fail.)
#[derive(Clone, Debug, Default)]
pub struct MetricsText(pub String);

impl MetricsText {
    /// Begins a family: the lines that follow belong to it.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes one value.
    pub fn line(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            self.0.push(if at == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"{}\"", escaped(text));
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.line(name, &[], value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.line(name, &[], value);
    }

    /// Writes a counter for each value of a label.
    fn counters(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.family(name, "counter", help);
        for (text, value) in values {
            self.line(name, &[(label, text)], value);
        }
    }

    fn histogram(&mut self, name: &str, labels: Labels<'_>, seen: &HistogramSnapshot) {
        let bucket = format!("{name}_bucket");
        let edges: Vec<String> =
            (0..=LAST_POWER).map(|power| (1u64 << power).to_string()).collect();
        let with = |le| [labels, &[("le", le)]].concat();
        for (power, edge) in edges.iter().enumerate() {
            self.line(&bucket, &with(edge), seen.below_power(power as u32));
        }
        self.line(&bucket, &with("+Inf"), seen.count);
        self.line(&format!("{name}_sum"), labels, seen.sum);
        self.line(&format!("{name}_count"), labels, seen.count);
    }
}

/// Escapes the value of a label: a tier is named after its directory.
fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::metrics::{Metrics, Moved, PeerEvent, Served};

    #[derive(Debug, PartialEq)]
    struct Line {
        name: String,
        labels: Vec<(String, String)>,
        value: f64,
    }

    fn is_name(text: &str) -> bool {
        let mut chars = text.chars();
        chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// Parses one line as a scraper does; panics where a scraper would refuse it.
    fn parse(line: &str) -> Line {
        let end = line.find(['{', ' ']).expect("a value");
        let (name, mut rest) = line.split_at(end);
        assert!(is_name(name), "{name}");
        let mut labels = vec![];
        while let Some(inner) = rest.strip_prefix(['{', ',']) {
            let (label, quoted) = inner.split_once("=\"").expect("a quoted value");
            assert!(is_name(label), "{label}");
            let (mut value, mut at, bytes) = (String::new(), 0, quoted.as_bytes());
            while bytes[at] != b'"' {
                let escaped = bytes[at] == b'\\';
                at += usize::from(escaped);
                let c = quoted[at..].chars().next().expect("a closing quote");
                value.push(if escaped && c == 'n' { '\n' } else { c });
                at += c.len_utf8();
            }
            labels.push((label.to_owned(), value));
            rest = &quoted[at + 1..];
        }
        let value = rest.trim_start_matches('}').strip_prefix(' ').expect("one blank");
        Line { name: name.to_owned(), labels, value: value.parse().expect("a number") }
    }

    /// Returns all lines by family; checks that each belongs to the family announced before it.
    fn families(text: &str) -> HashMap<String, (String, Vec<Line>)> {
        let mut families: HashMap<String, (String, Vec<Line>)> = HashMap::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
                current = name.to_owned();
                let twice = families.insert(current.clone(), (kind.to_owned(), vec![]));
                assert!(twice.is_none(), "{name} is announced twice");
            } else if !line.starts_with("# HELP ") {
                let line = parse(line);
                let (kind, lines) = families.get_mut(&current).expect("a type before values");
                let suffix = line.name.strip_prefix(&current).expect("a line of its family");
                let known: &[&str] =
                    if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(known.contains(&suffix), "{}", line.name);
                lines.push(line);
            }
        }
        families
    }

    #[test]
    fn every_family_is_valid_and_no_series_comes_twice() {
        let names = ["ram".to_owned(), "a \"disk\" \\ of\nours".to_owned()];
        let metrics = Metrics::new(&names);
        metrics.loaded(Served::Lent(2), 3, 4);
        let families = families(&text(&metrics.snapshot()));
        assert!(families.len() > 15);
        for (name, (_, lines)) in &families {
            for (at, line) in lines.iter().enumerate() {
                let again = |other: &&Line| other.name == line.name && other.labels == line.labels;
                assert!(lines[..at].iter().find(again).is_none(), "{name}: {line:?} comes twice");
            }
        }
        let lent = &families["belady_loaded_bytes_total"].1;
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let wanted = vec![label("location", "lent"), label("tier", &names[1])];
        let found = lent.iter().find(|line| line.labels == wanted).expect("the escaped tier");
        assert_eq!(found.value, 4.0);
    }

    #[test]
    fn everything_that_is_counted_of_a_rank_has_a_series_with_its_number() {
        let metrics = Metrics::new(&[]);
        for rank in [4, 5] {
            metrics.rank(rank).waited(Duration::from_millis(250 * u64::from(rank)));
        }
        metrics.rank(5).was_slowest(Duration::from_millis(125), true);
        metrics.rank(5).was_slowest(Duration::from_millis(125), false);
        let families = families(&text(&metrics.snapshot()));
        let values = |name: &str| -> Vec<(String, f64)> {
            families[name].1.iter().map(|line| (line.labels[0].1.clone(), line.value)).collect()
        };
        let each = |four, five| vec![("4".to_owned(), four), ("5".to_owned(), five)];
        assert_eq!(values("belady_rank_batches_total"), each(1.0, 1.0));
        assert_eq!(values("belady_rank_blocked_seconds_total"), each(1.0, 1.25));
        assert_eq!(values("belady_rank_straggled_iterations_total"), each(0.0, 1.0));
        assert_eq!(values("belady_rank_straggling_seconds_total"), each(0.0, 0.25));
    }

    #[test]
    fn everything_that_is_counted_of_peers_has_a_series() {
        let metrics = Metrics::new(&[]);
        let moved = [Moved::Read, Moved::Served, Moved::Pushed, Moved::Taken];
        for (how, samples) in moved.into_iter().zip(1..) {
            metrics.peers().moved(how, samples, 100 * samples);
        }
        let events = [
            PeerEvent::Missed,
            PeerEvent::Retried,
            PeerEvent::Failed,
            PeerEvent::Damaged,
            PeerEvent::Dropped,
            PeerEvent::Hurried,
        ];
        for (event, times) in events.into_iter().zip(11..) {
            metrics.peers().count(event, times);
        }
        metrics.peers().nodes(7, 2);
        let families = families(&text(&metrics.snapshot()));
        let values =
            |name: &str| -> Vec<f64> { families[name].1.iter().map(|line| line.value).collect() };
        let directions: Vec<&str> =
            families["belady_peer_bytes_total"].1.iter().map(|line| &*line.labels[0].1).collect();
        assert_eq!(directions, ["read", "served", "pushed", "accepted"]);
        assert_eq!(values("belady_peer_samples_total"), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(values("belady_peer_bytes_total"), [100.0, 200.0, 300.0, 400.0]);
        let counters = ["misses", "retries", "failures", "damaged", "dropped", "hurried_steps"];
        let counts = counters.map(|name| values(&format!("belady_peer_{name}_total"))[0]);
        assert_eq!(counts, [11.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
        assert_eq!((values("belady_peers"), values("belady_peers_down")), (vec![7.0], vec![2.0]));
    }

    proptest! {
        #[test]
        fn buckets_rise_to_the_count(times in prop::collection::vec(0u64..1 << 30, 0..100)) {
            let metrics = Metrics::new(&[]);
            for &time in &times {
                metrics.waited(Duration::from_micros(time), false);
            }
            let families = families(&text(&metrics.snapshot()));
            let (_, lines) = &families["belady_batch_wait_microseconds"];
            let mut last = 0.0;
            for line in lines.iter().filter(|line| line.name.ends_with("_bucket")) {
                let edge: f64 = line.labels[0].1.parse().expect("a number or +Inf");
                let below = times.iter().filter(|&&time| (time as f64) < edge).count();
                prop_assert_eq!(line.value, below as f64);
                prop_assert!(line.value >= last);
                last = line.value;
            }
            prop_assert_eq!(last, times.len() as f64);
            let sum = lines.iter().find(|line| line.name.ends_with("_sum")).expect("a sum");
            prop_assert_eq!(sum.value, times.iter().sum::<u64>() as f64);
        }

        #[test]
        fn any_tier_name_is_escaped_and_read_back(name in "\\PC*|[\\\\\"\n]*") {
            let metrics = Metrics::new(std::slice::from_ref(&name));
            let families = families(&text(&metrics.snapshot()));
            prop_assert_eq!(&families["belady_tier_misses_total"].1[0].labels[0].1, &name);
        }
    }
}
