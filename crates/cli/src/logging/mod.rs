//! Warnings on standard error, past whatever progress is being drawn there, and few of one kind ([`few`]).

mod few;

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use few::FewOfAKind;
pub use few::finish;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::environment;

/// Every bar of the command hangs here, so that a warning can be written between two of
/// their drawings.
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

/// A progress bar on standard error; nothing is drawn where that is no terminal.
pub fn progress(bar: ProgressBar) -> ProgressBar {
    bars().add(bar)
}

/// Prints what the libraries have to say, from warnings on unless asked for more. Only the first
/// call counts.
pub fn start() {
    // From now on forks are noticed, in whose children locks may be taken for ever.
    belady_data::fork::generation();
    let wanted = environment::LOG.value().and_then(|value| value.into_string().ok());
    let filter = EnvFilter::new(wanted.as_deref().unwrap_or("warn"));
    let colour = io::stderr().is_terminal() && environment::NO_COLOR.value().is_none();
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colour)
        .with_target(false)
        .without_time()
        .with_writer(|| BesideBars);
    // It fails where a subscriber is installed already.
    let _ = tracing_subscriber::registry().with(filter).with(lines).with(FewOfAKind).try_init();
}

struct BesideBars;

impl Write for BesideBars {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        bars().suspend(|| io::stderr().write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
