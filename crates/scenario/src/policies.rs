//! Checks the `[[policy]]` tables.

use belady_control::model::System;
use belady_control::policy::{FixedDuties, OptionValue, PolicyError, PolicyKind};

use super::checks::{needed, whole};
use super::raw::{RawPolicy, Whole};
use super::schema::nearest;
use super::{PolicySpec, ScenarioError};

/// Returns the policies to run: those that the file names, or all.
pub fn policies(raw: Vec<RawPolicy>, system: &System) -> Result<Vec<PolicySpec>, ScenarioError> {
    if raw.is_empty() {
        return Ok(PolicyKind::ALL.into_iter().map(PolicySpec::from).collect());
    }
    let mut specs: Vec<PolicySpec> = Vec::with_capacity(raw.len());
    for (index, raw) in raw.into_iter().enumerate() {
        let spec = policy(index, raw, system)?;
        if specs.iter().any(|other| other.label == spec.label) {
            return Err(ScenarioError::invalid(
                format!("policy.{index}.label"),
                format!("is `{}`, which another policy has already; give each its own", spec.label),
            ));
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn policy(index: usize, mut raw: RawPolicy, system: &System) -> Result<PolicySpec, ScenarioError> {
    let name = needed(raw.name.take(), &format!("policy.{index}.name"), "")?;
    let mut kind = policy_by_name(&format!("policy.{index}.name"), &name)?;
    let label = raw.label.take().unwrap_or_else(|| name.clone());
    let at = |key: &str| format!("policy.{label}.{key}");
    for (key, value) in &raw.options {
        kind.set(key, &option_value(value)).map_err(|error| refusal(at, key, error))?;
    }
    let kind = kind.complete().map_err(|error| refusal(at, "", error))?;
    check(PolicySpec { kind, label }, system)
}

/// Returns the policy of a text such as `lobster,tau=5ms`, which is its label.
pub fn with_options(text: &str, system: &System) -> Result<PolicySpec, ScenarioError> {
    let kind = text.parse().map_err(ScenarioError::Policy)?;
    check(PolicySpec { kind, label: text.to_owned() }, system)
}

/// Checks options that depend on the system.
fn check(spec: PolicySpec, system: &System) -> Result<PolicySpec, ScenarioError> {
    let most = i64::from(system.staging_threads());
    let bounded = |key: &str, threads: u32| {
        let key = format!("policy.{}.{key}", spec.label);
        whole(&key, Whole(threads.into()), 1, most).map(drop)
    };
    if let Some(FixedDuties { loading, preprocessing }) = spec.kind.duties() {
        bounded("loading_threads", loading)?;
        preprocessing.map_or(Ok(()), |threads| bounded("preprocessing_threads", threads))?;
    }
    Ok(spec)
}

fn option_value(value: &toml::Value) -> OptionValue {
    match value {
        toml::Value::Boolean(flag) => OptionValue::Flag(*flag),
        toml::Value::Integer(whole) => OptionValue::Whole(*whole),
        toml::Value::Float(number) => OptionValue::Fraction(*number),
        toml::Value::String(text) => OptionValue::Text(text.clone()),
        // No option takes one; the error shows it as written.
        other => OptionValue::Text(other.to_string()),
    }
}

/// Returns the words of this crate: the key says which policy and option are meant.
fn refusal(at: impl Fn(&str) -> String, key: &str, error: PolicyError) -> ScenarioError {
    let reason = match error {
        PolicyError::Incomplete { option, needed, reason, .. } => {
            return ScenarioError::invalid(
                at(option),
                format!("needs `{needed}` beside it: {reason}"),
            );
        }
        PolicyError::UnknownOption { policy, known, .. } => {
            format!("is not an option of `{policy}`, which {known}")
        }
        PolicyError::Value { value, expected, .. } => {
            format!("is `{value}`; it must be {expected}")
        }
        other => other.to_string(),
    };
    ScenarioError::invalid(at(key), reason)
}

/// Returns the policy of that name with its default options.
pub fn policy_by_name(key: &str, name: &str) -> Result<PolicyKind, ScenarioError> {
    PolicyKind::by_name(name).ok_or_else(|| {
        let names: Vec<&str> = PolicyKind::every().map(|kind| kind.name()).collect();
        ScenarioError::UnknownPolicy {
            key: key.to_owned(),
            name: name.to_owned(),
            nearest: nearest(name, names).map_or("belady", |(name, _)| name).to_owned(),
        }
    })
}
