//! The threads of a run: one that reads the catalogue, one that listens to the program, others that copy.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use belady_board::message::Message;
use belady_data::sync::{Mutex, lock};

use crate::ahead;
use crate::job::PIPE;
use crate::level::Stay;
use crate::meta;
use crate::order::{Notes, Plan, Prefetcher, Tally};
use crate::shelf::{Shelf, path_of};
use crate::tasks::{Task, Tasks};

/// How long the program waits for the catalogue at most: what is read after that comes from the source.
const CATALOGUE: Duration = Duration::from_secs(1);
/// Copies that were given up are removed not more often than this.
const SWEEP: Duration = Duration::from_millis(50);

/// What the threads share.
#[derive(Debug)]
pub struct Crew {
    pub shelf: Arc<Shelf>,
    pub tasks: Arc<Tasks>,
    /// Where it is told what was opened, if an order is followed or learnt.
    notes: OnceLock<Notes>,
    prefetcher: Mutex<Option<Prefetcher>>,
}

impl Crew {
    pub fn new(shelf: Shelf) -> Self {
        Self {
            shelf: Arc::new(shelf),
            tasks: Arc::default(),
            notes: OnceLock::new(),
            prefetcher: Mutex::new(None),
        }
    }

    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        crew: &Arc<Self>,
        copiers: usize,
        plan: Option<Plan>,
        inbox: OwnedFd,
    ) -> io::Result<()> {
        let (loaded, wait) = mpsc::channel();
        if plan.is_some() {
            ahead::set_window(&crew.shelf.levels);
        }
        thread("belady-load", crew, move |crew| {
            crew.load();
            let _ = loaded.send(());
            if let Some(plan) = plan {
                crew.start_ahead(plan, copiers);
            }
            let hired = Arc::clone(crew);
            crew.tasks.open(copiers, move |number| {
                // With fewer threads it goes on, more slowly.
                let _ = thread(&format!("belady-copy-{number}"), &hired, |crew| crew.copy());
            });
        })?;
        thread("belady-inbox", crew, move |crew| crew.listen(&inbox))?;
        let _ = wait.recv_timeout(CATALOGUE);
        Ok(())
    }

    fn start_ahead(&self, plan: Plan, copiers: usize) {
        let mut prefetcher = lock(&self.prefetcher);
        if self.shelf.is_stopping() {
            return;
        }
        match ahead::start(plan, copiers, &self.shelf, &self.tasks) {
            Ok(started) => {
                let _ = self.notes.set(started.notes().clone());
                *prefetcher = Some(started);
            }
            Err(error) => self.shelf.tally.fail(format!("nothing is fetched ahead: {error}")),
        }
    }

    /// At the end; what came of it, if an order was followed or learnt.
    pub fn stop_ahead(&self) -> Option<Tally> {
        let prefetcher = lock(&self.prefetcher).take()?;
        Some(ahead::finish(prefetcher, &self.shelf.levels))
    }

    fn load(&self) {
        // Known before the first copy is made.
        let _ = meta::this_boot();
        for level in &self.shelf.levels {
            if let Err(error) = level.reclaim() {
                let root = level.root.display();
                self.shelf.tally.fail(format!("{root} cannot be looked through: {error}"));
            }
        }
        if let Err(error) = self.shelf.load(&mut |unchecked| self.tasks.check(unchecked)) {
            self.shelf.tally.fail(format!("a cache cannot be looked through: {error}"));
        }
    }

    fn copy(&self) {
        let shelf = &self.shelf;
        let mut buffer = vec![];
        self.tasks.work(|task| match task {
            Task::Fetch(name) => {
                shelf.fetch(&name, Stay::Kept, &mut buffer);
            }
            Task::Ahead(name, wish) => {
                if let Some(notes) = self.notes.get() {
                    ahead::fetch(shelf, notes, &name, wish, &mut buffer);
                }
            }
            Task::Check(unchecked) => {
                if let Err(error) = shelf.check(&unchecked, &mut buffer) {
                    let level = &shelf.levels[unchecked.level];
                    let path = path_of(&level.files, &unchecked.name);
                    shelf.tally.fail(format!("{} cannot be checked: {error}", path.display()));
                }
            }
        });
    }

    /// Takes what the program's processes say, until the run is over.
    fn listen(&self, inbox: &OwnedFd) {
        let mut room = vec![0; PIPE];
        let mut filled = 0;
        let mut swept = Instant::now();
        while !self.shelf.is_stopping() {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(inbox, &mut room[filled..]));
            let Ok(length) = read else { return };
            filled += length;
            let (heard, dropped) = self.hear(&room[..filled]);
            room.copy_within(heard..filled, 0);
            filled -= heard;
            if dropped && !self.shelf.is_stopping() {
                std::thread::sleep(SWEEP.saturating_sub(swept.elapsed()));
                self.shelf.sweep();
                swept = Instant::now();
            }
        }
    }

    /// How many bytes were understood, and whether copies were given up.
    fn hear(&self, bytes: &[u8]) -> (usize, bool) {
        let (mut at, mut dropped) = (0, false);
        while let Some((message, length)) = Message::decode(&bytes[at..]) {
            at += length;
            match message {
                Message::Want(name) => {
                    // In this order: a program that sees its copy may end, and what is learnt is kept then.
                    if let Some(notes) = self.notes.get() {
                        notes.opened(name);
                    }
                    self.tasks.fetch(name.into());
                }
                Message::Dropped => dropped = true,
            }
        }
        (at, dropped)
    }
}

fn thread(
    name: &str,
    crew: &Arc<Crew>,
    work: impl FnOnce(&Arc<Crew>) + Send + 'static,
) -> io::Result<()> {
    let crew = Arc::clone(crew);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&crew)).map(drop)
}
