//! The functions that the hooks replace: libc's, or those of another preloaded library.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    FILE, gid_t, mode_t, size_t, ssize_t, stat as Stat, statx as Statx, timespec, timeval, uid_t,
    utimbuf,
};

/// A function looked up by name; `F` is its type.
pub struct RealFunction<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> RealFunction<F> {
    const fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()), kind: PhantomData }
    }

    /// Returns the function; None if this libc does not have it.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            found = self.look_up();
        }
        // SAFETY: the address of the function of this name, which has this type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is NUL-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Relaxed);
        found
    }
}

/// The return value of a failed function.
pub trait ErrorReturn {
    const FAILED: Self;
}

impl ErrorReturn for c_int {
    const FAILED: Self = -1;
}

impl ErrorReturn for ssize_t {
    const FAILED: Self = -1;
}

impl ErrorReturn for *mut FILE {
    const FAILED: Self = std::ptr::null_mut();
}

/// Fails with ENOSYS: this libc does not have the function, so no program is linked to it.
#[cold]
pub fn missing<T: ErrorReturn>() -> T {
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
            #[allow(non_upper_case_globals, reason = "libc's names")]
            pub static $name: RealFunction<$type> = RealFunction::new(
                // SAFETY: NUL-terminated, without a NUL before the end.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            );
        )*

        /// Looks all functions up, so that no lookup happens in a signal handler.
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

/// Returns the working directory as the kernel names it. libc's own `getcwd` may open directories
/// and allocate.
pub fn current_directory(buffer: &mut [std::mem::MaybeUninit<u8>]) -> Option<&[u8]> {
    let _errno = crate::errno::SavedErrno::new();
    // SAFETY: the kernel writes at most the buffer's length.
    let length: c_long =
        unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    let length = usize::try_from(length).ok()?.checked_sub(1)?;
    // SAFETY: the kernel wrote these bytes and a NUL.
    let path = unsafe { buffer.get(..length)?.assume_init_ref() };
    path.starts_with(b"/").then_some(path)
}
