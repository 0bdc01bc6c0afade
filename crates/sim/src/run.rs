//! Runs the policies of a scenario and puts each outcome beside the bound.

use std::sync::Arc;
use std::time::Instant;

use belady_control::{Job, policy};
use rayon::prelude::*;

use crate::bound::{Bound, bound};
use crate::outcome::Outcome;
use crate::scenario::{PolicySpec, Scenario, ScenarioError, Set};
use crate::world::simulate;

/// Hears of progress: the policy's label, steps done, steps in all.
pub type Observer<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Above this many samples, policies run one after the other: each holds several
/// arrays of them.
const LARGE: u32 = 4_000_000;

/// One outcome a policy, in the scenario's order.
pub fn run(
    scenario: &Scenario,
    sweep: &[Set],
    watch: Observer<'_>,
) -> Result<Vec<Outcome>, ScenarioError> {
    let job = scenario.job()?;
    let epochs = scenario.training.epochs;
    if job.sizes.len() > LARGE {
        let bound = bound(&job, epochs);
        let runs = scenario.policies.iter();
        return Ok(runs.map(|spec| outcome(scenario, sweep, &job, spec, &bound, watch)).collect());
    }
    let bound = bound(&job, epochs);
    Ok(scenario
        .policies
        .par_iter()
        .with_max_len(1)
        .map(|spec| outcome(scenario, sweep, &job, spec, &bound, watch))
        .collect())
}

fn outcome(
    scenario: &Scenario,
    sweep: &[Set],
    job: &Arc<Job>,
    spec: &PolicySpec,
    bound: &Bound,
    watch: Observer<'_>,
) -> Outcome {
    let began = Instant::now();
    let mut outcome = match policy::plan(&spec.kind, job) {
        Ok(plan) => {
            let mut progress = |done, all| watch(&spec.label, done, all);
            simulate(job, &plan, scenario.training.epochs, &mut progress).outcome
        }
        Err(reason) => Outcome { reason: Some(reason.to_string()), ..Outcome::default() },
    };
    outcome.scenario.clone_from(&scenario.name);
    outcome.policy.clone_from(&spec.label);
    outcome.sweep = sweep.iter().map(|set| (set.key().to_owned(), set.text().to_owned())).collect();
    outcome.perfect_seconds = bound.perfect.0;
    outcome.bound_seconds = bound.seconds.0;
    outcome.bound_by = bound.epochs.iter().map(|epoch| epoch.binds().to_owned()).collect();
    outcome.distinct_bytes_per_epoch =
        bound.epochs.iter().map(|epoch| epoch.distinct_bytes).collect();
    outcome.simulated_in_seconds = began.elapsed().as_secs_f64();
    outcome
}
