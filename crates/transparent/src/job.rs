//! A run: prepared before the program starts, at work while it runs, ended when it has ended.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use belady_board::message::Message;
use belady_board::{Attach, Board, Config, LevelConfig as BoardLevel};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::catalogue::checksum;
use crate::config::JobConfig;
use crate::error::PrepareError;
use crate::level::Level;
use crate::order::Plan;
use crate::prepare::{self, DatasetRoot};
use crate::report::{Copied, LevelReport, Report};
use crate::shelf::{Shelf, path_of};
use crate::work::Crew;
use crate::{ahead, library};

/// How long a thread may take to notice that the run is over.
const ENDING: Duration = Duration::from_millis(20);
/// Room for what the program asks for, in bytes.
pub const PIPE: usize = 1 << 20;
/// Read at the end, to know how fast copies are.
const SAMPLED: u64 = 4 << 20;

/// Records that a board has room for: more files than any dataset of files has, in memory that
/// is used only as they come.
const RECORDS_LOG2: u32 = 24;
/// Where a process may not map that much.
const FEW_RECORDS_LOG2: u32 = 18;

#[derive(Debug)]
pub struct Job {
    crew: Arc<Crew>,
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
        let Ways { library, plan, board, file, inbox, pipe } = ways;
        let attach = Attach::new(&board, &file, &pipe);
        let shelf = Shelf::new(Arc::new(board), dataset.real, dataset.dev, levels);
        let crew = Arc::new(Crew::new(shelf));
        let job = Self { crew, attach, library, _board: file, _pipe: pipe };
        let started = Crew::start(&job.crew, config.threads.max(1), plan, inbox);
        started.map_err(PrepareError::Thread).inspect_err(|_| job.end())?;
        Ok(job)
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
        let shelf = &self.crew.shelf;
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
            ahead: None,
        }
    }

    /// The program has ended. What is being copied is given up; with `measured`, a few copies are read to
    /// know how fast that is.
    pub fn finish(&self, measured: bool) -> Report {
        let ahead = self.crew.stop_ahead();
        self.crew.shelf.sweep();
        let mut report = self.report();
        report.ahead = ahead;
        if measured {
            report.local = self.local_pace();
        }
        self.end();
        report
    }

    fn end(&self) {
        let shelf = &self.crew.shelf;
        shelf.end();
        self.crew.tasks.close();
        // Threads that wait for a slow source end with the process.
        self.crew.tasks.rest(ENDING);
        self.attach.post(Message::Dropped);
        shelf.remove_passing();
        shelf.levels.iter().for_each(Level::close);
    }

    fn local_pace(&self) -> Option<(u64, Duration)> {
        let mut buffer = vec![];
        let (mut bytes, mut time) = (0, Duration::ZERO);
        for (level, name) in self.crew.shelf.some_copies(8) {
            let path = path_of(&self.crew.shelf.levels[level].files, &name);
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
    plan: Option<Plan>,
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
        let plan = ahead::plan(config, &board.head().dataset(), levels)?;
        let (inbox, pipe) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| PrepareError::Board(error.into()))?;
        // An unprivileged user may not have as much; then more messages are lost.
        let _ = fcntl_setpipe_size(&pipe, PIPE);
        Ok(Self { library, plan, board, file, inbox, pipe })
    }
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
