//! The report of a run, as a table with a line per epoch or as one JSON object.

use std::fmt::Write as _;

use belady_engine::metrics::{HistogramSnapshot, MetricsSnapshot, RankSnapshot, TierSnapshot};
use belady_peer::JobWorld;
use serde_json::{Value, json};

use super::args::CacheArg;
use super::checksum::Checksum;
use crate::text::{bytes, grouped, percent, seconds, table};

/// The measurements of an epoch, from its first to its last batch. They include reads made for the
/// next epoch during that time.
#[derive(Clone, Debug)]
pub struct EpochReport {
    pub epoch: u32,
    pub seconds: f64,
    pub samples: u64,
    pub bytes: u64,
    /// The time that a local rank waited at the barrier, on average.
    pub held_seconds: f64,
    /// Where a barrier keeps several local ranks in step, the steps of the epoch.
    pub steps: Option<u32>,
    /// The engine's metrics of the epoch.
    pub engine: MetricsSnapshot,
}

/// The measurements of a run.
#[derive(Clone, Debug)]
pub struct ReadReport {
    pub world: JobWorld,
    pub local_ranks: u32,
    pub policy: String,
    pub caches: Vec<CacheArg>,
    pub epochs: Vec<EpochReport>,
    /// The engine's metrics of the whole run.
    pub engine: MetricsSnapshot,
    /// The time from the opening of the dataset to the first batch.
    pub first_batch_seconds: f64,
    pub wall_seconds: f64,
    pub cpu_seconds: f64,
    pub peak_rss: u64,
    pub anonymous_peak: u64,
    pub order_ok: bool,
    pub checksum: Option<Checksum>,
}

impl EpochReport {
    /// Returns the steps in which the slowest local rank waited and some other one did not.
    fn imbalanced_steps(&self) -> u64 {
        self.engine.ranks.iter().map(|rank| rank.straggled).sum()
    }

    /// Returns what the steps lost to their slowest local ranks.
    fn straggling_seconds(&self) -> f64 {
        self.engine.ranks.iter().map(RankSnapshot::straggling_seconds).sum()
    }
}

impl ReadReport {
    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let epochs: Vec<Value> = self.epochs.iter().map(|epoch| self.epoch_json(epoch)).collect();
        let tiers: Vec<Value> = self
            .caches
            .iter()
            .zip(&self.engine.tiers)
            .map(|(cache, tier)| tier_json(cache, tier))
            .collect();
        let engine = &self.engine;
        json!({
            "rank": self.world.rank,
            "ranks": self.world.size,
            "local_ranks": self.local_ranks,
            "policy": self.policy,
            "epochs": epochs,
            "first_batch_ms": self.first_batch_seconds * 1e3,
            "wait_us": quantiles(&engine.wait_us),
            "boundary_wait_us": quantiles(&engine.boundary_wait_us),
            "source_read_us": quantiles(&engine.source_read_us),
            "source_operations": engine.operations,
            "tiers": tiers,
            "peers": engine.peers,
            "hit_ratio": engine.hit_ratio(),
            "retries": engine.retries,
            "timeouts": engine.timeouts,
            "bad_samples": {
                "raised": engine.bad.raised,
                "skipped": engine.bad.skipped,
                "replaced": engine.bad.replaced,
            },
            "peak_rss": self.peak_rss,
            "anonymous_peak": self.anonymous_peak,
            "cpu_seconds": self.cpu_seconds,
            "wall_seconds": self.wall_seconds,
            "order_ok": self.order_ok,
            "checksum": self.checksum.map(Checksum::text),
        })
    }

    fn epoch_json(&self, epoch: &EpochReport) -> Value {
        let engine = &epoch.engine;
        json!({
            "epoch": epoch.epoch,
            "seconds": epoch.seconds,
            "stall_seconds": self.stall_seconds(epoch),
            "held_seconds": epoch.held_seconds,
            "steps": epoch.steps,
            "imbalanced_steps": epoch.steps.map(|_| epoch.imbalanced_steps()),
            "straggling_seconds": epoch.steps.map(|_| epoch.straggling_seconds()),
            // The wait for the run's first batch includes the start-up.
            "first_wait_us": (epoch.epoch > 0).then_some(engine.boundary_wait_us.max),
            "samples": epoch.samples,
            "bytes": epoch.bytes,
            "source_bytes": engine.operations.bytes,
            "source_reads": engine.operations.read,
            "source_opens": engine.operations.open,
            "ram_bytes": self.cache_bytes(engine, false),
            "disk_bytes": self.cache_bytes(engine, true),
            "ring_bytes": engine.ring.bytes,
            "peer_bytes": engine.peers.read.bytes,
            "pushed_bytes": engine.peers.pushed.bytes,
        })
    }

    /// Returns how long a local rank has waited for batches in an epoch, on average.
    fn stall_seconds(&self, epoch: &EpochReport) -> f64 {
        epoch.engine.blocked_seconds() / f64::from(self.local_ranks)
    }

    /// Returns the bytes served by the caches in RAM, or by those on disk.
    fn cache_bytes(&self, engine: &MetricsSnapshot, disk: bool) -> u64 {
        let tiers = self.caches.iter().zip(&engine.tiers);
        let wanted = tiers.filter(|(cache, _)| cache.directory.is_some() == disk);
        wanted.map(|(_, tier)| tier.bytes()).sum()
    }

    /// Returns the report as text.
    pub fn text(&self) -> String {
        let mut headings = vec![
            "epoch", "time", "rate", "stall", "samples", "bytes", "source", "ram", "disk", "ring",
        ];
        let mut rows: Vec<Vec<String>> = self.epochs.iter().map(|epoch| self.row(epoch)).collect();
        if self.world.size > 1 {
            headings.push("peers");
            for (row, epoch) in rows.iter_mut().zip(&self.epochs) {
                row.push(bytes(epoch.engine.peers.read.bytes));
            }
        }
        let mut out = table(&headings, &rows);
        let wait = |name: &str, waits: &HistogramSnapshot| {
            let [p50, p99, max] = [waits.quantile(0.5), waits.quantile(0.99), waits.max];
            format!("{name} {p50} / {p99} / {max} µs (median / p99 / longest)\n")
        };
        // Writing to a string does not fail.
        let _ = writeln!(out, "\nfirst batch after {}", seconds(self.first_batch_seconds));
        out += &wait("waits for batches", &self.engine.wait_us);
        out += &wait("waits at epochs' starts", &self.engine.boundary_wait_us);
        let _ = writeln!(
            out,
            "memory {} at most, {} of it anonymous; {} of CPU in {}",
            bytes(self.peak_rss),
            bytes(self.anonymous_peak),
            seconds(self.cpu_seconds),
            seconds(self.wall_seconds),
        );
        let bad = self.engine.bad;
        if bad.skipped + bad.replaced > 0 {
            let _ = writeln!(
                out,
                "bad samples: {} skipped, {} replaced",
                grouped(bad.skipped as f64, 0),
                grouped(bad.replaced as f64, 0)
            );
        }
        if self.world.size > 1 {
            out += &self.peers_line();
        }
        if let Some(checksum) = self.checksum {
            let _ = writeln!(out, "checksum of all samples {}", checksum.text());
        }
        out += if self.order_ok {
            "every epoch was in the expected order\n"
        } else {
            "the order was NOT the expected one\n"
        };
        out
    }

    fn peers_line(&self) -> String {
        let (JobWorld { rank, size }, peers) = (self.world, &self.engine.peers);
        format!(
            "rank {rank} of {size}: served {} to peers and pushed {} to them; {} of {} peers are \
             down\n",
            bytes(peers.served.bytes),
            bytes(peers.pushed.bytes),
            peers.down,
            peers.nodes,
        )
    }

    fn row(&self, epoch: &EpochReport) -> Vec<String> {
        let engine = &epoch.engine;
        let per_second = epoch.bytes as f64 / epoch.seconds.max(f64::MIN_POSITIVE);
        vec![
            (epoch.epoch + 1).to_string(),
            seconds(epoch.seconds),
            format!("{}/s", bytes(per_second as u64)),
            percent((self.stall_seconds(epoch) / epoch.seconds.max(f64::MIN_POSITIVE)).min(1.0)),
            grouped(epoch.samples as f64, 0),
            bytes(epoch.bytes),
            bytes(engine.operations.bytes),
            bytes(self.cache_bytes(engine, false)),
            bytes(self.cache_bytes(engine, true)),
            bytes(engine.ring.bytes),
        ]
    }
}

fn tier_json(cache: &CacheArg, tier: &TierSnapshot) -> Value {
    json!({
        "name": tier.name,
        "kind": if cache.directory.is_some() { "disk" } else { "ram" },
        "capacity": cache.capacity.0,
        "samples": tier.hits(),
        "bytes": tier.bytes(),
        "lent_bytes": tier.lent.bytes,
        "misses": tier.misses,
        "damaged": tier.damaged,
        "puts": {
            "stored": tier.puts.stored,
            "present": tier.puts.present,
            "full": tier.puts.full,
            "refused": tier.puts.refused,
        },
        "read_us": quantiles(&tier.read_us),
    })
}

fn quantiles(times: &HistogramSnapshot) -> Value {
    json!({ "p50": times.quantile(0.5), "p99": times.quantile(0.99), "max": times.max })
}
