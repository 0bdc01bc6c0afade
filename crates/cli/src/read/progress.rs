//! The progress line on a terminal: epoch, rate, stall, locations, time left.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_engine::metrics::{Metrics, MetricsSnapshot};
use indicatif::{ProgressBar, ProgressStyle};

use crate::text::bytes;
use belady_base::logging;

/// The interval between two updates.
const EVERY: Duration = Duration::from_millis(250);

/// Draws in a separate thread, so that the line is updated while the consumer waits. Removes the
/// line when dropped.
#[derive(Debug)]
pub struct ProgressLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts drawing, for a run of `epochs` epochs of `samples` samples each.
    pub fn start(metrics: Arc<Metrics>, epochs: u32, samples: u64) -> Self {
        let bar = logging::progress(ProgressBar::new(samples * u64::from(epochs)));
        if bar.is_hidden() {
            return Self { stop: None, thread: None };
        }
        let template = "{prefix} {bar:10} {percent:>3} %  {wide_msg} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut last = (Instant::now(), metrics.snapshot());
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let now = (Instant::now(), metrics.snapshot());
                let done = now.1.delivered.samples;
                let epoch = (done / samples.max(1)).min(u64::from(epochs) - 1) + 1;
                bar.set_message(line(&(&now.1 - &last.1), now.0 - last.0));
                bar.set_prefix(format!("epoch {epoch}/{epochs}"));
                bar.set_position(done);
                last = now;
            }
            bar.finish_and_clear();
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the last component of a directory.
fn last_part(name: &str) -> &str {
    name.trim_end_matches('/').rsplit('/').next().unwrap_or(name)
}

/// Formats the metrics of the last interval.
fn line(moment: &MetricsSnapshot, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
    let rate = (moment.delivered.bytes as f64 / seconds) as u64;
    let mut places = vec![("source", moment.source.bytes)];
    places.extend(moment.tiers.iter().map(|tier| (last_part(&tier.name), tier.bytes())));
    let all: u64 = places.iter().map(|(_, bytes)| bytes).sum();
    let share = |part: f64, whole: f64| format!("{:.0} %", 100.0 * (part / whole).min(1.0));
    let shares: Vec<String> = places
        .iter()
        .map(|(name, bytes)| format!("{name} {}", share(*bytes as f64, all.max(1) as f64)))
        .collect();
    // The most important first: a narrow terminal cuts off the rest.
    let stall = share(moment.blocked_seconds(), seconds);
    format!("{}/s  stall {stall}  {}", bytes(rate), shares.join("  "))
}

#[cfg(test)]
mod tests {
    use belady_engine::metrics::Served;

    use super::*;

    #[test]
    fn the_line_shows_rate_stall_and_locations() {
        let metrics = Metrics::new(&["ram".to_owned(), "/local/cache/".to_owned()]);
        metrics.loaded(Served::Source, 1, 250_000);
        metrics.loaded(Served::Tier(1), 3, 750_000);
        metrics.delivered(4, 1_000_000);
        metrics.waited(Duration::from_millis(100), false);
        let line = line(&metrics.snapshot(), Duration::from_millis(500));
        assert_eq!(line, "2.00 MB/s  stall 20 %  source 25 %  ram 75 %  cache 0 %");
    }
}
