//! The roles of this binary, one per process.

mod launcher;
mod reader;
mod supervisor;

use std::env;
use std::path::PathBuf;

pub use launcher::LauncherReport;

use crate::levels::StressLevel;

const VARIABLE: &str = "BELADY_STRESS_ROLE";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Launcher,
    Supervisor,
    Reader,
}

const ROLES: [Role; 3] = [Role::Launcher, Role::Supervisor, Role::Reader];

/// The settings of all roles.
#[derive(Clone, Debug)]
pub struct Settings {
    pub dataset: PathBuf,
    pub levels: Vec<StressLevel>,
    pub files: u32,
    /// Reader processes per supervisor.
    pub readers: u32,
    /// The first epoch of a reader that replaces a killed one.
    pub first_epoch: u32,
    pub epochs: u32,
    /// Readers that a supervisor kills.
    pub kills: u32,
    pub seed: u64,
}

/// Returns the seed of `BELADY_STRESS_SEED`, or another one each time.
pub fn seed() -> u64 {
    let given = env::var("BELADY_STRESS_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    println!("BELADY_STRESS_SEED={seed} repeats these choices");
    seed
}

/// Plays the role of the environment, if there is one.
pub fn play() {
    let Ok(name) = env::var(VARIABLE) else { return };
    let role = ROLES.into_iter().find(|role| format!("{role:?}") == name);
    let settings = Settings::from_environment();
    match role.expect("a known role") {
        Role::Launcher => launcher::launch(&settings),
        Role::Supervisor => supervisor::supervise(&settings),
        Role::Reader => reader::read(&settings),
    }
}

impl Settings {
    pub fn to_environment(&self, role: Role) -> Vec<(String, String)> {
        let levels: Vec<_> = self
            .levels
            .iter()
            .map(|level| format!("{}={}", level.path.display(), level.quota))
            .collect();
        let numbers = [self.files, self.readers, self.first_epoch, self.epochs, self.kills];
        let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
        [
            (VARIABLE, format!("{role:?}")),
            ("BELADY_STRESS_DATASET", self.dataset.display().to_string()),
            ("BELADY_STRESS_LEVELS", levels.join("\n")),
            ("BELADY_STRESS_NUMBERS", numbers.join(" ")),
            ("BELADY_STRESS_SEED", self.seed.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn from_environment() -> Self {
        let get = |name: &str| env::var(format!("BELADY_STRESS_{name}")).unwrap();
        let levels = get("LEVELS");
        let levels = levels.lines().map(|line| line.rsplit_once('=').unwrap());
        let numbers: Vec<u32> =
            get("NUMBERS").split(' ').map(|number| number.parse().unwrap()).collect();
        Self {
            dataset: get("DATASET").into(),
            levels: levels
                .map(|(path, quota)| StressLevel {
                    path: path.into(),
                    quota: quota.parse().unwrap(),
                })
                .collect(),
            files: numbers[0],
            readers: numbers[1],
            first_epoch: numbers[2],
            epochs: numbers[3],
            kills: numbers[4],
            seed: get("SEED").parse().unwrap(),
        }
    }
}
