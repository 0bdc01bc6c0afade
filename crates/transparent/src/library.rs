//! The library that goes into the program's processes: a file has to hold it, for the loader.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use xxhash_rust::xxh3::xxh3_64;

/// As crates/shim was built together with us.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libbelady_shim.so"));

/// For the flags of an open: somebody may have put a link in its place.
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// So many bytes at both ends of a file that is there are looked at.
const ENDS: usize = 4096;

/// There is no place for the library.
#[derive(Debug, thiserror::Error)]
#[error(
    "no directory can hold the library that is loaded into the program ({reasons}); name one that is \
     yours and allows programs, without a space or a colon in its path"
)]
pub struct LibraryError {
    reasons: String,
}

/// Why a directory is not taken.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("its path has a space or a colon")]
    Path,
    #[error("it belongs to somebody else, or others may write to it")]
    Owner,
    #[error("its file system allows no programs")]
    NoExec,
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// The file for LD_PRELOAD, in the first of these directories that can hold it. A directory that is
/// not there yet is made.
///
/// # Errors
/// If none can.
pub fn place(candidates: &[&Path]) -> Result<PathBuf, LibraryError> {
    let mut reasons = vec![];
    for directory in candidates {
        match place_in(directory) {
            Ok(path) => return Ok(path),
            Err(reason) => reasons.push(format!("{}: {reason}", directory.display())),
        }
    }
    Err(LibraryError { reasons: reasons.join("; ") })
}

fn place_in(directory: &Path) -> Result<PathBuf, Unfit> {
    check_path(&std::path::absolute(directory)?)?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
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
    if !is_there(&path) {
        write(&directory, &path)?;
    }
    Ok(path)
}

/// The loader takes both for the end of a name.
fn check_path(directory: &Path) -> Result<(), Unfit> {
    let ends = directory.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte));
    if ends { Err(Unfit::Path) } else { Ok(()) }
}

/// Nobody else can put another file in its place.
fn is_ours(of: &Metadata) -> bool {
    of.uid() == rustix::process::geteuid().as_raw() && of.mode() & 0o022 == 0
}

fn is_there(path: &Path) -> bool {
    let read = || -> std::io::Result<bool> {
        let file = OpenOptions::new().read(true).custom_flags(NO_LINK).open(path)?;
        let facts = file.metadata()?;
        if !facts.is_file() || !is_ours(&facts) || facts.len() != LIBRARY.len() as u64 {
            return Ok(false);
        }
        // Its name tells its bytes. But a file may have its length and not its bytes if the machine went down.
        let mut both = [0; 2 * ENDS];
        let (first, last) = both.split_at_mut(ENDS);
        file.read_exact_at(first, 0)?;
        file.read_exact_at(last, (LIBRARY.len() - ENDS) as u64)?;
        Ok(first == &LIBRARY[..ENDS] && last == &LIBRARY[LIBRARY.len() - ENDS..])
    };
    read().unwrap_or(false)
}

/// Whole, or not at all: others may be starting the same job.
fn write(directory: &Path, path: &Path) -> std::io::Result<()> {
    let mut dice = [0; 8];
    rustix::rand::getrandom(&mut dice, rustix::rand::GetRandomFlags::empty())?;
    let partial = directory.join(format!(".libbelady-{:016x}.partial", u64::from_ne_bytes(dice)));
    let written = || -> std::io::Result<()> {
        let mut file: File =
            OpenOptions::new().write(true).create_new(true).mode(0o500).open(&partial)?;
        file.write_all(LIBRARY)?;
        // For everybody, whatever the umask: the loader complains on the errors of a process that root
        // has made another user's.
        file.set_permissions(Permissions::from_mode(0o555))?;
        std::fs::rename(&partial, path)
    };
    written().inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_library_that_is_there_is_used_again() {
        let directory = private();
        let first = place(&[directory.path()]).unwrap();
        let number = first.metadata().unwrap().ino();
        assert_eq!(std::fs::read(&first).unwrap(), LIBRARY);
        assert_eq!(first.metadata().unwrap().mode() & 0o7777, 0o555);
        assert_eq!(place(&[directory.path()]).unwrap(), first);
        assert_eq!(first.metadata().unwrap().ino(), number);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn other_bytes_under_its_name_are_replaced() {
        let directory = private();
        let path = place(&[directory.path()]).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(place(&[directory.path()]).unwrap(), path);
        assert_eq!(std::fs::read(&path).unwrap(), LIBRARY);
    }

    #[test]
    fn directories_that_cannot_hold_it_are_passed_over_and_named() {
        let directory = private();
        let colon = directory.path().join("a:b");
        let space = directory.path().join("a b");
        let open = directory.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = place(&[&colon, &space, &open]).unwrap_err().to_string();
        for part in ["a:b: its path has", "a b: its path has", "open: it belongs"] {
            assert!(error.contains(part), "{error}");
        }
        let good = directory.path().join("new/one");
        assert!(place(&[&colon, &open, &good]).unwrap().starts_with(good.canonicalize().unwrap()));
    }

    #[test]
    fn a_file_system_without_programs_is_passed_over() {
        let flags = rustix::fs::statvfs("/proc").unwrap().f_flag;
        if !flags.contains(StatVfsMountFlags::NOEXEC) {
            belady_testing::not_run("/proc is not mounted noexec");
            return;
        }
        let error = place(&[Path::new("/proc")]).unwrap_err().to_string();
        assert!(error.contains("/proc: "), "{error}");
    }
}
