//! Numbers as people write them: three digits that matter and a unit.

use belady_base::format::byte_unit;
pub use belady_base::format::{NONE, bytes, decimals, grouped};

/// Text that is safe in HTML and SVG, in content and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Control characters are not allowed in HTML even as references.
            c if c.is_control() && c != '\n' && c != '\t' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// At most `limit` characters, the last an ellipsis if something was cut.
pub fn shorten(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(limit.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

pub fn number(value: f64) -> String {
    grouped(value, decimals(value))
}

/// A tick of an axis: no more digits than it needs.
pub fn tick(value: f64) -> String {
    let text = grouped(value, 4);
    let text = if text.contains('.') { text.trim_end_matches('0') } else { &text };
    text.trim_end_matches('.').to_owned()
}

pub fn percent(share: f64) -> String {
    let p = share * 100.0;
    if !p.is_finite() {
        NONE.to_owned()
    } else if p > 0.0 && p < 0.05 {
        "<0.1 %".to_owned()
    } else if p > 0.0 && p < 9.95 {
        format!("{p:.1} %")
    } else {
        format!("{p:.0} %")
    }
}

/// `1.02 ×`, or a dash.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NONE.to_owned(), |r| format!("{} ×", grouped(r, decimals(r).min(2))))
}

/// A unit of time, as its name and its seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeUnit {
    pub name: &'static str,
    pub seconds: f64,
}

impl TimeUnit {
    const MICROSECOND: Self = Self { name: "µs", seconds: 1e-6 };
    const MILLISECOND: Self = Self { name: "ms", seconds: 1e-3 };
    const SECOND: Self = Self { name: "s", seconds: 1.0 };
    const MINUTE: Self = Self { name: "min", seconds: 60.0 };
    const HOUR: Self = Self { name: "h", seconds: 3600.0 };

    /// The unit in which this duration has few digits.
    pub fn of(seconds: f64) -> Self {
        // 180: below three minutes or hours people still think in the smaller unit.
        match seconds {
            s if !s.is_finite() || s <= 0.0 => Self::SECOND,
            s if s < 1e-3 => Self::MICROSECOND,
            s if s < 1.0 => Self::MILLISECOND,
            s if s < 180.0 => Self::SECOND,
            s if s < 180.0 * 60.0 => Self::MINUTE,
            _ => Self::HOUR,
        }
    }

    /// One unit for a column or an axis: that of the smallest, so that none loses digits.
    pub fn common(seconds: impl IntoIterator<Item = f64>) -> Self {
        let positive = seconds.into_iter().filter(|s| s.is_finite() && *s > 0.0);
        positive.min_by(f64::total_cmp).map_or(Self::SECOND, Self::of)
    }

    /// A tick of an axis in this unit. Below a minute, round numbers of one unit are round
    /// in the next: `1 s` reads better than `1,000 ms`.
    pub fn tick(self, seconds: f64) -> String {
        let unit = if self.seconds <= 1.0 && seconds < 180.0 { Self::of(seconds) } else { self };
        match tick(seconds / unit.seconds) {
            zero if zero == "0" => zero,
            value => format!("{value} {}", unit.name),
        }
    }

    pub fn format(self, seconds: f64) -> String {
        if !seconds.is_finite() {
            return NONE.to_owned();
        }
        let value = seconds / self.seconds;
        format!("{} {}", number(value), self.name)
    }
}

pub fn duration(seconds: f64) -> String {
    TimeUnit::of(seconds).format(seconds)
}

/// A tick of a byte axis.
pub fn byte_tick(bytes: f64) -> String {
    let (value, unit) = byte_unit(bytes);
    if bytes < 0.9995 { tick(bytes) } else { format!("{} {unit}", tick(value)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(duration(0.0), "0 s");
        assert_eq!(duration(0.000_4), "400 µs");
        assert_eq!(duration(0.0452), "45.2 ms");
        assert_eq!(duration(7.3), "7.30 s");
        assert_eq!(duration(3825.66), "63.8 min");
        assert_eq!(duration(15_204.78), "4.22 h");
        assert_eq!(duration(f64::NAN), NONE);
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1.5e12), "1.50 TB");
        assert_eq!(bytes(999_999.0), "1.00 MB");
    }

    #[test]
    fn small_shares_do_not_vanish() {
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.000_1), "<0.1 %");
        assert_eq!(percent(0.034), "3.4 %");
        assert_eq!(percent(1.0), "100 %");
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escape("<b a='1'>&\"\u{1}"), "&lt;b a=&#39;1&#39;&gt;&amp;&quot;\u{fffd}");
    }

    #[test]
    fn shorten_counts_characters() {
        assert_eq!(shorten("straße", 6), "straße");
        assert_eq!(shorten("straßen", 6), "straß…");
    }

    #[test]
    fn ticks_have_no_spare_digits() {
        assert_eq!(tick(2.0), "2");
        assert_eq!(tick(0.05), "0.05");
        assert_eq!(tick(1000.0), "1,000");
        assert_eq!(TimeUnit::MILLISECOND.tick(1.0), "1 s");
        assert_eq!(TimeUnit::MINUTE.tick(0.0), "0");
        assert_eq!(TimeUnit::MINUTE.tick(30.0), "0.5 min");
        assert_eq!(byte_tick(2e12), "2 TB");
        assert_eq!(byte_tick(0.0), "0");
    }
}
