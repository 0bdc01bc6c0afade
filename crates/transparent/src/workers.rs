//! The threads of a job: one scans the levels, one receives the program's messages, one hears of
//! changes of the dataset, others copy.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use belady_base::sync::{Mutex, lock};
use belady_board::message::ShimMessage;

use crate::copy_store::{CopyStore, path_of};
use crate::level::CopyLifetime;
use crate::metadata;
use crate::order::{OrderPrefetcher, OrderSource, PrefetchEvents, PrefetchTally};
use crate::prefetch;
use crate::task_queue::{CopyTask, TaskQueue};

/// The size of the pipe for the program's messages.
pub const PIPE_BYTES: usize = 1 << 20;
/// How long the program's start waits for the scan. Copies found later are used from then on.
const SCAN: Duration = Duration::from_secs(1);
/// The shortest time between two removals of dropped copies.
const SWEEP: Duration = Duration::from_millis(50);

/// The state that the threads share.
#[derive(Debug)]
pub struct Workers {
    pub store: Arc<CopyStore>,
    pub tasks: Arc<TaskQueue>,
    /// Receives opened files if an order is followed or learnt.
    events: OnceLock<PrefetchEvents>,
    prefetcher: Mutex<Option<OrderPrefetcher>>,
}

impl Workers {
    pub fn new(store: CopyStore) -> Self {
        Self {
            store: Arc::new(store),
            tasks: Arc::default(),
            events: OnceLock::new(),
            prefetcher: Mutex::new(None),
        }
    }

    /// Starts the threads, and waits for the scan for a short time.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        workers: &Arc<Self>,
        copiers: usize,
        plan: Option<OrderSource>,
        inbox: OwnedFd,
    ) -> io::Result<()> {
        let (scanned, wait) = mpsc::channel();
        if plan.is_some() {
            prefetch::set_window(&workers.store.levels);
        }
        thread("belady-scan", workers, move |workers| {
            workers.scan();
            let _ = scanned.send(());
            if let Some(plan) = plan {
                workers.start_prefetching(plan, copiers);
            }
            let shared = Arc::clone(workers);
            workers.tasks.open(copiers, move |number| {
                // A job with fewer threads is only slower.
                let _ = thread(&format!("belady-copy-{number}"), &shared, |workers| workers.copy());
            });
        })?;
        thread("belady-changes", workers, |workers| workers.store.follow_changes())?;
        thread("belady-inbox", workers, move |workers| workers.receive(&inbox))?;
        let _ = wait.recv_timeout(SCAN);
        Ok(())
    }

    fn start_prefetching(&self, plan: OrderSource, copiers: usize) {
        let mut prefetcher = lock(&self.prefetcher);
        if self.store.is_stopping() {
            return;
        }
        match prefetch::start(plan, copiers, &self.store, &self.tasks) {
            Ok(started) => {
                let _ = self.events.set(started.events().clone());
                *prefetcher = Some(started);
            }
            Err(error) => self.store.tally.fail(format!("prefetching cannot start: {error}")),
        }
    }

    /// Stops prefetching. Returns its counters if an order was followed or learnt.
    pub fn stop_prefetching(&self) -> Option<PrefetchTally> {
        let prefetcher = lock(&self.prefetcher).take()?;
        Some(prefetch::finish(prefetcher, &self.store.levels))
    }

    fn scan(&self) {
        // Computed before the first copy needs it.
        let _ = metadata::this_boot();
        for level in &self.store.levels {
            if let Err(error) = level.reclaim() {
                let root = level.root.display();
                self.store.tally.fail(format!("cannot scan {root}: {error}"));
            }
        }
        if let Err(error) = self.store.scan(&mut |unchecked| self.tasks.verify(unchecked)) {
            self.store.tally.fail(format!("cannot scan a cache: {error}"));
        }
    }

    fn copy(&self) {
        let store = &self.store;
        let mut buffer = vec![];
        self.tasks.work(|task| match task {
            CopyTask::Fetch(name) => {
                store.fetch(&name, CopyLifetime::Kept, &mut buffer);
            }
            CopyTask::Ahead(name, kind) => {
                if let Some(events) = self.events.get() {
                    prefetch::fetch(store, events, &name, kind, &mut buffer);
                }
            }
            CopyTask::Verify(unchecked) => {
                if let Err(error) = store.verify(&unchecked, &mut buffer) {
                    let level = &store.levels[unchecked.level];
                    let path = path_of(&level.files, &unchecked.name);
                    store.tally.fail(format!("cannot verify {}: {error}", path.display()));
                }
            }
        });
    }

    /// Receives the messages of the program's processes until the run is over.
    fn receive(&self, inbox: &OwnedFd) {
        let mut buffer = vec![0; PIPE_BYTES];
        let mut filled = 0;
        let mut swept = Instant::now();
        while !self.store.is_stopping() {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(inbox, &mut buffer[filled..]));
            let Ok(length) = read else { return };
            filled += length;
            let (decoded, dropped) = self.handle(&buffer[..filled]);
            buffer.copy_within(decoded..filled, 0);
            filled -= decoded;
            if dropped && !self.store.is_stopping() {
                std::thread::sleep(SWEEP.saturating_sub(swept.elapsed()));
                self.store.sweep();
                swept = Instant::now();
            }
        }
    }

    /// Handles messages. Returns how many bytes they had, and whether copies were dropped.
    fn handle(&self, bytes: &[u8]) -> (usize, bool) {
        let (mut at, mut dropped) = (0, false);
        while let Some((message, length)) = ShimMessage::decode(&bytes[at..]) {
            at += length;
            match message {
                ShimMessage::Want(name) => {
                    // In this order: the program may end once it sees the copy, and by then the
                    // order must include this file.
                    if let Some(events) = self.events.get() {
                        events.opened(name);
                    }
                    self.tasks.fetch(name.into());
                }
                ShimMessage::Dropped => dropped = true,
            }
        }
        (at, dropped)
    }
}

fn thread(
    name: &str,
    workers: &Arc<Workers>,
    work: impl FnOnce(&Arc<Workers>) + Send + 'static,
) -> io::Result<()> {
    let workers = Arc::clone(workers);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&workers)).map(drop)
}
