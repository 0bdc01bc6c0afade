//! Steps written as JSON.
//!
//! What is misspelt is named, with the nearest name that there is.

use serde_json::Value;

use crate::error::ChainError;
use crate::step::Step;

impl Step {
    /// Reads a list of steps: `[{"op": "Resize", "size": [256], ...}, ...]`.
    pub fn list(json: &str) -> Result<Vec<Self>, ChainError> {
        let steps: Vec<Value> = serde_json::from_str(json).map_err(|error| {
            ChainError::whole(format!("the steps are not a list in JSON: {error}"))
        })?;
        steps.into_iter().enumerate().map(|(at, step)| one(at + 1, step)).collect()
    }
}

fn one(index: usize, step: Value) -> Result<Step, ChainError> {
    let op = step.get("op").and_then(Value::as_str);
    let Some(&name) = op.and_then(|op| Step::NAMES.iter().find(|&&name| name == op)) else {
        let problem = match op {
            None => format!("{step} has no \"op\", which names the step"),
            Some(op) => {
                format!("there is no step {op:?}{}", suggestion(op, Step::NAMES.iter().copied()))
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

/// What serde says, in our words where it is about names. It puts names between backticks: the
/// one it met, then those that it knows.
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

/// The nearest of the names, if one is near.
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
        Step::list(json).unwrap_err().to_string()
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
