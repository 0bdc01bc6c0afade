//! Many processes and threads read the same files, and some are killed. Every byte is right, no
//! level exceeds its quota, no descriptor leaks, and no process hangs.
//!
//! ```text
//! test ──▶ launcher ──▶ supervisor ──▶ readers with 8 threads each,
//!   │                   kills and       which know each file's bytes
//!   │                   restarts them   by its name
//!   └── polls the levels (levels.rs)
//! ```
//!
//! All of them are this binary in another role (roles). `BELADY_STRESS=10` runs ten times as much,
//! for a night; `BELADY_STRESS_SEED` repeats a run's random choices.

mod files;
mod levels;
mod processes;
mod random;
mod roles;

use std::path::PathBuf;

use levels::{QuotaMonitor, StressLevel};
use processes::Running;
use roles::Settings;
use tempfile::TempDir;

const EPOCHS: u32 = 20;

/// A dataset, and two levels with space for about six tenths of it.
struct Scene {
    folder: TempDir,
    settings: Settings,
}

impl Scene {
    fn new(files: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dataset = folder.path().join("data set");
        let total = files::make(&dataset, files);
        let levels = [("fast", total / 5), ("large", 2 * total / 5)];
        let levels: Vec<_> = levels
            .into_iter()
            .map(|(name, quota)| {
                let path = folder.path().join(name);
                std::fs::create_dir(&path).unwrap();
                StressLevel { path, quota }
            })
            .collect();
        let settings = Settings {
            dataset,
            levels,
            files,
            readers: 4,
            first_epoch: 0,
            epochs: EPOCHS,
            kills: 0,
            seed: roles::seed(),
        };
        Self { folder, settings }
    }

    fn monitor(&self) -> QuotaMonitor {
        QuotaMonitor::start(self.settings.levels.clone())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Returns the factor of `BELADY_STRESS`.
fn scale() -> u32 {
    std::env::var("BELADY_STRESS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Plays a role if a test has started this process.
#[test]
fn in_a_role() {
    roles::play();
}

#[test]
fn four_processes_of_one_launcher_while_some_are_killed() {
    let mut scene = Scene::new(150 * scale());
    scene.settings.kills = 8 * scale();
    let monitor = scene.monitor();
    let lines = Running::launcher(&scene.settings).finish();
    let reported = roles::LauncherReport::of(&lines);
    monitor.stop();
    let held = levels::check(&scene.settings);
    levels::check_that_nothing_more_fits(&scene.settings);
    assert_eq!(reported.copied, held, "one copy of each file, made once: {lines:?}");
    assert!(
        reported.from_levels > reported.from_source,
        "most opens are served by copies: {lines:?}"
    );
}

#[test]
fn four_launchers_that_share_their_levels() {
    let mut scene = Scene::new(150 * scale());
    scene.settings.readers = 1;
    scene.settings.kills = 3 * scale();
    let monitor = scene.monitor();
    let running: Vec<_> = (0..4)
        .map(|number| {
            let seed = scene.settings.seed + number;
            Running::launcher(&Settings { seed, ..scene.settings.clone() })
        })
        .collect();
    let reported: Vec<_> =
        running.into_iter().map(|launcher| roles::LauncherReport::of(&launcher.finish())).collect();
    monitor.stop();
    let held = levels::check(&scene.settings);
    let copied: u64 = reported.iter().map(|reported| reported.copied).sum();
    assert_eq!(copied, held, "one copy of each file, made by one of them: {reported:?}");
    for reported in &reported {
        assert!(reported.from_levels > 0, "each launcher uses copies of the others: {reported:?}");
    }
}

#[test]
fn partial_copies_of_a_killed_launcher_are_reclaimed_by_the_next_run() {
    let mut scene = Scene::new(100 * scale());
    // Large enough to kill the launcher while it copies the file.
    let large = files::make_large(&scene.settings.dataset, 16 << 20);
    scene.settings.levels[0].quota += large;
    (scene.settings.readers, scene.settings.epochs) = (2, 2);
    let monitor = scene.monitor();
    let mut left = 0;
    for _ in 0..50 {
        let mut launcher = Running::launcher(&scene.settings);
        levels::wait_for_a_partial(&scene.settings, &mut launcher);
        launcher.kill_the_launcher();
        // The program continues without its launcher and reads the right bytes.
        launcher.finish_alone();
        left = levels::partials(&scene.settings).len();
        if left > 0 {
            break;
        }
        levels::clear(&scene.settings);
    }
    assert!(left > 0, "no launcher of 50 was killed while it made a copy");
    let lines = Running::launcher(&scene.settings).finish();
    monitor.stop();
    assert_eq!(levels::partials(&scene.settings), Vec::<PathBuf>::new(), "{lines:?}");
    assert!(levels::check(&scene.settings) > 0);
    levels::check_that_nothing_more_fits(&scene.settings);
    assert!(!scene.path("fast").join("files").exists(), "copies are in their dataset's folder");
}
