//! Connects the prefetcher of [`crate::order`] with the copy store and the task queue.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belady_board::{DatasetPaths, RecordKind};

use crate::config::TransparentConfig;
use crate::copy::CopyResult;
use crate::copy_store::CopyStore;
use crate::error::PrepareError;
use crate::level::{CopyLevel, CopyLifetime};
use crate::order::{
    BoardView, CopyFetcher, CopyState, FetchKind, FetchOutcome, FileOrder, Lookahead,
    OrderPrefetcher, OrderSource, PrefetchEvents, PrefetchTally, PrefetcherConfig, window_bytes,
};
use crate::task_queue::TaskQueue;

/// The lookahead in files: more than the program's threads read at once.
const FILES: usize = 1024;
/// The file of the learnt order, beside the copies.
const LEARNT: &str = "order";

/// Returns the order to follow or learn; None if neither is configured.
pub fn plan(
    config: &TransparentConfig,
    dataset: &DatasetPaths<'_>,
    levels: &[CopyLevel],
) -> Result<Option<OrderSource>, PrepareError> {
    if let Some(path) = &config.order {
        let order = FileOrder::read(path, dataset).map_err(PrepareError::Order)?;
        return Ok(Some(OrderSource::Follow(order)));
    }
    let earlier = || learnt_path(levels).and_then(|path| FileOrder::load(&path, dataset));
    Ok(config.learn.then(|| OrderSource::Learn(earlier())))
}

/// Returns the path of the learnt order, on the first level that outlives the run.
fn learnt_path(levels: &[CopyLevel]) -> Option<PathBuf> {
    let level = levels.iter().find(|level| !level.is_private)?;
    level.files.parent().map(|home: &Path| home.join(LEARNT))
}

/// Reserves the window on the first level.
pub fn set_window(levels: &[CopyLevel]) {
    if let Some(first) = levels.first() {
        first.set_window(window_bytes(first.used.quota()));
    }
}

/// Starts the prefetcher.
pub fn start(
    order: OrderSource,
    threads: usize,
    store: &Arc<CopyStore>,
    tasks: &Arc<TaskQueue>,
) -> std::io::Result<OrderPrefetcher> {
    let window = store.levels.first().map_or(0, |first| window_bytes(first.used.quota()));
    let config = PrefetcherConfig {
        order,
        lookahead: Lookahead { files: FILES, bytes: window },
        fetches: threads,
        window,
    };
    let access = StoreAccess { store: Arc::clone(store), tasks: Arc::clone(tasks) };
    OrderPrefetcher::start(config, Arc::new(access))
}

/// Stops the prefetcher, and saves the learnt order for the next run.
pub fn finish(prefetcher: OrderPrefetcher, levels: &[CopyLevel]) -> PrefetchTally {
    let summary = prefetcher.stop();
    if let (Some(order), Some(path)) = (summary.learnt, learnt_path(levels))
        && let Err(error) = order.save(&path)
    {
        tracing::warn!("cannot save the learnt order to {}: {error}", path.display());
    }
    summary.tally
}

/// Makes a copy for the prefetcher, in a copying thread.
pub fn fetch(
    store: &CopyStore,
    events: &PrefetchEvents,
    name: &[u8],
    kind: FetchKind,
    buffer: &mut Vec<u8>,
) {
    let lifetime = match kind {
        FetchKind::Keep => CopyLifetime::Kept,
        FetchKind::Transient { .. } => CopyLifetime::Transient,
    };
    let copied = store.fetch(name, lifetime, buffer);
    let bytes = store.find(name).map(|entry| entry.stat().size);
    let outcome = match (copied, bytes) {
        // Another thread has made a copy to keep meanwhile, which is not part of the window.
        (CopyResult::Present, _) if lifetime == CopyLifetime::Transient => FetchOutcome::Failed,
        (CopyResult::Copied | CopyResult::Present, Some(bytes)) => FetchOutcome::Kept { bytes },
        (CopyResult::Refused, Some(bytes)) => FetchOutcome::NoSpace { bytes },
        (CopyResult::Failed, _) => FetchOutcome::Absent,
        _ => FetchOutcome::Failed,
    };
    events.fetched(name, outcome);
}

/// The prefetcher's access to the copy store and the task queue.
#[derive(Debug)]
struct StoreAccess {
    store: Arc<CopyStore>,
    tasks: Arc<TaskQueue>,
}

impl BoardView for StoreAccess {
    fn all_opens(&self) -> u64 {
        let header = self.store.board.header();
        let levels = (0..self.store.levels.len()).map(Some).chain([None]);
        levels.map(|level| header.totals(level).opens).sum()
    }

    fn opens(&self, record: u32) -> Option<u32> {
        (record < self.store.record_count()).then(|| self.store.board.entry(record).opens())
    }

    fn name(&self, record: u32) -> Option<Box<[u8]>> {
        self.store.name(record)
    }

    fn copy_state(&self, name: &[u8]) -> CopyState {
        match self.store.find(name) {
            None => CopyState::Unknown,
            Some(entry) => match entry.kind() {
                RecordKind::Copy { .. } => CopyState::HasCopy,
                RecordKind::Refused => CopyState::Refused { bytes: entry.stat().size },
            },
        }
    }
}

impl CopyFetcher for StoreAccess {
    fn fetch(&self, name: &[u8], kind: FetchKind) {
        self.tasks.fetch_ahead(name.into(), kind);
    }

    fn evict(&self, name: &[u8]) -> Option<OwnedFd> {
        self.store.evict(name)
    }

    fn release(&self, name: &[u8], bytes: u64) {
        self.store.release_transient(name, bytes);
    }
}
