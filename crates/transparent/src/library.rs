//! Writes the shim to a file, for the dynamic loader.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use xxhash_rust::xxh3::xxh3_64;

use crate::files::{NO_LINK, is_ours, private_directory, random};

/// The shim, which `build.rs` has built.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libbelady_shim.so"));

/// Bytes that are compared at both ends of an existing file.
const ENDS: usize = 4096;

/// No directory can hold the library.
#[derive(Debug, thiserror::Error)]
#[error(
    "no directory can hold the library that is loaded into the program ({reasons}); give a cache \
     directory that only you can write to, on a file system that allows executables, without a space \
     or a colon in its path"
)]
pub struct LibraryError {
    reasons: String,
}

/// Why a directory cannot hold the library.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("its path contains a space or a colon")]
    Path,
    #[error("other users own it or may write to it")]
    Owner,
    #[error("its file system is mounted noexec")]
    NoExec,
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Writes the library to the first directory that can hold it, and returns the file for LD_PRELOAD.
/// Creates the directory if needed.
///
/// # Errors
/// If no directory can hold it.
pub fn install(candidates: &[&Path]) -> Result<PathBuf, LibraryError> {
    let mut reasons = vec![];
    for directory in candidates {
        match install_in(directory) {
            Ok(path) => return Ok(path),
            Err(reason) => reasons.push(format!("{}: {reason}", directory.display())),
        }
    }
    Err(LibraryError { reasons: reasons.join("; ") })
}

fn install_in(directory: &Path) -> Result<PathBuf, Unfit> {
    check_path(&std::path::absolute(directory)?)?;
    private_directory(directory)?;
    let directory = directory.canonicalize()?;
    check_path(&directory)?;
    if !is_ours(&directory.metadata()?) {
        return Err(Unfit::Owner);
    }
    let mount = rustix::fs::statvfs(&directory).map_err(std::io::Error::from)?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(Unfit::NoExec);
    }
    let path = directory.join(format!("libbelady-{:016x}.so", xxh3_64(LIBRARY)));
    if !is_installed(&path) {
        write(&directory, &path)?;
    }
    Ok(path)
}

/// The loader separates the paths in LD_PRELOAD by spaces and colons.
fn check_path(directory: &Path) -> Result<(), Unfit> {
    let ends = directory.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte));
    if ends { Err(Unfit::Path) } else { Ok(()) }
}

fn is_installed(path: &Path) -> bool {
    let read = || -> std::io::Result<bool> {
        let file = OpenOptions::new().read(true).custom_flags(NO_LINK).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || !is_ours(&metadata) || metadata.len() != LIBRARY.len() as u64 {
            return Ok(false);
        }
        // The name is a hash of the bytes. After a crash a file may have its length but not its
        // bytes.
        let mut both = [0; 2 * ENDS];
        let (first, last) = both.split_at_mut(ENDS);
        file.read_exact_at(first, 0)?;
        file.read_exact_at(last, (LIBRARY.len() - ENDS) as u64)?;
        Ok(first == &LIBRARY[..ENDS] && last == &LIBRARY[LIBRARY.len() - ENDS..])
    };
    read().unwrap_or(false)
}

/// Writes the file and renames it, because other launchers may be starting.
fn write(directory: &Path, path: &Path) -> std::io::Result<()> {
    let partial = directory.join(format!(".libbelady-{:016x}.partial", random()?));
    let written = || -> std::io::Result<()> {
        let mut file: File =
            OpenOptions::new().write(true).create_new(true).mode(0o500).open(&partial)?;
        file.write_all(LIBRARY)?;
        // Readable by all users, whatever the umask: otherwise the loader prints an error in a
        // process of root that has become another user.
        file.set_permissions(Permissions::from_mode(0o555))?;
        std::fs::rename(&partial, path)
    };
    written().inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn private() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn an_installed_library_is_used_again() {
        let directory = private();
        let first = install(&[directory.path()]).unwrap();
        let inode = first.metadata().unwrap().ino();
        assert_eq!(std::fs::read(&first).unwrap(), LIBRARY);
        assert_eq!(first.metadata().unwrap().mode() & 0o7777, 0o555);
        assert_eq!(install(&[directory.path()]).unwrap(), first);
        assert_eq!(first.metadata().unwrap().ino(), inode);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_library_is_replaced() {
        let directory = private();
        let path = install(&[directory.path()]).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(install(&[directory.path()]).unwrap(), path);
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
    }

    #[test]
    fn directories_that_cannot_hold_it_are_skipped_and_named() {
        let directory = private();
        let colon = directory.path().join("a:b");
        let space = directory.path().join("a b");
        let open = directory.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = install(&[&colon, &space, &open]).unwrap_err().to_string();
        for part in ["a:b: its path contains", "a b: its path contains", "open: other users"] {
            assert!(error.contains(part), "{error}");
        }
        let good = directory.path().join("new/one");
        assert!(
            install(&[&colon, &open, &good]).unwrap().starts_with(good.canonicalize().unwrap())
        );
    }

    #[test]
    fn a_noexec_file_system_is_skipped() {
        let flags = rustix::fs::statvfs("/proc").unwrap().f_flag;
        if !flags.contains(StatVfsMountFlags::NOEXEC) {
            belady_testing::not_run("/proc is not mounted noexec");
            return;
        }
        let error = install(&[Path::new("/proc")]).unwrap_err().to_string();
        assert!(error.contains("/proc: "), "{error}");
    }
}
