//! Helpers for directories that other users may be able to write to, and for walking them.

use std::collections::HashSet;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Open flag: do not follow a link. In a directory such as /tmp, another user may have put one
/// there.
pub const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// Creates a directory and its parents for this user only.
pub fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns whether only this user can change a file or directory.
pub fn is_ours(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Returns a random number for a file name.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Lists a directory; empty if it does not exist.
pub fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        Err(error) => Err(error),
    }
}

/// Calls `file` for all files below a directory.
pub fn walk(
    directory: &Path,
    file: &mut dyn FnMut(&Path, &Metadata) -> io::Result<()>,
) -> io::Result<()> {
    for path in entries(directory)? {
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => walk(&path, file)?,
            Ok(metadata) => file(&path, &metadata)?,
            // Another launcher has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the number of files below a directory and their bytes. A file with two names counts its
/// bytes once.
pub fn count_below(directory: &Path) -> io::Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut linked = HashSet::new();
    walk(directory, &mut |_, metadata| {
        files += 1;
        if metadata.nlink() == 1 || linked.insert(metadata.ino()) {
            bytes += metadata.size();
        }
        Ok(())
    })?;
    Ok((files, bytes))
}
