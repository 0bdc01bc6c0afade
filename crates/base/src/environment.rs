//! Lists all environment variables that belady reads, for `belady help environment` and
//! `belady environment`.

use std::ffi::OsString;
use std::fmt::Write as _;

/// A variable and its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The help text.
    pub meaning: &'static str,
    /// Whether its value is never printed.
    secret: bool,
}

const fn variable(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, meaning, secret: false }
}

/// The system file.
pub const SYSTEM: Variable =
    variable("BELADY_SYSTEM", "The system file for `belady read` without --system, and for Python");
/// The directory of snapshots.
pub const SNAPSHOTS: Variable =
    variable("BELADY_SNAPSHOTS", "The directory of dataset listings, without --snapshots");
/// The token of the metrics port.
pub const METRICS_TOKEN: Variable = Variable {
    secret: true,
    ..variable("BELADY_METRICS_TOKEN", "The token that a scraper of --metrics must send")
};
/// The next ones are read by the rendezvous (`belady_peer::rendezvous`).
const RANK: Variable = variable("BELADY_RANK", "The rank of this process, counted from 0");
const RANKS: Variable = variable("BELADY_RANKS", "The number of processes of the job");
const MEET: Variable = variable(
    "BELADY_MEET",
    "The rendezvous address: HOST:PORT of rank 0, or a directory shared by all",
);
const JOB: Variable =
    variable("BELADY_JOB", "The name of the job, if several jobs use one rendezvous address");
const HOSTS: Variable =
    variable("BELADY_HOSTS", "A list of hosts with one process each; rank 0 is on the first");
const KEY: Variable = Variable {
    secret: true,
    ..variable("BELADY_KEY", "The job's key, as `openssl rand -hex 32` prints one")
};
const KEY_FILE: Variable =
    variable("BELADY_KEY_FILE", "A file with the job's key, readable by its owner only");
const BIND: Variable = variable(
    "BELADY_BIND",
    "The address or interface at which this process serves samples to others",
);
/// What tells machines apart beside the kernel's own numbers.
pub const MACHINE: Variable =
    variable("BELADY_MACHINE", "A name; processes with different names are of different machines");
/// Whether the ranks of a node share one engine.
pub const NODE: Variable =
    variable("BELADY_NODE", "`off`: each process of a job has an engine of its own");
/// Where the sockets of node engines are.
pub const NODE_DIR: Variable = variable(
    "BELADY_NODE_DIR",
    "The directory of the sockets of node engines; only its owner may enter it",
);
/// The default parent of that directory.
pub const XDG_RUNTIME_DIR: Variable = variable(
    "XDG_RUNTIME_DIR",
    "The parent of belady, the default directory of the sockets of node engines",
);
/// How threads that transform yield to training.
pub const NICE: Variable = variable(
    "BELADY_NICE",
    "Added to the nice value of threads that transform: 0 to 19, 5 without it",
);
/// The log level.
pub const LOG: Variable =
    variable("BELADY_LOG", "The log level: error, warn (the default), info, debug or trace");
/// Turns colours off.
pub const NO_COLOR: Variable = variable("NO_COLOR", "Turns colours off if it is set");
const XDG_CACHE_HOME: Variable = variable(
    "XDG_CACHE_HOME",
    "The parent of belady/snapshots, the default directory of dataset listings",
);
const HOME: Variable =
    variable("HOME", "The same with .cache/belady/snapshots, without XDG_CACHE_HOME");

/// All of them, in the order of the help.
pub const ALL: [Variable; 20] = [
    SYSTEM,
    SNAPSHOTS,
    METRICS_TOKEN,
    RANK,
    RANKS,
    MEET,
    JOB,
    HOSTS,
    KEY,
    KEY_FILE,
    BIND,
    MACHINE,
    NODE,
    NODE_DIR,
    XDG_RUNTIME_DIR,
    NICE,
    LOG,
    NO_COLOR,
    XDG_CACHE_HOME,
    HOME,
];

impl Variable {
    /// Returns its value, if it is set and not empty.
    pub fn value(&self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|value| !value.is_empty())
    }

    /// Returns its value for display; a secret's is replaced by `(set)`.
    pub fn shown(&self) -> String {
        match self.value() {
            None => String::new(),
            Some(_) if self.secret => "(set)".to_owned(),
            Some(value) => value.to_string_lossy().into_owned(),
        }
    }
}

/// Returns one line for each variable, for the help.
pub fn help() -> String {
    let widest = ALL.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    let mut text = "Environment variables:\n".to_owned();
    for Variable { name, meaning, .. } in ALL {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<widest$}  {meaning}");
    }
    text.trim_end().to_owned()
}
