//! The functions that ours take the place of: what the program would have called without us. It may
//! be libc's, or that of another preloaded library.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    FILE, gid_t, mode_t, size_t, ssize_t, stat as Stat, statx as Statx, timespec, timeval, uid_t,
    utimbuf,
};

/// A function of this name; `F` is its type.
pub struct Real<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    const fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()), kind: PhantomData }
    }

    /// None if there is no such function in this libc.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            found = self.look_up();
        }
        // SAFETY: it is the address of the function of this name, which is of this type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name ends with a 0.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Relaxed);
        found
    }
}

/// What a function returns that failed.
pub trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for ssize_t {
    const FAILED: Self = -1;
}

impl Failed for *mut FILE {
    const FAILED: Self = std::ptr::null_mut();
}

/// The answer of a function that this libc does not have. Nobody can have been linked to it.
#[cold]
pub fn missing<T: Failed>() -> T {
    crate::errno::set(libc::ENOSYS);
    T::FAILED
}

/// Calls the real function of this name.
macro_rules! real {
    ($name:ident($($argument:expr),* $(,)?)) => {
        match $crate::real::$name.get() {
            Some(real) => real($($argument),*),
            None => $crate::real::missing(),
        }
    };
}
pub(crate) use real;

type Path = *const c_char;

macro_rules! functions {
    ($($name:ident: $type:ty;)*) => {
        $(
            #[allow(non_upper_case_globals, reason = "they have libc's names")]
            pub static $name: Real<$type> = Real::new(
                // SAFETY: there is a 0 at its end, and none before.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            );
        )*

        /// Looks all of them up, so that nobody has to in a signal handler.
        pub fn resolve() {
            $( $name.get(); )*
        }
    };
}

functions! {
    open: unsafe extern "C" fn(Path, c_int, ...) -> c_int;
    open64: unsafe extern "C" fn(Path, c_int, ...) -> c_int;
    openat: unsafe extern "C" fn(c_int, Path, c_int, ...) -> c_int;
    openat64: unsafe extern "C" fn(c_int, Path, c_int, ...) -> c_int;
    __open_2: unsafe extern "C" fn(Path, c_int) -> c_int;
    __open64_2: unsafe extern "C" fn(Path, c_int) -> c_int;
    __openat_2: unsafe extern "C" fn(c_int, Path, c_int) -> c_int;
    __openat64_2: unsafe extern "C" fn(c_int, Path, c_int) -> c_int;
    creat: unsafe extern "C" fn(Path, mode_t) -> c_int;
    creat64: unsafe extern "C" fn(Path, mode_t) -> c_int;
    fopen: unsafe extern "C" fn(Path, Path) -> *mut FILE;
    fopen64: unsafe extern "C" fn(Path, Path) -> *mut FILE;
    freopen: unsafe extern "C" fn(Path, Path, *mut FILE) -> *mut FILE;
    freopen64: unsafe extern "C" fn(Path, Path, *mut FILE) -> *mut FILE;

    stat: unsafe extern "C" fn(Path, *mut Stat) -> c_int;
    stat64: unsafe extern "C" fn(Path, *mut Stat) -> c_int;
    lstat: unsafe extern "C" fn(Path, *mut Stat) -> c_int;
    lstat64: unsafe extern "C" fn(Path, *mut Stat) -> c_int;
    fstat: unsafe extern "C" fn(c_int, *mut Stat) -> c_int;
    fstat64: unsafe extern "C" fn(c_int, *mut Stat) -> c_int;
    fstatat: unsafe extern "C" fn(c_int, Path, *mut Stat, c_int) -> c_int;
    fstatat64: unsafe extern "C" fn(c_int, Path, *mut Stat, c_int) -> c_int;
    statx: unsafe extern "C" fn(c_int, Path, c_int, u32, *mut Statx) -> c_int;
    __xstat: unsafe extern "C" fn(c_int, Path, *mut Stat) -> c_int;
    __xstat64: unsafe extern "C" fn(c_int, Path, *mut Stat) -> c_int;
    __lxstat: unsafe extern "C" fn(c_int, Path, *mut Stat) -> c_int;
    __lxstat64: unsafe extern "C" fn(c_int, Path, *mut Stat) -> c_int;
    __fxstat: unsafe extern "C" fn(c_int, c_int, *mut Stat) -> c_int;
    __fxstat64: unsafe extern "C" fn(c_int, c_int, *mut Stat) -> c_int;
    __fxstatat: unsafe extern "C" fn(c_int, c_int, Path, *mut Stat, c_int) -> c_int;
    __fxstatat64: unsafe extern "C" fn(c_int, c_int, Path, *mut Stat, c_int) -> c_int;

    access: unsafe extern "C" fn(Path, c_int) -> c_int;
    faccessat: unsafe extern "C" fn(c_int, Path, c_int, c_int) -> c_int;
    euidaccess: unsafe extern "C" fn(Path, c_int) -> c_int;
    eaccess: unsafe extern "C" fn(Path, c_int) -> c_int;

    truncate: unsafe extern "C" fn(Path, i64) -> c_int;
    truncate64: unsafe extern "C" fn(Path, i64) -> c_int;
    unlink: unsafe extern "C" fn(Path) -> c_int;
    unlinkat: unsafe extern "C" fn(c_int, Path, c_int) -> c_int;
    remove: unsafe extern "C" fn(Path) -> c_int;
    rename: unsafe extern "C" fn(Path, Path) -> c_int;
    renameat: unsafe extern "C" fn(c_int, Path, c_int, Path) -> c_int;
    renameat2: unsafe extern "C" fn(c_int, Path, c_int, Path, u32) -> c_int;
    link: unsafe extern "C" fn(Path, Path) -> c_int;
    linkat: unsafe extern "C" fn(c_int, Path, c_int, Path, c_int) -> c_int;
    chmod: unsafe extern "C" fn(Path, mode_t) -> c_int;
    fchmodat: unsafe extern "C" fn(c_int, Path, mode_t, c_int) -> c_int;
    chown: unsafe extern "C" fn(Path, uid_t, gid_t) -> c_int;
    lchown: unsafe extern "C" fn(Path, uid_t, gid_t) -> c_int;
    fchownat: unsafe extern "C" fn(c_int, Path, uid_t, gid_t, c_int) -> c_int;
    utime: unsafe extern "C" fn(Path, *const utimbuf) -> c_int;
    utimes: unsafe extern "C" fn(Path, *const timeval) -> c_int;
    lutimes: unsafe extern "C" fn(Path, *const timeval) -> c_int;
    futimesat: unsafe extern "C" fn(c_int, Path, *const timeval) -> c_int;
    utimensat: unsafe extern "C" fn(c_int, Path, *const timespec, c_int) -> c_int;
    setxattr: unsafe extern "C" fn(Path, Path, *const c_void, size_t, c_int) -> c_int;
    lsetxattr: unsafe extern "C" fn(Path, Path, *const c_void, size_t, c_int) -> c_int;
    removexattr: unsafe extern "C" fn(Path, Path) -> c_int;
    lremovexattr: unsafe extern "C" fn(Path, Path) -> c_int;

    fchmod: unsafe extern "C" fn(c_int, mode_t) -> c_int;
    fchown: unsafe extern "C" fn(c_int, uid_t, gid_t) -> c_int;
    futimes: unsafe extern "C" fn(c_int, *const timeval) -> c_int;
    futimens: unsafe extern "C" fn(c_int, *const timespec) -> c_int;
    fsetxattr: unsafe extern "C" fn(c_int, Path, *const c_void, size_t, c_int) -> c_int;
    fremovexattr: unsafe extern "C" fn(c_int, Path) -> c_int;
    fgetxattr: unsafe extern "C" fn(c_int, Path, *mut c_void, size_t) -> ssize_t;
    flistxattr: unsafe extern "C" fn(c_int, *mut c_char, size_t) -> ssize_t;
}

/// The directory of this process, as the kernel calls it, with a 0 at its end. libc's own `getcwd`
/// may open directories and allocate.
pub fn current_directory(room: &mut [std::mem::MaybeUninit<u8>]) -> Option<&[u8]> {
    let _errno = crate::errno::Kept::new();
    // SAFETY: the kernel writes at most as much as there is room for.
    let length: c_long = unsafe { libc::syscall(libc::SYS_getcwd, room.as_mut_ptr(), room.len()) };
    let length = usize::try_from(length).ok()?.checked_sub(1)?;
    // SAFETY: so many bytes were written, and a 0.
    let path = unsafe { room.get(..length)?.assume_init_ref() };
    path.starts_with(b"/").then_some(path)
}
