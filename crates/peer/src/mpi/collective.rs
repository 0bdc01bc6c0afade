//! An exchange among all ranks, by a collective operation of MPI. Only its caller waits for it.
//!
//! MPI tells collectives apart by their order alone. So every rank first says which exchange it
//! makes and how many bytes it gives. If the exchanges differ, all ranks see it and fail in the
//! same place.

use std::sync::PoisonError;
use std::time::Duration;

use belady_base::sync::{Arc, Condvar, Mutex, lock};

use super::comm::{Comm, Gathered};
use super::pending::{PendingRequests, Result};
use crate::RendezvousError;

/// The most bytes of one broadcast: MPI counts in 31 bits.
const PART: usize = 1 << 30;
/// The purpose and the length that each rank gives, eight bytes each.
const CARD: usize = 16;

/// The kind of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// All ranks get the values of all.
    Exchange,
    /// All ranks get the value of rank 0.
    Broadcast,
}

/// The outcome: one value for each rank, or one.
pub type Outcome = std::result::Result<Vec<Vec<u8>>, RendezvousError>;

/// Where the caller waits.
#[derive(Debug, Default)]
pub struct CollectiveWaiter {
    outcome: Mutex<Option<Outcome>>,
    changed: Condvar,
}

impl CollectiveWaiter {
    fn settle(&self, outcome: Outcome) {
        *lock(&self.outcome) = Some(outcome);
        self.changed.notify_one();
    }

    pub fn wait(&self, limit: Duration) -> Option<Outcome> {
        let outcome = lock(&self.outcome);
        let waited = self.changed.wait_timeout_while(outcome, limit, |outcome| outcome.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// An exchange that a caller has requested.
#[derive(Debug)]
pub struct Collective {
    name: String,
    kind: CollectiveKind,
    mine: Vec<u8>,
    waiting: Arc<CollectiveWaiter>,
}

impl Collective {
    pub fn new(name: &str, kind: CollectiveKind, mine: &[u8]) -> (Self, Arc<CollectiveWaiter>) {
        let waiting = Arc::<CollectiveWaiter>::default();
        let (name, mine) = (name.to_owned(), mine.to_vec());
        (Self { name, kind, mine, waiting: waiting.clone() }, waiting)
    }

    /// Returns what tells it apart from other exchanges.
    fn purpose(&self) -> u64 {
        crate::digest(format!("{:?} {}", self.kind, self.name).as_bytes())
    }

    /// Returns the lengths of all ranks' values, and checks that all make the same exchange.
    fn lengths(&self, cards: &[u8]) -> std::result::Result<Vec<usize>, RendezvousError> {
        let mut lengths = vec![];
        for (rank, card) in cards.as_chunks::<CARD>().0.iter().enumerate() {
            let (purpose, length) = card.split_at(CARD / 2);
            if purpose != self.purpose().to_le_bytes() {
                return Err(RendezvousError::Other(format!(
                    "rank {rank} came to another exchange than {:?}: every rank must run the \
                     same program with the same version of belady",
                    self.name
                )));
            }
            let length = length.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
            lengths.push(length as usize);
        }
        let total: usize = lengths.iter().sum();
        if self.kind == CollectiveKind::Exchange && total > i32::MAX as usize {
            return Err(RendezvousError::Other(format!(
                "the ranks give {total} bytes of {:?}, and MPI exchanges at most 2 GiB",
                self.name
            )));
        }
        Ok(lengths)
    }
}

impl Drop for Collective {
    fn drop(&mut self) {
        // The caller must not wait for an exchange that will not happen.
        lock(&self.waiting.outcome).get_or_insert_with(|| {
            Err(RendezvousError::Other(format!(
                "MPI has ended before {:?} was exchanged",
                self.name
            )))
        });
        self.waiting.changed.notify_one();
    }
}

/// The exchange in progress.
#[derive(Debug)]
pub struct RunningCollective {
    collective: Collective,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Cards(PendingRequests<Gathered>),
    Exchange {
        lengths: Vec<usize>,
        pending: PendingRequests<Gathered>,
    },
    /// How many bytes are broadcast so far.
    Broadcast {
        done: usize,
        pending: PendingRequests<Vec<u8>>,
    },
}

impl RunningCollective {
    pub fn begin(collective: Collective, comm: &Comm) -> Result<Self> {
        let mut card = collective.purpose().to_le_bytes().to_vec();
        card.extend((collective.mine.len() as u64).to_le_bytes());
        let mut pending = PendingRequests::default();
        comm.gather_all(card, &vec![CARD; comm.size() as usize], &mut pending)?;
        Ok(Self { collective, stage: Stage::Cards(pending) })
    }

    /// Makes progress; returns true at the end.
    pub fn advance(&mut self, comm: &Comm) -> Result<bool> {
        let outcome = match &mut self.stage {
            Stage::Cards(pending) => {
                let Some(cards) = completed(pending)? else { return Ok(false) };
                match self.collective.lengths(&cards.got) {
                    Ok(lengths) => return self.bring(lengths, comm),
                    Err(error) => Err(error),
                }
            }
            Stage::Exchange { lengths, pending } => {
                let Some(gathered) = completed(pending)? else { return Ok(false) };
                let mut rest = &gathered.got[..];
                Ok(lengths
                    .iter()
                    .filter_map(|&length| rest.split_off(..length))
                    .map(Vec::from)
                    .collect())
            }
            Stage::Broadcast { done, pending } => {
                let Some(all) = completed(pending)? else { return Ok(false) };
                if *done < all.len() {
                    let part = *done..all.len().min(*done + PART);
                    *done = part.end;
                    comm.spread(all, part, pending)?;
                    return Ok(false);
                }
                Ok(vec![all])
            }
        };
        self.collective.waiting.settle(outcome);
        Ok(true)
    }

    /// Starts the exchange itself, once the lengths are known.
    fn bring(&mut self, lengths: Vec<usize>, comm: &Comm) -> Result<bool> {
        let mut mine = std::mem::take(&mut self.collective.mine);
        if self.collective.kind == CollectiveKind::Exchange {
            let mut pending = PendingRequests::default();
            comm.gather_all(mine, &lengths, &mut pending)?;
            self.stage = Stage::Exchange { lengths, pending };
        } else {
            let mut pending = PendingRequests::default();
            mine.resize(lengths[0], 0);
            let part = 0..mine.len().min(PART);
            let done = part.end;
            comm.spread(mine, part, &mut pending)?;
            self.stage = Stage::Broadcast { done, pending };
        }
        Ok(false)
    }
}

fn completed<T>(pending: &mut PendingRequests<T>) -> Result<Option<T>> {
    let mut completed = None;
    pending.completed(|one| completed = Some(one))?;
    Ok(completed)
}
