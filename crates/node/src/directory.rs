//! Where sockets of node engines are: a directory that only its user can enter.

use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use belady_base::environment;

use crate::error::NodeError;

/// The longest path of a socket, without its final zero.
const LONGEST_PATH: usize = 107;
/// What the sockets end with.
const SUFFIX: &str = "sock";

/// The name of the socket of the engine that outlives jobs.
pub const SHARED: &str = "node";

/// Returns the directory of this user's sockets, and makes it if need be: `BELADY_NODE_DIR`, else
/// `belady` in `XDG_RUNTIME_DIR`, else `belady-UID` in the directory of temporary files.
///
/// # Errors
/// If it cannot be made, or other users could enter it.
pub fn private() -> Result<PathBuf, NodeError> {
    let own = rustix::process::geteuid().as_raw();
    let path = environment::NODE_DIR.value().map_or_else(
        || match environment::XDG_RUNTIME_DIR.value() {
            Some(directory) => PathBuf::from(directory).join("belady"),
            None => std::env::temp_dir().join(format!("belady-{own}")),
        },
        PathBuf::from,
    );
    let wrong = |reason: String| NodeError::Directory { path: path.clone(), reason };
    match DirBuilder::new().mode(0o700).recursive(true).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(wrong(format!(
                "{error}; set {} to another one",
                environment::NODE_DIR.name
            )));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(&path).map_err(|error| wrong(error.to_string()))?;
    check(&found, own).map_err(wrong)?;
    if found.mode() & 0o077 != 0 {
        let private = Permissions::from_mode(0o700);
        std::fs::set_permissions(&path, private).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(path)
}

fn check(found: &Metadata, own: u32) -> Result<(), String> {
    if !found.is_dir() {
        return Err("it is not a directory; remove it".to_owned());
    }
    if found.uid() != own {
        return Err(format!(
            "it belongs to user {}, not to user {own}; set {} to a directory of your own",
            found.uid(),
            environment::NODE_DIR.name
        ));
    }
    Ok(())
}

/// Returns the path of a socket with this name.
///
/// # Errors
/// As [`private`], or if the path is too long for a socket.
pub fn socket(name: &str) -> Result<PathBuf, NodeError> {
    let directory = private()?;
    let path = directory.join(format!("{name}.{SUFFIX}"));
    let length = path.as_os_str().len();
    if length > LONGEST_PATH {
        let reason = format!(
            "the path {} has {length} bytes and a socket's has {LONGEST_PATH} at most; set {} to a \
             shorter one",
            path.display(),
            environment::NODE_DIR.name
        );
        return Err(NodeError::Directory { path: directory, reason });
    }
    Ok(path)
}

/// Listens at a path. Removes what a process that was killed has left there.
///
/// # Errors
/// If a process listens there, or the socket cannot be made.
pub fn listen(path: &Path) -> Result<UnixListener, NodeError> {
    let failed = |error| NodeError::Socket { path: path.to_owned(), error };
    let _guard = guard(path.parent().unwrap_or(path)).map_err(failed)?;
    remove_if_dead(path);
    UnixListener::bind(path).map_err(failed)
}

/// Removes the path of a socket whose process has ended.
pub fn remove(path: &Path) {
    // Without the lock, another process that listens there by now could lose its path.
    if let Ok(_guard) = guard(path.parent().unwrap_or(path)) {
        remove_if_dead(path);
    }
}

/// Locks the directory until the file is dropped: a socket that is bound and does not listen yet
/// looks like one whose process has gone.
fn guard(directory: &Path) -> io::Result<File> {
    let directory = File::open(directory)?;
    directory.lock()?;
    Ok(directory)
}

/// Returns the sockets of engines that run, and removes those of engines that do not.
///
/// # Errors
/// As [`private`].
pub fn running() -> Result<Vec<PathBuf>, NodeError> {
    let directory = private()?;
    let failed = |error: io::Error| NodeError::Directory {
        path: directory.clone(),
        reason: error.to_string(),
    };
    let _guard = guard(&directory).map_err(failed)?;
    let mut found = vec![];
    for entry in std::fs::read_dir(&directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == SUFFIX) && !remove_if_dead(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Removes a socket at which no process listens; returns whether there is none now.
fn remove_if_dead(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).is_ok()
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn of_processes_that_listen_at_once_one_does_and_the_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.sock");
        for _ in 0..50 {
            // What a process that was killed has left.
            drop(UnixListener::bind(&path).unwrap());
            let begin = Barrier::new(4);
            let listeners: Vec<_> = std::thread::scope(|scope| {
                let listen = || {
                    begin.wait();
                    listen(&path)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(listen)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(listeners.iter().filter(|listener| listener.is_ok()).count(), 1);
            assert!(UnixStream::connect(&path).is_ok(), "the path is that of the one that listens");
            drop(listeners);
            remove(&path);
            assert!(!path.exists());
        }
    }
}
