//! Whether anybody still has a file open that has no name any more.

use std::os::fd::{AsFd, AsRawFd as _};

/// Linux has it, the crate `libc` does not: which signal tells that a lease is to be given back. The same
/// on all architectures but a few that are no longer built for.
const F_SETSIG: i32 = 10;

/// What the kernel says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nobody else has it open or mapped.
    Free,
    Open,
    /// The file system does not tell.
    Unknown,
}

/// Who uses this file beside us? It has to be ours, open for reading by this one descriptor, and
/// without a name: then nobody can open it any more once it is free.
///
/// The kernel gives a lease for writing exactly if nobody else has the file open.
pub fn use_of(file: impl AsFd) -> Use {
    // Somebody who looked the name up before it went, and opens the file just now, breaks the lease. We are
    // told by a signal: let it be one that is ignored, since SIGIO would end us.
    if fcntl(&file, F_SETSIG, libc::SIGURG).is_err() {
        return Use::Unknown;
    }
    match fcntl(&file, libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => {
            let _ = fcntl(&file, libc::F_SETLEASE, libc::F_UNLCK);
            Use::Free
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Use::Open,
        Err(_) => Use::Unknown,
    }
}

fn fcntl(file: &impl AsFd, command: i32, argument: i32) -> std::io::Result<()> {
    // SAFETY: these commands take a number and touch no memory of ours; the descriptor is open.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, argument) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A file without a name, and the one descriptor that others have of it.
    fn unlinked(folder: &std::path::Path) -> (File, File) {
        let path = folder.join("copy");
        std::fs::write(&path, "bytes").unwrap();
        let theirs = File::open(&path).unwrap();
        let ours = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (ours, theirs)
    }

    /// In memory, where leases are known to work; the ordinary folder may be on anything.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn a_file_is_in_use_until_the_last_one_closes_it() {
        let folder = folder();
        let (ours, theirs) = unlinked(folder.path());
        let duplicate = theirs.try_clone().unwrap();
        assert_eq!(use_of(&ours), Use::Open);
        drop(theirs);
        assert_eq!(use_of(&ours), Use::Open);
        drop(duplicate);
        assert_eq!(use_of(&ours), Use::Free);
        assert_eq!(use_of(&ours), Use::Free);
    }

    #[test]
    fn a_file_that_is_only_mapped_is_in_use() {
        let folder = folder();
        let (ours, theirs) = unlinked(folder.path());
        let flags = rustix::mm::MapFlags::PRIVATE;
        let read = rustix::mm::ProtFlags::READ;
        // SAFETY: a new mapping at a place of the kernel's choice, which nobody reads.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 5, read, flags, &theirs, 0) };
        let base = base.unwrap();
        drop(theirs);
        assert_eq!(use_of(&ours), Use::Open);
        // SAFETY: it was mapped above, and nothing was borrowed from it.
        unsafe { rustix::mm::munmap(base, 5) }.unwrap();
        assert_eq!(use_of(&ours), Use::Free);
    }

    #[test]
    fn what_is_no_file_is_unknown() {
        assert_eq!(use_of(File::open("/dev/null").unwrap()), Use::Unknown);
    }
}
