//! `belady simulate`: runs policies on a described cluster in virtual time.

use std::collections::HashMap;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::Context;
use belady_scenario::{Scenario, Set, Sweep};
use belady_sim::report::{ReportContext, Style, html, json, table_with};
use belady_sim::run::run as simulate;
use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use belady_base::environment;

/// The options of `belady simulate`.
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// The scenario, a TOML file
    #[arg(value_name = "FILE.toml")]
    scenario: PathBuf,
    /// Run only this policy, with options such as lobster,tau=5ms; can be repeated
    #[arg(long, value_name = "NAME[,OPTION=VALUE]")]
    policy: Vec<String>,
    /// Print one JSON array instead of the table
    #[arg(long)]
    json: bool,
    /// Also write an HTML report with plots
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    /// Set a key of the scenario, such as cluster.nodes=8
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Run once for each value of a key; several sweeps run every combination
    #[arg(long, value_name = "KEY=V1,V2,...")]
    sweep: Vec<String>,
}

/// Runs the command.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let sets = args.set.iter().map(|set| Set::parse(set)).collect::<Result<Vec<_>, _>>()?;
    let sweeps = args.sweep.iter().map(|s| Sweep::parse(s)).collect::<Result<Vec<_>, _>>()?;
    let combinations = Sweep::combinations(&sweeps);
    let mut scenarios = vec![];
    // All scenarios are parsed before the first one runs, so a mistake in the last one shows early.
    for combination in combinations {
        let all: Vec<Set> = sets.iter().chain(&combination).cloned().collect();
        let mut scenario = Scenario::load(&args.scenario, &all)?;
        if !args.policy.is_empty() {
            scenario.select(&args.policy)?;
        }
        scenarios.push((scenario, combination));
    }
    let bars = Bars::new();
    let mut outcomes = vec![];
    for (scenario, combination) in &scenarios {
        let runs = simulate(scenario, combination, &|policy, done, all| {
            bars.show(policy, done, all);
        });
        outcomes.extend(runs.map_err(|error| {
            anyhow::Error::new(error).context(format!("{}", args.scenario.display()))
        })?);
        bars.clear();
    }
    if let Some(path) = &args.html {
        let first = &scenarios[0].0;
        let caches: Vec<u64> = scenarios.iter().map(|(s, _)| s.system.cache_total().0).collect();
        let context = ReportContext {
            title: first.name.clone(),
            scenario_toml: std::fs::read_to_string(&args.scenario).unwrap_or_default(),
            command: command_line(),
            cache_bytes: caches.iter().all(|&c| c == caches[0]).then_some(caches[0]),
        };
        std::fs::write(path, html(&context, &outcomes))
            .with_context(|| format!("cannot write the report to {}", path.display()))?;
    }
    // Not `println`, which panics when the reader of a pipe has gone.
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json(&outcomes))?;
    } else {
        let colour = std::io::stdout().is_terminal() && environment::NO_COLOR.value().is_none();
        write!(out, "{}", table_with(&outcomes, Style { colour }))?;
        if let Some(path) = &args.html {
            writeln!(out, "Report: {}", path.display())?;
        }
    }
    Ok(())
}

fn command_line() -> String {
    let rest = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    format!("belady {rest}")
}

/// Progress bars, one for each running policy, on a terminal only.
struct Bars {
    all: MultiProgress,
    bars: Mutex<HashMap<String, ProgressBar>>,
}

impl Bars {
    fn new() -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        Self { all: MultiProgress::with_draw_target(target), bars: Mutex::default() }
    }

    fn show(&self, policy: &str, done: u64, all: u64) {
        let mut bars = self.bars.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let bar = bars.entry(policy.to_owned()).or_insert_with(|| {
            let style =
                ProgressStyle::with_template("{prefix:>22} {wide_bar} {percent:>3} % {eta}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = self.all.add(ProgressBar::new(all).with_style(style));
            bar.set_prefix(policy.to_owned());
            bar
        });
        bar.set_position(done);
        if done == all {
            bar.finish_and_clear();
        }
    }

    fn clear(&self) {
        self.bars.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        let _ = self.all.clear();
    }
}
