//! What `belady run` does, with the supervisor as the program.

use std::thread;
use std::time::{Duration, Instant};

use belady_control::model::Bytes;
use belady_transparent::{Job, JobConfig, LevelConfig, Report, Revalidate};

use super::{Role, Settings};
use crate::processes::{MARK, command};

/// Copies are made within seconds; who waits that long waits for nothing.
const PATIENCE: Duration = Duration::from_mins(1);

pub fn launch(settings: &Settings) {
    let job = Job::prepare(&JobConfig {
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
    wait_until_all_is_placed(&job);
    let told = Told::new(&job.finish(false));
    println!("\n{MARK}{}", told.to_line());
    assert!(program.success(), "the supervisor failed, {program}");
}

/// A program may end before the last copies are made, and the launcher then ends with it. Here it is
/// the copies that are looked at, so it waits until their number does not change any more.
fn wait_until_all_is_placed(job: &Job) {
    let end = Instant::now() + PATIENCE;
    let placed = |report: &Report| {
        (report.levels.iter().map(|level| level.files).sum::<u64>(), report.refused, report.failed)
    };
    let mut before = placed(&job.report());
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(200));
        let now = placed(&job.report());
        if now == before {
            return;
        }
        before = now;
    }
}

/// What a launcher says in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub copied: u64,
    pub from_levels: u64,
    pub from_source: u64,
}

impl Told {
    fn new(report: &Report) -> Self {
        assert_eq!(report.failed, 0, "copies failed: {:?}", report.first_failure);
        assert_eq!(report.dropped, 0, "no source has changed, but copies were given up");
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
        let found = found.unwrap_or_else(|| panic!("the launcher has not told: {lines:?}"));
        let numbers: Vec<u64> = found.split(' ').map(|number| number.parse().unwrap()).collect();
        Self { copied: numbers[0], from_levels: numbers[1], from_source: numbers[2] }
    }
}
