//! Everything that can be wrong before the program starts.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::{JobConfig, LevelConfig};
use crate::copy::clean;
use crate::error::PrepareError;
use crate::level::{Level, private_directory};
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
        let told = |error: io::Error| match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::LOOP) => wrong("is a loop of symbolic links"),
            Some(rustix::io::Errno::NOENT) => wrong("does not exist"),
            Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => wrong("may not be read"),
            _ => wrong(&format!("cannot be read: {error}")),
        };
        let real = path.canonicalize().map_err(told)?;
        let given = clean(path).map_err(told)?;
        let facts = rustix::fs::stat(&real).map_err(|error| told(error.into()))?;
        if !real.is_dir() {
            return Err(wrong("is no directory"));
        }
        std::fs::read_dir(&real).map_err(told)?;
        Ok(Self { given, real, dev: facts.st_dev })
    }
}

/// The levels, ready to be written to.
pub fn levels(config: &JobConfig, dataset: &DatasetRoot) -> Result<Vec<Level>, PrepareError> {
    if config.levels.is_empty() {
        return Err(PrepareError::Levels(
            "no cache was given, such as --cache /local/nvme:100GiB".into(),
        ));
    }
    if config.levels.len() > belady_board::MOST_LEVELS {
        let most = belady_board::MOST_LEVELS;
        return Err(PrepareError::Levels(format!("there are more than {most} caches")));
    }
    let mut levels: Vec<Level> = vec![];
    for config in &config.levels {
        let level = level(config, dataset);
        let level = match level {
            Ok(level) if levels.iter().any(|other| other.root == level.root) => {
                level.close();
                Err(PrepareError::level(&level.root, "it was given twice"))
            }
            other => other,
        };
        match level {
            Ok(level) => levels.push(level),
            Err(error) => {
                levels.iter().for_each(Level::close);
                return Err(error);
            }
        }
    }
    Ok(levels)
}

fn level(config: &LevelConfig, dataset: &DatasetRoot) -> Result<Level, PrepareError> {
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
        return Err(PrepareError::level(shown, "its size is 0, which leaves no room for any file"));
    }
    let level = Level::open(&root, name.clone(), quota, &dataset.real, is_private)
        .map_err(|error| PrepareError::level(shown, writing(&error)))?;
    if !is_private && let Err(error) = has_room(&level) {
        level.close();
        return Err(PrepareError::level(shown, error));
    }
    Ok(level)
}

fn writing(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "it may not be written to".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "its file system is read-only".to_owned(),
        io::ErrorKind::StorageFull => "its file system is full".to_owned(),
        _ => error.to_string(),
    }
}

fn directory(path: &Path, dataset: &DatasetRoot) -> Result<PathBuf, PrepareError> {
    // Before anything is made there.
    let inside = |path: &Path| path.starts_with(&dataset.real) || path.starts_with(&dataset.given);
    let on_dataset = "it lies in the dataset itself; give a directory elsewhere, on a local disk";
    // Also by another name: that of what is there already.
    let above = path.ancestors().find_map(|above| above.canonicalize().ok());
    if clean(path).is_ok_and(|path| inside(&path)) || above.is_some_and(|above| inside(&above)) {
        return Err(PrepareError::level(path, on_dataset));
    }
    if path.exists() && !path.is_dir() {
        return Err(PrepareError::level(path, "it is no directory"));
    }
    private_directory(path).map_err(|error| PrepareError::level(path, writing(&error)))?;
    let real = path.canonicalize().map_err(|error| PrepareError::level(path, writing(&error)))?;
    if inside(&real) {
        return Err(PrepareError::level(path, on_dataset));
    }
    if dataset.real.starts_with(&real) {
        return Err(PrepareError::level(
            path,
            "the dataset lies in it; give a directory of its own",
        ));
    }
    Ok(real)
}

/// What is free, with what the level holds already, has to be as much as it may hold.
fn has_room(level: &Level) -> Result<(), String> {
    let fs = rustix::fs::statvfs(&level.root).map_err(|error| error.to_string())?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    let held = level.used.get().map_err(|error| error.to_string())?;
    let quota = level.used.quota();
    if free.saturating_add(held) >= quota {
        return Ok(());
    }
    let [quota, free] = [quota, free.saturating_add(held)].map(belady_control::model::Bytes);
    Err(format!(
        "there is no room for {quota}: its file system has {free} free for it; ask for less"
    ))
}
