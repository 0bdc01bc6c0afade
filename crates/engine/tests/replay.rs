//! A policy that gets the events of a recorded run gives the same actions.

mod common;

use std::sync::Arc;

use belady_control::model::Bytes;
use belady_data::source::{Source, Synthetic};
use belady_engine::POLICIES;
use belady_engine::{Engine, EngineConfig, JobConfig, TierConfig, trace};
use common::{consume, policy};

#[test]
fn a_replayed_run_gives_the_same_actions() {
    let folder = tempfile::tempdir().unwrap();
    for name in POLICIES {
        let source = Arc::new(Synthetic::of_sizes((0..300).map(|k| k * 31 % 900), 4));
        let tiers = vec![
            TierConfig::Ram { capacity: Bytes(30_000) },
            TierConfig::Ram { capacity: Bytes(40_000) },
        ];
        let config = EngineConfig { threads: Some(4), tiers, ..EngineConfig::default() };
        let engine = Engine::new(config).unwrap();
        let path = folder.path().join(name);
        let dynamic: Arc<dyn Source> = source.clone();
        let config = JobConfig {
            policy: policy(name),
            epochs: Some(4),
            batch: 10,
            trace: Some(path.clone()),
            ..JobConfig::new(dynamic)
        };
        let loader = engine.start(&config).unwrap();
        let job = loader.job().clone();
        consume(loader, &source).unwrap();
        let answers = trace::replay(&path, &config.policy, &job, 0).unwrap();
        // Every step has two events. The first few may have been staged before the plan.
        assert!(answers >= 2 * 4 * 30 - 60, "{name}: {answers}");
        // A policy with other actions is detected.
        let other = if name == "naive" || name == "staging" { "lru" } else { "naive" };
        assert!(trace::replay(&path, &policy(other), &job, 0).is_err(), "{name} is not {other}");
    }
}
