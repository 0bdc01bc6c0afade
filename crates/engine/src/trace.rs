//! Records a policy's events and actions, one line of JSON each, and replays them.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belady_control::Job;
use belady_control::model::Seconds;
use belady_control::model::online::NodeMeasurement;
use belady_control::policy::{self, Actions, Event, NodeId, PolicyKind, RankId, TierId};
use belady_control::sampler::{EpochOrder, SampleId, Step};
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// One line of a trace.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct TraceLine {
    now: f64,
    told: Told,
    answer: Actions,
}

/// [`Event`], owned.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Told {
    Begin { epoch: u32 },
    Stage { rank: RankId, epoch: u32, iteration: u32, samples: Vec<SampleId> },
    Consumed { rank: RankId, epoch: u32, iteration: u32, samples: Vec<SampleId> },
    Idle { tier: TierId, limit: usize },
    Fetched { tier: TierId, sample: SampleId },
    Missed { rank: RankId, sample: SampleId, peer: NodeId },
    Measured(NodeMeasurement),
}

impl Told {
    fn of(event: &Event<'_>) -> Self {
        match *event {
            Event::Stage { rank, step: Step { epoch, iteration }, samples } => {
                Self::Stage { rank, epoch, iteration, samples: samples.to_vec() }
            }
            Event::Consumed { rank, step: Step { epoch, iteration }, samples } => {
                Self::Consumed { rank, epoch, iteration, samples: samples.to_vec() }
            }
            Event::Idle { tier, limit } => Self::Idle { tier, limit },
            Event::Fetched { tier, sample } => Self::Fetched { tier, sample },
            Event::Missed { rank, sample, peer } => Self::Missed { rank, sample, peer },
            Event::Measured(now) => Self::Measured(now.clone()),
        }
    }

    fn event(&self) -> Option<Event<'_>> {
        Some(match *self {
            Self::Begin { .. } => return None,
            Self::Stage { rank, epoch, iteration, ref samples } => {
                Event::Stage { rank, step: Step { epoch, iteration }, samples }
            }
            Self::Consumed { rank, epoch, iteration, ref samples } => {
                Event::Consumed { rank, step: Step { epoch, iteration }, samples }
            }
            Self::Idle { tier, limit } => Event::Idle { tier, limit },
            Self::Fetched { tier, sample } => Event::Fetched { tier, sample },
            Self::Missed { rank, sample, peer } => Event::Missed { rank, sample, peer },
            Self::Measured(ref now) => Event::Measured(now),
        })
    }
}

/// Writes a trace.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    out: BufWriter<File>,
    failed: bool,
}

impl Recorder {
    /// Creates the file.
    pub fn create(path: &Path) -> Result<Self, EngineError> {
        match File::create(path) {
            Ok(file) => {
                Ok(Self { path: path.to_owned(), out: BufWriter::new(file), failed: false })
            }
            Err(error) => Err(EngineError::Trace { path: path.to_owned(), error }),
        }
    }

    /// Records the beginning of an epoch.
    pub fn begin(&mut self, now: Seconds, epoch: u32) {
        self.write(&TraceLine {
            now: now.0,
            told: Told::Begin { epoch },
            answer: Actions::default(),
        });
    }

    /// Records an event and the policy's actions.
    pub fn record(&mut self, now: Seconds, event: &Event<'_>, answer: &Actions) {
        self.write(&TraceLine { now: now.0, told: Told::of(event), answer: answer.clone() });
    }

    fn write(&mut self, line: &TraceLine) {
        let written = serde_json::to_writer(&mut self.out, line)
            .map_err(std::io::Error::from)
            .and_then(|()| self.out.write_all(b"\n"));
        self.check(written);
    }

    /// Writes what is buffered.
    pub fn finish(mut self) {
        let written = self.out.flush();
        self.check(written);
    }

    /// Warns once about a trace that cannot be written; training goes on.
    fn check(&mut self, written: std::io::Result<()>) {
        if let Err(error) = written
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!(path = %self.path.display(), %error, "the trace is incomplete");
        }
    }
}

/// Sends the events of a trace to a fresh policy of a node, and compares its actions with the
/// recorded ones. Returns the number of events. Asks for the job's orders again.
///
/// # Errors
/// Returns a sentence that names the line if the trace cannot be read, or the actions differ.
pub fn replay(path: &Path, kind: &PolicyKind, job: &Arc<Job>, node: NodeId) -> Result<u64, String> {
    if !job.stream.ahead() {
        return Err(
            "the orders of this job can be asked for only once, so its trace cannot be replayed"
                .into(),
        );
    }
    let file = File::open(path).map_err(|error| error.to_string())?;
    let plan = policy::plan(kind, job).map_err(|error| error.to_string())?;
    let mut instance = plan.clone().node(node);
    let mut actions = Actions::default();
    let mut answers = 0;
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| error.to_string())?;
        let line: TraceLine = serde_json::from_str(&line)
            .map_err(|error| format!("line {} is not a line of a trace: {error}", number + 1))?;
        let Some(event) = line.told.event() else {
            if let Told::Begin { epoch } = line.told {
                let this = order(job, epoch).ok_or(format!("there is no epoch {epoch}"))?;
                plan.begin_epoch(epoch, &this, order(job, epoch + 1).as_ref());
            }
            continue;
        };
        actions.clear();
        instance.on(Seconds(line.now), event, &mut actions);
        if actions != line.answer {
            return Err(format!(
                "line {}: the event {:?} was answered by {:?}, and now by {actions:?}",
                number + 1,
                line.told,
                line.answer
            ));
        }
        answers += 1;
    }
    Ok(answers)
}

/// Returns the order of an epoch, if the job has it; the run itself has reported why not.
fn order(job: &Job, epoch: u32) -> Option<Arc<EpochOrder>> {
    if job.epochs.is_some_and(|epochs| epoch >= epochs) {
        return None;
    }
    job.stream.ask(epoch).ok().flatten().map(Arc::new)
}
