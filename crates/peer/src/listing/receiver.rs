//! Receives a listing, on all ranks but 0.

use std::path::Path;
use std::time::{Duration, Instant};

use belady_base::sync::Arc;
use belady_data::source::{Catalog, OpenOptions, SharedListing, Source, open_shared_listing};

use super::ListingError;
use super::header::{self, ListingHeader};
use super::server::{ListingBlock, ListingServer};
use crate::bulk::{PIECE, piece_range};
use crate::message::{Answer, Ask, Channel, GetRequest, Receive};
use crate::transport::Transport;
use crate::{NodeId, PeerError, SampleId, digest};

/// Pieces in one request.
const TOGETHER: usize = 4;
/// Pauses between requests while there is nothing to get.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The deadline of one request.
const REQUEST: Duration = Duration::from_secs(20);
/// A parent that has sent nothing for this long is skipped.
const PARENT_PATIENCE: Duration = Duration::from_secs(5);
/// A restart of rank 0 may take this long.
const RANK_0_PATIENCE: Duration = Duration::from_mins(2);
/// The interval of log lines about a wait.
const SILENCE: Duration = Duration::from_secs(30);

/// Receives a listing.
pub struct ListingReceiver<'a> {
    pub transport: &'a dyn Transport,
    pub channel: Channel,
    pub server: &'a ListingServer,
}

/// The pieces of a request, with the answers so far.
struct Pieces {
    bytes: Vec<Vec<u8>>,
    answers: Vec<Option<Answer>>,
}

impl Receive for Pieces {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[at]
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        self.answers[at] = Some(answer);
    }
}

/// The outcome of a request.
enum PiecesOutcome {
    /// Intact pieces, at least one.
    Some(Vec<Vec<u8>>),
    NotYet,
    NotHere,
    Failed(PeerError),
}

impl ListingReceiver<'_> {
    pub fn receive(
        &self,
        rank: NodeId,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<(Arc<dyn Source>, SharedListing), ListingError> {
        let (length, listed) = match self.header()? {
            ListingHeader::Listed { length, listed } => (length, listed),
            ListingHeader::Failed(sentence) => return Err(ListingError::Refused(sentence)),
        };
        let broken = |what: &dyn std::fmt::Display| ListingError::Broken(what.to_string());
        let mut block = vec![];
        block.try_reserve_exact(length).map_err(|_| broken(&"there is no memory for it"))?;
        let header = ListingHeader::Listed { length, listed: listed.clone() };
        self.server.offer(&header, ListingBlock::Coming(block, length));
        self.pieces(length, (rank - 1) / 2)?;
        let block = self.server.take_whole();
        let catalog = Catalog::from_bytes(block).map_err(|error| broken(&error))?;
        let source: Arc<dyn Source> = open_shared_listing(path, options, &listed, catalog)?.into();
        self.server.offer(&header, ListingBlock::There(Arc::downgrade(&source)));
        Ok((source, listed))
    }

    fn header(&self) -> Result<ListingHeader, ListingError> {
        let mut patience = ReceiveWait::new();
        loop {
            match self.ask(0, 0..1, |_| header::LENGTH) {
                PiecesOutcome::Some(header) => {
                    let header =
                        header.first().and_then(|header| ListingHeader::from_bytes(header));
                    return header
                        .ok_or_else(|| ListingError::Broken("it has no header".to_owned()));
                }
                PiecesOutcome::NotYet => patience.heard(),
                PiecesOutcome::NotHere => return Err(ListingError::Gone),
                PiecesOutcome::Failed(error) => patience.fails(error)?,
            }
            patience.pause();
        }
    }

    fn pieces(&self, length: usize, parent: NodeId) -> Result<(), ListingError> {
        let count = length.div_ceil(PIECE) as u32;
        let (mut from, mut next) = (parent, 0);
        let mut patience = ReceiveWait::new();
        while next < count {
            let asked = next..count.min(next + TOGETHER as u32);
            match self.ask(from, asked.start + 1..asked.end + 1, |piece| {
                piece_range(piece - 1, length).len()
            }) {
                PiecesOutcome::Some(pieces) => {
                    next += pieces.len() as u32;
                    self.server.extend(&pieces);
                    patience = ReceiveWait::new();
                    continue;
                }
                _ if from != 0 && patience.since.elapsed() >= PARENT_PATIENCE => from = 0,
                PiecesOutcome::NotHere | PiecesOutcome::Failed(_) if from != 0 => from = 0,
                PiecesOutcome::NotYet => patience.heard(),
                PiecesOutcome::NotHere => return Err(ListingError::Gone),
                PiecesOutcome::Failed(error) => patience.fails(error)?,
            }
            patience.pause();
        }
        Ok(())
    }

    /// Asks for pieces of known lengths.
    fn ask(
        &self,
        from: NodeId,
        pieces: std::ops::Range<SampleId>,
        length: impl Fn(SampleId) -> usize,
    ) -> PiecesOutcome {
        let asks: Vec<Ask> = pieces.map(|sample| Ask { sample, last_use: false }).collect();
        let bytes = asks.iter().map(|ask| vec![0; length(ask.sample)]).collect();
        let mut into = Pieces { bytes, answers: vec![None; asks.len()] };
        let request = GetRequest { channel: self.channel, epoch: 0, asks: &asks };
        let got = self.transport.get(from, &request, Instant::now() + REQUEST, &mut into);
        let whole = |(bytes, answer): (Vec<u8>, &Option<Answer>)| match answer {
            Some(Answer::Here { digest: right, .. }) if digest(&bytes) == *right => Some(bytes),
            _ => None,
        };
        // In sequence from the first on; a damaged piece is asked for again.
        let row: Vec<_> = into.bytes.into_iter().zip(&into.answers).map_while(whole).collect();
        match (into.answers[0], got) {
            _ if !row.is_empty() => PiecesOutcome::Some(row),
            (_, Err(error)) => PiecesOutcome::Failed(error),
            (Some(Answer::NotHere), _) => PiecesOutcome::NotHere,
            _ => PiecesOutcome::NotYet,
        }
    }
}

/// How long the receiver has waited, and how long it goes on.
struct ReceiveWait {
    since: Instant,
    /// Since when rank 0 has not answered.
    failing: Option<Instant>,
    pause: Duration,
    said: Instant,
}

impl ReceiveWait {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, failing: None, pause: FIRST_PAUSE, said: now }
    }

    fn heard(&mut self) {
        self.failing = None;
    }

    fn fails(&mut self, error: PeerError) -> Result<(), ListingError> {
        let since = *self.failing.get_or_insert_with(Instant::now);
        if error.is_final() || since.elapsed() >= RANK_0_PATIENCE {
            return Err(ListingError::Unreachable(error));
        }
        Ok(())
    }

    fn pause(&mut self) {
        if self.said.elapsed() >= SILENCE {
            self.said = Instant::now();
            let seconds = self.since.elapsed().as_secs();
            tracing::info!("still waiting for rank 0 to list the dataset, after {seconds} s");
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
