//! Memory that other processes can map: unnamed files of a sealed size.
//!
//! The file's size is sealed, so a mapping never loses its pages. The file has no name: the memory
//! is freed when the last process that has its descriptor or mapping ends, however it ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The seals that fix a file's size.
pub const SIZE_SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK);

/// A mapped file of a sealed size. Forked children share it.
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    length: usize,
    file: OwnedFd,
}

// SAFETY: it belongs to the process, not to a thread, and is only reached by address.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; which thread may touch which bytes is up to the holders of the address.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Creates memory of this length, initially zero. `name` appears in `/proc` only.
    ///
    /// # Errors
    /// If there is no memory or no descriptor left.
    pub fn create(name: &str, length: usize) -> io::Result<Self> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, length as u64)?;
        fcntl_add_seals(&file, SIZE_SEALS | SealFlags::SEAL)?;
        Self::map(file, length, true)
    }

    /// Maps memory that another process created and sent.
    ///
    /// # Errors
    /// If the file is not of this length, or its size is not sealed.
    pub fn attach(file: OwnedFd, length: usize, writable: bool) -> io::Result<Self> {
        if !fcntl_get_seals(&file)?.contains(SIZE_SEALS) {
            return Err(io::Error::other("the size of the shared memory is not sealed"));
        }
        let found = fstat(&file)?.st_size;
        if u64::try_from(found) != Ok(length as u64) {
            let text = format!("the shared memory has {found} bytes in place of {length}");
            return Err(io::Error::other(text));
        }
        Self::map(file, length, writable)
    }

    fn map(file: OwnedFd, length: usize, writable: bool) -> io::Result<Self> {
        let write = if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory, and
        // the file's size is sealed.
        let start = unsafe {
            mmap(ptr::null_mut(), length, ProtFlags::READ | write, MapFlags::SHARED, &file, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length, file })
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl AsFd for SharedMapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; all that point into it hold a reference to this.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_of_the_file_sees_the_same_bytes() {
        let memory = SharedMapping::create("belady-test", 5000).unwrap();
        let file = memory.as_fd().try_clone_to_owned().unwrap();
        let other = SharedMapping::attach(file, 5000, false).unwrap();
        // SAFETY: both mappings have 5,000 bytes and no reference to them exists.
        unsafe {
            memory.start().as_ptr().add(4999).write(7);
            assert_eq!(other.start().as_ptr().add(4999).read(), 7);
        }
        assert!(ftruncate(&other, 10).is_err(), "the size is sealed");
    }

    #[test]
    fn a_file_of_another_length_or_without_seals_is_refused() {
        let memory = SharedMapping::create("belady-test", 5000).unwrap();
        let file = || memory.as_fd().try_clone_to_owned().unwrap();
        let error = SharedMapping::attach(file(), 4999, true).unwrap_err().to_string();
        assert!(error.contains("5000 bytes in place of 4999"), "{error}");
        let open = memfd_create("belady-test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 10).unwrap();
        let error = SharedMapping::attach(open, 10, true).unwrap_err().to_string();
        assert!(error.contains("not sealed"), "{error}");
    }
}
