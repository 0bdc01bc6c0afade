//! One node: joins, consumes as a training would, checks everything, and reports its status.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use belady_control::model::Bytes;
use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{Batch, Engine, EngineConfig, PeerPatience, TierConfig};
use belady_peer::rendezvous::directory;
use belady_peer::rendezvous::interface::Bind;
use belady_peer::tcp::{Address, MachineId};
use belady_peer::{ADDRESSES, JobWorld, JoinOptions, Rendezvous, RendezvousError, join};
use serde::{Deserialize, Serialize};

use crate::{NodeArgs, job};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The time of training on a batch.
const COMPUTE: Duration = Duration::from_millis(25);
/// The interval of status reports.
const TELL: Duration = Duration::from_millis(25);
/// The limit of a call to a peer, and of a wait for one.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// No batch takes longer, whatever happens: the patience for an epoch to begin, for samples, for
/// other nodes to load the step, and calls that time out, on a busy machine.
const HANG: Duration = Duration::from_secs(20);

/// The status of a node: a line in a file, for the process that injects faults.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Vitals {
    pub life: u32,
    /// Epochs that were delivered correctly.
    pub epochs: u32,
    pub done: bool,
    pub longest_wait_ms: u64,
    /// Counters of faults that the node has met.
    pub failures: u64,
    pub damaged: u64,
    pub tier_damaged: u64,
    pub puts_refused: u64,
    pub down: u64,
    pub from_source: u64,
    pub from_peers: u64,
}

/// A rendezvous that replaces the addresses of peers by those of their proxies.
#[derive(Debug)]
struct Through {
    inner: Arc<dyn Rendezvous>,
    args: NodeArgs,
}

impl Rendezvous for Through {
    fn world(&self) -> JobWorld {
        self.inner.world()
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        if name != ADDRESSES {
            return self.inner.exchange(name, mine);
        }
        let port = Address::from_bytes(mine).map_or(0, |address| address.tcp.port());
        let file = self.args.directory.join(format!("port.{}", self.args.rank));
        write(&file, &port.to_string())
            .map_err(|error| RendezvousError::Other(error.to_string()))?;
        self.inner.exchange(name, mine)?;
        let proxied = |&port: &u16| {
            // Newer than anything that the peer itself reports.
            let (incarnation, tcp) = (u64::MAX, (LOOPBACK, port).into());
            Address { incarnation, tcp, unix: None, machine: MachineId::UNKNOWN }.to_bytes()
        };
        Ok(self.args.proxies.iter().map(proxied).collect())
    }

    fn key(&self) -> Option<belady_peer::JobKey> {
        self.inner.key()
    }
}

pub fn take_part(args: &NodeArgs) -> anyhow::Result<()> {
    let world = JobWorld { rank: args.rank, size: job::NODES };
    let inner = directory::start(
        &args.directory,
        directory::DirectoryOptions {
            world,
            job: "chaos".into(),
            key: None,
            limit: Duration::from_mins(1),
            listen: Some(LOOPBACK),
        },
    )?;
    let meet = Arc::new(Through { inner, args: args.clone() });
    let bind = Some(Bind::Address(LOOPBACK));
    let cluster = join(meet, JoinOptions { bind, unix: false, ..JoinOptions::default() })?;
    let source = job::source();
    let (memory, disk) = job::capacities(&source);
    let engine = Engine::new(EngineConfig {
        threads: Some(2),
        tiers: vec![
            TierConfig::Ram { capacity: Bytes(memory) },
            TierConfig::Disk { directory: args.disk.clone(), capacity: Bytes(disk) },
        ],
        peers: Some(Arc::new(cluster)),
        peer_patience: PeerPatience { answer: PATIENCE, wait: PATIENCE },
        ..EngineConfig::default()
    })?;
    let mut loader = engine.start(&job::config(&source, args.seed, args.epochs))?;
    let stream = job::stream(args.seed)?;
    let mut vitals = Vitals { life: args.life, ..Vitals::default() };
    let mut told = Instant::now();
    let mut expected = stream.epoch(0);
    let mut next = (0, 0);
    loop {
        let asked = Instant::now();
        let Some(batch) = loader.next_batch()? else { break };
        let waited = asked.elapsed();
        vitals.longest_wait_ms = vitals.longest_wait_ms.max(waited.as_millis() as u64);
        ensure!(waited < HANG, "a batch has taken {waited:?}");
        let step = batch.step();
        ensure!((step.epoch, step.iteration) == next, "{step:?} came instead of {next:?}");
        check(&batch, &source, &expected, args.rank)?;
        drop(batch);
        next.1 += 1;
        if next.1 == expected.iterations() {
            next = (next.0 + 1, 0);
            vitals.epochs = next.0;
            expected = stream.epoch(next.0);
        }
        std::thread::sleep(COMPUTE);
        if told.elapsed() >= TELL {
            tell(args, &mut vitals, &engine.metrics().snapshot())?;
            told = Instant::now();
        }
    }
    ensure!(next == (args.epochs, 0), "the run ended at {next:?}");
    vitals.done = true;
    tell(args, &mut vitals, &engine.metrics().snapshot())?;
    // Serves until it is told to end.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

/// Checks the samples, their order and their bytes.
fn check(
    batch: &Batch,
    source: &belady_data::source::Synthetic,
    order: &belady_control::sampler::EpochOrder,
    rank: u32,
) -> anyhow::Result<()> {
    let step = batch.step();
    let got = batch.iter().map(|sample| sample.id);
    ensure!(got.eq(order.batch(rank, step.iteration)), "wrong samples in {step:?}");
    for sample in batch.iter() {
        ensure!(source.verify(sample.id, sample.bytes()), "wrong bytes of sample {}", sample.id);
    }
    Ok(())
}

fn tell(args: &NodeArgs, vitals: &mut Vitals, now: &MetricsSnapshot) -> anyhow::Result<()> {
    vitals.failures = now.peers.failures;
    vitals.damaged = now.peers.damaged;
    vitals.down = now.peers.down;
    vitals.from_source = now.source.samples;
    vitals.from_peers = now.peers.read.samples;
    // The second tier is the disk.
    if let Some(disk) = now.tiers.get(1) {
        vitals.tier_damaged = disk.damaged;
        vitals.puts_refused = disk.puts.refused + disk.puts.full;
    }
    let file = args.directory.join(format!("vitals.{}", args.rank));
    write(&file, &serde_json::to_string(vitals)?).context("cannot tell how it is")
}

/// Writes a file as a whole or not at all.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let new = file.with_added_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, file)
}
