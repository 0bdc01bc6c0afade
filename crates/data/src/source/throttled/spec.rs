//! Parses how slow a source is: `1:66MB/s,4:146MB/s,latency:2ms,jitter:10%`.

use std::str::FromStr;

use belady_base::units::ParseUnitError;
use belady_control::model::curve::CurveError;
use belady_control::model::{Curve, Rate, Seconds};

/// How slow a source is.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleSpec {
    /// t(γ): the bandwidth of γ readers together.
    pub bandwidth: Curve,
    /// The wait before every read request.
    pub latency: Seconds,
    /// The share, from 0 to 1, by which a request may be slower or faster.
    pub jitter: f64,
}

/// Why a text is not a throttle.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum ThrottleError {
    /// A part has an unknown form.
    #[error(
        "`{0}` in the throttle is not READERS:RATE, latency:TIME or jitter:SHARE; write for \
         example `1:66MB/s,4:146MB/s,latency:2ms,jitter:10%`"
    )]
    Form(String),
    /// A quantity cannot be parsed.
    #[error("`{part}` in the throttle has no valid quantity: {error}")]
    Quantity { part: String, error: ParseUnitError },
    /// The jitter is not a share.
    #[error("`{0}` in the throttle needs a share from 0% to 100%")]
    Jitter(String),
    /// A part occurs twice.
    #[error("the throttle names the {0} twice: leave one of them out")]
    Twice(&'static str),
    /// The bandwidth is not a valid curve.
    #[error("the throttle's bandwidth {0}; write for example `1:66MB/s,4:146MB/s`")]
    Bandwidth(#[from] CurveError),
}

impl FromStr for ThrottleSpec {
    type Err = ThrottleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mut points, mut latency, mut jitter) = (Vec::new(), None, None);
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let form = || ThrottleError::Form(part.to_owned());
            let (name, value) = part.split_once(':').ok_or_else(form)?;
            match name.trim() {
                "latency" => once("latency", &mut latency, quantity(part, value)?)?,
                "jitter" => once("jitter", &mut jitter, share(part, value)?)?,
                count => {
                    let count: u32 = count.parse().map_err(|_| form())?;
                    points.push((count, quantity::<Rate>(part, value)?));
                }
            }
        }
        Ok(Self {
            bandwidth: Curve::new(points)?,
            latency: latency.unwrap_or_default(),
            jitter: jitter.unwrap_or_default(),
        })
    }
}

fn once<T>(name: &'static str, slot: &mut Option<T>, value: T) -> Result<(), ThrottleError> {
    if slot.replace(value).is_some() { Err(ThrottleError::Twice(name)) } else { Ok(()) }
}

fn quantity<T: FromStr<Err = ParseUnitError>>(part: &str, value: &str) -> Result<T, ThrottleError> {
    value.parse().map_err(|error| ThrottleError::Quantity { part: part.to_owned(), error })
}

fn share(part: &str, value: &str) -> Result<f64, ThrottleError> {
    let number = value.trim().strip_suffix('%').and_then(|number| number.trim().parse().ok());
    number
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent: f64| percent / 100.0)
        .ok_or_else(|| ThrottleError::Jitter(part.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_rates_latency_and_jitter() {
        let spec: ThrottleSpec = "1:66MB/s, 4:146 MB/s,latency:2ms,jitter:10%".parse().unwrap();
        assert_eq!(spec.bandwidth.points(), [(1, Rate(66e6)), (4, Rate(146e6))]);
        assert_eq!(spec.latency, Seconds(0.002));
        assert_eq!(spec.jitter, 0.1);
        let spec: ThrottleSpec = "1:1GiB/s".parse().unwrap();
        assert_eq!((spec.latency, spec.jitter), (Seconds::ZERO, 0.0));
    }

    #[test]
    fn errors_quote_what_was_typed() {
        for (text, words) in [
            ("66MB/s", "`66MB/s` in the throttle is not READERS:RATE"),
            ("one:66MB/s", "`one:66MB/s`"),
            ("1:66MB", "unknown unit `MB`"),
            ("1:66MB/s,latency:soon", "`latency:soon`"),
            ("1:66MB/s,jitter:10", "from 0% to 100%"),
            ("1:66MB/s,jitter:110%", "from 0% to 100%"),
            ("1:66MB/s,jitter:nan%", "from 0% to 100%"),
            ("1:66MB/s,latency:1ms,latency:2ms", "latency twice"),
            ("latency:2ms", "at least one"),
            ("", "at least one"),
            ("1:66MB/s,1:70MB/s", "count 1 twice"),
            ("0:66MB/s", "start at 1"),
            ("1:0MB/s", "rate of zero"),
        ] {
            let error = text.parse::<ThrottleSpec>().unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
