//! The outcomes for programs: one array, as they are.

use crate::outcome::RunOutcome;

/// One pretty-printed JSON array, an element for each outcome.
pub fn json(outcomes: &[RunOutcome]) -> String {
    // Outcomes are numbers, strings and lists of them: no map key, no failing writer.
    // A float that is not finite becomes `null`.
    serde_json::to_string_pretty(outcomes).expect("outcomes are plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_array_with_the_documented_names() {
        let outcome =
            RunOutcome { policy: "belady".into(), seconds: f64::NAN, ..RunOutcome::default() };
        let parsed: serde_json::Value = serde_json::from_str(&json(&[outcome])).unwrap();
        assert_eq!(parsed[0]["policy"], "belady");
        assert!(parsed[0]["seconds"].is_null());
        assert!(parsed[0]["hit_ratio"]["peer"].is_number());
        assert_eq!(json(&[]), "[]");
    }
}
