//! Many processes and threads over the same files, some of them killed: every byte is right, no level
//! holds more than its quota, no descriptor is left open, and nobody hangs.
//!
//! ```text
//! test ──▶ launcher ──▶ supervisor ──▶ readers, of 8 threads each
//!   │      Job           kills and       know each file's bytes by its name
//!   │                    starts again
//!   └── looks at the levels all the time (levels.rs)
//! ```
//!
//! All of them are this binary in another role (roles.rs). `BELADY_STRESS=10` makes ten times as much of
//! everything, for a night; `BELADY_STRESS_SEED` repeats a run's choices.

mod files;
mod levels;
mod processes;
mod random;
mod roles;

use std::path::PathBuf;

use levels::{Level, Watch};
use processes::Running;
use roles::Settings;
use tempfile::TempDir;

const EPOCHS: u32 = 20;

/// A dataset, and two levels that hold about six tenths of it together.
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
                Level { path, quota }
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

    fn watch(&self) -> Watch {
        Watch::start(self.settings.levels.clone())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// How much of everything: more by the variable.
fn scale() -> u32 {
    std::env::var("BELADY_STRESS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// What this binary does when one of its tests has started it.
#[test]
fn in_a_role() {
    roles::play();
}

#[test]
fn four_processes_of_one_launcher_while_some_are_killed() {
    let mut scene = Scene::new(150 * scale());
    scene.settings.kills = 8 * scale();
    let watch = scene.watch();
    let lines = Running::launcher(&scene.settings).finish();
    let told = roles::Told::of(&lines);
    watch.stop();
    let held = levels::check(&scene.settings);
    levels::check_that_nothing_more_fits(&scene.settings);
    assert_eq!(told.copied, held, "one copy of each file, made once: {lines:?}");
    assert!(told.from_levels > told.from_source, "most opens are served by copies: {lines:?}");
}

#[test]
fn four_launchers_that_share_their_levels() {
    let mut scene = Scene::new(150 * scale());
    scene.settings.readers = 1;
    scene.settings.kills = 3 * scale();
    let watch = scene.watch();
    let running: Vec<_> = (0..4)
        .map(|number| {
            let seed = scene.settings.seed + number;
            Running::launcher(&Settings { seed, ..scene.settings.clone() })
        })
        .collect();
    let told: Vec<_> =
        running.into_iter().map(|launcher| roles::Told::of(&launcher.finish())).collect();
    watch.stop();
    let held = levels::check(&scene.settings);
    let copied: u64 = told.iter().map(|told| told.copied).sum();
    assert_eq!(copied, held, "one copy of each file, made by one of them: {told:?}");
    for told in &told {
        assert!(told.from_levels > 0, "each uses copies, whoever made them: {told:?}");
    }
}

#[test]
fn partial_copies_of_a_killed_launcher_are_reclaimed_by_the_next_run() {
    let mut scene = Scene::new(100 * scale());
    // Large enough to be caught while it is copied.
    let large = files::make_large(&scene.settings.dataset, 16 << 20);
    scene.settings.levels[0].quota += large;
    (scene.settings.readers, scene.settings.epochs) = (2, 2);
    let watch = scene.watch();
    let mut left = 0;
    for _ in 0..50 {
        let mut launcher = Running::launcher(&scene.settings);
        levels::wait_for_a_partial(&scene.settings, &mut launcher);
        launcher.kill_the_launcher();
        // Its program goes on without it, and reads the right bytes to its end.
        launcher.finish_alone();
        left = levels::partials(&scene.settings).len();
        if left > 0 {
            break;
        }
        levels::clear(&scene.settings);
    }
    assert!(left > 0, "no launcher of 50 was killed while it made a copy");
    let lines = Running::launcher(&scene.settings).finish();
    watch.stop();
    assert_eq!(levels::partials(&scene.settings), Vec::<PathBuf>::new(), "{lines:?}");
    assert!(levels::check(&scene.settings) > 0);
    levels::check_that_nothing_more_fits(&scene.settings);
    assert!(
        !scene.path("fast").join("files").exists(),
        "copies lie in a folder of their dataset's"
    );
}
