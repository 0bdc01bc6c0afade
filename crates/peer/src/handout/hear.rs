//! The part of those who receive a listing.

use std::path::Path;
use std::time::{Duration, Instant};

use belady_data::source::{Catalog, Listed, OpenOptions, Source, open_listed};
use belady_data::sync::Arc;

use super::HandoutError;
use super::bill::{self, Bill};
use super::shelf::{Block, Shelf};
use crate::bulk::{PIECE, piece_range};
use crate::desk::Channel;
use crate::transport::{Answer, Ask, Receive, Request, Transport};
use crate::{NodeId, PeerError, SampleId, digest};

/// Pieces asked for at once.
const TOGETHER: usize = 4;
/// Between questions while there is nothing to get.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// One request takes no longer than this.
const REQUEST: Duration = Duration::from_secs(20);
/// A parent from which nothing has come for so long is passed over.
const PARENT_PATIENCE: Duration = Duration::from_secs(5);
/// Rank 0 may be started again within this.
const RANK_0_PATIENCE: Duration = Duration::from_mins(2);
/// Says in the log that it waits.
const SILENCE: Duration = Duration::from_secs(30);

/// The part of those who receive.
pub struct Hearing<'a> {
    pub transport: &'a dyn Transport,
    pub channel: Channel,
    pub shelf: &'a Shelf,
}

/// Pieces that came, in a row.
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

/// What came of a request.
enum Came {
    /// Whole pieces, at least one.
    Some(Vec<Vec<u8>>),
    NotYet,
    NotHere,
    Failed(PeerError),
}

impl Hearing<'_> {
    pub fn receive(
        &self,
        rank: NodeId,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<(Arc<dyn Source>, Listed), HandoutError> {
        let (length, listed) = match self.bill()? {
            Bill::Listed { length, listed } => (length, listed),
            Bill::Failed(sentence) => return Err(HandoutError::Refused(sentence)),
        };
        let broken = |what: &dyn std::fmt::Display| HandoutError::Broken(what.to_string());
        let mut block = vec![];
        block.try_reserve_exact(length).map_err(|_| broken(&"there is no memory for it"))?;
        let bill = Bill::Listed { length, listed: listed.clone() };
        self.shelf.offer(&bill, Block::Coming(block, length));
        self.pieces(length, (rank - 1) / 2)?;
        let block = self.shelf.take_whole();
        let catalog = Catalog::from_bytes(block).map_err(|error| broken(&error))?;
        let source: Arc<dyn Source> = open_listed(path, options, &listed, catalog)?.into();
        self.shelf.offer(&bill, Block::There(Arc::downgrade(&source)));
        Ok((source, listed))
    }

    fn bill(&self) -> Result<Bill, HandoutError> {
        let mut patience = Patience::new();
        loop {
            match self.ask(0, 0..1, |_| bill::LENGTH) {
                Came::Some(bill) => {
                    let bill = bill.first().and_then(|bill| Bill::from_bytes(bill));
                    return bill.ok_or_else(|| HandoutError::Broken("it has no bill".to_owned()));
                }
                Came::NotYet => patience.heard(),
                Came::NotHere => return Err(HandoutError::Gone),
                Came::Failed(error) => patience.fails(error)?,
            }
            patience.pause();
        }
    }

    fn pieces(&self, length: usize, parent: NodeId) -> Result<(), HandoutError> {
        let count = length.div_ceil(PIECE) as u32;
        let (mut from, mut next) = (parent, 0);
        let mut patience = Patience::new();
        while next < count {
            let asked = next..count.min(next + TOGETHER as u32);
            match self.ask(from, asked.start + 1..asked.end + 1, |piece| {
                piece_range(piece - 1, length).len()
            }) {
                Came::Some(pieces) => {
                    next += pieces.len() as u32;
                    self.shelf.extend(&pieces);
                    patience = Patience::new();
                    continue;
                }
                _ if from != 0 && patience.since.elapsed() >= PARENT_PATIENCE => from = 0,
                Came::NotHere | Came::Failed(_) if from != 0 => from = 0,
                Came::NotYet => patience.heard(),
                Came::NotHere => return Err(HandoutError::Gone),
                Came::Failed(error) => patience.fails(error)?,
            }
            patience.pause();
        }
        Ok(())
    }

    /// Asks for pieces, whose lengths are known.
    fn ask(
        &self,
        from: NodeId,
        pieces: std::ops::Range<SampleId>,
        length: impl Fn(SampleId) -> usize,
    ) -> Came {
        let asks: Vec<Ask> = pieces.map(|sample| Ask { sample, last_use: false }).collect();
        let bytes = asks.iter().map(|ask| vec![0; length(ask.sample)]).collect();
        let mut into = Pieces { bytes, answers: vec![None; asks.len()] };
        let request = Request { channel: self.channel, epoch: 0, asks: &asks };
        let got = self.transport.get(from, &request, Instant::now() + REQUEST, &mut into);
        let whole = |(bytes, answer): (Vec<u8>, &Option<Answer>)| match answer {
            Some(Answer::Here { digest: right, .. }) if digest(&bytes) == *right => Some(bytes),
            _ => None,
        };
        // In a row from the first on; what is damaged is asked for again.
        let row: Vec<_> = into.bytes.into_iter().zip(&into.answers).map_while(whole).collect();
        match (into.answers[0], got) {
            _ if !row.is_empty() => Came::Some(row),
            (_, Err(error)) => Came::Failed(error),
            (Some(Answer::NotHere), _) => Came::NotHere,
            _ => Came::NotYet,
        }
    }
}

/// How long one has waited for something, and how long one goes on.
struct Patience {
    since: Instant,
    /// Rank 0 has not answered since.
    failing: Option<Instant>,
    pause: Duration,
    said: Instant,
}

impl Patience {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, failing: None, pause: FIRST_PAUSE, said: now }
    }

    fn heard(&mut self) {
        self.failing = None;
    }

    fn fails(&mut self, error: PeerError) -> Result<(), HandoutError> {
        let since = *self.failing.get_or_insert_with(Instant::now);
        if error.is_final() || since.elapsed() >= RANK_0_PATIENCE {
            return Err(HandoutError::Unreachable(error));
        }
        Ok(())
    }

    fn pause(&mut self) {
        if self.said.elapsed() >= SILENCE {
            self.said = Instant::now();
            let seconds = self.since.elapsed().as_secs();
            tracing::info!("waiting for rank 0 to list the dataset, for {seconds} s now");
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
