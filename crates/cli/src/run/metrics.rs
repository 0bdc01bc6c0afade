//! Formats the metrics of `belady run` for Prometheus.

use belady_engine::metrics::exposition::{Labels, MetricsText};
use belady_transparent::{Totals, TransparentReport};

/// Returns all metrics in the text format.
pub fn text(seen: &TransparentReport) -> String {
    let mut out = MetricsText::default();
    used(&mut out, seen);
    levels(&mut out, seen);
    copies(&mut out, seen);
    out.0
}

fn used(out: &mut MetricsText, seen: &TransparentReport) {
    let levels = seen.levels.iter();
    let mut rows: Vec<(Vec<(&str, &str)>, Totals)> = levels
        .map(|level| (vec![("location", "level"), ("level", level.name.as_str())], level.used))
        .collect();
    rows.push((vec![("location", "source")], seen.source));
    let mut family = |name, help, value: fn(&Totals) -> u64| {
        out.family(name, "counter", help);
        for (labels, totals) in &rows {
            out.line(name, labels as Labels<'_>, value(totals));
        }
    };
    family("belady_run_opens_total", "Files that the program opened.", |used| used.opens);
    family("belady_run_stats_total", "Stat calls of the program on files.", |used| used.stats);
    family(
        "belady_run_bytes_total",
        "Bytes of the files opened, whether they were read or not.",
        |used| used.bytes,
    );
}

fn levels(out: &mut MetricsText, seen: &TransparentReport) {
    let mut family = |name, help, value: fn(&belady_transparent::LevelReport) -> u64| {
        out.family(name, "gauge", help);
        for level in &seen.levels {
            out.line(name, &[("level", &level.name)], value(level));
        }
    };
    family("belady_run_held_files", "Copies that a level holds.", |level| level.files);
    family("belady_run_held_bytes", "Bytes that these copies take.", |level| level.bytes);
    family("belady_run_quota_bytes", "Bytes that a level may hold.", |level| level.quota);
}

fn copies(out: &mut MetricsText, seen: &TransparentReport) {
    let mut counter = |name, help, value: u64| {
        out.family(name, "counter", help);
        out.line(name, &[], value);
    };
    counter("belady_run_copied_files_total", "Files copied from the source.", seen.copied.files);
    counter("belady_run_copied_bytes_total", "Bytes copied from the source.", seen.copied.bytes);
    counter("belady_run_refused_total", "Files for which no level has space.", seen.refused);
    counter("belady_run_failed_total", "Files that could not be copied.", seen.failed);
    counter("belady_run_dropped_total", "Copies dropped as their source changed.", seen.dropped);
    counter("belady_run_lost_total", "Requests lost because the queue was full.", seen.lost);
    let name = "belady_run_copying_seconds_total";
    out.family(name, "counter", "Time that all threads spent copying.");
    out.line(name, &[], seen.copied.busy.as_secs_f64());
}
