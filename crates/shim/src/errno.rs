//! libc's errno, which a successful call leaves alone.

/// Puts errno back to what it was, in the end.
pub struct Kept(i32);

impl Kept {
    pub fn new() -> Self {
        // SAFETY: libc gives each thread a place for errno, which is always valid.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Kept {
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
