//! The environment variables that Belady reads, all of them. `belady help environment` and
//! `belady environment` are made from this list.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;

/// A variable and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    pub name: &'static str,
    pub meaning: &'static str,
    /// Its value is shown to nobody.
    secret: bool,
}

const fn variable(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, meaning, secret: false }
}

pub const SYSTEM: Variable =
    variable("BELADY_SYSTEM", "The system file for `belady read` without --system, and for Python");
pub const SNAPSHOTS: Variable =
    variable("BELADY_SNAPSHOTS", "Where lists of datasets are kept, without --snapshots");
pub const METRICS_TOKEN: Variable = Variable {
    secret: true,
    ..variable("BELADY_METRICS_TOKEN", "What a scraper has to send to read --metrics")
};
/// These are read where ranks meet (`belady_peer::meet`); here is what they mean.
const RANK: Variable = variable("BELADY_RANK", "Which of several processes this is, from 0");
const RANKS: Variable = variable("BELADY_RANKS", "How many processes there are");
const MEET: Variable =
    variable("BELADY_MEET", "Where they meet: HOST:PORT of rank 0, or a directory that all see");
const JOB: Variable = variable("BELADY_JOB", "What tells their job from others that meet there");
const HOSTS: Variable =
    variable("BELADY_HOSTS", "A list of hosts with one process each; rank 0 is on the first");
const KEY: Variable = Variable {
    secret: true,
    ..variable("BELADY_KEY", "The job's key: what `openssl rand -hex 32` gives")
};
const KEY_FILE: Variable = variable("BELADY_KEY_FILE", "A file with the key, for you alone");
const BIND: Variable = variable(
    "BELADY_BIND",
    "The address or interface at which processes ask each other for samples",
);
pub const LOG: Variable =
    variable("BELADY_LOG", "What is told: error, warn (the default), info, debug or trace");
pub const NO_COLOR: Variable = variable("NO_COLOR", "No colours if it is set");
const XDG_CACHE_HOME: Variable =
    variable("XDG_CACHE_HOME", "Where lists of datasets are kept, in belady/snapshots");
const HOME: Variable = variable("HOME", "Likewise, in .cache/belady/snapshots");

pub const ALL: [Variable; 15] = [
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
    LOG,
    NO_COLOR,
    XDG_CACHE_HOME,
    HOME,
];

impl Variable {
    /// Its value, if it is set to something.
    pub fn value(&self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|value| !value.is_empty())
    }

    fn shown(&self) -> String {
        match self.value() {
            None => String::new(),
            Some(_) if self.secret => "(set)".to_owned(),
            Some(value) => value.to_string_lossy().into_owned(),
        }
    }
}

/// One line a variable, for the help.
pub fn help() -> String {
    let widest = ALL.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    let mut text = "Environment variables:\n".to_owned();
    for Variable { name, meaning, .. } in ALL {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<widest$}  {meaning}");
    }
    text.trim_end().to_owned()
}

/// Each variable with its value and its meaning.
pub fn run() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for variable in ALL {
        writeln!(out, "{}={}\n    {}", variable.name, variable.shown(), variable.meaning)?;
    }
    Ok(())
}
