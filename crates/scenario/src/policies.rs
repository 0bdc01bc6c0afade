//! Checks the `[[policy]]` tables.

use belady_control::model::System;
use belady_control::policy::{Availability, FixedDuties, PolicyKind};

use super::checks::{choice, needed, whole};
use super::raw::{Quantity, RawPolicy, Whole};
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
    let default = policy_by_name(&format!("policy.{index}.name"), &name)?;
    let label = raw.label.take().unwrap_or_else(|| name.clone());
    let at = |key: &str| format!("policy.{label}.{key}");
    // Each arm takes the options that its policy has; any option left is an error.
    let kind = match default {
        PolicyKind::Staging { .. } => {
            PolicyKind::Staging { duties: duties(&mut raw, &at, system)? }
        }
        PolicyKind::Nopfs { in_order, cleanup_read, availability, .. } => PolicyKind::Nopfs {
            duties: duties(&mut raw, &at, system)?,
            in_order: raw.in_order.take().unwrap_or(in_order),
            cleanup_read: raw.cleanup_read.take().unwrap_or(cleanup_read),
            availability: raw.availability.take().map_or(Ok(availability), |text| {
                choice(
                    &at("availability"),
                    &text,
                    &[("heuristic", Availability::Heuristic), ("known", Availability::Known)],
                )
            })?,
        },
        PolicyKind::Lobster { threads, eviction, tau } => PolicyKind::Lobster {
            threads: raw.threads.take().unwrap_or(threads),
            eviction: raw.eviction.take().unwrap_or(eviction),
            tau: raw.tau.take().map_or(tau, |Quantity(tau)| tau),
        },
        other => other,
    };
    match raw.untaken_option() {
        Some(key) => Err(ScenarioError::invalid(at(key), format!("is not an option of `{name}`"))),
        None => Ok(PolicySpec { kind, label }),
    }
}

/// Takes the threads that have one duty each.
fn duties(
    raw: &mut RawPolicy,
    at: &dyn Fn(&str) -> String,
    system: &System,
) -> Result<Option<FixedDuties>, ScenarioError> {
    let most = i64::from(system.staging_threads());
    let threads = |key: &str, given: Option<Whole>| {
        let checked = given.map(|threads| whole(&at(key), threads, 1, most)).transpose()?;
        Ok::<_, ScenarioError>(checked.map(|threads| threads as u32))
    };
    let loading = threads("loading_threads", raw.loading_threads.take())?;
    let preprocessing = threads("preprocessing_threads", raw.preprocessing_threads.take())?;
    match loading {
        Some(loading) => Ok(Some(FixedDuties { loading, preprocessing })),
        None if preprocessing.is_none() => Ok(None),
        None => Err(ScenarioError::invalid(
            at("preprocessing_threads"),
            "needs `loading_threads` beside it: threads that only preprocess leave others to load",
        )),
    }
}

impl RawPolicy {
    /// Returns the first option that no policy has taken.
    fn untaken_option(&self) -> Option<&'static str> {
        [
            ("in_order", self.in_order.is_some()),
            ("cleanup_read", self.cleanup_read.is_some()),
            ("availability", self.availability.is_some()),
            ("threads", self.threads.is_some()),
            ("eviction", self.eviction.is_some()),
            ("tau", self.tau.is_some()),
            ("loading_threads", self.loading_threads.is_some()),
            ("preprocessing_threads", self.preprocessing_threads.is_some()),
        ]
        .into_iter()
        .find_map(|(key, given)| given.then_some(key))
    }
}

/// Returns the policy of that name with its default options.
pub fn policy_by_name(key: &str, name: &str) -> Result<PolicyKind, ScenarioError> {
    PolicyKind::by_name(name).ok_or_else(|| {
        let known = PolicyKind::ALL.into_iter().chain(PolicyKind::ON_REQUEST);
        let names: Vec<&str> = known.map(|kind| kind.name()).collect();
        ScenarioError::UnknownPolicy {
            key: key.to_owned(),
            name: name.to_owned(),
            nearest: nearest(name, names).map_or("belady", |(name, _)| name).to_owned(),
        }
    })
}
