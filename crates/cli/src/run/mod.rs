//! `belady run`: a program that nobody changed, fed from copies that are near.
//!
//! [`args`] is what can be asked for. The job ([`belady_transparent`]) is prepared, which tells every
//! mistake before the program starts; then the program runs as a child, and [`report`] says what came
//! of it. Nothing is ever written to the program's output, and to its errors only what was asked for.

mod args;
mod metrics;
mod report;

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub use args::RunArgs;
use belady_transparent::{Job, PrepareError, program};

use self::report::RunReport;
use crate::metrics::MetricsPort;
use crate::usage::UsageError;
use crate::{environment, logging};

/// Runs the program; its exit status.
pub fn run(args: &RunArgs) -> anyhow::Result<u8> {
    // The program's errors are its own, and setting this up takes time at every start.
    if environment::LOG.value().is_some() {
        logging::start();
    }
    let config = args.config()?;
    let port = args.metrics.as_deref().map(MetricsPort::at).transpose()?;
    let job = Arc::new(Job::prepare(&config).map_err(|error| told(&error))?);
    let ran = run_program(args, port.as_ref(), &job);
    let measured = args.report || args.report_json.is_some();
    // Also where the program was not started: what was prepared is put away.
    let finished = job.finish(measured);
    // The process ends: what memory it holds goes faster with it than piece by piece.
    std::mem::forget(job);
    let Ran { exit_status, seconds, json } = ran?;
    let report = RunReport { exit_status, seconds, job: finished };
    if args.report {
        // Who closed the errors does not want to know.
        let _ = std::io::stderr().write_all(report.text().as_bytes());
    }
    if let Some(mut file) = json
        && let Err(error) = writeln!(file, "{:#}", report.json())
    {
        // The program's status is worth more than ours.
        let _ = writeln!(std::io::stderr(), "belady: the report was not written: {error}");
    }
    Ok(exit_status)
}

struct Ran {
    exit_status: u8,
    seconds: f64,
    /// Where the report goes.
    json: Option<File>,
}

fn run_program(args: &RunArgs, port: Option<&MetricsPort>, job: &Arc<Job>) -> anyhow::Result<Ran> {
    let json = args.report_json.as_deref().map(create).transpose()?;
    let metrics = |job: Arc<Job>| move || metrics::text(&job.report());
    let _server = port.map(|port| port.offer(metrics(Arc::clone(job)))).transpose()?;
    let start = Instant::now();
    let exit_status = program::run(&args.program, job.environment())?;
    Ok(Ran { exit_status, seconds: start.elapsed().as_secs_f64(), json })
}

/// The error says what it was caused by already.
fn told(error: &PrepareError) -> anyhow::Error {
    let sentence = error.to_string();
    if error.is_usage() { UsageError::new(sentence).into() } else { anyhow::Error::msg(sentence) }
}

/// Before the program starts: it would be a pity to find out afterwards.
fn create(path: &Path) -> Result<File, UsageError> {
    File::create(path).map_err(|error| {
        UsageError::new(format!(
            "--report-json {} cannot be written ({error}): name a file in a directory of yours",
            path.display()
        ))
    })
}
