//! Samples that an epoch uses again soon, where they are drawn with replacement.
//!
//! What an epoch leaves for the next one is in place when all nodes are done with it
//! ([`belady_peer::protocol::ledger`]). What a step keeps for a later step of the same epoch is in place
//! when the first of them has ended on all nodes, which is a few messages after it has ended here. The
//! later batch is loaded ahead, perhaps before that: then the sample is not there yet, and is looked for
//! again rather than read from the source once more.

use belady_control::sampler::EpochOrder;
use belady_data::sync::{Arc, Mutex, lock};

use crate::parcel::{Item, Parcel};
use crate::run::Run;

/// A step is over on other nodes, and what it gives has come, before so many steps more are over here.
const JUST_OVER: u32 = 2;
/// How often a sample is looked for once all steps before its own are over here: for about 30 ms.
const LOOKS: u32 = 5;
/// Pauses between looks do not grow beyond that of the fourth, 8 ms: steps may be short.
const LONGEST: u32 = 4;

/// The orders of the epochs that are staged: by number, the latest last.
#[derive(Debug, Default)]
pub struct Orders(Mutex<Vec<(u32, Arc<EpochOrder>)>>);

impl Orders {
    /// An epoch begins to be staged, while the one before it may not be over.
    pub fn begin(&self, epoch: u32, order: &Arc<EpochOrder>) {
        let mut orders = lock(&self.0);
        orders.retain(|&(other, _)| other + 1 == epoch);
        orders.push((epoch, order.clone()));
    }

    /// Whether an epoch may use a sample more than once.
    pub fn may_repeat(&self, epoch: u32) -> bool {
        self.of(epoch).is_some_and(|order| order.may_repeat())
    }

    fn of(&self, epoch: u32) -> Option<Arc<EpochOrder>> {
        lock(&self.0).iter().find(|(other, _)| *other == epoch).map(|(_, order)| order.clone())
    }
}

/// Whether a step before the batch's own may still bring a sample that is not where it should be; then the
/// number of the pause before it is looked for again.
pub fn may_come(run: &Run, parcel: &Parcel, item: &Item, looked: u32) -> Option<u32> {
    let peers = run.peers.as_ref().filter(|peers| peers.in_step)?;
    let step = parcel.block.step();
    let order = peers.orders.of(step.epoch)?;
    let first = lock(&run.in_order).front().map_or(parcel.sequence, |first| first.sequence);
    let go_on = parcel.sequence.saturating_sub(first) as u32;
    let used_within = |steps: u32| {
        order.repeats_in(item.sample, step.iteration.saturating_sub(steps)..step.iteration)
    };
    if used_within(go_on) {
        return Some(looked.min(LONGEST));
    }
    if !used_within(go_on.saturating_add(JUST_OVER)) {
        return None;
    }
    let look = item.look_late();
    (look <= LOOKS).then_some(look.min(LONGEST))
}
