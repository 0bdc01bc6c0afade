//! Checks the configuration before the program starts.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::{LevelConfig, TransparentConfig};
use crate::copy::normalise;
use crate::error::PrepareError;
use crate::files::private_directory;
use crate::level::CopyLevel;
use crate::ram;

/// The dataset's directory.
#[derive(Debug)]
pub struct DatasetRoot {
    pub given: PathBuf,
    pub real: PathBuf,
    pub dev: u64,
}

impl DatasetRoot {
    pub fn open(path: &Path) -> Result<Self, PrepareError> {
        let wrong = |problem: &str| PrepareError::Dataset {
            path: path.to_owned(),
            problem: problem.to_owned(),
        };
        let explained = |error: io::Error| match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::LOOP) => wrong("is a loop of symbolic links"),
            Some(rustix::io::Errno::NOENT) => wrong("does not exist"),
            Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
                wrong("cannot be read: permission denied")
            }
            _ => wrong(&format!("cannot be read: {error}")),
        };
        let real = path.canonicalize().map_err(explained)?;
        let given = normalise(path).map_err(explained)?;
        let stat = rustix::fs::stat(&real).map_err(|error| explained(error.into()))?;
        if !real.is_dir() {
            return Err(wrong("is not a directory"));
        }
        std::fs::read_dir(&real).map_err(explained)?;
        Ok(Self { given, real, dev: stat.st_dev })
    }
}

/// Opens the levels.
pub fn levels(
    config: &TransparentConfig,
    dataset: &DatasetRoot,
) -> Result<Vec<CopyLevel>, PrepareError> {
    if config.levels.is_empty() {
        return Err(PrepareError::Levels(
            "no cache is configured; give one such as --cache /local/nvme:100GiB".into(),
        ));
    }
    if config.levels.len() > belady_board::MOST_LEVELS {
        let most = belady_board::MOST_LEVELS;
        return Err(PrepareError::Levels(format!(
            "more than {most} caches are configured; give at most {most}"
        )));
    }
    let mut levels: Vec<CopyLevel> = vec![];
    for config in &config.levels {
        let level = level(config, dataset);
        let level = match level {
            Ok(level) if levels.iter().any(|other| other.root == level.root) => {
                level.close();
                Err(PrepareError::level(&level.root, "it is given twice; remove one of them"))
            }
            other => other,
        };
        match level {
            Ok(level) => levels.push(level),
            Err(error) => {
                levels.iter().for_each(CopyLevel::close);
                return Err(error);
            }
        }
    }
    Ok(levels)
}

fn level(config: &LevelConfig, dataset: &DatasetRoot) -> Result<CopyLevel, PrepareError> {
    let quota = config.quota().0;
    let (root, name, is_private) = match config {
        LevelConfig::Ram { .. } => {
            let root = ram::directory(quota)?;
            (root, "ram".to_owned(), true)
        }
        LevelConfig::Directory { path, .. } => {
            (directory(path, dataset)?, path.display().to_string(), false)
        }
    };
    let shown = Path::new(&name);
    if quota == 0 {
        return Err(PrepareError::level(shown, "its size is 0; give a larger size"));
    }
    let level = CopyLevel::open(&root, name.clone(), quota, &dataset.real, is_private)
        .map_err(|error| PrepareError::level(shown, write_problem(&error)))?;
    Ok(level)
}

fn write_problem(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "permission to write is denied".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "its file system is read-only".to_owned(),
        io::ErrorKind::StorageFull => "its file system is full".to_owned(),
        _ => error.to_string(),
    }
}

fn directory(path: &Path, dataset: &DatasetRoot) -> Result<PathBuf, PrepareError> {
    // Before anything is created there.
    let inside = |path: &Path| path.starts_with(&dataset.real) || path.starts_with(&dataset.given);
    let on_dataset = "it is inside the dataset; give a directory elsewhere, on a local disk";
    // Also by the real path of its nearest existing parent.
    let above = path.ancestors().find_map(|above| above.canonicalize().ok());
    if normalise(path).is_ok_and(|path| inside(&path)) || above.is_some_and(|above| inside(&above))
    {
        return Err(PrepareError::level(path, on_dataset));
    }
    if path.exists() && !path.is_dir() {
        return Err(PrepareError::level(path, "it is not a directory"));
    }
    private_directory(path).map_err(|error| PrepareError::level(path, write_problem(&error)))?;
    let real =
        path.canonicalize().map_err(|error| PrepareError::level(path, write_problem(&error)))?;
    if inside(&real) {
        return Err(PrepareError::level(path, on_dataset));
    }
    if dataset.real.starts_with(&real) {
        return Err(PrepareError::level(
            path,
            "it contains the dataset; give a directory that does not",
        ));
    }
    Ok(real)
}

/// Returns a sentence about a level whose free space and own copies do not reach its quota. The job
/// runs all the same: others may have filled the disk, and a copy that does not fit is not made.
pub fn lack_of_space(level: &CopyLevel) -> Option<String> {
    // Memory was checked.
    let fs = rustix::fs::statvfs(&level.root).ok().filter(|_| !level.is_private)?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize).saturating_add(level.used.get().ok()?);
    let quota = level.used.quota();
    let [quota_text, free_text] = [quota, free].map(belady_base::units::Bytes);
    let name = &level.name;
    (free < quota).then(|| {
        format!(
            "the cache {name} has space for {free_text} of {quota_text}: files are copied until its \
             file system is full"
        )
    })
}
