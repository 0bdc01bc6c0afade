//! SIGTERM and SIGINT unmount the file system; the session then ends by itself. SIGUSR1 makes it slow,
//! SIGUSR2 as fast as before.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::SessionUnmounter;

use crate::pacer::SpeedDial;

static TOLD: AtomicBool = AtomicBool::new(false);

/// Returns whether a signal has told to unmount.
pub fn was_told() -> bool {
    TOLD.load(Ordering::Acquire)
}

fn set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set that the other calls then change; all
    // signals exist, so no call can fail.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR2);
        set.assume_init()
    }
}

/// Keeps the signals for [`obey`].
pub fn block() {
    let set = set();
    // SAFETY: the set is initialised, and the old mask is not asked for.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Waits for signals until one of them unmounts the file system.
pub fn obey(mountpoint: &CStr, mut unmounter: SessionUnmounter, dial: &SpeedDial, slowness: f64) {
    let set = set();
    loop {
        let mut signal = 0;
        // SAFETY: the set and the place for the signal's number are valid for the call.
        unsafe {
            libc::sigwait(&raw const set, &raw mut signal);
        }
        match signal {
            libc::SIGUSR1 => dial.slow_down(slowness),
            libc::SIGUSR2 => dial.slow_down(1.0),
            _ => break,
        }
    }
    TOLD.store(true, Ordering::Release);
    // Programs with an open file may finish: the mount disappears at once, the session ends when
    // the last file is closed.
    // SAFETY: the path is a C string that outlives the call.
    let gone = unsafe { libc::umount2(mountpoint.as_ptr(), libc::MNT_DETACH) } == 0;
    if !gone && let Err(error) = unmounter.unmount() {
        eprintln!("slowfs: cannot unmount {}: {error}", mountpoint.to_string_lossy());
    }
}
