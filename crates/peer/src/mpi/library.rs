//! MPI in this process: begun by us or by others, and how it ends.
//!
//! If somebody has initialised MPI before (mpi4py, torch, the program itself), we take part and leave
//! its end to them. Otherwise we initialise it and finalise it when the process exits, not when a
//! transport is closed, since MPI cannot be initialised twice.
//!
//! Whoever finalises it: before that, every transport that is still open leaves the job, which takes
//! all ranks. MPI runs such last words by itself: it begins to finalise by deleting the attributes of
//! MPI_COMM_SELF, and one of these is ours.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{OnceLock, Weak};

use belady_data::sync::{Arc, Mutex, lock};
use mpi::Threading;
use mpi::environment::{self, Universe};
use mpi::ffi;

use super::flights::{Failure, check};
use super::shared::Shared;
use crate::MeetError;

/// MPI, if we have begun it.
static OURS: Mutex<Option<Universe>> = Mutex::new(None);
/// What has to leave before MPI ends.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
static HOOK: OnceLock<Result<(), Failure>> = OnceLock::new();

/// Makes sure that MPI is there, for threads as we use them.
pub fn enter() -> Result<(), MeetError> {
    if environment::is_finalized() {
        return Err(MeetError::Other(
            "MPI has ended in this process and cannot begin again: make peers before MPI_Finalize"
                .into(),
        ));
    }
    let ours = environment::initialize_with_threading(Threading::Multiple);
    if let Some((universe, _)) = ours {
        *lock(&OURS) = Some(universe);
        // SAFETY: the function may be called at any time. If there is no room for it, mpirun
        // complains about a process that has not finalised.
        unsafe { libc::atexit(finalise) };
    }
    let level = environment::threading_support();
    if level < Threading::Multiple {
        return Err(MeetError::Other(format!(
            "MPI was initialised for threads of level {level:?}, and peers over MPI need Multiple: \
             initialise it with MPI_THREAD_MULTIPLE, or use peers over TCP"
        )));
    }
    HOOK.get_or_init(hook).clone().map_err(|failure| MeetError::Other(failure.to_string()))
}

/// The name and version of the MPI library, on one line.
pub fn version() -> String {
    let said = environment::library_version().unwrap_or_default();
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A transport that has to leave before MPI ends.
pub fn opened(shared: &Arc<Shared>) {
    let mut open = lock(&OPEN);
    open.retain(|other| other.strong_count() > 0);
    open.push(Arc::downgrade(shared));
}

/// Asks MPI to call [`last_words`].
fn hook() -> Result<(), Failure> {
    let mut key = 0;
    // SAFETY: MPI calls a function that is there as long as the process, and keeps no pointers.
    check("preparing its end", unsafe {
        ffi::MPI_Comm_create_keyval(
            Some(not_copied),
            Some(last_words),
            &raw mut key,
            ptr::null_mut(),
        )
    })?;
    // SAFETY: the key was just made.
    check("preparing its end", unsafe {
        ffi::MPI_Comm_set_attr(ffi::RSMPI_COMM_SELF, key, ptr::null_mut())
    })
}

/// A copy of MPI_COMM_SELF may go away long before MPI.
unsafe extern "C" fn not_copied(
    _comm: ffi::MPI_Comm,
    _key: c_int,
    _state: *mut c_void,
    _value: *mut c_void,
    _copy: *mut c_void,
    copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI says where it wants to know.
    unsafe { *copied = 0 };
    ffi::MPI_SUCCESS.cast_signed()
}

/// MPI is about to end: everything that is open leaves first.
unsafe extern "C" fn last_words(
    _comm: ffi::MPI_Comm,
    _key: c_int,
    _value: *mut c_void,
    _state: *mut c_void,
) -> c_int {
    let open = std::mem::take(&mut *lock(&OPEN));
    let open: Vec<_> = open.iter().filter_map(Weak::upgrade).collect();
    for shared in &open {
        shared.leave();
    }
    for shared in open {
        shared.wait_for_end(None);
    }
    ffi::MPI_SUCCESS.cast_signed()
}

extern "C" fn finalise() {
    if !environment::is_finalized() {
        let ours = lock(&OURS).take();
        drop(ours);
    }
}
