//! What this node does for others. It gives nothing of a file that it has not compared itself.

use std::time::Duration;

use belady_data::SampleId;
use belady_data::memory::Memory;
use belady_data::source::Version;
use belady_data::sync::{Arc, lock};
use belady_data::tier::Get;
use belady_peer::transport::Lent;
use belady_peer::{Ask, NodeId, Notice, Payload, Push, Reply, Request, Serve, Taken, TierId};

use super::{Peers, fetch, hands, pace};
use crate::cache::Lender;
use crate::keep;
use crate::metrics::{Moved, PeerEvent};
use crate::parcel::SOURCE;
use crate::run::Run;

/// How long a call waits for files to be compared with their listing. The peer waits for the answer to
/// all that it has asked for, and takes a node that is silent for seconds for a dead one.
const COMPARING: Duration = Duration::from_millis(200);

/// A job at the desk.
#[derive(Debug)]
pub struct Counter(pub Arc<Run>);

impl Serve for Counter {
    fn get(&self, from: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
        let run = &self.0;
        let Some(peers) = &run.peers else { return };
        fetch::heard(run, peers, from);
        let epoch = request.epoch;
        // Ranks are at most one epoch apart.
        run.compare_for(epoch.min(run.epochs_begun()));
        let changed = Arc::new(compare(run, request.asks.iter().map(|ask| ask.sample)));
        // One disk at a time: if it hangs, it is known which.
        let disk = request.asks.iter().find_map(|ask| disk_of(run, ask.sample));
        let found = disk.and_then(|disk| {
            let (asks, changed) = (request.asks.to_vec(), changed.clone());
            let answer = move |run: &Run| answer(run, epoch, &asks, &changed, limit, Some(disk));
            hands::call(run, disk, peers.disk_patience(), answer)
        });
        let found =
            found.unwrap_or_else(|| answer(run, epoch, request.asks, &changed, limit, None));
        let here = found.iter().filter_map(|reply| match reply {
            Reply::Here { bytes, .. } => Some(bytes.len() as u64),
            _ => None,
        });
        let (samples, bytes) = here.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        run.metrics.peers().moved(Moved::Served, samples, bytes);
        replies.extend(found);
    }

    fn wants(&self, sample: SampleId, length: u64) -> bool {
        sample < self.0.sizes.len() && self.0.size(sample) == length
    }

    fn put(&self, from: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        let run = &self.0;
        let Some(peers) = &run.peers else { return };
        fetch::heard(run, peers, from);
        taken.extend(pushes.iter().map(|push| {
            // Of one that is behind: the epoch that it brings it for is over here.
            let over = peers.is_over(push.epoch.saturating_add(1));
            if over { Taken::Refused } else { take(run, peers, push) }
        }));
    }

    fn told(&self, from: NodeId, notice: &Notice) {
        let run = &self.0;
        let Some(peers) = &run.peers else { return };
        fetch::heard(run, peers, from);
        match notice {
            Notice::Loaded { steps } => {
                if pace::told(run, from, *steps) {
                    keep::advance(run);
                }
            }
            Notice::EpochDone { epoch } => lock(&peers.talk).ledger.done(from, *epoch),
            Notice::Left => peers.has_left(from, &run.metrics),
            Notice::Released { epoch, samples } => {
                for &sample in samples.iter().filter(|&&sample| sample < run.sizes.len()) {
                    if let Some(tier) = run.cache.find(sample) {
                        peers.release_here(tier, sample, *epoch);
                    }
                }
            }
        }
    }

    fn heard_of(&self, peer: NodeId, incarnation: u64) {
        if let Some(peers) = &self.0.peers {
            lock(&peers.talk).heard_of(peer, incarnation);
            fetch::heard(&self.0, peers, peer);
        }
    }
}

/// The tier that holds a sample, if a call of it may never return.
fn disk_of(run: &Run, sample: SampleId) -> Option<TierId> {
    let tier = run.cache.find(sample).filter(|_| sample < run.sizes.len())?;
    run.cache.may_hang(tier).then_some(tier)
}

/// Compares the files of samples that this node holds, where that was not done yet, and says which have
/// changed or cannot be looked at. Waits for that for a while only: the source may hang, and is not to
/// blame the disk for it. What is not compared then is not given.
fn compare(run: &Arc<Run>, samples: impl Iterator<Item = SampleId>) -> Vec<SampleId> {
    let of_those = |sample: &SampleId| {
        *sample < run.sizes.len()
            && !run.source.is_compared(*sample)
            && run.cache.find(*sample).is_some()
    };
    let samples: Vec<SampleId> = samples.filter(of_those).collect();
    if samples.is_empty() {
        return vec![];
    }
    let has_changed = |run: &Run, sample: SampleId| run.source.compare(sample).is_err();
    let changed = hands::call(run, SOURCE, COMPARING, move |run| {
        samples.into_iter().filter(|&sample| has_changed(run, sample)).collect()
    });
    changed.unwrap_or_default()
}

/// Replies to what is asked for, from memory and from one disk; what other disks hold is not here, and
/// what is in `changed` is not either.
fn answer(
    run: &Run,
    epoch: u32,
    asks: &[Ask],
    changed: &[SampleId],
    limit: usize,
    disk: Option<TierId>,
) -> Vec<Reply> {
    let Some(peers) = &run.peers else { return vec![] };
    let mut replies = Vec::with_capacity(asks.len());
    let mut bytes = 0;
    for ask in asks {
        if ask.sample >= run.sizes.len() || changed.contains(&ask.sample) {
            replies.push(Reply::NotHere);
            continue;
        }
        if !run.source.is_compared(ask.sample) && run.cache.find(ask.sample).is_some() {
            replies.push(Reply::NotYet);
            continue;
        }
        let mut found = find(run, ask.sample, disk);
        if found.is_none() && !peers.may_come(epoch) {
            // It may have come since it was looked for, and with it the word that all has.
            found = find(run, ask.sample, disk);
        }
        replies.push(match found {
            Some((tier, version, found)) => {
                if ask.last_use {
                    peers.release_here(tier, ask.sample, epoch);
                } else {
                    peers.stays(tier, ask.sample, epoch);
                }
                bytes += found.len();
                let of = Version { changed: version, ..run.source.version(ask.sample) };
                let digest = peers.digests.of(ask.sample, of, &found);
                Reply::Here { bytes: found, digest, version }
            }
            None => not_here(run, peers, ask.sample, epoch),
        });
        if bytes > limit {
            break;
        }
    }
    replies
}

/// A sample that this node holds, lent where that can be, and the version of its file that it is of.
fn find(run: &Run, sample: SampleId, disk: Option<TierId>) -> Option<(TierId, i64, Payload)> {
    let tier = run.cache.find(sample).filter(|_| run.source.is_compared(sample))?;
    let version = run.cache.believed(tier, sample)?;
    if run.cache.may_hang(tier) && disk != Some(tier) {
        return None;
    }
    let station = run.cache.lender(tier)?.tier;
    if let Some(lent) = Lent::pin(&station, sample) {
        return Some((tier, version, Payload::Lent(lent)));
    }
    let mut bytes = Memory::try_zeroed(run.size(sample) as usize)?;
    match station.get(sample, &mut bytes) {
        Get::Hit => Some((tier, version, Payload::Copied(bytes))),
        Get::Miss => None,
        Get::Damaged => {
            run.metrics.damaged(tier);
            None
        }
    }
}

fn not_here(run: &Run, peers: &Peers, sample: SampleId, epoch: u32) -> Reply {
    match disk_of(run, sample) {
        Some(disk) if peers.hands.is_late(disk) => Reply::NotHere,
        // Of another disk than the one that was asked, or it has just come: the peer asks again.
        Some(_) => Reply::Busy,
        None if peers.may_come(epoch) => Reply::NotYet,
        None => Reply::NotHere,
    }
}

/// A copy that is here already, and is not what it should be, goes: what comes is right.
fn drop_if_wrong(run: &Run, push: &Push<'_>) {
    for tier in run.cache.ids() {
        // One of another version goes first, and is not damaged.
        run.cache.believed(tier, push.sample);
        let held = run.cache.tier(tier).is_some_and(|tier| tier.holds(push.sample));
        let wrong = |lender: Lender| {
            let lent = Lent::pin(&lender.tier, push.sample);
            lent.is_some_and(|lent| *Payload::Lent(lent) != *push.bytes)
        };
        // What a disk holds has a checksum of its own.
        if held && run.cache.lender(tier).is_some_and(wrong) {
            run.metrics.damaged(tier);
            run.cache.evict(tier, push.sample);
        }
    }
}

/// What a disk is given is copied: if it hangs, the peer's memory is needed for the next push.
fn put(run: &Arc<Run>, peers: &Peers, push: &Push<'_>) -> Taken {
    let &Push { sample, tier, epoch, bytes, version, .. } = push;
    if !run.cache.may_hang(tier) {
        return peers.put(run, tier, (sample, version), bytes, epoch);
    }
    if peers.hands.is_late(tier) {
        return Taken::NoRoom;
    }
    let Some(mut own) = Memory::try_zeroed(bytes.len()) else { return Taken::NoRoom };
    own.copy_from_slice(bytes);
    let put = hands::call(run, tier, peers.disk_patience(), move |run| match &run.peers {
        Some(peers) => peers.put(run, tier, (sample, version), &own, epoch),
        None => Taken::Refused,
    });
    put.unwrap_or(Taken::NoRoom)
}

fn take(run: &Arc<Run>, peers: &Peers, push: &Push<'_>) -> Taken {
    let known = push.sample < run.sizes.len()
        && run.size(push.sample) == push.bytes.len() as u64
        && push.tier > 0
        && usize::from(push.tier) <= run.cache.len();
    if !known {
        return Taken::Refused;
    }
    let mut version = run.source.version(push.sample);
    if version.changed != push.version && !run.source.is_compared(push.sample) {
        // The peer has seen the file since this node has.
        let sample = push.sample;
        let compare = move |run: &Run| run.source.compare(sample).is_ok();
        if hands::call(run, SOURCE, COMPARING, compare).is_none() {
            return Taken::NoRoom;
        }
        version = run.source.version(sample);
    }
    if version.changed != push.version {
        return Taken::Refused;
    }
    if !peers.digests.check(push.sample, version, push.bytes, push.digest) {
        run.metrics.peers().count(PeerEvent::Damaged, 1);
        return Taken::Refused;
    }
    drop_if_wrong(run, push);
    let taken = put(run, peers, push);
    if taken == Taken::Stored {
        run.metrics.peers().moved(Moved::Taken, 1, push.bytes.len() as u64);
    }
    taken
}
