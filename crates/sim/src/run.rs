//! Runs the policies of a scenario and adds the bound to each outcome.

use std::sync::Arc;
use std::time::Instant;

use belady_control::policy::{PolicyKind, PolicyPlan};
use belady_control::{Job, policy};
use rayon::prelude::*;

use crate::bound::{Bound, bound};
use crate::outcome::RunOutcome;
use crate::world::simulate;
use belady_scenario::{PolicySpec, Scenario, ScenarioError, Set};

/// Receives progress: the policy's label, steps done, steps in all.
pub type Observer<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Above this many samples, policies run one after the other: each holds several
/// arrays of them.
const LARGE: u32 = 4_000_000;

/// Returns one outcome a policy, in the scenario's order.
///
/// # Errors
/// If the scenario makes no job.
pub fn run(
    scenario: &Scenario,
    sweep: &[Set],
    watch: Observer<'_>,
) -> Result<Vec<RunOutcome>, ScenarioError> {
    let job = scenario.job()?;
    let outcome = |spec: &PolicySpec| simulate_policy(scenario, &job, spec, watch);
    // The bound takes about as long as a policy's run: both at once.
    let (mut outcomes, bound): (Vec<RunOutcome>, Bound) = rayon::join(
        || {
            if job.sizes.len() > LARGE {
                scenario.policies.iter().map(outcome).collect()
            } else {
                scenario.policies.par_iter().with_max_len(1).map(outcome).collect()
            }
        },
        || bound(&job, scenario.training.epochs),
    );
    for (outcome, spec) in outcomes.iter_mut().zip(&scenario.policies) {
        outcome.scenario.clone_from(&scenario.name);
        outcome.policy.clone_from(&spec.label);
        outcome.sweep =
            sweep.iter().map(|set| (set.key().to_owned(), set.text().to_owned())).collect();
        outcome.perfect_seconds = bound.perfect.0;
        outcome.bound_seconds = bound.seconds.0;
        outcome.bound_by = bound.epochs.iter().map(|epoch| epoch.binds().to_owned()).collect();
        outcome.straggling_bound_seconds = bound.straggling.0;
        if outcome.supported {
            outcome.straggling_seconds += bound.straggling.0;
        }
        outcome.bound_source_bytes_per_epoch =
            bound.epochs.iter().map(|epoch| epoch.source_bytes).collect();
        outcome.distinct_bytes_per_epoch =
            bound.epochs.iter().map(|epoch| epoch.distinct_bytes).collect();
    }
    Ok(outcomes)
}

fn simulate_policy(
    scenario: &Scenario,
    job: &Arc<Job>,
    spec: &PolicySpec,
    watch: Observer<'_>,
) -> RunOutcome {
    let began = Instant::now();
    let mut outcome = match plan(&spec.kind, job) {
        Ok(plan) => {
            let mut progress = |done, all| watch(&spec.label, done, all);
            let run = simulate(job, &plan, scenario.training.epochs, &mut progress);
            RunOutcome { keeps_order: plan.keeps_order(), ..run.outcome }
        }
        Err(reason) => RunOutcome { reason: Some(reason), ..RunOutcome::default() },
    };
    outcome.simulated_in_seconds = began.elapsed().as_secs_f64();
    outcome
}

fn plan(kind: &PolicyKind, job: &Arc<Job>) -> Result<Arc<dyn PolicyPlan>, String> {
    // It splits batches by the arithmetic of permutations, which drawn orders do not have.
    if matches!(kind, PolicyKind::LocalityAware) && job.stream.iterations() == 0 {
        return Err(
            "it needs orders that are permutations of the dataset, and this scenario draws samples"
                .to_owned(),
        );
    }
    policy::plan(kind, job).map_err(|reason| reason.to_string())
}
