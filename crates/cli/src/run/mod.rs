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
use belady_peer::rendezvous::launcher;
use belady_transparent::TransparentJob;
use belady_transparent::program::{self, LiftedFileLimit, ProgramEnd};

use self::report::RunReport;
use crate::metrics::MetricsPort;
use crate::usage::UsageError;
use crate::{environment, logging};

/// The variables that the program does not get.
const SECRETS: [&str; 1] = [environment::METRICS_TOKEN.name];

/// Runs the program and returns its exit status.
pub fn run(args: &RunArgs) -> anyhow::Result<u8> {
    // Only on request: standard error belongs to the program, and logging delays its start.
    if environment::LOG.value().is_some() {
        logging::start();
    }
    let limit = LiftedFileLimit::lift()?;
    let config = args.config()?;
    let port = args.metrics.as_deref().map(MetricsPort::at).transpose()?;
    let job = match TransparentJob::prepare(&config) {
        Ok(job) => Arc::new(job),
        Err(error) if error.is_usage() => return Err(UsageError::new(error.to_string()).into()),
        Err(error) => {
            // What this machine lacks is no reason to stop the program.
            eprintln!("belady: {error}; the program runs without copies");
            let end = program::run(&args.program, [], &SECRETS, &limit)?;
            end.imitate();
            return Ok(end.status);
        }
    };
    for warning in &job.warnings {
        eprintln!("belady: {warning}");
    }
    let ran = run_program(args, port.as_ref(), &job, &limit);
    let measured = args.report || args.report_json.is_some();
    // Also if the program was not started: this removes what `prepare` made.
    let finished = job.finish(measured);
    // The end of the process frees the memory faster than a drop does.
    std::mem::forget(job);
    let Ran { end, seconds, json } = ran?;
    let report = RunReport { exit_status: end.status, seconds, job: finished };
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
    logging::finish();
    end.imitate();
    Ok(end.status)
}

struct Ran {
    end: ProgramEnd,
    seconds: f64,
    /// The file of `--report-json`.
    json: Option<File>,
}

fn run_program(
    args: &RunArgs,
    port: Option<&MetricsPort>,
    job: &Arc<TransparentJob>,
    limit: &LiftedFileLimit,
) -> anyhow::Result<Ran> {
    let json = args.report_json.as_deref().map(create).transpose()?;
    let metrics = |job: Arc<TransparentJob>| move || metrics::text(&job.report());
    // The launchers of a machine's ranks are given the same port.
    let launched = launcher::launched(&launcher::of_this_process()).ok().flatten();
    let place = launched.map_or(0, |world| world.local_rank as usize);
    let _server = port.and_then(|port| port.try_offer(place, metrics(Arc::clone(job))));
    let start = Instant::now();
    let end = program::run(&args.program, job.environment(), &SECRETS, limit)?;
    Ok(Ran { end, seconds: start.elapsed().as_secs_f64(), json })
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
