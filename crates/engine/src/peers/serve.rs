//! Serves other nodes. Gives no sample of a file that this node has not compared with its listing.

use std::time::Duration;

use belady_base::SampleId;
use belady_base::memory::Memory;
use belady_base::sync::{Arc, lock};
use belady_data::source::Version;
use belady_data::tier::Get;
use belady_peer::PinnedSample;
use belady_peer::{
    Ask, GetReply, GetRequest, Handler, NodeId, Notice, Payload, Push, PushOutcome, TierId,
};

use super::Peers;
use super::tier_workers::Storage;
use crate::metrics::{Moved, PeerEvent};
use crate::pending::RetireStage;
use crate::tiers::Lender;

/// How long a call waits for comparisons with the listing. The peer waits for the answer to its
/// whole request, and considers a node that is silent for seconds dead.
const COMPARING: Duration = Duration::from_millis(200);

/// Handles the requests of other nodes for a job.
#[derive(Debug)]
pub struct RequestHandler {
    peers: Arc<Peers>,
    /// Told when other nodes have filled more steps.
    retire: Arc<dyn RetireStage>,
}

impl RequestHandler {
    pub fn new(peers: Arc<Peers>, retire: Arc<dyn RetireStage>) -> Self {
        Self { peers, retire }
    }
}

impl Handler for RequestHandler {
    fn get(
        &self,
        from: NodeId,
        request: &GetRequest<'_>,
        limit: usize,
        replies: &mut Vec<GetReply>,
    ) {
        let (peers, job) = (&self.peers, &self.peers.job);
        peers.heard_from(from);
        let epoch = request.epoch;
        // Nodes are at most one epoch apart.
        job.epochs.begin_comparing(epoch.min(job.epochs.begun()), &*job.source);
        let changed = Arc::new(peers.compare(request.asks.iter().map(|ask| ask.sample)));
        // One disk at a time: if the call hangs, it is clear which disk did.
        let disk = request.asks.iter().find_map(|ask| peers.disk_of(ask.sample));
        let found = disk.and_then(|disk| {
            let (asks, changed) = (request.asks.to_vec(), changed.clone());
            let patience = peers.disk_patience();
            peers.call_storage(Storage::Tier(disk), patience, move |peers| {
                peers.answer(epoch, &asks, &changed, limit, Some(disk))
            })
        });
        let found =
            found.unwrap_or_else(|| peers.answer(epoch, request.asks, &changed, limit, None));
        let here = found.iter().filter_map(|reply| match reply {
            GetReply::Here { bytes, .. } => Some(bytes.len() as u64),
            _ => None,
        });
        let (samples, bytes) = here.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        job.metrics.peers().moved(Moved::Served, samples, bytes);
        replies.extend(found);
    }

    fn wants(&self, sample: SampleId, length: u64) -> bool {
        let job = &self.peers.job;
        sample < job.sizes.len() && job.size(sample) == length
    }

    fn put(&self, from: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        let peers = &self.peers;
        peers.heard_from(from);
        taken.extend(pushes.iter().map(|push| {
            // From a node that is behind: the epoch that would use the sample is over here.
            let over = peers.is_over(push.epoch.saturating_add(1));
            if over { PushOutcome::Refused } else { peers.accept(push) }
        }));
    }

    fn told(&self, from: NodeId, notice: &Notice) {
        let (peers, job) = (&self.peers, &self.peers.job);
        peers.heard_from(from);
        match notice {
            Notice::Loaded { steps } => {
                if peers.set_filled(from, *steps) {
                    self.retire.clone().advance();
                }
            }
            Notice::EpochDone { epoch } => lock(&peers.status).epochs.done(from, *epoch),
            Notice::Left => peers.has_left(from),
            Notice::Released { epoch, samples } => {
                for &sample in samples.iter().filter(|&&sample| sample < job.sizes.len()) {
                    if let Some(tier) = job.tiers.find(sample) {
                        peers.release_here(tier, sample, *epoch);
                    }
                }
            }
        }
    }

    fn heard_of(&self, peer: NodeId, incarnation: u64) {
        lock(&self.peers.status).seen(peer, incarnation);
        self.peers.heard_from(peer);
    }
}

impl Peers {
    /// Returns the tier that holds a sample, if a call of it may never return.
    fn disk_of(&self, sample: SampleId) -> Option<TierId> {
        let tiers = &self.job.tiers;
        let tier = tiers.find(sample).filter(|_| sample < self.job.sizes.len())?;
        tiers.may_hang(tier).then_some(tier)
    }

    /// Compares the files of samples that this node holds, where that was not done yet, and returns
    /// those that have changed or cannot be compared. Waits for a while only, because the source
    /// may hang; samples that are not compared by then are not given.
    fn compare(self: &Arc<Self>, samples: impl Iterator<Item = SampleId>) -> Vec<SampleId> {
        let job = &self.job;
        let due = |sample: &SampleId| {
            *sample < job.sizes.len()
                && !job.source.is_compared(*sample)
                && job.tiers.find(*sample).is_some()
        };
        let samples: Vec<SampleId> = samples.filter(due).collect();
        if samples.is_empty() {
            return vec![];
        }
        let changed = self.call_storage(Storage::Source, COMPARING, move |peers| {
            let has_changed = |&sample: &SampleId| peers.job.source.compare(sample).is_err();
            samples.into_iter().filter(has_changed).collect()
        });
        changed.unwrap_or_default()
    }

    /// Replies to a request from memory and from one disk. Samples on other disks, and samples in
    /// `changed`, are not here.
    fn answer(
        &self,
        epoch: u32,
        asks: &[Ask],
        changed: &[SampleId],
        limit: usize,
        disk: Option<TierId>,
    ) -> Vec<GetReply> {
        let job = &self.job;
        let mut replies = Vec::with_capacity(asks.len());
        let mut bytes = 0;
        for ask in asks {
            if ask.sample >= job.sizes.len() || changed.contains(&ask.sample) {
                replies.push(GetReply::NotHere);
                continue;
            }
            if !job.source.is_compared(ask.sample) && job.tiers.find(ask.sample).is_some() {
                replies.push(GetReply::NotYet);
                continue;
            }
            let mut found = self.find(ask.sample, disk);
            if found.is_none() && !self.may_come(epoch) {
                // It may have been pushed since the lookup, together with the notice that all is
                // here.
                found = self.find(ask.sample, disk);
            }
            replies.push(match found {
                Some((tier, version, found)) => {
                    if ask.last_use {
                        self.release_here(tier, ask.sample, epoch);
                    } else {
                        self.stays(tier, ask.sample, epoch);
                    }
                    bytes += found.len();
                    let of = Version { changed: version, ..job.source.version(ask.sample) };
                    let digest = self.digests.of(ask.sample, of, &found);
                    GetReply::Here { bytes: found, digest, version }
                }
                None => self.not_here(ask.sample, epoch),
            });
            if bytes > limit {
                break;
            }
        }
        replies
    }

    /// Returns a sample that this node holds, lent if possible, and the version of its file.
    fn find(&self, sample: SampleId, disk: Option<TierId>) -> Option<(TierId, i64, Payload)> {
        let job = &self.job;
        let tier = job.tiers.find(sample).filter(|_| job.source.is_compared(sample))?;
        let version = job.tiers.current_version(tier, sample)?;
        if job.tiers.may_hang(tier) && disk != Some(tier) {
            return None;
        }
        let station = job.tiers.lender(tier)?.tier;
        if let Some(lent) = PinnedSample::pin(&station, sample) {
            return Some((tier, version, Payload::Pinned(lent)));
        }
        let mut bytes = Memory::try_zeroed(job.size(sample) as usize)?;
        match station.get(sample, &mut bytes) {
            Get::Hit => Some((tier, version, Payload::Copied(bytes))),
            Get::Miss => None,
            Get::Damaged => {
                job.metrics.damaged(tier);
                None
            }
        }
    }

    fn not_here(&self, sample: SampleId, epoch: u32) -> GetReply {
        match self.disk_of(sample) {
            Some(disk) if self.tier_workers.is_late(Storage::Tier(disk)) => GetReply::NotHere,
            // On another disk than the one that was read, or it has just come: the peer asks again.
            Some(_) => GetReply::Busy,
            None if self.may_come(epoch) => GetReply::NotYet,
            None => GetReply::NotHere,
        }
    }

    /// Stores a sample that another node has pushed, after checking it.
    fn accept(self: &Arc<Self>, push: &Push<'_>) -> PushOutcome {
        let job = &self.job;
        let known = push.sample < job.sizes.len()
            && job.size(push.sample) == push.bytes.len() as u64
            && push.tier > 0
            && usize::from(push.tier) <= job.tiers.len();
        if !known {
            return PushOutcome::Refused;
        }
        let mut version = job.source.version(push.sample);
        if version.changed != push.version && !job.source.is_compared(push.sample) {
            // The peer has compared the file more recently than this node.
            let sample = push.sample;
            let compared = self.call_storage(Storage::Source, COMPARING, move |peers| {
                peers.job.source.compare(sample).is_ok()
            });
            if compared.is_none() {
                return PushOutcome::NoSpace;
            }
            version = job.source.version(sample);
        }
        if version.changed != push.version {
            return PushOutcome::Refused;
        }
        if !self.digests.check(push.sample, version, push.bytes, push.digest) {
            job.metrics.peers().count(PeerEvent::Damaged, 1);
            return PushOutcome::Refused;
        }
        self.evict_if_wrong(push);
        let taken = self.put_pushed(push);
        if taken == PushOutcome::Stored {
            job.metrics.peers().moved(Moved::Taken, 1, push.bytes.len() as u64);
        }
        taken
    }

    /// Evicts a copy in memory that differs from a pushed one, which has been checked.
    fn evict_if_wrong(&self, push: &Push<'_>) {
        let tiers = &self.job.tiers;
        for tier in tiers.ids() {
            // Evicts a copy of another version first, which is not damaged.
            tiers.current_version(tier, push.sample);
            let wrong = |lender: Lender| {
                let lent = PinnedSample::pin(&lender.tier, push.sample);
                lent.is_some_and(|lent| *Payload::Pinned(lent) != *push.bytes)
            };
            // Copies on disk have checksums.
            if tiers.holds(tier, push.sample) && tiers.lender(tier).is_some_and(wrong) {
                self.job.metrics.damaged(tier);
                tiers.evict(tier, push.sample);
            }
        }
    }

    /// Puts a pushed sample into its tier. A put into a disk gets a copy of the bytes: if it hangs,
    /// the peer's memory is needed for the next push.
    fn put_pushed(self: &Arc<Self>, push: &Push<'_>) -> PushOutcome {
        let &Push { sample, tier, epoch, bytes, version, .. } = push;
        if !self.job.tiers.may_hang(tier) {
            return self.put(tier, (sample, version), bytes, epoch);
        }
        if self.tier_workers.is_late(Storage::Tier(tier)) {
            return PushOutcome::NoSpace;
        }
        let Some(mut own) = Memory::try_zeroed(bytes.len()) else { return PushOutcome::NoSpace };
        own.copy_from_slice(bytes);
        let put = self.call_storage(Storage::Tier(tier), self.disk_patience(), move |peers| {
            peers.put(tier, (sample, version), &own, epoch)
        });
        put.unwrap_or(PushOutcome::NoSpace)
    }
}
