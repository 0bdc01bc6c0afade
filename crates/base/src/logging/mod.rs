//! Logs warnings to standard error, above any progress bars, with a rate limit (`rate_limit`).

mod rate_limit;

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use rate_limit::RateLimit;
pub use rate_limit::{Limiter, finish};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::environment;

/// Returns the parent of all progress bars, which lets a warning be written between two redraws.
fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(|| {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        MultiProgress::with_draw_target(target)
    })
}

/// Draws a progress bar on standard error, if that is a terminal.
pub fn progress(bar: ProgressBar) -> ProgressBar {
    bars().add(bar)
}

/// Starts logging at the level of `BELADY_LOG`, or at warnings. Only the first call counts.
pub fn start() {
    // Installs the fork handlers: in a forked child a lock may be held for ever.
    crate::fork::generation();
    let wanted = environment::LOG.value().and_then(|value| value.into_string().ok());
    let filter = EnvFilter::new(wanted.as_deref().unwrap_or("warn"));
    let colour = io::stderr().is_terminal() && environment::NO_COLOR.value().is_none();
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colour)
        .with_target(false)
        .without_time()
        .with_writer(|| AboveBars);
    // Fails if a subscriber is installed already, which then stays.
    let _ = tracing_subscriber::registry().with(filter).with(lines).with(RateLimit).try_init();
}

struct AboveBars;

impl Write for AboveBars {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        bars().suspend(|| io::stderr().write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
