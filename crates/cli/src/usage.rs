//! Usage errors, which end the command with exit status 2, and the parser of counts.

/// Arguments that are valid one by one, but not together or not on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    /// Makes an error of one sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }

    /// Returns the error of a library as one of usage.
    pub fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Parses a seed.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("the seed must be a whole number from 0 to {}", u64::MAX))
}

/// Parses a whole number from 1 to `most`; digits may be grouped. `what` names it in errors.
pub fn count(text: &str, what: &str, most: u64) -> Result<u32, String> {
    let number: i128 = text
        .replace(['_', ','], "")
        .parse()
        .map_err(|_| format!("{what} must be a whole number, such as 1000 or 1_000"))?;
    if number < 1 {
        return Err(format!("{what} must be at least 1"));
    }
    if number > i128::from(most) {
        return Err(format!("{what} must be at most {most}"));
    }
    Ok(number as u32)
}
