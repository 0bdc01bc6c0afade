//! Steps as JSON. Errors quote a misspelt name and suggest the nearest one.

use serde_json::Value;

use crate::error::ChainError;
use crate::step::TransformStep;

impl TransformStep {
    /// Parses a list of steps: `[{"op": "Resize", "size": [256], ...}, ...]`.
    ///
    /// # Errors
    /// If the JSON is malformed, or a name or an argument is wrong.
    pub fn list(json: &str) -> Result<Vec<Self>, ChainError> {
        let steps: Vec<Value> = serde_json::from_str(json).map_err(|error| {
            ChainError::whole(format!("the steps are not a list in JSON: {error}"))
        })?;
        steps.into_iter().enumerate().map(|(at, step)| one(at + 1, step)).collect()
    }
}

fn one(index: usize, step: Value) -> Result<TransformStep, ChainError> {
    let op = step.get("op").and_then(Value::as_str);
    let Some(&name) = op.and_then(|op| TransformStep::NAMES.iter().find(|&&name| name == op))
    else {
        let problem = match op {
            None => format!("{step} has no \"op\", which names the step"),
            Some(op) => {
                format!(
                    "there is no step {op:?}{}",
                    suggestion(op, TransformStep::NAMES.iter().copied())
                )
            }
        };
        return Err(ChainError { index, name: "", problem });
    };
    serde_json::from_value(step).map_err(|error| ChainError {
        index,
        name,
        problem: problem(&error.to_string()),
    })
}

/// Rephrases serde's error if it is about names, which serde puts between backticks: the unknown
/// one, then those that it knows.
fn problem(error: &str) -> String {
    let mut quoted = error.split('`').skip(1).step_by(2);
    let Some(met) = quoted.next() else { return format!("an argument is wrong: {error}") };
    let hint = suggestion(met, quoted);
    if error.starts_with("unknown field") {
        format!("there is no argument {met:?}{hint}")
    } else if error.starts_with("unknown variant") {
        format!("{met:?} is not one of its choices{hint}")
    } else if error.starts_with("missing field") {
        format!("the argument {met:?} is missing")
    } else {
        format!("an argument is wrong: {error}")
    }
}

/// Suggests the most similar name, if one is similar.
fn suggestion<'a>(met: &str, names: impl Iterator<Item = &'a str>) -> String {
    let likeness = |name: &str| strsim::jaro_winkler(&met.to_lowercase(), &name.to_lowercase());
    names
        .map(|name| (likeness(name), name))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(String::new(), |(_, name)| format!("; did you mean {name:?}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(json: &str) -> String {
        TransformStep::list(json).unwrap_err().to_string()
    }

    #[test]
    fn misspelt_names_are_named_with_the_nearest() {
        assert_eq!(
            said(r#"[{"op": "Numpy"}, {"op": "Resise", "size": [1]}]"#),
            "step 2: there is no step \"Resise\"; did you mean \"Resize\"?"
        );
        assert_eq!(
            said(r#"[{"op": "CenterCrop", "sizes": [1]}]"#),
            "step 1 (CenterCrop): there is no argument \"sizes\"; did you mean \"size\"?"
        );
        assert_eq!(
            said(r#"[{"op": "ToDtype", "dtype": "float23"}]"#),
            "step 1 (ToDtype): \"float23\" is not one of its choices; did you mean \"float32\"?"
        );
    }

    #[test]
    fn what_is_missing_or_of_another_kind_is_named() {
        assert_eq!(said(r#"[{"op": "Pad"}]"#), "step 1 (Pad): the argument \"padding\" is missing");
        assert_eq!(
            said(r#"[{"size": 1}]"#),
            "step 1: {\"size\":1} has no \"op\", which names the step"
        );
        assert!(said("{}").starts_with("the steps are not a list in JSON: "));
        let wrong = said(r#"[{"op": "RandomVerticalFlip", "p": "x"}]"#);
        assert!(
            wrong.starts_with("step 1 (RandomVerticalFlip): an argument is wrong: "),
            "{wrong}"
        );
    }
}
