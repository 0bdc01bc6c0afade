//! A Unix socket for nodes on the same machine.
//!
//! It lies in a directory that only this user can enter. A killed process leaves its socket behind,
//! and the next process removes it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belady_base::fork::OwnDescriptor;

use super::address::LONGEST_PATH;
use crate::key::random;

/// A socket without a listener is kept for this long: its owner may be about to listen.
const YOUNG: Duration = Duration::from_mins(1);

/// A listening Unix socket; its file is removed on drop.
#[derive(Debug)]
pub struct UnixSocket {
    pub listener: OwnDescriptor<UnixListener>,
    path: PathBuf,
    process: u32,
}

impl UnixSocket {
    /// Opens a socket with a unique name in the directory for temporary files.
    pub fn open() -> io::Result<Self> {
        let user = rustix::process::getuid().as_raw();
        Self::open_in(&std::env::temp_dir().join(format!("belady-{user}")))
    }

    fn open_in(directory: &Path) -> io::Result<Self> {
        own_directory(directory)?;
        clear(directory);
        let number = u64::from_le_bytes(random().map_err(io::Error::other)?);
        let path = directory.join(format!("{number:016x}.socket"));
        if path.as_os_str().len() > LONGEST_PATH || path.to_str().is_none() {
            let what =
                format!("the path {} is too long for a socket, or not UTF-8", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let listener = OwnDescriptor::of(listener)?;
        Ok(Self { listener, path, process: std::process::id() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A forked child leaves the file to its parent.
impl Drop for UnixSocket {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a directory that only this user can enter, or checks that an existing one is so.
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

/// Removes sockets without a listener. Entries that cannot be read stay.
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
    fn a_socket_is_removed_with_its_owner_and_abandoned_ones_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("sockets");
        let door = UnixSocket::open_in(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        UnixStream::connect(door.path()).unwrap();
        let left_behind = directory.join("killed.socket");
        drop(UnixListener::bind(&left_behind).unwrap());
        assert!(is_deserted(&left_behind) && !is_deserted(door.path()));
        let second = UnixSocket::open_in(&directory).unwrap();
        assert_eq!(sockets(&directory), 3, "one may be about to listen");
        let long_ago = std::time::SystemTime::now() - 2 * YOUNG;
        for path in [&left_behind, &second.path] {
            set_modified(path, long_ago);
        }
        let third = UnixSocket::open_in(&directory).unwrap();
        assert!(!left_behind.exists() && second.path.exists());
        drop((door, second, third));
        assert_eq!(sockets(&directory), 0);
    }

    /// Unix sockets cannot be opened like files.
    fn set_modified(path: &Path, when: std::time::SystemTime) {
        let seconds = when.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let time = rustix::fs::Timespec { tv_sec: seconds.cast_signed(), tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }

    #[test]
    fn a_directory_that_other_users_can_enter_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("sockets");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let error = UnixSocket::open_in(&directory).unwrap_err();
        assert!(error.to_string().ends_with("is not a directory that only this user can enter"));
        let long = place.path().join("long".repeat(30));
        assert!(UnixSocket::open_in(&long).unwrap_err().to_string().contains("too long"));
    }
}
