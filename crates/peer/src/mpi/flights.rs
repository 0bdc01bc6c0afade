//! What MPI was asked to do and has not done yet.
//!
//! [`Flights`] owns the memory that MPI reads from or writes to until MPI says that it is done
//! with it. Memory of what never finishes is never given back.

use std::ffi::c_int;

use mpi::ffi;

/// MPI has said no: what was tried, and its own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} over MPI has failed: {why}")]
pub struct Failure {
    pub what: &'static str,
    pub why: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

/// What MPI is at work on, each with the memory that it uses.
#[derive(Debug)]
pub struct Flights<T> {
    requests: Vec<ffi::MPI_Request>,
    // In boxes, so that what MPI points to stays where it is.
    held: Vec<Box<T>>,
    landed: Vec<c_int>,
}

// SAFETY: MPI's handles may be used by any thread, one at a time: MPI has the thread level MULTIPLE.
unsafe impl<T: Send> Send for Flights<T> {}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self { requests: vec![], held: vec![], landed: vec![] }
    }
}

impl<T> Flights<T> {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.held.iter().map(|held| &**held)
    }

    /// Asks MPI which are done, and gives them back.
    pub fn landed(&mut self, mut each: impl FnMut(T)) -> Result<bool> {
        if self.is_empty() {
            return Ok(false);
        }
        self.landed.resize(self.requests.len(), 0);
        let mut count = 0;
        // SAFETY: both arrays are as long as MPI is told.
        check("waiting", unsafe {
            ffi::MPI_Testsome(
                c_int::try_from(self.requests.len()).unwrap_or(c_int::MAX),
                self.requests.as_mut_ptr(),
                &raw mut count,
                self.landed.as_mut_ptr(),
                ffi::RSMPI_STATUSES_IGNORE,
            )
        })?;
        let landed = &mut self.landed[..usize::try_from(count).unwrap_or(0)];
        // From the last, so that the places of the others stay as they are.
        landed.sort_unstable();
        for &at in landed.iter().rev() {
            self.requests.swap_remove(at as usize);
            each(*self.held.swap_remove(at as usize));
        }
        Ok(count > 0)
    }

    /// MPI may use what is held, at the address that it has in its box.
    pub fn add(&mut self, request: ffi::MPI_Request, held: Box<T>) {
        self.requests.push(request);
        self.held.push(held);
    }
}

impl<T> Drop for Flights<T> {
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
    // SAFETY: there is as much room as MPI says that it needs.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &raw mut length) };
    let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
    Err(Failure { what, why: String::from_utf8_lossy(text).into_owned() })
}
