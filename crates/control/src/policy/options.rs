//! Policies as users write them: a name, and options where they differ from the defaults, as in
//! `lobster,tau=5ms,threads=false`.
//!
//! [`PolicyKind::options`] is the one list of options. Scenario files, the command line, Python and
//! messages between processes all set options through it, so that they know the same names and
//! refuse the same values with the same words.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use super::{Availability, FixedDuties, PolicyKind};
use crate::model::Seconds;

/// The value of an option, as typed.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// `true` or `false`.
    Flag(bool),
    /// A number without a fraction.
    Whole(i64),
    /// Any other number.
    Fraction(f64),
    /// Anything else.
    Text(String),
}

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

/// A value that an option can have.
trait PolicyOption {
    /// What is expected, as words that follow "it must be".
    fn expected(&self) -> &'static str;

    /// Sets the value; returns whether it is one that is expected.
    fn set(&mut self, value: &OptionValue) -> bool;

    /// Returns the value in the form that [`PolicyKind`] is parsed from.
    fn text(&self) -> String;
}

impl PolicyOption for bool {
    fn expected(&self) -> &'static str {
        "true or false"
    }

    fn set(&mut self, value: &OptionValue) -> bool {
        let OptionValue::Flag(flag) = value else { return false };
        *self = *flag;
        true
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl<T: PolicyOption> PolicyOption for &mut T {
    fn expected(&self) -> &'static str {
        (**self).expected()
    }

    fn set(&mut self, value: &OptionValue) -> bool {
        (**self).set(value)
    }

    fn text(&self) -> String {
        (**self).text()
    }
}

/// A number that may be left open.
impl PolicyOption for Option<u32> {
    fn expected(&self) -> &'static str {
        "a whole number of at least 1"
    }

    fn set(&mut self, value: &OptionValue) -> bool {
        let OptionValue::Whole(number) = value else { return false };
        let number = u32::try_from(*number).ok().filter(|&number| number > 0);
        *self = number.or(*self);
        number.is_some()
    }

    fn text(&self) -> String {
        // One that is left open is as by default, and not written.
        self.map(|number| number.to_string()).unwrap_or_default()
    }
}

impl PolicyOption for Seconds {
    fn expected(&self) -> &'static str {
        "a duration such as 5ms, or a number of seconds"
    }

    fn set(&mut self, value: &OptionValue) -> bool {
        let seconds = match value {
            OptionValue::Whole(number) => Some(*number as f64),
            OptionValue::Fraction(number) => Some(*number),
            OptionValue::Text(text) => text.parse().ok().map(|Self(seconds)| seconds),
            OptionValue::Flag(_) => None,
        };
        let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        self.0 = seconds.unwrap_or(self.0);
        seconds.is_some()
    }

    fn text(&self) -> String {
        // With all digits, unlike its usual form.
        format!("{}s", self.0)
    }
}

impl PolicyOption for Availability {
    fn expected(&self) -> &'static str {
        "`heuristic` or `known`"
    }

    fn set(&mut self, value: &OptionValue) -> bool {
        let OptionValue::Text(text) = value else { return false };
        *self = match text.as_str() {
            "heuristic" => Self::Heuristic,
            "known" => Self::Known,
            _ => return false,
        };
        true
    }

    fn text(&self) -> String {
        match self {
            Self::Heuristic => "heuristic".to_owned(),
            Self::Known => "known".to_owned(),
        }
    }
}

/// One of the two numbers of duties that may be fixed.
struct Duty<'a> {
    duties: &'a Cell<Option<FixedDuties>>,
    loads: bool,
}

impl Duty<'_> {
    /// Without `loading_threads`, that number is 0 until [`PolicyKind::complete`] refuses it.
    const NONE: FixedDuties = FixedDuties { loading: 0, preprocessing: None };

    fn number(&self) -> Option<u32> {
        let duties = self.duties.get()?;
        let loading = Some(duties.loading).filter(|&threads| threads > 0);
        if self.loads { loading } else { duties.preprocessing }
    }
}

impl PolicyOption for Duty<'_> {
    fn expected(&self) -> &'static str {
        self.number().expected()
    }

    fn set(&mut self, value: &OptionValue) -> bool {
        let mut number = self.number();
        let is_number = number.set(value);
        if let (true, Some(number)) = (is_number, number) {
            let duties = self.duties.get().unwrap_or(Self::NONE);
            self.duties.set(Some(match self.loads {
                true => FixedDuties { loading: number, ..duties },
                false => FixedDuties { preprocessing: Some(number), ..duties },
            }));
        }
        is_number
    }

    fn text(&self) -> String {
        self.number().text()
    }
}

type NamedOption<'a> = (&'static str, Box<dyn PolicyOption + 'a>);

fn named<'a>(name: &'static str, option: &'a mut impl PolicyOption) -> NamedOption<'a> {
    (name, Box::new(option))
}

fn duties_of(duties: &mut Option<FixedDuties>) -> [NamedOption<'_>; 2] {
    let duties = Cell::from_mut(duties);
    let duty = |name, loads| -> NamedOption<'_> { (name, Box::new(Duty { duties, loads })) };
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

impl From<&str> for OptionValue {
    fn from(text: &str) -> Self {
        if let Ok(flag) = text.parse() {
            Self::Flag(flag)
        } else if let Ok(whole) = text.parse() {
            Self::Whole(whole)
        } else if let Ok(fraction) = text.parse() {
            Self::Fraction(fraction)
        } else {
            Self::Text(text.to_owned())
        }
    }
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Whole(whole) => whole.fmt(f),
            Self::Fraction(fraction) => fraction.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<PolicyKind, String> {
        text.parse().map_err(|error: PolicyError| error.to_string())
    }

    #[test]
    fn a_name_alone_has_the_default_options() {
        for kind in PolicyKind::every() {
            assert_eq!(parsed(kind.name()), Ok(kind));
            assert_eq!(kind.to_string(), kind.name());
        }
    }

    #[test]
    fn options_are_set_by_name() {
        let lobster = PolicyKind::by_name("lobster").unwrap();
        let mut still = lobster;
        still.set("threads", &OptionValue::Flag(false)).unwrap();
        assert_ne!(still, lobster);
        assert_eq!(parsed("lobster,threads=false"), Ok(still));
        assert_eq!(still.to_string(), "lobster,threads=false");
        assert_eq!(parsed(" lobster , threads = false"), Ok(still), "blanks mean nothing");
        let tau = |text: &str| match parsed(text).unwrap() {
            PolicyKind::Lobster { tau, .. } => tau,
            other => panic!("{other}"),
        };
        assert_eq!(tau("lobster,tau=5ms"), Seconds(0.005));
        assert_eq!(tau("lobster,tau=0.005"), Seconds(0.005), "a number is seconds");
        assert_eq!(tau("lobster,tau=2"), Seconds(2.0));
        let fixed = FixedDuties { loading: 3, preprocessing: None };
        assert_eq!(parsed("staging,loading_threads=3").unwrap().duties(), Some(fixed));
        let both = Some(FixedDuties { preprocessing: Some(2), ..fixed });
        for text in [
            "loading_threads=3,preprocessing_threads=2",
            "preprocessing_threads=2,loading_threads=3",
        ] {
            assert_eq!(parsed(&format!("nopfs,{text}")).unwrap().duties(), both, "in any order");
        }
        let known = parsed("nopfs,availability=known").unwrap();
        assert!(matches!(known, PolicyKind::Nopfs { availability: Availability::Known, .. }));
    }

    #[test]
    fn what_is_wrong_is_quoted_and_what_is_known_is_listed() {
        for (text, parts) in [
            ("beladi", vec!["`beladi`", "did you mean `belady`", "nopfs", "cache"]),
            ("", vec!["no policy ``"]),
            ("lobster,taw=5ms", vec!["`taw`", "`lobster`", "threads, eviction, tau"]),
            ("belady,tau=5ms", vec!["`tau`", "`belady`", "has no options"]),
            ("lobster,tau=soon", vec!["`tau` of `lobster` is `soon`", "5ms"]),
            ("lobster,tau=-1", vec!["is `-1`", "duration"]),
            ("lobster,tau=5", vec![]),
            ("lobster,tau=nan", vec!["is `NaN`"]),
            ("lobster,threads=2", vec!["`threads` of `lobster` is `2`", "true or false"]),
            ("staging,loading_threads=0", vec!["is `0`", "at least 1"]),
            ("staging,loading_threads=two", vec!["is `two`", "whole number"]),
            ("nopfs,preprocessing_threads=2", vec!["needs `loading_threads` beside it"]),
            ("nopfs,availability=maybe", vec!["is `maybe`", "`heuristic` or `known`"]),
            ("lobster,tau", vec!["`tau` is not an option", "tau=5ms"]),
            ("lobster,", vec!["`` is not an option"]),
            ("lobster,tau=1s,tau=2s", vec!["`tau` is set twice"]),
        ] {
            match parsed(text) {
                Ok(kind) => assert!(parts.is_empty(), "{text} is {kind}"),
                Err(said) => {
                    assert!(!parts.is_empty(), "{said}");
                    assert!(parts.iter().all(|part| said.contains(part)), "{text}: {said}");
                }
            }
        }
    }

    #[test]
    fn only_listed_policies_are_parsed_from_a_list() {
        let said = PolicyKind::parse("perfect", &["belady", "lru"]).unwrap_err().to_string();
        assert!(said.contains("`perfect`") && said.ends_with("one of belady, lru"), "{said}");
        assert_eq!(PolicyKind::parse("lru", &["belady", "lru"]), Ok(PolicyKind::Lru));
    }

    fn value() -> impl Strategy<Value = OptionValue> {
        prop_oneof![
            any::<bool>().prop_map(OptionValue::Flag),
            any::<i64>().prop_map(OptionValue::Whole),
            (1..100i64).prop_map(OptionValue::Whole),
            any::<f64>().prop_map(OptionValue::Fraction),
            Just(OptionValue::Text("known".to_owned())),
            "[0-9]{1,3} ?(ms|us|s|h)".prop_map(OptionValue::Text),
        ]
    }

    proptest! {
        /// Nodes compare the text, and node engines get it instead of the policy.
        #[test]
        fn a_policy_is_parsed_from_its_own_text(
            at in 0..16usize,
            values in prop::collection::vec(value(), 8),
        ) {
            let mut kind = PolicyKind::every().nth(at).unwrap();
            for (name, value) in kind.option_names().into_iter().zip(&values) {
                let before = kind;
                if kind.set(name, value).is_err() {
                    prop_assert_eq!(kind, before, "a refused value changes nothing");
                }
            }
            prop_assert_eq!(kind.to_string().parse(), kind.complete());
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,30}", options in "[a-z_=,0-9.]{0,30}") {
            let _ = text.parse::<PolicyKind>();
            let _ = format!("lobster,{options}").parse::<PolicyKind>();
        }
    }
}
