//! libc's errno, which a successful call does not change.

/// Restores errno when it is dropped.
pub struct SavedErrno(i32);

impl SavedErrno {
    pub fn new() -> Self {
        // SAFETY: the address of the thread's errno is always valid.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for SavedErrno {
    fn drop(&mut self) {
        set(self.0);
    }
}

pub fn get() -> rustix::io::Errno {
    // SAFETY: as above.
    rustix::io::Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

pub fn set(code: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = code };
}
