//! A run: prepared before the program starts, at work while it runs, ended when it has ended.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use belady_board::message::Message;
use belady_board::{Attach, Board, Config, LevelConfig as BoardLevel};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::catalogue::checksum;
use crate::config::JobConfig;
use crate::error::PrepareError;
use crate::level::Level;
use crate::prepare::{self, DatasetRoot};
use crate::report::{Copied, LevelReport, Report};
use crate::shelf::{Shelf, path_of};
use crate::tasks::{Task, Tasks};
use crate::{library, meta};

/// How long the program waits for the catalogue at most: what is read after that comes from the source.
const CATALOGUE: Duration = Duration::from_secs(1);
/// How long a thread may take to notice that the run is over.
const ENDING: Duration = Duration::from_millis(20);
/// Room for what the program asks for, in bytes.
const PIPE: usize = 1 << 20;
/// Copies that were given up are removed not more often than this.
const SWEEP: Duration = Duration::from_millis(50);
/// Read at the end, to know how fast copies are.
const SAMPLED: u64 = 4 << 20;

/// Records that a board has room for: more files than any dataset of files has, in memory that
/// is used only as they come.
const RECORDS_LOG2: u32 = 24;
/// Where a process may not map that much.
const FEW_RECORDS_LOG2: u32 = 18;

#[derive(Debug)]
pub struct Job {
    shelf: Arc<Shelf>,
    tasks: Arc<Tasks>,
    attach: Attach,
    library: PathBuf,
    /// By these the program's processes find the board and us.
    _board: OwnedFd,
    _pipe: OwnedFd,
}

impl Job {
    /// Checks all that was asked for, and begins.
    ///
    /// # Errors
    /// One sentence.
    pub fn prepare(config: &JobConfig) -> Result<Self, PrepareError> {
        let dataset = DatasetRoot::open(&config.dataset)?;
        let levels = prepare::levels(config, &dataset)?;
        let ways = match Ways::prepare(config, &dataset, &levels) {
            Ok(ways) => ways,
            Err(error) => {
                levels.iter().for_each(Level::close);
                return Err(error);
            }
        };
        let Ways { library, board, file, inbox, pipe } = ways;
        let attach = Attach::new(&board, &file, &pipe);
        let shelf = Shelf::new(Arc::new(board), dataset.real, dataset.dev, levels);
        let shelf = Arc::new(shelf);
        let job = Self { shelf, tasks: Arc::default(), attach, library, _board: file, _pipe: pipe };
        job.start_threads(config.threads, inbox).inspect_err(|_| job.end())?;
        Ok(job)
    }

    fn start_threads(&self, copiers: usize, inbox: OwnedFd) -> Result<(), PrepareError> {
        let (loaded, wait) = mpsc::channel();
        let (shelf, tasks) = (Arc::clone(&self.shelf), Arc::clone(&self.tasks));
        thread("belady-load", move || {
            load(&shelf, &tasks);
            let _ = loaded.send(());
            for number in 0..copiers.max(1) {
                let (shelf, tasks) = (Arc::clone(&shelf), Arc::clone(&tasks));
                let name = format!("belady-copy-{number}");
                // With fewer threads it goes on, more slowly.
                let _ = thread(&name, move || copy(&shelf, &tasks));
            }
        })?;
        let (shelf, tasks) = (Arc::clone(&self.shelf), Arc::clone(&self.tasks));
        thread("belady-inbox", move || listen(&inbox, &shelf, &tasks))?;
        let _ = wait.recv_timeout(CATALOGUE);
        Ok(())
    }

    /// What the program's environment has to have.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut preload = self.library.clone().into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let board = self.attach.to_text().into();
        vec![("LD_PRELOAD".into(), preload), (belady_board::VARIABLE.into(), board)]
    }

    pub fn report(&self) -> Report {
        let shelf = &self.shelf;
        let head = shelf.board.head();
        let tally = &shelf.tally;
        let levels = shelf.levels.iter().enumerate().map(|(at, level)| {
            let (files, bytes) = level.held.get();
            let used = head.totals(Some(at));
            LevelReport { name: level.name.clone(), quota: level.used.quota(), files, bytes, used }
        });
        Report {
            levels: levels.collect(),
            source: head.totals(None),
            copied: Copied {
                files: tally.copied_files.load(Relaxed),
                bytes: tally.copied_bytes.load(Relaxed),
                busy: Duration::from_nanos(tally.busy_nanos.load(Relaxed)),
            },
            refused: tally.refused.load(Relaxed),
            failed: tally.failed.load(Relaxed),
            first_failure: belady_data::sync::lock(&tally.first_failure).clone(),
            dropped: head.dropped.load(Relaxed),
            lost: head.lost.load(Relaxed),
            local: None,
        }
    }

    /// The program has ended. What is being copied is given up; with `measured`, a few copies are read to
    /// know how fast that is.
    pub fn finish(&self, measured: bool) -> Report {
        self.shelf.sweep();
        let mut report = self.report();
        if measured {
            report.local = self.local_pace();
        }
        self.end();
        report
    }

    fn end(&self) {
        self.shelf.end();
        self.tasks.close();
        // Threads that wait for a slow source end with the process.
        self.tasks.rest(ENDING);
        self.attach.post(Message::Dropped);
        self.shelf.levels.iter().for_each(Level::close);
    }

    fn local_pace(&self) -> Option<(u64, Duration)> {
        let mut buffer = vec![];
        let (mut bytes, mut time) = (0, Duration::ZERO);
        for (level, name) in self.shelf.some_copies(8) {
            let path = path_of(&self.shelf.levels[level].files, &name);
            let size = path.metadata().ok()?.len();
            if bytes + size > SAMPLED {
                continue;
            }
            let began = Instant::now();
            let file = std::fs::File::open(&path).ok()?;
            checksum(&file, &mut buffer, &|| false).ok()?;
            time += began.elapsed();
            bytes += size;
        }
        (bytes > 0).then_some((bytes, time))
    }
}

/// What connects us with the program.
struct Ways {
    library: PathBuf,
    board: Board,
    file: OwnedFd,
    inbox: OwnedFd,
    pipe: OwnedFd,
}

impl Ways {
    fn prepare(
        config: &JobConfig,
        dataset: &DatasetRoot,
        levels: &[Level],
    ) -> Result<Self, PrepareError> {
        let places = library_places(levels);
        let places: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
        let library = library::place(&places)?;
        let board = Board::create(&board_config(config, dataset, levels));
        let (board, file) = board.map_err(PrepareError::Board)?;
        let (inbox, pipe) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| PrepareError::Board(error.into()))?;
        // An unprivileged user may not have as much; then more messages are lost.
        let _ = fcntl_setpipe_size(&pipe, PIPE);
        Ok(Self { library, board, file, inbox, pipe })
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), PrepareError> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map(drop).map_err(PrepareError::Thread)
}

/// On a local disk first: each process that starts reads it.
fn library_places(levels: &[Level]) -> Vec<PathBuf> {
    let levels = levels.iter().filter(|level| !level.is_private).map(|level| level.root.clone());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let user = rustix::process::getuid().as_raw();
    let cache = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/belady"));
    let temporary = std::env::temp_dir().join(format!("belady-{user}"));
    levels.chain(runtime).chain([temporary]).chain(cache).collect()
}

fn board_config(config: &JobConfig, dataset: &DatasetRoot, levels: &[Level]) -> Config {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let limited = rustix::process::getrlimit(rustix::process::Resource::As).current.is_some();
    Config {
        given: bytes(&dataset.given),
        real: bytes(&dataset.real),
        levels: levels
            .iter()
            .map(|level| BoardLevel { files: bytes(&level.files), dev: level.dev })
            .collect(),
        revalidate: config.revalidate,
        records_log2: if limited { FEW_RECORDS_LOG2 } else { RECORDS_LOG2 },
    }
}

fn load(shelf: &Shelf, tasks: &Tasks) {
    // Known before the first copy is made.
    let _ = meta::this_boot();
    for level in &shelf.levels {
        if let Err(error) = level.reclaim() {
            shelf.tally.fail(format!("{} cannot be looked through: {error}", level.root.display()));
        }
    }
    if let Err(error) = shelf.load(&mut |unchecked| tasks.check(unchecked)) {
        shelf.tally.fail(format!("a cache cannot be looked through: {error}"));
    }
}

fn copy(shelf: &Shelf, tasks: &Tasks) {
    let mut buffer = vec![];
    tasks.work(|task| match task {
        Task::Fetch(name) => {
            shelf.fetch(&name, &mut buffer);
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
fn listen(inbox: &OwnedFd, shelf: &Shelf, tasks: &Tasks) {
    let mut room = vec![0; PIPE];
    let mut filled = 0;
    let mut swept = Instant::now();
    while !shelf.is_stopping() {
        let Ok(length) = rustix::io::read(inbox, &mut room[filled..]) else { return };
        filled += length;
        let mut at = 0;
        let mut dropped = false;
        while let Some((message, length)) = Message::decode(&room[at..filled]) {
            at += length;
            match message {
                Message::Want(name) => tasks.fetch(name.into()),
                Message::Dropped => dropped = true,
            }
        }
        room.copy_within(at..filled, 0);
        filled -= at;
        if dropped && !shelf.is_stopping() {
            std::thread::sleep(SWEEP.saturating_sub(swept.elapsed()));
            shelf.sweep();
            swept = Instant::now();
        }
    }
}
