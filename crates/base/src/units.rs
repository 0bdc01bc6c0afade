//! Quantities with a unit: [`Bytes`], [`Seconds`], [`Rate`] (bytes per second).
//!
//! They are parsed from and printed as `"3 MB"`, `"40 GiB"`, `"250 ms"`, `"2 GB/s"`.
//! Decimal prefixes are powers of 1000, binary ones (`KiB`) powers of 1024. A letter alone (`100G`) is
//! a power of 1024, as for `dd`, `truncate` and Slurm.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::str::FromStr;

/// An amount of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

/// A throughput in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUnitError {
    /// No number at the start.
    #[error("`{0}` does not start with a number such as 1500, 1,500 or 1.5")]
    NoNumber(String),
    /// A number alone, where a unit is needed.
    #[error("`{text}` has no unit; use one of {expected}")]
    NoUnit {
        /// The whole text.
        text: String,
        /// The units that exist.
        expected: &'static str,
    },
    /// A unit that does not exist.
    #[error("`{text}` has the unknown unit `{unit}`; use one of {expected}")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// Its unit.
        unit: String,
        /// The units that exist.
        expected: &'static str,
    },
    /// Below zero, infinite or not a number.
    #[error("`{0}` is negative or not finite")]
    OutOfRange(String),
}

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// Returns the number as a float.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

impl Seconds {
    /// No time.
    pub const ZERO: Self = Self(0.0);

    /// Returns the longer of two times.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl Rate {
    /// Returns the lower of two rates.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// Returns the higher of two rates.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

macro_rules! linear {
    ($t:ident) => {
        impl Add for $t {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Sub for $t {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl AddAssign for $t {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl Sum for $t {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                Self(values.map(|v| v.0).sum())
            }
        }
    };
}
linear!(Bytes);
linear!(Seconds);
linear!(Rate);

macro_rules! scaled {
    ($t:ident) => {
        impl Mul<f64> for $t {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl Div<f64> for $t {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }
    };
}
scaled!(Seconds);
scaled!(Rate);

impl Div<Rate> for Bytes {
    type Output = Seconds;
    fn div(self, rate: Rate) -> Seconds {
        Seconds(self.as_f64() / rate.0)
    }
}

impl Mul<Seconds> for Rate {
    type Output = f64;
    fn mul(self, time: Seconds) -> f64 {
        self.0 * time.0
    }
}

const BYTE_UNITS: &str = "B, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB";

fn byte_factor(unit: &str) -> Option<f64> {
    Some(match unit {
        "" | "B" => 1.0,
        "KB" | "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "PB" => 1e15,
        "KiB" => 1024.0,
        "MiB" => 1024f64.powi(2),
        "GiB" => 1024f64.powi(3),
        "TiB" => 1024f64.powi(4),
        "PiB" => 1024f64.powi(5),
        _ => return None,
    })
}

fn second_factor(unit: &str) -> Option<f64> {
    Some(match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        "ns" => 1e-9,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    })
}

fn parse(
    text: &str,
    factor: impl Fn(&str) -> Option<f64>,
    expected: &'static str,
) -> Result<f64, ParseUnitError> {
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_' | ',' | '-' | '+')))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number = number.replace('_', "");
    let number: f64 = without_grouping(&number)
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| ParseUnitError::NoNumber(text.to_owned()))?;
    let unit = unit.trim();
    let factor = factor(unit).ok_or_else(|| match (text.to_owned(), unit.to_owned()) {
        (text, unit) if unit.is_empty() => ParseUnitError::NoUnit { text, expected },
        (text, unit) => ParseUnitError::UnknownUnit { text, unit, expected },
    })?;
    let value = number * factor;
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(ParseUnitError::OutOfRange(text.to_owned()))
    }
}

/// Removes the commas between thousands. `None` if a comma stands anywhere else: `1,5` may mean
/// 1.5.
fn without_grouping(number: &str) -> Option<String> {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    let grouped = groups.clone().next().is_some();
    let first_fits = !grouped || (1..=3).contains(&first.len());
    let fits = first_fits && groups.all(|group| group.len() == 3) && !fraction.contains(',');
    fits.then(|| whole.replace(',', "") + fraction)
}

impl FromStr for Bytes {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // In any case, unlike rates: 10 Gb/s are bits.
        let any_case = |unit: &str| {
            let unit = unit.to_ascii_uppercase().replace('I', "i");
            let is_letter = unit.len() == 1 && unit != "B";
            byte_factor(&if is_letter { unit + "iB" } else { unit })
        };
        parse(text, any_case, BYTE_UNITS).map(|v| Self(v.round() as u64))
    }
}

impl FromStr for Seconds {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text, second_factor, "ns, us, ms, s, min, h").map(Self)
    }
}

impl FromStr for Rate {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(
            text,
            |unit| byte_factor(unit.strip_suffix("/s").filter(|u| !u.is_empty())?),
            "B/s, KB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, TiB/s",
        )
        .map(Self)
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, value: f64, suffix: &str) -> fmt::Result {
    let (scale, unit) = match value.abs() {
        v if v >= 1e12 => (1e12, "TB"),
        v if v >= 1e9 => (1e9, "GB"),
        v if v >= 1e6 => (1e6, "MB"),
        v if v >= 1e3 => (1e3, "KB"),
        _ => (1.0, "B"),
    };
    let value = format!("{:.3}", value / scale);
    let value = value.trim_end_matches('0').trim_end_matches('.');
    write!(f, "{value} {unit}{suffix}")
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, self.as_f64(), "")
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, self.0, "/s")
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.abs() {
            v if v >= 1.0 || v == 0.0 => write!(f, "{:.2} s", self.0),
            v if v >= 1e-3 => write!(f, "{:.2} ms", self.0 * 1e3),
            _ => write!(f, "{:.2} us", self.0 * 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_grouped_digits_are_parsed() {
        assert_eq!("3 MB".parse(), Ok(Bytes(3_000_000)));
        assert_eq!("40GiB".parse(), Ok(Bytes(40 << 30)));
        assert_eq!("40gib".parse(), Ok(Bytes(40 << 30)));
        assert_eq!("1.5 kB".parse(), Ok(Bytes(1500)));
        assert_eq!("1_500 GB".parse(), Ok(Bytes(1_500_000_000_000)));
        assert_eq!("12".parse(), Ok(Bytes(12)));
        assert_eq!("100G".parse(), Ok(Bytes(100 << 30)));
        assert_eq!("1.5k".parse(), Ok(Bytes(1536)));
        assert_eq!("100 MB/s".parse(), Ok(Rate(1e8)));
        assert_eq!("250 ms".parse(), Ok(Seconds(0.25)));
    }

    #[test]
    fn a_comma_groups_thousands_and_is_never_a_decimal_point() {
        assert_eq!("1,500 GB".parse(), Ok(Bytes(1_500_000_000_000)));
        assert_eq!("1,234,567.5 KB".parse(), Ok(Bytes(1_234_567_500)));
        for ambiguous in ["1,5 GB", "1,50 GB", "1500,000 B", ",500 B", "1.5,000 MB", "1,,000 B"] {
            let error = ambiguous.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains("1,500 or 1.5"), "{error}");
        }
    }

    #[test]
    fn an_invalid_quantity_is_refused_with_its_reason() {
        assert!("-3 MB".parse::<Bytes>().unwrap_err().to_string().contains("negative"));
        assert!("3 apples".parse::<Bytes>().unwrap_err().to_string().contains("`apples`"));
        assert!("3 X".parse::<Bytes>().unwrap_err().to_string().contains("`X`"));
        assert!("10 G/s".parse::<Rate>().unwrap_err().to_string().contains("`G/s`"));
        assert!("10 Gb/s".parse::<Rate>().unwrap_err().to_string().contains("`Gb/s`"));
        assert!("3 MB".parse::<Rate>().unwrap_err().to_string().contains("`MB`"));
        assert!("fast".parse::<Rate>().unwrap_err().to_string().contains("number"));
        assert!("3".parse::<Seconds>().unwrap_err().to_string().contains("has no unit"));
    }

    #[test]
    fn a_printed_quantity_parses_to_the_same_text() {
        for text in ["3 MB", "1.5 TB", "270 KB", "12 B"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        assert_eq!("100 MB/s".parse::<Rate>().unwrap().to_string(), "100 MB/s");
    }
}
