//! How a job begins on all nodes: they make sure that it is the same one.

use std::time::Instant;

use belady_control::bits::Bits;
use belady_data::source::Source;
use belady_data::sync::{Arc, Condvar, Mutex};
use belady_peer::agree;
use belady_peer::protocol::claims::Claims;
use belady_peer::protocol::health::Health;
use belady_peer::protocol::ledger::Ledger;
use belady_peer::protocol::pace::Pace;
use belady_peer::{Channel, Cluster};
use serde::{Deserialize, Serialize};

use super::digests::Digests;
use super::give::Outgoing;
use super::notify::Notices;
use super::{Peers, Talk};
use crate::EngineError;
use crate::cache::Cache;
use crate::config::PeerPatience;

/// What every node tells the others.
#[derive(Debug, Serialize, Deserialize)]
pub struct Introduction {
    /// Of each tier, in bytes: plans count on the smallest.
    pub capacities: Vec<u64>,
    /// What its caches hold already, a bit for each sample; empty for nothing.
    pub warm: Vec<u64>,
}

/// What all nodes told.
#[derive(Debug)]
pub struct Gathering {
    pub cluster: Arc<Cluster>,
    pub channel: Channel,
    pub all: Vec<Introduction>,
    /// Of each tier, as plans count on it.
    pub room: Vec<u64>,
}

impl Gathering {
    /// Brings together what all nodes tell of the job that begins, if they agree on the facts.
    pub fn new(
        cluster: &Arc<Cluster>,
        facts: &[(&str, String)],
        mine: &Introduction,
    ) -> Result<Self, EngineError> {
        let channel = cluster.next_channel();
        let name = format!("loader {}", channel.0);
        agree(&*cluster.meet, &name, facts)?;
        let name = format!("{name}, its caches");
        let bytes =
            serde_json::to_vec(mine).map_err(|error| EngineError::Peers(error.to_string()))?;
        let given = cluster.meet.exchange(&name, &bytes)?;
        let all: Vec<Introduction> = given
            .iter()
            .map(|bytes| serde_json::from_slice(bytes))
            .collect::<Result<_, _>>()
            .map_err(|_| EngineError::Peers("a rank runs another version of belady".into()))?;
        let mut gathering = Self { cluster: cluster.clone(), channel, all, room: vec![] };
        gathering.room = gathering.agreed_room(&format!("loader {}, its room", channel.0))?;
        Ok(gathering)
    }

    /// The room that plans count on in each tier: the smallest over all nodes. A node that was started
    /// again, with another room than before, takes what the others count on.
    fn agreed_room(&self, name: &str) -> Result<Vec<u64>, EngineError> {
        let mine = self.smallest();
        let bytes: Vec<u8> = mine.iter().flat_map(|room| room.to_le_bytes()).collect();
        let given = self.cluster.meet.exchange(name, &bytes)?;
        let me = self.cluster.world().rank as usize;
        let theirs = given.iter().enumerate().find(|(rank, _)| *rank != me).map(|(_, room)| room);
        let read = |room: &Vec<u8>| -> Vec<u64> {
            room.chunks_exact(8)
                .map(|room| u64::from_le_bytes(room.try_into().unwrap_or_default()))
                .collect()
        };
        Ok(theirs.map(read).filter(|theirs| theirs.len() == mine.len()).unwrap_or(mine))
    }

    fn smallest(&self) -> Vec<u64> {
        let tiers = self.all.iter().map(|one| one.capacities.len()).min().unwrap_or(0);
        let least =
            |tier: usize| self.all.iter().map(|one| one.capacities[tier]).min().unwrap_or(0);
        (0..tiers).map(least).collect()
    }

    /// `outbox`: bytes that may wait for others to take them. `in_step`: nodes put samples into each
    /// other's tiers.
    pub fn peers(self, samples: u32, outbox: u64, limits: PeerPatience, in_step: bool) -> Peers {
        let world = self.cluster.world();
        let nodes = world.size;
        let bits = |one: &Introduction| Bits::from_words(samples, &one.warm);
        let any_warm = self.all.iter().any(|one| !one.warm.is_empty());
        Peers {
            channel: self.channel,
            me: world.rank,
            nodes,
            limits,
            in_step,
            started: Instant::now(),
            talk: Mutex::new(Talk {
                health: Health::new(nodes),
                ledger: Ledger::new(nodes),
                pace: Pace::new(world.rank, nodes, u64::MAX, limits.wait),
                incarnations: vec![0; nodes as usize],
            }),
            changed: Condvar::new(),
            gates: (0..nodes).map(|_| Mutex::default()).collect(),
            outgoing: Mutex::new(Outgoing::new(nodes, outbox, limits.wait)),
            notices: Mutex::new(Notices::new(nodes)),
            claims: self.room.iter().map(|_| Mutex::new(Claims::new(samples))).collect(),
            digests: Digests::new(samples),
            warm: if any_warm { self.all.iter().map(bits).collect() } else { vec![] },
            cluster: self.cluster,
        }
    }
}

/// What the caches hold at the start.
pub fn warm(cache: &Cache, source: &dyn Source) -> Vec<u64> {
    if cache.status().iter().all(|tier| tier.samples == 0) {
        return vec![];
    }
    let samples = source.catalog().len();
    let mut held = Bits::new(samples);
    for sample in (0..samples).filter(|&sample| cache.find(sample).is_some()) {
        held.insert(sample);
    }
    held.words().to_vec()
}
