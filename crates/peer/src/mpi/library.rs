//! Initialises and finalises MPI in this process.
//!
//! If MPI is initialised already (by mpi4py, torch or the program), belady takes part and does not
//! finalise it. Otherwise it initialises MPI, and finalises it when the process exits, not when a
//! transport is closed, since MPI cannot be initialised twice.
//!
//! Before MPI is finalised, every open transport leaves the job, which takes all ranks. MPI calls
//! back for that: it starts to finalise by deleting the attributes of MPI_COMM_SELF, one of which
//! is belady's.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{OnceLock, Weak};

use belady_base::sync::{Arc, Mutex, lock};
use mpi::Threading;
use mpi::environment::{self, Universe};
use mpi::ffi;

use super::pending::{MpiFailure, check};
use super::shared::MpiShared;
use crate::RendezvousError;

/// MPI, if this module has initialised it.
static OURS: Mutex<Option<Universe>> = Mutex::new(None);
/// Transports that have to leave before MPI ends.
static OPEN: Mutex<Vec<Weak<MpiShared>>> = Mutex::new(Vec::new());
static HOOK: OnceLock<Result<(), MpiFailure>> = OnceLock::new();

/// Makes sure that MPI is initialised, with the thread level that belady needs.
pub fn enter() -> Result<(), RendezvousError> {
    if environment::is_finalized() {
        return Err(RendezvousError::Other(
            "MPI is finalised in this process and cannot start again: join peers before \
             MPI_Finalize"
                .into(),
        ));
    }
    let ours = environment::initialize_with_threading(Threading::Multiple);
    if let Some((universe, _)) = ours {
        *lock(&OURS) = Some(universe);
        // SAFETY: the function may be called at any time. If it cannot be registered, mpirun
        // reports a process that has not finalised.
        unsafe { libc::atexit(finalise) };
    }
    let level = environment::threading_support();
    if level < Threading::Multiple {
        return Err(RendezvousError::Other(format!(
            "MPI was initialised for threads of level {level:?}, and peers over MPI need Multiple: \
             initialise it with MPI_THREAD_MULTIPLE, or use peers over TCP"
        )));
    }
    HOOK.get_or_init(hook).clone().map_err(|failure| RendezvousError::Other(failure.to_string()))
}

/// Returns the name and version of the MPI library, on one line.
pub fn version() -> String {
    let said = environment::library_version().unwrap_or_default();
    // Open MPI counts the terminating zero as a part of its text.
    said.trim_end_matches('\0').split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Registers a transport that has to leave before MPI ends.
pub fn opened(shared: &Arc<MpiShared>) {
    let mut open = lock(&OPEN);
    open.retain(|other| other.strong_count() > 0);
    open.push(Arc::downgrade(shared));
}

/// Makes MPI call [`before_finalize`].
fn hook() -> Result<(), MpiFailure> {
    let mut key = 0;
    // SAFETY: the functions live as long as the process, and MPI keeps no pointers.
    check("preparing the end of MPI", unsafe {
        ffi::MPI_Comm_create_keyval(
            Some(not_copied),
            Some(before_finalize),
            &raw mut key,
            ptr::null_mut(),
        )
    })?;
    // SAFETY: the key was just made.
    check("preparing the end of MPI", unsafe {
        ffi::MPI_Comm_set_attr(ffi::RSMPI_COMM_SELF, key, ptr::null_mut())
    })
}

/// Does not copy the attribute: a copy of MPI_COMM_SELF may be freed long before MPI ends.
unsafe extern "C" fn not_copied(
    _comm: ffi::MPI_Comm,
    _key: c_int,
    _state: *mut c_void,
    _value: *mut c_void,
    _copy: *mut c_void,
    copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI passes a valid pointer.
    unsafe { *copied = 0 };
    ffi::MPI_SUCCESS.cast_signed()
}

/// Closes all open transports before MPI ends.
unsafe extern "C" fn before_finalize(
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
