//! SIGTERM and SIGINT unmount the file system; the session then ends by itself.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use fuser::SessionUnmounter;

fn set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set that the other calls then change; both
    // signals exist, so neither call can fail.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        set.assume_init()
    }
}

/// Keeps the signals for [`unmount_when_told`].
pub fn block() {
    let set = set();
    // SAFETY: the set is initialised, and the old mask is not asked for.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

pub fn unmount_when_told(mountpoint: &CStr, mut unmounter: SessionUnmounter) {
    let set = set();
    let mut signal = 0;
    // SAFETY: the set and the place for the signal's number are valid for the call.
    unsafe {
        libc::sigwait(&raw const set, &raw mut signal);
    }
    // Programs with an open file may finish: the mount disappears at once, the session ends when
    // the last file is closed.
    // SAFETY: the path is a C string that outlives the call.
    let gone = unsafe { libc::umount2(mountpoint.as_ptr(), libc::MNT_DETACH) } == 0;
    if !gone && let Err(error) = unmounter.unmount() {
        eprintln!("slowfs: cannot unmount {}: {error}", mountpoint.to_string_lossy());
    }
}
