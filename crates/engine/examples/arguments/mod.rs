//! `--name value` arguments of the examples.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

pub struct Arguments(HashMap<String, String>);

impl Arguments {
    /// Those of the command line; `--json` is what the examples print anyhow.
    pub fn new(known: &[&str]) -> Result<Self, String> {
        let mut given = HashMap::new();
        let mut words = std::env::args().skip(1).filter(|word| word != "--json");
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").filter(|name| known.contains(name));
            let name = name.ok_or(format!("`{word}` is none of --{}", known.join(", --")))?;
            let value = words.next().ok_or(format!("`{word}` needs a value"))?;
            given.insert(name.to_owned(), value);
        }
        Ok(Self(given))
    }

    pub fn get<T: FromStr<Err: Display>>(&self, name: &str, default: T) -> Result<T, String> {
        match self.0.get(name) {
            Some(value) => value.parse().map_err(|error| format!("--{name} {value}: {error}")),
            None => Ok(default),
        }
    }
}

pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
