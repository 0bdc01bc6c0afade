//! What a run took, as JSON.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct Work {
    pub seconds: f64,
    /// Of all threads.
    pub cpu_seconds: f64,
    pub samples: u64,
    pub bytes: u64,
}

/// One run: all of it, and each of its epochs.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub total: Work,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<Epoch>,
}

#[derive(Debug, Serialize)]
pub struct Epoch {
    #[serde(rename = "epoch")]
    pub number: u32,
    #[serde(flatten)]
    pub work: Work,
    /// Seconds for which the consumer waited for data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_seconds: Option<f64>,
    /// What a file with counters said when it began and when it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<[serde_json::Value; 2]>,
}

impl Report {
    pub fn print(&self) -> anyhow::Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

/// Wall and CPU time since it was made.
#[derive(Debug)]
pub struct Watch {
    start: Instant,
    cpu: f64,
}

impl Watch {
    pub fn start() -> Self {
        Self { start: Instant::now(), cpu: process_cpu() }
    }

    pub fn work(&self, samples: u64, bytes: u64) -> Work {
        Work {
            seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu() - self.cpu,
            samples,
            bytes,
        }
    }
}

fn process_cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
