//! What this node does for others. It gives nothing of a file that it has not compared itself.

use std::time::{Duration, Instant};

use belady_data::SampleId;
use belady_data::memory::Memory;
use belady_data::sync::{Arc, lock};
use belady_data::tier::Get;
use belady_peer::transport::Lent;
use belady_peer::{NodeId, Notice, Payload, Push, Reply, Request, Serve, Taken, TierId};

use super::{Peers, fetch, pace};
use crate::cache::Lender;
use crate::keep;
use crate::metrics::{Moved, PeerEvent};
use crate::run::Run;

/// How long a call may take over comparing files with their listing. Whoever asks waits for the answer
/// to all that it has asked for, and takes a peer that is silent for seconds for a dead one.
const COMPARING: Duration = Duration::from_millis(200);

/// A job at the desk.
#[derive(Debug)]
pub struct Counter(pub Arc<Run>);

impl Serve for Counter {
    fn get(&self, from: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
        let run = &self.0;
        let Some(peers) = &run.peers else { return };
        fetch::heard(run, peers, from);
        let (mut samples, mut bytes) = (0, 0);
        let began = Instant::now();
        for ask in request.asks {
            if ask.sample >= run.sizes.len() {
                replies.push(Reply::NotHere);
                continue;
            }
            if !run.source.is_compared(ask.sample) {
                if began.elapsed() > COMPARING {
                    replies.push(Reply::NotYet);
                    continue;
                }
                if run.source.compare(ask.sample).is_err() {
                    replies.push(Reply::NotHere);
                    continue;
                }
            }
            let mut found = find(run, ask.sample);
            if found.is_none() && !peers.may_come(request.epoch) {
                // It may have come since it was looked for, and with it the word that all has.
                found = find(run, ask.sample);
            }
            let reply = match found {
                Some((tier, found)) => {
                    if ask.last_use {
                        peers.release_here(tier, ask.sample, request.epoch);
                    } else {
                        peers.stays(tier, ask.sample, request.epoch);
                    }
                    samples += 1;
                    bytes += found.len();
                    Reply::Here { digest: peers.digests.of(ask.sample, &found), bytes: found }
                }
                None => not_here(peers, request.epoch),
            };
            replies.push(reply);
            if bytes > limit {
                break;
            }
        }
        if samples > 0 {
            run.metrics.peers().moved(Moved::Served, samples, bytes as u64);
        }
    }

    fn put(&self, from: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        let run = &self.0;
        let Some(peers) = &run.peers else { return };
        fetch::heard(run, peers, from);
        taken.extend(pushes.iter().map(|push| take(run, peers, push)));
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
            Notice::Released { epoch, samples } => {
                for &sample in samples.iter().filter(|&&sample| sample < run.sizes.len()) {
                    if let Some(tier) = run.cache.find(sample) {
                        peers.release_here(tier, sample, *epoch);
                    }
                }
            }
        }
    }

    fn heard_of(&self, peer: NodeId) {
        if let Some(peers) = &self.0.peers {
            fetch::heard(&self.0, peers, peer);
        }
    }
}

/// A sample that this node holds, lent where that can be.
fn find(run: &Run, sample: SampleId) -> Option<(TierId, Payload)> {
    let tier = run.cache.find(sample).filter(|&tier| run.cache.believes(tier, sample))?;
    let station = run.cache.lender(tier)?.tier;
    if let Some(lent) = Lent::pin(&station, sample) {
        return Some((tier, Payload::Lent(lent)));
    }
    let mut bytes = Memory::try_zeroed(run.size(sample) as usize)?;
    match station.get(sample, &mut bytes) {
        Get::Hit => Some((tier, Payload::Copied(bytes))),
        Get::Miss => None,
        Get::Damaged => {
            run.metrics.damaged(tier);
            None
        }
    }
}

fn not_here(peers: &Peers, epoch: u32) -> Reply {
    if peers.may_come(epoch) { Reply::NotYet } else { Reply::NotHere }
}

/// A copy that is here already, and is not what it should be, goes: what comes is right.
fn drop_if_wrong(run: &Run, push: &Push<'_>) {
    for tier in run.cache.ids() {
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

fn take(run: &Run, peers: &Peers, push: &Push<'_>) -> Taken {
    let known = push.sample < run.sizes.len()
        && run.size(push.sample) == push.bytes.len() as u64
        && push.tier > 0
        && usize::from(push.tier) <= run.cache.len();
    if !known {
        return Taken::Refused;
    }
    if !peers.digests.check(push.sample, push.bytes, push.digest) {
        run.metrics.peers().count(PeerEvent::Damaged, 1);
        return Taken::Refused;
    }
    drop_if_wrong(run, push);
    let taken = peers.put(run, push.tier, push.sample, push.bytes, push.epoch);
    if taken == Taken::Stored {
        run.metrics.peers().moved(Moved::Taken, 1, push.bytes.len() as u64);
    }
    taken
}
