//! `belady run`: runs an unmodified program and serves its files from local copies.
//!
//! [`args`] defines the options. The job ([`belady_transparent`]) is prepared first, which finds
//! usage errors before the program starts. Then the program runs as a child, and [`report`]
//! summarises the run. The command writes nothing to standard output, and to standard error only
//! the report, the log and its own errors.

mod args;
mod metrics;
mod report;

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub use args::RunArgs;
use belady_transparent::{PrepareError, TransparentJob, program};

use self::report::RunReport;
use crate::metrics::MetricsPort;
use crate::usage::UsageError;
use crate::{environment, logging};

/// Runs the program and returns its exit status.
pub fn run(args: &RunArgs) -> anyhow::Result<u8> {
    // Only on request: standard error belongs to the program, and logging delays its start.
    if environment::LOG.value().is_some() {
        logging::start();
    }
    let config = args.config()?;
    let port = args.metrics.as_deref().map(MetricsPort::at).transpose()?;
    let job = Arc::new(TransparentJob::prepare(&config).map_err(|error| into_anyhow(&error))?);
    let ran = run_program(args, port.as_ref(), &job);
    let measured = args.report || args.report_json.is_some();
    // Also if the program was not started: this removes what `prepare` made.
    let finished = job.finish(measured);
    // The end of the process frees the memory faster than a drop does.
    std::mem::forget(job);
    let Ran { exit_status, seconds, json } = ran?;
    let report = RunReport { exit_status, seconds, job: finished };
    if args.report {
        // A closed standard error is ignored.
        let _ = std::io::stderr().write_all(report.text().as_bytes());
    }
    if let Some(mut file) = json
        && let Err(error) = writeln!(file, "{:#}", report.json())
    {
        // The program's exit status is still returned.
        let _ = writeln!(std::io::stderr(), "belady: cannot write the report: {error}");
    }
    Ok(exit_status)
}

struct Ran {
    exit_status: u8,
    seconds: f64,
    /// The file of `--report-json`.
    json: Option<File>,
}

fn run_program(
    args: &RunArgs,
    port: Option<&MetricsPort>,
    job: &Arc<TransparentJob>,
) -> anyhow::Result<Ran> {
    let json = args.report_json.as_deref().map(create).transpose()?;
    let metrics = |job: Arc<TransparentJob>| move || metrics::text(&job.report());
    let _server = port.map(|port| port.offer(metrics(Arc::clone(job)))).transpose()?;
    let start = Instant::now();
    let exit_status = program::run(&args.program, job.environment())?;
    Ok(Ran { exit_status, seconds: start.elapsed().as_secs_f64(), json })
}

/// Converts an error without its source, which its text includes already.
fn into_anyhow(error: &PrepareError) -> anyhow::Error {
    let sentence = error.to_string();
    if error.is_usage() { UsageError::new(sentence).into() } else { anyhow::Error::msg(sentence) }
}

/// Creates the report's file before the program starts, so that an error shows early.
fn create(path: &Path) -> Result<File, UsageError> {
    File::create(path).map_err(|error| {
        UsageError::new(format!(
            "--report-json {} cannot be written ({error}): give a file in a writable directory",
            path.display()
        ))
    })
}
