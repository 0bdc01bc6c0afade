//! Whether another process still has an unlinked file open.

use std::os::fd::{AsFd, AsRawFd as _};

/// The fcntl command that sets the signal of a broken lease. `libc` lacks it; the value is the same
/// on all supported architectures.
const F_SETSIG: i32 = 10;

/// Whether other processes use a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// No other descriptor or mapping of it exists.
    Free,
    /// Another descriptor or mapping of it exists.
    Open,
    /// The file system has no leases.
    Unknown,
}

/// Returns whether another process uses this file. The caller owns the file, has one descriptor of
/// it, open for reading, and has unlinked it, so that a free file stays free.
///
/// The kernel grants a write lease only if no other process has the file open.
pub fn use_of(file: impl AsFd) -> FileUse {
    // A process that looked the name up before it was unlinked may open the file now and break the
    // lease. The kernel then sends a signal. SIGURG is ignored; the default, SIGIO, would end this
    // process.
    if fcntl(&file, F_SETSIG, libc::SIGURG).is_err() {
        return FileUse::Unknown;
    }
    match fcntl(&file, libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => {
            let _ = fcntl(&file, libc::F_SETLEASE, libc::F_UNLCK);
            FileUse::Free
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => FileUse::Open,
        Err(_) => FileUse::Unknown,
    }
}

fn fcntl(file: &impl AsFd, command: i32, argument: i32) -> std::io::Result<()> {
    // SAFETY: these commands take a number and access no memory; the descriptor is open.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, argument) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// An unlinked file, and the only other descriptor of it.
    fn unlinked(folder: &std::path::Path) -> (File, File) {
        let path = folder.join("copy");
        std::fs::write(&path, "bytes").unwrap();
        let theirs = File::open(&path).unwrap();
        let ours = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (ours, theirs)
    }

    /// In memory, where leases work; the default directory may be on any file system.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn a_file_is_in_use_until_its_last_descriptor_is_closed() {
        let folder = folder();
        let (ours, theirs) = unlinked(folder.path());
        let duplicate = theirs.try_clone().unwrap();
        assert_eq!(use_of(&ours), FileUse::Open);
        drop(theirs);
        assert_eq!(use_of(&ours), FileUse::Open);
        drop(duplicate);
        assert_eq!(use_of(&ours), FileUse::Free);
        assert_eq!(use_of(&ours), FileUse::Free);
    }

    #[test]
    fn a_mapped_file_is_in_use() {
        let folder = folder();
        let (ours, theirs) = unlinked(folder.path());
        let flags = rustix::mm::MapFlags::PRIVATE;
        let read = rustix::mm::ProtFlags::READ;
        // SAFETY: a new mapping at an address that the kernel chooses, which is not accessed.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 5, read, flags, &theirs, 0) };
        let base = base.unwrap();
        drop(theirs);
        assert_eq!(use_of(&ours), FileUse::Open);
        // SAFETY: it was mapped above and not borrowed.
        unsafe { rustix::mm::munmap(base, 5) }.unwrap();
        assert_eq!(use_of(&ours), FileUse::Free);
    }

    #[test]
    fn the_use_of_a_device_is_unknown() {
        assert_eq!(use_of(File::open("/dev/null").unwrap()), FileUse::Unknown);
    }
}
