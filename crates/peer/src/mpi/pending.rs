//! Operations that MPI has not completed yet.
//!
//! [`PendingRequests`] owns the memory that MPI reads or writes until MPI has completed the
//! operation. Memory of operations that never complete is never freed.

use std::ffi::c_int;

use mpi::ffi;

/// An error of MPI: the operation, and MPI's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} over MPI has failed: {why}")]
pub struct MpiFailure {
    pub what: &'static str,
    pub why: String,
}

pub type Result<T> = std::result::Result<T, MpiFailure>;

/// Operations in progress, each with its memory.
#[derive(Debug)]
pub struct PendingRequests<T> {
    requests: Vec<ffi::MPI_Request>,
    // In boxes, so that addresses that MPI has stay valid.
    held: Vec<Box<T>>,
    completed: Vec<c_int>,
}

// SAFETY: MPI's handles may be used by any thread, one at a time: MPI has the thread level
// MULTIPLE.
unsafe impl<T: Send> Send for PendingRequests<T> {}

impl<T> Default for PendingRequests<T> {
    fn default() -> Self {
        Self { requests: vec![], held: vec![], completed: vec![] }
    }
}

impl<T> PendingRequests<T> {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.held.iter().map(|held| &**held)
    }

    /// Asks MPI which operations are done, and passes their memory to `each`.
    pub fn completed(&mut self, mut each: impl FnMut(T)) -> Result<bool> {
        if self.is_empty() {
            return Ok(false);
        }
        self.completed.resize(self.requests.len(), 0);
        let mut count = 0;
        // SAFETY: both arrays have the length that MPI is told.
        check("waiting", unsafe {
            ffi::MPI_Testsome(
                c_int::try_from(self.requests.len()).unwrap_or(c_int::MAX),
                self.requests.as_mut_ptr(),
                &raw mut count,
                self.completed.as_mut_ptr(),
                ffi::RSMPI_STATUSES_IGNORE,
            )
        })?;
        let completed = &mut self.completed[..usize::try_from(count).unwrap_or(0)];
        // From the last on, so that the indices of the others stay valid.
        completed.sort_unstable();
        for &at in completed.iter().rev() {
            self.requests.swap_remove(at as usize);
            each(*self.held.swap_remove(at as usize));
        }
        Ok(count > 0)
    }

    /// Adds an operation, which may use what is in the box.
    pub fn add(&mut self, request: ffi::MPI_Request, held: Box<T>) {
        self.requests.push(request);
        self.held.push(held);
    }
}

impl<T> Drop for PendingRequests<T> {
    fn drop(&mut self) {
        // MPI may still write there.
        self.held.drain(..).for_each(std::mem::forget);
    }
}

pub fn check(what: &'static str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS.cast_signed() {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the buffer is as long as MPI requires.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &raw mut length) };
    let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
    Err(MpiFailure { what, why: String::from_utf8_lossy(text).into_owned() })
}
