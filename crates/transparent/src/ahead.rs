//! Fetching what the program will open, if the order is known: what the prefetcher of [`crate::order`] sees
//! and does here.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belady_board::{Dataset, Kind};

use crate::config::JobConfig;
use crate::copy::Outcome as Copied;
use crate::error::PrepareError;
use crate::level::{Level, Stay};
use crate::order::{
    Ahead, Hands, Notes, Order, Outcome, Plan, Prefetcher, PrefetcherConfig, Sight, Standing,
    Tally, Wish, window_room,
};
use crate::shelf::Shelf;
use crate::tasks::Tasks;

/// How far in front of the reader: more than the program's own threads read at once, and less than would
/// push useful copies aside.
const FILES: usize = 1024;
/// What was learnt lies beside the copies.
const LEARNT: &str = "order";

/// The order that is to be followed or learnt; None if neither was asked for.
pub fn plan(
    config: &JobConfig,
    dataset: &Dataset<'_>,
    levels: &[Level],
) -> Result<Option<Plan>, PrepareError> {
    if let Some(path) = &config.order {
        let order = Order::read(path, dataset).map_err(PrepareError::Order)?;
        return Ok(Some(Plan::Follow(order)));
    }
    let earlier = || learnt_path(levels).and_then(|path| Order::load(&path, dataset));
    Ok(config.learn.then(|| Plan::Learn(earlier())))
}

/// In the first level that outlives the run.
fn learnt_path(levels: &[Level]) -> Option<PathBuf> {
    let level = levels.iter().find(|level| !level.is_private)?;
    level.files.parent().map(|home: &Path| home.join(LEARNT))
}

/// Sets part of the first level aside for what has no room to stay.
pub fn set_window(levels: &[Level]) {
    if let Some(first) = levels.first() {
        first.set_window(window_room(first.used.quota()));
    }
}

pub fn start(
    plan: Plan,
    threads: usize,
    shelf: &Arc<Shelf>,
    tasks: &Arc<Tasks>,
) -> std::io::Result<Prefetcher> {
    let room = shelf.levels.first().map_or(0, |first| window_room(first.used.quota()));
    let config = PrefetcherConfig {
        plan,
        ahead: Ahead { files: FILES, bytes: room },
        fetches: threads,
        room,
    };
    let world = World { shelf: Arc::clone(shelf), tasks: Arc::clone(tasks) };
    Prefetcher::start(config, Arc::new(world))
}

/// At the end of a run: what was learnt is kept for the next one.
pub fn finish(prefetcher: Prefetcher, levels: &[Level]) -> Tally {
    let summary = prefetcher.stop();
    if let (Some(order), Some(path)) = (summary.learnt, learnt_path(levels))
        && let Err(error) = order.save(&path)
    {
        tracing::warn!(
            "the order that was learnt is not kept: {} cannot be written: {error}",
            path.display()
        );
    }
    summary.tally
}

/// A file that the prefetcher asked for, by a thread that copies.
pub fn fetch(shelf: &Shelf, notes: &Notes, name: &[u8], wish: Wish, buffer: &mut Vec<u8>) {
    let stay = match wish {
        Wish::Keep => Stay::Kept,
        Wish::Pass { .. } => Stay::Passing,
    };
    let copied = shelf.fetch(name, stay, buffer);
    let bytes = shelf.board.find(shelf.board.key(name)).map(|entry| entry.facts().size);
    let outcome = match (copied, bytes) {
        // It has come to stay meanwhile: it is not the window's.
        (Copied::Present, _) if stay == Stay::Passing => Outcome::Failed,
        (Copied::Copied | Copied::Present, Some(bytes)) => Outcome::Kept { bytes },
        (Copied::Refused, Some(bytes)) => Outcome::NoRoom { bytes },
        (Copied::Failed, _) => Outcome::Absent,
        _ => Outcome::Failed,
    };
    notes.fetched(name, outcome);
}

#[derive(Debug)]
struct World {
    shelf: Arc<Shelf>,
    tasks: Arc<Tasks>,
}

impl Sight for World {
    fn all_opens(&self) -> u64 {
        let head = self.shelf.board.head();
        let levels = (0..self.shelf.levels.len()).map(Some).chain([None]);
        levels.map(|level| head.totals(level).opens).sum()
    }

    fn opens(&self, record: u32) -> Option<u32> {
        (record < self.shelf.records()).then(|| self.shelf.board.entry(record).opens())
    }

    fn name(&self, record: u32) -> Option<Box<[u8]>> {
        self.shelf.name(record)
    }

    fn standing(&self, name: &[u8]) -> Standing {
        match self.shelf.board.find(self.shelf.board.key(name)) {
            None => Standing::Unknown,
            Some(entry) => match entry.kind() {
                Kind::Copy { .. } => Standing::HasCopy,
                Kind::Refused => Standing::Refused { bytes: entry.facts().size },
            },
        }
    }
}

impl Hands for World {
    fn fetch(&self, name: &[u8], wish: Wish) {
        self.tasks.fetch_ahead(name.into(), wish);
    }

    fn let_go(&self, name: &[u8]) -> Option<OwnedFd> {
        self.shelf.let_go(name)
    }

    fn freed(&self, name: &[u8], bytes: u64) {
        self.shelf.freed(name, bytes);
    }
}
