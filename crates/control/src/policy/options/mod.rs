//! Policies as users write them: a name, and options where they differ from the defaults, as in
//! `lobster,tau=5ms,threads=false`.
//!
//! [`PolicyKind::options`] is the one list of options. Scenario files, the command line, Python and
//! messages between processes all set options through it, so that they know the same names and
//! refuse the same values with the same words.

mod value;

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use super::{FixedDuties, PolicyKind};
pub use value::OptionValue;
use value::{DutyThreads, PolicyOption};

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PolicyError {
    #[error("there is no policy `{name}`: did you mean `{nearest}`? Choose one of {known}")]
    UnknownPolicy { name: String, nearest: &'static str, known: String },
    #[error("`{part}` is not an option: write a policy as `lobster,tau=5ms,threads=false`")]
    NoAssignment { part: String },
    #[error("`{option}` is set twice in `{text}`: set it once")]
    Twice { option: String, text: String },
    #[error("`{option}` is not an option of `{policy}`, which {known}")]
    UnknownOption { policy: &'static str, option: String, known: String },
    #[error("`{option}` of `{policy}` needs `{needed}` beside it: {reason}")]
    Incomplete {
        policy: &'static str,
        option: &'static str,
        needed: &'static str,
        reason: &'static str,
    },
    #[error("`{option}` of `{policy}` is `{value}`; it must be {expected}")]
    Value { policy: &'static str, option: String, value: String, expected: &'static str },
}

type NamedOption<'a> = (&'static str, Box<dyn PolicyOption + 'a>);

fn named<'a>(name: &'static str, option: &'a mut impl PolicyOption) -> NamedOption<'a> {
    (name, Box::new(option))
}

fn duties_of(duties: &mut Option<FixedDuties>) -> [NamedOption<'_>; 2] {
    let duties = Cell::from_mut(duties);
    let duty = |name, loads| -> NamedOption<'_> { (name, Box::new(DutyThreads { duties, loads })) };
    [duty("loading_threads", true), duty("preprocessing_threads", false)]
}

impl PolicyKind {
    /// Returns the options with their names. A field that is missing here does not compile.
    fn options(&mut self) -> Vec<NamedOption<'_>> {
        match self {
            Self::Staging { duties } => duties_of(duties).into(),
            Self::Nopfs { in_order, cleanup_read, availability, duties } => {
                let mut options: Vec<NamedOption<'_>> = duties_of(duties).into();
                options.push(named("in_order", in_order));
                options.push(named("cleanup_read", cleanup_read));
                options.push(named("availability", availability));
                options
            }
            Self::Lobster { threads, eviction, tau } => {
                vec![named("threads", threads), named("eviction", eviction), named("tau", tau)]
            }
            Self::Perfect
            | Self::Naive
            | Self::DeepioOrdered
            | Self::DeepioOpportunistic
            | Self::ParallelStaging
            | Self::LbannDynamic
            | Self::LbannPreload
            | Self::LocalityAware
            | Self::Monarch
            | Self::Lru
            | Self::Belady
            | Self::Local
            | Self::Cache => vec![],
        }
    }

    /// Returns the names of the policy's options.
    pub fn option_names(mut self) -> Vec<&'static str> {
        self.options().into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the names of all options of all policies.
    pub fn all_option_names() -> Vec<&'static str> {
        Self::every().flat_map(Self::option_names).collect()
    }

    /// Returns the threads that have one duty each, if the policy is given any.
    pub fn duties(&self) -> Option<FixedDuties> {
        match self {
            Self::Staging { duties } | Self::Nopfs { duties, .. } => *duties,
            _ => None,
        }
    }

    /// Checks that no option lacks another one, once all are set.
    ///
    /// # Errors
    /// If one does.
    pub fn complete(self) -> Result<Self, PolicyError> {
        match self.duties() {
            Some(FixedDuties { loading: 0, .. }) => Err(PolicyError::Incomplete {
                policy: self.name(),
                option: "preprocessing_threads",
                needed: "loading_threads",
                reason: "threads that only preprocess leave others to load",
            }),
            _ => Ok(self),
        }
    }

    /// Sets one option. Options may come in any order; [`Self::complete`] follows the last one.
    ///
    /// # Errors
    /// If the policy has no such option, or not with this value.
    pub fn set(&mut self, name: &str, value: &OptionValue) -> Result<(), PolicyError> {
        let policy = self.name();
        let names = self.option_names();
        let found = self.options().into_iter().find(|(other, _)| *other == name);
        let Some((_, mut option)) = found else {
            let known = match names.as_slice() {
                [] => "has no options".to_owned(),
                names => format!("has {}", names.join(", ")),
            };
            return Err(PolicyError::UnknownOption { policy, option: name.to_owned(), known });
        };
        if option.set(value) {
            return Ok(());
        }
        let (option, expected) = (name.to_owned(), option.expected());
        Err(PolicyError::Value { policy, option, value: value.to_string(), expected })
    }

    /// Parses a policy of which the name is one of `known`.
    ///
    /// # Errors
    /// If there is no such policy or option.
    pub fn parse(text: &str, known: &[&'static str]) -> Result<Self, PolicyError> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let found = Self::by_name(name).filter(|kind| known.contains(&kind.name()));
        let mut kind = found.ok_or_else(|| PolicyError::UnknownPolicy {
            name: name.to_owned(),
            nearest: nearest(name, known),
            known: known.join(", "),
        })?;
        let mut set: Vec<&str> = vec![];
        for part in parts {
            let (option, value) = part
                .split_once('=')
                .map(|(option, value)| (option.trim(), value.trim()))
                .filter(|(option, value)| !option.is_empty() && !value.is_empty())
                .ok_or_else(|| PolicyError::NoAssignment { part: part.to_owned() })?;
            kind.set(option, &OptionValue::from(value))?;
            if set.contains(&option) {
                let (option, text) = (option.to_owned(), text.to_owned());
                return Err(PolicyError::Twice { option, text });
            }
            set.push(option);
        }
        kind.complete()
    }

    /// Returns every policy with its default options.
    pub fn every() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Self::ON_REQUEST)
    }
}

/// Returns the name that is most like the text.
fn nearest(text: &str, known: &[&'static str]) -> &'static str {
    let text = text.to_lowercase();
    let likeness = |name: &str| strsim::normalized_damerau_levenshtein(&text, name);
    let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    nearest.copied().unwrap_or_default()
}

impl FromStr for PolicyKind {
    type Err = PolicyError;

    /// Parses any policy: of the engine, or of the simulator alone.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let known: Vec<&str> = Self::every().map(|kind| kind.name()).collect();
        Self::parse(text, &known)
    }
}

impl fmt::Display for PolicyKind {
    /// Writes the name, and the options that differ from their defaults: the same text for the same
    /// policy, and one that is parsed as that policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let (mut this, mut default) = (*self, Self::by_name(self.name()).unwrap_or(*self));
        for ((name, option), (_, usual)) in this.options().into_iter().zip(default.options()) {
            let text = option.text();
            if text != usual.text() {
                write!(f, ",{name}={text}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
