//! Serves a listing: the header, and the pieces of the block that have arrived.

use std::collections::BTreeSet;
use std::sync::{PoisonError, Weak};
use std::time::Duration;

use belady_base::sync::{Condvar, Mutex, lock};
use belady_data::source::Source;

use super::header::ListingHeader;
use crate::bulk::{here, piece_range};
use crate::dispatcher::Handler;
use crate::message::{GetReply, GetRequest, Notice, Push, PushOutcome};
use crate::{NodeId, SampleId};

/// How long a rank 0 that cannot open the dataset waits until all others know.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves a listing to other ranks.
#[derive(Debug, Default)]
pub struct ListingServer {
    state: Mutex<ServerState>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct ServerState {
    header: Option<Vec<u8>>,
    block: ListingBlock,
    /// Ranks that have received the header.
    known_to: BTreeSet<NodeId>,
}

#[derive(Debug, Default)]
pub enum ListingBlock {
    #[default]
    Nothing,
    /// The bytes so far, and how many there will be.
    Coming(Vec<u8>, usize),
    There(Weak<dyn Source>),
}

impl ListingServer {
    pub fn offer(&self, header: &ListingHeader, block: ListingBlock) {
        let mut state = lock(&self.state);
        state.header = Some(header.to_bytes());
        state.block = block;
    }

    pub fn wait_until_known(&self, others: u32) {
        let state = lock(&self.state);
        let unknown = |state: &mut ServerState| state.known_to.len() < others as usize;
        let waited = self.told.wait_timeout_while(state, FAREWELL, unknown);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Appends pieces to the block.
    pub fn extend(&self, pieces: &[Vec<u8>]) {
        if let ListingBlock::Coming(bytes, _) = &mut lock(&self.state).block {
            for piece in pieces {
                bytes.extend_from_slice(piece);
            }
        }
    }

    /// Takes the complete block out. Until the source is set, other ranks get "not yet".
    pub fn take_whole(&self) -> Vec<u8> {
        match &mut lock(&self.state).block {
            ListingBlock::Coming(bytes, _) => std::mem::take(bytes),
            _ => vec![],
        }
    }

    /// Returns whether this process still uses the dataset.
    pub fn is_in_use(&self) -> bool {
        match &lock(&self.state).block {
            ListingBlock::There(source) => source.strong_count() > 0,
            _ => false,
        }
    }

    fn reply(&self, from: NodeId, piece: SampleId) -> GetReply {
        let mut state = lock(&self.state);
        let Some(at) = piece.checked_sub(1) else {
            let Some(header) = state.header.clone() else { return GetReply::NotYet };
            state.known_to.insert(from);
            self.told.notify_all();
            return here(&header);
        };
        let cut = |bytes: &[u8], length: usize| {
            let range = piece_range(at, length);
            if range.is_empty() {
                return GetReply::NotHere;
            }
            bytes.get(range).map_or(GetReply::NotYet, here)
        };
        match &state.block {
            ListingBlock::Nothing if state.header.is_some() => GetReply::NotHere,
            ListingBlock::Nothing => GetReply::NotYet,
            ListingBlock::Coming(bytes, length) => cut(bytes, *length),
            ListingBlock::There(source) => match source.upgrade() {
                Some(source) => {
                    drop(state);
                    let bytes = source.catalog().as_bytes();
                    cut(bytes, bytes.len())
                }
                None => GetReply::NotHere,
            },
        }
    }
}

impl Handler for ListingServer {
    fn get(
        &self,
        from: NodeId,
        request: &GetRequest<'_>,
        limit: usize,
        replies: &mut Vec<GetReply>,
    ) {
        let mut bytes = 0;
        for ask in request.asks {
            let reply = self.reply(from, ask.sample);
            if let GetReply::Here { bytes: piece, .. } = &reply {
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

    fn put(&self, _from: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        taken.extend(pushes.iter().map(|_| PushOutcome::Refused));
    }

    fn told(&self, _from: NodeId, _notice: &Notice) {}
}
