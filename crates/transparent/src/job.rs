//! A transparent job: one run of a program with copies of its dataset.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use belady_board::message::ShimMessage;
use belady_board::{Attach, Board, BoardConfig, BoardLevelConfig};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::Resource;

use crate::config::TransparentConfig;
use crate::copy_store::{CopyStore, path_of};
use crate::error::PrepareError;
use crate::level::CopyLevel;
use crate::order::OrderSource;
use crate::prepare::{self, DatasetRoot};
use crate::report::{CopyTotals, LevelReport, TransparentReport};
use crate::scan::checksum;
use crate::workers::{PIPE_BYTES, Workers};
use crate::{library, prefetch};

/// How long the end of a run waits for threads to notice it.
const ENDING: Duration = Duration::from_millis(20);
/// Bytes of copies that are read at the end to measure the levels' speed.
const SAMPLED: u64 = 4 << 20;

/// The most records of a board, more than any dataset has files. Memory is used as they are
/// published.
const RECORDS_LOG2: u32 = 24;
/// For processes whose address space is limited.
const FEW_RECORDS_LOG2: u32 = 18;

/// A run of a program with copies of its dataset.
#[derive(Debug)]
pub struct TransparentJob {
    workers: Arc<Workers>,
    attach: Attach,
    library: PathBuf,
    /// Sentences for the user, about what is less than was asked for.
    pub warnings: Vec<String>,
    /// The program's processes open these through `/proc`.
    _board: OwnedFd,
    _pipe: OwnedFd,
}

impl TransparentJob {
    /// Checks the configuration and starts the job's threads.
    ///
    /// # Errors
    /// If the configuration is wrong, or the machine lacks something; see [`PrepareError`].
    pub fn prepare(config: &TransparentConfig) -> Result<Self, PrepareError> {
        let dataset = DatasetRoot::open(&config.dataset)?;
        let levels = prepare::levels(config, &dataset)?;
        let link = match ProgramLink::prepare(config, &dataset, &levels) {
            Ok(link) => link,
            Err(error) => {
                levels.iter().for_each(CopyLevel::close);
                return Err(error);
            }
        };
        let ProgramLink { library, plan, board, file, inbox, pipe } = link;
        let attach = Attach::new(&board, &file, &pipe);
        let warnings = levels.iter().filter_map(prepare::lack_of_space).collect();
        let store = CopyStore::new(Arc::new(board), dataset.real, dataset.dev, levels);
        let workers = Arc::new(Workers::new(store));
        let job = Self { workers, attach, library, warnings, _board: file, _pipe: pipe };
        let started = Workers::start(&job.workers, config.threads.max(1), plan, inbox);
        started.map_err(PrepareError::Thread).inspect_err(|_| job.end())?;
        Ok(job)
    }

    /// Returns the variables to set in the program's environment.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut preload = self.library.clone().into_os_string();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let board = self.attach.to_text().into();
        vec![("LD_PRELOAD".into(), preload), (belady_board::VARIABLE.into(), board)]
    }

    /// Returns the counters since the start of the job.
    pub fn report(&self) -> TransparentReport {
        let store = &self.workers.store;
        let head = store.board.header();
        let tally = &store.tally;
        let levels = store.levels.iter().enumerate().map(|(at, level)| {
            let (files, bytes) = level.contents.get();
            let used = head.totals(Some(at));
            LevelReport { name: level.name.clone(), quota: level.used.quota(), files, bytes, used }
        });
        TransparentReport {
            levels: levels.collect(),
            source: head.totals(None),
            copied: CopyTotals {
                files: tally.copied_files.load(Relaxed),
                bytes: tally.copied_bytes.load(Relaxed),
                busy: Duration::from_nanos(tally.busy_nanos.load(Relaxed)),
            },
            refused: tally.refused.load(Relaxed),
            failed: tally.failed.load(Relaxed),
            first_failure: belady_base::sync::lock(&tally.first_failure).clone(),
            dropped: head.dropped.load(Relaxed),
            lost: head.lost.load(Relaxed),
            local: None,
            ahead: None,
        }
    }

    /// Ends the job after the program has ended. Copies in flight are discarded. With `measured`, a
    /// few copies are read to measure the levels' speed.
    pub fn finish(&self, measured: bool) -> TransparentReport {
        let ahead = self.workers.stop_prefetching();
        self.workers.store.sweep();
        let mut report = self.report();
        report.ahead = ahead;
        if measured {
            report.local = self.measure_levels();
        }
        self.end();
        report
    }

    fn end(&self) {
        let store = &self.workers.store;
        store.end();
        self.workers.tasks.close();
        // A thread that waits for a slow source ends with the process.
        self.workers.tasks.wait_idle(ENDING);
        self.attach.send(ShimMessage::Dropped);
        store.remove_transients();
        store.levels.iter().for_each(CopyLevel::close);
    }

    fn measure_levels(&self) -> Option<(u64, Duration)> {
        let mut buffer = vec![];
        let (mut bytes, mut time) = (0, Duration::ZERO);
        for (level, name) in self.workers.store.some_copies(8) {
            let path = path_of(&self.workers.store.levels[level].files, &name);
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

/// What connects the launcher with the program.
struct ProgramLink {
    library: PathBuf,
    plan: Option<OrderSource>,
    board: Board,
    file: OwnedFd,
    inbox: OwnedFd,
    pipe: OwnedFd,
}

impl ProgramLink {
    fn prepare(
        config: &TransparentConfig,
        dataset: &DatasetRoot,
        levels: &[CopyLevel],
    ) -> Result<Self, PrepareError> {
        let directories = library_directories(levels);
        let directories: Vec<&Path> = directories.iter().map(PathBuf::as_path).collect();
        let library = library::install(&directories)?;
        let board = Board::create(&board_config(config, dataset, levels));
        let (board, file) = board.map_err(PrepareError::Board)?;
        let plan = prefetch::plan(config, &board.header().dataset(), levels)?;
        let (inbox, pipe) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| PrepareError::Board(error.into()))?;
        // The limit of an unprivileged user may be lower; then more messages are lost.
        let _ = fcntl_setpipe_size(&pipe, PIPE_BYTES);
        Ok(Self { library, plan, board, file, inbox, pipe })
    }
}

/// Candidates for the library's directory. Local disks first, because each new process reads it.
fn library_directories(levels: &[CopyLevel]) -> Vec<PathBuf> {
    let levels = levels.iter().filter(|level| !level.is_private).map(|level| level.root.clone());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let user = rustix::process::getuid().as_raw();
    let cache = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/belady"));
    let temporary = std::env::temp_dir().join(format!("belady-{user}"));
    levels.chain(runtime).chain([temporary]).chain(cache).collect()
}

fn board_config(
    config: &TransparentConfig,
    dataset: &DatasetRoot,
    levels: &[CopyLevel],
) -> BoardConfig {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let limit = |of| rustix::process::getrlimit(of).current;
    // The board is a file as well.
    let limited = limit(Resource::As).is_some() || limit(Resource::Fsize).is_some();
    BoardConfig {
        given: bytes(&dataset.given),
        real: bytes(&dataset.real),
        levels: levels
            .iter()
            .map(|level| BoardLevelConfig { files: bytes(&level.files), dev: level.dev })
            .collect(),
        revalidate: config.revalidate,
        records_log2: if limited { FEW_RECORDS_LOG2 } else { RECORDS_LOG2 },
    }
}
