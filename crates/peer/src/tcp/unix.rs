//! A socket in the file system, for nodes on the same machine.
//!
//! It lies in a directory that only this user can enter. Whoever is killed leaves his socket there, and
//! the next one clears it away.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belady_data::fork::Own;

use super::address::LONGEST_PATH;
use crate::key::random;

/// A socket that nobody listens at is left alone for so long: its owner may be about to.
const YOUNG: Duration = Duration::from_mins(1);

/// A socket that others can connect to; the file goes when this is dropped.
#[derive(Debug)]
pub struct UnixDoor {
    pub listener: Own<UnixListener>,
    path: PathBuf,
    process: u32,
}

impl UnixDoor {
    /// A socket of a name that is no other's, in the place for such things.
    pub fn open() -> io::Result<Self> {
        let user = rustix::process::getuid().as_raw();
        Self::open_in(&std::env::temp_dir().join(format!("belady-{user}")))
    }

    fn open_in(directory: &Path) -> io::Result<Self> {
        own_directory(directory)?;
        clear(directory);
        let number = u64::from_le_bytes(random().map_err(io::Error::other)?);
        let path = directory.join(format!("{number:016x}.socket"));
        if path.as_os_str().len() > LONGEST_PATH {
            let what = format!("the path {} is too long for a socket", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let listener = Own::of(listener)?;
        Ok(Self { listener, path, process: std::process::id() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A forked child leaves it to its parent.
impl Drop for UnixDoor {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A directory that is ours alone.
fn own_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let is_ours = found.is_dir()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o777 == 0o700;
    if is_ours {
        return Ok(());
    }
    let what = format!("{} is not a directory that only this user can enter", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

/// Removes sockets that nobody listens at. What cannot be looked at stays.
fn clear(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_old = |found: &fs::Metadata| {
            let age = found.modified().ok().and_then(|when| when.elapsed().ok());
            found.file_type().is_socket() && age.is_some_and(|age| age > YOUNG)
        };
        if entry.metadata().is_ok_and(|found| is_old(&found)) && is_deserted(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_deserted(socket: &Path) -> bool {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    UnixStream::connect(socket).is_err_and(|error| refused(&error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sockets(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_socket_is_there_for_as_long_as_its_owner_and_old_ones_are_cleared_away() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("sockets");
        let door = UnixDoor::open_in(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        UnixStream::connect(door.path()).unwrap();
        let left_behind = directory.join("killed.socket");
        drop(UnixListener::bind(&left_behind).unwrap());
        assert!(is_deserted(&left_behind) && !is_deserted(door.path()));
        let second = UnixDoor::open_in(&directory).unwrap();
        assert_eq!(sockets(&directory), 3, "one may be about to listen");
        let long_ago = std::time::SystemTime::now() - 2 * YOUNG;
        for path in [&left_behind, &second.path] {
            set_modified(path, long_ago);
        }
        let third = UnixDoor::open_in(&directory).unwrap();
        assert!(!left_behind.exists() && second.path.exists());
        drop((door, second, third));
        assert_eq!(sockets(&directory), 0);
    }

    /// Sockets cannot be opened as files can.
    fn set_modified(path: &Path, when: std::time::SystemTime) {
        let seconds = when.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let time = rustix::fs::Timespec { tv_sec: seconds.cast_signed(), tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("sockets");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let error = UnixDoor::open_in(&directory).unwrap_err();
        assert!(error.to_string().ends_with("is not a directory that only this user can enter"));
        let long = place.path().join("long".repeat(30));
        assert!(UnixDoor::open_in(&long).unwrap_err().to_string().contains("too long"));
    }
}
