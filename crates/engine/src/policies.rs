//! The policies that the engine can run, of those that the simulator knows.

use belady_control::policy::{PolicyError, PolicyKind};

use crate::EngineError;

/// The policies that the engine can run.
pub const POLICIES: [&str; 7] =
    ["belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster"];

/// Returns the policy that a text such as `lobster,tau=5ms,threads=false` describes.
///
/// # Errors
/// If there is no such policy or option, or only the simulator can run it.
pub fn policy(text: &str) -> Result<PolicyKind, EngineError> {
    PolicyKind::parse(text, &POLICIES).map_err(|error| match &error {
        PolicyError::UnknownPolicy { name, .. } => match PolicyKind::by_name(name) {
            Some(kind) => simulator_only(&kind),
            None => error.into(),
        },
        _ => error.into(),
    })
}

/// Checks that the engine can run a policy.
pub fn check(kind: &PolicyKind) -> Result<(), EngineError> {
    if POLICIES.contains(&kind.name()) { Ok(()) } else { Err(simulator_only(kind)) }
}

fn simulator_only(kind: &PolicyKind) -> EngineError {
    EngineError::SimulatorOnly(kind.name(), POLICIES.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_the_engine_is_parsed_with_its_options() {
        for name in POLICIES {
            let kind = policy(name).unwrap();
            assert_eq!(kind.name(), name);
            assert!(check(&kind).is_ok());
        }
        let still = policy("lobster,threads=false").unwrap();
        assert!(matches!(still, PolicyKind::Lobster { threads: false, eviction: true, .. }));
    }

    #[test]
    fn what_the_engine_cannot_run_is_refused_with_what_it_can() {
        let said = |text: &str| policy(text).unwrap_err().to_string();
        assert!(said("perfect").contains("`perfect` exists in the simulator only"));
        assert!(said("belandy").ends_with(&POLICIES.join(", ")), "{}", said("belandy"));
        assert!(said("lobster,taw=1s").contains("`taw` is not an option of `lobster`"));
    }
}
