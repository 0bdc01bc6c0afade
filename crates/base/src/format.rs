//! Formats numbers for people: grouped thousands, three significant digits, decimal units.

/// Stands where there is no number.
pub const NONE: &str = "–";

const UNITS: [(&str, f64); 7] =
    [("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1.0)];

/// Groups thousands: `12345.678` with `decimals` = 1 becomes `12,345.7`.
pub fn grouped(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let plain = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut text = String::new();
    if value < 0.0 && plain.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        text.push('−');
    }
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + fraction
}

/// Returns the number of decimals that leaves three significant digits.
pub fn decimals(value: f64) -> usize {
    let v = value.abs();
    if v == 0.0 || !v.is_finite() || v >= 99.95 {
        0
    } else if v >= 9.995 {
        1
    } else if v >= 0.9995 {
        2
    } else {
        3
    }
}

/// Splits an amount of bytes into its unit and the value in that unit.
pub fn byte_unit(bytes: f64) -> (f64, &'static str) {
    // 0.9995: a value that would round to 1,000 of one unit is 1 of the next.
    let (unit, size) =
        UNITS.into_iter().find(|(_, size)| bytes >= size * 0.9995).unwrap_or(("B", 1.0));
    (bytes / size, unit)
}

/// Formats an amount of bytes with three significant digits: 1,234,567 becomes `1.23 MB`.
pub fn bytes(bytes: f64) -> String {
    if !bytes.is_finite() {
        return NONE.to_owned();
    }
    let (value, unit) = byte_unit(bytes);
    let digits = if unit == "B" { 0 } else { decimals(value) };
    format!("{} {unit}", grouped(value, digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(grouped(1_234_567.89, 1), "1,234,567.9");
        assert_eq!(grouped(999.0, 0), "999");
        assert_eq!(grouped(-0.001, 1), "0.0");
        assert_eq!(grouped(-1234.0, 0), "−1,234");
        assert_eq!(grouped(f64::INFINITY, 1), NONE);
    }

    #[test]
    fn sizes_keep_three_digits() {
        let shown = [0, 999, 1000, 1234, 99_949, 999_499, 999_500, u64::MAX];
        let expected =
            ["0 B", "999 B", "1.00 KB", "1.23 KB", "99.9 KB", "999 KB", "1.00 MB", "18.4 EB"];
        assert_eq!(shown.map(|count| bytes(count as f64)), expected);
        assert_eq!(bytes(f64::NAN), NONE);
    }
}
