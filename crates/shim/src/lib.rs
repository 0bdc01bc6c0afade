//! The library that stands between a program and libc.
//!
//! `belady run` preloads it into a program that nobody may change. When the program opens a file of
//! the dataset for reading and there is a copy of it on a faster level, the descriptor handed out is
//! the descriptor of the copy. From then on the kernel does the rest: `read`, `pread`, `mmap`, `dup`,
//! `fork`, `sendfile`, `lseek`, io_uring and `close` need nothing from us.
//!
//! ```text
//! hooks/    functions with the names of libc's: pointers in, errno out    (unsafe, thin)
//!    │ safe arguments                ▲ the real function, to be called if need be
//!    ▼                               │
//! ops/      is the file below the dataset? is there a copy? is it good?   (safe, all the thinking)
//!    │
//!    ▼
//! crates/board: memory shared with the launcher, which makes the copies
//! ```
//!
//! What happens to
//!
//! - **a file opened for reading**: its name is looked up on the board (`ops/open.rs`). A copy
//!   that was not yet compared with its source in this run is compared first. Without a copy, the real call
//!   is made and the launcher is told which file is wanted. Whatever fails on the way to the copy, the
//!   real call is made too.
//! - **questions about a file** (`ops/stat.rs`): `stat` of a file that has a copy is answered from the
//!   board, with what the source said; `fstat` of a copy's descriptor too. So a program sees the
//!   device, number, times and links of the source, whichever file it got.
//! - **changes** (`ops/change.rs`): a file opened for writing, renamed, removed or with other
//!   permissions loses its copies. The change itself is made to the real file, also if it was asked
//!   for through a copy's descriptor.
//!
//! This code runs inside any program, at any time: in signal handlers, between `vfork` and `exec`, in
//! an allocator, before `main`. So it allocates nothing, takes no lock, keeps nothing of its own in
//! threads, prints nothing, and leaves errno as the real function leaves it. A path
//! elsewhere is told by its first bytes, on the caller's string.
//!
//! Without the launcher's variable in the environment, or if the launcher has gone, or where the
//! root directory is another one (a container), the library does nothing.
//!
//! Bad pointers: those that no program can have (NULL, the first page, the kernel's half) reach the
//! kernel, which answers EFAULT. Others crash here as they do in libc's own `fopen`.

mod errno;
mod hooks;
mod job;
mod ops;
mod real;

/// The loader calls this before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let _errno = errno::Kept::new();
    real::resolve();
    job::join();
}
