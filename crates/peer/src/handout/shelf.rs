//! What a rank hands out: the bill, and pieces of the block as far as it has them.

use std::collections::BTreeSet;
use std::sync::{PoisonError, Weak};
use std::time::Duration;

use belady_data::source::Source;
use belady_data::sync::{Condvar, Mutex, lock};

use super::bill::Bill;
use crate::bulk::{here, piece_range};
use crate::desk::Serve;
use crate::transport::{Notice, Push, Reply, Request, Taken};
use crate::{NodeId, SampleId};

/// How long a rank 0 that cannot open the dataset waits until all others know.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a rank hands out.
#[derive(Debug, Default)]
pub struct Shelf {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bill: Option<Vec<u8>>,
    block: Block,
    /// Ranks that have the bill.
    known_to: BTreeSet<NodeId>,
}

#[derive(Debug, Default)]
pub enum Block {
    #[default]
    Nothing,
    /// As far as it has come, and how long it will be.
    Coming(Vec<u8>, usize),
    There(Weak<dyn Source>),
}

impl Shelf {
    pub fn offer(&self, bill: &Bill, block: Block) {
        let mut state = lock(&self.state);
        state.bill = Some(bill.to_bytes());
        state.block = block;
    }

    pub fn wait_until_known(&self, others: u32) {
        let state = lock(&self.state);
        let unknown = |state: &mut State| state.known_to.len() < others as usize;
        let waited = self.told.wait_timeout_while(state, FAREWELL, unknown);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes in what comes next of the block.
    pub fn extend(&self, pieces: &[Vec<u8>]) {
        if let Block::Coming(bytes, _) = &mut lock(&self.state).block {
            for piece in pieces {
                bytes.extend_from_slice(piece);
            }
        }
    }

    /// Takes the block out that has come. Until there is a source, others are told "not yet".
    pub fn take_whole(&self) -> Vec<u8> {
        match &mut lock(&self.state).block {
            Block::Coming(bytes, _) => std::mem::take(bytes),
            _ => vec![],
        }
    }

    /// Whether somebody still uses the dataset.
    pub fn is_in_use(&self) -> bool {
        match &lock(&self.state).block {
            Block::There(source) => source.strong_count() > 0,
            _ => false,
        }
    }

    fn reply(&self, from: NodeId, piece: SampleId) -> Reply {
        let mut state = lock(&self.state);
        let Some(at) = piece.checked_sub(1) else {
            let Some(bill) = state.bill.clone() else { return Reply::NotYet };
            state.known_to.insert(from);
            self.told.notify_all();
            return here(&bill);
        };
        let cut = |bytes: &[u8], length: usize| {
            let range = piece_range(at, length);
            if range.is_empty() {
                return Reply::NotHere;
            }
            bytes.get(range).map_or(Reply::NotYet, here)
        };
        match &state.block {
            Block::Nothing if state.bill.is_some() => Reply::NotHere,
            Block::Nothing => Reply::NotYet,
            Block::Coming(bytes, length) => cut(bytes, *length),
            Block::There(source) => match source.upgrade() {
                Some(source) => {
                    drop(state);
                    let bytes = source.catalog().as_bytes();
                    cut(bytes, bytes.len())
                }
                None => Reply::NotHere,
            },
        }
    }
}

impl Serve for Shelf {
    fn get(&self, from: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
        let mut bytes = 0;
        for ask in request.asks {
            let reply = self.reply(from, ask.sample);
            if let Reply::Here { bytes: piece, .. } = &reply {
                bytes += piece.len();
            }
            replies.push(reply);
            if bytes > limit {
                return;
            }
        }
    }

    fn wants(&self, _sample: SampleId, _length: u64) -> bool {
        false
    }

    /// Nobody gives anything here.
    fn put(&self, _from: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        taken.extend(pushes.iter().map(|_| Taken::Refused));
    }

    fn told(&self, _from: NodeId, _notice: &Notice) {}
}
