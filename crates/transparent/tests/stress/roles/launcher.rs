//! The launcher, as `belady run`, with the supervisor as its program.

use std::thread;
use std::time::{Duration, Instant};

use belady_base::units::Bytes;
use belady_transparent::{
    LevelConfig, Revalidate, TransparentConfig, TransparentJob, TransparentReport,
};

use super::{Role, Settings};
use crate::files;
use crate::processes::{MARK, command};

/// How long the number of placed files has to stay the same to count as final.
const STABLE: Duration = Duration::from_secs(10);

pub fn launch(settings: &Settings) {
    let job = TransparentJob::prepare(&TransparentConfig {
        dataset: settings.dataset.clone(),
        levels: settings
            .levels
            .iter()
            .map(|level| LevelConfig::Directory {
                path: level.path.clone(),
                quota: Bytes(level.quota),
            })
            .collect(),
        revalidate: Revalidate::Start,
        threads: 4,
        order: None,
        learn: false,
    })
    .unwrap();
    let program = command(Role::Supervisor, settings).envs(job.environment()).status().unwrap();
    let files = files::expected(&settings.dataset, settings.files).len() as u64;
    wait_until_all_is_placed(&job, files);
    let report = LauncherReport::new(&job.finish(false));
    println!("\n{MARK}{}", report.to_line());
    assert!(program.success(), "the supervisor failed, {program}");
}

/// Waits until each file has a copy or was refused. Another launcher's copy in flight may leave a
/// file without either; then the numbers do not change any more. A real launcher ends with its
/// program.
fn wait_until_all_is_placed(job: &TransparentJob, files: u64) {
    let placed = |report: &TransparentReport| {
        report.levels.iter().map(|level| level.files).sum::<u64>() + report.refused + report.failed
    };
    let (mut before, mut changed) = (0, Instant::now());
    while before < files && changed.elapsed() < STABLE {
        thread::sleep(Duration::from_millis(10));
        let now = placed(&job.report());
        if now != before {
            (before, changed) = (now, Instant::now());
        }
    }
}

/// The last line of a launcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LauncherReport {
    pub copied: u64,
    pub from_levels: u64,
    pub from_source: u64,
}

impl LauncherReport {
    fn new(report: &TransparentReport) -> Self {
        assert_eq!(report.failed, 0, "copies failed: {:?}", report.first_failure);
        assert_eq!(report.dropped, 0, "no source has changed, but copies were dropped");
        Self {
            copied: report.copied.files,
            from_levels: report.levels.iter().map(|level| level.used.opens).sum(),
            from_source: report.source.opens,
        }
    }

    fn to_line(&self) -> String {
        format!("report {} {} {}", self.copied, self.from_levels, self.from_source)
    }

    pub fn of(lines: &[String]) -> Self {
        let found = lines.iter().find_map(|line| line.strip_prefix("report "));
        let found = found.unwrap_or_else(|| panic!("the launcher has not reported: {lines:?}"));
        let numbers: Vec<u64> = found.split(' ').map(|number| number.parse().unwrap()).collect();
        Self { copied: numbers[0], from_levels: numbers[1], from_source: numbers[2] }
    }
}
