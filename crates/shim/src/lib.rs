//! The shim: a library that is preloaded between a program and libc.
//!
//! `belady run` preloads it into an unmodified program. When the program opens a file of the
//! dataset for reading and the file has a copy on a faster level, the shim returns a descriptor of
//! the copy. After that the kernel does the rest: `read`, `pread`, `mmap`, `dup`, `fork`,
//! `sendfile`, `lseek`, io_uring and `close` are not intercepted.
//!
//! ```text
//! hooks/    functions with libc's names: pointers in, errno out            (unsafe, thin)
//!    │ safe arguments                ▲ the real function, called if needed
//!    ▼                               │
//! ops/      is the file below the dataset? has it a current copy?          (safe, all decisions)
//!    │
//!    ▼
//! crates/board: memory shared with the launcher, which makes the copies
//! ```
//!
//! - **A file opened for reading** (`ops/open.rs`) is looked up on the board. A copy that was not
//!   yet compared with its source in this run is compared first. Without a copy, the shim calls the
//!   real function and requests a copy from the launcher. It also calls the real function if
//!   anything fails on the way to the copy.
//! - **`stat`** (`ops/stat.rs`) of a file with a copy is answered from the board with the source's
//!   stat; `fstat` of a copy's descriptor too. So a program sees the source's device, inode, times
//!   and links, whichever file it reads.
//! - **Changes** (`ops/change.rs`): opening a file for writing, renaming or removing it, or
//!   changing its attributes drops its copies. The change itself is applied to the source, also if
//!   it was requested through a copy's descriptor.
//!
//! This code runs inside any program at any time: in signal handlers, between `vfork` and `exec`,
//! in an allocator, before `main`. So it allocates nothing, takes no lock, has no thread-local
//! state, prints nothing, and leaves errno as the real function leaves it. Paths elsewhere are
//! excluded by their first bytes, without copying them.
//!
//! The shim is inactive without the launcher's variable in the environment, if the launcher has
//! exited, and in processes with another root directory or other mounts (a container).
//!
//! Pointers that no program can have (NULL, the first page, the kernel's half) are passed to the
//! kernel, which answers EFAULT. Other bad pointers crash here as they do in libc's own `fopen`.

mod attached_job;
mod errno;
mod hooks;
mod ops;
mod real;

/// The dynamic loader calls this before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let _errno = errno::SavedErrno::new();
    real::resolve();
    attached_job::join();
}
