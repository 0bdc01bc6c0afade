//! An exchange among all ranks: a collective operation of MPI's, and nobody waits for it but the
//! one who called it.
//!
//! MPI tells collectives apart by their order alone. So everybody first says what it has come for
//! and how much it brings. If that differs, all see it, and all give up in the same place.

use std::sync::PoisonError;
use std::time::Duration;

use belady_data::sync::{Arc, Condvar, Mutex, lock};

use super::comm::{Comm, Gathered};
use super::flights::{Flights, Result};
use crate::MeetError;

/// As much as is spread at once: MPI counts in 31 bits.
const PART: usize = 1 << 30;
/// The name and the length that each brings, eight bytes each.
const CARD: usize = 16;

/// Which exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All get what all give.
    Exchange,
    /// All get what rank 0 gives.
    Broadcast,
}

/// What came of it: one element for each rank, or one.
pub type Outcome = std::result::Result<Vec<Vec<u8>>, MeetError>;

/// Where the one who called it waits.
#[derive(Debug, Default)]
pub struct Waiting {
    outcome: Mutex<Option<Outcome>>,
    changed: Condvar,
}

impl Waiting {
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

/// An exchange that was ordered.
#[derive(Debug)]
pub struct Gathering {
    name: String,
    kind: Kind,
    mine: Vec<u8>,
    waiting: Arc<Waiting>,
}

impl Gathering {
    pub fn new(name: &str, kind: Kind, mine: &[u8]) -> (Self, Arc<Waiting>) {
        let waiting = Arc::<Waiting>::default();
        let (name, mine) = (name.to_owned(), mine.to_vec());
        (Self { name, kind, mine, waiting: waiting.clone() }, waiting)
    }

    /// What tells it apart from others.
    fn purpose(&self) -> u64 {
        crate::digest(format!("{:?} {}", self.kind, self.name).as_bytes())
    }

    /// What each brings, as its card says.
    fn lengths(&self, cards: &[u8]) -> std::result::Result<Vec<usize>, MeetError> {
        let mut lengths = vec![];
        for (rank, card) in cards.as_chunks::<CARD>().0.iter().enumerate() {
            let (purpose, length) = card.split_at(CARD / 2);
            if purpose != self.purpose().to_le_bytes() {
                return Err(MeetError::Other(format!(
                    "rank {rank} came to exchange something else than {:?}: every rank must run the \
                     same program with the same version of belady",
                    self.name
                )));
            }
            let length = length.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
            lengths.push(length as usize);
        }
        let total: usize = lengths.iter().sum();
        if self.kind == Kind::Exchange && total > i32::MAX as usize {
            return Err(MeetError::Other(format!(
                "the ranks give {total} bytes of {:?}, and MPI exchanges 2 GiB at most",
                self.name
            )));
        }
        Ok(lengths)
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        // Nobody waits for what will not be.
        lock(&self.waiting.outcome).get_or_insert_with(|| {
            Err(MeetError::Other(format!("MPI has ended before {:?} was exchanged", self.name)))
        });
        self.waiting.changed.notify_one();
    }
}

/// The exchange that is under way.
#[derive(Debug)]
pub struct Underway {
    gathering: Gathering,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Cards(Flights<Gathered>),
    Exchange {
        lengths: Vec<usize>,
        flights: Flights<Gathered>,
    },
    /// So far it was spread.
    Broadcast {
        done: usize,
        flights: Flights<Vec<u8>>,
    },
}

impl Underway {
    pub fn begin(gathering: Gathering, comm: &Comm) -> Result<Self> {
        let mut card = gathering.purpose().to_le_bytes().to_vec();
        card.extend((gathering.mine.len() as u64).to_le_bytes());
        let mut flights = Flights::default();
        comm.gather_all(card, &vec![CARD; comm.size() as usize], &mut flights)?;
        Ok(Self { gathering, stage: Stage::Cards(flights) })
    }

    /// Goes on as far as it can; true at the end.
    pub fn advance(&mut self, comm: &Comm) -> Result<bool> {
        let outcome = match &mut self.stage {
            Stage::Cards(flights) => {
                let Some(cards) = landed(flights)? else { return Ok(false) };
                match self.gathering.lengths(&cards.got) {
                    Ok(lengths) => return self.bring(lengths, comm),
                    Err(error) => Err(error),
                }
            }
            Stage::Exchange { lengths, flights } => {
                let Some(gathered) = landed(flights)? else { return Ok(false) };
                let mut rest = &gathered.got[..];
                Ok(lengths
                    .iter()
                    .filter_map(|&length| rest.split_off(..length))
                    .map(Vec::from)
                    .collect())
            }
            Stage::Broadcast { done, flights } => {
                let Some(all) = landed(flights)? else { return Ok(false) };
                if *done < all.len() {
                    let part = *done..all.len().min(*done + PART);
                    *done = part.end;
                    comm.spread(all, part, flights)?;
                    return Ok(false);
                }
                Ok(vec![all])
            }
        };
        self.gathering.waiting.settle(outcome);
        Ok(true)
    }

    /// Everybody knows how much comes.
    fn bring(&mut self, lengths: Vec<usize>, comm: &Comm) -> Result<bool> {
        let mut mine = std::mem::take(&mut self.gathering.mine);
        if self.gathering.kind == Kind::Exchange {
            let mut flights = Flights::default();
            comm.gather_all(mine, &lengths, &mut flights)?;
            self.stage = Stage::Exchange { lengths, flights };
        } else {
            let mut flights = Flights::default();
            mine.resize(lengths[0], 0);
            let part = 0..mine.len().min(PART);
            let done = part.end;
            comm.spread(mine, part, &mut flights)?;
            self.stage = Stage::Broadcast { done, flights };
        }
        Ok(false)
    }
}

fn landed<T>(flights: &mut Flights<T>) -> Result<Option<T>> {
    let mut landed = None;
    flights.landed(|one| landed = Some(one))?;
    Ok(landed)
}
