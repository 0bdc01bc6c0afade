//! One sample of a pending batch.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, Ordering};

use belady_base::SampleId;
use belady_control::model::online::{LOCAL, REMOTE, SOURCE};
use belady_control::policy::{NodeId, TierId};

/// Where the plan takes a sample from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOrigin {
    /// The dataset's storage.
    Source,
    /// A tier of this node. A warm entry is there without the policy's knowledge.
    Tier { tier: TierId, is_warm: bool },
    /// Another node, and its tier in which the policy believes the sample to be and to stay. If the
    /// node does not have it, the sample is read from the source.
    Peer { node: NodeId, tier: Option<TierId> },
}

/// One sample of a batch.
#[derive(Debug)]
pub struct BatchItem {
    pub sample: SampleId,
    pub origin: SampleOrigin,
    /// The copy at the origin is evicted when the step retires.
    pub last_use: bool,
    /// The tier to keep the sample in; 0 for none.
    keep: AtomicU8,
    /// The version of the file that the bytes are of, once they have arrived.
    version: AtomicI64,
    /// Lookups in the tier where another node was to put it.
    lookups: AtomicU32,
    /// It was found after a lookup had missed it.
    came_late: AtomicBool,
    /// Lookups after all earlier steps had retired here.
    late_lookups: AtomicU32,
    /// The item leads an in-flight read.
    leads: AtomicBool,
    /// The item leads a read that other jobs may use.
    leads_shared: AtomicBool,
    /// A read that was given up may still write to the slot.
    slot_lost: AtomicBool,
}

impl BatchItem {
    /// Returns the class of places that the sample is planned to come from.
    pub fn class(&self) -> usize {
        match self.origin {
            SampleOrigin::Source => SOURCE,
            SampleOrigin::Tier { .. } => LOCAL,
            SampleOrigin::Peer { .. } => REMOTE,
        }
    }

    pub fn new(
        sample: SampleId,
        origin: SampleOrigin,
        last_use: bool,
        keep: Option<TierId>,
    ) -> Self {
        Self {
            sample,
            origin,
            last_use,
            keep: AtomicU8::new(keep.unwrap_or(0)),
            version: AtomicI64::new(0),
            lookups: AtomicU32::new(0),
            came_late: AtomicBool::new(false),
            late_lookups: AtomicU32::new(0),
            leads: AtomicBool::new(false),
            leads_shared: AtomicBool::new(false),
            slot_lost: AtomicBool::new(false),
        }
    }

    pub fn from_source(sample: SampleId, keep: Option<TierId>) -> Self {
        Self::new(sample, SampleOrigin::Source, false, keep)
    }

    /// Takes a sample from a tier in which the policy holds it.
    pub fn from_tier(sample: SampleId, tier: TierId, last_use: bool, keep: Option<TierId>) -> Self {
        Self::new(sample, SampleOrigin::Tier { tier, is_warm: false }, last_use, keep)
    }

    /// Takes a sample from a tier that holds it without the policy's knowledge.
    pub fn from_warm_entry(sample: SampleId, tier: TierId, keep: Option<TierId>) -> Self {
        Self::new(sample, SampleOrigin::Tier { tier, is_warm: true }, false, keep)
    }

    pub fn from_peer(
        sample: SampleId,
        (node, tier): (NodeId, Option<TierId>),
        last_use: bool,
        keep: Option<TierId>,
    ) -> Self {
        Self::new(sample, SampleOrigin::Peer { node, tier }, last_use, keep)
    }

    /// Returns the tier of this node that the sample comes from, if it does.
    pub fn tier(&self) -> Option<TierId> {
        match self.origin {
            SampleOrigin::Tier { tier, .. } => Some(tier),
            SampleOrigin::Source | SampleOrigin::Peer { .. } => None,
        }
    }

    /// Returns the node that the sample comes from, if it is another one.
    pub fn peer(&self) -> Option<NodeId> {
        match self.origin {
            SampleOrigin::Peer { node, .. } => Some(node),
            SampleOrigin::Source | SampleOrigin::Tier { .. } => None,
        }
    }

    /// Returns the tier of this node that keeps the sample.
    pub fn keep(&self) -> Option<TierId> {
        Some(self.keep.load(Ordering::Acquire)).filter(|&tier| tier > 0)
    }

    pub fn set_keep(&self, tier: Option<TierId>) {
        self.keep.store(tier.unwrap_or(0), Ordering::Release);
    }

    pub fn version(&self) -> i64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn set_version(&self, version: i64) {
        self.version.store(version, Ordering::Release);
    }

    /// Counts a lookup, and returns how many there were.
    pub fn count_lookup(&self) -> u32 {
        self.lookups.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts a lookup after all earlier steps have retired here, and returns how many there were.
    pub fn count_late_lookup(&self) -> u32 {
        self.late_lookups.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes that the sample was found after a lookup had missed it; returns whether that is new.
    pub fn set_came_late(&self) -> bool {
        !self.came_late.swap(true, Ordering::Relaxed)
    }

    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    pub fn set_leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Release);
    }

    pub fn leads_shared(&self) -> bool {
        self.leads_shared.load(Ordering::Acquire)
    }

    pub fn set_leads_shared(&self, leads: bool) {
        self.leads_shared.store(leads, Ordering::Release);
    }

    pub fn slot_is_lost(&self) -> bool {
        self.slot_lost.load(Ordering::Acquire)
    }

    pub fn lose_slot(&self) {
        self.slot_lost.store(true, Ordering::Release);
    }
}
