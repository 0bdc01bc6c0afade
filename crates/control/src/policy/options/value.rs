//! What options can be set to.

use std::cell::Cell;
use std::fmt;

use crate::model::Seconds;
use crate::policy::{Availability, FixedDuties};

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

impl From<&str> for OptionValue {
    fn from(text: &str) -> Self {
        let flag = text.parse().map(Self::Flag);
        flag.or_else(|_| text.parse().map(Self::Whole))
            .or_else(|_| text.parse().map(Self::Fraction))
            .unwrap_or_else(|_| Self::Text(text.to_owned()))
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

/// A value that an option can have.
pub trait PolicyOption {
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
pub struct DutyThreads<'a> {
    pub duties: &'a Cell<Option<FixedDuties>>,
    /// Whether it is the number of those that load.
    pub loads: bool,
}

impl DutyThreads<'_> {
    /// Without `loading_threads`, that number is 0 until [`PolicyKind::complete`] refuses it.
    const NONE: FixedDuties = FixedDuties { loading: 0, preprocessing: None };

    fn number(&self) -> Option<u32> {
        let duties = self.duties.get()?;
        let loading = Some(duties.loading).filter(|&threads| threads > 0);
        if self.loads { loading } else { duties.preprocessing }
    }
}

impl PolicyOption for DutyThreads<'_> {
    fn expected(&self) -> &'static str {
        self.number().expected()
    }

    fn set(&mut self, value: &OptionValue) -> bool {
        let mut number = self.number();
        let is_number = number.set(value);
        if let (true, Some(number)) = (is_number, number) {
            let duties = self.duties.get().unwrap_or(Self::NONE);
            let duties = if self.loads {
                FixedDuties { loading: number, ..duties }
            } else {
                FixedDuties { preprocessing: Some(number), ..duties }
            };
            self.duties.set(Some(duties));
        }
        is_number
    }

    fn text(&self) -> String {
        self.number().text()
    }
}
